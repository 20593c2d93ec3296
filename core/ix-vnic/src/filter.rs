//! Filters as values: convex parts of the space of packet headers.
//!
//! A filter says of each header field that it cares for which values it takes, independently of the
//! other fields: a box. So whether two filters overlap, or one contains the other, is decided field
//! by field, and is exact.
use crate::header::{Header, UNTAGGED};
use crate::ranges::Ranges;
use ix_wire::MacAddr;

/// Which way the packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// From the network to the vNIC.
    Receive,
    /// From the vNIC to the network.
    Transmit,
}

/// What kind of packets it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Frames of any kind.
    Ethernet,
    /// IPv4 packets.
    Ipv4,
    /// TCP segments.
    Tcp,
    /// UDP datagrams.
    Udp,
}

/// A header field. The service is at our end, the peer at the other: which is source and which
/// destination depends on the direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Field {
    /// VLAN number, or [`UNTAGGED`].
    Vlan,
    /// What the frame carries.
    EtherType,
    /// Our Ethernet address.
    ServiceMac,
    /// Theirs.
    PeerMac,
    /// What the IPv4 packet carries.
    Protocol,
    /// Our IPv4 address.
    ServiceAddress,
    /// Theirs.
    PeerAddress,
    /// Our port.
    ServicePort,
    /// Theirs.
    PeerPort,
}

impl Field {
    /// Every field, in order.
    pub const ALL: [Field; 9] = [
        Field::Vlan,
        Field::EtherType,
        Field::ServiceMac,
        Field::PeerMac,
        Field::Protocol,
        Field::ServiceAddress,
        Field::PeerAddress,
        Field::ServicePort,
        Field::PeerPort,
    ];

    /// The largest value that it can have.
    pub fn largest(self) -> u64 {
        match self {
            Field::Vlan => UNTAGGED.into(),
            Field::EtherType | Field::ServicePort | Field::PeerPort => u16::MAX.into(),
            Field::ServiceMac | Field::PeerMac => (1 << 48) - 1,
            Field::Protocol => u8::MAX.into(),
            Field::ServiceAddress | Field::PeerAddress => u32::MAX.into(),
        }
    }
}

/// A convex part of the header space.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Filter {
    direction: Direction,
    level: Level,
    /// What it asks of fields, in their order; what it does not name may be anything.
    fields: Vec<(Field, Ranges)>,
}

impl Filter {
    /// All untagged packets of a level.
    pub fn new(direction: Direction, level: Level) -> Filter {
        let mut filter = Filter { direction, level, fields: Vec::new() };
        filter.set(Field::Vlan, Ranges::one(UNTAGGED.into()));
        if level != Level::Ethernet {
            filter.set(Field::EtherType, Ranges::one(0x0800));
        }
        match level {
            Level::Tcp => filter.set(Field::Protocol, Ranges::one(6)),
            Level::Udp => filter.set(Field::Protocol, Ranges::one(17)),
            Level::Ethernet | Level::Ipv4 => {}
        }
        filter
    }

    /// The filter of these parts, as [`Filter::fields`] and its companions return them; `None`: no
    /// filter has them.
    pub fn from_parts(
        direction: Direction,
        level: Level,
        fields: Vec<(Field, Ranges)>,
    ) -> Option<Filter> {
        let mut filter = Filter::new(direction, level);
        // What the level leaves open may be anything, unless the parts narrow it.
        filter.fields.retain(|(field, _)| !level.has(*field));
        for (field, values) in fields.iter().filter(|(field, _)| level.has(*field)) {
            filter.set(*field, values.clone());
        }
        (filter.fields == fields).then_some(filter)
    }

    /// The same for these values of a field only; all values: it asks nothing of the field.
    ///
    /// # Panics
    /// When packets of the level do not all have the field: a mistake of the caller. Fields that the
    /// level itself decides cannot be narrowed either.
    pub fn with(mut self, field: Field, values: Ranges) -> Filter {
        assert!(self.level.has(field), "{:?} packets have no {field:?} to choose", self.level);
        self.set(field, values);
        self
    }

