//! ICMP of the receive path.
use crate::io::Io;
use crate::observe::metrics::LocalDrop;
use crate::receive::HEAD_BYTES_V6;
use crate::receive::batch::Work;
use crate::verdict::Verdict;
use ix_abi::CallError;
use ix_mem::{HEADROOM_BYTES, Mbuf, ROOM_BYTES};
use ix_tcp::icmp::{IcmpError, IcmpErrorKind, reply_to_echo, reply_to_long_echo};
use ix_wire::mld::Query;
use ix_wire::ra::Advertisement;
use ix_wire::{DropReason, FrameHeader, IcmpPacket, ethernet, frame, icmp, igmp, ipv4, ipv6};

/// Replies to an echo request. The caller keeps the request's frame.
pub(crate) fn answer_echo(io: &mut Io, work: &Work, mbuf: &Mbuf, packet: &IcmpPacket) -> Verdict {
    // The reply to a request that came in fragments may need fragments too.
    let mtu = io.ports[work.port as usize].info.mtu;
    if packet.payload.range().end > (mtu + ethernet::HEADER_BYTES).min(ROOM_BYTES) {
        return answer_long_echo(io, work, mbuf, packet, core::iter::empty());
    }
    let Some(mut reply) = io.take_tx_frame(work.port) else {
        return Err(LocalDrop::NoTxFrame.into());
    };
    let request = mbuf.bytes(&io.cx.shared.memory);
    reply.set_range(HEADROOM_BYTES, request.len().min(ROOM_BYTES));
    let bytes = reply.bytes_mut(&io.cx.shared.memory);
    bytes.copy_from_slice(&request[..bytes.len()]);
    match reply_to_echo(bytes, packet) {
        Some(len) => {
            reply.truncate(len);
            io.ports[work.port as usize].queue.push_back(reply);
        }
        None => io.cx.tx_pool.put(reply),
    }
    Ok(())
}

/// Replies to an echo request that is longer than a buffer, in fragments if it is longer than a
/// packet. `tails`: its other buffers.
#[cold]
pub(crate) fn answer_long_echo<'a>(
    io: &mut Io,
    work: &Work,
    mbuf: &Mbuf,
    packet: &IcmpPacket,
    tails: impl Iterator<Item = &'a Mbuf>,
) -> Verdict {
    let shared = io.cx.shared.clone();
    let (from, more) = (packet.payload, usize::from(packet.payload.more));
    let begin = usize::from(from.start) - icmp::HEADER_BYTES;
    let first = mbuf.bytes(&shared.memory).get(begin..from.range().end);
    let mut message = first.unwrap_or_default().to_vec();
    let whole = message.len() + more;
    tails.for_each(|tail| message.extend_from_slice(tail.bytes(&shared.memory)));
    message.truncate(whole);
    let Some(header) = reply_to_long_echo(&mut message, packet) else { return Ok(()) };
    let is_v6 = header.dst.is_v6();
    let protocol = if is_v6 { ipv6::PROTOCOL_ICMP } else { ipv4::PROTOCOL_ICMP };
    let ident = io.idents.next(header.src, header.dst, protocol);
    let header = FrameHeader { ident: if is_v6 { 0 } else { ident & 0xffff }, ..header };
    let room = io.ports[work.port as usize].info.mtu + ethernet::HEADER_BYTES;
    let plain_bytes = frame::headers_bytes_to(header.dst);
    let is_cut = plain_bytes + message.len() > room;
    let headers_bytes = plain_bytes + if is_v6 && is_cut { ipv6::FRAGMENT_BYTES } else { 0 };
    let each = if is_cut { (room - headers_bytes) & !7 } else { message.len() };
    for (number, part) in message.chunks(each).enumerate() {
        let Some(mut mbuf) = io.take_tx_frames(work.port, headers_bytes + part.len()) else {
            return Err(LocalDrop::NoTxFrame.into());
        };
        let offset = number * each;
        let place = (offset, offset + part.len() < message.len());
        let bytes = mbuf.bytes_mut(&shared.memory);
        let at = match is_v6 {
            // RFC 8021.
            true if !is_cut => header.emit(bytes, protocol, part.len()),
            true => header.emit_fragment_v6(bytes, protocol, part.len(), place, ident),
            false => header.emit_fragment(bytes, protocol, part.len(), place),
        };
        mbuf.write_at(&shared.memory, at, part);
        io.ports[work.port as usize].queue.push_back(mbuf);
    }
    Ok(())
}

/// Processes a question of a router or a switch which groups the host listens to.
#[cold]
pub(crate) fn hear_query(io: &Io, mbuf: &Mbuf, packet: &IcmpPacket) -> Verdict {
    // The headers from a copy, because the sender may still be able to change the frame.
    let frame = mbuf.bytes(&io.cx.shared.memory);
    let mut head = [0; HEAD_BYTES_V6];
    let len = frame.len().min(HEAD_BYTES_V6);
    head[..len].copy_from_slice(&frame[..len]);
    let query = Query::parse(&head[..len], packet)?;
    io.cx.shared.neighbors.on_query(&query, io.cx.now_us);
    Ok(())
}

/// The same of IPv4, in a packet that the parser has refused. `None`: it is no question.
#[cold]
pub(crate) fn hear_query_v4(io: &Io, mbuf: &Mbuf) -> Option<Result<(), DropReason>> {
    // From a copy, because the sender may still be able to change the frame.
    let frame = mbuf.bytes(&io.cx.shared.memory).to_vec();
    let query = igmp::read_query(&frame)?;
    Some(query.map(|query| io.cx.shared.neighbors.on_query_v4(&query, io.cx.now_us)))
}

/// Processes a router's advertisement.
#[cold]
pub(crate) fn hear_router(io: &mut Io, port: u8, mbuf: &Mbuf, packet: &IcmpPacket) -> Verdict {
    // From a copy, because the sender may still be able to change the frame.
    let frame = mbuf.bytes(&io.cx.shared.memory).to_vec();
    let said = Advertisement::parse(&frame, packet)?;
    let Io { cx, ports, neighbors, .. } = io;
    neighbors.receive_advertisement(cx, ports, port, &said);
    Ok(())
}

/// The meaning of an ICMP error for an application.
pub(crate) fn call_error(error: &IcmpError) -> CallError {
    match error.kind {
        IcmpErrorKind::PortUnreachable => CallError::Refused,
        IcmpErrorKind::FragNeeded { .. } => CallError::TooLong,
        _ => CallError::Unreachable,
    }
}
