//! Packets as bytes, written and read without the stack's own code: a mistake there must not hide
//! itself here.
use crate::script::{Cut, Segment, TcpOption};
use std::net::Ipv4Addr;

/// Protocol numbers.
pub const ICMP: u8 = 1;
/// TCP.
pub const TCP: u8 = 6;
/// UDP.
pub const UDP: u8 = 17;

/// Where a packet comes from and where it goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// Source address.
    pub from: Ipv4Addr,
    /// Destination address.
    pub to: Ipv4Addr,
    /// Source port.
    pub from_port: u16,
    /// Destination port.
    pub to_port: u16,
}

impl Way {
    /// The way back.
    pub fn back(self) -> Way {
        Way { from: self.to, to: self.from, from_port: self.to_port, to_port: self.from_port }
    }
}

/// The internet checksum of `parts`, each of even length but the last.
pub fn checksum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0u32;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        }
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn pseudo_header(way: Way, protocol: u8, len: usize) -> [u8; 12] {
    let mut pseudo = [0; 12];
    pseudo[..4].copy_from_slice(&way.from.octets());
    pseudo[4..8].copy_from_slice(&way.to.octets());
    pseudo[9] = protocol;
    pseudo[10..].copy_from_slice(&(len as u16).to_be_bytes());
    pseudo
}

