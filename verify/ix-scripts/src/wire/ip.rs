//! Headers of both versions of IP: packets built and cut into fragments, headers read.
use super::{Way, be16, be32, checksum};
use crate::script::Cut;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Octets of an IPv4 header without options, and of an IPv6 header.
pub(super) const V4_BYTES: usize = 20;
pub(super) const V6_BYTES: usize = 40;
/// Number of the fragment header (RFC 8200 section 4.5).
const FRAGMENT: u8 = 44;
/// Identification of all fragments that scripts have.
const FRAGMENT_ID: u32 = 0x1d;

/// What a script says of an IP header.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fields<'a> {
    /// Type of service, or traffic class.
    pub tos: u8,
    /// Hop limit.
    pub ttl: u8,
    /// Flow label; IPv4 has none.
    pub label: u32,
    /// Extension headers: numbers, and what is behind their second octet. IPv4 has none.
    pub headers: &'a [(u8, Vec<u8>)],
}

/// What a checksum covers beside a transport's octets (RFC 9293 section 3.1, RFC 8200 section 8.1).
pub(super) fn pseudo_header(way: Way, protocol: u8, len: usize) -> Vec<u8> {
    let mut pseudo = addresses(way);
    pseudo.extend((len as u32).to_be_bytes());
    pseudo.extend([0, 0, 0, protocol]);
    pseudo
}

/// Source and destination as they stand in a header.
fn addresses(way: Way) -> Vec<u8> {
    match (way.from, way.to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => [from.octets(), to.octets()].concat(),
        (from, to) => [v6(from).octets(), v6(to).octets()].concat(),
    }
}

fn v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// A packet of the family of `way`: IPv4 with DF, IPv6 with its extension headers.
pub fn packet(way: Way, protocol: u8, fields: Fields, payload: &[u8]) -> Vec<u8> {
    let Fields { tos, ttl, label, headers } = fields;
    if way.from.is_ipv4() {
        let mut packet = vec![0x45, tos];
        packet.extend(((V4_BYTES + payload.len()) as u16).to_be_bytes());
        packet.extend([0, 0, 0x40, 0, ttl, protocol, 0, 0]);
        packet.extend(addresses(way));
        let check = checksum(&[&packet]);
        packet[10..12].copy_from_slice(&check.to_be_bytes());
        packet.extend_from_slice(payload);
        return packet;
    }
    // From the last one: each names the header behind it.
    let (mut next, mut chain) = (protocol, Vec::new());
    for (number, inside) in headers.iter().rev() {
        let mut header = vec![next, 0];
        header.extend_from_slice(inside);
        header.resize(header.len().next_multiple_of(8), 0);
        // The second octet of a fragment header is no length.
        header[1] = if *number == FRAGMENT { 0 } else { (header.len() / 8 - 1) as u8 };
        chain.splice(0..0, header);
        next = *number;
    }
    let first = 6 << 28 | u32::from(tos) << 20 | label & 0xf_ffff;
    let mut packet = first.to_be_bytes().to_vec();
    packet.extend(((chain.len() + payload.len()) as u16).to_be_bytes());
    packet.extend([next, ttl]);
    packet.extend(addresses(way));
    packet.extend(chain);
    packet.extend_from_slice(payload);
    packet
}

