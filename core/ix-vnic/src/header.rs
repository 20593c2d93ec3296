//! The fields of a packet that filters match.
use ix_wire::MacAddr;

/// The VLAN number that stands for frames without a tag. Real numbers have twelve bits.
pub const UNTAGGED: u16 = 1 << 12;

pub(crate) const ETHERTYPE_IPV4: u16 = 0x0800;
pub(crate) const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_QINQ: u16 = 0x88a8;
const ETHERNET_BYTES: usize = 14;
const TAG_BYTES: usize = 4;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const ARP_BYTES: usize = 28;
/// Every fragment but the first has an offset, and every fragment but the last has the flag "more
/// fragments" (RFC 791).
const FRAGMENT_BITS: u16 = 0x3fff;
/// The same of a fragment header (RFC 8200 section 4.5).
const FRAGMENT_BITS_V6: u16 = 0xfff9;

/// Extension headers of one packet. No filter matches a packet with more.
pub const EXTENSIONS_MAX: usize = 6;
/// Hop-by-hop options, routing headers, destination options.
pub const EXTENSIONS: [u8; 3] = [0, 43, 60];
/// The fragment header.
pub const FRAGMENT: u8 = 44;
/// ICMP of IPv6.
pub const ICMPV6: u8 = 58;
/// Messages of Neighbour Discovery (RFC 4861): solicitations and advertisements of routers and
/// neighbours, redirects.
pub const ND_TYPES: std::ops::RangeInclusive<u8> = 133..=137;
/// Neighbour Solicitation.
pub const ND_SOLICITATION: u8 = 135;
/// Neighbour Advertisement.
pub const ND_ADVERTISEMENT: u8 = 136;
/// What a host tells routers of its groups: reports of both versions, and Done.
pub const GROUP_REPORTS: [u8; 3] = [131, 132, 143];
const ND_BYTES: usize = 24;
const ND_OPTION_BYTES: usize = 8;

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
    /// Fields of an IPv4 or IPv6 packet, but of no message of Neighbour Discovery.
    pub ip: Option<IpHeader>,
    /// Fields of an ARP packet for IPv4 over Ethernet.
    pub arp: Option<ArpHeader>,
    /// What an IPv6 packet without a tag says of addresses on the link.
    pub nd: Option<NdHeader>,
}

/// Fields of an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    /// Source address as a number.
    pub src: u128,
    /// Destination address as a number.
    pub dst: u128,
    /// Protocol number of the payload: of IPv6, that behind the extension headers.
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

/// What a host says of addresses on an IPv6 link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saying {
    /// It asks whose the address is.
    Solicitation,
    /// It has the address.
    Advertisement,
    /// Groups that it is in.
    Groups,
}

/// Fields of a message about addresses on an IPv6 link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NdHeader {
    /// What it says.
    pub saying: Saying,
    /// Source address; `::` in a check for duplicate addresses (RFC 4862).
    pub src: u128,
    /// Destination address.
    pub dst: u128,
    /// The address that it is about; 0 for groups.
    pub target: u128,
    /// The Ethernet address that it gives; `None`: it has other options.
    pub mac: Option<MacAddr>,
}

impl Header {
    /// Reads the headers at the front of an Ethernet frame. Returns `None` if the frame is too
    /// short for the headers that it should have, has a tag within a tag, or more than
    /// [`EXTENSIONS_MAX`] extension headers: no filter matches such a frame.
    pub fn read(frame: &[u8]) -> Option<Header> {
        let mac = |at: usize| frame.get(at..at + 6)?.first_chunk::<6>().copied();
        let (eth_dst, eth_src) = (mac(0)?, mac(6)?);
        let (mut ethertype, mut at, mut vlan) = (be16(frame, 12)?, ETHERNET_BYTES, UNTAGGED);
        if matches!(ethertype, ETHERTYPE_VLAN | ETHERTYPE_QINQ) {
            vlan = be16(frame, at)? & 0x0fff;
            ethertype = be16(frame, at + 2)?;
            at += TAG_BYTES;
        }
        let (ip, arp, nd) = (None, None, None);
        let mut header = Header { eth_src, eth_dst, vlan, ethertype, ip, arp, nd };
        match ethertype {
            ETHERTYPE_IPV4 => header.ip = Some(IpHeader::read(frame.get(at..)?)?),
            ETHERTYPE_ARP => header.arp = ArpHeader::read(frame.get(at..)?),
            ETHERTYPE_IPV6 => header.read_v6(frame.get(at..)?)?,
            _ => {}
        }
        Some(header)
    }

