//! Which addresses are IX's: a pure function of the settings of `ix run` and of Linux's interfaces.
//!
//! * **bind**: an address of the dataplane is IX's. A wildcard address is both IX's and, for
//!   interfaces that are not IX's such as loopback, Linux's, if the dataplane has an address of its
//!   family. Any other address is Linux's. An address that is Linux's as well is both's.
//! * **groups and broadcasts** are IX's if the dataplane has an address of the family; a socket
//!   that is bound to one is both's.
//! * **connect, sendto**: loopback is Linux's; a network of the dataplane is IX's; so is one to
//!   which the configuration has a route, unless an interface of Linux is on a smaller one; a
//!   network of one of Linux's interfaces is Linux's; any other address is IX's if the dataplane
//!   has a gateway of its family. IPv6 addresses of a link are Linux's.
//!
//! Where the addresses are Linux's as well they may change, and so may the routes: then Linux is
//! asked whether the way to an address leads by IX's interface ([`crate::linux_route`]), and these
//! rules say what it is not asked about.
use crate::family::{self, EVERY, EVERY_V6};
use std::net::IpAddr;

/// Environment variable that `ix run` sets, such as `10.0.0.2/24,10.1.0.2/16;10.0.0.1`: addresses
/// with prefix lengths; the gateways, and routes such as `10.9.0.0/16=10.0.0.2` with the address
/// that packets leave from, or nothing. More parts follow for [`crate::process`], each after a
/// `;`: the number of the library's descriptor, the first number of the dataplane's descriptors,
/// the configured congestion control, the number of the descriptor for [`crate::low_ports`] or
/// nothing, whether packet memory is locked, the ports of outgoing connections where the addresses
/// are Linux's as well or nothing, and for each address the Linux interface of its device, or
/// nothing.
pub const ENV: &str = "IX_POSIX";

/// Whose a socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The dataplane's.
    Ix,
    /// The kernel's.
    Linux,
    /// Both serve it.
    Both,
}

/// A network, by an address in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// The local address in it.
    pub address: IpAddr,
    /// Length of its prefix.
    pub prefix: u8,
}

impl Network {
    fn contains(&self, other: IpAddr) -> bool {
        let mask = |bits: u32| u128::MAX.checked_shl(bits - u32::from(self.prefix)).unwrap_or(0);
        match (self.address, other) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                u128::from(own.to_bits() ^ other.to_bits()) & mask(32) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                (own.to_bits() ^ other.to_bits()) & mask(128) == 0
            }
            _ => false,
        }
    }

    /// Reads an address with the length of its prefix, such as `10.0.0.2/24`.
    pub fn parse(text: &str) -> Option<Network> {
        let (address, prefix) = text.split_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        let longest = if address.is_ipv6() { 128 } else { 32 };
        let prefix = prefix.parse().ok().filter(|prefix| *prefix <= longest)?;
        Some(Network { address, prefix })
    }
}

/// The addresses and networks of IX and of Linux.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes {
    ours: Vec<Network>,
    gateways: Vec<IpAddr>,
    /// Networks beyond the link, each with our address for packets there; those with the longest
    /// prefixes first.
    beyond: Vec<(Network, IpAddr)>,
    linux: Vec<Network>,
    /// The addresses are Linux's as well: which packets are IX's is a matter of ports.
    shared: bool,
}

impl Routes {
    /// Reads the value of [`ENV`].
    pub fn parse(text: &str) -> Option<Routes> {
        let mut parts = text.split(';');
        let (ours, gateways) = (parts.next()?, parts.next());
        let ours: Option<Vec<_>> = ours.split(',').map(Network::parse).collect();
        let (mut hops, mut beyond) = (Vec::new(), Vec::new());
        for text in gateways.unwrap_or_default().split(',').filter(|text| !text.is_empty()) {
            match text.split_once('=') {
                Some((to, own)) => beyond.push((Network::parse(to)?, own.parse().ok()?)),
                None => hops.push(text.parse().ok()?),
            }
        }
        beyond.sort_by_key(|(to, _)| std::cmp::Reverse(to.prefix));
        Some(Routes { ours: ours?, gateways: hops, beyond, linux: Vec::new(), shared: false })
    }

