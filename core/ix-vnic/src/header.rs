//! The fields of a packet that filters match.
use ix_wire::MacAddr;

/// The VLAN number that stands for frames without a tag. Real numbers have twelve bits.
pub const UNTAGGED: u16 = 1 << 12;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_QINQ: u16 = 0x88a8;
const ETHERNET_BYTES: usize = 14;
const TAG_BYTES: usize = 4;
const IPV4_BYTES: usize = 20;
const ARP_BYTES: usize = 28;
/// Every fragment but the first has an offset, and every fragment but the last has the flag "more
/// fragments" (RFC 791).
const FRAGMENT_BITS: u16 = 0x3fff;

/// The fields of one packet: a point in the space of packet headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Ethernet source.
    pub eth_src: MacAddr,
    /// Ethernet destination.
    pub eth_dst: MacAddr,
    /// Number of the outer VLAN tag, or [`UNTAGGED`].
    pub vlan: u16,
    /// EtherType of the payload, behind a VLAN tag if there is one.
    pub ethertype: u16,
    /// Fields of an IPv4 packet.
    pub ip: Option<IpHeader>,
    /// Fields of an ARP packet for IPv4 over Ethernet.
    pub arp: Option<ArpHeader>,
}

/// Fields of an IPv4 packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    /// Source address.
    pub src: u32,
    /// Destination address.
    pub dst: u32,
    /// Protocol number of the payload.
    pub protocol: u8,
    /// Source and destination port of TCP and UDP. A fragment has none, not even the first: the
    /// other fragments have no ports and could not follow it.
    pub ports: Option<(u16, u16)>,
}

/// Fields of an ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArpHeader {
    /// The sender's Ethernet address.
    pub sender_mac: MacAddr,
    /// The sender's IPv4 address; 0 in a probe (RFC 5227).
    pub sender: u32,
    /// The target's IPv4 address.
    pub target: u32,
}

impl Header {
    /// Reads the headers at the front of an Ethernet frame. Returns `None` if the frame is too
    /// short for the headers that it should have, or has a tag within a tag: no filter matches such
    /// a frame.
    pub fn read(frame: &[u8]) -> Option<Header> {
        let mac = |at: usize| frame.get(at..at + 6)?.first_chunk::<6>().copied();
        let (eth_dst, eth_src) = (mac(0)?, mac(6)?);
        let (mut ethertype, mut at, mut vlan) = (be16(frame, 12)?, ETHERNET_BYTES, UNTAGGED);
        if matches!(ethertype, ETHERTYPE_VLAN | ETHERTYPE_QINQ) {
            vlan = be16(frame, at)? & 0x0fff;
            ethertype = be16(frame, at + 2)?;
            at += TAG_BYTES;
        }
        let mut header = Header { eth_src, eth_dst, vlan, ethertype, ip: None, arp: None };
        match ethertype {
            ETHERTYPE_IPV4 => header.ip = Some(IpHeader::read(frame.get(at..)?)?),
            ETHERTYPE_ARP => header.arp = ArpHeader::read(frame.get(at..)?),
            _ => {}
        }
        Some(header)
    }
}

impl IpHeader {
    fn read(packet: &[u8]) -> Option<IpHeader> {
        let fixed = packet.first_chunk::<IPV4_BYTES>()?;
        let header_len = usize::from(fixed[0] & 0x0f) * 4;
        if fixed[0] >> 4 != 4 || header_len < IPV4_BYTES {
            return None;
        }
        let protocol = fixed[9];
        let is_whole = be16(packet, 6)? & FRAGMENT_BITS == 0;
        let ports = match protocol {
            6 | 17 if is_whole => Some((be16(packet, header_len)?, be16(packet, header_len + 2)?)),
            _ => None,
        };
        Some(IpHeader { src: be32(packet, 12)?, dst: be32(packet, 16)?, protocol, ports })
    }
}

impl ArpHeader {
    /// Reads an ARP packet; `None` for other address families.
    fn read(packet: &[u8]) -> Option<ArpHeader> {
        let packet = packet.first_chunk::<ARP_BYTES>()?;
        // Ethernet (1) and IPv4 (0x0800), addresses of 6 and 4 bytes.
        if packet[..6] != [0, 1, 8, 0, 6, 4] {
            return None;
        }
        Some(ArpHeader {
            sender_mac: *packet[8..].first_chunk()?,
            sender: be32(packet, 14)?,
            target: be32(packet, 24)?,
        })
    }
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.first_chunk().map(|b| u16::from_be_bytes(*b))
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.first_chunk().map(|b| u32::from_be_bytes(*b))
}