    fn read_v6(&mut self, packet: &[u8]) -> Option<()> {
        let fixed = packet.first_chunk::<IPV6_BYTES>()?;
        if fixed[0] >> 4 != 6 {
            return None;
        }
        let (src, dst) = (be128(packet, 8)?, be128(packet, 24)?);
        let (mut protocol, mut at, mut extensions) = (fixed[6], IPV6_BYTES, 0);
        let is_whole = loop {
            if protocol != FRAGMENT && !EXTENSIONS.contains(&protocol) {
                break true;
            }
            extensions += 1;
            let extension = packet.get(at..)?.first_chunk::<8>()?;
            if extensions > EXTENSIONS_MAX {
                return None;
            }
            let is_fragment = protocol == FRAGMENT;
            protocol = extension[0];
            if !is_fragment {
                at += 8 * (usize::from(extension[1]) + 1);
                continue;
            }
            if u16::from_be_bytes([extension[2], extension[3]]) & FRAGMENT_BITS_V6 != 0 {
                break false;
            }
            at += 8;
        };
        let mut ports = None;
        if is_whole && matches!(protocol, 6 | 17) {
            ports = Some((be16(packet, at)?, be16(packet, at + 2)?));
        }
        if is_whole && protocol == ICMPV6 {
            let kind = packet.get(at..at + 4)?[0];
            let says = |saying, target, mac| NdHeader { saying, src, dst, target, mac };
            let is_plain = self.vlan == UNTAGGED && extensions == 0;
            if ND_TYPES.contains(&kind) {
                let message = (is_plain && matches!(kind, ND_SOLICITATION | ND_ADVERTISEMENT))
                    .then(|| packet[at..].first_chunk::<ND_BYTES>())
                    .flatten();
                let Some(message) = message else { return Some(()) };
                let saying = match kind {
                    ND_SOLICITATION => Saying::Solicitation,
                    _ => Saying::Advertisement,
                };
                let mac = self.told_mac(packet, be16(packet, 4)?.into());
                self.nd = Some(says(saying, be128(message, 8)?, mac));
                return Some(());
            }
            if self.vlan == UNTAGGED && GROUP_REPORTS.contains(&kind) {
                self.nd = Some(says(Saying::Groups, 0, Some(self.eth_src)));
            }
        }
        self.ip = Some(IpHeader { src, dst, protocol, ports });
        Some(())
    }

    /// The Ethernet address in the only option of a message of Neighbour Discovery; without an
    /// option, the sender's.
    fn told_mac(&self, packet: &[u8], payload_bytes: usize) -> Option<MacAddr> {
        if payload_bytes == ND_BYTES {
            return Some(self.eth_src);
        }
        let option = packet.get(IPV6_BYTES + ND_BYTES..)?.first_chunk::<ND_OPTION_BYTES>()?;
        let is_only = payload_bytes == ND_BYTES + ND_OPTION_BYTES;
        let [kind, length, mac @ ..] = *option;
        (is_only && matches!((kind, length), (1 | 2, 1))).then_some(mac)
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
        let (src, dst) = (be32(packet, 12)?.into(), be32(packet, 16)?.into());
        Some(IpHeader { src, dst, protocol, ports })
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

fn be128(bytes: &[u8], at: usize) -> Option<u128> {
    bytes.get(at..at + 16)?.first_chunk().map(|b| u128::from_be_bytes(*b))
}
