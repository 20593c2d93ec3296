//! Addresses, and the four values that name a flow.
use core::fmt;
use core::str::FromStr;

/// An Ethernet address, as on the wire.
pub type MacAddr = [u8; 6];

/// The Ethernet broadcast address.
pub const BROADCAST_MAC: MacAddr = [0xff; 6];

/// True for a multicast or broadcast Ethernet address.
#[inline]
pub const fn is_group_mac(mac: &MacAddr) -> bool {
    mac[0] & 1 != 0
}

/// An IPv6 address, or an IPv4 address mapped into IPv6 (RFC 4291 section 2.5.5.2), in network
/// byte order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct IpAddr(pub [u8; 16]);

const V4_PREFIX: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

impl IpAddr {
    /// The IPv4 address 0.0.0.0.
    pub const UNSPECIFIED: Self = Self::v4([0; 4]);
    /// The IPv6 address `::`.
    pub const UNSPECIFIED_V6: Self = Self([0; 16]);
    /// Stands for every IPv6 address of the dataplane and for no IPv4 one, where `::` stands for
    /// both, as in the contract. It is reserved and never names a group (RFC 4291 section 2.7.1).
    pub const EVERY_V6: Self = Self([0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    /// The IPv4 limited broadcast address 255.255.255.255.
    pub const BROADCAST: Self = Self::v4([255; 4]);

    /// An IPv4 address.
    #[inline]
    pub const fn v4(octets: [u8; 4]) -> Self {
        let [a, b, c, d] = octets;
        Self([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d])
    }

    /// The IPv4 address that is this number. As [`IpAddr::v4`], but in two pieces.
    #[inline]
    pub(crate) const fn from_v4(address: u32) -> Self {
        Self((0xffff << 32 | address as u128).to_be_bytes())
    }

    /// The IPv4 address, if this is one.
    #[inline]
    pub fn as_v4(self) -> Option<[u8; 4]> {
        let (prefix, v4) = self.0.split_at(12);
        if prefix == V4_PREFIX { v4.try_into().ok() } else { None }
    }

    /// True for an IPv6 address, which is no mapped IPv4 one.
    #[inline]
    pub fn is_v6(self) -> bool {
        u128::from_be_bytes(self.0) >> 32 != 0xffff
    }

    /// True in fe80::/10: such an address means another host on each link.
    #[inline]
    pub fn is_link_local_v6(self) -> bool {
        self.0[0] == 0xfe && self.0[1] & 0xc0 == 0x80
    }

    /// The wildcards that stand for this address among others: first that of its own family, then
    /// `::`, which stands for both families (RFC 3493 section 5.3).
    #[inline]
    pub fn wildcards(self) -> &'static [Self; 2] {
        const V4: [IpAddr; 2] = [IpAddr::UNSPECIFIED, IpAddr::UNSPECIFIED_V6];
        const V6: [IpAddr; 2] = [IpAddr::EVERY_V6, IpAddr::UNSPECIFIED_V6];
        if self.is_v6() { &V6 } else { &V4 }
    }

    /// True for what stands for many addresses of the dataplane.
    pub fn is_wildcard(self) -> bool {
        self.is_unspecified() || self == Self::EVERY_V6
    }

    /// Whether two sockets of one port and one process cannot have these addresses: the same, or
    /// two wildcards that stand for a common address.
    pub fn excludes(self, other: Self) -> bool {
        let apart = self.is_v6() != other.is_v6()
            && self != Self::UNSPECIFIED_V6
            && other != Self::UNSPECIFIED_V6;
        self == other || self.is_wildcard() && other.is_wildcard() && !apart
    }

    /// True for 0.0.0.0 and `::`, which stand for every address of the dataplane.
    #[inline]
    pub fn is_unspecified(self) -> bool {
        self == Self::UNSPECIFIED || self.0 == [0; 16]
    }

    /// True in 224.0.0.0/4 and ff00::/8.
    #[inline]
    pub fn is_multicast(self) -> bool {
        match self.as_v4() {
            Some(v4) => v4[0] >> 4 == 0xe,
            None => self.0[0] == 0xff,
        }
    }

    /// True for 255.255.255.255. For directed broadcasts, which need a prefix length, see
    /// [`Self::is_broadcast_of`].
    #[inline]
    pub fn is_broadcast(self) -> bool {
        self == Self::BROADCAST
    }

    /// True for the broadcast address of an IPv4 network, given by any of its addresses and its
    /// prefix length. A /31 or /32 has none (RFC 3021).
    pub fn is_broadcast_of(self, network: IpAddr, prefix_bits: u8) -> bool {
        match (self.as_v4(), network.as_v4()) {
            (Some(own), Some(net)) if prefix_bits < 31 => {
                let host_mask = u32::MAX >> prefix_bits;
                u32::from_be_bytes(own) == u32::from_be_bytes(net) | host_mask
            }
            _ => false,
        }
    }

    /// True in 127.0.0.0/8 and for `::1`.
    #[inline]
    pub fn is_loopback(self) -> bool {
        match self.as_v4() {
            Some(v4) => v4[0] == 127,
            None => self.0 == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        }
    }

    /// True if both addresses have their first `prefix_bits` in common, counted within the address
    /// family. False for addresses of different families.
    pub fn same_network(self, other: IpAddr, prefix_bits: u8) -> bool {
        let bits = match (self.as_v4(), other.as_v4()) {
            (Some(_), Some(_)) => 96 + u32::from(prefix_bits.min(32)),
            (None, None) => u32::from(prefix_bits.min(128)),
            _ => return false,
        };
        let differ = u128::from_be_bytes(self.0) ^ u128::from_be_bytes(other.0);
        differ.leading_zeros() >= bits
    }
}

impl Default for IpAddr {
    fn default() -> Self {
        Self::UNSPECIFIED
    }
}

impl fmt::Display for IpAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_v4() {
            Some(v4) => core::net::Ipv4Addr::from(v4).fmt(f),
            None => core::net::Ipv6Addr::from(self.0).fmt(f),
        }
    }
}

