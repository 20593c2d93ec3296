//! The AccECN option (RFC 9768 section 3.2.3): how many bytes came with each ECN codepoint.

/// Kinds of the option: the counter of ECT(0) first, or that of ECT(1).
pub(super) const ORDER_0: u8 = 172;
pub(super) const ORDER_1: u8 = 174;

const FIELD_BYTES: usize = 3;
const MODULO: u32 = 1 << 24;

/// Counters of received payload bytes, modulo 2^24. An option may omit counters only from its end,
/// so it cannot have a counter of CE alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EcnBytes {
    /// ECT(0), CE and ECT(1), each plus one; 0: omitted.
    plus_one: [u32; 3],
}

impl EcnBytes {
    /// No option.
    pub const NONE: Self = Self { plus_one: [0; 3] };

    /// An option with the lowest 24 bits of these counters.
    pub fn new(ect0: Option<u32>, ce: Option<u32>, ect1: Option<u32>) -> Self {
        let field = |value: Option<u32>| value.map_or(0, |value| value % MODULO + 1);
        let ce = ce.filter(|_| ect0.is_some() || ect1.is_some());
        // The last counter needs those before it.
        let ect1 = ect1.filter(|_| ect0.is_none() || ce.is_some());
        Self { plus_one: [field(ect0), field(ce), field(ect1)] }
    }

    /// Bytes that came with ECT(0).
    pub fn ect0(self) -> Option<u32> {
        self.plus_one[0].checked_sub(1)
    }

    /// Bytes that came with CE.
    pub fn ce(self) -> Option<u32> {
        self.plus_one[1].checked_sub(1)
    }

    /// Bytes that came with ECT(1).
    pub fn ect1(self) -> Option<u32> {
        self.plus_one[2].checked_sub(1)
    }

    /// True if there is no option.
    #[inline]
    pub fn is_none(self) -> bool {
        self.plus_one == [0; 3]
    }

    /// The same without the last counter, if it has all three.
    pub fn shorter(self) -> Self {
        let [ect0, ce, ect1] = self.plus_one;
        Self { plus_one: [ect0, ce, if ect0 == 0 { ect1 } else { 0 }] }
    }

    /// Bytes that [`Self::emit`] writes, a multiple of four.
    #[inline]
    pub(super) fn len(self) -> usize {
        match self.plus_one.iter().filter(|field| **field != 0).count() {
            0 => 0,
            fields => (2 + FIELD_BYTES * fields).next_multiple_of(4),
        }
    }

    /// Parses the body of an option of this kind; `None` if its length is invalid.
    pub(super) fn parse(kind: u8, body: &[u8]) -> Option<Self> {
        let (fields, rest) = body.as_chunks::<FIELD_BYTES>();
        if !rest.is_empty() || fields.len() > 3 {
            return None;
        }
        let places = if kind == ORDER_0 { [0, 1, 2] } else { [2, 1, 0] };
        let mut read = Self::NONE;
        for (field, place) in fields.iter().zip(places) {
            let [high, middle, low] = field.map(u32::from);
            read.plus_one[place] = (high << 16 | middle << 8 | low) + 1;
        }
        Some(read)
    }

    /// Writes the option, padded with no-operations; returns its length.
    pub(super) fn emit(self, out: &mut [u8]) -> usize {
        let len = self.len();
        if len == 0 {
            return 0;
        }
        let [ect0, ce, ect1] = self.plus_one;
        let (kind, fields) =
            if ect0 != 0 { (ORDER_0, [ect0, ce, ect1]) } else { (ORDER_1, [ect1, ce, 0]) };
        out[..len].fill(super::options::NO_OPERATION);
        let mut end = 2;
        for field in fields.into_iter().filter(|field| *field != 0) {
            out[end..end + FIELD_BYTES].copy_from_slice(&(field - 1).to_be_bytes()[1..]);
            end += FIELD_BYTES;
        }
        (out[0], out[1]) = (kind, end as u8);
        len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn emitted(bytes: EcnBytes) -> Vec<u8> {
        let mut out = [0xaa; 12];
        let len = bytes.emit(&mut out);
        out[..len].to_vec()
    }

    #[test]
    fn rfc9768_3_2_3_layouts() {
        let all = EcnBytes::new(Some(1), Some(0x0002_0304), Some(0xff00_0005));
        assert_eq!(emitted(all), [172, 11, 0, 0, 1, 2, 3, 4, 0, 0, 5, 1]);
        assert_eq!(emitted(all.shorter()), [172, 8, 0, 0, 1, 2, 3, 4]);
        let ect0 = EcnBytes::new(Some(7), None, None);
        assert_eq!(emitted(ect0), [172, 5, 0, 0, 7, 1, 1, 1]);
        let ect1 = EcnBytes::new(None, Some(9), Some(7));
        assert_eq!(emitted(ect1), [174, 8, 0, 0, 7, 0, 0, 9]);
        assert_eq!(emitted(EcnBytes::NONE), []);
    }

    #[test]
    fn rfc9768_3_2_3_both_orders_are_read() {
        let body = [0, 0, 1, 0, 0, 2, 0, 0, 3];
        let read = |kind, len: usize| EcnBytes::parse(kind, &body[..len]);
        let all = |ect0, ce, ect1| Some(EcnBytes::new(ect0, ce, ect1));
        assert_eq!(read(ORDER_0, 9), all(Some(1), Some(2), Some(3)));
        assert_eq!(read(ORDER_1, 9), all(Some(3), Some(2), Some(1)));
        assert_eq!(read(ORDER_0, 6), all(Some(1), Some(2), None));
        assert_eq!(read(ORDER_1, 3), all(None, None, Some(1)));
        assert_eq!(read(ORDER_0, 0), Some(EcnBytes::NONE));
        assert_eq!(read(ORDER_0, 4), None);
    }

    #[test]
    fn a_counter_in_front_of_which_another_is_missing_is_left_out() {
        assert_eq!(EcnBytes::new(None, Some(1), None), EcnBytes::NONE);
        let both = EcnBytes::new(Some(1), None, Some(2));
        assert_eq!((both.ect0(), both.ce(), both.ect1()), (Some(1), None, None));
    }
}
