//! Which addresses are IX's: a pure function of the settings of `ix run` and of Linux's interfaces.
//!
//! * **bind**: an address of the dataplane is IX's. The wildcard address is both IX's and, for
//!   interfaces that are not IX's such as loopback, Linux's. Any other address is Linux's.
//!   An address that is Linux's as well is both's.
//! * **connect, sendto**: loopback is Linux's; a network of the dataplane is IX's; a network of one
//!   of Linux's interfaces is Linux's; any other address is IX's if the dataplane has a gateway.
use std::net::{IpAddr, Ipv4Addr};

/// Environment variable that `ix run` sets, such as `10.0.0.2/24,10.1.0.2/16;10.0.0.1`: addresses
/// with prefix lengths; the gateways or nothing. More parts follow for [`crate::process`], each
/// after a `;`: the number of the library's descriptor, the first number of the dataplane's
/// descriptors, the configured congestion control, the number of the descriptor for
/// [`crate::low_ports`] or nothing, whether packet memory is locked, the ports of outgoing
/// connections where the addresses are Linux's as well or nothing, and for each address the Linux
/// interface of its device, or nothing.
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
    pub address: Ipv4Addr,
    /// Length of its prefix.
    pub prefix: u8,
}

impl Network {
    fn contains(&self, other: Ipv4Addr) -> bool {
        let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0);
        (self.address.to_bits() ^ other.to_bits()) & mask == 0
    }

    fn parse(text: &str) -> Option<Network> {
        let (address, prefix) = text.split_once('/')?;
        let prefix = prefix.parse().ok().filter(|prefix| *prefix <= 32)?;
        Some(Network { address: address.parse().ok()?, prefix })
    }
}

/// The addresses and networks of IX and of Linux.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes {
    ours: Vec<Network>,
    gateways: Vec<Ipv4Addr>,
    linux: Vec<Network>,
    /// The addresses are Linux's as well: which packets are IX's is a matter of ports.
    shared: bool,
}

impl Routes {
    /// Reads the value of [`ENV`].
    pub fn parse(text: &str) -> Option<Routes> {
        let mut parts = text.split(';');
        let (ours, gateways) = (parts.next()?, parts.next());
        // None where all addresses are IPv6, but not where nothing is said.
        if ours.is_empty() && gateways.is_none() {
            return None;
        }
        let ours = ours.split(',').filter(|text| !text.is_empty());
        let ours: Option<Vec<_>> = ours.map(Network::parse).collect();
        let gateways =
            gateways.unwrap_or_default().split(',').filter(|text| !text.is_empty()).map(str::parse);
        let gateways = gateways.collect::<Result<_, _>>().ok()?;
        Some(Routes { ours: ours?, gateways, linux: Vec::new(), shared: false })
    }

