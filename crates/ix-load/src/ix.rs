//! The generator on a dataplane: one elastic thread, straight on the batched calls and event
//! conditions.
use crate::clock::Clock;
use crate::engine::{End, Engine, Verdict};
use crate::protocol::Protocol;
use crate::worker::Backend;
use anyhow::Result;
use ix_abi::SgEntry;
use libix::raw::call::{self, Batched};
use libix::raw::{Event, Received, Thread, TxBuf, Wait};
use libix::{Dead, Error};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

/// Longest sleep, so that the end of a run is noticed.
const SLEEP_US: u64 = 10_000;
/// A sleeping dataplane wakes some time after it was asked to: the rest is spent polling.
const WAKE_US: u64 = 500;
/// Calls that one connection appends in a cycle at most.
const EMIT_CALLS: usize = 2;
/// Bytes of transmit memory that are asked for at a time.
const TX_STEP_BYTES: u64 = 2 << 20;

/// Whom the answer of a call is for.
#[derive(Clone, Copy)]
enum Pending {
    Nothing,
    Connect(u64),
    /// A connection and the bytes that were offered.
    Sendv(u64, u64),
    Bind(u64),
    /// The memory of a datagram.
    Datagram(u32),
    TxMemory,
}

/// One connection, or one UDP socket.
#[derive(Default)]
struct Flow {
    /// Dataplane's name; 0: none yet.
    handle: u64,
    /// Counts the connections that this place had: events of an earlier one are stale.
    generation: u32,
    up: bool,
    /// In the list of those that may have calls to append.
    dirty: bool,
    /// The window took less than it was given; `Sent` says when to try again.
    blocked: bool,
    /// Received bytes to give back.
    done_bytes: u64,
    /// Request bytes not acknowledged, oldest first.
    pieces: VecDeque<TxBuf>,
    /// Bytes of the first piece that are acknowledged.
    front_acked: u64,
    /// Bytes of the pieces that a `sendv` took.
    taken_bytes: u64,
    unsent_bytes: u64,
    /// Request bytes that transmit memory was missing for.
    spilled: Vec<u8>,
}

/// An engine on an elastic thread.
pub struct OnIx<P> {
    engine: Engine<P>,
    thread: Thread,
    local: IpAddr,
    flows: Vec<Flow>,
    targets: Vec<SocketAddr>,
    dirty: VecDeque<u32>,
    pending: Vec<Pending>,
    answered: Vec<Pending>,
    /// Calls that the array had no room for.
    backlog: VecDeque<(Batched, Pending)>,
    datagrams: Vec<Option<TxBuf>>,
    free_datagrams: Vec<u32>,
    out: Vec<u8>,
    tx_asked: bool,
    spin: bool,
}

impl<P: Protocol> OnIx<P> {
    /// Connection i goes to target i modulo their number. `local`: the dataplane's address.
    pub fn new(
        engine: Engine<P>,
        thread: Thread,
        local: IpAddr,
        targets: Vec<SocketAddr>,
        spin: bool,
    ) -> OnIx<P> {
        let flows = (0..engine.connections()).map(|_| Flow::default()).collect();
        OnIx {
            engine,
            thread,
            local,
            flows,
            targets,
            dirty: VecDeque::new(),
            pending: Vec::with_capacity(ix_abi::CALLS_MAX),
            answered: Vec::with_capacity(ix_abi::CALLS_MAX),
            backlog: VecDeque::new(),
            datagrams: Vec::new(),
            free_datagrams: Vec::new(),
            out: Vec::with_capacity(64 << 10),
            tx_asked: false,
            spin,
        }
    }

    /// Gives the elastic thread back. Its connections are reset.
    pub fn into_thread(self) -> Thread {
        self.thread
    }

    #[inline]
    fn push(&mut self, call: Batched, pending: Pending) {
        if self.backlog.is_empty() && self.thread.push(call).is_some() {
            self.pending.push(pending);
        } else {
            self.backlog.push_back((call, pending));
        }
    }

    #[inline]
    fn mark(&mut self, index: u32) {
        let flow = &mut self.flows[index as usize];
        if !flow.dirty {
            flow.dirty = true;
            self.dirty.push_back(index);
        }
    }

    fn cookie(&self, index: u32) -> u64 {
        u64::from(self.flows[index as usize].generation) << 32 | u64::from(index)
    }

    /// The connection of a cookie, unless it is an earlier one of that place.
    #[inline]
    fn live(&self, cookie: u64) -> Option<u32> {
        let flow = self.flows.get(cookie as u32 as usize)?;
        (flow.generation == (cookie >> 32) as u32).then_some(cookie as u32)
    }

