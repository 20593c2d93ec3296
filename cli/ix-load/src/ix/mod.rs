//! The generator on a dataplane: one elastic thread, straight on the batched calls and event
//! conditions.
mod answers;
mod back_ends;
mod emit;
mod flow;

use crate::clock::Clock;
use crate::engine::Engine;
use crate::protocol::Protocol;
use crate::worker::Backend;
use anyhow::{Result, bail};
use back_ends::BackEnds;
use flow::Flow;
use ix_httpd::site::Site;
use libix::raw::call::{self, Batched};
use libix::raw::{Thread, TxBuf, Wait};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Longest sleep, so that the end of a run is noticed.
const SLEEP_US: u64 = 10_000;
/// Connections that are reset in a cycle at the end, and how long it takes: no faster than a peer
/// takes resets.
const RESETS_AT_ONCE: usize = 256;
const RESETS_US: u64 = 100;
/// A sleeping dataplane wakes some time after it was asked to: the rest is spent polling.
const WAKE_US: u64 = 500;
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
    /// Where a back end is to listen.
    Listen(SocketAddr),
    /// A connection of the back ends.
    Accept(u64),
    /// The same, and the bytes that were offered.
    Serve(u64, u64),
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
    back_ends: Option<BackEnds>,
    /// Why it cannot go on.
    refused: Option<String>,
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
            back_ends: None,
            refused: None,
        }
    }

    /// Serves these pages at these ports beside the load, which begins when they are served.
    pub fn serve(&mut self, site: Arc<Site>, ports: &[u16]) {
        let at = ports.iter().map(|port| SocketAddr::new(self.local, *port)).collect();
        self.back_ends = Some(BackEnds::new(&self.thread, site, at));
    }

    /// Has the back ends' calls made. False: they do not listen yet.
    fn run_back_ends(&mut self, now_ns: u64) -> Result<bool> {
        let Some(back_ends) = &mut self.back_ends else { return Ok(true) };
        back_ends.emit(&mut self.thread, &mut self.pending);
        if !back_ends.is_listening() {
            let listen = back_ends.begin(now_ns)?;
            listen.into_iter().for_each(|(call, pending)| self.push(call, pending));
            return Ok(false);
        }
        Ok(true)
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

    /// Appends calls that there was no room for before.
    #[inline]
    fn push_backlog(&mut self) {
        while let Some(&(call, pending)) = self.backlog.front()
            && self.thread.push(call).is_some()
        {
            self.pending.push(pending);
            self.backlog.pop_front();
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
        let (generation, dirty) = (back_ends::next_generation(flow.generation), flow.dirty);
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
        let serves = self.back_ends.as_ref().is_some_and(BackEnds::is_busy);
        let busy = self.spin || serves || !self.dirty.is_empty() || !self.backlog.is_empty();
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
        self.push_backlog();
        self.ask_for_memory();
        if self.run_back_ends(now_ns)? {
            self.dial(now_ns);
        }
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
        if let Some(why) = self.refused.take() {
            bail!("{why}");
        }
        for index in 0..events {
            self.dispatch(self.thread.event(index), now_ns);
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        if let Some(mut back_ends) = self.back_ends.take() {
            back_ends.end().into_iter().for_each(|call| self.push(call, Pending::Nothing));
        }
        // Some at a time: a device takes only so many packets at once, and what waits for it ends
        // with the program.
        let all: Vec<u32> = (0..self.flows.len() as u32).collect();
        for some in all.chunks(RESETS_AT_ONCE) {
            some.iter().for_each(|index| self.abort(*index));
            self.thread.run_io(Wait::Us(RESETS_US))?;
            self.pending.clear();
            self.push_backlog();
        }
        // Each cycle carries out what the array has room for.
        while !self.backlog.is_empty() || !self.pending.is_empty() {
            self.thread.run_io(Wait::Poll)?;
            self.pending.clear();
            self.push_backlog();
        }
        Ok(())
    }
}
