//! Addresses: 128 bits wide in the contract, `std::net` in programs.
use ix_abi::{Addr, Endpoint};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// An address in the contract's form: IPv4 mapped into IPv6. 0.0.0.0 means all IPv4 addresses of
/// the dataplane, `::` all of both families.
pub(crate) fn to_abi(ip: IpAddr) -> Addr {
    match ip {
        IpAddr::V4(v4) => ix_abi::v4(v4.octets()),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// An address as `std::net` has it.
pub(crate) fn from_abi(addr: Addr) -> IpAddr {
    Ipv6Addr::from(addr).to_canonical()
}

/// Address and port in the contract's form.
pub(crate) fn endpoint(at: SocketAddr) -> Endpoint {
    Endpoint { addr: to_abi(at.ip()), port: at.port() }
}

/// Address and port as `std::net` has them.
pub(crate) fn socket_addr(at: Endpoint) -> SocketAddr {
    SocketAddr::new(from_abi(at.addr), at.port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapping() {
        let ip: IpAddr = "10.1.2.3".parse().unwrap();
        assert_eq!(to_abi(ip), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3]);
        assert_eq!(from_abi(to_abi(ip)), ip);
        let v6: IpAddr = "fe80::1".parse().unwrap();
        assert_eq!(from_abi(to_abi(v6)), v6);
        let at: SocketAddr = "10.1.2.3:4000".parse().unwrap();
        assert_eq!(endpoint(at), Endpoint { addr: ix_abi::v4([10, 1, 2, 3]), port: 4000 });
        assert_eq!(socket_addr(endpoint(at)), at);
        assert_eq!(to_abi("0.0.0.0".parse().unwrap()), ix_abi::v4([0; 4]));
        assert_eq!(to_abi("::".parse().unwrap()), [0; 16]);
    }
}