    fn dial(&mut self, now_ns: u64) {
        while self.thread.call_room() > 0
            && let Some(index) = self.engine.dial(now_ns)
        {
            let cookie = self.cookie(index);
            if self.engine.is_udp() {
                let at = SocketAddr::new(self.local, 0);
                self.push(call::udp_bind(at, cookie), Pending::Bind(cookie));
            } else {
                let to = self.targets[index as usize % self.targets.len()];
                self.push(call::connect(cookie, to, 0), Pending::Connect(cookie));
            }
        }
    }

    /// Appends the calls of connections that were touched, as far as there is room.
    fn emit(&mut self, now_ns: u64) {
        // Each once: one that lacks memory joins the end again.
        for _ in 0..self.dirty.len() {
            let room = self.thread.call_room() >= EMIT_CALLS && self.thread.sg_room();
            if !room || !self.backlog.is_empty() {
                return;
            }
            let Some(index) = self.dirty.pop_front() else { return };
            self.flows[index as usize].dirty = false;
            if self.engine.is_udp() {
                self.emit_datagrams(index, now_ns);
            } else {
                self.emit_stream(index, now_ns);
            }
        }
    }

    #[inline]
    fn emit_stream(&mut self, index: u32, now_ns: u64) {
        let flow = &mut self.flows[index as usize];
        if !flow.up {
            return;
        }
        let (handle, done_bytes) = (flow.handle, core::mem::take(&mut flow.done_bytes));
        if done_bytes > 0 && self.thread.push(call::recv_done(handle, done_bytes)).is_some() {
            self.pending.push(Pending::Nothing);
        }
        if flow.unsent_bytes == 0 {
            self.out.clear();
            if flow.spilled.is_empty() {
                self.engine.output(index, now_ns, &mut self.out);
            } else {
                self.out.append(&mut flow.spilled);
            }
            let taken = fill(&self.thread, &mut flow.pieces, &self.out);
            flow.unsent_bytes = taken as u64;
            if taken < self.out.len() {
                flow.spilled.extend_from_slice(&self.out[taken..]);
            }
        }
        if flow.unsent_bytes > 0 && !flow.blocked {
            let pieces = unsent_pieces(&flow.pieces, flow.taken_bytes);
            if let Some((_, offered)) = self.thread.push_sendv(handle, pieces) {
                let cookie = u64::from(flow.generation) << 32 | u64::from(index);
                self.pending.push(Pending::Sendv(cookie, offered));
            }
        }
        if !flow.spilled.is_empty() && flow.unsent_bytes == 0 {
            // No event says that there is memory again.
            self.mark(index);
        }
    }

    fn emit_datagrams(&mut self, index: u32, now_ns: u64) {
        let to = self.targets[index as usize % self.targets.len()];
        let flow = &self.flows[index as usize];
        let (socket, up) = (flow.handle, flow.up);
        while up && self.thread.call_room() > 0 && self.thread.sg_room() {
            self.out.clear();
            if !self.engine.output_datagram(index, now_ns, &mut self.out) {
                return;
            }
            // Without memory it is lost as any other datagram.
            let Some(mut buf) = self.thread.tx().alloc(self.out.len()) else { continue };
            buf.extend(&self.out);
            let piece = SgEntry { base: buf.base(), len: buf.len() as u64 };
            let place = self.free_datagrams.pop().unwrap_or_else(|| {
                self.datagrams.push(None);
                (self.datagrams.len() - 1) as u32
            });
            self.datagrams[place as usize] = Some(buf);
            let one = core::iter::once(piece);
            if self.thread.push_udp_sendv(socket, to, one, place.into()).is_some() {
                self.pending.push(Pending::Datagram(place));
            }
        }
        self.mark(index);
    }

    fn free_datagram(&mut self, place: u32) {
        if self.datagrams.get_mut(place as usize).and_then(Option::take).is_some() {
            self.free_datagrams.push(place);
        }
    }

