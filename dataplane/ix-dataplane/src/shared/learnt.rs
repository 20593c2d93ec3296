//! What routers or Linux have told, as each elastic thread has it: own addresses, and ways to
//! others.
use ix_proto::routes::HostNetwork;
use ix_wire::{IpAddr, best_source};
use std::cell::Cell;
use std::sync::Arc;

/// Destinations whose routes are remembered: datagrams look theirs up each time.
const REMEMBERED: usize = 16;

/// What was found for a destination in Linux's routes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    remote: IpAddr,
    route: Option<(IpAddr, IpAddr)>,
    mtu: Option<u32>,
}

/// A copy of what the table of neighbours has learnt.
#[derive(Clone, Debug, Default)]
pub(crate) struct Learnt {
    /// There are addresses beside those of the configuration. Where there are none, packets cost no
    /// more than this look.
    pub is_any: bool,
    /// Own addresses that may be used; those that may begin connections first.
    pub addresses: Vec<IpAddr>,
    /// How many may begin connections.
    pub preferred: usize,
    pub link_local: Option<IpAddr>,
    /// Prefixes whose hosts are on the link, with their lengths.
    pub on_link: Vec<(IpAddr, u8)>,
    pub router: Option<IpAddr>,
    /// Longest packet of the link, bytes.
    pub mtu: Option<usize>,
    pub hop_limit: Option<u8>,
    /// What Linux knows, where the addresses are its own as well.
    pub linux: Option<Arc<HostNetwork>>,
    /// Of [`Self::linux`], by the last bits of the destination.
    pub(super) found: [Cell<Option<Found>>; REMEMBERED],
}

