//! One elastic thread, from the application's side.
use super::call::{self, Batched};
use super::signal::SignalMask;
use super::{Event, Gate, Process, ProcessGate, Received, TxArena, Will};
use crate::addr;
use crate::error::Error;
use core::fmt;
use core::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use core::sync::atomic::AtomicU64;
use ix_abi::{
    CALLS_MAX, Call, CallSlot, Cookie, EVENTS_MAX, EventSlot, FlowInfo, Handle, PacketInfo, SG_MAX,
    SentNews, SgArray, SgEntry, ThreadArea, ThreadStatus, event_kind, gate_op,
};
use std::net::SocketAddr;
use std::os::fd::RawFd;

/// Bytes of transmit memory in one step of `TX_ALLOC`.
pub(super) const TX_STEP_BYTES: u64 = 2 << 20;
/// Scatter-gather entries that one batch can hold: they are in transmit memory, which the dataplane
/// may read.
const SG_SCRATCH: usize = (TxArena::LARGEST_BYTES as usize) / size_of::<SgEntry>();

/// How long [`Thread::run_io`] waits for an event condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Does not wait: one cycle.
    Poll,
    /// At most this many µs.
    Us(u64),
    /// Until there is an event condition.
    Forever,
}

/// Why a Linux thread could not become an elastic thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnterError {
    /// The dataplane has fewer elastic threads.
    NoSuchThread {
        /// Number of its elastic threads.
        threads: u32,
    },
    /// The dataplane refused; `InUse`: another Linux thread has entered this elastic thread.
    Refused(Error),
    /// There is no transmit memory for it.
    NoTxMemory(Error),
}

impl fmt::Display for EnterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EnterError::NoSuchThread { threads } => {
                write!(f, "no such elastic thread: this dataplane has {threads} (ix run --cpus)")
            }
            EnterError::Refused(error) => write!(f, "cannot enter the elastic thread: {error}"),
            EnterError::NoTxMemory(error) => write!(f, "no transmit memory: {error}"),
        }
    }
}

impl std::error::Error for EnterError {}

/// Gets another dataplane in place of one that has ended, unless another thread has got it, and
/// enters it. Waits while other threads do not know yet, or one of them gets it right now.
fn enter_next(gate: &mut dyn Gate, index: u32) -> Result<(), Error> {
    let pause = std::time::Duration::from_millis(1);
    loop {
        let renewed = Error::check(gate.call(gate_op::RENEW, index.into(), 0, 0));
        let entered = match renewed {
            Err(Error::InUse) => Err(Error::Lost),
            Err(error) => return Err(error),
            Ok(_) => Error::check(gate.call(gate_op::ENTER, index.into(), 0, 0)),
        };
        match entered {
            Err(Error::Lost) => std::thread::sleep(pause),
            entered => return entered.map(drop),
        }
    }
}

/// What ends behind the pieces of a `sendv`, if these have as many bytes, and the window takes them
/// all.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ends {
    /// Our direction: FIN follows.
    pub stream: Option<u64>,
    /// A message: what is sent later is in other segments.
    pub message: Option<u64>,
}

/// An elastic thread, entered by the Linux thread that holds this. Dropping it leaves the elastic
/// thread.
pub struct Thread {
    gate: Box<dyn Gate>,
    index: u32,
    calls: *mut CallSlot,
    events: *const EventSlot,
    status: *const ThreadStatus,
    will: Option<Will>,
    batches: u64,
    pushed: usize,
    answered: usize,
    ready: usize,
    tx: TxArena,
    sg: *mut SgEntry,
    sg_used: usize,
    signals: SignalMask,
}

impl Thread {
    /// Makes the calling Linux thread elastic thread `index`: it is pinned to the hardware thread,
    /// and its signals are blocked.
    pub fn enter(process: &Process, index: u32) -> Result<Thread, EnterError> {
        let threads = process.threads();
        let area = process.area(index).ok_or(EnterError::NoSuchThread { threads })?;
        let gate: ProcessGate = process.gate();
        // SAFETY: area and gate are the dataplane's own, of the same thread.
        unsafe { Thread::with_gate(Box::new(gate), area, index) }
    }

