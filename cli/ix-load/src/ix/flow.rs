//! One connection of the back end, and its requests in transmit memory.
use ix_abi::SgEntry;
use libix::raw::{Thread, TxBuf};
use std::collections::VecDeque;

/// One connection, or one UDP socket.
#[derive(Default)]
pub(super) struct Flow {
    /// Dataplane's name; 0: none yet.
    pub(super) handle: u64,
    /// Counts the connections that this place had: events of an earlier one are stale.
    pub(super) generation: u32,
    pub(super) up: bool,
    /// In the list of those that may have calls to append.
    pub(super) dirty: bool,
    /// The window took less than it was given; `Sent` says when to try again.
    pub(super) blocked: bool,
    /// Received bytes to give back.
    pub(super) done_bytes: u64,
    /// Request bytes not acknowledged, oldest first.
    pub(super) pieces: VecDeque<TxBuf>,
    /// Bytes of the first piece that are acknowledged.
    pub(super) front_acked: u64,
    /// Bytes of the pieces that a `sendv` took.
    pub(super) taken_bytes: u64,
    pub(super) unsent_bytes: u64,
    /// Request bytes that transmit memory was missing for.
    pub(super) spilled: Vec<u8>,
}

impl Flow {
    /// Frees what is acknowledged by `bytes` more; answers whether the window has room again.
    #[inline]
    pub(super) fn acknowledge(&mut self, bytes: u64) -> bool {
        let Flow { pieces, front_acked, taken_bytes, blocked, .. } = self;
        acknowledge(pieces, |piece| piece.len() as u64, (front_acked, taken_bytes), bytes);
        core::mem::take(blocked)
    }
}

/// Frees the pieces that are acknowledged by `bytes` more than `front_acked`, the bytes of the
/// first one that were before; so many bytes of all were taken.
#[inline]
pub(super) fn acknowledge<T>(
    pieces: &mut VecDeque<T>,
    len_of: impl Fn(&T) -> u64,
    (front_acked, taken_bytes): (&mut u64, &mut u64),
    bytes: u64,
) {
    let mut left = bytes + *front_acked;
    while let Some(front) = pieces.front() {
        let len = len_of(front);
        if left < len || *taken_bytes < len {
            break;
        }
        left -= len;
        *taken_bytes -= len;
        pieces.pop_front();
    }
    *front_acked = left;
}

/// Copies bytes into transmit memory; answers how many it had room for.
#[inline]
pub(super) fn fill(thread: &Thread, pieces: &mut VecDeque<TxBuf>, data: &[u8]) -> usize {
    let mut done = 0;
    while done < data.len() {
        let Some(mut buf) = thread.tx().alloc(data.len() - done) else { break };
        done += buf.extend(&data[done..]);
        pieces.push_back(buf);
    }
    done
}

/// The memory of a piece.
#[inline]
pub(super) fn entry(piece: &[u8]) -> SgEntry {
    SgEntry { base: piece.as_ptr().expose_provenance() as u64, len: piece.len() as u64 }
}

/// The bytes of the pieces behind the first `taken`.
#[inline]
pub(super) fn unsent_pieces(
    pieces: impl Iterator<Item = SgEntry>,
    taken: u64,
) -> impl Iterator<Item = SgEntry> {
    let mut skip = taken;
    pieces.filter_map(move |SgEntry { base, len }| {
        let step = skip.min(len);
        skip -= step;
        (step < len).then(|| SgEntry { base: base + step, len: len - step })
    })
}
