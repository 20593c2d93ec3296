//! What a received frame holds, once it is parsed.
use crate::tcp::TcpHeader;
use crate::{ArpPacket, FlowTuple, IpAddr, MacAddr, NdPacket, icmp};
use core::ops::Range;

/// How checksums of TCP and UDP are verified. Those of IP headers and ICMP always are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ChecksumMode {
    /// The checksum must be right.
    #[default]
    Verify,
    /// The checksum must be right, or be exactly the folded sum of the pseudo-header. Linux leaves
    /// this sum in the field if it expects a device to finish the checksum; between us (veth,
    /// virtio, TAP) no device does. Such packets never crossed a wire.
    AcceptPartial,
    /// The device has verified it.
    Skip,
}

/// What [`crate::parse`] verifies beyond the formats.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RxChecks {
    /// Checksums of TCP and UDP.
    pub transport: ChecksumMode,
}

/// The Ethernet and IP part of a received packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpMeta {
    /// IP source, a valid unicast address.
    pub src: IpAddr,
    /// IP destination. The caller checks whether it is the dataplane's.
    pub dst: IpAddr,
    /// Hop limit. A packet with 0 is accepted too (RFC 1122 section 3.2.1.7).
    pub ttl: u8,
    /// Type of service, or traffic class: differentiated services (RFC 2474) in the upper six bits,
    /// ECN in the lower two.
    pub tos: u8,
    /// The DF flag; of IPv6 always.
    pub dont_fragment: bool,
    /// Length of the IP header, with options or extension headers; it begins at
    /// [`crate::ethernet::HEADER_BYTES`].
    pub header_len: u8,
    /// Ethernet source.
    pub eth_src: MacAddr,
    /// Ethernet destination; a group address when the packet came as broadcast or multicast.
    pub eth_dst: MacAddr,
}

impl IpMeta {
    /// The ECN bits: 0 not capable, 1 ECT(1), 2 ECT(0), 3 congestion experienced.
    #[inline]
    pub const fn ecn(&self) -> u8 {
        self.tos & 3
    }
}

/// Where a packet's payload is within its frame. Ethernet padding is not counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Payload {
    /// Index of the first byte in the frame.
    pub start: u16,
    /// Bytes in this buffer.
    pub len: u16,
    /// Bytes that follow in other buffers; 0 unless [`crate::parse_first`] was given a part of a
    /// frame.
    pub more: u16,
}

impl Payload {
    /// The payload's range of the frame.
    #[inline]
    pub fn range(self) -> Range<usize> {
        usize::from(self.start)..usize::from(self.start) + usize::from(self.len)
    }

    /// The payload. `frame` is the frame that was parsed; empty if `frame` is too short.
    #[inline]
    pub fn of(self, frame: &[u8]) -> &[u8] {
        frame.get(self.range()).unwrap_or(&[])
    }
}

/// A TCP segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpPacket {
    /// Ethernet and IP part.
    pub ip: IpMeta,
    /// The TCP header.
    pub header: TcpHeader,
    /// The data.
    pub payload: Payload,
    /// Accepted by [`ChecksumMode::AcceptPartial`]: the data is not verified.
    pub partial: bool,
}

impl TcpPacket {
    /// The flow that the segment belongs to.
    #[inline]
    pub fn tuple(&self) -> FlowTuple {
        FlowTuple {
            local: self.ip.dst,
            remote: self.ip.src,
            local_port: self.header.dst_port,
            remote_port: self.header.src_port,
        }
    }
}

/// A UDP datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdpPacket {
    /// Ethernet and IP part.
    pub ip: IpMeta,
    /// The sender's port; 0 if it expects no reply.
    pub src_port: u16,
    /// The receiver's port.
    pub dst_port: u16,
    /// The data.
    pub payload: Payload,
    /// Accepted by [`ChecksumMode::AcceptPartial`]: the data is not verified.
    pub partial: bool,
}

impl UdpPacket {
    /// The flow that the datagram belongs to.
    #[inline]
    pub fn tuple(&self) -> FlowTuple {
        FlowTuple {
            local: self.ip.dst,
            remote: self.ip.src,
            local_port: self.dst_port,
            remote_port: self.src_port,
        }
    }
}

/// An ICMP message, of ICMPv6 if its addresses are IPv6.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IcmpPacket {
    /// Ethernet and IP part.
    pub ip: IpMeta,
    /// Type, code and second word.
    pub header: icmp::IcmpHeader,
    /// What follows the header: an echo's data, or the quoted packet of an error.
    pub payload: Payload,
}

/// What a frame holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parsed {
    /// A TCP segment.
    Tcp(TcpPacket),
    /// A UDP datagram.
    Udp(UdpPacket),
    /// An ICMP message.
    Icmp(IcmpPacket),
    /// An ARP packet.
    Arp(ArpPacket),
    /// A message of Neighbour Discovery.
    Nd(NdPacket),
}

impl Parsed {
    /// A value without meaning, to be overwritten by [`crate::parse_into`].
    pub const NONE: Parsed = Parsed::Arp(ArpPacket::NONE);
}
