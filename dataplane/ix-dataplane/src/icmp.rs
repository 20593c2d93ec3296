//! ICMP of the receive path.
use crate::io::Io;
use crate::observe::metrics::LocalDrop;
use crate::receive::HEAD_BYTES_V6;
use crate::receive::batch::Work;
use crate::verdict::Verdict;
use ix_abi::CallError;
use ix_mem::{HEADROOM_BYTES, Mbuf};
use ix_tcp::icmp::{IcmpError, IcmpErrorKind, reply_to_echo};
use ix_wire::IcmpPacket;
use ix_wire::mld::Query;
use ix_wire::ra::Advertisement;

/// Replies to an echo request. The caller keeps the request's frame.
pub(crate) fn answer_echo(io: &mut Io, work: &Work, mbuf: &Mbuf, packet: &IcmpPacket) -> Verdict {
    // The reply to a request that came in fragments would need fragments too.
    let mtu = io.ports[work.port as usize].info.mtu;
    if usize::from(packet.payload.len) + usize::from(packet.payload.start) > mtu + 14 {
        return Ok(());
    }
    let Some(mut reply) = io.take_tx_frame(work.port) else {
        return Err(LocalDrop::NoTxFrame.into());
    };
    let request = mbuf.bytes(&io.cx.shared.memory);
    reply.set_range(HEADROOM_BYTES, request.len().min(ix_mem::ROOM_BYTES));
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
