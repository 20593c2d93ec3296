//! Ethernet frames made by hand, after the RFCs and not with our own code.
use super::traffic::message;
use super::{CLIENT, SERVICE};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4};

/// TCP's control bits (RFC 9293 section 3.1).
pub const FIN: u8 = 0x01;
/// Opens a connection.
pub const SYN: u8 = 0x02;
/// Ends one at once.
pub const RST: u8 = 0x04;
/// Pushes data.
pub const PSH: u8 = 0x08;
/// Acknowledges.
pub const ACK: u8 = 0x10;
/// Urgent data.
pub const URG: u8 = 0x20;

/// Protocol numbers of IP.
pub const ICMP: u8 = 1;
/// ICMPv6's.
pub const ICMPV6: u8 = 58;
/// TCP's.
pub const TCP: u8 = 6;
/// UDP's.
pub const UDP: u8 = 17;

/// Bytes of an Ethernet header.
pub const ETHERNET: usize = 14;
/// Where TCP begins in a frame without IP options.
pub const L4: usize = ETHERNET + 20;

/// Ethernet addresses of a frame.
#[derive(Clone, Copy)]
pub struct Macs {
    /// Receiver.
    pub to: [u8; 6],
    /// Sender.
    pub from: [u8; 6],
}

/// A TCP segment in the making.
#[derive(Clone)]
pub struct Segment {
    /// Ethernet addresses.
    pub macs: Macs,
    /// Sender.
    pub from: SocketAddrV4,
    /// Receiver.
    pub to: SocketAddrV4,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// Control bits.
    pub flags: u8,
    /// Options; padded to whole words.
    pub options: Vec<u8>,
    /// Data.
    pub payload: Vec<u8>,
}

impl Segment {
    /// The whole frame.
    pub fn frame(&self) -> Vec<u8> {
        let mut options = self.options.clone();
        options.resize(options.len().next_multiple_of(4), 0);
        let mut tcp = Vec::new();
        tcp.extend(self.from.port().to_be_bytes());
        tcp.extend(self.to.port().to_be_bytes());
        tcp.extend(self.seq.to_be_bytes());
        tcp.extend(self.ack.to_be_bytes());
        tcp.push((((20 + options.len()) / 4) << 4) as u8);
        tcp.push(self.flags);
        tcp.extend(60_000u16.to_be_bytes());
        tcp.extend([0; 4]);
        tcp.extend(options);
        tcp.extend(&self.payload);
        let sum = transport_checksum(*self.from.ip(), *self.to.ip(), TCP, &tcp);
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        ipv4(self.macs, *self.from.ip(), *self.to.ip(), TCP, &tcp)
    }
}

/// A segment from Linux's end to the service, of no connection that there is.
pub fn stranger(macs: Macs) -> Segment {
    Segment {
        macs,
        from: SocketAddrV4::new(CLIENT, 5555),
        to: SERVICE,
        seq: 0x1234_5678,
        ack: 0x9abc_def0,
        flags: ACK | PSH,
        options: Vec::new(),
        payload: message(0, 64),
    }
}

/// A UDP datagram.
pub fn udp(macs: Macs, from: SocketAddrV4, to: SocketAddrV4, payload: &[u8]) -> Vec<u8> {
    let mut udp = Vec::new();
    udp.extend(from.port().to_be_bytes());
    udp.extend(to.port().to_be_bytes());
    udp.extend((8 + payload.len() as u16).to_be_bytes());
    udp.extend([0; 2]);
    udp.extend(payload);
    let sum = transport_checksum(*from.ip(), *to.ip(), UDP, &udp);
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    ipv4(macs, *from.ip(), *to.ip(), UDP, &udp)
}

/// An ICMP echo request.
pub fn ping(macs: Macs, from: Ipv4Addr, to: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
    let mut icmp = vec![8, 0, 0, 0, 0, 1, 0, 1];
    icmp.extend(payload);
    let sum = checksum(&icmp);
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    ipv4(macs, from, to, ICMP, &icmp)
}

/// An IPv4 packet without options.
pub fn ipv4(macs: Macs, from: Ipv4Addr, to: Ipv4Addr, protocol: u8, body: &[u8]) -> Vec<u8> {
    let mut ip = vec![0x45, 0];
    ip.extend((20 + body.len() as u16).to_be_bytes());
    ip.extend([0, 1, 0x40, 0, 64, protocol, 0, 0]);
    ip.extend(from.octets());
    ip.extend(to.octets());
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    ethernet(macs, 0x0800, &[&ip, body].concat())
}

