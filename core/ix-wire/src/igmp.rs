//! Internet Group Management Protocol (RFC 3376; its earlier versions are RFC 2236 and RFC 1112):
//! questions of routers and switches, and a host's reports.
use crate::membership::{BODY_BYTES_MAX, Query, Record, RecordKind, emit_records};
use crate::{Checksum, DropReason, IpAddr, MacAddr, be16, ethernet, ipv4, parse_ip};

/// Protocol number of IGMP.
pub const PROTOCOL: u8 = 2;
/// Type of a query.
pub const QUERY: u8 = 0x11;
/// Type of the first version's report.
pub const REPORT_V1: u8 = 0x12;
/// Type of the second version's report.
pub const REPORT_V2: u8 = 0x16;
/// Type of the second version's message that a group was left.
pub const LEAVE_V2: u8 = 0x17;
/// Type of a report.
pub const REPORT: u8 = 0x22;

/// All hosts of the link.
pub const ALL_HOSTS: IpAddr = IpAddr::v4([224, 0, 0, 1]);
/// All routers of the link.
pub const ALL_ROUTERS: IpAddr = IpAddr::v4([224, 0, 0, 2]);
/// All routers and switches that listen to reports.
pub const ALL_IGMP_ROUTERS: IpAddr = IpAddr::v4([224, 0, 0, 22]);

/// Messages do not leave their link (RFC 3376 section 4).
const TTL: u8 = 1;
/// Internetwork control (RFC 3376 section 4 says 0xc0).
const TOS: u8 = 0xc0;
/// The option Router Alert (RFC 2113).
const ROUTER_ALERT: [u8; 4] = [0x94, 4, 0, 0];
const IP_BYTES: usize = ipv4::HEADER_BYTES + ROUTER_ALERT.len();
const ADDRESS_BYTES: usize = 4;
/// Bytes of a message of the earlier versions, and of a report without records.
const MESSAGE_BYTES: usize = 8;
/// Shortest query of the third version (RFC 3376 section 7.1).
const QUERY_V3_BYTES: usize = 12;
/// Within this time a question of the first version is answered (RFC 3376 section 4.1.1), in tenths
/// of a second.
const WITHIN_V1_TENTHS: u32 = 100;

/// Bytes of the longest frame that [`emit_report`] writes.
pub const FRAME_BYTES_MAX: usize =
    ethernet::HEADER_BYTES + IP_BYTES + MESSAGE_BYTES + BODY_BYTES_MAX;

/// Reads a query from a frame, or from a copy of its front. `None`: the frame has none.
pub fn read_query(frame: &[u8]) -> Option<Result<Query, DropReason>> {
    let (ip, protocol) = parse_ip(frame).ok()?;
    let at = ethernet::HEADER_BYTES + usize::from(ip.header_len);
    let end = ethernet::HEADER_BYTES + usize::from(be16(frame, ethernet::HEADER_BYTES + 2));
    let message = frame.get(at..end)?;
    if protocol != PROTOCOL || ip.dst.is_v6() || message.first() != Some(&QUERY) {
        return None;
    }
    Some(parse_query(message, ip.ttl, ip.dst).ok_or(DropReason::IgmpInvalid))
}

/// Sections 4.1, 7.1 and 9.1: to all hosts or to the group that it asks for, and from the link.
fn parse_query(message: &[u8], ttl: u8, dst: IpAddr) -> Option<Query> {
    let &[_, code, _, _, a, b, c, d, ..] = message else { return None };
    if ttl != TTL || !Checksum::of(message).is_valid() {
        return None;
    }
    let group = Some(IpAddr::v4([a, b, c, d])).filter(|group| *group != IpAddr::UNSPECIFIED);
    let is_right = group.map_or(dst == ALL_HOSTS, |group| group.is_multicast());
    let (tenths, older) = match (message.len(), code) {
        (MESSAGE_BYTES, 0) => (WITHIN_V1_TENTHS, 1),
        (MESSAGE_BYTES, code) => (code.into(), 2),
        (..QUERY_V3_BYTES, _) => return None,
        (len, code) => {
            let sources = usize::from(be16(message, 10));
            if len < QUERY_V3_BYTES + sources * ADDRESS_BYTES {
                return None;
            }
            (decode(code), 0)
        }
    };
    let within_us = u64::from(tenths) * 100_000;
    is_right.then_some(Query { group, within_us, older })
}

