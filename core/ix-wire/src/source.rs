//! Which own address a connection to somebody begins with (RFC 6724 section 5).
use crate::IpAddr;
use core::cmp::Reverse;

/// Scope of addresses that are unique everywhere (RFC 4291 section 2.7).
const GLOBAL: u8 = 0xe;
const LINK_LOCAL: u8 = 2;
const SITE_LOCAL: u8 = 5;
/// Bits of an address that can name a network: more in common means nothing (section 2.2).
const NETWORK_BITS: u32 = 64;

/// The first ones of these prefixes, which are sorted by length, that fit give addresses their
/// labels (section 2.1).
const LABELS: [([u8; 16], u32, u8); 8] = [
    ([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], 128, 0),
    ([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0], 96, 4),
    ([0; 16], 96, 3),
    (prefix([0x20, 1, 0, 0]), 32, 5),
    (prefix([0x20, 2, 0, 0]), 16, 2),
    (prefix([0x3f, 0xfe, 0, 0]), 16, 12),
    (prefix([0xfe, 0xc0, 0, 0]), 10, 11),
    (prefix([0xfc, 0, 0, 0]), 7, 13),
];
const LABEL_OF_OTHERS: u8 = 1;

const fn prefix([a, b, c, d]: [u8; 4]) -> [u8; 16] {
    [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
}

/// The best of `own` for packets to `remote`, of its family; of equals the first. Each comes with
/// whether it is preferred, not deprecated (RFC 4862 section 5.5.4).
///
/// Rules 4, 5, 5.5 and 7 have no case here: there are neither home nor temporary addresses, and
/// the caller names those of one link.
pub fn best_source(
    remote: IpAddr,
    own: impl IntoIterator<Item = (IpAddr, bool)>,
) -> Option<IpAddr> {
    let to_scope = scope(remote);
    let rank = |address: IpAddr, preferred: bool| {
        let scope = scope(address);
        // Rule 2: the least scope that reaches the other, else the largest.
        let reach = if scope >= to_scope { (true, u8::MAX - scope) } else { (false, scope) };
        let same_label = label(address) == label(remote);
        let differ = u128::from_be_bytes(address.0) ^ u128::from_be_bytes(remote.0);
        let common = differ.leading_zeros().min(NETWORK_BITS);
        (address == remote, reach, preferred, same_label, common)
    };
    let suits = own.into_iter().filter(|(address, _)| address.is_v6() == remote.is_v6());
    let ranked = suits
        .enumerate()
        .map(|(place, (address, preferred))| ((rank(address, preferred), Reverse(place)), address));
    ranked.max_by_key(|(rank, _)| *rank).map(|(_, address)| address)
}

/// Section 3.1.
fn scope(address: IpAddr) -> u8 {
    match address.0 {
        _ if !address.is_v6() => GLOBAL,
        [0xff, flags_and_scope, ..] => flags_and_scope & 0xf,
        _ if address.is_link_local_v6() || address.is_loopback() => LINK_LOCAL,
        [0xfe, second, ..] if second & 0xc0 == 0xc0 => SITE_LOCAL,
        _ => GLOBAL,
    }
}

fn label(address: IpAddr) -> u8 {
    let bits = u128::from_be_bytes(address.0);
    let fits = |(prefix, len, _): &&([u8; 16], u32, u8)| {
        (bits ^ u128::from_be_bytes(*prefix)).leading_zeros() >= *len
    };
    LABELS.iter().find(fits).map_or(LABEL_OF_OTHERS, |(.., label)| *label)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn best(remote: &str, own: &[&str]) -> String {
        let all = own.iter().map(|text| match text.strip_suffix(" deprecated") {
            Some(text) => (ip(text), false),
            None => (ip(text), true),
        });
        best_source(ip(remote), all).map_or(String::new(), |best| best.to_string())
    }

    /// The examples of RFC 6724 section 10.1, as far as their rules have a case here.
    #[test]
    fn rfc6724_10_1_examples() {
        for (remote, own, wanted) in [
            ("2001:db8:1::1", &["2001:db8:3::1", "fe80::1"][..], "2001:db8:3::1"),
            ("ff05::1", &["2001:db8:3::1", "fe80::1"], "2001:db8:3::1"),
            ("2001:db8:1::1", &["2001:db8:1::1 deprecated", "2001:db8:2::1"], "2001:db8:1::1"),
            ("fe80::1", &["fe80::2 deprecated", "2001:db8:1::1"], "fe80::2"),
            ("2001:db8:1::1", &["2001:db8:1::2", "2001:db8:3::2"], "2001:db8:1::2"),
            ("2002:c633:6401::1", &["2002:c633:6401::7", "2001:db8:1::2"], "2002:c633:6401::7"),
            // Rule 3, 6: deprecated ones last, ULA to ULA and global to global.
            ("2001:db8:1::1", &["2001:db8:1::2 deprecated", "2001:db8:3::2"], "2001:db8:3::2"),
            ("fd00:1::1", &["2001:db8:1::2", "fd00:2::2"], "fd00:2::2"),
            ("2001:4860::1", &["fd00:2::2", "2001:db8:1::2"], "2001:db8:1::2"),
            // Equals in their order; another family never.
            ("2001:4860::1", &["2001:db8:1::3", "2001:db8:1::2"], "2001:db8:1::3"),
            ("192.0.2.1", &["2001:db8::1", "10.0.0.1"], "10.0.0.1"),
            ("192.0.2.1", &["2001:db8::1"], ""),
        ] {
            assert_eq!(best(remote, own), wanted, "to {remote} from {own:?}");
            let back: Vec<&str> = own.iter().rev().copied().collect();
            let equals = wanted == "2001:db8:1::3";
            assert!(equals || best(remote, &back) == wanted, "to {remote} from {back:?}");
        }
    }
}