/// The text is neither an IPv4 nor an IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpAddrError;

impl fmt::Display for IpAddrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not an IP address")
    }
}

impl core::error::Error for IpAddrError {}

impl FromStr for IpAddr {
    type Err = IpAddrError;

    fn from_str(text: &str) -> Result<Self, IpAddrError> {
        text.parse::<core::net::IpAddr>().map(Self::from).map_err(|_| IpAddrError)
    }
}

impl From<core::net::IpAddr> for IpAddr {
    fn from(addr: core::net::IpAddr) -> Self {
        match addr {
            core::net::IpAddr::V4(v4) => Self::v4(v4.octets()),
            core::net::IpAddr::V6(v6) => Self(v6.octets()),
        }
    }
}

impl From<IpAddr> for core::net::IpAddr {
    fn from(addr: IpAddr) -> Self {
        match addr.as_v4() {
            Some(v4) => core::net::IpAddr::V4(v4.into()),
            None => core::net::IpAddr::V6(addr.0.into()),
        }
    }
}

impl From<[u8; 4]> for IpAddr {
    #[inline]
    fn from(v4: [u8; 4]) -> Self {
        Self::v4(v4)
    }
}

/// The four values that name a flow, seen from this host.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
pub struct FlowTuple {
    /// Our address.
    pub local: IpAddr,
    /// The peer's address.
    pub remote: IpAddr,
    /// Our port.
    pub local_port: u16,
    /// The peer's port.
    pub remote_port: u16,
}

impl fmt::Display for FlowTuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { local, remote, local_port, remote_port } = *self;
        write!(f, "{} <- {}", At(local, local_port), At(remote, remote_port))
    }
}

/// An address with a port, as people write it: IPv6 in brackets (RFC 5952 section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At(pub IpAddr, pub u16);

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(address, port) = self;
        match address.is_v6() {
            true => write!(f, "[{address}]:{port}"),
            false => write!(f, "{address}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn text_round_trips() {
        for text in ["10.0.0.1", "255.255.255.255", "::1", "fe80::1:2"] {
            assert_eq!(ip(text).to_string(), text);
        }
        assert_eq!(ip("::ffff:10.0.0.1"), IpAddr::v4([10, 0, 0, 1]));
        assert_eq!("10.0.0".parse::<IpAddr>(), Err(IpAddrError));
    }

    #[test]
    fn a_port_is_told_from_the_address() {
        assert_eq!(At(ip("10.0.0.1"), 80).to_string(), "10.0.0.1:80");
        assert_eq!(At(ip("2001:db8::1"), 80).to_string(), "[2001:db8::1]:80");
        assert_eq!(At(ip("::"), 0).to_string(), "[::]:0");
    }

    #[test]
    fn kinds() {
        assert!(ip("224.0.0.1").is_multicast() && ip("239.255.255.255").is_multicast());
        assert!(ip("ff02::1").is_multicast());
        assert!(!ip("223.255.255.255").is_multicast() && !ip("240.0.0.0").is_multicast());
        assert!(ip("127.1.2.3").is_loopback() && ip("::1").is_loopback());
        assert!(!ip("128.0.0.1").is_loopback() && !ip("::2").is_loopback());
        assert!(ip("0.0.0.0").is_unspecified() && ip("::").is_unspecified());
        for text in ["::", "::1", "fe80::1", "::1:0:0:0", "::fffe:10.0.0.1"] {
            assert!(ip(text).as_v4().is_none() && ip(text).is_v6(), "{text}");
        }
        for text in ["0.0.0.0", "10.0.0.1", "::ffff:255.255.255.255"] {
            assert!(ip(text).as_v4().is_some() && !ip(text).is_v6(), "{text}");
        }
        assert!(ip("fe80::1").is_link_local_v6() && ip("febf::1").is_link_local_v6());
        assert!(!ip("fec0::1").is_link_local_v6() && !ip("254.128.0.1").is_link_local_v6());
    }

    #[test]
    fn networks() {
        let net = ip("10.1.2.3");
        assert!(ip("10.1.2.255").is_broadcast_of(net, 24));
        assert!(ip("10.255.255.255").is_broadcast_of(net, 8));
        assert!(!ip("10.1.2.254").is_broadcast_of(net, 24));
        assert!(!ip("10.1.2.3").is_broadcast_of(net, 31));
        assert!(ip("255.255.255.255").is_broadcast_of(net, 0));
        assert!(ip("10.1.2.200").same_network(net, 24) && !ip("10.1.3.3").same_network(net, 24));
        assert!(ip("10.1.2.2").same_network(net, 31) && !ip("10.1.2.1").same_network(net, 31));
        assert!(ip("1.2.3.4").same_network(net, 0) && !ip("::1").same_network(net, 0));
        assert!(ip("fe80::1").same_network(ip("fe80::2"), 64));
    }
}
