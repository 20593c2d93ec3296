//! Filters as values: convex parts of the space of packet headers.
//!
//! A filter names a set of values for some header fields; each field is independent of the others,
//! so the filter is a box. Whether two filters overlap, or one contains the other, is therefore
//! decided field by field, and exactly.
use crate::header::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, Header, UNTAGGED};
use crate::ranges::Ranges;
use ix_wire::MacAddr;

/// The direction of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// From the network to the vNIC.
    Receive,
    /// From the vNIC to the network.
    Transmit,
}

/// The kind of packets that a filter matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Frames of any kind.
    Ethernet,
    /// IPv4 packets.
    Ipv4,
    /// TCP segments of IPv4.
    Tcp,
    /// UDP datagrams of IPv4.
    Udp,
    /// IPv6 packets, without messages of Neighbour Discovery: these speak for addresses.
    Ipv6,
    /// TCP segments of IPv6.
    Tcp6,
    /// UDP datagrams of IPv6.
    Udp6,
}

/// A header field. The service is at our end of the link and the peer at the other; the direction
/// says which of them is the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Field {
    /// VLAN number, or [`UNTAGGED`].
    Vlan,
    /// EtherType of the frame.
    EtherType,
    /// The service's Ethernet address.
    ServiceMac,
    /// The peer's Ethernet address.
    PeerMac,
    /// Protocol number of the IP packet: of IPv6, that behind its extension headers.
    Protocol,
    /// The service's IP address.
    ServiceAddress,
    /// The peer's IP address.
    PeerAddress,
    /// The service's port.
    ServicePort,
    /// The peer's port.
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

    /// The largest value of the field in packets of a level.
    pub fn largest(self, level: Level) -> u128 {
        match self {
            Field::Vlan => UNTAGGED.into(),
            Field::EtherType | Field::ServicePort | Field::PeerPort => u16::MAX.into(),
            Field::ServiceMac | Field::PeerMac => (1 << 48) - 1,
            Field::Protocol => u8::MAX.into(),
            Field::ServiceAddress | Field::PeerAddress if level.is_v6() => u128::MAX,
            Field::ServiceAddress | Field::PeerAddress => u32::MAX.into(),
        }
    }
}

/// A convex part of the space of packet headers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Filter {
    direction: Direction,
    level: Level,
    /// The restricted fields, in the order of [`Field`]. Any other field may have any value.
    fields: Vec<(Field, Ranges)>,
}

impl Filter {
    /// The filter that matches all untagged packets of a level.
    pub fn new(direction: Direction, level: Level) -> Filter {
        let mut filter = Filter { direction, level, fields: Vec::new() };
        filter.set(Field::Vlan, Ranges::one(UNTAGGED.into()));
        if level != Level::Ethernet {
            let ethertype = if level.is_v6() { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 };
            filter.set(Field::EtherType, Ranges::one(ethertype.into()));
        }
        match level {
            Level::Tcp | Level::Tcp6 => filter.set(Field::Protocol, Ranges::one(6)),
            Level::Udp | Level::Udp6 => filter.set(Field::Protocol, Ranges::one(17)),
            Level::Ethernet | Level::Ipv4 | Level::Ipv6 => {}
        }
        filter
    }

    /// Makes a filter of what [`Filter::direction`], [`Filter::level`] and [`Filter::fields`]
    /// return; `None` if no filter has these parts.
    pub fn from_parts(
        direction: Direction,
        level: Level,
        fields: Vec<(Field, Ranges)>,
    ) -> Option<Filter> {
        let mut filter = Filter::new(direction, level);
        // A field that the level does not fix may have any value, unless the parts restrict it.
        filter.fields.retain(|(field, _)| !level.has(*field));
        for (field, values) in fields.iter().filter(|(field, _)| level.has(*field)) {
            filter.set(*field, values.clone());
        }
        (filter.fields == fields).then_some(filter)
    }

    /// Returns the filter with the field restricted to these values; if these are all values, the
    /// field is not restricted.
    ///
    /// # Panics
    /// If packets of the level do not all have the field, or if the level itself fixes the field.
    /// Both are errors of the caller.
    pub fn with(mut self, field: Field, values: Ranges) -> Filter {
        assert!(self.level.has(field), "{:?} packets have no {field:?} to choose", self.level);
        self.set(field, values);
        self
    }