    /// No address is IX's.
    pub const fn none() -> Routes {
        Routes {
            ours: Vec::new(),
            gateways: Vec::new(),
            beyond: Vec::new(),
            linux: Vec::new(),
            shared: false,
        }
    }

    /// The same where the addresses are Linux's as well.
    pub fn sharing(self, shared: bool) -> Routes {
        Routes { shared, ..self }
    }

    /// Whether the addresses are Linux's as well.
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// Adds the networks of Linux's interfaces.
    pub fn with_linux(self, linux: Vec<Network>) -> Routes {
        Routes { linux, ..self }
    }

    /// Whether Linux says the way to an address.
    pub fn are_linuxs(&self, to: IpAddr) -> bool {
        let is_broadcast = matches!(to, IpAddr::V4(v4) if v4.is_broadcast());
        let is_near = to.is_loopback() || to.is_unspecified() || self.is_ours(to);
        let is_near = is_near || family::is_of_link(to);
        self.shared && !is_near && !to.is_multicast() && !is_broadcast
    }

    /// Linux has these addresses on IX's interface now.
    pub fn follow(&mut self, ours: Vec<Network>) {
        self.ours = ours;
    }

    /// The dataplane's only address of a family; `None` if it has several, or none, or if that may
    /// change.
    pub fn single(&self, is_v6: bool) -> Option<IpAddr> {
        if self.shared {
            return None;
        }
        let mut all = self.ours.iter().filter(|own| own.address.is_ipv6() == is_v6);
        let first = all.next()?;
        all.next().is_none().then_some(first.address)
    }

    /// Whose a socket becomes that is bound to this address.
    pub fn bind(&self, to: IpAddr) -> Whose {
        let has = |is_v6| self.ours.iter().any(|own| own.address.is_ipv6() == is_v6);
        match to {
            EVERY if has(false) || has(true) => Whose::Both,
            EVERY_V6 if has(true) => Whose::Both,
            IpAddr::V4(v4) if v4.is_unspecified() && has(false) => Whose::Both,
            _ if self.is_group(to) && has(to.is_ipv6()) => {
                // Linux need not have the network of a broadcast.
                let is_linuxs = !self.is_broadcast(to) || self.shared;
                let is_everywhere = matches!(to, IpAddr::V4(v4) if v4.is_broadcast());
                if is_linuxs || is_everywhere { Whose::Both } else { Whose::Ix }
            }
            // The host itself reaches it through Linux alone.
            _ if self.is_ours(to) && self.shared => Whose::Both,
            _ if self.is_ours(to) => Whose::Ix,
            _ => Whose::Linux,
        }
    }

    /// Whose a socket becomes that connects or sends to this address; never both.
    pub fn connect(&self, to: IpAddr) -> Whose {
        let on = |networks: &[Network]| networks.iter().any(|network| network.contains(to));
        if to.is_loopback() || to.is_unspecified() {
            return Whose::Linux;
        }
        if self.is_group(to) {
            return if self.has_family(to.is_ipv6()) { Whose::Ix } else { Whose::Linux };
        }
        // What it sends to itself never leaves the host.
        if self.shared && (self.is_ours(to) || family::is_of_link(to)) {
            return Whose::Linux;
        }
        if on(&self.ours) {
            return Whose::Ix;
        }
        if family::is_of_link(to) {
            return Whose::Linux;
        }
        let near = self.linux.iter().filter(|network| network.contains(to));
        let near = near.map(|network| network.prefix).max();
        let is_ix = match (self.beyond(to), near) {
            (Some((network, _)), Some(near)) => network.prefix >= near,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (None, None) => self.gateway(to).is_some(),
        };
        if is_ix { Whose::Ix } else { Whose::Linux }
    }

    /// The network beyond the link that an address is in, with our address for packets there.
    fn beyond(&self, to: IpAddr) -> Option<&(Network, IpAddr)> {
        self.beyond.iter().find(|(network, _)| network.contains(to))
    }

