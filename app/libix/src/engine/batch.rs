//! The batch of calls that is being written, and what each of their answers is for.
use crate::error::Error;
use crate::raw::call::Batched;
use crate::raw::{Ends, Thread};
use ix_abi::{CALLS_MAX, Handle, SgEntry, group_of};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// A note beside each slot of a thread's call array: what its answer is for. Calls that the array
/// has no room for wait here for the next cycle.
///
/// Answers are overwritten by the calls of the next batch. While some are unread, new calls wait,
/// too.
pub struct Batch<P> {
    pending: Vec<P>,
    answered: Vec<P>,
    /// Answers that were read.
    read: usize,
    /// Calls that the array had no room for; they go first into the next batch.
    backlog: VecDeque<(Batched, P)>,
}

impl<P: Copy> Batch<P> {
    /// No calls yet.
    pub const fn new() -> Batch<P> {
        Batch { pending: Vec::new(), answered: Vec::new(), read: 0, backlog: VecDeque::new() }
    }

    /// The same with memory for a full array, so that no call allocates.
    pub(crate) fn full_size() -> Batch<P> {
        let slots = || Vec::with_capacity(CALLS_MAX);
        Batch { pending: slots(), answered: slots(), ..Batch::new() }
    }

    /// Appends a call, now or (when the array is full, or answers are unread) to the next batch;
    /// order is kept. Returns whether it is in the array. Inlined, so that encoding a call that the
    /// caller names is a few stores.
    #[inline(always)]
    pub fn push(&mut self, thread: &mut Thread, call: Batched, pending: P) -> bool {
        let now = self.backlog.is_empty() && self.all_read() && thread.push(call).is_some();
        if now {
            self.pending.push(pending);
        } else {
            self.no_room(call, pending);
        }
        now
    }

    #[cold]
    fn no_room(&mut self, call: Batched, pending: P) {
        self.put_off(call, pending);
    }

    /// Keeps a call for the next batch, where its caller has no thread at hand.
    #[inline]
    pub fn put_off(&mut self, call: Batched, pending: P) {
        self.backlog.push_back((call, pending));
    }

    /// Notes what the next answer is for: the caller has appended its call to the array.
    #[inline]
    pub fn pushed(&mut self, pending: P) {
        self.pending.push(pending);
    }

    /// Whether `calls` calls and a scatter-gather array have room. Nothing has while answers of the
    /// last batch are unread.
    #[inline]
    pub fn has_room(&self, thread: &Thread, calls: usize) -> bool {
        self.backlog.is_empty()
            && self.all_read()
            && thread.call_room() >= calls
            && thread.sg_room()
    }

    /// Whether the answers of the last batch were read: the next call overwrites them.
    #[inline]
    fn all_read(&self) -> bool {
        self.read == self.answered.len()
    }

    /// Appends one `sendv` of these pieces ([`Thread::push_sendv`]) and returns how many bytes it
    /// has: one array's at most. There is room. `pending` gets that number. What ends behind them
    /// ends if all are taken. Before that, `done` received bytes are given back.
    #[inline]
    pub fn push_sendv(
        &mut self,
        thread: &mut Thread,
        (handle, done, ends): (Handle, u64, Ends),
        pieces: impl Iterator<Item = SgEntry>,
        pending: impl FnOnce(u64) -> P,
    ) -> u64 {
        let Some((_, offered)) = thread.push_sendv_of(handle, done, pieces, ends) else { return 0 };
        self.pending.push(pending(offered));
        offered
    }

    /// Appends a question about a flow, which [`Thread::flow_info`] returns the answer of. False:
    /// not in this batch, there is no room.
    pub fn push_get_info(&mut self, thread: &mut Thread, handle: Handle, pending: P) -> bool {
        let pushed = self.has_room(thread, 1) && thread.push_get_info(handle).is_some();
        self.pending.extend(pushed.then_some(pending));
        pushed
    }

    /// The same about the device of a packet queue, for [`Thread::packet_info`].
    pub(crate) fn push_packet_info(&mut self, thread: &mut Thread, queue: u64, pending: P) -> bool {
        let pushed = self.has_room(thread, 1) && thread.push_packet_info(queue).is_some();
        self.pending.extend(pushed.then_some(pending));
        pushed
    }

    /// Appends a datagram; there is room. `cookie` is what `UdpSent` names.
    #[inline]
    pub fn push_datagram(
        &mut self,
        thread: &mut Thread,
        (socket, to): (u64, SocketAddr),
        piece: SgEntry,
        cookie: u64,
        pending: P,
    ) {
        let pieces = core::iter::once(piece);
        if thread.push_udp_sendv(socket, to, pieces, cookie).is_some() {
            self.pending.push(pending);
        }
    }

    /// Moves what waits into the array, as far as there is room.
    #[inline]
    pub fn refill(&mut self, thread: &mut Thread) {
        if self.has_backlog() && self.all_read() {
            self.refill_now(thread);
        }
    }

    #[inline(never)]
    fn refill_now(&mut self, thread: &mut Thread) {
        while thread.call_room() > 0
            && let Some((call, pending)) = self.backlog.pop_front()
        {
            thread.push(call);
            self.pending.push(pending);
        }
    }

    /// Takes the calls on flows of a group out of those that wait, in their order.
    pub(crate) fn take_from_backlog(&mut self, group: u32) -> Vec<(Batched, P)> {
        let of_group = |call: &Batched| call.handle().is_some_and(|h| group_of(h) == group);
        let (taken, left) = self.backlog.drain(..).partition(|(call, _)| of_group(call));
        self.backlog = left;
        VecDeque::into(taken)
    }

    /// Forgets all calls. New ones wait until [`Batch::resume`].
    pub(crate) fn hold(&mut self)
    where
        P: Default,
    {
        self.pending.clear();
        self.backlog.clear();
        self.answered.clear();
        // An answer that is not read.
        self.answered.push(P::default());
        self.read = 0;
    }

    /// The next batch can be written.
    pub(crate) fn resume(&mut self) {
        self.answered.clear();
        self.read = 0;
    }

    /// What the answers of the calls in the array are for.
    pub fn pending(&self) -> &[P] {
        &self.pending
    }

    /// Whether calls wait for the next batch.
    #[inline]
    pub fn has_backlog(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// A cycle has carried the batch out: its answers can be read.
    #[inline]
    pub fn carried_out(&mut self) {
        self.answered.clear();
        core::mem::swap(&mut self.pending, &mut self.answered);
        self.read = 0;
    }

    /// The next answer of the last batch: its slot, what it is for, and the answer.
    #[inline]
    pub fn next_answer(&mut self, thread: &Thread) -> Option<(usize, P, Result<u64, Error>)> {
        let slot = self.read;
        let pending = *self.answered.get(slot)?;
        self.read = slot + 1;
        Some((slot, pending, thread.answer(slot)))
    }
}

impl<P: Copy> Default for Batch<P> {
    fn default() -> Self {
        Batch::new()
    }
}