    /// Elastic thread `index` without its own Linux thread: any thread of the process that has this
    /// value may run a cycle. Threads are not pinned and signals not blocked; no signal handler of
    /// the program may run within [`Thread::run_io`].
    ///
    /// `first` appends calls to the first batch, after one of ours in slot 0: listeners that must
    /// be open before the first packet is handled. Also returns the events of that cycle.
    /// `Refused(Lost)`: the dataplane has ended; after [`Process::renew`] the threads that were
    /// shared before are shared again ([`Thread::share_again`]), and this one is asked for anew.
    pub fn share(
        process: &Process,
        index: u32,
        first: impl FnOnce(&mut Thread),
    ) -> Result<(Thread, usize), EnterError> {
        let threads = process.threads();
        let area = process.area(index).ok_or(EnterError::NoSuchThread { threads })?;
        let gate: ProcessGate = process.gate();
        // SAFETY: area and gate are the dataplane's own, of the same thread.
        unsafe { Thread::begin(Box::new(gate), area, index, gate_op::SHARE, first) }
    }

    /// After [`Error::Lost`] and [`Process::renew`]: shares the elastic thread of the new
    /// dataplane. Flows, listeners and sockets are gone; transmit memory is what it was. `first` is
    /// as for [`Thread::share`].
    pub fn share_again(&mut self, first: impl FnOnce(&mut Thread)) -> Result<usize, EnterError> {
        let entered = self.gate.call(gate_op::SHARE, self.index.into(), 0, 0);
        Error::check(entered).map_err(EnterError::Refused)?;
        self.batches = 0;
        (self.pushed, self.answered, self.ready, self.sg_used) = (0, 0, 0, 0);
        self.push(Batched(Call::Nop));
        first(self);
        self.run_io(Wait::Poll).map_err(EnterError::Refused)
    }

    /// After [`Error::Lost`]: leaves the elastic thread, gets another dataplane once all threads of
    /// the program have left theirs, and enters it. Flows, listeners, sockets and timers are gone;
    /// transmit memory is what it was. Received bytes must not be looked at any more.
    pub(crate) fn renew(&mut self) -> Result<(), Error> {
        self.gate.call(gate_op::LEAVE, self.index.into(), 0, 0);
        enter_next(&mut *self.gate, self.index)?;
        (self.pushed, self.answered, self.ready, self.sg_used) = (0, 0, 0, 0);
        Ok(())
    }

    /// Makes waits also end when this descriptor is readable.
    pub fn watch(&mut self, fd: Option<RawFd>) -> Result<(), Error> {
        let fd_plus_1 = fd.map_or(0, |fd| fd as u64 + 1);
        Error::check(self.gate.call(gate_op::WATCH, self.index.into(), fd_plus_1, 0)).map(drop)
    }

    /// Enters through any gate.
    ///
    /// # Safety
    /// `area` holds the addresses of arrays that `gate` serves as thread `index` as `ix-abi`
    /// promises: they outlive this value, no other code writes the calls, events and status change
    /// only within a gate call, and `TX_ALLOC` returns memory for this program alone, given out
    /// once and never taken away.
    pub unsafe fn with_gate(
        gate: Box<dyn Gate>,
        area: ThreadArea,
        index: u32,
    ) -> Result<Thread, EnterError> {
        // A new elastic thread has no flows, so this cycle has no events that could be missed.
        // SAFETY: the caller's promise.
        unsafe { Thread::begin(gate, area, index, gate_op::ENTER, |_| {}) }
            .map(|(thread, _)| thread)
    }