impl Learnt {
    /// Whether an address is one of ours.
    #[cold]
    #[inline(never)]
    pub fn is_local(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address) || self.link_local == Some(address)
    }

    /// Takes what Linux knows now.
    pub fn follow_linux(&mut self, network: &Arc<HostNetwork>) {
        if self.linux.as_ref().is_some_and(|known| Arc::ptr_eq(known, network)) {
            return;
        }
        self.addresses = network.addresses.iter().map(|(address, _)| *address).collect();
        self.is_any = true;
        self.linux = Some(network.clone());
        self.found = Default::default();
    }

    /// Looks a destination up in Linux's routes.
    fn find(&self, network: &HostNetwork, remote: IpAddr) -> Found {
        let place = &self.found[usize::from(remote.0[15]) % REMEMBERED];
        if let Some(found) = place.get().filter(|found| found.remote == remote) {
            return found;
        }
        let found = Found { remote, route: network.route(remote), mtu: network.mtu(remote) };
        place.set(Some(found));
        found
    }

    /// Our address and the next hop for packets to `remote` by a route of Linux.
    pub fn route_of(&self, network: &HostNetwork, remote: IpAddr) -> Option<(IpAddr, IpAddr)> {
        self.find(network, remote).route
    }

    /// Longest packet to `remote` that a route of Linux allows, where it bounds it, bytes.
    pub fn mtu_of(&self, network: &HostNetwork, remote: IpAddr) -> Option<u32> {
        self.find(network, remote).mtu
    }

    /// Our address (RFC 6724 section 5) and the next hop for packets to an IPv6 address (RFC 4861
    /// section 5.2).
    pub fn route(&self, remote: IpAddr) -> Option<(IpAddr, IpAddr)> {
        if !remote.is_v6() {
            return None;
        }
        if remote.is_link_local_v6() {
            return self.link_local.map(|own| (own, remote));
        }
        let all = self.addresses.iter().enumerate();
        let own = best_source(remote, all.map(|(number, own)| (*own, number < self.preferred)))?;
        let on_link = |(prefix, bits): &(IpAddr, u8)| prefix.same_network(remote, *bits);
        let hop = if self.on_link.iter().any(on_link) { Some(remote) } else { self.router };
        hop.map(|hop| (own, hop))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Addr6, AddressCheck, Config, TempAddr};
    use crate::shared::neighbor_table::{NeighborTable, Outgoing};
    use ix_proto::routes::{Route, RouteTable, Via};
    use ix_tcp::nd::Identifiers;
    use ix_wire::icmp::IcmpHeader;
    use ix_wire::ra::Advertisement;
    use ix_wire::{Checksum, FrameHeader, Parsed, RxChecks, parse};

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn what_linux_says_counts_until_it_says_something_else() {
        let [own, hop, far] = ["10.0.0.2", "10.0.0.1", "192.0.2.1"].map(ip);
        let network = |routes: Vec<Route>| {
            let routes = RouteTable::new(routes);
            Arc::new(HostNetwork { addresses: vec![(own, 24)], routes })
        };
        let (to, via) = (ip("0.0.0.0"), Via::Gateway(hop));
        let route = Route { to, prefix: 0, via, source: None, mtu: 1300, metric: 0 };
        let mut learnt = Learnt::default();
        let with = network(vec![route]);
        learnt.follow_linux(&with);
        assert!(learnt.is_any && learnt.is_local(own));
        for _ in 0..2 {
            assert_eq!(learnt.route_of(&with, far), Some((own, hop)));
            assert_eq!(learnt.mtu_of(&with, far), Some(1300));
        }
        let without = network(Vec::new());
        learnt.follow_linux(&without);
        assert_eq!(learnt.route_of(&without, far), None, "nothing old is remembered");
    }

    /// What a router says of 2001:db8::/64.
    fn advertisement() -> Advertisement {
        let (src, dst) = (ip("fe80::1"), ip("ff02::1"));
        let mut body = vec![0, 0, 0, 0, 0, 0, 0, 0, 3, 4, 64, 0xc0, 0, 0, 14, 16, 0, 0, 14, 16];
        body.extend([0; 4]);
        body.extend(ip("2001:db8::").0);
        let (eth_src, eth_dst) = ([2, 0, 0, 0, 0, 9], [0x33, 0x33, 0, 0, 0, 1]);
        let link = FrameHeader { eth_src, eth_dst, src, dst, ttl: 255, tos: 0, ident: 0 };
        let header = IcmpHeader { kind: 134, code: 0, rest: [64, 0, 0, 60] };
        let mut frame = vec![0; 62];
        link.emit_icmp(&mut frame, &header, body.len(), Checksum::of(&body));
        frame.extend(body);
        match parse(&frame, RxChecks::default()) {
            Ok(Parsed::Icmp(packet)) => Advertisement::parse(&frame, &packet).expect("one"),
            other => panic!("{other:?}"),
        }
    }

    /// RFC 6724 section 5, rule 7, and RFC 8981 section 3.
    #[test]
    fn connections_are_opened_from_temporary_addresses_where_that_is_asked_for() {
        for (use_tempaddr, addresses, is_from_temporary) in
            [(TempAddr::Off, 1, false), (TempAddr::Made, 2, false), (TempAddr::Preferred, 2, true)]
        {
            let config = Config {
                addr6: Addr6::Auto,
                addr6_secret: Some([4; 16]),
                use_tempaddr,
                address_check: AddressCheck::Off,
                ..Config::with_address(IpAddr::v4([10, 0, 0, 2]), 24)
            };
            let table = NeighborTable::new(&config, &[[2, 0, 0, 0, 0, 7]], 0);
            table.on_advertisement(&advertisement(), 0, &mut Outgoing::default());
            let mut learnt = Learnt::default();
            table.learnt(0, &mut learnt);
            let stable = Identifiers::Stable([4; 16]).address(ip("2001:db8::"), 0);
            assert_eq!(learnt.addresses.len(), addresses, "{use_tempaddr:?}");
            assert!(learnt.addresses.contains(&stable) && learnt.preferred == addresses);
            let (own, hop) = learnt.route(ip("2001:db9::1")).expect("a route");
            assert_eq!(hop, ip("fe80::1"));
            assert_eq!(own != stable, is_from_temporary, "{use_tempaddr:?}");
        }
    }

    #[test]
    fn by_the_link_or_by_the_router() {
        let [own, router] = ["2001:db8::7", "fe80::1"].map(ip);
        let mut learnt = Learnt {
            addresses: vec![ip("fd00::7"), ip("2001:db8:9::7"), own],
            preferred: 3,
            link_local: Some(ip("fe80::7")),
            on_link: vec![(ip("2001:db8::"), 64)],
            router: Some(router),
            ..Learnt::default()
        };
        assert_eq!(learnt.route(ip("2001:db8::9")), Some((own, ip("2001:db8::9"))));
        assert_eq!(learnt.route(ip("2001:db8:0:1::9")), Some((own, router)));
        assert_eq!(learnt.route(ip("fd00:1::9")), Some((ip("fd00::7"), router)));
        learnt.preferred = 2;
        let other = ip("2001:db8:9::7");
        assert_eq!(learnt.route(ip("2001:db8:0:1::9")), Some((other, router)), "deprecated");
        assert_eq!(learnt.route(ip("fe80::9")), Some((ip("fe80::7"), ip("fe80::9"))));
        assert_eq!(learnt.route(ip("10.0.0.1")), None);
        assert!(learnt.is_local(own) && learnt.is_local(ip("fe80::7")) && !learnt.is_local(router));
        learnt.router = None;
        assert_eq!(learnt.route(ip("2001:db8:0:1::9")), None);
        learnt.addresses.clear();
        assert_eq!(learnt.route(ip("2001:db8::9")), None);
    }
}
