//! ARP for Ethernet and IPv4 (RFC 826).
use crate::{BROADCAST_MAC, DropReason, MacAddr, be16, ethernet, head, is_group_mac};

/// Bytes of an ARP packet for Ethernet and IPv4.
pub const PACKET_BYTES: usize = 28;

const HARDWARE_ETHERNET: u16 = 1;
const FIXED: [u8; 6] = {
    let [hardware_high, hardware_low] = HARDWARE_ETHERNET.to_be_bytes();
    let [protocol_high, protocol_low] = ethernet::TYPE_IPV4.to_be_bytes();
    [hardware_high, hardware_low, protocol_high, protocol_low, 6, 4]
};

/// The operation of an ARP packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ArpOperation {
    /// Who has the target address?
    Request,
    /// The sender has the sender address.
    Reply,
}

/// An ARP packet. Addresses are plain IPv4: IPv6 has no ARP.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ArpPacket {
    /// Request or reply.
    pub operation: ArpOperation,
    /// The sender's Ethernet address.
    pub sender_mac: MacAddr,
    /// The sender's IPv4 address; 0.0.0.0 in a probe (RFC 5227 section 1.1).
    pub sender_ip: [u8; 4],
    /// The target's Ethernet address; zero in a request that looks for it.
    pub target_mac: MacAddr,
    /// The target's IPv4 address.
    pub target_ip: [u8; 4],
}

impl ArpPacket {
    /// A packet with all fields zero, which means nothing.
    pub(crate) const NONE: ArpPacket = ArpPacket {
        operation: ArpOperation::Request,
        sender_mac: [0; 6],
        sender_ip: [0; 4],
        target_mac: [0; 6],
        target_ip: [0; 4],
    };

    /// Parses the packet at the front of `bytes`; what follows is Ethernet padding.
    pub fn parse(bytes: &[u8]) -> Result<Self, DropReason> {
        let packet = bytes.first_chunk::<PACKET_BYTES>().ok_or(DropReason::ArpTruncated)?;
        if packet[..6] != FIXED {
            return Err(DropReason::ArpUnsupported);
        }
        let operation = match be16(packet, 6) {
            1 => ArpOperation::Request,
            2 => ArpOperation::Reply,
            _ => return Err(DropReason::ArpBadOperation),
        };
        let mac = |at: usize| -> MacAddr { core::array::from_fn(|i| packet[at + i]) };
        let ip = |at: usize| -> [u8; 4] { core::array::from_fn(|i| packet[at + i]) };
        let parsed = Self {
            operation,
            sender_mac: mac(8),
            sender_ip: ip(14),
            target_mac: mac(18),
            target_ip: ip(24),
        };
        let first = parsed.sender_ip[0];
        let group_or_loopback = first == 127 || first >> 4 == 0xe || parsed.sender_ip == [255; 4];
        if group_or_loopback || is_group_mac(&parsed.sender_mac) || parsed.sender_mac == [0; 6] {
            return Err(DropReason::ArpBadSender);
        }
        Ok(parsed)
    }

    /// The Ethernet destination of the frame: broadcast for a request whose target address is
    /// unknown, else the target.
    pub fn ethernet_destination(&self) -> MacAddr {
        let seeks = self.operation == ArpOperation::Request && self.target_mac == [0; 6];
        if seeks { BROADCAST_MAC } else { self.target_mac }
    }

    /// Writes the packet at the front of `out`; returns its length.
    ///
    /// # Panics
    /// When `out` is shorter than the packet.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let packet = head::<PACKET_BYTES>(out);
        let operation: u16 = match self.operation {
            ArpOperation::Request => 1,
            ArpOperation::Reply => 2,
        };
        packet[..6].copy_from_slice(&FIXED);
        packet[6..8].copy_from_slice(&operation.to_be_bytes());
        packet[8..14].copy_from_slice(&self.sender_mac);
        packet[14..18].copy_from_slice(&self.sender_ip);
        packet[18..24].copy_from_slice(&self.target_mac);
        packet[24..28].copy_from_slice(&self.target_ip);
        PACKET_BYTES
    }

    /// Writes the whole frame; returns its length. It is shorter than the shortest frame on a wire:
    /// devices pad.
    ///
    /// # Panics
    /// When `frame` is shorter than that.
    pub fn emit_frame(&self, frame: &mut [u8]) -> usize {
        let at =
            ethernet::emit(frame, self.ethernet_destination(), self.sender_mac, ethernet::TYPE_ARP);
        at + self.emit(&mut frame[at..])
    }
}