    /// Takes in the answers of the last batch. Calls that follow from them must wait until all
    /// were read: appending overwrites answers.
    fn settle(&mut self, now_ns: u64) {
        let mut aborts = Vec::new();
        let answered = core::mem::take(&mut self.answered);
        for (slot, pending) in answered.iter().enumerate() {
            match *pending {
                Pending::Nothing => {}
                Pending::Sendv(cookie, offered) => self.sendv_answered(slot, cookie, offered),
                Pending::Connect(cookie) => match (self.live(cookie), self.thread.answer(slot)) {
                    (Some(index), Ok(handle)) => self.flows[index as usize].handle = handle,
                    (Some(index), Err(error)) => self.refused(index, error, now_ns),
                    (None, Ok(handle)) => aborts.push(handle),
                    (None, Err(_)) => {}
                },
                Pending::Bind(cookie) => match (self.live(cookie), self.thread.answer(slot)) {
                    (Some(index), Ok(socket)) => {
                        self.flows[index as usize].handle = socket;
                        self.up(index, now_ns);
                    }
                    (Some(index), Err(error)) => self.refused(index, error, now_ns),
                    (None, _) => {}
                },
                Pending::Datagram(place) => {
                    if self.thread.answer(slot).is_err() {
                        self.free_datagram(place);
                    }
                }
                Pending::TxMemory => {
                    // Refused: what is missing spills, and is asked for again.
                    let _ = self.thread.adopt_tx(slot);
                    self.tx_asked = false;
                }
            }
        }
        self.answered = answered;
        aborts.into_iter().for_each(|handle| self.push(call::abort(handle), Pending::Nothing));
    }

    #[inline]
    fn sendv_answered(&mut self, slot: usize, cookie: u64, offered: u64) {
        let answer = self.thread.answer(slot);
        let Some(index) = self.live(cookie) else { return };
        let flow = &mut self.flows[index as usize];
        match answer {
            Ok(taken) => {
                flow.taken_bytes += taken;
                flow.unsent_bytes -= taken;
                flow.blocked = taken < offered;
                if flow.blocked || flow.unsent_bytes == 0 && flow.spilled.is_empty() {
                    return;
                }
            }
            // Out of buffers: no event will say when to try again.
            Err(Error::NoResource) => {}
            // The flow is dying: its `Dead` is on the way.
            Err(_) => return,
        }
        self.mark(index);
    }

    fn refused(&mut self, index: u32, error: Error, now_ns: u64) {
        self.forget(index);
        self.engine.closed(index, End::NotConnected(error.to_string()), now_ns);
    }

    fn up(&mut self, index: u32, now_ns: u64) {
        self.flows[index as usize].up = true;
        self.engine.connected(index, now_ns);
        self.mark(index);
    }

    #[inline]
    fn dispatch(&mut self, event: Event, now_ns: u64) {
        match event {
            Event::Recv { cookie, data, .. } => self.received(cookie, data, now_ns),
            Event::Sent { cookie, bytes, .. } => self.sent(cookie, bytes.into()),
            Event::UdpRecv { cookie, data, .. } => {
                if let Some(index) = self.live(cookie) {
                    // SAFETY: the buffer is given back by the call below, which the next `run_io`
                    // carries out; the slice does not leave this block.
                    let bytes = unsafe { data.bytes() };
                    self.engine.input_datagram(index, bytes, now_ns);
                    self.mark(index);
                }
                self.push(call::udp_recv_done(data), Pending::Nothing);
            }
            Event::UdpSent { cookie } => self.free_datagram(cookie as u32),
            Event::Connected { cookie, handle, outcome } => {
                let Some(index) = self.live(cookie) else { return };
                match outcome {
                    Ok(()) => {
                        self.flows[index as usize].handle = handle;
                        self.up(index, now_ns);
                    }
                    Err(error) => self.refused(index, error, now_ns),
                }
            }
            Event::Eof { cookie } => {
                if let Some(index) = self.live(cookie) {
                    self.abort(index);
                    self.engine.closed(index, End::Closed, now_ns);
                }
            }
            Event::Dead { cookie, reason } => {
                if let Some(index) = self.live(cookie) {
                    let up = self.flows[index as usize].up;
                    self.forget(index);
                    let end = match reason {
                        Dead::Closed => End::Closed,
                        why if up => End::Reset(why.to_string()),
                        why => End::NotConnected(why.to_string()),
                    };
                    self.engine.closed(index, end, now_ns);
                }
            }
            Event::Knock { handle, .. } => self.push(call::reject(handle), Pending::Nothing),
            Event::Timer { .. }
            | Event::Migrated { .. }
            | Event::Revoke { .. }
            | Event::Unknown => {}
        }
    }

    #[inline]
    fn received(&mut self, cookie: u64, data: Received, now_ns: u64) {
        let Some(index) = self.live(cookie) else { return };
        // SAFETY: buffers are given back and flows aborted by calls that the next `run_io` carries
        // out; the slice does not leave this function.
        let bytes = unsafe { data.bytes() };
        self.flows[index as usize].done_bytes += u64::from(data.len());
        match self.engine.input(index, bytes, now_ns) {
            Verdict::Open => self.mark(index),
            Verdict::Reset => self.abort(index),
        }
    }

