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
        let mut left = bytes + self.front_acked;
        while let Some(front) = self.pieces.front() {
            let len = front.len() as u64;
            if left < len || self.taken_bytes < len {
                break;
            }
            left -= len;
            self.taken_bytes -= len;
            self.pieces.pop_front();
        }
        self.front_acked = left;
        core::mem::take(&mut self.blocked)
    }
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

/// The bytes of the pieces behind the first `taken`.
#[inline]
pub(super) fn unsent_pieces(pieces: &VecDeque<TxBuf>, taken: u64) -> impl Iterator<Item = SgEntry> {
    let mut skip = taken;
    pieces.iter().filter_map(move |buf| {
        let len = buf.len() as u64;
        let step = skip.min(len);
        skip -= step;
        (step < len).then(|| SgEntry { base: buf.base() + step, len: len - step })
    })
}
