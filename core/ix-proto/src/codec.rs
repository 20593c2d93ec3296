//! Values as bytes.
//!
//! Numbers are base-128 varints, least significant part first, as short as they can be. Texts and
//! lists begin with their length, enums with the number of their variant. So each value has exactly
//! one form.
use core::fmt;
use std::collections::BTreeMap;

/// Deepest nesting of lists and boxed values: an elastic thread's stack bears it.
const DEPTH_MAX: u8 = 100;

/// Why bytes are no value of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// They end in the midst of it.
    Truncated,
    /// More bytes follow it.
    Trailing,
    /// No variant of an enum has this number.
    Variant,
    /// A number, text or list is out of its bounds.
    Value,
    /// Nested too deeply.
    Depth,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DecodeError::Truncated => "the message ends too early",
            DecodeError::Trailing => "bytes follow the message",
            DecodeError::Variant => "the message is of no known kind",
            DecodeError::Value => "a part of the message is out of bounds",
            DecodeError::Depth => "the message is nested too deeply",
        })
    }
}

impl std::error::Error for DecodeError {}

/// Where encoded bytes go.
pub trait Sink {
    /// Appends bytes.
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// A buffer of fixed size, for a process that must not touch its heap.
struct Fixed<'a> {
    buffer: &'a mut [u8],
    /// Bytes so far, those that found no room included.
    length: usize,
}

impl Sink for Fixed<'_> {
    fn put(&mut self, bytes: &[u8]) {
        if let Some(room) = self.buffer.get_mut(self.length..self.length + bytes.len()) {
            room.copy_from_slice(bytes);
        }
        self.length += bytes.len();
    }
}

/// Only counts.
struct Count(usize);

impl Sink for Count {
    fn put(&mut self, bytes: &[u8]) {
        self.0 += bytes.len();
    }
}

/// Encoded bytes on their way back to a value.
#[derive(Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    depth: u8,
}

impl<'a> Reader<'a> {
    /// Takes the next bytes.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let (head, rest) = self.bytes.split_at_checked(count).ok_or(DecodeError::Truncated)?;
        self.bytes = rest;
        Ok(head)
    }

    /// Reads a value that is nested in another of its type; bounds how deep that may go.
    pub fn nested<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<T, DecodeError> {
        if self.depth >= DEPTH_MAX {
            return Err(DecodeError::Depth);
        }
        self.depth += 1;
        let value = read(self);
        self.depth -= 1;
        value
    }

    /// Reads the length of what follows, of which each element takes a byte at least.
    fn length(&mut self) -> Result<usize, DecodeError> {
        let length = usize::read(self)?;
        if length <= self.bytes.len() { Ok(length) } else { Err(DecodeError::Truncated) }
    }
}

/// A value that travels between processes.
pub trait Codec: Sized {
    /// Appends its bytes.
    fn write(&self, to: &mut impl Sink);

    /// Reads one, and checks all of it.
    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError>;

    /// Its bytes.
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write(&mut bytes);
        bytes
    }

    /// Its bytes in a buffer of the caller's, without the heap; `None`: they do not fit.
    fn encode_into<'a>(&self, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
        let mut fixed = Fixed { buffer, length: 0 };
        self.write(&mut fixed);
        let length = fixed.length;
        buffer.get(..length)
    }

    /// Number of its bytes.
    fn encoded_len(&self) -> usize {
        let mut count = Count(0);
        self.write(&mut count);
        count.0
    }

    /// The value of all these bytes.
    fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader { bytes, depth: 0 };
        let value = Self::read(&mut reader)?;
        if reader.bytes.is_empty() { Ok(value) } else { Err(DecodeError::Trailing) }
    }
}

macro_rules! long_numbers {
    ($($type:ty),*) => {
        $(impl Codec for $type {
            fn write(&self, to: &mut impl Sink) {
                let mut rest = *self;
                while rest >= 0x80 {
                    to.put(&[rest as u8 | 0x80]);
                    rest >>= 7;
                }
                to.put(&[rest as u8]);
            }

            fn read(from: &mut Reader<'_>) -> Result<$type, DecodeError> {
                let mut value = 0;
                for shift in (0..<$type>::BITS).step_by(7) {
                    let byte = u8::read(from)?;
                    let part = <$type>::from(byte & 0x7f);
                    if part << shift >> shift != part {
                        return Err(DecodeError::Value);
                    }
                    value |= part << shift;
                    if byte & 0x80 == 0 {
                        // A last part that adds nothing: the number has a shorter form.
                        let shortest = part != 0 || shift == 0;
                        return if shortest { Ok(value) } else { Err(DecodeError::Value) };
                    }
                }
                Err(DecodeError::Value)
            }
        })*
    };
}

long_numbers!(u64, u128);