/// An IPv4 packet in fragments, as a script has it.
pub fn fragments(packet: &[u8], cut: Cut) -> Vec<Vec<u8>> {
    let (header, payload) = packet.split_at(20);
    let size = usize::from(cut.octets);
    let piece = |from: usize, to: usize| {
        let mut fragment = header.to_vec();
        fragment.extend(&payload[from..to]);
        let len = fragment.len() as u16;
        let more = if to < payload.len() { 0x2000 } else { 0 };
        fragment[2..4].copy_from_slice(&len.to_be_bytes());
        fragment[6..8].copy_from_slice(&(more | (from / 8) as u16).to_be_bytes());
        fragment[10..12].fill(0);
        let sum = checksum(&[&fragment[..20]]);
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

/// An IPv4 packet with DF.
pub fn ipv4(way: Way, protocol: u8, tos: u8, ttl: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, tos];
    packet.extend(((20 + payload.len()) as u16).to_be_bytes());
    packet.extend([0, 0, 0x40, 0, ttl, protocol, 0, 0]);
    packet.extend(way.from.octets());
    packet.extend(way.to.octets());
    let check = checksum(&[&packet]);
    packet[10..12].copy_from_slice(&check.to_be_bytes());
    packet.extend_from_slice(payload);
    packet
}

/// The bytes of options, padded to four.
pub fn option_bytes(options: &[TcpOption]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for option in options {
        match option {
            TcpOption::End => bytes.push(0),
            TcpOption::Nop => bytes.push(1),
            TcpOption::Mss(mss) => {
                bytes.extend([2, 4]);
                bytes.extend(mss.to_be_bytes());
            }
            TcpOption::WindowScale(shift) => bytes.extend([3, 3, *shift]),
            TcpOption::SackPermitted => bytes.extend([4, 2]),
            TcpOption::Sack(blocks) => {
                bytes.extend([5, (2 + 8 * blocks.len()) as u8]);
                for (left, right) in blocks {
                    bytes.extend(left.to_be_bytes());
                    bytes.extend(right.to_be_bytes());
                }
            }
            TcpOption::Timestamp(value, echo) => {
                bytes.extend([8, 10]);
                bytes.extend(value.to_be_bytes());
                bytes.extend(echo.to_be_bytes());
            }
            TcpOption::Other(kind, data) => {
                bytes.extend([*kind, (2 + data.len()) as u8]);
                bytes.extend_from_slice(data);
            }
        }
    }
    while bytes.len() % 4 != 0 {
        bytes.push(0);
    }
    bytes
}

/// A TCP segment with its checksum; `segment` in live sequence numbers.
pub fn tcp(way: Way, segment: &Segment, payload: &[u8]) -> Vec<u8> {
    let options = option_bytes(segment.options.as_deref().unwrap_or(&[]));
    let mut bytes = Vec::new();
    bytes.extend(way.from_port.to_be_bytes());
    bytes.extend(way.to_port.to_be_bytes());
    bytes.extend(segment.seq.to_be_bytes());
    bytes.extend(segment.ack.unwrap_or(0).to_be_bytes());
    bytes.push((((20 + options.len()) / 4) << 4) as u8 | (segment.flags >> 8) as u8);
    bytes.push(segment.flags as u8);
    bytes.extend(segment.window.unwrap_or(0).to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(segment.urgent.unwrap_or(0).to_be_bytes());
    bytes.extend(options);
    bytes.extend_from_slice(payload);
    let check = checksum(&[&pseudo_header(way, TCP, bytes.len()), &bytes]);
    bytes[16..18].copy_from_slice(&check.to_be_bytes());
    bytes
}

/// A UDP datagram with its checksum.
pub fn udp(way: Way, payload: &[u8]) -> Vec<u8> {
    let len = 8 + payload.len();
    let mut bytes = Vec::new();
    bytes.extend(way.from_port.to_be_bytes());
    bytes.extend(way.to_port.to_be_bytes());
    bytes.extend((len as u16).to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend_from_slice(payload);
    let check = checksum(&[&pseudo_header(way, UDP, len), &bytes]);
    let check = if check == 0 { 0xffff } else { check };
    bytes[6..8].copy_from_slice(&check.to_be_bytes());
    bytes
}

/// An ICMP error: type, code, the second word's lower half (the MTU), and what it quotes.
pub fn icmp_error(kind: (u8, u8), mtu: u16, quoted: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind.0, kind.1, 0, 0, 0, 0];
    bytes.extend(mtu.to_be_bytes());
    bytes.extend_from_slice(quoted);
    let check = checksum(&[&bytes]);
    bytes[2..4].copy_from_slice(&check.to_be_bytes());
    bytes
}

/// A packet that was read, sequence numbers live.
#[derive(Clone, Debug)]
pub struct Read {
    /// Its way; no ports for ICMP.
    pub way: Way,
    /// ECN field.
    pub ecn: u8,
    /// Differentiated services code point.
    pub dscp: u8,
    /// Hop limit.
    pub ttl: u8,
    /// Its protocol's part.
    pub body: ReadBody,
}

/// The transport's part of a packet.
#[derive(Clone, Debug)]
pub enum ReadBody {
    /// TCP, with payload.
    Tcp(Segment, Vec<u8>),
    /// UDP, with payload.
    Udp(Vec<u8>),
    /// ICMP: type and code.
    Icmp(u8, u8),
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Reads an IPv4 packet as a careful receiver would.
pub fn read(packet: &[u8]) -> Result<Read, String> {
    if packet.len() < 20 || packet[0] != 0x45 {
        return Err(format!("no plain IPv4 header in {} bytes", packet.len()));
    }
    let total = usize::from(be16(packet, 2));
    if total < 20 || total > packet.len() {
        return Err(format!("total length {total} of {} bytes", packet.len()));
    }
    if checksum(&[&packet[..20]]) != 0 {
        return Err("the IP header's checksum is wrong".into());
    }
    let address = |at: usize| Ipv4Addr::from(be32(packet, at));
    let (from, to) = (address(12), address(16));
    let bytes = &packet[20..total];
    let mut way = Way { from, to, from_port: 0, to_port: 0 };
    let body = match packet[9] {
        TCP => {
            if bytes.len() < 20 || checksum(&[&pseudo_header(way, TCP, bytes.len()), bytes]) != 0 {
                return Err("the TCP checksum is wrong".into());
            }
            read_tcp(bytes)?
        }
        UDP if bytes.len() >= 8 => {
            let sum = checksum(&[&pseudo_header(way, UDP, bytes.len()), bytes]);
            if sum != 0 || usize::from(be16(bytes, 4)) != bytes.len() {
                return Err("the UDP checksum or length is wrong".into());
            }
            ReadBody::Udp(bytes[8..].to_vec())
        }
        ICMP if bytes.len() >= 8 => {
            if checksum(&[bytes]) != 0 {
                return Err("the ICMP checksum is wrong".into());
            }
            ReadBody::Icmp(bytes[0], bytes[1])
        }
        other => return Err(format!("a packet of protocol {other}")),
    };
    if packet[9] != ICMP {
        (way.from_port, way.to_port) = (be16(bytes, 0), be16(bytes, 2));
    }
    let (dscp, ecn, ttl) = (packet[1] >> 2, packet[1] & 3, packet[8]);
    Ok(Read { way, dscp, ecn, ttl, body })
}

fn read_tcp(bytes: &[u8]) -> Result<ReadBody, String> {
    let header = usize::from(bytes[12] >> 4) * 4;
    if header < 20 || header > bytes.len() {
        return Err(format!("a data offset of {header} bytes"));
    }
    let flags = u16::from(bytes[12] & 1) << 8 | u16::from(bytes[13]);
    let payload = bytes[header..].to_vec();
    let segment = Segment {
        flags,
        seq: be32(bytes, 4),
        len: payload.len() as u32,
        ack: (flags & 16 != 0).then(|| be32(bytes, 8)),
        window: Some(be16(bytes, 14)),
        urgent: Some(be16(bytes, 18)).filter(|urgent| *urgent != 0),
        options: Some(read_options(&bytes[20..header])?),
    };
    Ok(ReadBody::Tcp(segment, payload))
}

fn read_options(mut bytes: &[u8]) -> Result<Vec<TcpOption>, String> {
    let mut options = Vec::new();
    while let Some(&kind) = bytes.first() {
        if kind <= 1 {
            options.push(if kind == 0 { TcpOption::End } else { TcpOption::Nop });
            bytes = &bytes[1..];
            continue;
        }
        let len = bytes.get(1).map_or(0, |len| usize::from(*len));
        if len < 2 || len > bytes.len() {
            return Err(format!("option {kind} of length {len}"));
        }
        let data = &bytes[2..len];
        options.push(match (kind, data.len()) {
            (2, 2) => TcpOption::Mss(be16(data, 0)),
            (3, 1) => TcpOption::WindowScale(data[0]),
            (4, 0) => TcpOption::SackPermitted,
            (5, n) if n % 8 == 0 => {
                TcpOption::Sack(data.chunks(8).map(|b| (be32(b, 0), be32(b, 4))).collect())
            }
            (8, 8) => TcpOption::Timestamp(be32(data, 0), be32(data, 4)),
            _ => TcpOption::Other(kind, data.to_vec()),
        });
        bytes = &bytes[len..];
    }
    Ok(options)
}