    /// As [`Thread::with_gate`]; `how` is `ENTER` or `SHARE`. Of a dataplane that has ended an
    /// elastic thread is entered anew, without `first`; one to be shared is refused with
    /// [`Error::Lost`], for the caller knows which others it shares.
    ///
    /// # Safety
    /// As there.
    unsafe fn begin(
        mut gate: Box<dyn Gate>,
        area: ThreadArea,
        index: u32,
        how: u64,
        first: impl FnOnce(&mut Thread),
    ) -> Result<(Thread, usize), EnterError> {
        let signals = SignalMask::of_this_thread();
        match Error::check(gate.call(how, index.into(), 0, 0)) {
            Err(Error::Lost) if how == gate_op::ENTER => enter_next(&mut *gate, index),
            entered => entered.map(drop),
        }
        .map_err(EnterError::Refused)?;
        // For the first batch. It is no transmit memory, so the dataplane neither reads nor writes
        // it, and a call with an array there is an error.
        let mut refused = vec![SgEntry { base: 0, len: 0 }; SG_SCRATCH];
        let mut thread = Thread {
            gate,
            index,
            calls: with_exposed_provenance_mut(area.calls as usize),
            events: with_exposed_provenance_mut::<EventSlot>(area.events as usize),
            status: with_exposed_provenance_mut::<ThreadStatus>(area.status as usize),
            // SAFETY: as the other addresses of the area; taken once.
            will: unsafe { Will::at(area.will) },
            batches: 0,
            pushed: 0,
            answered: 0,
            ready: 0,
            tx: TxArena::default(),
            sg: refused.as_mut_ptr(),
            sg_used: 0,
            signals,
        };
        thread.push(call::tx_alloc(TX_STEP_BYTES));
        first(&mut thread);
        let mut begun = thread.run_io(Wait::Poll);
        while begun == Err(Error::Lost) && how == gate_op::ENTER {
            // This dataplane has ended already; the next one does as well.
            thread.renew().map_err(EnterError::Refused)?;
            thread.push(call::tx_alloc(TX_STEP_BYTES));
            begun = thread.run_io(Wait::Poll);
        }
        let events = begun.map_err(EnterError::Refused)?;
        thread.adopt_tx(0).map_err(EnterError::NoTxMemory)?;
        let scratch = thread.tx.alloc(TxArena::LARGEST_BYTES as usize);
        let scratch = scratch.ok_or(EnterError::NoTxMemory(Error::NoResource))?;
        thread.sg = scratch.into_raw().cast();
        Ok((thread, events))
    }

    /// Number of this elastic thread.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Time of the last cycle, µs of the dataplane's monotonic clock.
    #[inline]
    pub fn now_us(&self) -> u64 {
        // SAFETY: the status is readable and changes only within a gate call (`with_gate`).
        unsafe { (*self.status).now_us }
    }

    /// Transmit memory of this thread.
    pub fn tx(&self) -> &TxArena {
        &self.tx
    }

    /// What is carried out when the process ends, if the dataplane has that; once for each thread.
    pub fn take_will(&mut self) -> Option<Will> {
        self.will.take()
    }

    /// The number of the batch that is written, since this process has had the arrays, and of the
    /// calls in it.
    #[inline]
    pub fn batch(&self) -> (u64, usize) {
        (self.batches + 1, self.pushed)
    }

    /// Free slots of the batch.
    #[inline]
    pub fn call_room(&self) -> usize {
        CALLS_MAX - self.pushed
    }

    /// Appends a call to the batch and returns its slot; `None`: the batch is full, run a cycle.
    /// Overwrites the results of the last cycle from the first slot on.
    #[inline]
    pub fn push(&mut self, call: Batched) -> Option<usize> {
        if self.pushed == CALLS_MAX {
            return None;
        }
        let slot = self.pushed;
        // SAFETY: slot is below CALLS_MAX, and the call array is ours to write (`with_gate`).
        unsafe { self.calls.add(slot).write(call.0.encode()) };
        self.pushed += 1;
        self.answered = 0;
        Some(slot)
    }

    /// Whether [`Thread::push_sendv`] can take `SG_MAX` pieces.
    #[inline]
    pub fn sg_room(&self) -> bool {
        SG_SCRATCH - self.sg_used >= SG_MAX
    }

    /// Appends a `sendv` of the first `SG_MAX` pieces; returns its slot and the bytes in them. The
    /// result of the call is the number of bytes that the window took. `None`: run a cycle first.
    ///
    /// A piece must be in transmit memory, or in received bytes that were not given back, and must
    /// not change until `Sent`; other pieces are an error of the call.
    #[inline]
    pub fn push_sendv(
        &mut self,
        handle: Handle,
        pieces: impl Iterator<Item = SgEntry>,
    ) -> Option<(usize, u64)> {
        self.push_sendv_of(handle, 0, pieces, Ends::default())
    }

