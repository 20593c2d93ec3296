//! Which way packets leave: by the network of an address of ours, by a route of the configuration,
//! or by a default gateway.
use super::Config;
use crate::routes::Route;
use ix_wire::{IpAddr, best_source};

impl Config {
    /// Our address and the next hop for packets to `remote`; `None` without a route.
    pub fn route(&self, remote: IpAddr) -> Option<(IpAddr, IpAddr)> {
        match self.routes.is_empty() {
            true => route_within(self.host_addrs.iter(), &self.gateway_addrs, remote),
            false => self.by_routes(remote, |_| true),
        }
    }

    /// The same for packets that leave by `device`, one of `devices`: only the addresses that
    /// belong to it count, and the gateways on their networks.
    pub fn route_by(&self, device: u8, devices: usize, remote: IpAddr) -> Option<(IpAddr, IpAddr)> {
        let is_its = |own: IpAddr| self.device_of(own, devices) == device;
        let its = |(own, _): &&(IpAddr, u8)| is_its(*own);
        match self.routes.is_empty() {
            true => route_within(self.host_addrs.iter().filter(its), &self.gateway_addrs, remote),
            false => self.by_routes(remote, is_its),
        }
    }

    /// [`Self::route`] where the configuration has routes, with those of our addresses that
    /// `counts` takes: the longest prefix decides, then the least metric. The networks of our
    /// addresses and default gateways have metric 0. Not inlined, so that a configuration
    /// without routes does not pay for them.
    #[cold]
    #[inline(never)]
    fn by_routes(
        &self,
        remote: IpAddr,
        counts: impl Fn(IpAddr) -> bool,
    ) -> Option<(IpAddr, IpAddr)> {
        let all = || self.host_addrs.iter().filter(|(own, _)| counts(*own));
        let on_link = all().filter(|(own, prefix)| is_on_link(*own, *prefix, remote));
        // Of several the first one with the longest prefix.
        let near = on_link.copied().reduce(|best, next| if next.1 > best.1 { next } else { best });
        let mut routes = self.routes.matching(remote).filter_map(|route: &Route| {
            Some((route.source.filter(|own| counts(*own))?, route.hop(remote)?, route.prefix))
        });
        let route = routes.next().filter(|_| !remote.is_link_local_v6());
        match (near, route) {
            (Some((own, bits)), Some((.., prefix))) if bits >= prefix => Some((own, remote)),
            (Some((own, _)), None) => Some((own, remote)),
            (_, Some((own, hop, prefix))) => {
                let gateways = if prefix == 0 { &self.gateway_addrs[..] } else { &[] };
                by_gateway(all(), gateways, remote).or(Some((own, hop)))
            }
            (None, None) => by_gateway(all(), &self.gateway_addrs, remote),
        }
    }

    /// The next hop for packets to `remote` by a device. A device without a route has the hop of
    /// [`Self::route`].
    pub fn next_hop(&self, device: u8, devices: usize, remote: IpAddr) -> Option<IpAddr> {
        let by_device = if devices > 1 { self.route_by(device, devices, remote) } else { None };
        let route = by_device.or_else(|| self.route(remote));
        route.map(|(_, hop)| hop)
    }
}

/// As [`Config::route`], with these addresses alone.
fn route_within<'a>(
    own: impl Iterator<Item = &'a (IpAddr, u8)> + Clone,
    gateways: &[IpAddr],
    remote: IpAddr,
) -> Option<(IpAddr, IpAddr)> {
    let on = |to: IpAddr| own.clone().find(|(own, prefix)| is_on_link(*own, *prefix, to));
    if let Some((own, _)) = on(remote) {
        return Some((*own, remote));
    }
    by_gateway(own, gateways, remote)
}

/// The same for a host beyond the link. Not inlined, so that one on the link does not pay for it.
#[inline(never)]
fn by_gateway<'a>(
    own: impl Iterator<Item = &'a (IpAddr, u8)> + Clone,
    gateways: &[IpAddr],
    remote: IpAddr,
) -> Option<(IpAddr, IpAddr)> {
    let hops = gateways.iter().filter(|gateway| gateway.is_v6() == remote.is_v6());
    // Several addresses reach a gateway that is known by a link-local one.
    hops.copied().find_map(|gateway| {
        let reach = own.clone().filter(|(own, prefix)| is_on_link(*own, *prefix, gateway));
        best_source(remote, reach.map(|(own, _)| (*own, true))).map(|own| (own, gateway))
    })
}

