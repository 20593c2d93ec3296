//! The lower halves of the addresses that a host makes of prefixes: of its Ethernet address, or of
//! a secret (RFC 7217), so that a host is not followed from network to network, nor guessed which
//! card it has.
use core::hash::Hasher;
use ix_wire::{IpAddr, MacAddr};
use siphasher::sip::SipHasher24;

/// How many other identifiers are tried where other hosts have the address (IDGEN_RETRIES).
pub const RETRIES_MAX: u8 = 3;

/// How identifiers are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identifiers {
    /// The modified EUI-64 of the Ethernet address (RFC 4291 appendix A): the same one for every
    /// prefix.
    OfMac(MacAddr),
    /// Another one for each prefix, and always the same one: of this secret, which is the host's
    /// and the interface's (RFC 7217).
    Stable([u8; 16]),
}

impl Identifiers {
    /// The address with this prefix of 64 bits, after this number that other hosts had.
    pub fn address(&self, prefix: IpAddr, conflicts: u8) -> IpAddr {
        let mut octets = prefix.0;
        let lower = match self {
            Identifiers::OfMac([a, b, c, d, e, f]) => [a ^ 2, *b, *c, 0xff, 0xfe, *d, *e, *f],
            Identifiers::Stable(secret) => stable(secret, prefix, conflicts),
        };
        octets[8..].copy_from_slice(&lower);
        IpAddr(octets)
    }

    /// Whether there is another address where other hosts had this number.
    pub fn has_another(&self, conflicts: u8) -> bool {
        matches!(self, Identifiers::Stable(_)) && conflicts < RETRIES_MAX
    }
}

/// RFC 7217 section 5. F is SipHash-2-4, whose key cannot be found by looking at addresses.
fn stable(secret: &[u8; 16], prefix: IpAddr, conflicts: u8) -> [u8; 8] {
    // A reserved one is passed over as if a host had it. That is so rare that counting does not
    // meet those of later conflicts.
    for skipped in 0..=u8::MAX {
        let mut hasher = SipHasher24::new_with_key(secret);
        hasher.write(&prefix.0[..8]);
        hasher.write(&[conflicts, skipped]);
        let identifier = hasher.finish().to_be_bytes();
        if !is_reserved(identifier) {
            return identifier;
        }
    }
    [0, 0, 0, 0, 0, 0, 0, 1]
}

/// The address with this prefix of 64 bits and a random identifier, which without the key looks
/// like any other one (RFC 8981 section 3.3.2). `count` is another one each time.
pub(super) fn temporary(key: &[u8; 16], prefix: IpAddr, now_us: u64, count: u64) -> IpAddr {
    let mut octets = prefix.0;
    // As above, it is practically always the first one.
    for skipped in 0..=u8::MAX {
        let mut hasher = SipHasher24::new_with_key(key);
        hasher.write(&prefix.0[..8]);
        hasher.write(&now_us.to_be_bytes());
        hasher.write(&count.to_be_bytes());
        hasher.write(&[skipped]);
        let identifier = hasher.finish().to_be_bytes();
        if !is_reserved(identifier) {
            octets[8..].copy_from_slice(&identifier);
            break;
        }
    }
    IpAddr(octets)
}

/// Those that have another meaning (RFC 5453): the subnet's routers, what grew out of the IANA's
/// Ethernet addresses, and anycast addresses of the subnet.
fn is_reserved(identifier: [u8; 8]) -> bool {
    matches!(
        u64::from_be_bytes(identifier),
        0 | 0x0200_5eff_fe00_0000..=0x0200_5eff_feff_ffff
            | 0xfdff_ffff_ffff_ff80..=0xfdff_ffff_ffff_ffff
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn prefix(n: u16) -> IpAddr {
        let [high, low] = n.to_be_bytes();
        IpAddr([0x20, 1, 0xd, 0xb8, 0, 0, high, low, 0, 0, 0, 0, 0, 0, 0, 0])
    }

    fn lower(address: IpAddr) -> [u8; 8] {
        std::array::from_fn(|at| address.0[8 + at])
    }

    #[test]
    fn of_an_ethernet_address_as_the_rfc_says() {
        let of = Identifiers::OfMac([0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde]);
        let identifier = [0x36, 0x56, 0x78, 0xff, 0xfe, 0x9a, 0xbc, 0xde];
        assert_eq!(lower(of.address(prefix(1), 0)), identifier);
        assert_eq!(lower(of.address(prefix(2), 3)), identifier);
        assert!(!of.has_another(0), "there is no other one");
    }

    #[test]
    fn each_prefix_and_each_conflict_has_its_own_and_always_the_same() {
        let (one, other) = (Identifiers::Stable([7; 16]), Identifiers::Stable([8; 16]));
        let all = |of: Identifiers| -> BTreeSet<[u8; 8]> {
            let places = (0..500).flat_map(|n| (0..=RETRIES_MAX).map(move |c| (n, c)));
            places.map(|(n, conflicts)| lower(of.address(prefix(n), conflicts))).collect()
        };
        assert_eq!((all(one).len(), all(one)), (2000, all(one)));
        assert_eq!(all(one).intersection(&all(other)).count(), 0, "another interface or host");
        assert_eq!((one.has_another(2), one.has_another(3)), (true, false));
    }

    #[test]
    fn reserved_ones_are_known() {
        let reserved = [
            0,
            0x0200_5eff_fe00_0000,
            0x0200_5eff_fe00_5213,
            0x0200_5eff_feff_ffff,
            0xfdff_ffff_ffff_ff80,
            0xfdff_ffff_ffff_ffff,
        ];
        let free = [
            1,
            0x0200_5eff_fdff_ffff,
            0x0200_5eff_ff00_0000,
            0xfdff_ffff_ffff_ff7f,
            0xfe00_0000_0000_0000,
        ];
        assert!(reserved.iter().all(|n: &u64| is_reserved(n.to_be_bytes())));
        assert!(free.iter().all(|n: &u64| !is_reserved(n.to_be_bytes())));
    }

    proptest! {
        /// The prefix stays, and half of all bits differ between two networks.
        #[test]
        fn nothing_of_a_prefix_shows_in_another(secret: [u8; 16], n in 0..u16::MAX) {
            let of = Identifiers::Stable(secret);
            let (here, there) = (of.address(prefix(n), 0), of.address(prefix(n + 1), 0));
            prop_assert_eq!(&here.0[..8], &prefix(n).0[..8]);
            let [here, there] = [here, there].map(|it| u64::from_be_bytes(lower(it)));
            let differ = (here ^ there).count_ones();
            prop_assert!((8..=56).contains(&differ), "{} bits", differ);
        }
    }
}
