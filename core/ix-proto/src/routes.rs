//! Routes to destinations, with the longest matching prefix: those that Linux has for an address
//! that IX shares with it, or those of the configuration.
//!
//! Looked at when a connection or a datagram leaves, and when a flow looks its next hop up again;
//! never for a packet.
use crate::codec::{Codec, DecodeError, Reader, Sink, codec_enum, codec_struct};
use ix_wire::{IpAddr, best_source, ipv6};
use std::collections::BTreeMap;

/// Where packets to a destination go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// The destination is on the link.
    Link,
    /// To this next hop.
    Gateway(IpAddr),
    /// By another interface: the destination is Linux's.
    Elsewhere,
    /// Nowhere: a blackhole, unreachable or prohibited. Linux has the errno for each.
    Nowhere,
}

codec_enum!(Via { 0 = Link, 1 = Gateway(hop), 2 = Elsewhere, 3 = Nowhere });

/// A route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// An address of the destinations.
    pub to: IpAddr,
    /// The length of their prefix, of their family.
    pub prefix: u8,
    /// Where packets go.
    pub via: Via,
    /// Source of connections and datagrams, if the route names one.
    pub source: Option<IpAddr>,
    /// Longest packet of this route, bytes; 0: that of the device.
    pub mtu: u32,
    /// Of routes to the same destinations that with the least counts.
    pub metric: u32,
}

codec_struct!(Route { to, prefix, via, source, mtu, metric });

/// Longest packet of IPv4 that every link takes, bytes (RFC 791 section 3.2). Linux lets a route
/// have less, in which no header has room.
const MTU_MIN: u32 = 68;
/// Bits of an IPv4 address before its own, as [`IpAddr`] has it.
const BEFORE_V4: u8 = 96;

/// Routes, by their destinations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteTable {
    /// By length of the prefix and destination; those with the least metric first.
    by_prefix: BTreeMap<(u8, IpAddr), Vec<Route>>,
    /// Lengths that there are, the longest first.
    lengths: Vec<u8>,
}

impl RouteTable {
    /// A table of these. Of routes that differ in nothing but their way the first one counts.
    pub fn new(routes: impl IntoIterator<Item = Route>) -> RouteTable {
        let mut by_prefix = BTreeMap::<_, Vec<Route>>::new();
        for route in routes {
            let bits = bits_of(&route);
            by_prefix.entry((bits, masked(route.to, bits))).or_default().push(route);
        }
        by_prefix.values_mut().for_each(|all| all.sort_by_key(|route| route.metric));
        let mut lengths: Vec<u8> = by_prefix.keys().map(|(bits, _)| *bits).collect();
        lengths.dedup();
        lengths.reverse();
        RouteTable { by_prefix, lengths }
    }

    /// Whether the table has no route.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.by_prefix.is_empty()
    }

    /// All of them, those with the shortest prefixes first.
    pub fn iter(&self) -> impl Iterator<Item = &Route> {
        self.by_prefix.values().flatten()
    }

    /// The routes to a destination, the best one first.
    pub(crate) fn matching(&self, to: IpAddr) -> impl Iterator<Item = &Route> {
        let least = if to.is_v6() { 0 } else { BEFORE_V4 };
        let lengths = self.lengths.iter().copied().filter(move |bits| *bits >= least);
        lengths.filter_map(move |bits| self.by_prefix.get(&(bits, masked(to, bits)))).flatten()
    }

    /// The route to a destination.
    pub fn find(&self, to: IpAddr) -> Option<&Route> {
        self.matching(to).next()
    }

    /// The route of who is connected already, and stays where it is: the best one by IX's own
    /// interface.
    pub fn stay(&self, to: IpAddr) -> Option<&Route> {
        self.matching(to).find(|route| route.via != Via::Elsewhere)
    }
}

impl Codec for RouteTable {
    fn write(&self, to: &mut impl Sink) {
        self.iter().count().write(to);
        self.iter().for_each(|route| route.write(to));
    }

    fn read(from: &mut Reader<'_>) -> Result<RouteTable, DecodeError> {
        let routes = Vec::<Route>::read(from)?;
        let table = RouteTable::new(routes.iter().copied());
        // Only one order stands for a table.
        if table.iter().eq(&routes) { Ok(table) } else { Err(DecodeError::Value) }
    }
}

