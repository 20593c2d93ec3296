//! Values as the user writes them, in the configuration file or as a flag.
use ix_broker::control::scrape_address;
use ix_proto::config::{
    Addr6, Addr6Identifier, AddressCheck, Bounds, HostError, bounds, check_host,
};
use ix_sys::cpu;
use ix_tcp::{CongestionControl, EcnMode};
use ix_wire::IpAddr;
use serde::de::value::MapAccessDeserializer;
use serde::de::{
    Deserialize, Deserializer, Error, IntoDeserializer, MapAccess, SeqAccess, Visitor,
};
use std::fmt;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::str::FromStr;

/// Why a text is no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueError {
    /// No address with a prefix length.
    Network,
    /// No IP address.
    Address,
    /// An address that no dataplane can have.
    Host(HostError),
    /// No network that a route may lead to.
    Destination,
    /// The address of a network has bits behind its prefix; the network's own address.
    Bits(IpAddr, u8),
    /// No number.
    Number,
    /// No Ethernet address.
    Mac,
    /// No range of ports.
    Ports,
    /// No list of hardware threads.
    Cpus,
    /// No mode of a file.
    Mode,
    /// No place to serve metrics at.
    Metrics,
    /// None of these words.
    Word(&'static [&'static str]),
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValueError::Network => f.write_str("not ADDRESS/PREFIX, for example 10.0.0.2/24"),
            ValueError::Address => f.write_str("not an address, for example 10.0.0.1"),
            ValueError::Host(e) => e.fmt(f),
            ValueError::Destination => f.write_str(
                "not a network of hosts beyond the link, for example 192.0.2.0/24 or ::/0",
            ),
            ValueError::Bits(network, prefix) => {
                write!(f, "it has bits behind its prefix: the network is {network}/{prefix}")
            }
            ValueError::Number => f.write_str("not a number"),
            ValueError::Mac => f.write_str("not a MAC address, for example 02:00:00:00:00:09"),
            ValueError::Ports => f.write_str("not a range of ports, for example 10000-32767"),
            ValueError::Cpus => f.write_str("not a list of hardware threads, for example 0,2-3"),
            ValueError::Mode => f.write_str("not a mode of a socket, for example \"0660\""),
            ValueError::Metrics => {
                f.write_str("not ADDRESS:PORT or a port, for example 127.0.0.1:9464")
            }
            ValueError::Word(words) => write!(f, "not one of {}", words.join(", ")),
        }
    }
}

impl std::error::Error for ValueError {}

/// A value that stands in the file as a text.
#[derive(Clone, Debug)]
pub struct Text<T>(pub T);

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Text<T>, D::Error> {
        struct Reader<T>(PhantomData<T>);
        impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for Reader<T> {
            type Value = Text<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text in quotes")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Text<T>, E> {
                text.parse().map(Text).map_err(E::custom)
            }
        }
        from.deserialize_any(Reader(PhantomData))
    }
}

/// A whole number within bounds, which [`within`] takes from `ix_proto::config::bounds`.
#[derive(Clone, Copy, Debug)]
pub struct Number<const LEAST: u64, const MOST: u64, const OR_ZERO: bool>(u64);

/// The type of numbers within the bounds of this name.
macro_rules! within {
    ($bounds:ident) => {
        $crate::settings::values::Number<
            { ix_proto::config::bounds::$bounds.least },
            { ix_proto::config::bounds::$bounds.most },
            { ix_proto::config::bounds::$bounds.or_zero },
        >
    };
}
pub(super) use within;

impl<const LEAST: u64, const MOST: u64, const OR_ZERO: bool> Number<LEAST, MOST, OR_ZERO> {
    const BOUNDS: Bounds = Bounds { least: LEAST, most: MOST, or_zero: OR_ZERO };

    /// For a field of the configuration, which has room for each number within the bounds.
    pub fn get<T: TryFrom<u64, Error: fmt::Debug>>(self) -> T {
        self.0.try_into().expect("bounds within the field's type")
    }
}

impl<'de, const LEAST: u64, const MOST: u64, const OR_ZERO: bool> Deserialize<'de>
    for Number<LEAST, MOST, OR_ZERO>
{
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = u64;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number")
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<u64, E> {
                let negative = || E::custom(format!("{number} is out of range: it is negative"));
                number.try_into().map_err(|_| negative())
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<u64, E> {
                Ok(number)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
                text.parse().map_err(|_| E::custom(ValueError::Number))
            }
        }
        let number = from.deserialize_any(Reader)?;
        Self::BOUNDS.check(number).map(Number).map_err(D::Error::custom)
    }
}