    /// The same, and what ends with as many bytes as the pieces have ends behind them, provided
    /// that the window takes them all. Before that, `done` received bytes are given back, as by
    /// [`call::recv_done`].
    #[inline(always)]
    pub(crate) fn push_sendv_of(
        &mut self,
        handle: Handle,
        done: u64,
        pieces: impl Iterator<Item = SgEntry>,
        ends: Ends,
    ) -> Option<(usize, u64)> {
        let (sg, bytes) = self.gather(pieces)?;
        let (fin, eor) = (ends.stream == Some(bytes), ends.message == Some(bytes));
        let slot = self.push(Batched(Call::SendV { handle, sg, fin, eor, done }))?;
        Some((slot, bytes))
    }

    /// Appends a datagram of the first `SG_MAX` pieces, under the same rule for their memory;
    /// `UdpSent` with `cookie` ends it. `None`: run a cycle first.
    pub fn push_udp_sendv(
        &mut self,
        socket: u64,
        to: SocketAddr,
        pieces: impl Iterator<Item = SgEntry>,
        cookie: Cookie,
    ) -> Option<(usize, u64)> {
        let (sg, bytes) = self.gather(pieces)?;
        let (socket, to) = (call::id(socket), addr::endpoint(to));
        let slot = self.push(Batched(Call::UdpSendV { socket, to, sg, cookie }))?;
        Some((slot, bytes))
    }

    /// Appends a frame of the first `SG_MAX` pieces, under the same rule for their memory;
    /// `PacketSent` with `cookie` ends it. `None`: run a cycle first.
    pub fn push_packet_sendv(
        &mut self,
        queue: u64,
        pieces: impl Iterator<Item = SgEntry>,
        cookie: Cookie,
    ) -> Option<(usize, u64)> {
        let (sg, bytes) = self.gather(pieces)?;
        let slot = self.push(Batched(Call::PacketSendV { queue: call::id(queue), sg, cookie }))?;
        Some((slot, bytes))
    }

    /// Appends a question about a flow; [`Thread::flow_info`] returns the answer. `None`: run a
    /// cycle first.
    pub fn push_get_info(&mut self, handle: Handle) -> Option<usize> {
        let to = self.answer_room::<FlowInfo>()?;
        self.push(Batched(Call::GetInfo { handle, to }))
    }

    /// Appends a question about the device of a packet queue; [`Thread::packet_info`] returns the
    /// answer. `None`: run a cycle first.
    pub fn push_packet_info(&mut self, queue: u64) -> Option<usize> {
        let to = self.answer_room::<PacketInfo>()?;
        self.push(Batched(Call::PacketInfo { queue: call::id(queue), to }))
    }

    /// Room for an answer that is longer than a slot. It is the thread's own and not a
    /// [`super::TxBuf`] of the caller, because the dataplane writes there during the cycle, when
    /// such a buffer could be dropped already and belong to somebody else.
    fn answer_room<T>(&mut self) -> Option<u64> {
        const { assert!(size_of::<T>() <= SG_MAX * size_of::<SgEntry>()) };
        if !self.sg_room() || self.call_room() == 0 {
            return None;
        }
        // SAFETY: `sg_room`: SG_MAX of the SG_SCRATCH entries at `sg` are free from here on.
        let room = unsafe { self.sg.add(self.sg_used) };
        self.sg_used += size_of::<T>().div_ceil(size_of::<SgEntry>());
        Some(room.expose_provenance() as u64)
    }

    /// Writes pieces into transmit memory; returns their array and the bytes in it.
    #[inline]
    fn gather(&mut self, pieces: impl Iterator<Item = SgEntry>) -> Option<(SgArray, u64)> {
        if !self.sg_room() || self.call_room() == 0 {
            return None;
        }
        // SAFETY: `sg_room`: SG_MAX of the SG_SCRATCH entries at `sg` are free from here on.
        let array = unsafe { self.sg.add(self.sg_used) };
        let (mut entries, mut bytes) = (0, 0);
        for piece in pieces.take(SG_MAX) {
            // SAFETY: as above, and `take` keeps `entries` below SG_MAX.
            unsafe { array.add(entries).write(piece) };
            entries += 1;
            bytes += piece.len;
        }
        self.sg_used += entries;
        let addr = array.expose_provenance() as u64;
        Some((SgArray { addr, entries: entries as u64 }, bytes))
    }