macro_rules! numbers {
    ($($type:ty),*) => {
        $(impl Codec for $type {
            fn write(&self, to: &mut impl Sink) {
                (*self as u64).write(to);
            }

            fn read(from: &mut Reader<'_>) -> Result<$type, DecodeError> {
                u64::read(from)?.try_into().map_err(|_| DecodeError::Value)
            }
        })*
    };
}

numbers!(u16, u32, usize);

impl Codec for u8 {
    fn write(&self, to: &mut impl Sink) {
        to.put(&[*self]);
    }

    fn read(from: &mut Reader<'_>) -> Result<u8, DecodeError> {
        Ok(from.take(1)?[0])
    }
}

impl Codec for ix_wire::VlanId {
    fn write(&self, to: &mut impl Sink) {
        self.number().write(to);
    }

    fn read(from: &mut Reader<'_>) -> Result<ix_wire::VlanId, DecodeError> {
        ix_wire::VlanId::new(u16::read(from)?).ok_or(DecodeError::Value)
    }
}

impl Codec for bool {
    fn write(&self, to: &mut impl Sink) {
        u8::from(*self).write(to);
    }

    fn read(from: &mut Reader<'_>) -> Result<bool, DecodeError> {
        match u8::read(from)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Value),
        }
    }
}

impl Codec for String {
    fn write(&self, to: &mut impl Sink) {
        self.len().write(to);
        to.put(self.as_bytes());
    }

    fn read(from: &mut Reader<'_>) -> Result<String, DecodeError> {
        let length = from.length()?;
        let text = core::str::from_utf8(from.take(length)?).map_err(|_| DecodeError::Value)?;
        Ok(text.to_owned())
    }
}

impl<T: Codec> Codec for Vec<T> {
    fn write(&self, to: &mut impl Sink) {
        self.len().write(to);
        self.iter().for_each(|item| item.write(to));
    }

    fn read(from: &mut Reader<'_>) -> Result<Vec<T>, DecodeError> {
        let length = from.length()?;
        from.nested(|from| (0..length).map(|_| T::read(from)).collect())
    }
}

impl<T: Codec> Codec for Option<T> {
    fn write(&self, to: &mut impl Sink) {
        self.is_some().write(to);
        self.iter().for_each(|value| value.write(to));
    }

    fn read(from: &mut Reader<'_>) -> Result<Option<T>, DecodeError> {
        if bool::read(from)? { T::read(from).map(Some) } else { Ok(None) }
    }
}

impl<T: Codec> Codec for Box<T> {
    fn write(&self, to: &mut impl Sink) {
        (**self).write(to);
    }

    fn read(from: &mut Reader<'_>) -> Result<Box<T>, DecodeError> {
        from.nested(T::read).map(Box::new)
    }
}

impl<T: Codec, const N: usize> Codec for [T; N] {
    fn write(&self, to: &mut impl Sink) {
        self.iter().for_each(|item| item.write(to));
    }

    fn read(from: &mut Reader<'_>) -> Result<[T; N], DecodeError> {
        let items: Vec<T> = (0..N).map(|_| T::read(from)).collect::<Result<_, _>>()?;
        items.try_into().map_err(|_| DecodeError::Value)
    }
}

impl<A: Codec, B: Codec> Codec for (A, B) {
    fn write(&self, to: &mut impl Sink) {
        self.0.write(to);
        self.1.write(to);
    }

    fn read(from: &mut Reader<'_>) -> Result<(A, B), DecodeError> {
        Ok((A::read(from)?, B::read(from)?))
    }
}