/// A list; a single value stands for a list of one, as in IX's configuration.
#[derive(Clone, Debug)]
pub struct List<T>(pub Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<List<T>, D::Error> {
        struct Reader<T>(PhantomData<T>);
        impl<T> Reader<T> {
            fn one<'de, D: Deserializer<'de>>(from: D) -> Result<List<T>, D::Error>
            where
                T: Deserialize<'de>,
            {
                Ok(List(vec![T::deserialize(from)?]))
            }
        }
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Reader<T> {
            type Value = List<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value, or a list of them")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<List<T>, A::Error> {
                let mut values = Vec::new();
                while let Some(value) = list.next_element()? {
                    values.push(value);
                }
                Ok(List(values))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<List<T>, A::Error> {
                Reader::one(MapAccessDeserializer::new(map))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<List<T>, E> {
                Reader::one(text.into_deserializer())
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<List<T>, E> {
                Reader::one(number.into_deserializer())
            }
        }
        from.deserialize_any(Reader(PhantomData))
    }
}

/// One of our addresses, with its prefix length.
#[derive(Clone, Copy, Debug)]
pub struct Network(pub IpAddr, pub u8);

impl FromStr for Network {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Network, ValueError> {
        let (addr, prefix) = text.split_once('/').ok_or(ValueError::Network)?;
        let addr: Address = addr.parse()?;
        let prefix: u64 = prefix.parse().map_err(|_| ValueError::Network)?;
        // One that is too long stays so.
        let prefix = u8::try_from(prefix).unwrap_or(u8::MAX);
        check_host(addr.0, prefix).map_err(ValueError::Host)?;
        Ok(Network(addr.0, prefix))
    }
}

/// The network that a route leads to, with its prefix length.
#[derive(Clone, Copy, Debug)]
pub struct Destination(pub IpAddr, pub u8);

impl FromStr for Destination {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Destination, ValueError> {
        let (to, prefix) = text.split_once('/').ok_or(ValueError::Destination)?;
        let Address(to) = to.parse().map_err(|_| ValueError::Destination)?;
        let prefix: u64 = prefix.parse().map_err(|_| ValueError::Destination)?;
        let (prefixes, before) =
            if to.is_v6() { (bounds::PREFIX_V6, 0) } else { (bounds::PREFIX, 96) };
        let refused = |e| ValueError::Host(HostError::Prefix(e));
        // Within the bounds, so it is a byte.
        let prefix = prefixes.check(prefix).map_err(refused)? as u8;
        if to.is_multicast() || to.is_loopback() || to.is_broadcast() || to.is_link_local_v6() {
            return Err(ValueError::Destination);
        }
        let mask = u128::MAX.checked_shl(128 - before - u32::from(prefix)).unwrap_or(0);
        let network = IpAddr((u128::from_be_bytes(to.0) & mask).to_be_bytes());
        if network == to {
            Ok(Destination(to, prefix))
        } else {
            Err(ValueError::Bits(network, prefix))
        }
    }
}

/// An address of somebody.
#[derive(Clone, Copy, Debug)]
pub struct Address(pub IpAddr);

impl FromStr for Address {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Address, ValueError> {
        text.parse().map(Address).map_err(|_| ValueError::Address)
    }
}

/// Values with commas between them.
#[derive(Clone, Debug)]
pub struct Commas<T>(pub Vec<T>);

impl<T: FromStr<Err = ValueError>> FromStr for Commas<T> {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Commas<T>, ValueError> {
        text.split(',').map(str::parse).collect::<Result<_, _>>().map(Commas)
    }
}

/// An Ethernet address.
#[derive(Clone, Copy, Debug)]
pub struct Mac(pub [u8; 6]);

impl FromStr for Mac {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Mac, ValueError> {
        let byte = |part: &str| u8::from_str_radix(part, 16).ok();
        let bytes: Option<Vec<u8>> = text.split(':').map(byte).collect();
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes.map(Mac).ok_or(ValueError::Mac)
    }
}

/// The first and the last of a range of ports.
#[derive(Clone, Copy, Debug)]
pub struct Ports(pub u16, pub u16);

impl FromStr for Ports {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Ports, ValueError> {
        let ends = text.split_once('-').and_then(|(first, last)| {
            let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
            (0 < first && first <= last).then_some(Ports(first, last))
        });
        ends.ok_or(ValueError::Ports)
    }
}

/// The mode of a socket, as `chmod` writes it.
#[derive(Clone, Copy, Debug)]
pub struct Mode(pub u32);

impl FromStr for Mode {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Mode, ValueError> {
        let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
        mode.map(Mode).ok_or(ValueError::Mode)
    }
}

/// Where metrics are served; a port alone is of the loopback address.
#[derive(Clone, Copy, Debug)]
pub struct Metrics(pub SocketAddr);

impl FromStr for Metrics {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Metrics, ValueError> {
        scrape_address(text).map(Metrics).ok_or(ValueError::Metrics)
    }
}

/// Hardware threads: a number, or a list such as `0,2-3`.
#[derive(Clone, Debug)]
pub struct Cpus(pub Vec<u32>);

impl FromStr for Cpus {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Cpus, ValueError> {
        let cpus = cpu::parse_list(text).filter(|cpus| !cpus.is_empty());
        let cpus = cpus.map(|cpus| cpus.into_iter().map(|cpu| cpu as u32).collect());
        cpus.map(Cpus).ok_or(ValueError::Cpus)
    }
}

impl<'de> Deserialize<'de> for Cpus {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Cpus, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = Cpus;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a hardware thread or a list of them, for example [0, 2] or \"0,2-3\"")
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Cpus, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Cpus, E> {
                text.parse().map_err(E::custom)
            }
        }
        from.deserialize_any(Reader)
    }
}

