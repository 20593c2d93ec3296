//! What a connection has been given to send, from the oldest unacknowledged byte on.
use crate::fifo::Fifo;
use crate::raw::{Lent, Received, TxArena, TxBuf, TxShared};
use ix_abi::SgEntry;
use std::collections::VecDeque;
use std::ops::Range;

/// With less free transmit memory than this, a block is no larger than what is written to it.
const AMPLE_BYTES: u64 = 1 << 20;

/// Most bytes that a connection may hold when it begins, unsent and unacknowledged together.
const SEND_LIMIT_BYTES: u64 = 1 << 20;
/// The same of one whose path holds more, while [`AMPLE_BYTES`] of transmit memory are free.
const SEND_LIMIT_MAX_BYTES: u64 = 16 << 20;

/// Most bytes that a connection may hold, unsent and unacknowledged together.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum SendLimit {
    /// Grows to twice of what the path has held, so that the window always finds the next bytes
    /// (Linux's autotuning of `SO_SNDBUF`). It shrinks only when memory is short.
    #[default]
    Auto,
    /// Bytes that the application has set.
    Set(u64),
}

impl SendLimit {
    /// The limit of the connection with this queue.
    #[inline]
    pub fn bytes(self, queue: &SendQueue, tx: &TxArena) -> u64 {
        match self {
            SendLimit::Set(bytes) => bytes,
            SendLimit::Auto if queue.most_taken_bytes <= SEND_LIMIT_BYTES / 2 => SEND_LIMIT_BYTES,
            SendLimit::Auto => grown(queue.most_taken_bytes, tx.free_bytes()),
        }
    }
}

/// Returns how much a connection may hold that has had `most_taken_bytes` on its way, while
/// `free_bytes` of transmit memory are free.
fn grown(most_taken_bytes: u64, free_bytes: u64) -> u64 {
    match free_bytes < AMPLE_BYTES {
        true => SEND_LIMIT_BYTES,
        false => (2 * most_taken_bytes).clamp(SEND_LIMIT_BYTES, SEND_LIMIT_MAX_BYTES),
    }
}

/// The owner of memory that was lent to be sent hears here when it may change again.
pub trait Release: Sync {
    /// The lease with this token has ended: all was acknowledged, or the connection is gone.
    fn release(&self, token: u64);
}

/// A promise of its owner to leave some memory unchanged; dropping it ends the promise.
pub struct Lease {
    owner: &'static dyn Release,
    token: u64,
}

impl Lease {
    /// A lease that `owner` knows by `token`.
    pub fn new(owner: &'static dyn Release, token: u64) -> Lease {
        Lease { owner, token }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.owner.release(self.token);
    }
}

/// Keeps the memory of a piece until the piece is acknowledged.
enum Source {
    Own(TxBuf),
    Shared { _keep: TxShared },
    Lent { _lease: Lease },
    Received,
}

struct Piece {
    base: u64,
    len: u64,
    source: Source,
}

/// Bytes of one flow on their way out, each in memory that stays until it is acknowledged.
/// Acknowledged bytes leave in front, unsent ones join behind: `[taken by sendv | unsent]`.
#[derive(Default)]
pub struct SendQueue {
    pieces: Fifo<Piece>,
    front_acked: u64,
    taken_bytes: u64,
    /// The most of them so far.
    most_taken_bytes: u64,
    unsent_bytes: u64,
    /// Where unsent bytes begin: a piece and an offset in it.
    next_piece: usize,
    next_offset: u64,
    /// Bytes of each message of the unsent ones that has ended, if any has.
    #[allow(clippy::box_collection)] // 8 bytes in the connection instead of 32
    messages: Option<Box<VecDeque<u64>>>,
}

impl SendQueue {
    /// Bytes that no `sendv` has taken yet.
    #[inline]
    pub fn unsent(&self) -> u64 {
        self.unsent_bytes
    }

    /// Bytes that a `sendv` took and the peer has not acknowledged.
    #[inline]
    pub fn unacked(&self) -> u64 {
        self.taken_bytes
    }

    /// All bytes whose memory is held.
    #[allow(clippy::len_without_is_empty)]
    #[inline]
    pub fn len(&self) -> u64 {
        self.taken_bytes + self.unsent_bytes
    }

    /// Copies `data` behind what is there, into the last block while it has room. Returns the bytes
    /// that transmit memory was there for.
    pub fn write(&mut self, tx: &TxArena, data: &[u8]) -> usize {
        self.write_first(tx, data, data.len())
    }