    #[inline]
    fn sent(&mut self, cookie: u64, bytes: u64) {
        let Some(index) = self.live(cookie) else { return };
        let flow = &mut self.flows[index as usize];
        let mut left = bytes + flow.front_acked;
        while let Some(front) = flow.pieces.front() {
            let len = front.len() as u64;
            if left < len || flow.taken_bytes < len {
                break;
            }
            left -= len;
            flow.taken_bytes -= len;
            flow.pieces.pop_front();
        }
        flow.front_acked = left;
        if core::mem::take(&mut flow.blocked) {
            self.mark(index);
        }
    }

    /// Resets a connection.
    fn abort(&mut self, index: u32) {
        let handle = self.flows[index as usize].handle;
        if handle != 0 && !self.engine.is_udp() {
            self.push(call::abort(handle), Pending::Nothing);
        } else if handle != 0 {
            self.push(call::udp_unbind(handle), Pending::Nothing);
        }
        self.forget(index);
    }

    fn forget(&mut self, index: u32) {
        let flow = &mut self.flows[index as usize];
        flow.pieces.clear();
        let (generation, dirty) = (flow.generation.wrapping_add(1), flow.dirty);
        let pieces = core::mem::take(&mut flow.pieces);
        *flow = Flow { generation, dirty, pieces, ..Flow::default() };
    }

    fn ask_for_memory(&mut self) {
        if !self.tx_asked && self.thread.tx().wants_memory() {
            self.tx_asked = true;
            self.push(call::tx_alloc(TX_STEP_BYTES), Pending::TxMemory);
        }
    }

    fn wait(&self, now_ns: u64) -> Wait {
        // A dataplane looks for a new peer of its device only while it waits.
        let spins = self.spin && self.engine.up() == self.flows.len();
        let busy = spins || !self.dirty.is_empty() || !self.backlog.is_empty();
        let idle_us = self.engine.next_ns().saturating_sub(now_ns) / 1000;
        if busy || self.tx_asked || idle_us <= 2 * WAKE_US {
            return Wait::Poll;
        }
        Wait::Us((idle_us - WAKE_US).min(SLEEP_US))
    }
}

impl<P: Protocol> Backend<P> for OnIx<P> {
    fn engine(&mut self) -> &mut Engine<P> {
        &mut self.engine
    }

    fn turn(&mut self, clock: &Clock) -> Result<()> {
        let now_ns = clock.now_ns();
        while let Some(&(call, pending)) = self.backlog.front()
            && self.thread.push(call).is_some()
        {
            self.pending.push(pending);
            self.backlog.pop_front();
        }
        self.ask_for_memory();
        self.dial(now_ns);
        while let Some(index) = self.engine.take_ready() {
            self.mark(index);
        }
        while let Some(index) = self.engine.take_stuck() {
            self.abort(index);
        }
        self.emit(now_ns);
        let wait = self.wait(now_ns);
        let events = self.thread.run_io(wait)?;
        self.answered.clear();
        core::mem::swap(&mut self.pending, &mut self.answered);
        let now_ns = clock.now_ns();
        self.settle(now_ns);
        for index in 0..events {
            self.dispatch(self.thread.event(index), now_ns);
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        (0..self.flows.len() as u32).for_each(|index| self.abort(index));
        // Each cycle carries out what the array has room for.
        while !self.backlog.is_empty() || !self.pending.is_empty() {
            self.thread.run_io(Wait::Poll)?;
            self.pending.clear();
            while let Some(&(call, pending)) = self.backlog.front()
                && self.thread.push(call).is_some()
            {
                self.pending.push(pending);
                self.backlog.pop_front();
            }
        }
        Ok(())
    }
}

/// Copies bytes into transmit memory; answers how many it had room for.
#[inline]
fn fill(thread: &Thread, pieces: &mut VecDeque<TxBuf>, data: &[u8]) -> usize {
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
fn unsent_pieces(pieces: &VecDeque<TxBuf>, taken: u64) -> impl Iterator<Item = SgEntry> {
    let mut skip = taken;
    pieces.iter().filter_map(move |buf| {
        let len = buf.len() as u64;
        let step = skip.min(len);
        skip -= step;
        (step < len).then(|| SgEntry { base: buf.base() + step, len: len - step })
    })
}