    /// Gives the thread to the dataplane for one cycle, which carries out the batch and handles
    /// packets; returns the number of event conditions. Events seen before are lost.
    pub fn run_io(&mut self, wait: Wait) -> Result<usize, Error> {
        let wait_us = match wait {
            Wait::Poll => 0,
            Wait::Us(us) => us,
            Wait::Forever => gate_op::WAIT_FOREVER,
        };
        let pushed = self.pushed as u64;
        self.batches += 1;
        let events = self.gate.call(gate_op::RUN_IO, self.index.into(), pushed, wait_us);
        self.answered = self.pushed;
        self.pushed = 0;
        self.sg_used = 0;
        self.ready = 0;
        self.ready = (Error::check(events)? as usize).min(EVENTS_MAX);
        // SAFETY: the status is readable and changes only within a gate call (`with_gate`).
        if unsafe { (*self.status).signal_pending } != 0 {
            self.signals.open_window();
        }
        Ok(self.ready)
    }

    /// Leaves the elastic thread while `work` runs: meanwhile the calling Linux thread is an
    /// ordinary one, on any hardware thread. `Err`: it could not enter again, with the result of
    /// `work`; this value can no longer be used.
    ///
    /// Call [`call::drain`] and wait for [`Event::Drained`] first: events of flow groups that are
    /// still here would be lost. The timers of the thread end.
    pub fn in_background<R>(&mut self, work: impl FnOnce() -> R) -> Result<R, (Error, R)> {
        let index = self.index.into();
        (self.pushed, self.answered, self.ready, self.sg_used) = (0, 0, 0, 0);
        self.gate.call(gate_op::LEAVE, index, 0, 0);
        let result = work();
        match Error::check(self.gate.call(gate_op::ENTER, index, 0, 0)) {
            Ok(_) => Ok(result),
            Err(error) => Err((error, result)),
        }
    }

    /// Result of the call in `slot` of the last batch.
    ///
    /// # Panics
    /// When the last batch had no such slot, or a call was pushed since.
    #[inline]
    pub fn answer(&self, slot: usize) -> Result<u64, Error> {
        assert!(slot < self.answered, "no answer in this slot");
        // SAFETY: slot is below CALLS_MAX, and the dataplane writes only within a gate call.
        Error::check(unsafe { (*self.calls.add(slot)).ret })
    }

    /// What [`Thread::push_get_info`] in `slot` of the last batch was told.
    ///
    /// # Panics
    /// As [`Thread::answer`].
    pub fn flow_info(&self, slot: usize) -> Result<FlowInfo, Error> {
        let Call::GetInfo { to, .. } = self.carried_out(slot)? else { return Err(Error::Invalid) };
        // SAFETY: `push_get_info` made the call, with room for this.
        Ok(unsafe { Thread::read_answer(to) })
    }

    /// What [`Thread::push_packet_info`] in `slot` of the last batch was told.
    ///
    /// # Panics
    /// As [`Thread::answer`].
    pub fn packet_info(&self, slot: usize) -> Result<PacketInfo, Error> {
        let Call::PacketInfo { to, .. } = self.carried_out(slot)? else {
            return Err(Error::Invalid);
        };
        // SAFETY: `push_packet_info` made the call, with room for this.
        Ok(unsafe { Thread::read_answer(to) })
    }

    /// The call in `slot` of the last batch, if it was carried out.
    fn carried_out(&self, slot: usize) -> Result<Call, Error> {
        self.answer(slot)?;
        // SAFETY: as in `answer`; the dataplane changes nothing of a slot but its result.
        Call::decode(unsafe { &*self.calls.add(slot) }).map_err(|_| Error::Invalid)
    }

    /// Reads what the dataplane has written into [`Thread::answer_room`]: nothing was pushed since
    /// the cycle, or `answer` would have refused, so the room has not been given out again.
    ///
    /// # Safety
    /// `room` is from `answer_room::<T>`, and any bytes are a `T`.
    unsafe fn read_answer<T: Copy>(room: u64) -> T {
        // SAFETY: the caller's promise; a block is never given back, and its memory was zero before
        // anything was written to it.
        unsafe { with_exposed_provenance::<T>(room as usize).read_unaligned() }
    }

    /// Event condition `index` of the last cycle.
    ///
    /// # Panics
    /// When there were fewer.
    #[inline]
    pub fn event(&self, index: usize) -> Event {
        assert!(index < self.ready, "no such event");
        // SAFETY: index is below EVENTS_MAX, and events change only within a gate call.
        Event::view(unsafe { &*self.events.add(index) })
    }