    /// The network of the dataplane that an address is in, as the dataplane chooses it: the first
    /// one; where the configuration has routes, the first of those with the longest prefix.
    fn on_link(&self, to: IpAddr) -> Option<&Network> {
        let mut all = self.ours.iter().filter(|own| own.contains(to));
        match self.beyond.is_empty() {
            true => all.next(),
            false => all.reduce(|best, next| if next.prefix > best.prefix { next } else { best }),
        }
    }

    /// Whether the dataplane has an address of a family.
    pub fn has_family(&self, is_v6: bool) -> bool {
        self.ours.iter().any(|own| own.address.is_ipv6() == is_v6)
    }

    /// Whether an address names several hosts: a group, or a broadcast, also of a network of IX.
    pub fn is_group(&self, to: IpAddr) -> bool {
        to.is_multicast() && to != EVERY_V6 || self.is_broadcast(to)
    }

    /// Whether it is a broadcast.
    pub fn is_broadcast(&self, to: IpAddr) -> bool {
        let IpAddr::V4(v4) = to else { return false };
        let of = |own: &Network| match own.address {
            IpAddr::V4(own_v4) if own.prefix < 31 => {
                v4.to_bits() == own_v4.to_bits() | u32::MAX >> own.prefix
            }
            _ => false,
        };
        v4.is_broadcast() || self.ours.iter().any(of)
    }

    /// The first gateway for the family of an address.
    fn gateway(&self, to: IpAddr) -> Option<IpAddr> {
        self.gateways.iter().copied().find(|gateway| gateway.is_ipv6() == to.is_ipv6())
    }

    /// The dataplane's source address for packets to this address.
    pub fn own_towards(&self, to: IpAddr) -> Option<IpAddr> {
        if self.is_ours(to) {
            return Some(to);
        }
        let on = |to: IpAddr| self.on_link(to);
        // A gateway of the link is in no network of ours.
        let first = |to: IpAddr| self.ours.iter().find(|own| own.address.is_ipv6() == to.is_ipv6());
        let through =
            |gateway| on(gateway).or_else(|| first(to).filter(|_| family::is_of_link(gateway)));
        let any = || first(to).filter(|_| self.is_group(to));
        // Of networks beyond the link and on it the smallest; a gateway before a route to all.
        let beyond = self.beyond(to).filter(|(network, _)| {
            let near = self.ours.iter().filter(|own| own.contains(to)).map(|own| own.prefix).max();
            near.is_none_or(|near| near < network.prefix)
                && (network.prefix > 0 || self.gateway(to).is_none())
        });
        if let Some((_, own)) = beyond {
            return Some(*own);
        }
        let network = on(to).or_else(|| self.gateway(to).and_then(through)).or_else(any)?;
        Some(network.address)
    }