/// Whether a host is on the network of an address of ours. A host with a link-local address is on
/// the link; routers are known by those (RFC 4861 section 6.1.2).
pub fn is_on_link(own: IpAddr, prefix: u8, to: IpAddr) -> bool {
    own.same_network(to, prefix) || own.is_v6() && to.is_link_local_v6()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes::{RouteTable, Via};

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn usual() -> Config {
        Config::with_address(ip("10.1.2.3"), 24)
    }

    /// `TO/PREFIX GATEWAY SOURCE METRIC`; `-`: on the link.
    fn routes(lines: &[&str]) -> RouteTable {
        RouteTable::new(lines.iter().map(|line| {
            let [to, hop, source, metric] =
                line.split(' ').collect::<Vec<_>>().try_into().expect("four words");
            let (to, prefix) = to.split_once('/').expect("a prefix");
            Route {
                to: ip(to),
                prefix: prefix.parse().expect("a length"),
                via: if hop == "-" { Via::Link } else { Via::Gateway(ip(hop)) },
                source: Some(ip(source)),
                mtu: 0,
                metric: metric.parse().expect("a number"),
            }
        }))
    }

    #[test]
    fn routes_by_mask_then_gateway() {
        let by = |own: &str, hop: &str| Some((ip(own), ip(hop)));
        let mut config = usual();
        config.host_addrs.push((ip("10.9.0.3"), 16));
        assert_eq!(config.route(ip("10.1.2.200")), by("10.1.2.3", "10.1.2.200"));
        assert_eq!(config.route(ip("10.9.200.1")), by("10.9.0.3", "10.9.200.1"));
        assert_eq!(config.route(ip("10.1.3.1")), None);
        config.gateway_addrs = vec![ip("10.9.0.1")];
        assert_eq!(config.route(ip("10.1.3.1")), by("10.9.0.3", "10.9.0.1"));
        assert!(config.is_local(ip("10.9.0.3")) && !config.is_local(ip("10.9.0.1")));
    }

    #[test]
    fn each_family_has_its_gateway() {
        let mut config = usual();
        config.host_addrs.push((ip("2001:db8::3"), 64));
        let gateways = ["10.1.2.1", "2001:db8::1"].map(ip);
        for gateways in [gateways, [gateways[1], gateways[0]]] {
            config.gateway_addrs = gateways.to_vec();
            assert_eq!(config.route(ip("8.8.8.8")), Some((ip("10.1.2.3"), ip("10.1.2.1"))));
            let far = ip("2001:db8:9::1");
            assert_eq!(config.route(far), Some((ip("2001:db8::3"), ip("2001:db8::1"))));
            assert_eq!(config.next_hop(0, 1, far), Some(ip("2001:db8::1")));
        }
        config.gateway_addrs = vec![ip("fe80::1")];
        assert_eq!(config.route(ip("8.8.8.8")), None);
        assert_eq!(config.route(ip("2001:db8:9::1")), Some((ip("2001:db8::3"), ip("fe80::1"))));
    }

    #[test]
    fn the_best_address_reaches_a_link_local_gateway() {
        let [unique, global, gateway] = ["fd00::7", "2001:db8::7", "fe80::1"].map(ip);
        let config = Config {
            host_addrs: vec![(unique, 64), (global, 64)],
            gateway_addrs: vec![gateway],
            ..Config::default()
        };
        assert_eq!(config.route(ip("2001:4860::1")), Some((global, gateway)));
        assert_eq!(config.route(ip("fd00:5::1")), Some((unique, gateway)));
        assert_eq!(config.route(ip("fd00::9")), Some((unique, ip("fd00::9"))));
    }

    #[test]
    fn each_device_has_its_gateway() {
        let mut config = usual();
        config.host_addrs.push((ip("10.9.0.3"), 16));
        config.host_addrs.push((ip("10.7.0.3"), 24));
        config.gateway_addrs = vec![ip("10.9.0.1"), ip("10.1.2.1")];
        let by = |device, to: &str| config.next_hop(device, 2, ip(to));
        assert_eq!(
            (by(0, "8.8.8.8"), by(1, "8.8.8.8")),
            (Some(ip("10.1.2.1")), Some(ip("10.9.0.1")))
        );
        assert_eq!(
            (by(0, "10.1.2.9"), by(1, "10.9.9.9")),
            (Some(ip("10.1.2.9")), Some(ip("10.9.9.9")))
        );
        // A peer beside one device whose packets come by the other, and go back there.
        assert_eq!(
            (by(0, "10.9.9.9"), by(1, "10.1.2.9")),
            (Some(ip("10.1.2.1")), Some(ip("10.9.0.1")))
        );
        // Further addresses belong to the first device.
        assert_eq!(
            (by(0, "10.7.0.9"), by(1, "10.7.0.9")),
            (Some(ip("10.7.0.9")), Some(ip("10.9.0.1")))
        );
        // What we open ourselves goes by the first gateway.
        assert_eq!(config.route(ip("8.8.8.8")), Some((ip("10.9.0.3"), ip("10.9.0.1"))));
        // A device without a gateway has that one too.
        config.gateway_addrs.pop();
        assert_eq!(config.next_hop(0, 2, ip("8.8.8.8")), Some(ip("10.9.0.1")));
        assert_eq!(config.route_by(0, 2, ip("8.8.8.8")), None);
        config.gateway_addrs.clear();
        assert_eq!(config.next_hop(0, 2, ip("8.8.8.8")), None);
        assert_eq!(config.next_hop(0, 2, ip("10.9.9.9")), Some(ip("10.9.9.9")));
    }

    #[test]
    fn a_route_of_the_configuration_is_for_its_destinations() {
        let by = |own: &str, hop: &str| Some((ip(own), ip(hop)));
        let mut config = usual();
        config.host_addrs.push((ip("10.1.2.4"), 24));
        config.routes = routes(&[
            "192.0.2.0/24 10.1.2.8 10.1.2.3 0",
            "192.0.2.128/25 10.1.2.9 10.1.2.4 7",
            "198.51.100.0/24 10.1.2.9 10.1.2.3 20",
            "198.51.100.0/24 10.1.2.8 10.1.2.4 10",
            "203.0.113.0/24 - 10.1.2.4 0",
            "10.1.2.64/26 10.1.2.8 10.1.2.3 0",
            "10.1.0.0/16 10.1.2.9 10.1.2.3 0",
        ]);
        for (to, expected) in [
            ("192.0.2.1", by("10.1.2.3", "10.1.2.8")),
            ("192.0.2.200", by("10.1.2.4", "10.1.2.9")),
            ("198.51.100.1", by("10.1.2.4", "10.1.2.8")),
            ("203.0.113.5", by("10.1.2.4", "203.0.113.5")),
            ("10.1.2.70", by("10.1.2.3", "10.1.2.8")),
            ("10.1.2.7", by("10.1.2.3", "10.1.2.7")),
            ("10.1.3.7", by("10.1.2.3", "10.1.2.9")),
            ("8.8.8.8", None),
            ("2001:db8::1", None),
        ] {
            assert_eq!(config.route(ip(to)), expected, "{to}");
            assert_eq!(config.next_hop(0, 1, ip(to)), expected.map(|(_, hop)| hop), "{to}");
        }
        // A default route is one of the prefix 0; a default gateway comes before it.
        config.routes = routes(&["0.0.0.0/0 10.1.2.8 10.1.2.4 5"]);
        assert_eq!(config.route(ip("8.8.8.8")), by("10.1.2.4", "10.1.2.8"));
        config.gateway_addrs = vec![ip("10.1.2.1")];
        assert_eq!(config.route(ip("8.8.8.8")), by("10.1.2.3", "10.1.2.1"));
        assert_eq!(config.route(ip("10.1.2.9")), by("10.1.2.3", "10.1.2.9"));
    }

    #[test]
    fn routes_of_ipv6_reach_their_own_family() {
        let mut config = Config::with_address(ip("2001:db8::7"), 64);
        config.host_addrs.push((ip("10.1.2.3"), 24));
        config.routes = routes(&[
            "2001:db8:9::/48 fe80::1 2001:db8::7 0",
            "::/0 2001:db8::1 2001:db8::7 0",
            "0.0.0.0/0 10.1.2.1 10.1.2.3 0",
        ]);
        let own = ip("2001:db8::7");
        for (to, hop) in [
            ("2001:db8:9::5", "fe80::1"),
            ("2001:4860::1", "2001:db8::1"),
            ("2001:db8::9", "2001:db8::9"),
            ("fe80::5", "fe80::5"),
        ] {
            assert_eq!(config.route(ip(to)), Some((own, ip(hop))), "{to}");
        }
        assert_eq!(config.route(ip("8.8.8.8")), Some((ip("10.1.2.3"), ip("10.1.2.1"))));
    }

    #[test]
    fn a_route_leaves_by_the_device_of_its_source() {
        let mut config = usual();
        config.host_addrs.push((ip("10.9.0.3"), 16));
        config.routes =
            routes(&["192.0.2.0/24 10.9.0.8 10.9.0.3 0", "192.0.2.0/25 10.1.2.8 10.1.2.3 0"]);
        assert_eq!(config.route(ip("192.0.2.1")), Some((ip("10.1.2.3"), ip("10.1.2.8"))));
        // What came by the second device is answered there.
        let by = |device, to: &str| config.next_hop(device, 2, ip(to));
        assert_eq!(by(1, "192.0.2.1"), Some(ip("10.9.0.8")));
        assert_eq!(by(0, "192.0.2.1"), Some(ip("10.1.2.8")));
        assert_eq!(by(0, "192.0.2.200"), Some(ip("10.9.0.8")), "no other one has a route");
        assert_eq!(by(1, "10.9.200.1"), Some(ip("10.9.200.1")));
        assert_eq!(config.route_by(0, 2, ip("192.0.2.200")), None);
    }
}
