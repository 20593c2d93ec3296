//! A protocol that no stack knows: it adds numbers.
//!
//! After the header of its carrier (Ethernet or IPv4): the letters `ADD`, one octet that is 1 in a
//! request and 2 in a reply, four octets that identify the request, and numbers of four octets
//! each, big-endian. A request may have any count of them, which the first one states; the reply
//! has one, their sum modulo 2^32.
use std::net::Ipv4Addr;

/// EtherType for local experiments (IEEE 802, first of two).
pub const ETHER_TYPE: u16 = 0x88b5;
/// Protocol number for experiments (RFC 3692, first of two).
pub const IP_PROTOCOL: u8 = 253;

const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
const MAGIC: &[u8; 3] = b"ADD";
const QUESTION: u8 = 1;
const ANSWER: u8 = 2;
/// Longest reply with its headers.
pub const ANSWER_MAX: usize = ETHERNET_BYTES + IPV4_BYTES + 12;

/// What carries the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Carrier {
    /// Ethernet frames of their own type.
    Ether,
    /// IPv4 packets of their own protocol.
    Ip,
}

/// Writes the reply to a frame into `to`, addressed to the sender; `None`: the frame is not a
/// request.
pub fn answer(
    carrier: Carrier,
    own_mac: [u8; 6],
    frame: &[u8],
    to: &mut [u8; ANSWER_MAX],
) -> Option<usize> {
    let headers = match carrier {
        Carrier::Ether => ETHERNET_BYTES,
        Carrier::Ip => ETHERNET_BYTES + 4 * usize::from(frame.get(ETHERNET_BYTES)? & 0x0f),
    };
    let body = frame.get(headers..)?;
    let (magic, rest) = body.split_first_chunk::<3>()?;
    let (kind, rest) = rest.split_first()?;
    let (name, rest) = rest.split_first_chunk::<4>()?;
    let (count, numbers) = rest.split_first_chunk::<4>()?;
    if magic != MAGIC || *kind != QUESTION {
        return None;
    }
    // After the numbers a short frame is padded.
    let count = u32::from_be_bytes(*count) as usize;
    let numbers = numbers.get(..count.checked_mul(4)?)?;
    let words =
        numbers.chunks_exact(4).map(|word| word.iter().fold(0, |n, b| n << 8 | u32::from(*b)));
    let sum = words.fold(0u32, u32::wrapping_add);

    to[..6].copy_from_slice(&frame[6..12]);
    to[6..12].copy_from_slice(&own_mac);
    to[12..14].copy_from_slice(&frame[12..14]);
    let at = match carrier {
        Carrier::Ether => ETHERNET_BYTES,
        Carrier::Ip => {
            let header = to[ETHERNET_BYTES..].first_chunk_mut::<IPV4_BYTES>()?;
            let address = |at: usize| frame[at..].first_chunk::<4>().map(|a| Ipv4Addr::from(*a));
            *header = ipv4_header(address(30)?, address(26)?, 12);
            ETHERNET_BYTES + IPV4_BYTES
        }
    };
    to[at..at + 3].copy_from_slice(MAGIC);
    to[at + 3] = ANSWER;
    to[at + 4..at + 8].copy_from_slice(name);
    to[at + 8..at + 12].copy_from_slice(&sum.to_be_bytes());
    Some(at + 12)
}

/// The header of a packet that is not fragmented (RFC 791).
fn ipv4_header(from: Ipv4Addr, to: Ipv4Addr, body_bytes: u16) -> [u8; IPV4_BYTES] {
    let mut header = [0; IPV4_BYTES];
    header[0] = 0x45;
    header[2..4].copy_from_slice(&(IPV4_BYTES as u16 + body_bytes).to_be_bytes());
    header[6] = 0x40;
    header[8] = 64;
    header[9] = IP_PROTOCOL;
    header[12..16].copy_from_slice(&from.octets());
    header[16..].copy_from_slice(&to.octets());
    let words = header.chunks_exact(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    header[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const THEIRS: [u8; 6] = [2, 0, 0, 0, 0, 2];

    fn question(numbers: &[u32]) -> Vec<u8> {
        let mut body = b"ADD\x01name".to_vec();
        body.extend((numbers.len() as u32).to_be_bytes());
        numbers.iter().for_each(|number| body.extend(number.to_be_bytes()));
        body
    }

    #[test]
    fn sums_over_ethernet_and_nothing_else_is_answered() {
        let header = [&OURS[..], &THEIRS, &ETHER_TYPE.to_be_bytes()].concat();
        let frame = [&header[..], &question(&[1, 2, u32::MAX]), &[0; 20]].concat();
        let mut to = [0; ANSWER_MAX];
        let len = answer(Carrier::Ether, OURS, &frame, &mut to).expect("a question");
        let back = [&THEIRS[..], &OURS, &ETHER_TYPE.to_be_bytes()].concat();
        assert_eq!(to[..len], [&back[..], b"ADD\x02name\0\0\0\x02"].concat());
        for wrong in [14, 17, 20, 25, 30] {
            assert!(answer(Carrier::Ether, OURS, &frame[..wrong], &mut to).is_none(), "{wrong}");
        }
        let huge = [&header[..], b"ADD\x01name\xff\xff\xff\xff", &[0; 20]].concat();
        assert!(answer(Carrier::Ether, OURS, &huge, &mut to).is_none());
        let answered = [&header[..], b"ADD\x02name\0\0\0\0"].concat();
        assert!(answer(Carrier::Ether, OURS, &answered, &mut to).is_none());
    }

    #[test]
    fn headers_of_ip_are_right() {
        // The example of RFC 1071's authors is of no use here; a header whose sum is known by hand
        // is.
        let header = ipv4_header(Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(10, 0, 0, 1), 12);
        let words = header.chunks_exact(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1]));
        let sum: u32 = words.sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "all with the checksum: minus zero");
        let mut packet = [&OURS[..], &THEIRS, &[8, 0]].concat();
        // With an option, so that the header is longer.
        packet.extend([0x46, 0, 0, 48, 0, 0, 0x40, 0, 64, IP_PROTOCOL, 0, 0]);
        packet.extend([10, 0, 0, 1, 10, 0, 0, 2, 1, 1, 1, 0]);
        packet.extend(question(&[40, 2]));
        let mut to = [0; ANSWER_MAX];
        let len = answer(Carrier::Ip, OURS, &packet, &mut to).expect("a question");
        assert_eq!((len, &to[26..34]), (46, &[10, 0, 0, 2, 10, 0, 0, 1][..]));
        assert_eq!(&to[34..46], b"ADD\x02name\0\0\0\x2a");
    }
}