    /// Event condition `index` of the last cycle, if it brings data of a flow: the flow's name, the
    /// data, and what came with it. [`Thread::event`] returns the same, but must look for what it
    /// is.
    #[inline]
    pub(crate) fn recv(&self, index: usize) -> Option<(Cookie, Received, SentNews)> {
        assert!(index < self.ready, "no such event");
        // SAFETY: as in `event`.
        let slot = unsafe { &*self.events.add(index) };
        if slot.kind != event_kind::RECV {
            return None;
        }
        match ix_abi::Event::decode(slot) {
            Ok(ix_abi::Event::Recv { cookie, data, news, .. }) => Some((cookie, data.into(), news)),
            _ => None,
        }
    }

    /// The bytes of event condition `index` of the last cycle; empty if it has none. They are still
    /// there after calls were pushed: nothing is given back before the next cycle.
    ///
    /// # Panics
    /// When there were fewer events.
    #[inline]
    pub fn received(&self, index: usize) -> &[u8] {
        let data = match self.event(index) {
            Event::Recv { data, .. }
            | Event::UdpRecv { data, .. }
            | Event::UdpError { data: Some(data), .. }
            | Event::PacketRecv { data, .. } => data,
            _ => return &[],
        };
        // SAFETY: the last cycle carried out all calls before it brought the event, and the next
        // one, which carries out those that were pushed since, takes `self` mutably.
        unsafe { data.bytes() }
    }

    /// The application's name in event `index`; `None` if there were fewer.
    #[inline]
    pub(crate) fn cookie(&self, index: usize) -> Option<Cookie> {
        // SAFETY: as in `event`.
        (index < self.ready).then(|| unsafe { (*self.events.add(index)).cookie })
    }

    /// Adds the memory of a `tx_alloc` in `slot` of the last batch to the arena.
    pub fn adopt_tx(&mut self, slot: usize) -> Result<(), Error> {
        let (base, bytes) = self.take_tx(slot)?;
        // SAFETY: the dataplane gave out these bytes for this thread alone (`with_gate`), and the
        // slot can no longer bring them a second time.
        unsafe { self.tx.adopt(base, bytes) };
        Ok(())
    }

    /// Transmit memory that all threads of the program may use, for the life of the program. Runs a
    /// cycle, so it is only for a thread without connections: the events of that cycle would be
    /// lost.
    pub fn shared_memory(&mut self, bytes: u64) -> Result<&'static [AtomicU64], Error> {
        self.run_io(Wait::Poll)?;
        self.push(call::tx_alloc(bytes));
        self.run_io(Wait::Poll)?;
        self.claim_tx(0)
    }

    /// The memory of a `tx_alloc` in `slot` of the last batch, for all threads of the program.
    pub fn claim_tx(&mut self, slot: usize) -> Result<&'static [AtomicU64], Error> {
        let (base, bytes) = self.take_tx(slot)?;
        let base = with_exposed_provenance::<AtomicU64>(base as usize);
        assert!(base.is_aligned(), "transmit memory begins at a word");
        // SAFETY: the dataplane gave out these bytes for this program alone, for its life
        // (`with_gate`); nothing else in the program knows them. They are aligned.
        Ok(unsafe { core::slice::from_raw_parts(base, bytes as usize / size_of::<AtomicU64>()) })
    }

    /// Address and bytes of the memory of a `tx_alloc` in `slot`, once for each.
    fn take_tx(&mut self, slot: usize) -> Result<(u64, u64), Error> {
        let base = self.answer(slot)?;
        // SAFETY: as in `answer`; the slot is ours to write.
        let call = unsafe { &mut *self.calls.add(slot) };
        let Ok(Call::TxAlloc { bytes }) = Call::decode(call) else { return Err(Error::Invalid) };
        *call = CallSlot { ret: Error::encode(Err(Error::Invalid)), ..Call::Nop.encode() };
        // A cycle that the dataplane refused leaves 0 there, which is no memory.
        if base == 0 { Err(Error::State) } else { Ok((base, bytes)) }
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.gate.call(gate_op::LEAVE, self.index.into(), 0, 0);
    }
}
