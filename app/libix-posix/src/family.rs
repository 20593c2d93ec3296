//! The two address families of a socket. A socket of `AF_INET6` names IPv4 addresses by mapped ones
//! (RFC 3493 section 3.7); here they are IPv4 addresses, whatever the family of the socket.
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Every IPv6 address of the dataplane, and no IPv4 one, as in the contract: `::` of a socket with
/// `IPV6_V6ONLY`.
pub const EVERY_V6: IpAddr = IpAddr::V6(Ipv6Addr::from_bits(u128::from_be_bytes(ix_abi::EVERY_V6)));
/// Every address of the dataplane: `::` of other sockets of `AF_INET6`.
pub const EVERY: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
/// Every IPv4 address of the dataplane.
pub const EVERY_V4: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// An address with mapped ones as IPv4 addresses. The scope of an IPv6 address stays.
pub fn canonical(at: SocketAddr) -> SocketAddr {
    match at.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), at.port()),
        IpAddr::V6(_) => at,
    }
}

/// The flow information of an address, in host byte order; 0: none.
pub fn flow_info(at: SocketAddr) -> u32 {
    match at {
        SocketAddr::V6(at) => at.flowinfo(),
        SocketAddr::V4(_) => 0,
    }
}

/// An address with this flow information, in host byte order; one of IPv4 has none.
pub fn with_flow_info(mut at: SocketAddr, flow_info: u32) -> SocketAddr {
    if let SocketAddr::V6(at) = &mut at {
        at.set_flowinfo(flow_info);
    }
    at
}

/// An address as the rest of this layer has it: without flow information, so that equal ones are
/// equal.
pub fn without_flow_info(at: SocketAddr) -> SocketAddr {
    with_flow_info(at, 0)
}

/// An address as programs and users know it: [`EVERY_V6`] is `::` to them.
pub fn shown(at: SocketAddr) -> SocketAddr {
    if at.ip() == EVERY_V6 { SocketAddr::new(EVERY, at.port()) } else { at }
}

/// The errno of Linux for a packet from a bound address to another one: not every pair can be.
pub fn reaches(bound: Option<IpAddr>, to: IpAddr) -> Result<(), i32> {
    match bound {
        Some(IpAddr::V4(_)) if to.is_ipv6() => Err(libc::EAFNOSUPPORT),
        Some(EVERY_V6) if to.is_ipv4() => Err(libc::ENETUNREACH),
        Some(at @ IpAddr::V6(_)) if to.is_ipv4() && !is_wildcard(at) => Err(libc::EINVAL),
        _ => Ok(()),
    }
}

/// Whether an address stands for many of the dataplane's.
pub fn is_wildcard(ip: IpAddr) -> bool {
    ip.is_unspecified() || ip == EVERY_V6
}

/// Whether a socket at `ip` hears what is sent to `to`, an address of the dataplane.
pub fn hears(ip: IpAddr, to: IpAddr) -> bool {
    ip == to || is_wildcard(ip) && overlap(ip, if to.is_ipv6() { EVERY_V6 } else { EVERY_V4 })
}

/// Whether there is an address that sockets at both addresses hear.
pub fn overlap(one: IpAddr, other: IpAddr) -> bool {
    let same_family = one.is_ipv6() == other.is_ipv6() || one == EVERY || other == EVERY;
    one == other || same_family && (is_wildcard(one) || is_wildcard(other))
}

/// Whether a socket at an address hears IPv4, and whether it hears IPv6.
pub fn of(ip: IpAddr) -> [bool; 2] {
    [EVERY_V4, EVERY_V6].map(|family| overlap(ip, family))
}

/// The address of a packet is in this link's scope only (RFC 4291 section 2.5.6).
pub fn is_of_link(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_hear_their_families() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let (v4, v6) = (ip("10.0.0.2"), ip("2001:db8::2"));
        for (at, hears_v4, hears_v6) in [
            (EVERY, true, true),
            (EVERY_V4, true, false),
            (EVERY_V6, false, true),
            (v4, true, false),
            (v6, false, true),
            (ip("10.0.0.3"), false, false),
        ] {
            assert_eq!((hears(at, v4), hears(at, v6)), (hears_v4, hears_v6), "{at}");
            assert_eq!((overlap(at, v4), overlap(v6, at)), (hears_v4, hears_v6), "{at}");
            assert_eq!(of(at), [at.is_ipv4() || at == EVERY, at.is_ipv6()], "{at}");
        }
        assert!(!overlap(EVERY_V4, EVERY_V6));
        assert!(overlap(EVERY_V4, EVERY) && overlap(EVERY, EVERY_V6) && overlap(EVERY, EVERY));
    }

    #[test]
    fn only_mapped_addresses_change() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        assert_eq!(canonical(at("[::ffff:10.0.0.2]:80")), at("10.0.0.2:80"));
        for text in ["10.0.0.2:80", "[2001:db8::2]:80", "[fe80::1%3]:80"] {
            assert_eq!(canonical(at(text)), at(text));
        }
    }
}
