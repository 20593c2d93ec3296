//! IPv6 and its extension headers (RFC 8200).
use crate::{DropReason, IpAddr, be16, head, icmp6, ipv4};

pub(crate) mod fragment;
pub use fragment::{KEPT_BYTES, Kept, kept_headers, make_whole};

/// Bytes of the header without extension headers, the only kind that the dataplane sends.
pub const HEADER_BYTES: usize = 40;
/// The bits of the flow label in the first word (RFC 8200 section 3).
const LABEL_MASK: u32 = 0x000f_ffff;

/// The flow label of a frame with an IPv6 packet; 0 if the frame is too short.
#[inline]
pub fn label_of(frame: &[u8]) -> u32 {
    let first = frame.get(crate::ethernet::HEADER_BYTES..).and_then(|ip| ip.first_chunk());
    first.map_or(0, |first| u32::from_be_bytes(*first) & LABEL_MASK)
}
/// Next Header of ICMPv6.
pub const PROTOCOL_ICMP: u8 = 58;
/// The MTU that every link has at least (RFC 8200 section 5).
pub const MTU_MIN: u16 = 1280;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
/// Next Header of the fragment header.
pub const FRAGMENT: u8 = 44;
const NOTHING: u8 = 59;
const DESTINATION_OPTIONS: u8 = 60;

/// Bytes of the fragment header (section 4.5).
pub const FRAGMENT_BYTES: usize = 8;
/// The M flag of a fragment header: more fragments follow.
const MORE_FRAGMENTS: u16 = 1;
/// The offset of a fragment header, which counts units of eight octets.
const OFFSET_MASK: u16 = !7;

/// Where the Payload Length and the Next Header field of the IPv6 header are.
const PAYLOAD_LENGTH_AT: usize = 4;
pub(crate) const NEXT_HEADER_AT: usize = 6;
/// Where its addresses are: source and destination.
pub(crate) const ADDRESSES_AT: usize = 8;
/// Extension headers have a multiple of eight octets.
const UNIT_BYTES: usize = 8;
/// Most extension headers of a packet. RFC 8504 section 5.3 lets a
/// host have such limits.
const HEADERS_MAX: usize = 6;
/// Most octets of a packet's extension headers.
pub const CHAIN_BYTES_MAX: usize = 200;

/// A received and checked header with its extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Of the header with all extension headers.
    pub header_len: usize,
    /// Headers and payload, bytes.
    pub total_len: usize,
    pub tos: u8,
    pub hop_limit: u8,
    /// What follows the extension headers.
    pub protocol: u8,
    /// There is a fragment header, of a packet that is whole (RFC 6946).
    pub is_atomic_fragment: bool,
    pub src: [u8; 16],
    pub dst: [u8; 16],
}

/// What a Parameter Problem message says (RFC 4443 section 3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    /// 0: a header field, 1: a Next Header, 2: an option.
    pub code: u8,
    /// Octet of the packet at which it is.
    pub pointer: u32,
}

/// A Parameter Problem: a header field is wrong.
const CODE_FIELD: u8 = 0;
/// A Parameter Problem: a Next Header is not known.
const CODE_NEXT_HEADER: u8 = 1;
/// A Parameter Problem: an option is not known.
const CODE_OPTION: u8 = 2;
/// A Parameter Problem: a first fragment does not have all headers (RFC 7112 section 5).
const CODE_INCOMPLETE: u8 = 3;

/// Why a packet is refused, and what its sender is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refused(DropReason, Option<Problem>);

impl From<DropReason> for Refused {
    fn from(reason: DropReason) -> Refused {
        Refused(reason, None)
    }
}

fn refused(reason: DropReason, code: u8, pointer: usize) -> Refused {
    Refused(reason, Some(Problem { code, pointer: pointer as u32 }))
}

impl Header {
    /// Parses the headers at the front of `packet`. `available` is the length of the whole packet,
    /// which is more than `packet` holds if the packet continues in other buffers.
    #[inline(always)]
    pub fn parse(packet: &[u8], available: usize) -> Result<Self, DropReason> {
        // Nearly every packet has no extension header.
        let header = match packet.get(NEXT_HEADER_AT) {
            Some(&(ipv4::PROTOCOL_TCP | ipv4::PROTOCOL_UDP)) => Self::fixed(packet, available)?,
            _ => Self::read(packet, available).map_err(|Refused(reason, _)| reason)?,
        };
        header.check_addresses()?;
        Ok(header)
    }

    /// The header itself, if others may answer to its addresses.
    pub fn without_extensions(packet: &[u8]) -> Option<Self> {
        let header = Self::fixed(packet, packet.len()).ok()?;
        header.check_addresses().ok().map(|()| header)
    }

    #[inline(never)]
    fn read(packet: &[u8], available: usize) -> Result<Self, Refused> {
        let header = Self::fixed(packet, available)?;
        let held = &packet[..packet.len().min(header.total_len)];
        let chain = Chain::walk(held, header.protocol, header.dst[0] == 0xff)?;
        let Chain { end: header_len, next: protocol, is_atomic_fragment, .. } = chain;
        Ok(Self { header_len, protocol, is_atomic_fragment, ..header })
    }