/// A packet in fragments, as a script has it. IPv6: extension headers come into the fragments with
/// the payload, as they do when the sender puts them behind the fragment header.
pub fn fragments(packet: &[u8], cut: Cut) -> Vec<Vec<u8>> {
    let of_v6 = packet[0] >> 4 == 6;
    let (header, payload) = packet.split_at(if of_v6 { V6_BYTES } else { V4_BYTES });
    let size = usize::from(cut.octets);
    let piece = |from: usize, to: usize| {
        let more = to < payload.len();
        let mut fragment = header.to_vec();
        if of_v6 {
            let field = from as u16 | u16::from(more);
            fragment.extend([header[6], 0]);
            fragment.extend(field.to_be_bytes());
            fragment.extend(FRAGMENT_ID.to_be_bytes());
            fragment[6] = FRAGMENT;
        }
        fragment.extend(&payload[from..to]);
        if of_v6 {
            let len = (fragment.len() - V6_BYTES) as u16;
            fragment[4..6].copy_from_slice(&len.to_be_bytes());
            return fragment;
        }
        let len = fragment.len() as u16;
        let field = u16::from(more) << 13 | (from / 8) as u16;
        fragment[2..4].copy_from_slice(&len.to_be_bytes());
        fragment[6..8].copy_from_slice(&field.to_be_bytes());
        fragment[10..12].fill(0);
        let sum = checksum(&[&fragment[..V4_BYTES]]);
        fragment[10..12].copy_from_slice(&sum.to_be_bytes());
        fragment
    };
    let starts: Vec<usize> = (0..payload.len()).step_by(size).collect();
    let end = |from: usize| (from + size).min(payload.len());
    let number = |n: usize| usize::from(cut.without) != n + 1;
    let mut all: Vec<Vec<u8>> = (starts.iter().enumerate().filter(|(n, _)| number(*n)))
        .map(|(_, from)| piece(*from, end(*from)))
        .collect();
    if cut.reversed {
        all.reverse();
    }
    if let Some(from) = starts.get(usize::from(cut.overlapping).wrapping_sub(1)) {
        let again = piece(from.saturating_sub(8), end(*from));
        all.insert(all.len() - 1, again);
    }
    all
}

/// A header that was read.
pub(super) struct Header<'a> {
    pub from: IpAddr,
    pub to: IpAddr,
    pub protocol: u8,
    pub tos: u8,
    pub ttl: u8,
    pub label: Option<u32>,
    /// What it carries.
    pub payload: &'a [u8],
}

/// Reads a header as a careful receiver would.
pub(super) fn read(packet: &[u8]) -> Result<Header<'_>, String> {
    match packet.first().map(|first| first >> 4) {
        Some(4) => read_v4(packet),
        Some(6) => read_v6(packet),
        _ => Err(format!("no version of IP in {} bytes", packet.len())),
    }
}

fn read_v4(packet: &[u8]) -> Result<Header<'_>, String> {
    if packet.len() < V4_BYTES || packet[0] != 0x45 {
        return Err(format!("no plain IPv4 header in {} bytes", packet.len()));
    }
    let total = usize::from(be16(packet, 2));
    if total < V4_BYTES || total > packet.len() {
        return Err(format!("total length {total} of {} bytes", packet.len()));
    }
    if checksum(&[&packet[..V4_BYTES]]) != 0 {
        return Err("the IP header's checksum is wrong".into());
    }
    let address = |at: usize| Ipv4Addr::from(be32(packet, at)).into();
    let (protocol, tos, ttl) = (packet[9], packet[1], packet[8]);
    let payload = &packet[V4_BYTES..total];
    Ok(Header { from: address(12), to: address(16), protocol, tos, ttl, label: None, payload })
}

/// No extension headers: the stack sends none but in fragments, which no script expects (RFC 8021:
/// no atomic ones either).
fn read_v6(packet: &[u8]) -> Result<Header<'_>, String> {
    let Some((header, rest)) = packet.split_first_chunk::<V6_BYTES>() else {
        return Err(format!("no IPv6 header in {} bytes", packet.len()));
    };
    let len = usize::from(be16(header, 4));
    let payload = rest.get(..len).ok_or(format!("payload length {len} of {}", rest.len()))?;
    let address = |at: usize| {
        let octets: [u8; 16] = std::array::from_fn(|n| header[at + n]);
        Ipv6Addr::from(octets).into()
    };
    let first = be32(header, 0);
    let (protocol, tos, ttl) = (header[6], (first >> 20) as u8, header[7]);
    let label = Some(first & 0xf_ffff);
    Ok(Header { from: address(8), to: address(24), protocol, tos, ttl, label, payload })
}

/// Whether an IPv6 packet is about the link, as ARP is for IPv4: Neighbour Discovery (RFC 4861
/// section 4) or a report of groups (RFC 3810 section 5.2).
pub fn is_of_the_link(packet: &[u8]) -> bool {
    match packet.get(6) {
        Some(&super::ICMPV6) => matches!(packet.get(V6_BYTES), Some(133..=137)),
        // Reports carry Router Alert in a hop-by-hop header of eight octets.
        Some(0) => {
            packet.get(V6_BYTES) == Some(&super::ICMPV6)
                && matches!(packet.get(V6_BYTES + 8), Some(131 | 132 | 143))
        }
        _ => false,
    }
}
