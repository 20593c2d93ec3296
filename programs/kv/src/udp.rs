//! memcached's frame over UDP: eight bytes before each datagram; replies are divided into several.
use crate::context::Context;
use crate::reply::Reply;
use crate::session::Session;

/// Bytes of the frame.
pub const FRAME_BYTES: usize = 8;
/// Reply bytes in one datagram, as in memcached: this fits an Ethernet packet with room to spare.
const PART_BYTES: usize = 1392;
/// Datagrams of one reply are numbered with 16 bits.
const PARTS_MAX: usize = u16::MAX as usize;
const SPLIT: &[u8] = b"SERVER_ERROR multi-packet request not supported\r\n";

/// The part of a datagram's path that is zero-copy (the Arrakis paper's case study).
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Steps {
    /// None: datagrams are copied in and out, as with socket calls
    None,
    /// Requests are read in place
    Receive,
    /// Replies are written into transmit memory
    Transmit,
    /// Both
    Both,
}

impl Steps {
    /// Whether requests are read in place.
    pub fn receives(self) -> bool {
        matches!(self, Steps::Receive | Steps::Both)
    }

    /// Whether replies are written into transmit memory.
    pub fn transmits(self) -> bool {
        matches!(self, Steps::Transmit | Steps::Both)
    }
}

/// Carries out the request in a datagram and passes the datagrams of the reply to `send`, each as
/// its frame and the rest, until that refuses. A request must be in one datagram; the rest of a
/// longer one is ignored.
pub fn answer(
    datagram: &[u8],
    context: &Context<'_>,
    reply: &mut Reply,
    mut send: impl FnMut([u8; FRAME_BYTES], &[u8]) -> bool,
) {
    let Some((frame, request)) = datagram.split_first_chunk::<FRAME_BYTES>() else { return };
    context.me.bytes_read.add(datagram.len() as u64);
    let mut long = Vec::new();
    if frame[4..6] == [0, 1] {
        carry_out(request, context, reply, &mut long);
    } else {
        reply.put(SPLIT);
    }
    // Most replies are short, and are sent where they were written.
    let bytes = if long.is_empty() { &reply.bytes } else { &long };
    let total = bytes.len().div_ceil(PART_BYTES).min(PARTS_MAX);
    for (number, part) in bytes.chunks(PART_BYTES).take(total).enumerate() {
        let mut front = [0; FRAME_BYTES];
        front[..2].copy_from_slice(&frame[..2]);
        front[2..4].copy_from_slice(&(number as u16).to_be_bytes());
        front[4..6].copy_from_slice(&(total as u16).to_be_bytes());
        context.me.bytes_written.add((FRAME_BYTES + part.len()) as u64);
        if !send(front, part) {
            break;
        }
    }
    reply.clear();
}

/// Leaves the reply in `reply`, or all of it in `long` if it is too long for that.
fn carry_out(mut request: &[u8], context: &Context<'_>, reply: &mut Reply, long: &mut Vec<u8>) {
    let mut session = Session::default();
    while !session.is_closed() {
        let taken = session.feed(request, context, reply);
        request = &request[taken..];
        if !reply.is_full() && long.is_empty() {
            return;
        }
        long.extend_from_slice(&reply.bytes);
        let more = reply.is_full() && long.len() < PART_BYTES * PARTS_MAX;
        reply.clear();
        if !more {
            return;
        }
    }
}

/// As with system calls of sockets: a whole datagram in one place.
pub fn joined(front: [u8; FRAME_BYTES], part: &[u8], send: impl FnOnce(&[u8]) -> bool) -> bool {
    let mut out = [0; FRAME_BYTES + PART_BYTES];
    out[..FRAME_BYTES].copy_from_slice(&front);
    let bytes = FRAME_BYTES + part.len();
    out[FRAME_BYTES..bytes].copy_from_slice(part);
    send(&out[..bytes])
}
