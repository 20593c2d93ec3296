//! Addresses: 128 bits wide across the wall, `std::net` on this side.
use ix_abi::Addr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The address as the contract has it: IPv4 mapped into IPv6. The unspecified IPv4 address becomes
/// the unspecified IPv6 one, which stands for every address of the dataplane.
pub(crate) fn to_abi(ip: IpAddr) -> Addr {
    match ip {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => [0; 16],
        IpAddr::V4(v4) => ix_abi::v4(v4.octets()),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The address as programs know it.
pub(crate) fn from_abi(addr: Addr) -> IpAddr {
    Ipv6Addr::from(addr).to_canonical()
}

/// High and low half, as two arguments of a call carry them.
pub(crate) fn words(addr: Addr) -> [u64; 2] {
    let value = u128::from_be_bytes(addr);
    [(value >> 64) as u64, value as u64]
}

/// The reverse of [`words`].
#[cfg(feature = "loopback")]
pub(crate) fn from_words(words: [u64; 2]) -> Addr {
    (u128::from(words[0]) << 64 | u128::from(words[1])).to_be_bytes()
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
        assert_eq!(words(to_abi(ip)), [0, 0x0000_ffff_0a01_0203]);
        assert_eq!(to_abi("0.0.0.0".parse().unwrap()), [0; 16]);
    }
}
