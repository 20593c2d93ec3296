//! IPv4 (RFC 791).
use crate::checksum::fold_16;
use crate::{Checksum, DropReason, IpAddr, be16, be32, ethernet, head, put_words};

/// Bytes of a header without options, the only kind that the dataplane sends.
pub const HEADER_BYTES: usize = 20;
/// Protocol number of ICMP.
pub const PROTOCOL_ICMP: u8 = 1;
/// Protocol number of TCP.
pub const PROTOCOL_TCP: u8 = 6;
/// Protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;
/// The hop limit that the dataplane sends with (RFC 1700).
pub const DEFAULT_TTL: u8 = 64;

pub(crate) const FLAG_DONT_FRAGMENT: u16 = 0x4000;
pub(crate) const FLAG_MORE_FRAGMENTS: u16 = 0x2000;
const OFFSET_MASK: u16 = 0x1fff;

/// The Ethernet address of an IPv4 group (RFC 1112 section 6.4).
pub const fn group_mac(group: IpAddr) -> crate::MacAddr {
    let [.., b, c, d] = group.0;
    [1, 0, 0x5e, b & 0x7f, c, d]
}

/// A received and checked header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub header_len: usize,
    /// Header and payload, bytes.
    pub total_len: usize,
    pub tos: u8,
    pub dont_fragment: bool,
    pub ttl: u8,
    pub protocol: u8,
    pub src: [u8; 4],
    pub dst: [u8; 4],
}

impl Header {
    /// Parses the header at the front of `packet`. `available` is the length of the whole packet,
    /// which is more than `packet` holds if the packet continues in other buffers.
    #[inline]
    pub fn parse(packet: &[u8], available: usize) -> Result<Self, DropReason> {
        Self::parse_kind::<false>(packet, available)
    }

    /// As [`Self::parse`], for packets that it refuses as [`DropReason::IpFragment`].
    pub fn parse_fragment(packet: &[u8], available: usize) -> Result<Self, DropReason> {
        Self::parse_kind::<true>(packet, available)
    }

    #[inline(always)]
    fn parse_kind<const FRAGMENT: bool>(
        packet: &[u8],
        available: usize,
    ) -> Result<Self, DropReason> {
        let fixed = packet.first_chunk::<HEADER_BYTES>().ok_or(DropReason::IpTruncated)?;
        let header_len = if fixed[0] == 0x45 {
            if !Checksum::of(fixed).is_valid() {
                return Err(DropReason::IpBadChecksum);
            }
            HEADER_BYTES
        } else {
            check_long_header(packet)?
        };
        let total_len = usize::from(be16(fixed, 2));
        if total_len < header_len || total_len > available {
            return Err(DropReason::IpBadTotalLength);
        }
        let fragment = be16(fixed, 6);
        if is_part(fragment) != FRAGMENT {
            return Err(DropReason::IpFragment);
        }
        let header = Self {
            header_len,
            total_len,
            tos: fixed[1],
            dont_fragment: is_not_to_be_cut(fragment),
            ttl: fixed[8],
            protocol: fixed[9],
            src: [fixed[12], fixed[13], fixed[14], fixed[15]],
            dst: [fixed[16], fixed[17], fixed[18], fixed[19]],
        };
        if is_martian_source(be32(fixed, 12)) {
            return Err(DropReason::IpMartianSource);
        }
        if is_martian_destination(be32(fixed, 16)) {
            return Err(DropReason::IpMartianDestination);
        }
        Ok(header)
    }
}

/// Whether the word of flags and offset is that of a fragment.
#[inline]
pub(crate) const fn is_part(word: u16) -> bool {
    word & (FLAG_MORE_FRAGMENTS | OFFSET_MASK) != 0
}

/// Whether it forbids routers to fragment.
#[inline]
pub(crate) const fn is_not_to_be_cut(word: u16) -> bool {
    word & FLAG_DONT_FRAGMENT != 0
}

/// Whether the checksum is right of a header without options that follows an Ethernet header.
#[inline(always)]
pub(crate) fn is_header_valid<const BYTES: usize>(frame: &[u8; BYTES]) -> bool {
    const { assert!(BYTES >= ethernet::HEADER_BYTES + HEADER_BYTES) };
    let word = |index: usize| {
        let at = ethernet::HEADER_BYTES + 4 * index;
        u64::from(u32::from_ne_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]]))
    };
    fold_16(word(0) + word(1) + word(2) + word(3) + word(4)) == u16::MAX
}

/// The place of a fragment in its datagram: identification, first octet, and whether more fragments
/// follow. For a header that [`Header::parse_fragment`] has accepted.
pub(crate) fn fragment_place(packet: &[u8]) -> (u16, u16, bool) {
    let (ident, word) = match packet {
        [_, _, _, _, a, b, c, d, ..] => {
            (u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d]))
        }
        _ => (0, 0),
    };
    (ident, (word & OFFSET_MASK) << 3, word & FLAG_MORE_FRAGMENTS != 0)
}

