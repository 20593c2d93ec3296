//! Fragments of IPv6 packets (RFC 8200 section 4.5).
use super::{
    CODE_FIELD, CODE_INCOMPLETE, Chain, FRAGMENT, FRAGMENT_BYTES, HEADER_BYTES, Header,
    MORE_FRAGMENTS, NEXT_HEADER_AT, OFFSET_MASK, PAYLOAD_LENGTH_AT, Problem, Refused,
};
use crate::{DropReason, be16, be32, icmp, ipv4, tcp, udp};

/// Bytes of the headers that are kept of a first fragment.
pub const KEPT_BYTES: usize = HEADER_BYTES + FRAGMENT_BYTES;
/// These headers.
pub type Kept = [u8; KEPT_BYTES];

/// Where the offset is in a fragment header.
const OFFSET_AT: usize = 2;
/// Longest payload of a packet.
const PAYLOAD_BYTES_MAX: usize = 65_535;

/// A fragment's headers. Its payload begins at `ip.header_len`.
pub(crate) struct Read {
    /// The IPv6 header; its length is that of all headers up to the fragment header.
    pub ip: Header,
    pub ident: u32,
    pub offset: u16,
    pub more: bool,
    /// Octets that the fragment must have if it is the first one.
    pub headers_bytes: u16,
}

/// Reads a fragment whose headers are in `packet`; the whole packet has `available` bytes.
pub(crate) fn read(packet: &[u8], available: usize) -> Result<Read, DropReason> {
    read_told(packet, available).map_err(|(reason, _)| reason)
}

/// What the sender of a fragment is told that cannot be one of a packet.
pub(super) fn problem_of(packet: &[u8]) -> Option<Problem> {
    read_told(packet, packet.len()).err()?.1
}

fn read_told(packet: &[u8], available: usize) -> Result<Read, (DropReason, Option<Problem>)> {
    const BAD: DropReason = DropReason::Ip6Fragment;
    let told = |code: u8, at: usize| (BAD, Some(Problem { code, pointer: at as u32 }));
    let quiet = |reason: DropReason| (reason, None);
    let fixed = Header::fixed(packet, available).map_err(quiet)?;
    fixed.check_addresses().map_err(quiet)?;
    let held = &packet[..packet.len().min(fixed.total_len)];
    let to_group = fixed.dst[0] == 0xff;
    let mut chain = Chain::begin(fixed.protocol);
    match chain.pass_all(held, to_group) {
        Err(refused) if refused.0 == BAD => {}
        Err(refused) => return Err(quiet(refused.0)),
        // The sender has changed it meanwhile.
        Ok(()) => return Err(quiet(BAD)),
    }
    let at = chain.end;
    let rest = held.get(at..).and_then(|rest| rest.first_chunk::<FRAGMENT_BYTES>());
    let header = rest.ok_or(quiet(BAD))?;
    let word = be16(header, OFFSET_AT);
    let (offset, more) = (word & OFFSET_MASK, word & MORE_FRAGMENTS != 0);
    let header_len = at + FRAGMENT_BYTES;
    let len = fixed.total_len.checked_sub(header_len).ok_or(quiet(BAD))?;
    if more && !len.is_multiple_of(8) {
        return Err(told(CODE_FIELD, PAYLOAD_LENGTH_AT));
    }
    if usize::from(offset) + len + FRAGMENT_BYTES > PAYLOAD_BYTES_MAX {
        return Err(told(CODE_FIELD, at + OFFSET_AT));
    }
    if len == 0 {
        return Err(quiet(BAD));
    }
    let headers_bytes = if offset == 0 { headers_bytes(held, header[0], header_len) } else { 0 };
    if headers_bytes > len {
        return Err(told(CODE_INCOMPLETE, 0));
    }
    let ip = Header { header_len, protocol: FRAGMENT, ..fixed };
    let headers_bytes = headers_bytes as u16;
    Ok(Read { ip, ident: be32(header, 4), offset, more, headers_bytes })
}

/// RFC 7112 section 5: how much of a first fragment all headers take, that of the transport
/// included; `usize::MAX` if they do not end in it. What else is wrong with them is found when the
/// packet is whole.
fn headers_bytes(held: &[u8], next: u8, at: usize) -> usize {
    let mut chain = Chain { end: at, ..Chain::begin(next) };
    match chain.pass_all(held, false) {
        Ok(()) => {}
        Err(Refused(DropReason::Ip6Extension, None)) => return usize::MAX,
        Err(_) => return 0,
    }
    let transport = match chain.next {
        ipv4::PROTOCOL_TCP => tcp::HEADER_BYTES,
        ipv4::PROTOCOL_UDP => udp::HEADER_BYTES,
        super::PROTOCOL_ICMP => icmp::HEADER_BYTES,
        _ => 0,
    };
    chain.end - at + transport
}

/// The headers of a fragment of `payload_len` octets that are kept of it: the IPv6 header and the
/// fragment header. `packet` begins with all of its headers, which have `header_len` bytes; those
/// between the two were checked, and say nothing to a host.
pub fn kept_headers(packet: &[u8], header_len: usize, payload_len: usize) -> Option<Kept> {
    let mut kept = [0; KEPT_BYTES];
    let (ip, fragment) = kept.split_at_mut(HEADER_BYTES);
    ip.copy_from_slice(packet.get(..HEADER_BYTES)?);
    fragment.copy_from_slice(packet.get(header_len.checked_sub(FRAGMENT_BYTES)?..header_len)?);
    kept[NEXT_HEADER_AT] = FRAGMENT;
    set_payload_len(&mut kept, payload_len);
    Some(kept)
}

/// Makes the kept headers of a first fragment those of the whole packet of `payload_len` octets: of
/// one whose only fragment is all of it (RFC 6946), so that those who process it know that it came
/// in fragments (RFC 6980).
pub fn make_whole(header: &mut [u8], payload_len: usize, ecn: u8) {
    let Some(header) = header.first_chunk_mut::<KEPT_BYTES>() else { return };
    header[1] = header[1] & !0x30 | (ecn & 3) << 4;
    set_payload_len(header, payload_len);
    header[HEADER_BYTES + OFFSET_AT..][..2].fill(0);
}

fn set_payload_len(header: &mut Kept, payload_len: usize) {
    let length = (FRAGMENT_BYTES + payload_len) as u16;
    header[PAYLOAD_LENGTH_AT..][..2].copy_from_slice(&length.to_be_bytes());
}
