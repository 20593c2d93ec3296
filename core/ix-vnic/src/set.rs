//! The packets that one direction of a vNIC may carry: those of several filters, and ARP and
//! Neighbour Discovery for the addresses of these filters.
use crate::filter::{Direction, Field, Filter, value_of};
use crate::header::{ArpHeader, Header, NdHeader, Saying, UNTAGGED};
use ix_wire::MacAddr;

/// Most filters of one direction of a vNIC.
pub const FILTERS_MAX: usize = 32;

/// Why a packet matches none of the filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Foreign {
    /// The Ethernet address at our end is another one.
    Mac,
    /// The VLAN is another one, or there is an unexpected tag.
    Vlan,
    /// The IP address at our end is another one.
    Address,
    /// The port at our end is another one.
    Port,
    /// Only filters of other queues of the vNIC match it.
    Queue,
    /// The peer or the protocol is another one, or the bytes are not a packet.
    Other,
}

impl Foreign {
    /// All reasons.
    pub const ALL: [Foreign; 6] = [
        Foreign::Mac,
        Foreign::Vlan,
        Foreign::Address,
        Foreign::Port,
        Foreign::Queue,
        Foreign::Other,
    ];
}

/// The filters of one direction of a vNIC. A packet may pass if it matches one of them. So may ARP
/// and Neighbour Discovery for the addresses at our end that they name, because no packet could
/// pass without them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterSet {
    direction: Direction,
    filters: Vec<Filter>,
    /// Filters that are assigned to other queues alone.
    elsewhere: Vec<Filter>,
}

impl FilterSet {
    /// The set of those of `filters` that are for this direction.
    pub fn new<'a>(
        direction: Direction,
        filters: impl IntoIterator<Item = &'a Filter>,
    ) -> FilterSet {
        let ours = filters.into_iter().filter(|filter| filter.direction() == direction);
        FilterSet { direction, filters: ours.cloned().collect(), elsewhere: Vec::new() }
    }

    /// The same set for one queue of a vNIC; `elsewhere` are filters of other queues. Of these only
    /// ARP and Neighbour Discovery for their addresses may pass here: an address belongs to the
    /// whole vNIC, and a request may arrive at any queue.
    pub fn beside<'a>(self, elsewhere: impl IntoIterator<Item = &'a Filter>) -> FilterSet {
        let theirs = elsewhere.into_iter().filter(|filter| filter.direction() == self.direction);
        FilterSet { elsewhere: theirs.cloned().collect(), ..self }
    }

    /// The filters.
    pub fn filters(&self) -> &[Filter] {
        &self.filters
    }

    /// Whether a packet may pass; `own_mac` is the Ethernet address at our end. A frame may be sent
    /// only from that address, unless a filter names others.
    #[inline]
    pub fn admits(&self, header: &Header, own_mac: MacAddr) -> Result<(), Foreign> {
        let sends = self.direction == Direction::Transmit;
        let is_own = !sends || header.eth_src == own_mac;
        let takes = |filter: &Filter| {
            filter.matches(header) && (is_own || filter.field(Field::ServiceMac).is_some())
        };
        if self.filters.iter().any(takes) {
            return Ok(());
        }
        match (&header.arp, &header.nd) {
            (Some(arp), _) if header.vlan == UNTAGGED && is_own => self.admits_arp(arp, own_mac),
            (_, Some(nd)) if is_own => self.admits_nd(nd, own_mac),
            _ => Err(self.reason(header, is_own)),
        }
    }

    /// Whether ARP may pass. Sent ARP must name one of our addresses as its sender or, in a probe,
    /// as its target (RFC 5227). Received ARP must name one of our addresses as its sender or its
    /// target.
    #[cold]
    fn admits_arp(&self, arp: &ArpHeader, own_mac: MacAddr) -> Result<(), Foreign> {
        let receives = self.direction == Direction::Receive;
        if !receives && arp.sender_mac != own_mac {
            return Err(Foreign::Mac);
        }
        let also_target = receives || arp.sender == 0;
        let named = |address: u32| self.has_address(address.into(), false);
        let ours = named(arp.sender) || also_target && named(arp.target);
        if ours { Ok(()) } else { Err(Foreign::Address) }
    }

    /// Whether Neighbour Discovery may pass, and what we tell routers of our groups. Sent, it must
    /// come from one of our addresses and give our Ethernet address; who advertises an address must
    /// have it, and who asks from `::` must ask for one of ours. Received, it must be about one of
    /// our addresses, or for it, or from it.
    #[cold]
    fn admits_nd(&self, nd: &NdHeader, own_mac: MacAddr) -> Result<(), Foreign> {
        let named = |address: u128| self.has_address(address, true);
        let ours = if self.direction == Direction::Receive {
            named(nd.target) || named(nd.dst) || named(nd.src)
        } else if nd.mac != Some(own_mac) {
            return Err(Foreign::Mac);
        } else {
            match nd.saying {
                Saying::Advertisement => named(nd.src) && named(nd.target),
                Saying::Solicitation => named(nd.src) || nd.src == 0 && named(nd.target),
                Saying::Groups => named(nd.src) || nd.src == 0 && self.names_v6(),
            }
        };
        if ours { Ok(()) } else { Err(Foreign::Address) }
    }

    /// Whether a filter of this family names this address of our end. One that takes all addresses
    /// names none.
    pub fn has_address(&self, address: u128, is_v6: bool) -> bool {
        let names = |filter: &Filter| {
            let addresses = filter.field(Field::ServiceAddress);
            filter.level().is_v6() == is_v6
                && addresses.is_some_and(|addresses| addresses.contains(address))
        };
        self.filters.iter().chain(&self.elsewhere).any(names)
    }

    /// Whether a filter names an IPv6 address of our end.
    fn names_v6(&self) -> bool {
        let names = |filter: &Filter| {
            filter.level().is_v6() && filter.field(Field::ServiceAddress).is_some()
        };
        self.filters.iter().chain(&self.elsewhere).any(names)
    }

    /// True if a filter names frames of this type.
    pub fn names_ethertype(&self, ethertype: u16) -> bool {
        let names = |filter: &Filter| {
            let types = filter.field(Field::EtherType);
            types.is_some_and(|types| types.contains(ethertype.into()))
        };
        self.filters.iter().any(names)
    }

    #[cold]
    fn reason(&self, header: &Header, is_own: bool) -> Foreign {
        let known = |field: Field| {
            let Some(value) = value_of(header, self.direction, field) else { return true };
            self.filters.iter().any(|f| f.field(field).is_none_or(|values| values.contains(value)))
        };
        let is_held = |filter: &Filter| {
            filter.matches(header) && (is_own || filter.field(Field::ServiceMac).is_some())
        };
        if self.elsewhere.iter().any(is_held) {
            return Foreign::Queue;
        }
        if !is_own || !known(Field::ServiceMac) {
            Foreign::Mac
        } else if !known(Field::Vlan) {
            Foreign::Vlan
        } else if !known(Field::ServiceAddress) {
            Foreign::Address
        } else if !known(Field::ServicePort) {
            Foreign::Port
        } else {
            Foreign::Other
        }
    }
}
