//! memcached's frame over UDP: eight bytes before each datagram, replies cut into several.
use crate::context::Context;
use crate::reply::Reply;
use crate::session::Session;

const FRAME_BYTES: usize = 8;
/// Reply bytes in one datagram, as memcached has it: fits an Ethernet packet with room to spare.
const PART_BYTES: usize = 1392;
/// Datagrams of one reply are numbered with 16 bits.
const PARTS_MAX: usize = u16::MAX as usize;
const SPLIT: &[u8] = b"SERVER_ERROR multi-packet request not supported\r\n";

/// Carries out what one datagram asks and gives the datagrams of the reply to `send`, until that
/// refuses. A request must be in one datagram; what is left of it is not waited for.
pub fn answer(
    datagram: &[u8],
    context: &Context<'_>,
    reply: &mut Reply,
    mut send: impl FnMut(&[u8]) -> bool,
) {
    let Some((frame, mut request)) = datagram.split_first_chunk::<FRAME_BYTES>() else { return };
    context.me.bytes_read.add(datagram.len() as u64);
    if frame[4..6] != [0, 1] {
        reply.put(SPLIT);
    } else {
        let mut session = Session::default();
        let mut whole = Reply::new(false);
        while !session.is_closed() {
            let taken = session.feed(request, context, &mut whole);
            request = &request[taken..];
            reply.put(&whole.bytes);
            let more = whole.is_full() && reply.bytes.len() < PART_BYTES * PARTS_MAX;
            whole.clear();
            if !more {
                break;
            }
        }
    }
    let parts = reply.bytes.chunks(PART_BYTES);
    let total = parts.len().min(PARTS_MAX);
    let mut out = [0; FRAME_BYTES + PART_BYTES];
    for (number, part) in parts.take(total).enumerate() {
        out[..2].copy_from_slice(&frame[..2]);
        out[2..4].copy_from_slice(&(number as u16).to_be_bytes());
        out[4..6].copy_from_slice(&(total as u16).to_be_bytes());
        out[FRAME_BYTES..FRAME_BYTES + part.len()].copy_from_slice(part);
        context.me.bytes_written.add((FRAME_BYTES + part.len()) as u64);
        if !send(&out[..FRAME_BYTES + part.len()]) {
            break;
        }
    }
    reply.clear();
}
