//! The batch of calls that is being written, and what each of their answers is for.
use super::output::OutQueue;
use crate::error::Error;
use crate::raw::call::Batched;
use crate::raw::{Thread, TxBuf, Wait};
use ix_abi::{CALLS_MAX, Cookie, Handle, SgEntry, group_of};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Whom the answer of a call is for.
#[derive(Clone, Copy)]
pub(super) enum Pending {
    /// Nobody.
    Nothing,
    Listen(u64),
    Connect(u64),
    Accept(u64),
    /// A connection that moved here, and the cookie that it had.
    Rename(u64, Cookie),
    /// A connection, and the bytes that were offered.
    Sendv(u64, u64),
    /// A timer, and its delay.
    Timer(u64, u64),
    TxMemory,
    SharedMemory,
    Drain,
    UdpBind(u64),
    /// A datagram under way.
    Datagram(u64),
    PacketBind(u64),
    PacketInfo,
    /// A frame under way.
    Packet(u64),
    /// To which elastic thread, and what.
    Signal(u32, u64),
}

/// The elastic thread with one [`Pending`] beside each slot of its call array.
pub(super) struct Batch {
    pub(super) thread: Thread,
    pending: Vec<Pending>,
    answered: Vec<Pending>,
    /// Calls that the array had no room for; they go first into the next batch.
    backlog: VecDeque<(Batched, Pending)>,
}

impl Batch {
    pub(super) fn new(thread: Thread) -> Batch {
        let slots = || Vec::with_capacity(CALLS_MAX);
        Batch { thread, pending: slots(), answered: slots(), backlog: VecDeque::new() }
    }

    /// Appends a call, now or (when the array is full) to the next batch; order is kept. Answers
    /// whether it is in the array.
    #[inline]
    pub(super) fn push(&mut self, call: Batched, pending: Pending) -> bool {
        let now = self.backlog.is_empty() && self.thread.push(call).is_some();
        if now {
            self.pending.push(pending);
        } else {
            self.backlog.push_back((call, pending));
        }
        now
    }

    /// Appends a call to the next batch while the answers of the last one are still being read.
    pub(super) fn push_later(&mut self, call: Batched, pending: Pending) {
        self.backlog.push_back((call, pending));
    }

    /// Whether `calls` calls and a scatter-gather array have room.
    #[inline]
    pub(super) fn has_room(&self, calls: usize) -> bool {
        self.backlog.is_empty() && self.thread.call_room() >= calls && self.thread.sg_room()
    }

    /// Appends one `sendv` of what is unsent, and answers how many bytes it has: one array's at
    /// most. There is room.
    pub(super) fn push_sendv(&mut self, handle: Handle, id: u64, out: &OutQueue) -> u64 {
        let Some((_, offered)) = self.thread.push_sendv(handle, out.unsent_pieces()) else {
            return 0;
        };
        self.pending.push(Pending::Sendv(id, offered));
        offered
    }

    /// Appends a datagram; there is room. `id` is what `UdpSent` and the answer name.
    pub(super) fn push_datagram(&mut self, socket: u64, to: SocketAddr, buf: &TxBuf, id: u64) {
        let piece = SgEntry { base: buf.base(), len: buf.len() as u64 };
        let pieces = core::iter::once(piece);
        if self.thread.push_udp_sendv(socket, to, pieces, id).is_some() {
            self.pending.push(Pending::Datagram(id));
        }
    }

    /// Appends a frame; there is room. `id` is what `PacketSent` and the answer name.
    pub(super) fn push_packet(
        &mut self,
        queue: u64,
        pieces: impl Iterator<Item = SgEntry>,
        id: u64,
    ) {
        if self.thread.push_packet_sendv(queue, pieces, id).is_some() {
            self.pending.push(Pending::Packet(id));
        }
    }

    /// Moves what waits into the array, as far as there is room.
    pub(super) fn refill(&mut self) {
        while self.thread.call_room() > 0
            && let Some((call, pending)) = self.backlog.pop_front()
        {
            self.thread.push(call);
            self.pending.push(pending);
        }
    }

    /// Takes the calls on flows of a group out of those that wait, in their order.
    pub(super) fn take_from_backlog(&mut self, group: u32) -> Vec<(Batched, Pending)> {
        let of_group = |call: &Batched| call.handle().is_some_and(|h| group_of(h) == group);
        let (taken, left) = self.backlog.drain(..).partition(|(call, _)| of_group(call));
        self.backlog = left;
        VecDeque::into(taken)
    }

    /// Whether calls are in the array.
    pub(super) fn has_calls(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Whether calls wait for the next batch.
    pub(super) fn has_backlog(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// One cycle; answers the number of events.
    pub(super) fn run_io(&mut self, wait: Wait) -> Result<usize, Error> {
        let events = self.thread.run_io(wait);
        self.answered.clear();
        core::mem::swap(&mut self.pending, &mut self.answered);
        events
    }

    /// Calls of the last batch.
    pub(super) fn answers(&self) -> usize {
        self.answered.len()
    }

    /// Whom the answer in `slot` of the last batch is for, and the answer.
    pub(super) fn answer(&self, slot: usize) -> (Pending, Result<u64, Error>) {
        (self.answered[slot], self.thread.answer(slot))
    }
}