    fn set(&mut self, field: Field, values: Ranges) {
        self.fields.retain(|(old, _)| *old != field);
        let is_all = matches!(values.as_slice(), [(0, high)] if *high >= field.largest(self.level));
        if !is_all {
            self.fields.push((field, values));
            self.fields.sort_by_key(|(field, _)| *field);
        }
    }

    /// The direction of its packets.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// The same part of the header space for the other direction: the replies to what this filter
    /// matches.
    pub fn reversed(&self) -> Filter {
        let direction = match self.direction {
            Direction::Receive => Direction::Transmit,
            Direction::Transmit => Direction::Receive,
        };
        Filter { direction, ..self.clone() }
    }

    /// The level of its packets.
    pub fn level(&self) -> Level {
        self.level
    }

    /// The restricted fields with their values.
    pub fn fields(&self) -> &[(Field, Ranges)] {
        &self.fields
    }

    /// The values of a field; `None` if the field is not restricted.
    pub fn field(&self, field: Field) -> Option<&Ranges> {
        self.fields.iter().find(|(own, _)| *own == field).map(|(_, values)| values)
    }

    /// True if no packet can match.
    pub fn is_empty(&self) -> bool {
        self.fields.iter().any(|(_, values)| values.is_empty())
    }

    /// True if a packet of the filter's direction matches.
    #[inline]
    pub fn matches(&self, header: &Header) -> bool {
        let takes = |(field, values): &(Field, Ranges)| {
            value_of(header, self.direction, *field).is_some_and(|value| values.contains(value))
        };
        (self.level == Level::Ethernet || header.ip.is_some()) && self.fields.iter().all(takes)
    }

    /// True if there is a packet that matches both.
    pub fn overlaps(&self, other: &Filter) -> bool {
        let meets = |(field, values): &(Field, Ranges)| {
            other.field(*field).is_none_or(|theirs| values.overlaps(theirs))
        };
        let exist = !self.is_empty() && !other.is_empty();
        exist && self.direction == other.direction && self.fields.iter().all(meets)
    }

    /// True if every packet that matches `other` matches this filter.
    pub fn contains(&self, other: &Filter) -> bool {
        let covers = |(field, values): &(Field, Ranges)| {
            other.field(*field).is_some_and(|theirs| values.contains_all(theirs))
        };
        self.direction == other.direction && (other.is_empty() || self.fields.iter().all(covers))
    }
}

impl Level {
    /// True if its packets are of IPv6.
    pub fn is_v6(self) -> bool {
        matches!(self, Level::Ipv6 | Level::Tcp6 | Level::Udp6)
    }

    /// The level of the other family; that of Ethernet has none.
    #[must_use]
    pub fn other_family(self) -> Level {
        match self {
            Level::Ethernet => Level::Ethernet,
            Level::Ipv4 => Level::Ipv6,
            Level::Tcp => Level::Tcp6,
            Level::Udp => Level::Udp6,
            Level::Ipv6 => Level::Ipv4,
            Level::Tcp6 => Level::Tcp,
            Level::Udp6 => Level::Udp,
        }
    }

    /// True if a filter of this level may restrict the field.
    pub fn has(self, field: Field) -> bool {
        match field {
            Field::Vlan | Field::ServiceMac | Field::PeerMac => true,
            Field::EtherType => self == Level::Ethernet,
            Field::Protocol => matches!(self, Level::Ipv4 | Level::Ipv6),
            Field::ServiceAddress | Field::PeerAddress => self != Level::Ethernet,
            Field::ServicePort | Field::PeerPort => {
                !matches!(self, Level::Ethernet | Level::Ipv4 | Level::Ipv6)
            }
        }
    }
}

/// The value of a field in a packet of this direction; `None` if the packet does not have the
/// field.
#[inline]
pub(crate) fn value_of(header: &Header, direction: Direction, field: Field) -> Option<u128> {
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
        Field::ServiceAddress if receives => ip?.dst,
        Field::ServiceAddress => ip?.src,
        Field::PeerAddress if receives => ip?.src,
        Field::PeerAddress => ip?.dst,
        Field::ServicePort if receives => ip?.ports?.1.into(),
        Field::ServicePort => ip?.ports?.0.into(),
        Field::PeerPort if receives => ip?.ports?.0.into(),
        Field::PeerPort => ip?.ports?.1.into(),
    })
}

/// An Ethernet address as a number.
#[inline]
pub(crate) fn number(mac: MacAddr) -> u128 {
    mac.iter().fold(0, |number, byte| number << 8 | u128::from(*byte))
}