    fn set(&mut self, field: Field, values: Ranges) {
        self.fields.retain(|(old, _)| *old != field);
        let is_all = matches!(values.as_slice(), [(0, high)] if *high >= field.largest());
        if !is_all {
            self.fields.push((field, values));
            self.fields.sort_by_key(|(field, _)| *field);
        }
    }

    /// Which way its packets go.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// The same part for the other direction: what a service receives, its answers may have.
    pub fn reversed(&self) -> Filter {
        let direction = match self.direction {
            Direction::Receive => Direction::Transmit,
            Direction::Transmit => Direction::Receive,
        };
        Filter { direction, ..self.clone() }
    }

    /// What kind of packets it is about.
    pub fn level(&self) -> Level {
        self.level
    }

    /// The fields that it asks something of, and what.
    pub fn fields(&self) -> &[(Field, Ranges)] {
        &self.fields
    }

    /// What it asks of a field; `None`: nothing.
    pub fn field(&self, field: Field) -> Option<&Ranges> {
        self.fields.iter().find(|(own, _)| *own == field).map(|(_, values)| values)
    }

    /// Whether there is no packet that it takes.
    pub fn is_empty(&self) -> bool {
        self.fields.iter().any(|(_, values)| values.is_empty())
    }

    /// Whether a packet of its direction belongs to it.
    #[inline]
    pub fn matches(&self, header: &Header) -> bool {
        let takes = |(field, values): &(Field, Ranges)| {
            value_of(header, self.direction, *field).is_some_and(|value| values.contains(value))
        };
        self.fields.iter().all(takes)
    }

    /// Whether there is a packet that both take.
    pub fn overlaps(&self, other: &Filter) -> bool {
        let meets = |(field, values): &(Field, Ranges)| {
            other.field(*field).is_none_or(|theirs| values.overlaps(theirs))
        };
        let exist = !self.is_empty() && !other.is_empty();
        exist && self.direction == other.direction && self.fields.iter().all(meets)
    }

    /// Whether it takes every packet that `other` takes.
    pub fn contains(&self, other: &Filter) -> bool {
        let covers = |(field, values): &(Field, Ranges)| {
            other.field(*field).is_some_and(|theirs| values.contains_all(theirs))
        };
        self.direction == other.direction && (other.is_empty() || self.fields.iter().all(covers))
    }
}

impl Level {
    /// Whether a filter of this level may choose values of the field.
    pub fn has(self, field: Field) -> bool {
        match field {
            Field::Vlan | Field::ServiceMac | Field::PeerMac => true,
            Field::EtherType => self == Level::Ethernet,
            Field::Protocol => self == Level::Ipv4,
            Field::ServiceAddress | Field::PeerAddress => self != Level::Ethernet,
            Field::ServicePort | Field::PeerPort => matches!(self, Level::Tcp | Level::Udp),
        }
    }
}

/// What a packet that goes this way has in a field; `None` when it has no such field.
#[inline]
pub(crate) fn value_of(header: &Header, direction: Direction, field: Field) -> Option<u64> {
    let receives = direction == Direction::Receive;
    let ip = header.ip;
    Some(match field {
        Field::Vlan => header.vlan.into(),
        Field::EtherType => header.ethertype.into(),
        Field::ServiceMac if receives => number(header.eth_dst),
        Field::ServiceMac => number(header.eth_src),
        Field::PeerMac if receives => number(header.eth_src),
        Field::PeerMac => number(header.eth_dst),
        Field::Protocol => ip?.protocol.into(),
        Field::ServiceAddress if receives => ip?.dst.into(),
        Field::ServiceAddress => ip?.src.into(),
        Field::PeerAddress if receives => ip?.src.into(),
        Field::PeerAddress => ip?.dst.into(),
        Field::ServicePort if receives => ip?.ports?.1.into(),
        Field::ServicePort => ip?.ports?.0.into(),
        Field::PeerPort if receives => ip?.ports?.0.into(),
        Field::PeerPort => ip?.ports?.1.into(),
    })
}

/// An Ethernet address as a number.
#[inline]
pub(crate) fn number(mac: MacAddr) -> u64 {
    mac.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