    /// The same for `data` that is the first of `bytes` in all: a new block has room for them.
    pub fn write_first(&mut self, tx: &TxArena, data: &[u8], bytes: usize) -> usize {
        let mut left = data;
        let more = bytes.saturating_sub(data.len());
        while !left.is_empty() {
            let mut block = left.len() + more;
            if let Some(Piece { len, source: Source::Own(last), .. }) = self.pieces.back_mut() {
                let n = last.extend(left);
                *len += n as u64;
                self.unsent_bytes += n as u64;
                left = &left[n..];
                // Many small writes get ever larger blocks, so that they fit one `sendv`.
                block = left.len() + more;
                if tx.free_bytes() >= AMPLE_BYTES {
                    block = block.max(4 * last.capacity());
                }
            }
            if left.is_empty() {
                break;
            }
            let Some(buf) = tx.alloc_some(block) else { break };
            self.pieces.push_back(Piece { base: buf.base(), len: 0, source: Source::Own(buf) });
        }
        data.len() - left.len()
    }

    #[inline]
    pub(crate) fn push_own(&mut self, buf: TxBuf) {
        self.push(buf.base(), buf.len() as u64, Source::Own(buf));
    }

    pub(crate) fn push_shared(&mut self, buf: TxShared, range: Range<usize>) {
        let part = &buf[range];
        let (base, len) = (part.as_ptr().expose_provenance() as u64, part.len() as u64);
        self.push(base, len, Source::Shared { _keep: buf });
    }

    /// Sends memory from where it is; its owner leaves it unchanged until the lease ends.
    pub fn push_lent(&mut self, data: Lent, lease: Lease) {
        self.push(data.base(), data.len() as u64, Source::Lent { _lease: lease });
    }

    #[inline]
    pub(crate) fn push_received(&mut self, data: Received) {
        self.push(data.base(), data.len().into(), Source::Received);
    }

    #[inline]
    fn push(&mut self, base: u64, len: u64, source: Source) {
        if len > 0 {
            self.pieces.push_back(Piece { base, len, source });
            self.unsent_bytes += len;
        }
    }

    /// A message ends with the last unsent byte: what comes behind it is in other segments. Without
    /// unsent bytes it is too late, and nothing changes.
    pub fn end_message(&mut self) {
        let open = self.unsent_bytes - self.ended_bytes();
        if open > 0 {
            self.messages.get_or_insert_default().push_back(open);
        }
    }

    /// Unsent bytes of messages that have ended.
    fn ended_bytes(&self) -> u64 {
        self.messages.as_ref().map_or(0, |messages| messages.iter().sum())
    }

    /// Bytes of the first message that is unsent, if it has ended.
    #[inline]
    pub(crate) fn first_message(&self) -> Option<u64> {
        self.messages.as_ref()?.front().copied()
    }

    /// Unsent bytes of messages that others follow.
    pub fn followed(&self) -> u64 {
        let ended = self.ended_bytes();
        let last = self.messages.as_ref().and_then(|messages| messages.back());
        if ended < self.unsent_bytes { ended } else { ended - last.copied().unwrap_or(0) }
    }

    /// `bytes` more are taken of the messages that have ended.
    #[cold]
    fn messages_taken(&mut self, mut bytes: u64) {
        let Some(messages) = &mut self.messages else { return };
        while let Some(first) = messages.front_mut() {
            let n = bytes.min(*first);
            *first -= n;
            bytes -= n;
            if *first > 0 {
                break;
            }
            messages.pop_front();
        }
        self.messages.take_if(|messages| messages.is_empty());
    }

    /// The unsent bytes as a scatter-gather array.
    #[inline]
    pub(crate) fn unsent_pieces(&self) -> impl Iterator<Item = SgEntry> {
        let mut skip = self.next_offset;
        let mut pieces = self.pieces.iter_from(self.next_piece);
        core::iter::from_fn(move || {
            loop {
                let piece = pieces.next()?;
                let offset = core::mem::take(&mut skip);
                if piece.len > offset {
                    return Some(SgEntry { base: piece.base + offset, len: piece.len - offset });
                }
            }
        })
    }

    /// The unsent bytes behind the first `skip` ones, piece by piece.
    pub fn unsent_from(&self, mut skip: u64) -> impl Iterator<Item = SgEntry> {
        self.unsent_pieces().filter_map(move |piece| {
            let n = piece.len.min(skip);
            skip -= n;
            (n < piece.len).then_some(SgEntry { base: piece.base + n, len: piece.len - n })
        })
    }