    #[inline(always)]
    fn fixed(packet: &[u8], available: usize) -> Result<Self, DropReason> {
        let fixed = packet.first_chunk::<HEADER_BYTES>().ok_or(DropReason::IpTruncated)?;
        if fixed[0] >> 4 != 6 {
            return Err(DropReason::IpBadVersion);
        }
        let total_len = HEADER_BYTES + usize::from(be16(fixed, 4));
        if total_len > available {
            return Err(DropReason::IpBadTotalLength);
        }
        let [src, dst] = fixed[ADDRESSES_AT..].as_chunks().0 else {
            return Err(DropReason::IpTruncated);
        };
        Ok(Self {
            header_len: HEADER_BYTES,
            total_len,
            tos: fixed[0] << 4 | fixed[1] >> 4,
            hop_limit: fixed[7],
            protocol: fixed[NEXT_HEADER_AT],
            is_atomic_fragment: false,
            src: *src,
            dst: *dst,
        })
    }

    #[inline(always)]
    fn check_addresses(&self) -> Result<(), DropReason> {
        if is_martian(&self.dst) {
            return Err(DropReason::IpMartianDestination);
        }
        let duplicate_check = self.protocol == PROTOCOL_ICMP && self.src == [0; 16];
        if self.src[0] == 0xff || is_martian(&self.src) && !duplicate_check {
            return Err(DropReason::IpMartianSource);
        }
        Ok(())
    }
}

/// What the sender of a packet that [`crate::parse`] has refused is told by a Parameter Problem;
/// `None`: nothing. `packet` begins at the IP header.
pub(crate) fn problem_of(packet: &[u8]) -> Option<Problem> {
    if may_be_error(packet) {
        return None;
    }
    match Header::read(packet, packet.len()) {
        Err(Refused(DropReason::Ip6Fragment, _)) => fragment::problem_of(packet),
        Err(Refused(_, problem)) => problem,
        // RFC 8200 section 4.7: a packet without anything is for nobody.
        // One that is known: what was refused has changed meanwhile, in memory of a hostile peer.
        Ok(Header { protocol: NOTHING | PROTOCOL_ICMP, .. }) => None,
        Ok(Header { protocol: ipv4::PROTOCOL_TCP | ipv4::PROTOCOL_UDP, .. }) => None,
        Ok(header) => {
            let fixed = *packet.get(NEXT_HEADER_AT)?;
            let chain = Chain::walk(&packet[..header.header_len], fixed, header.dst[0] == 0xff);
            let pointer = chain.ok()?.next_at as u32;
            Some(Problem { code: CODE_NEXT_HEADER, pointer })
        }
    }
}

/// Whether a packet is an error of ICMPv6, or may be one: no error is sent about an error (RFC 4443
/// section 2.4 (e)). Steps over headers whatever is in them, because a packet may be refused
/// for what stands before.
fn may_be_error(packet: &[u8]) -> bool {
    let Some(&first) = packet.get(NEXT_HEADER_AT) else { return true };
    let (mut next, mut at) = (first, HEADER_BYTES);
    for _ in 0..packet.len() / UNIT_BYTES {
        match next {
            HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION_OPTIONS => {}
            PROTOCOL_ICMP => {
                return packet.get(at).is_none_or(|kind| *kind < icmp6::INFORMATION_FROM);
            }
            _ => return false,
        }
        let Some(&[following, length]) = packet.get(at..at + 2).and_then(|two| two.first_chunk())
        else {
            return true;
        };
        let units = if next == FRAGMENT { 0 } else { usize::from(length) };
        (next, at) = (following, at + UNIT_BYTES * (1 + units));
    }
    true
}

/// `::`, `::1`, and IPv4 addresses that are mapped or compatible: none may be on a wire, and none
/// may be taken for an address of the other family (RFC 4291 section 2.5, RFC 6890).
pub(crate) fn is_martian(address: &[u8; 16]) -> bool {
    address[..10] == [0; 10]
}

/// The extension headers of a packet.
struct Chain {
    /// Offset of what follows them.
    end: usize,
    /// What follows them, and where that is said.
    next: u8,
    next_at: usize,
    is_atomic_fragment: bool,
}

impl Chain {
    /// The extension headers of a packet whose first one is `next`, before any was read.
    fn begin(next: u8) -> Chain {
        Chain { end: HEADER_BYTES, next, next_at: NEXT_HEADER_AT, is_atomic_fragment: false }
    }

    /// Walks over the extension headers of `packet`, the first of which is `next`. `to_group`: the
    /// packet is for several hosts.
    fn walk(packet: &[u8], next: u8, to_group: bool) -> Result<Chain, Refused> {
        let mut chain = Chain::begin(next);
        chain.pass_all(packet, to_group)?;
        Ok(chain)
    }