    /// Whether this is an address of the dataplane.
    pub fn is_ours(&self, address: IpAddr) -> bool {
        self.ours.iter().any(|network| network.address == address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::EVERY_V4;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn routes(text: &str) -> Routes {
        let linux = ["127.0.0.1/8", "192.168.1.5/24", "10.88.0.1/16", "2001:db8:2::5/64"];
        let linux = linux.iter().map(|text| Network::parse(text).unwrap()).collect();
        Routes::parse(text).unwrap().with_linux(linux)
    }

    #[test]
    fn whose_a_bound_socket_is() {
        let v4 = routes("10.88.0.2/16,10.9.0.2/24;");
        let v6 = routes("2001:db8:1::2/64;");
        let both = routes("10.88.0.2/16,2001:db8:1::2/64;");
        use Whose::{Both, Ix, Linux};
        for (to, expected) in [
            (ip("10.88.0.2"), [Ix, Linux, Ix]),
            (ip("10.9.0.2"), [Ix, Linux, Linux]),
            (ip("10.9.0.3"), [Linux; 3]),
            (ip("127.0.0.1"), [Linux; 3]),
            (ip("::1"), [Linux; 3]),
            (ip("2001:db8:1::2"), [Linux, Ix, Ix]),
            (ip("2001:db8:1::3"), [Linux; 3]),
            (ip("fe80::1"), [Linux; 3]),
            (ip("224.1.1.1"), [Both, Linux, Both]),
            (ip("10.88.255.255"), [Ix, Linux, Ix]),
            (ip("255.255.255.255"), [Both, Linux, Both]),
            (ip("ff02::7"), [Linux, Both, Both]),
            (EVERY_V4, [Both, Linux, Both]),
            (EVERY_V6, [Linux, Both, Both]),
            (EVERY, [Both; 3]),
        ] {
            assert_eq!([&v4, &v6, &both].map(|routes| routes.bind(to)), expected, "{to}");
        }
    }

    #[test]
    fn whose_an_outgoing_socket_is() {
        let with =
            routes("10.88.0.2/16,10.9.0.2/24,2001:db8:1::2/64;10.88.0.9,10.9.0.9,2001:db8:1::9");
        let without = routes("10.88.0.2/16,2001:db8:1::2/64;");
        use Whose::{Ix, Linux};
        for (to, gateway, none) in [
            ("10.88.7.7", Ix, Ix),
            ("10.88.0.1", Ix, Ix),
            ("10.9.0.200", Ix, Linux),
            ("127.1.2.3", Linux, Linux),
            ("192.168.1.77", Linux, Linux),
            ("8.8.8.8", Ix, Linux),
            ("0.0.0.0", Linux, Linux),
            ("224.0.0.1", Ix, Ix),
            ("10.88.255.255", Ix, Ix),
            ("255.255.255.255", Ix, Ix),
            ("192.168.1.255", Linux, Linux),
            ("2001:db8:1::77", Ix, Ix),
            ("2001:db8:2::77", Linux, Linux),
            ("2001:db8:3::77", Ix, Linux),
            ("fe80::1", Linux, Linux),
            ("ff02::1", Ix, Ix),
            ("::1", Linux, Linux),
            ("::", Linux, Linux),
        ] {
            assert_eq!((with.connect(ip(to)), without.connect(ip(to))), (gateway, none), "{to}");
        }
        let own = |routes: &Routes, to| routes.own_towards(ip(to)).map(|own| own.to_string());
        for (to, gateway, none) in [
            ("10.9.0.3", Some("10.9.0.2"), None),
            ("10.88.7.7", Some("10.88.0.2"), Some("10.88.0.2")),
            ("8.8.8.8", Some("10.88.0.2"), None),
            ("2001:db8:1::7", Some("2001:db8:1::2"), Some("2001:db8:1::2")),
            ("2001:db8:3::7", Some("2001:db8:1::2"), None),
        ] {
            let expected = (gateway.map(str::to_owned), none.map(str::to_owned));
            assert_eq!((own(&with, to), own(&without, to)), expected, "{to}");
        }
        let of_link = routes("10.88.0.2/16,2001:db8:1::2/64;fe80::1");
        assert_eq!(own(&of_link, "2001:db8:3::7").as_deref(), Some("2001:db8:1::2"));
        assert_eq!(own(&of_link, "8.8.8.8"), None, "a gateway of the other family");
    }

    #[test]
    fn a_route_of_the_configuration_leads_to_ix() {
        let text = "10.88.0.2/16,10.9.0.2/24,2001:db8:1::2/64;10.9.0.0/16=10.88.0.2,\
                    192.168.0.0/16=10.9.0.2,10.88.7.0/24=10.9.0.2,2001:db8::/32=2001:db8:1::2,\
                    192.168.1.128/25=10.88.0.2";
        let with = routes(text);
        use Whose::{Ix, Linux};
        for (to, whose, own) in [
            ("10.9.7.7", Ix, Some("10.88.0.2")),
            ("10.9.0.7", Ix, Some("10.9.0.2")),
            ("10.88.7.9", Ix, Some("10.9.0.2")),
            ("10.88.8.9", Ix, Some("10.88.0.2")),
            ("192.168.2.1", Ix, Some("10.9.0.2")),
            // Linux is nearer, or is not.
            ("192.168.1.77", Linux, Some("10.9.0.2")),
            ("192.168.1.200", Ix, Some("10.88.0.2")),
            ("2001:db8:2::77", Linux, Some("2001:db8:1::2")),
            ("2001:db8:9::1", Ix, Some("2001:db8:1::2")),
            ("8.8.8.8", Linux, None),
            ("fe80::1", Linux, None),
            ("127.0.0.1", Linux, None),
        ] {
            assert_eq!(with.connect(ip(to)), whose, "{to}");
            let source = with.own_towards(ip(to)).map(|own| own.to_string());
            assert_eq!(source.as_deref(), own, "{to}");
        }
        let all = routes("10.88.0.2/16,10.9.0.2/24;0.0.0.0/0=10.9.0.2");
        assert_eq!(all.connect(ip("8.8.8.8")), Ix);
        assert_eq!(all.own_towards(ip("8.8.8.8")), Some(ip("10.9.0.2")));
        let both = routes("10.88.0.2/16,10.9.0.2/24;10.88.0.9,0.0.0.0/0=10.9.0.2");
        assert_eq!(both.own_towards(ip("8.8.8.8")), Some(ip("10.88.0.2")));
    }

    #[test]
    fn an_only_address_is_of_a_family() {
        let several = routes("10.88.0.2/16,10.9.0.2/24,2001:db8:1::2/64;");
        assert_eq!(several.single(false), None);
        assert_eq!(several.single(true), Some(ip("2001:db8:1::2")));
        assert_eq!(routes("10.88.0.2/16;").single(true), None);
    }

    /// As a connection of the dataplane has it (`by_routes` in ix-proto).
    #[test]
    fn of_networks_in_each_other_the_smallest_has_the_source_where_there_are_routes() {
        for (text, source) in [
            ("10.0.0.2/8,10.9.0.2/24;", "10.0.0.2"),
            ("10.0.0.2/8,10.9.0.2/24;192.0.2.0/24=10.0.0.2", "10.9.0.2"),
        ] {
            assert_eq!(routes(text).own_towards(ip("10.9.0.5")), Some(ip(source)), "{text}");
        }
    }

    #[test]
    fn the_address_of_linux_is_both_and_reached_through_linux() {
        let shared = routes("10.88.0.2/16;10.88.0.9").sharing(true);
        assert_eq!(shared.bind(ip("10.88.0.2")), Whose::Both);
        assert_eq!(shared.bind(ip("127.0.0.1")), Whose::Linux);
        assert_eq!(shared.connect(ip("10.88.0.2")), Whose::Linux);
        assert_eq!(shared.connect(ip("10.88.0.1")), Whose::Ix);
        assert_eq!(shared.connect(ip("8.8.8.8")), Whose::Ix);
        // Linux says the way to others, and addresses may come.
        for (to, asks) in [
            ("8.8.8.8", true),
            ("10.88.0.1", true),
            ("10.88.0.2", false),
            ("127.0.0.1", false),
            ("0.0.0.0", false),
            ("224.0.0.1", false),
            ("255.255.255.255", false),
            ("2001:db8::1", true),
            ("fe80::1", false),
            ("ff02::1", false),
            ("::1", false),
        ] {
            assert_eq!(shared.are_linuxs(ip(to)), asks, "{to}");
        }
        assert!(!routes("10.88.0.2/16;").are_linuxs(ip("8.8.8.8")));
        assert_eq!(shared.single(false), None);
        let mut shared = shared;
        shared.follow(vec![Network::parse("10.88.0.3/16").unwrap()]);
        assert_eq!(shared.bind(ip("10.88.0.3")), Whose::Both);
        assert_eq!(shared.bind(ip("10.88.0.2")), Whose::Linux);
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        for text in
            ["", ";", "10.0.0.1", "10.0.0.1/33;", "10.0.0.1/24;x", "x/24;", "2001:db8::1/129;"]
        {
            assert_eq!(Routes::parse(text), None, "{text}");
        }
    }
}