    /// No address is IX's.
    pub const fn none() -> Routes {
        Routes { ours: Vec::new(), gateways: Vec::new(), linux: Vec::new(), shared: false }
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

    /// The dataplane's only address; `None` if it has several.
    pub fn single(&self) -> Option<Ipv4Addr> {
        match self.ours[..] {
            [only] => Some(only.address),
            _ => None,
        }
    }

    /// Whose a socket becomes that is bound to this address.
    pub fn bind(&self, to: IpAddr) -> Whose {
        match to {
            _ if to.is_unspecified() => Whose::Both,
            // The host itself reaches it through Linux alone.
            IpAddr::V4(to) if self.is_ours(to) && self.shared => Whose::Both,
            IpAddr::V4(to) if self.is_ours(to) => Whose::Ix,
            _ => Whose::Linux,
        }
    }

    /// Whose a socket becomes that connects or sends to this address; never both.
    pub fn connect(&self, to: IpAddr) -> Whose {
        let IpAddr::V4(to) = to else { return Whose::Linux };
        let on = |networks: &[Network]| networks.iter().any(|network| network.contains(to));
        if to.is_loopback() || to.is_unspecified() || to.is_multicast() || to.is_broadcast() {
            return Whose::Linux;
        }
        // What it sends to itself never leaves the host.
        if self.shared && self.is_ours(to) {
            return Whose::Linux;
        }
        if on(&self.ours) {
            return Whose::Ix;
        }
        if on(&self.linux) || self.gateways.is_empty() { Whose::Linux } else { Whose::Ix }
    }

    /// The dataplane's source address for packets to this address.
    pub fn own_towards(&self, to: IpAddr) -> Option<Ipv4Addr> {
        let IpAddr::V4(to) = to else { return None };
        let on = |to: Ipv4Addr| self.ours.iter().find(|network| network.contains(to));
        let network = on(to).or_else(|| self.gateways.iter().find_map(|gateway| on(*gateway)))?;
        Some(network.address)
    }

    /// Whether this is an address of the dataplane.
    pub fn is_ours(&self, address: Ipv4Addr) -> bool {
        self.ours.iter().any(|network| network.address == address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(text: &str) -> Routes {
        let linux = ["127.0.0.1/8", "192.168.1.5/24", "10.88.0.1/16"];
        let linux = linux.iter().map(|text| Network::parse(text).unwrap()).collect();
        Routes::parse(text).unwrap().with_linux(linux)
    }

    #[test]
    fn whose_a_socket_is() {
        let with = routes("10.88.0.2/16,10.9.0.2/24;10.88.0.9,10.9.0.9");
        let without = routes("10.88.0.2/16;");
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        for (to, expected) in [
            ("10.88.0.2", Whose::Ix),
            ("10.9.0.2", Whose::Ix),
            ("10.9.0.3", Whose::Linux),
            ("127.0.0.1", Whose::Linux),
            ("0.0.0.0", Whose::Both),
            ("::", Whose::Both),
            ("::1", Whose::Linux),
        ] {
            assert_eq!(with.bind(ip(to)), expected, "{to}");
        }
        for (to, gateway, none) in [
            ("10.88.7.7", Whose::Ix, Whose::Ix),
            ("10.88.0.1", Whose::Ix, Whose::Ix),
            ("10.9.0.200", Whose::Ix, Whose::Linux),
            ("127.1.2.3", Whose::Linux, Whose::Linux),
            ("192.168.1.77", Whose::Linux, Whose::Linux),
            ("8.8.8.8", Whose::Ix, Whose::Linux),
            ("0.0.0.0", Whose::Linux, Whose::Linux),
            ("224.0.0.1", Whose::Linux, Whose::Linux),
            ("2001:db8::1", Whose::Linux, Whose::Linux),
        ] {
            assert_eq!((with.connect(ip(to)), without.connect(ip(to))), (gateway, none), "{to}");
        }
        let own = |routes: &Routes, to| routes.own_towards(ip(to)).map(|own| own.to_string());
        for (to, gateway, none) in [
            ("10.9.0.3", Some("10.9.0.2"), None),
            ("10.88.7.7", Some("10.88.0.2"), Some("10.88.0.2")),
            ("8.8.8.8", Some("10.88.0.2"), None),
        ] {
            let expected = (gateway.map(str::to_owned), none.map(str::to_owned));
            assert_eq!((own(&with, to), own(&without, to)), expected, "{to}");
        }
        assert_eq!(without.single(), Some(Ipv4Addr::new(10, 88, 0, 2)));
        assert_eq!(with.single(), None);
    }

    #[test]
    fn the_address_of_linux_is_both_and_reached_through_linux() {
        let shared = routes("10.88.0.2/16;10.88.0.9").sharing(true);
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(shared.bind(ip("10.88.0.2")), Whose::Both);
        assert_eq!(shared.bind(ip("127.0.0.1")), Whose::Linux);
        assert_eq!(shared.connect(ip("10.88.0.2")), Whose::Linux);
        assert_eq!(shared.connect(ip("10.88.0.1")), Whose::Ix);
        assert_eq!(shared.connect(ip("8.8.8.8")), Whose::Ix);
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        for text in ["", "10.0.0.1", "10.0.0.1/33;", "10.0.0.1/24;x", "x/24;"] {
            assert_eq!(Routes::parse(text), None, "{text}");
        }
        let nothing = Routes::parse(";").expect("all addresses are IPv6");
        assert_eq!(nothing.connect("10.0.0.1".parse().expect("an address")), Whose::Linux);
    }
}
