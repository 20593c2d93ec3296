//! Where the headers of a frame end, and what people said to each other begins.

/// Most bytes of headers: Ethernet with two tags, IPv6 with some extensions, and a whole header of
/// TCP; of an ICMP error those of the packet that it quotes as well.
pub const MOST_BYTES: u32 = 256;

const ETHERNET: usize = 14;
const TAG: usize = 4;
const IPV6: usize = 40;
const UDP: usize = 8;
const ICMP: usize = 8;
/// Largest message of Neighbour Discovery with its options, such as a router's prefixes.
const ND_MOST: usize = 160;

mod ethertype {
    pub const IPV4: u16 = 0x0800;
    pub const ARP: u16 = 0x0806;
    pub const IPV6: u16 = 0x86dd;
    pub const TAGS: [u16; 2] = [0x8100, 0x88a8];
}

mod protocol {
    pub const ICMP: u8 = 1;
    pub const IGMP: u8 = 2;
    pub const TCP: u8 = 6;
    pub const UDP: u8 = 17;
    pub const ICMPV6: u8 = 58;
    pub const FRAGMENT: u8 = 44;
    /// Hop-by-hop options, routing, destination options: the second byte is their length.
    pub const EXTENSIONS: [u8; 3] = [0, 43, 60];
}

/// How many of a frame's bytes are headers, at most as many as there are. What is not known counts
/// as payload.
pub fn header_bytes(frame: &[u8]) -> usize {
    let mut at = ETHERNET;
    let mut kind = word(frame, at - 2);
    while kind.is_some_and(|kind| ethertype::TAGS.contains(&kind)) {
        at += TAG;
        kind = word(frame, at - 2);
    }
    let of_packet = |rest: &[u8]| match kind {
        Some(ethertype::IPV4 | ethertype::IPV6) => ip(rest, true),
        // Addresses alone.
        Some(ethertype::ARP) => 28,
        _ => 0,
    };
    let rest = frame.get(at..).unwrap_or_default();
    (at + of_packet(rest)).min(frame.len())
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

/// The headers of an IP packet. `quotes`: an ICMP error in it quotes a packet, with its headers.
fn ip(packet: &[u8], quotes: bool) -> usize {
    let byte = |at: usize| packet.get(at).copied();
    let (own, next, is_later) = match byte(0).map(|first| first >> 4) {
        Some(4) => {
            let own = usize::from(packet[0] & 0xf) * 4;
            let is_later = word(packet, 6).is_some_and(|word| word & 0x1fff != 0);
            (own, byte(9), is_later)
        }
        Some(6) => extensions(packet),
        _ => return 0,
    };
    // A later fragment begins with payload.
    let Some(next) = next.filter(|_| !is_later) else { return own };
    let rest = packet.get(own..).unwrap_or_default();
    own + transport(next, rest, quotes)
}

/// Where the extension headers of IPv6 end, what follows, and whether it is a later fragment.
fn extensions(packet: &[u8]) -> (usize, Option<u8>, bool) {
    let byte = |at: usize| packet.get(at).copied();
    let (mut at, mut next) = (IPV6, byte(6));
    while let Some(kind) = next {
        let is_fragment = kind == protocol::FRAGMENT;
        if !is_fragment && !protocol::EXTENSIONS.contains(&kind) {
            break;
        }
        let is_later = is_fragment && word(packet, at + 2).is_some_and(|word| word & !7 != 0);
        next = byte(at);
        let length = byte(at + 1).map_or(0, usize::from);
        at += if is_fragment { 8 } else { (length + 1) * 8 };
        if is_later {
            return (at, next, true);
        }
    }
    (at, next, false)
}

/// The header behind that of IP.
fn transport(kind: u8, rest: &[u8], quotes: bool) -> usize {
    let first = rest.first().copied();
    match kind {
        protocol::TCP => rest.get(12).map_or(0, |byte| usize::from(byte >> 4) * 4),
        protocol::UDP => UDP,
        // Groups and their sources.
        protocol::IGMP => rest.len(),
        protocol::ICMP => match first {
            Some(3 | 4 | 5 | 11 | 12) if quotes => ICMP + quoted(rest),
            _ => ICMP,
        },
        protocol::ICMPV6 => match first {
            Some(1..=4) if quotes => ICMP + quoted(rest),
            // Listeners of groups, and Neighbour Discovery.
            Some(130..=137 | 143) => rest.len().min(ND_MOST),
            _ => ICMP,
        },
        _ => 0,
    }
}

fn quoted(error: &[u8]) -> usize {
    ip(error.get(ICMP..).unwrap_or_default(), false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What no header holds.
    const PAYLOAD: &[u8] = b"AUTH hunter2";

    fn ethernet(kind: u16) -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend(kind.to_be_bytes());
        frame
    }

    fn v4(protocol: u8, options: usize, fragment: u16) -> Vec<u8> {
        let mut header = vec![0; 20 + options];
        header[0] = 0x40 | (5 + options as u8 / 4);
        header[6..8].copy_from_slice(&fragment.to_be_bytes());
        header[9] = protocol;
        header
    }

    fn v6(next: u8) -> Vec<u8> {
        let mut header = vec![0; IPV6];
        (header[0], header[6]) = (0x60, next);
        header
    }

    fn tcp(options: usize) -> Vec<u8> {
        let mut header = vec![0; 20 + options];
        header[12] = (5 + options as u8 / 4) << 4;
        header
    }

    fn icmp(kind: u8) -> Vec<u8> {
        let mut header = vec![0; ICMP];
        header[0] = kind;
        header
    }

    #[test]
    fn headers_end_where_payload_begins() {
        let tagged = [ethernet(0x88a8), vec![0, 7, 0x81, 0, 0, 9], vec![8, 0]].concat();
        let quoted = |kind, packet: Vec<u8>| [icmp(kind), packet].concat();
        for (name, headers) in [
            ("TCP", [ethernet(0x800), v4(6, 0, 0), tcp(12)].concat()),
            ("TCP with all options", [ethernet(0x800), v4(6, 40, 0), tcp(40)].concat()),
            ("UDP", [ethernet(0x800), v4(17, 0, 0x4000), vec![0; UDP]].concat()),
            ("two tags", [tagged, v4(17, 0, 0), vec![0; UDP]].concat()),
            ("the first fragment", [ethernet(0x800), v4(17, 0, 0x2000), vec![0; UDP]].concat()),
            ("a later fragment", [ethernet(0x800), v4(17, 0, 3)].concat()),
            ("an echo", [ethernet(0x800), v4(1, 0, 0), icmp(8)].concat()),
            (
                "an error",
                [ethernet(0x800), v4(1, 0, 0), quoted(3, [v4(17, 0, 0), vec![0; UDP]].concat())]
                    .concat(),
            ),
            (
                "an error about an error",
                [ethernet(0x800), v4(1, 0, 0), quoted(3, [v4(1, 0, 0), icmp(3)].concat())].concat(),
            ),
            ("an unknown protocol", [ethernet(0x800), v4(132, 0, 0)].concat()),
            ("an unknown kind of frame", ethernet(0x88b5)),
            ("TCP over IPv6", [ethernet(0x86dd), v6(6), tcp(12)].concat()),
            (
                "extensions",
                [
                    ethernet(0x86dd),
                    v6(0),
                    [vec![60, 1], vec![0; 14]].concat(),
                    [vec![44, 0], vec![0; 6]].concat(),
                    vec![17, 0, 0, 1, 0, 0, 0, 0],
                    vec![0; UDP],
                ]
                .concat(),
            ),
            (
                "a later fragment of IPv6",
                [ethernet(0x86dd), v6(44), vec![17, 0, 0, 8, 0, 0, 0, 0]].concat(),
            ),
            ("an echo of IPv6", [ethernet(0x86dd), v6(58), icmp(128)].concat()),
            (
                "an error of IPv6",
                [ethernet(0x86dd), v6(58), quoted(1, [v6(6), tcp(0)].concat())].concat(),
            ),
        ] {
            let frame = [&headers[..], PAYLOAD].concat();
            assert_eq!(header_bytes(&frame), headers.len(), "{name}");
            assert!(headers.len() <= MOST_BYTES as usize, "{name}");
        }
        let asks = [ethernet(0x806), vec![1; 28], vec![0; 18]].concat();
        assert_eq!(header_bytes(&asks), 42);
        let solicitation = [ethernet(0x86dd), v6(58), icmp(135), vec![0; 24]].concat();
        assert_eq!(header_bytes(&solicitation), solicitation.len());
    }

    proptest! {
        #[test]
        fn a_cut_frame_has_no_more_than_it_has(
            head in 0usize..4,
            bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let kinds = [0x800u16, 0x86dd, 0x806, 0x8100];
            let frame = [ethernet(kinds[head]), bytes].concat();
            for length in 0..frame.len() {
                prop_assert!(header_bytes(&frame[..length]) <= length);
            }
        }
    }
}