impl<K: Codec + Ord, V: Codec> Codec for BTreeMap<K, V> {
    fn write(&self, to: &mut impl Sink) {
        self.len().write(to);
        for (key, value) in self {
            key.write(to);
            value.write(to);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<BTreeMap<K, V>, DecodeError> {
        let mut map = BTreeMap::new();
        for _ in 0..from.length()? {
            let (key, value) = <(K, V)>::read(from)?;
            if map.last_key_value().is_some_and(|(last, _)| *last >= key) {
                return Err(DecodeError::Value);
            }
            map.insert(key, value);
        }
        Ok(map)
    }
}

/// The codec of a struct: its fields, in the order that is named here. `if check`: a value that
/// this method of the struct refuses is not read.
macro_rules! codec_struct {
    ($type:ty { $($field:ident),* $(,)? } $(if $check:ident)?) => {
        impl $crate::codec::Codec for $type {
            fn write(&self, to: &mut impl $crate::codec::Sink) {
                let Self { $($field),* } = self;
                $($field.write(to);)*
            }

            fn read(
                from: &mut $crate::codec::Reader<'_>,
            ) -> Result<Self, $crate::codec::DecodeError> {
                let value = Self { $($field: $crate::codec::Codec::read(from)?),* };
                $(value.$check().map_err(|_| $crate::codec::DecodeError::Value)?;)?
                Ok(value)
            }
        }
    };
}

/// The codec of an enum: the number of the variant, then its fields.
macro_rules! codec_enum {
    ($type:ty { $($number:literal = $variant:ident
        $({ $($field:ident),* })? $(( $($item:ident),* ))?),* $(,)? }) => {
        impl $crate::codec::Codec for $type {
            fn write(&self, to: &mut impl $crate::codec::Sink) {
                match self {
                    $(Self::$variant $({ $($field),* })? $(( $($item),* ))? => {
                        to.put(&[$number]);
                        $($($field.write(to);)*)?
                        $($($item.write(to);)*)?
                    })*
                }
            }

            fn read(
                from: &mut $crate::codec::Reader<'_>,
            ) -> Result<Self, $crate::codec::DecodeError> {
                match <u8 as $crate::codec::Codec>::read(from)? {
                    $($number => {
                        $($(let $field = $crate::codec::Codec::read(from)?;)*)?
                        $($(let $item = $crate::codec::Codec::read(from)?;)*)?
                        Ok(Self::$variant $({ $($field),* })? $(( $($item),* ))?)
                    })*
                    _ => Err($crate::codec::DecodeError::Variant),
                }
            }
        }
    };
}

pub(crate) use {codec_enum, codec_struct};

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Whether a value comes back as it was, from all of its bytes and from no part of them.
    pub(crate) fn survives<T: Codec + PartialEq + fmt::Debug>(value: &T) {
        let bytes = value.encode();
        assert_eq!(bytes.len(), value.encoded_len());
        assert_eq!(T::decode(&bytes).as_ref(), Ok(value));
        for cut in 0..bytes.len() {
            assert!(T::decode(&bytes[..cut]).is_err(), "{value:?} from {cut} bytes");
        }
        let more = [&bytes[..], &[0]].concat();
        assert_eq!(T::decode(&more), Err(DecodeError::Trailing));
    }

    /// Whatever the bytes are, the decoder returns, and what it takes has no other form.
    pub(crate) fn harmless<T: Codec>(bytes: &[u8]) {
        if let Ok(value) = T::decode(bytes) {
            assert_eq!(value.encode(), bytes);
        }
    }

    #[test]
    fn numbers_have_one_form() {
        for (number, bytes) in [(0, &[0][..]), (127, &[127]), (128, &[0x80, 1]), (300, &[0xac, 2])]
        {
            assert_eq!(u64::encode(&number), bytes);
        }
        assert_eq!(u64::decode(&[0x80, 0]), Err(DecodeError::Value), "longer than it need be");
        assert_eq!(u64::decode(&[0xff; 9]), Err(DecodeError::Truncated));
        let beyond = [&[0xff; 9][..], &[2]].concat();
        assert_eq!(u64::decode(&beyond), Err(DecodeError::Value), "more than 64 bits");
        assert_eq!(u16::decode(&u64::encode(&65_536)), Err(DecodeError::Value));
    }

    #[test]
    fn a_length_is_believed_only_as_far_as_there_are_bytes() {
        let length = usize::encode(&usize::MAX);
        assert_eq!(Vec::<u64>::decode(&length), Err(DecodeError::Truncated));
        assert_eq!(String::decode(&length), Err(DecodeError::Truncated));
        assert_eq!(String::decode(&[1, 0xff]), Err(DecodeError::Value), "no text");
        assert_eq!(BTreeMap::<u8, u8>::decode(&[2, 5, 0, 5, 0]), Err(DecodeError::Value));
    }

    #[test]
    fn a_buffer_is_filled_without_the_heap_or_not_used() {
        let mut buffer = [0; 4];
        assert_eq!("abc".to_owned().encode_into(&mut buffer), Some(&b"\x03abc"[..]));
        assert_eq!("abcd".to_owned().encode_into(&mut buffer), None);
    }

    proptest! {
        #[test]
        fn plain_values_survive(
            number in any::<u64>(),
            parts in any::<(u8, u16, u32, bool)>(),
            text in ".*",
            list in prop::collection::vec(any::<(Option<u32>, u8)>(), 0..9),
            map in prop::collection::btree_map(any::<usize>(), any::<u16>(), 0..9),
        ) {
            survives(&number);
            survives(&parts.0);
            survives(&((parts.1, parts.2), parts.3));
            survives(&text);
            survives(&list);
            survives(&map);
            survives(&[parts.2, parts.2 / 2]);
        }

        #[test]
        fn no_bytes_harm(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            harmless::<u64>(&bytes);
            harmless::<String>(&bytes);
            harmless::<Vec<(Option<u32>, String)>>(&bytes);
            harmless::<BTreeMap<u16, Vec<bool>>>(&bytes);
        }
    }
}
