//! Multicast Listener Discovery of IPv6 (RFC 3810, which RFC 9777 replaces; its first version is
//! RFC 2710): questions of routers and switches, and a host's reports.
use crate::icmp::IcmpHeader;
use crate::membership::{BODY_BYTES_MAX, emit_records};
pub use crate::membership::{Query, Record, RecordKind};
use crate::{Checksum, DropReason, FrameHeader, IcmpPacket, IpAddr, MacAddr, icmp, ipv6};

/// ICMPv6 type of a query.
pub const QUERY: u8 = 130;
/// ICMPv6 type of the first version's report.
pub const REPORT_V1: u8 = 131;
/// ICMPv6 type of the first version's message that a group has no listener any more.
pub const DONE_V1: u8 = 132;
/// ICMPv6 type of a report.
pub const REPORT: u8 = 143;

/// All routers and switches that listen to reports.
pub const ALL_MLD_ROUTERS: IpAddr = IpAddr([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x16]);
/// All routers of the link.
pub const ALL_ROUTERS: IpAddr = IpAddr([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);

/// Messages do not leave their link (RFC 3810 section 5).
const HOP_LIMIT: u8 = 1;
const GROUP_BYTES: usize = 16;
/// The header of hop-by-hop options with Router Alert (RFC 2711), for ICMPv6.
const ROUTER_ALERT: [u8; 8] = [ipv6::PROTOCOL_ICMP, 0, 5, 2, 0, 0, 1, 0];
const HOP_BY_HOP: u8 = 0;

/// Bytes of the longest frame that [`emit_report`] writes.
pub const FRAME_BYTES_MAX: usize = crate::ethernet::HEADER_BYTES
    + ipv6::HEADER_BYTES
    + ROUTER_ALERT.len()
    + icmp::HEADER_BYTES
    + BODY_BYTES_MAX;

impl Query {
    /// Whether a message is a query, or pretends to be one.
    pub fn is(packet: &IcmpPacket) -> bool {
        packet.header.kind == QUERY && packet.ip.dst.is_v6()
    }

    /// Reads a query whose checksum is right, and checks what sections 5.1 and 6.2 demand. `frame`
    /// is the front of the frame that `packet` was parsed from, or a copy of it.
    pub fn parse(frame: &[u8], packet: &IcmpPacket) -> Result<Query, DropReason> {
        let bad = DropReason::MldInvalid;
        let IcmpPacket { ip, header, payload } = packet;
        let from_link = ip.src.is_link_local_v6() && ip.ttl == HOP_LIMIT;
        if !from_link || payload.more > 0 || !has_router_alert(frame) {
            return Err(bad);
        }
        let body = frame.get(usize::from(payload.start)..).ok_or(bad)?;
        let (group, rest) = body.split_first_chunk::<GROUP_BYTES>().ok_or(bad)?;
        let group = Some(IpAddr(*group)).filter(|group| !group.is_unspecified());
        if group.is_some_and(|group| !group.is_multicast()) {
            return Err(bad);
        }
        let code = u16::from_be_bytes([header.rest[0], header.rest[1]]);
        let len = usize::from(payload.len);
        // RFC 3810 section 8.1: the lengths tell the versions apart.
        if len == GROUP_BYTES {
            let within_us = u64::from(code) * 1000;
            return Ok(Query { group, within_us, older: 1 });
        }
        let &[_, _, high, low, ..] = rest else { return Err(bad) };
        let sources = usize::from(u16::from_be_bytes([high, low]));
        if len < GROUP_BYTES + 4 + sources * GROUP_BYTES {
            return Err(bad);
        }
        let within_us = u64::from(decode(code)) * 1000;
        Ok(Query { group, within_us, older: 0 })
    }
}

/// Section 5.1.3: the Maximum Response Delay, ms.
fn decode(code: u16) -> u32 {
    match code {
        0..0x8000 => code.into(),
        _ => (u32::from(code & 0xfff) | 0x1000) << ((code >> 12 & 7) + 3),
    }
}

/// Whether the packet of a frame has the Router Alert option for these messages.
fn has_router_alert(frame: &[u8]) -> bool {
    const PAD1: u8 = 0;
    let at = crate::ethernet::HEADER_BYTES + ipv6::HEADER_BYTES;
    let packet = frame.get(crate::ethernet::HEADER_BYTES..).unwrap_or(&[]);
    let Some(&[_, units, ..]) = frame.get(at..) else { return false };
    let len = 8 * (1 + usize::from(units));
    let (Some(&HOP_BY_HOP), Some(header)) = (packet.get(6), frame.get(at..at + len)) else {
        return false;
    };
    let mut options = &header[2..];
    while let [kind, rest @ ..] = options {
        if *kind == PAD1 {
            options = rest;
            continue;
        }
        if let [5, 2, 0, 0, ..] = options {
            return true;
        }
        let len = rest.first().map_or(usize::MAX, |len| usize::from(*len));
        let Some(next) = rest.get(1..).and_then(|rest| rest.get(len..)) else { return false };
        options = next;
    }
    false
}

/// Writes the frame of a report with as many of these records as fit; returns its length and their
/// number. `src` is a link-local address, or `::` of a host that has none (section 5.2.13).
///
/// # Panics
/// When `frame` is shorter than [`FRAME_BYTES_MAX`].
pub fn emit_report(
    frame: &mut [u8],
    eth_src: MacAddr,
    src: IpAddr,
    records: &[Record<'_>],
) -> (usize, usize) {
    let mut body = [0; BODY_BYTES_MAX];
    let (count, len) = emit_records(&mut body, records, GROUP_BYTES);
    let [high, low] = (count as u16).to_be_bytes();
    let header = IcmpHeader { kind: REPORT, code: 0, rest: [0, 0, high, low] };
    (emit(frame, (eth_src, src, ALL_MLD_ROUTERS), &header, &body[..len]), count)
}

/// The same as the first version has it: one message for each group, to the group itself, or to all
/// routers if it was left. `None`: it has no such message.
///
/// # Panics
/// When `frame` is shorter than [`FRAME_BYTES_MAX`].
pub fn emit_version1(
    frame: &mut [u8],
    eth_src: MacAddr,
    src: IpAddr,
    record: &Record<'_>,
) -> Option<usize> {
    let (kind, dst) = match record.kind {
        RecordKind::Left => (DONE_V1, ALL_ROUTERS),
        RecordKind::Blocks => return None,
        _ => (REPORT_V1, record.group),
    };
    let header = IcmpHeader { kind, code: 0, rest: [0; 4] };
    Some(emit(frame, (eth_src, src, dst), &header, &record.group.0))
}

fn emit(
    frame: &mut [u8],
    (eth_src, src, dst): (MacAddr, IpAddr, IpAddr),
    header: &IcmpHeader,
    body: &[u8],
) -> usize {
    let eth_dst = ipv6::group_mac(dst);
    let link = FrameHeader { eth_src, eth_dst, src, dst, ttl: HOP_LIMIT, tos: 0, ident: 0 };
    let len = icmp::HEADER_BYTES + body.len();
    let at = link.emit(frame, HOP_BY_HOP, ROUTER_ALERT.len() + len);
    let (alert, message) = frame[at..].split_at_mut(ROUTER_ALERT.len());
    alert.copy_from_slice(&ROUTER_ALERT);
    let mut sum = Checksum::pseudo_header(src, dst, ipv6::PROTOCOL_ICMP, len);
    sum.append(Checksum::of(body));
    let body_at = header.emit(message, sum);
    message[body_at..body_at + body.len()].copy_from_slice(body);
    at + ROUTER_ALERT.len() + len
}