/// An IPv6 packet; `next` says what the body begins with.
pub fn ipv6(macs: Macs, from: Ipv6Addr, to: Ipv6Addr, next: u8, body: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend((body.len() as u16).to_be_bytes());
    packet.extend([next, 255]);
    packet.extend(from.octets());
    packet.extend(to.octets());
    packet.extend(body);
    ethernet(macs, 0x86dd, &packet)
}

/// An ICMPv6 message with its checksum (RFC 4443 section 2.3).
pub fn icmpv6(macs: Macs, from: Ipv6Addr, to: Ipv6Addr, message: &[u8]) -> Vec<u8> {
    let pseudo = [&from.octets()[..], &to.octets(), &(message.len() as u32).to_be_bytes()].concat();
    let summed = [&pseudo[..], &[0, 0, 0, ICMPV6], message].concat();
    let mut message = message.to_vec();
    message[2..4].copy_from_slice(&checksum(&summed).to_be_bytes());
    ipv6(macs, from, to, ICMPV6, &message)
}

/// An ARP packet (RFC 826): 1 asks, 2 answers.
pub fn arp(
    macs: Macs,
    operation: u16,
    sender: ([u8; 6], Ipv4Addr),
    target: ([u8; 6], Ipv4Addr),
) -> Vec<u8> {
    let mut arp = vec![0, 1, 8, 0, 6, 4];
    arp.extend(operation.to_be_bytes());
    for (mac, ip) in [sender, target] {
        arp.extend(mac);
        arp.extend(ip.octets());
    }
    ethernet(macs, 0x0806, &arp)
}

/// An Ethernet frame.
pub fn ethernet(macs: Macs, kind: u16, body: &[u8]) -> Vec<u8> {
    [&macs.to[..], &macs.from, &kind.to_be_bytes(), body].concat()
}

/// Puts the right header checksum into an IPv4 frame that was changed.
pub fn fix_ip_checksum(frame: &mut [u8]) {
    let end = ETHERNET + usize::from(frame[ETHERNET] & 15) * 4;
    frame[ETHERNET + 10..ETHERNET + 12].fill(0);
    let sum = checksum(&frame[ETHERNET..end]);
    frame[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&sum.to_be_bytes());
}

/// Puts the right checksum into a TCP frame, without IP options, that was changed.
pub fn fix_tcp_checksum(frame: &mut [u8]) {
    frame[L4 + 16..L4 + 18].fill(0);
    let sum = transport_checksum(ip_at(frame, 26), ip_at(frame, 30), TCP, &frame[L4..]);
    frame[L4 + 16..L4 + 18].copy_from_slice(&sum.to_be_bytes());
}

/// The IPv4 address at a place of a frame.
pub fn ip_at(frame: &[u8], at: usize) -> Ipv4Addr {
    Ipv4Addr::new(frame[at], frame[at + 1], frame[at + 2], frame[at + 3])
}

fn transport_checksum(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, body: &[u8]) -> u16 {
    let length = (body.len() as u16).to_be_bytes();
    checksum(&[&from.octets()[..], &to.octets(), &[0, protocol], &length, body].concat())
}

/// The Internet checksum (RFC 1071).
pub fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | w.get(1).map_or(0, |&b| b.into()));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// What matters of a received TCP segment.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Ethernet source.
    pub mac: [u8; 6],
    /// Sender.
    pub from: SocketAddrV4,
    /// Receiver.
    pub to: SocketAddrV4,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// Control bits.
    pub flags: u8,
    /// Bytes of data.
    pub len: usize,
}

/// Reads a TCP segment out of a frame, if it is one.
pub fn read_tcp(frame: &[u8]) -> Option<Seen> {
    let is_tcp = frame.len() >= L4 + 20
        && frame[12..14] == [8, 0]
        && frame[ETHERNET] == 0x45
        && frame[ETHERNET + 9] == TCP;
    let half = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let word = |at: usize| u32::from(half(at)) << 16 | u32::from(half(at + 2));
    is_tcp.then(|| Seen {
        mac: std::array::from_fn(|i| frame[6 + i]),
        from: SocketAddrV4::new(ip_at(frame, 26), half(L4)),
        to: SocketAddrV4::new(ip_at(frame, 30), half(L4 + 2)),
        seq: word(L4 + 4),
        ack: word(L4 + 8),
        flags: frame[L4 + 13],
        len: (usize::from(half(16)) - 20).saturating_sub(usize::from(frame[L4 + 12] >> 4) * 4),
    })
}
