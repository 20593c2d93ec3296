//! Packets as bytes, written and read without the stack's own code: a mistake there must not hide
//! itself here.
mod ip;

use crate::script::{Segment, TcpOption};
use ip::pseudo_header;
pub use ip::{Fields, fragments, is_of_the_link, packet};
use std::net::IpAddr;

/// Protocol numbers.
pub const ICMP: u8 = 1;
/// ICMP for IPv6.
pub const ICMPV6: u8 = 58;
/// TCP.
pub const TCP: u8 = 6;
/// UDP.
pub const UDP: u8 = 17;

/// Where a packet comes from and where it goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// Source address.
    pub from: IpAddr,
    /// Destination address.
    pub to: IpAddr,
    /// Source port.
    pub from_port: u16,
    /// Destination port.
    pub to_port: u16,
}

impl Way {
    /// The protocol of errors of its family.
    pub fn icmp(self) -> u8 {
        if self.from.is_ipv4() { ICMP } else { ICMPV6 }
    }

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

/// An ICMP error: type, code, the second word (MTU or place of a fault), and what it quotes. The
/// checksum of ICMPv6 covers addresses (RFC 4443 section 2.3).
pub fn icmp_error(way: Way, kind: (u8, u8), word: u32, quoted: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind.0, kind.1, 0, 0];
    bytes.extend(word.to_be_bytes());
    bytes.extend_from_slice(quoted);
    let check = checksum(&[&icmp_pseudo_header(way, bytes.len()), &bytes]);
    bytes[2..4].copy_from_slice(&check.to_be_bytes());
    bytes
}

fn icmp_pseudo_header(way: Way, len: usize) -> Vec<u8> {
    if way.from.is_ipv4() { Vec::new() } else { pseudo_header(way, ICMPV6, len) }
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
    /// Flow label of IPv6.
    pub label: Option<u32>,
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
    /// ICMP of either family: type, code, second word.
    Icmp(u8, u8, u32),
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Reads an IP packet as a careful receiver would.
pub fn read(packet: &[u8]) -> Result<Read, String> {
    let ip::Header { from, to, protocol, tos, ttl, label, payload: bytes } = ip::read(packet)?;
    let mut way = Way { from, to, from_port: 0, to_port: 0 };
    let body = match protocol {
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
        icmp if icmp == way.icmp() && bytes.len() >= 8 => {
            if checksum(&[&icmp_pseudo_header(way, bytes.len()), bytes]) != 0 {
                return Err("the ICMP checksum is wrong".into());
            }
            ReadBody::Icmp(bytes[0], bytes[1], be32(bytes, 4))
        }
        other => return Err(format!("a packet of protocol {other}")),
    };
    if matches!(protocol, TCP | UDP) {
        (way.from_port, way.to_port) = (be16(bytes, 0), be16(bytes, 2));
    }
    let (dscp, ecn) = (tos >> 2, tos & 3);
    Ok(Read { way, dscp, ecn, ttl, label, body })
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