/// Turns the header of a first fragment into that of the whole datagram, with `payload_len` octets
/// and these ECN bits. `header` is the header alone.
pub fn make_whole(header: &mut [u8], payload_len: usize, ecn: u8) {
    let total_len = (header.len() + payload_len) as u16;
    let [_, tos, l0, l1, _, _, f0, f1, _, _, c0, c1, ..] = header else { return };
    *tos = *tos & !3 | ecn & 3;
    [*l0, *l1] = total_len.to_be_bytes();
    (*f0, *f1, *c0, *c1) = (0, 0, 0, 0);
    let check = Checksum::of(header).finish();
    header[10..12].copy_from_slice(&check.to_be_bytes());
}

/// True in 0/8, 127/8, 224/4 and for 255.255.255.255 (RFC 1122 section 3.2.1.3). The rest of 240/4
/// is accepted.
#[inline]
pub(crate) fn is_martian_source(src: u32) -> bool {
    let first = src >> 24;
    first == 0 || first == 127 || first >> 4 == 0xe || src == u32::MAX
}

/// True in 0/8 and 127/8.
#[inline]
fn is_martian_destination(dst: u32) -> bool {
    matches!(dst >> 24, 0 | 127)
}

/// Whether a packet to this address is for one host, which may be on another machine.
#[inline]
pub(crate) fn is_unicast_destination(dst: u32) -> bool {
    !is_martian_destination(dst) && dst >> 28 != 0xe && dst != u32::MAX
}

/// Checks a header that does not begin with version 4 and a length of five words. Returns its
/// length.
#[cold]
fn check_long_header(packet: &[u8]) -> Result<usize, DropReason> {
    if packet[0] >> 4 != 4 {
        return Err(DropReason::IpBadVersion);
    }
    let header_len = usize::from(packet[0] & 0xf) * 4;
    if header_len < HEADER_BYTES {
        return Err(DropReason::IpBadHeaderLength);
    }
    let header = packet.get(..header_len).ok_or(DropReason::IpBadHeaderLength)?;
    if !Checksum::of(header).is_valid() {
        return Err(DropReason::IpBadChecksum);
    }
    check_options(&header[HEADER_BYTES..])?;
    Ok(header_len)
}

/// Skips the options (RFC 1122 section 3.2.1.8), but refuses source routes.
fn check_options(mut options: &[u8]) -> Result<(), DropReason> {
    const END: u8 = 0;
    const NO_OPERATION: u8 = 1;
    const LOOSE_SOURCE_ROUTE: u8 = 131;
    const STRICT_SOURCE_ROUTE: u8 = 137;
    while let [kind, rest @ ..] = options {
        options = match *kind {
            END => return Ok(()),
            NO_OPERATION => rest,
            LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE => return Err(DropReason::IpSourceRoute),
            _ => {
                let len = usize::from(*rest.first().ok_or(DropReason::IpBadOption)?);
                if len < 2 {
                    return Err(DropReason::IpBadOption);
                }
                options.get(len..).ok_or(DropReason::IpBadOption)?
            }
        };
    }
    Ok(())
}

/// A header to send: no options, not fragmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Emit {
    /// Source address; must be IPv4.
    pub src: IpAddr,
    /// Destination address; must be IPv4.
    pub dst: IpAddr,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Hop limit.
    pub ttl: u8,
    /// Type of service: differentiated services (RFC 2474) in the upper six bits, ECN in the lower
    /// two.
    pub tos: u8,
    /// Sets the DF flag (RFC 1191: always, for TCP).
    pub dont_fragment: bool,
    /// Identification; an atomic datagram may have any (RFC 6864 section 4.1).
    pub ident: u16,
    /// Bytes that follow the header.
    pub payload_len: usize,
}

impl Ipv4Emit {
    /// Writes the header with its checksum at the front of `packet`; returns its length.
    ///
    /// # Panics
    /// When `packet` is shorter than the header.
    #[inline]
    pub fn emit(&self, packet: &mut [u8]) -> usize {
        debug_assert!(self.src.as_v4().is_some() && self.dst.as_v4().is_some());
        debug_assert!(self.payload_len + HEADER_BYTES <= usize::from(u16::MAX));
        let header = head::<HEADER_BYTES>(packet);
        let total_len = (HEADER_BYTES + self.payload_len) as u32;
        let flags = if self.dont_fragment { FLAG_DONT_FRAGMENT } else { 0 };
        let mut words = [
            0x45 << 24 | u32::from(self.tos) << 16 | total_len,
            u32::from(self.ident) << 16 | u32::from(flags),
            u32::from(self.ttl) << 24 | u32::from(self.protocol) << 16,
            be32(&self.src.0, 12),
            be32(&self.dst.0, 12),
        ];
        let mut sum = Checksum::new();
        words.iter().for_each(|word| sum.add_u32(*word));
        words[2] |= u32::from(sum.finish());
        put_words(header, &words);
        HEADER_BYTES
    }
}