/// Section 4.1.1: the Max Resp Time, in tenths of a second.
fn decode(code: u8) -> u32 {
    match code {
        0..0x80 => code.into(),
        _ => (u32::from(code & 0xf) | 0x10) << ((code >> 4 & 7) + 3),
    }
}

/// Writes the frame of a report with as many of these records as fit; returns its length and their
/// number. `src` is an address of ours, or 0.0.0.0 (section 4.2.13).
///
/// # Panics
/// When `frame` is shorter than [`FRAME_BYTES_MAX`].
pub fn emit_report(
    frame: &mut [u8],
    eth_src: MacAddr,
    src: IpAddr,
    records: &[Record<'_>],
) -> (usize, usize) {
    let at = ethernet::HEADER_BYTES + IP_BYTES + MESSAGE_BYTES;
    let (count, len) = emit_records(&mut frame[at..], records, ADDRESS_BYTES);
    let [high, low] = (count as u16).to_be_bytes();
    let header = [REPORT, 0, 0, 0, 0, 0, high, low];
    (emit(frame, (eth_src, src, ALL_IGMP_ROUTERS), header, len), count)
}

/// The same as an earlier version has it: one message for each group, to the group itself, or to
/// all routers if it was left. `None`: that version has no such message.
///
/// # Panics
/// When `frame` is shorter than [`FRAME_BYTES_MAX`].
pub fn emit_older(
    frame: &mut [u8],
    eth_src: MacAddr,
    src: IpAddr,
    record: &Record<'_>,
    version: u8,
) -> Option<usize> {
    let (kind, dst) = match (record.kind, version) {
        (RecordKind::Left, 1) | (RecordKind::Blocks, _) => return None,
        (RecordKind::Left, _) => (LEAVE_V2, ALL_ROUTERS),
        (_, 1) => (REPORT_V1, record.group),
        _ => (REPORT_V2, record.group),
    };
    let [a, b, c, d] = record.group.as_v4()?;
    Some(emit(frame, (eth_src, src, dst), [kind, 0, 0, 0, a, b, c, d], 0))
}

/// Writes all headers in front of `body_len` octets that are in place; returns the frame's length.
fn emit(
    frame: &mut [u8],
    (eth_src, src, dst): (MacAddr, IpAddr, IpAddr),
    message: [u8; MESSAGE_BYTES],
    body_len: usize,
) -> usize {
    let at = ethernet::emit(frame, ipv4::group_mac(dst), eth_src, ethernet::TYPE_IPV4);
    let end = at + IP_BYTES + MESSAGE_BYTES + body_len;
    let (ip, rest) = frame[at..end].split_at_mut(IP_BYTES);
    let [high, low] = ((end - at) as u16).to_be_bytes();
    // Identification 0, DF.
    ip[..12].copy_from_slice(&[0x46, TOS, high, low, 0, 0, 0x40, 0, TTL, PROTOCOL, 0, 0]);
    ip[12..16].copy_from_slice(&src.0[12..]);
    ip[16..20].copy_from_slice(&dst.0[12..]);
    ip[20..].copy_from_slice(&ROUTER_ALERT);
    let check = Checksum::of(ip).finish();
    ip[10..12].copy_from_slice(&check.to_be_bytes());
    rest[..MESSAGE_BYTES].copy_from_slice(&message);
    let check = Checksum::of(rest).finish();
    rest[2..4].copy_from_slice(&check.to_be_bytes());
    end
}