    /// The first `limit` unsent bytes as a scatter-gather array.
    pub(crate) fn first_unsent(&self, limit: u64) -> impl Iterator<Item = SgEntry> {
        let mut left = limit;
        self.unsent_pieces().map_while(move |piece| {
            let len = piece.len.min(left);
            left -= len;
            (len > 0).then_some(SgEntry { len, ..piece })
        })
    }

    /// A `sendv` took the first `bytes` unsent bytes.
    #[inline]
    pub(crate) fn taken(&mut self, bytes: u64) {
        let bytes = bytes.min(self.unsent_bytes);
        self.unsent_bytes -= bytes;
        self.taken_bytes += bytes;
        if self.messages.is_some() {
            self.messages_taken(bytes);
        }
        self.most_taken_bytes = self.most_taken_bytes.max(self.taken_bytes);
        self.next_offset += bytes;
        while let Some(piece) = self.pieces.get(self.next_piece) {
            if self.next_offset < piece.len || self.next_piece + 1 == self.pieces.len() {
                break;
            }
            self.next_offset -= piece.len;
            self.next_piece += 1;
        }
    }

    /// The oldest `bytes` taken bytes were acknowledged: their memory is free. Returns how many of
    /// them were received bytes.
    #[inline]
    pub(crate) fn acked(&mut self, bytes: u64) -> u64 {
        let mut left = bytes.min(self.taken_bytes);
        self.taken_bytes -= left;
        let mut received = 0;
        while let Some(front) = self.pieces.front() {
            let n = left.min(front.len - self.front_acked);
            if matches!(front.source, Source::Received) {
                received += n;
            }
            left -= n;
            self.front_acked += n;
            if self.front_acked < front.len {
                break;
            }
            self.pieces.pop_front();
            self.front_acked = 0;
            match self.next_piece.checked_sub(1) {
                Some(next) => self.next_piece = next,
                None => self.next_offset = 0,
            }
        }
        received
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_holds_much_gets_twice_as_much_unless_memory_is_short() {
        const MIB: u64 = 1 << 20;
        assert_eq!(grown(MIB / 4, MIB), MIB);
        assert_eq!(grown(3 * MIB, MIB), 6 * MIB);
        assert_eq!(grown(3 * MIB, MIB - 1), MIB);
        assert_eq!(grown(100 * MIB, MIB), 16 * MIB);
    }

    #[test]
    fn what_is_behind_the_first_unsent_bytes_keeps_its_pieces() {
        let mut queue = SendQueue::default();
        [(4096, 10), (8192, 20), (16384, 5)]
            .into_iter()
            .for_each(|(base, len)| queue.push(base, len, Source::Received));
        queue.taken(4);
        let pieces = |skip| queue.unsent_from(skip).map(|p| (p.base, p.len)).collect::<Vec<_>>();
        assert_eq!(pieces(0), [(4100, 6), (8192, 20), (16384, 5)]);
        assert_eq!(pieces(7), [(8193, 19), (16384, 5)]);
        assert_eq!(pieces(31), []);
    }

    #[test]
    fn messages_end_where_it_was_said() {
        let mut queue = SendQueue::default();
        queue.end_message();
        assert_eq!((queue.first_message(), queue.followed()), (None, 0));
        queue.push(4096, 100, Source::Received);
        queue.end_message();
        queue.end_message();
        assert_eq!((queue.first_message(), queue.followed()), (Some(100), 0));
        queue.push(8192, 50, Source::Received);
        assert_eq!(queue.followed(), 100);
        queue.end_message();
        queue.push(16384, 7, Source::Received);
        assert_eq!((queue.first_message(), queue.followed()), (Some(100), 150));
        queue.taken(60);
        assert_eq!((queue.first_message(), queue.followed()), (Some(40), 90));
        queue.taken(40);
        assert_eq!((queue.first_message(), queue.followed()), (Some(50), 50));
        queue.taken(57);
        assert_eq!((queue.first_message(), queue.followed()), (None, 0));
        assert!(queue.messages.is_none());
    }

    #[test]
    fn the_limit_follows_the_most_that_was_on_its_way() {
        let (mut queue, no_memory) = (SendQueue::default(), TxArena::default());
        assert_eq!(SendLimit::Auto.bytes(&queue, &no_memory), SEND_LIMIT_BYTES);
        queue.push(4096, 3 << 20, Source::Received);
        queue.taken(3 << 20);
        queue.acked(3 << 20);
        assert_eq!(queue.most_taken_bytes, 3 << 20);
        assert_eq!(SendLimit::Auto.bytes(&queue, &no_memory), SEND_LIMIT_BYTES);
        assert_eq!(SendLimit::Set(5000).bytes(&queue, &no_memory), 5000);
    }
}