impl Route {
    /// The next hop to a destination; `None`: not by IX.
    pub fn hop(&self, to: IpAddr) -> Option<IpAddr> {
        match self.via {
            Via::Link => Some(to),
            Via::Gateway(hop) => Some(hop),
            Via::Elsewhere | Via::Nowhere => None,
        }
    }
}

fn bits_of(route: &Route) -> u8 {
    if route.to.is_v6() { route.prefix.min(128) } else { BEFORE_V4 + route.prefix.min(32) }
}

fn masked(address: IpAddr, bits: u8) -> IpAddr {
    let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
    IpAddr((u128::from_be_bytes(address.0) & mask).to_be_bytes())
}

/// What Linux knows of the network of an interface whose addresses IX shares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostNetwork {
    /// Linux's addresses there, with their prefix lengths, in the order in which it prefers them as
    /// a source.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Its routes.
    pub routes: RouteTable,
}

impl HostNetwork {
    /// Whether an address is there.
    pub fn has(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|(own, _)| *own == address)
    }

    /// Our address and the next hop for packets to `remote`; `None`: not by IX.
    pub fn route(&self, remote: IpAddr) -> Option<(IpAddr, IpAddr)> {
        let route = self.routes.find(remote)?;
        let hop = route.hop(remote)?;
        let named = route.source.filter(|source| self.has(*source));
        let own = named.or_else(|| match remote.is_v6() {
            // Those that Linux prefers stand first. The link's own is for the link alone.
            true => {
                let of_link = remote.is_link_local_v6();
                let all = self.addresses.iter().map(|(own, _)| *own);
                let suits = all.filter(|own| own.is_link_local_v6() == of_link);
                best_source(remote, suits.map(|own| (own, true)))
            }
            false => self.source_v4(hop),
        })?;
        Some((own, hop))
    }

    /// The address of the network that the next hop is in, else the first one.
    fn source_v4(&self, hop: IpAddr) -> Option<IpAddr> {
        let mut all = self.addresses.iter().filter(|(own, _)| !own.is_v6());
        let near = all.clone().find(|(own, prefix)| own.same_network(hop, *prefix));
        near.or_else(|| all.next()).map(|(own, _)| *own)
    }

    /// The next hop for packets from `local`, of who is connected already.
    pub fn next_hop(&self, local: IpAddr, remote: IpAddr) -> Option<IpAddr> {
        self.routes.stay(remote).filter(|_| self.has(local))?.hop(remote)
    }

    /// Longest packet to `remote`, if a route bounds it, bytes.
    pub fn mtu(&self, remote: IpAddr) -> Option<u32> {
        let mtu = self.routes.stay(remote).map(|route| route.mtu).filter(|mtu| *mtu != 0)?;
        let least = if remote.is_v6() { ipv6::MTU_MIN.into() } else { MTU_MIN };
        Some(mtu.max(least))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn route(to: &str, via: Via, metric: u32) -> Route {
        let (to, prefix) = to.split_once('/').expect("a prefix");
        let prefix = prefix.parse().expect("a length");
        Route { to: ip(to), prefix, via, source: None, mtu: 0, metric }
    }

    #[test]
    fn the_longest_prefix_then_the_least_metric() {
        let [near, far] = ["10.0.0.1", "10.0.0.9"].map(|text| Via::Gateway(ip(text)));
        let mut routes = vec![
            route("0.0.0.0/0", far, 200),
            route("0.0.0.0/0", near, 100),
            route("10.0.0.0/24", Via::Link, 0),
            route("172.16.0.0/12", Via::Elsewhere, 0),
            route("172.16.5.0/24", Via::Nowhere, 0),
            route("192.0.2.7/32", far, 0),
            route("::/0", Via::Gateway(ip("fe80::1")), 0),
        ];
        routes[5].source = Some(ip("10.0.0.3"));
        routes[5].mtu = 1400;
        let addresses = vec![(ip("10.0.0.2"), 24), (ip("10.0.0.3"), 24)];
        let mut net = HostNetwork { addresses, routes: RouteTable::new(routes.clone()) };
        let [own, other] = ["10.0.0.2", "10.0.0.3"].map(ip);
        assert_eq!(net.route(ip("10.0.0.77")), Some((own, ip("10.0.0.77"))));
        assert_eq!(net.route(ip("8.8.8.8")), Some((own, ip("10.0.0.1"))));
        assert_eq!(net.route(ip("172.16.1.1")), None, "Linux's");
        assert_eq!(net.route(ip("172.16.5.1")), None, "nobody's");
        assert_eq!(net.route(ip("192.0.2.7")), Some((other, ip("10.0.0.9"))));
        assert_eq!((net.mtu(ip("192.0.2.7")), net.mtu(ip("192.0.2.8"))), (Some(1400), None));
        // Of several IPv6 addresses the best (RFC 6724).
        let [unique, global] = ["fd00::7", "2001:db8::7"].map(ip);
        net.addresses.extend([(unique, 64), (global, 64)]);
        let router = ip("fe80::1");
        assert_eq!(net.route(ip("2001:4860::1")), Some((global, router)));
        assert_eq!(net.route(ip("fd00:5::1")), Some((unique, router)));
        // A route of Linux with less than any link takes.
        routes[5].mtu = 1;
        let least = HostNetwork { routes: RouteTable::new(routes.clone()), ..net.clone() };
        assert_eq!(least.mtu(ip("192.0.2.7")), Some(68));
        // Who is connected stays.
        assert_eq!(net.next_hop(own, ip("172.16.1.1")), Some(ip("10.0.0.1")));
        assert_eq!(net.next_hop(own, ip("172.16.5.1")), None);
        // The address is gone.
        net.addresses.remove(0);
        assert_eq!(net.next_hop(own, ip("10.0.0.77")), None);
        assert_eq!(net.route(ip("10.0.0.77")), Some((other, ip("10.0.0.77"))));
        net.addresses.clear();
        assert_eq!(net.route(ip("10.0.0.77")), None);
        // A default route of the other family serves nobody.
        let v6 = RouteTable::new(routes.into_iter().filter(|route| route.to.is_v6()));
        assert_eq!(v6.find(ip("8.8.8.8")), None);
        assert!(v6.find(ip("2001:db8::1")).is_some());
    }

    /// What Linux chooses for the same addresses (RFC 6724).
    #[test]
    fn sources_of_ipv6_are_those_that_linux_prefers() {
        let router = Via::Gateway(ip("fe80::1"));
        let routes = vec![
            route("2001:db8:1::/64", Via::Link, 256),
            route("fe80::/64", Via::Link, 256),
            route("::/0", router, 1024),
        ];
        let own = ["fd00::5", "2001:db8:1::a", "2001:db8:1::b", "2001:db8:2::c", "fe80::5"];
        let addresses = own.iter().map(|own| (ip(own), 64)).collect();
        let mut net = HostNetwork { addresses, routes: RouteTable::new(routes) };
        let source = |net: &HostNetwork, to: &str| net.route(ip(to)).map(|(own, _)| own);
        for (to, from) in [
            ("2001:db8:1::77", "2001:db8:1::a"),
            ("2001:db8:2::77", "2001:db8:2::c"),
            ("2001:db8:9::77", "2001:db8:1::a"),
            ("fd00:1::77", "fd00::5"),
            ("fe80::77", "fe80::5"),
        ] {
            assert_eq!(source(&net, to), Some(ip(from)), "{to}");
        }
        assert_eq!(net.route(ip("2001:db8:9::77")).map(|(_, hop)| hop), Some(ip("fe80::1")));
        // The link's own address is no source for others, and none of IPv4's either.
        net.addresses = vec![(ip("10.0.0.2"), 24), (ip("fe80::5"), 64)];
        assert_eq!(source(&net, "2001:db8:9::77"), None);
    }

    proptest! {
        /// The naive model: look at all.
        #[test]
        fn as_a_list_has_it(
            all in prop::collection::vec((0..4u8, 0..4u8, 0..=32u8, 0..3u32), 0..20),
            to in (0..4u8, 0..4u8),
        ) {
            let routes: Vec<Route> = all.iter().enumerate().map(|(index, (a, b, prefix, metric))| {
                let via = Via::Gateway(IpAddr::v4([10, 9, 0, index as u8]));
                let to = IpAddr::v4([10, *a, *b, 1]);
                Route { to, prefix: *prefix, via, source: None, mtu: 0, metric: *metric }
            }).collect();
            let to = IpAddr::v4([10, to.0, to.1, 1]);
            let fits = |route: &&Route| route.to.same_network(to, route.prefix);
            let naive = routes.iter().filter(fits)
                .min_by_key(|route| (32 - route.prefix, route.metric));
            let table = RouteTable::new(routes.clone());
            prop_assert_eq!(table.find(to), naive);
        }
    }
}