    /// Passes the extension headers from `end` on. After an error `end` is where the header is that
    /// was refused.
    fn pass_all(&mut self, packet: &[u8], to_group: bool) -> Result<(), Refused> {
        for number in 0..=HEADERS_MAX {
            if !matches!(self.next, HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION_OPTIONS) {
                return Ok(());
            }
            // Section 4.1: hop-by-hop options come first; anywhere else the header is unknown.
            if self.next == HOP_BY_HOP && self.end != HEADER_BYTES {
                let reason = DropReason::Ip6Extension;
                return Err(refused(reason, CODE_NEXT_HEADER, self.next_at));
            }
            if number == HEADERS_MAX {
                break;
            }
            self.pass(packet, to_group)?;
        }
        Err(DropReason::Ip6Extension.into())
    }

    /// Passes the extension header at `end`.
    fn pass(&mut self, packet: &[u8], to_group: bool) -> Result<(), Refused> {
        let at = self.end;
        let rest = packet.get(at..).unwrap_or(&[]);
        let &[next, length, ..] = rest else { return Err(DropReason::Ip6Extension.into()) };
        // The second octet of a fragment header is reserved.
        let units = if self.next == FRAGMENT { 0 } else { usize::from(length) };
        let len = UNIT_BYTES * (1 + units);
        let header = rest.get(..len).ok_or(DropReason::Ip6Extension)?;
        if at + len - HEADER_BYTES > CHAIN_BYTES_MAX {
            return Err(DropReason::Ip6Extension.into());
        }
        match self.next {
            // RFC 5095: a route that is not at its end is never followed.
            ROUTING if header[3] != 0 => {
                return Err(refused(DropReason::Ip6Routing, CODE_FIELD, at + 2));
            }
            ROUTING => {}
            // The reserved bits do not count.
            FRAGMENT if be16(header, 2) & (OFFSET_MASK | MORE_FRAGMENTS) != 0 => {
                return Err(DropReason::Ip6Fragment.into());
            }
            FRAGMENT => self.is_atomic_fragment = true,
            _ => check_options(header, at, to_group)?,
        }
        (self.next, self.next_at, self.end) = (next, at, at + len);
        Ok(())
    }
}

/// Skips the options of a header at offset `at` of its packet. The upper two bits of an unknown one
/// say what becomes of the packet (RFC 8200 section 4.2).
fn check_options(header: &[u8], at: usize, to_group: bool) -> Result<(), Refused> {
    const PAD1: u8 = 0;
    const PADN: u8 = 1;
    const ROUTER_ALERT: u8 = 5;
    let mut option_at = 2;
    while let [kind, rest @ ..] = header.get(option_at..).unwrap_or(&[]) {
        if *kind == PAD1 {
            option_at += 1;
            continue;
        }
        let len = rest.first().map_or(usize::MAX, |len| usize::from(*len));
        if rest.len() <= len {
            return Err(DropReason::Ip6Extension.into());
        }
        let known = matches!(*kind, PADN | ROUTER_ALERT);
        let told = refused(DropReason::Ip6Option, CODE_OPTION, at + option_at);
        match kind >> 6 {
            _ if known => {}
            0 => {}
            1 => return Err(DropReason::Ip6Option.into()),
            2 => return Err(told),
            _ if to_group => return Err(DropReason::Ip6Option.into()),
            _ => return Err(told),
        }
        option_at += 2 + len;
    }
    Ok(())
}

/// The group that a host with this address listens to for Neighbour Discovery (RFC 4291 section
/// 2.7.1).
pub const fn solicited_node(address: IpAddr) -> IpAddr {
    let [.., a, b, c] = address.0;
    IpAddr([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

/// All hosts of the link.
pub const ALL_NODES: IpAddr = IpAddr([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);

/// The Ethernet address of an IPv6 group (RFC 2464 section 7).
pub const fn group_mac(group: IpAddr) -> crate::MacAddr {
    let [.., a, b, c, d] = group.0;
    [0x33, 0x33, a, b, c, d]
}

/// A header to send, without extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ipv6Emit {
    pub src: IpAddr,
    pub dst: IpAddr,
    pub protocol: u8,
    pub hop_limit: u8,
    /// Traffic class: differentiated services and ECN.
    pub class: u8,
    /// Flow label (RFC 6437): of 20 bits, the others are left out.
    pub label: u32,
    pub payload_len: usize,
}

impl Ipv6Emit {
    /// Writes the header at the front of `packet`; returns its length.
    ///
    /// # Panics
    /// When `packet` is shorter than the header.
    #[inline]
    pub fn emit(&self, packet: &mut [u8]) -> usize {
        debug_assert!(self.payload_len <= usize::from(u16::MAX));
        let header = head::<HEADER_BYTES>(packet);
        let first = 6 << 28 | u32::from(self.class) << 20 | self.label & LABEL_MASK;
        header[..4].copy_from_slice(&first.to_be_bytes());
        header[4..6].copy_from_slice(&(self.payload_len as u16).to_be_bytes());
        header[6] = self.protocol;
        header[7] = self.hop_limit;
        header[8..24].copy_from_slice(&self.src.0);
        header[24..40].copy_from_slice(&self.dst.0);
        HEADER_BYTES
    }
}