/// A choice of one of several words.
pub trait Named: Copy + 'static {
    /// Every word.
    const WORDS: &'static [&'static str];
    /// Every word with what it means.
    const ALL: &'static [(&'static str, Self)];
}

/// Tells the words of a type that has a table of them.
macro_rules! named {
    ($($type:ty),*) => {
        $(impl Named for $type {
            const WORDS: &'static [&'static str] = &{
                let mut words = [""; <$type>::ALL.len()];
                let mut i = 0;
                while i < words.len() {
                    words[i] = <$type>::ALL[i].0;
                    i += 1;
                }
                words
            };
            const ALL: &'static [(&'static str, $type)] = &<$type>::ALL;
        })*
    };
}

named!(Addr6, Addr6Identifier, AddressCheck, CongestionControl, EcnMode);

/// A word of those that `T` has.
#[derive(Clone, Copy, Debug)]
pub struct Word<T>(pub T);

impl<T: Named> FromStr for Word<T> {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Word<T>, ValueError> {
        let found = T::ALL.iter().find(|(word, _)| *word == text);
        found.map(|(_, value)| Word(*value)).ok_or(ValueError::Word(T::WORDS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused<T: FromStr<Err = ValueError>>(text: &str) -> String {
        let Err(e) = text.parse::<T>() else { panic!("{text} was taken") };
        e.to_string()
    }

    #[test]
    fn what_is_refused_says_what_would_do() {
        for (why, says) in [
            (refused::<Network>("10.0.0.1"), "ADDRESS/PREFIX"),
            (refused::<Network>("10.0.0.1/x"), "ADDRESS/PREFIX"),
            (refused::<Network>("10.0.0.1/33"), "33 is out of range: 0 to 32"),
            (refused::<Network>("10.0.0.1/256"), "out of range: 0 to 32"),
            (refused::<Network>("224.0.0.1/4"), "not an address of a host"),
            (refused::<Network>("::1/64"), "not an address of a host"),
            (refused::<Network>("ff02::1/64"), "not an address of a host"),
            (refused::<Network>("2001:db8::1/129"), "129 is out of range: 0 to 128"),
            (refused::<Network>("fe80::1/64"), "link-local"),
            (refused::<Commas<Network>>("10.0.0.1/24,fe80::1/64"), "link-local"),
            (refused::<Commas<Network>>("10.0.0.1/24,"), "ADDRESS/PREFIX"),
            (refused::<Address>("10.0.0.256"), "not an address"),
            (refused::<Destination>("default"), "192.0.2.0/24"),
            (refused::<Destination>("192.0.2.0"), "192.0.2.0/24"),
            (refused::<Destination>("192.0.2.0/33"), "33 is out of range: 0 to 32"),
            (refused::<Destination>("2001:db8::/129"), "129 is out of range: 0 to 128"),
            (refused::<Destination>("192.0.2.7/24"), "the network is 192.0.2.0/24"),
            (refused::<Destination>("10.0.0.1/0"), "the network is 0.0.0.0/0"),
            (refused::<Destination>("2001:db8::7/64"), "the network is 2001:db8::/64"),
            (refused::<Destination>("224.0.0.0/4"), "not a network of hosts"),
            (refused::<Destination>("fe80::/64"), "not a network of hosts"),
            (refused::<Mac>("1:2:3"), "MAC"),
            (refused::<Mac>("02:00:00:00:00:0g"), "MAC"),
            (refused::<Ports>("0-9"), "range of ports"),
            (refused::<Ports>("9-8"), "range of ports"),
            (refused::<Ports>("9"), "range of ports"),
            (refused::<Mode>("rwx"), "0660"),
            (refused::<Mode>("1777"), "0660"),
            (refused::<Metrics>("localhost"), "127.0.0.1:9464"),
            (refused::<Cpus>("x"), "not a list"),
            (refused::<Cpus>(""), "not a list"),
            (refused::<Word<AddressCheck>>("on"), "not one of off, announce, probe"),
            (refused::<Word<CongestionControl>>("vegas"), "not one of cubic, reno, dctcp, bbr"),
        ] {
            assert!(why.contains(says), "{why}");
        }
        for text in ["0.0.0.0/0", "::/0", "192.0.2.7/32", "2001:db8::7/128", "10.128.0.0/9"] {
            let Destination(to, prefix) = text.parse().expect(text);
            assert_eq!(format!("{to}/{prefix}"), text);
        }
        assert_eq!("9464".parse::<Metrics>().expect("a port").0.to_string(), "127.0.0.1:9464");
        assert_eq!("02:00:00:00:00:09".parse::<Mac>().expect("fine").0, [2, 0, 0, 0, 0, 9]);
    }
}
