//! A model of a dataplane within the process, to test programs where there is none.
//!
//! All elastic threads of a [`Loopback`] live on one Linux thread; each `run_io` carries out the
//! caller's batch and moves some bytes between flows, decided by a seed. It is strict where the
//! real one must be forgiving: memory of unacknowledged bytes that changes, bytes given back
//! twice and calls on dead handles fail the test, and received buffers are overwritten once given
//! back.
mod udp;

use crate::addr;
use crate::raw::{EnterError, Gate, Thread};
use core::ptr::with_exposed_provenance_mut;
use ix_abi::{
    CALLS_MAX, Call, EVENTS_MAX, Event, Handle, SG_MAX, SgEntry, ThreadArea, ThreadStatus, call_op,
    dead, error, event_kind, gate_op,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::mem::ManuallyDrop;
use std::rc::Rc;

const RX_BUFFER_BYTES: usize = 2048;
const TX_STEP_BYTES: u64 = 2 << 20;
/// What a received buffer holds once it was given back.
const POISON: u8 = 0xdd;

/// How the model behaves.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Of everything that is random.
    pub seed: u64,
    /// Unacknowledged bytes that a flow may have.
    pub window_bytes: u64,
    /// Most bytes of a flow that one step delivers.
    pub step_bytes: u64,
    /// Steps of 2 MB of transmit memory.
    pub tx_steps: usize,
    /// Buffers for received bytes.
    pub rx_buffers: usize,
    /// One in so many `sendv` and `timer_set` finds no resources; 0: none.
    pub refuse_one_in: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            seed: 1,
            window_bytes: 64 << 10,
            step_bytes: 16 << 10,
            tx_steps: 16,
            rx_buffers: 4096,
            refuse_one_in: 0,
        }
    }
}

/// A cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line {
    _bytes: [u8; 64],
}

/// Addresses that stay where they are, written through raw pointers by both sides.
struct Memory {
    base: *mut Line,
    lines: usize,
}

impl Memory {
    fn new(bytes: usize) -> Memory {
        let lines = bytes.div_ceil(size_of::<Line>());
        let base =
            Box::into_raw(vec![Line { _bytes: [0; 64] }; lines].into_boxed_slice()).cast::<Line>();
        base.expose_provenance();
        Memory { base, lines }
    }

    fn base(&self) -> u64 {
        self.base.addr() as u64
    }

    fn contains(&self, base: u64, len: u64) -> bool {
        let offset = base.wrapping_sub(self.base());
        let bytes = (self.lines * size_of::<Line>()) as u64;
        offset <= bytes && len <= bytes - offset
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let slice = core::ptr::slice_from_raw_parts_mut(self.base, self.lines);
        // SAFETY: from `Box::into_raw` in `new`, once.
        drop(unsafe { Box::from_raw(slice) });
    }
}

fn copy_out(base: u64, len: u64) -> Vec<u8> {
    let from = with_exposed_provenance_mut::<u8>(base as usize);
    // SAFETY: callers name memory of the model, which is mapped for its whole life.
    unsafe { core::slice::from_raw_parts(from, len as usize) }.to_vec()
}

/// One elastic thread of the model.
struct Lane {
    calls: Memory,
    events: Memory,
    status: Memory,
    queue: VecDeque<Event>,
    entered: bool,
    /// Buffers of dead flows: readable until the cycle after their `DEAD` was handed over.
    dying: Vec<usize>,
}

/// Bytes that a `sendv` took: a copy, and where they must stay unchanged.
struct Taken {
    base: u64,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holder {
    Knocking,
    Application,
    Orphan,
}

struct Flow {
    lane: usize,
    cookie: u64,
    holder: Holder,
    /// The other end, while it lives.
    peer: Handle,
    /// Unacknowledged, oldest first.
    taken: VecDeque<Taken>,
    taken_bytes: u64,
    /// Of these, delivered to the peer.
    delivered_bytes: u64,
    wants_window: bool,
    fin: bool,
    fin_delivered: bool,
    /// Received buffers not given back: index and length.
    held: VecDeque<(usize, u64)>,
    front_done: u64,
}

struct World {
    config: Config,
    random: u64,
    now_us: u64,
    lanes: Vec<Lane>,
    tx: Memory,
    /// Transmit memory that was asked for in one piece; never taken away.
    shared: Vec<ManuallyDrop<Memory>>,
    tx_given: usize,
    rx: Memory,
    rx_free: Vec<usize>,
    flows: BTreeMap<Handle, Flow>,
    next_name: u64,
    listeners: BTreeMap<u64, (usize, u16, u64)>,
    timers: BTreeMap<u64, (usize, u64, u64)>,
    udp: udp::Udp,
    sendv_calls: u64,
}

/// A dataplane in the process. Clones are the same one.
#[derive(Clone)]
pub struct Loopback(Rc<RefCell<World>>);

struct LoopbackGate(Rc<RefCell<World>>);

impl Gate for LoopbackGate {
    fn call(&mut self, op: u64, a: u64, b: u64, c: u64) -> i64 {
        let mut world = self.0.borrow_mut();
        let lane = a as usize;
        match op {
            gate_op::ENTER if lane >= world.lanes.len() => -error::INVALID,
            gate_op::ENTER if world.lanes[lane].entered => -error::IN_USE,
            gate_op::ENTER | gate_op::LEAVE => {
                world.lanes[lane].entered = op == gate_op::ENTER;
                0
            }
            gate_op::RUN_IO => world.run_io(lane, b as usize, c),
            _ => -error::NO_SYS,
        }
    }
}

impl Loopback {
    /// A dataplane with so many elastic threads.
    pub fn new(threads: usize, config: Config) -> Loopback {
        let lane = |_| Lane {
            calls: Memory::new(CALLS_MAX * size_of::<Call>()),
            events: Memory::new(EVENTS_MAX * size_of::<Event>()),
            status: Memory::new(size_of::<ThreadStatus>()),
            queue: VecDeque::new(),
            entered: false,
            dying: Vec::new(),
        };
        Loopback(Rc::new(RefCell::new(World {
            random: config.seed ^ 0x9e37_79b9_7f4a_7c15,
            now_us: 1,
            lanes: (0..threads).map(lane).collect(),
            tx: Memory::new(config.tx_steps * TX_STEP_BYTES as usize),
            shared: Vec::new(),
            tx_given: 0,
            rx: Memory::new(config.rx_buffers * RX_BUFFER_BYTES),
            rx_free: (0..config.rx_buffers).collect(),
            flows: BTreeMap::new(),
            next_name: 1,
            listeners: BTreeMap::new(),
            timers: BTreeMap::new(),
            udp: udp::Udp::default(),
            sendv_calls: 0,
            config,
        })))
    }

    /// Enters elastic thread `index`.
    pub fn enter(&self, index: u32) -> Result<Thread, EnterError> {
        let area = {
            let world = self.0.borrow();
            let threads = world.lanes.len() as u32;
            let lane =
                world.lanes.get(index as usize).ok_or(EnterError::NoSuchThread { threads })?;
            ThreadArea {
                calls: lane.calls.base(),
                events: lane.events.base(),
                status: lane.status.base(),
                cpu: 0,
                reserved: 0,
            }
        };
        // SAFETY: the gate keeps the world, and so the arrays, alive as long as the thread; the
        // model writes events and status only in `run_io`, and gives each step of memory out
        // once.
        unsafe { Thread::with_gate(Box::new(LoopbackGate(Rc::clone(&self.0))), area, index) }
    }

    /// Flows that exist.
    pub fn flows(&self) -> usize {
        self.0.borrow().flows.len()
    }

    /// Received buffers that have not been given back.
    pub fn held_buffers(&self) -> usize {
        let world = self.0.borrow();
        world.config.rx_buffers - world.rx_free.len()
    }

    /// `sendv` calls so far.
    pub fn sendv_calls(&self) -> u64 {
        self.0.borrow().sendv_calls
    }

    /// Resets every connection, as a network that fails would.
    pub fn reset_all(&self) {
        let mut world = self.0.borrow_mut();
        let all: Vec<Handle> = world.flows.keys().copied().collect();
        all.into_iter().for_each(|handle| world.kill(handle, dead::RESET));
    }
}

impl World {
    fn random(&mut self, below: u64) -> u64 {
        // xorshift64* (Vigna, "An experimental exploration of Marsaglia's xorshift generators").
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % below.max(1)
    }

    fn in_tx(&self, base: u64, len: u64) -> bool {
        let mut shared = self.shared.iter();
        self.tx.contains(base, len) || shared.any(|memory| memory.contains(base, len))
    }

    fn name(&mut self) -> u64 {
        self.next_name += 1;
        self.next_name
    }

    fn run_io(&mut self, lane: usize, calls: usize, wait_us: u64) -> i64 {
        assert!(calls <= CALLS_MAX && self.lanes[lane].entered);
        if self.lanes[lane].queue.is_empty() {
            let dying = core::mem::take(&mut self.lanes[lane].dying);
            dying.into_iter().for_each(|buffer| self.free(buffer));
        }
        let array = with_exposed_provenance_mut::<Call>(self.lanes[lane].calls.base() as usize);
        for slot in 0..calls {
            // SAFETY: slot is below CALLS_MAX, and the application is in the gate.
            let call = unsafe { array.add(slot).read() };
            let ret = self.carry_out(lane, call.op, &call.args);
            // SAFETY: as above.
            unsafe { (*array.add(slot)).ret = ret.unwrap_or_else(|error| -error) };
        }
        self.now_us += 1 + self.random(20);
        let handles: Vec<Handle> = self.flows.keys().copied().collect();
        handles.into_iter().for_each(|handle| self.step(handle));
        self.move_datagrams();
        self.fire_timers(lane, wait_us);
        self.publish(lane)
    }

    fn publish(&mut self, lane: usize) -> i64 {
        let n = self.lanes[lane].queue.len().min(EVENTS_MAX);
        let array = with_exposed_provenance_mut::<Event>(self.lanes[lane].events.base() as usize);
        for (index, event) in self.lanes[lane].queue.drain(..n).enumerate() {
            // SAFETY: index is below EVENTS_MAX, and the application is in the gate.
            unsafe { array.add(index).write(event) };
        }
        let status = self.lanes[lane].status.base() as usize;
        // SAFETY: the status of the lane, as above.
        unsafe { (*with_exposed_provenance_mut::<ThreadStatus>(status)).now_us = self.now_us };
        n as i64
    }

    fn fire_timers(&mut self, lane: usize, wait_us: u64) {
        let next = self.timers.values().filter(|timer| timer.0 == lane).map(|timer| timer.2).min();
        if let Some(next) = next
            && self.lanes[lane].queue.is_empty()
            && next.saturating_sub(self.now_us) <= wait_us
        {
            self.now_us = self.now_us.max(next);
        }
        let now_us = self.now_us;
        let due = |timer: &(usize, u64, u64)| timer.0 == lane && timer.2 <= now_us;
        for (_, (_, cookie, _)) in self.timers.extract_if(.., |_, timer| due(timer)) {
            let event = Event { kind: event_kind::TIMER, cookie, ..Event::default() };
            self.lanes[lane].queue.push_back(event);
        }
    }

    fn carry_out(&mut self, lane: usize, op: u32, args: &[u64; 6]) -> Result<i64, i64> {
        let handle = args[0];
        match op {
            call_op::NOP => Ok(0),
            call_op::LISTEN => self.listen(lane, args[2] as u16, args[4]),
            call_op::UNLISTEN => match self.listeners.remove(&args[0]) {
                Some(_) => Ok(0),
                None => Err(error::BAD_HANDLE),
            },
            call_op::CONNECT => Ok(self.connect(lane, args)),
            call_op::ACCEPT => {
                let flow = self.flow(lane, handle)?;
                assert_eq!(flow.holder, Holder::Knocking, "accepted twice");
                flow.holder = Holder::Application;
                flow.cookie = args[1];
                Ok(0)
            }
            call_op::REJECT | call_op::ABORT => {
                let peer = self.flow(lane, handle)?.peer;
                self.remove(handle);
                self.kill(peer, dead::RESET);
                Ok(0)
            }
            call_op::SENDV => self.sendv(lane, args),
            call_op::RECV_DONE => self.recv_done(lane, handle, args[1]),
            call_op::SHUTDOWN => {
                let flow = self.flow(lane, handle)?;
                assert!(!flow.fin, "shut down twice");
                flow.fin = true;
                Ok(0)
            }
            call_op::CLOSE => {
                let flow = self.flow(lane, handle)?;
                flow.fin = true;
                flow.holder = Holder::Orphan;
                let all = flow.held.iter().map(|held| held.1).sum::<u64>() - flow.front_done;
                self.give_back(handle, all);
                Ok(0)
            }
            call_op::SET_OPT => self.flow(lane, handle).map(|_| 0),
            call_op::UDP_BIND => self.udp_bind(lane, args[2] as u16, args[3]),
            call_op::UDP_UNBIND => self.udp_unbind(lane, args[0]),
            call_op::UDP_SENDV => self.udp_sendv(lane, args),
            call_op::UDP_RECV_DONE => self.udp_recv_done(lane, args[0]),
            call_op::TIMER_SET => self.timer_set(lane, args[0], args[1]),
            call_op::TIMER_CANCEL => Ok(self.timers.remove(&args[0]).is_some().into()),
            call_op::TX_ALLOC if args[0] > TX_STEP_BYTES => {
                self.shared.push(ManuallyDrop::new(Memory::new(args[0] as usize)));
                Ok(self.shared[self.shared.len() - 1].base() as i64)
            }
            call_op::TX_ALLOC => {
                assert_eq!(args[0], TX_STEP_BYTES);
                if self.tx_given == self.config.tx_steps {
                    return Err(error::NO_RESOURCE);
                }
                self.tx_given += 1;
                Ok((self.tx.base() + (self.tx_given as u64 - 1) * TX_STEP_BYTES) as i64)
            }
            _ => Err(error::NO_SYS),
        }
    }

    /// The flow, if it is one that this thread's application holds.
    fn flow(&mut self, lane: usize, handle: Handle) -> Result<&mut Flow, i64> {
        match self.flows.get_mut(&handle) {
            Some(flow) if flow.lane == lane && flow.holder != Holder::Orphan => Ok(flow),
            _ => Err(error::BAD_HANDLE),
        }
    }

    fn listen(&mut self, lane: usize, port: u16, cookie: u64) -> Result<i64, i64> {
        // Threads share a port; one thread cannot have it twice.
        if self.listeners.values().any(|taken| (taken.0, taken.1) == (lane, port)) {
            return Err(error::IN_USE);
        }
        let id = self.name();
        self.listeners.insert(id, (lane, port, cookie));
        Ok(id as i64)
    }

    fn timer_set(&mut self, lane: usize, cookie: u64, delay_us: u64) -> Result<i64, i64> {
        if self.refuses() {
            return Err(error::NO_RESOURCE);
        }
        let id = self.name();
        self.timers.insert(id, (lane, cookie, self.now_us + delay_us));
        Ok(id as i64)
    }

    fn refuses(&mut self) -> bool {
        self.config.refuse_one_in > 0 && self.random(self.config.refuse_one_in) == 0
    }

    fn connect(&mut self, lane: usize, args: &[u64; 6]) -> i64 {
        let (cookie, port) = (args[0], args[3] as u16);
        let here = self.name();
        let listening: Vec<_> =
            self.listeners.values().filter(|listener| listener.1 == port).copied().collect();
        let event = Event { kind: event_kind::CONNECTED, cookie, handle: here, ..Event::default() };
        if listening.is_empty() {
            let event = Event { code: error::REFUSED as u16, ..event };
            self.lanes[lane].queue.push_back(event);
            return here as i64;
        }
        let (there_lane, _, listener) = listening[self.random(listening.len() as u64) as usize];
        let there = self.name();
        let flow = |lane, cookie, holder, peer| Flow {
            lane,
            cookie,
            holder,
            peer,
            taken: VecDeque::new(),
            taken_bytes: 0,
            delivered_bytes: 0,
            wants_window: false,
            fin: false,
            fin_delivered: false,
            held: VecDeque::new(),
            front_done: 0,
        };
        self.flows.insert(here, flow(lane, cookie, Holder::Application, there));
        self.flows.insert(there, flow(there_lane, 0, Holder::Knocking, here));
        self.lanes[lane].queue.push_back(event);
        self.lanes[there_lane].queue.push_back(Event {
            kind: event_kind::KNOCK,
            cookie: listener,
            handle: there,
            addr: addr::from_words([args[1], args[2]]),
            port: 10_000 + (here % 50_000) as u16,
            ..Event::default()
        });
        here as i64
    }

    fn sendv(&mut self, lane: usize, args: &[u64; 6]) -> Result<i64, i64> {
        self.sendv_calls += 1;
        if self.refuses() {
            return Err(error::NO_RESOURCE);
        }
        assert!((1..=SG_MAX as u64).contains(&args[2]), "an array of {} pieces", args[2]);
        if !self.tx.contains(args[1], args[2] * size_of::<SgEntry>() as u64) {
            return Err(error::FAULT);
        }
        let window = self.config.window_bytes;
        let array = with_exposed_provenance_mut::<SgEntry>(args[1] as usize);
        let mut taken = 0;
        for index in 0..args[2] as usize {
            // SAFETY: within transmit memory, checked above; the application is in the gate.
            let entry = unsafe { array.add(index).read() };
            let held = self.flows.values().flat_map(|flow| flow.held.iter());
            let in_rx = held.into_iter().any(|&(buffer, len)| {
                let base = self.rx.base() + (buffer * RX_BUFFER_BYTES) as u64;
                entry.base >= base && entry.base + entry.len <= base + len
            });
            if !in_rx && !self.in_tx(entry.base, entry.len) {
                return Err(error::FAULT);
            }
            let flow = self.flow(lane, args[0])?;
            if flow.fin {
                return Err(error::STATE);
            }
            let room = window.saturating_sub(flow.taken_bytes);
            let n = entry.len.min(room);
            if n > 0 {
                flow.taken.push_back(Taken { base: entry.base, bytes: copy_out(entry.base, n) });
                flow.taken_bytes += n;
                taken += n as i64;
            }
            if n < entry.len {
                flow.wants_window = true;
                break;
            }
        }
        Ok(taken)
    }

    fn recv_done(&mut self, lane: usize, handle: Handle, bytes: u64) -> Result<i64, i64> {
        let flow = self.flow(lane, handle)?;
        let held = flow.held.iter().map(|held| held.1).sum::<u64>() - flow.front_done;
        assert!(bytes > 0 && bytes <= held, "gave back {bytes} of {held} bytes");
        self.give_back(handle, bytes);
        Ok(0)
    }

    fn give_back(&mut self, handle: Handle, bytes: u64) {
        let Some(flow) = self.flows.get_mut(&handle) else { return };
        let mut left = bytes + flow.front_done;
        let mut freed = Vec::new();
        while let Some(&(buffer, len)) = flow.held.front()
            && left >= len
        {
            left -= len;
            flow.held.pop_front();
            freed.push(buffer);
        }
        flow.front_done = left;
        freed.into_iter().for_each(|buffer| self.free(buffer));
    }

    fn free(&mut self, buffer: usize) {
        let base = self.rx.base() as usize + buffer * RX_BUFFER_BYTES;
        let base = with_exposed_provenance_mut::<u8>(base);
        // SAFETY: a buffer of the receive memory that nobody may read any more.
        unsafe { base.write_bytes(POISON, RX_BUFFER_BYTES) };
        self.rx_free.push(buffer);
    }

    /// Moves some of a flow's bytes, acknowledgements and its end.
    fn step(&mut self, handle: Handle) {
        let Some(flow) = self.flows.get(&handle) else { return };
        let peer = flow.peer;
        let ready = self.flows.get(&peer).is_some_and(|peer| peer.holder != Holder::Knocking);
        if ready {
            self.deliver(handle, peer);
        }
        self.acknowledge(handle);
        let Some(flow) = self.flows.get_mut(&handle) else { return };
        if flow.fin && !flow.fin_delivered && ready && flow.delivered_bytes == flow.taken_bytes {
            flow.fin_delivered = true;
            self.tell(peer, event_kind::EOF, |_| ());
        }
        let Some(flow) = self.flows.get(&handle) else { return };
        let done = |flow: &Flow| flow.fin_delivered && flow.taken_bytes == 0;
        if done(flow) && self.flows.get(&peer).is_some_and(done) {
            self.kill(handle, dead::CLOSED);
            self.kill(peer, dead::CLOSED);
        }
    }

    fn deliver(&mut self, handle: Handle, peer: Handle) {
        let most = self.config.step_bytes;
        let mut budget = self.random(most + 1);
        while budget > 0 {
            let flow = &self.flows[&handle];
            let mut skip = flow.delivered_bytes as usize;
            let next = flow.taken.iter().find_map(|piece| {
                let here = skip;
                skip = skip.saturating_sub(piece.bytes.len());
                (here < piece.bytes.len()).then(|| &piece.bytes[here..])
            });
            let Some(next) = next else { return };
            let n = next.len().min(RX_BUFFER_BYTES).min(budget as usize);
            let bytes = next[..n].to_vec();
            let to_orphan = self.flows[&peer].holder == Holder::Orphan;
            if !to_orphan {
                let Some(buffer) = self.rx_free.pop() else { return };
                let base = self.rx.base() as usize + buffer * RX_BUFFER_BYTES;
                let to = with_exposed_provenance_mut::<u8>(base);
                // SAFETY: a free buffer of the receive memory, and `n` fits.
                unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), n) };
                self.tell(peer, event_kind::RECV, |event| {
                    (event.data, event.len) = (base as u64, n as u32);
                });
                self.flows.entry(peer).and_modify(|peer| peer.held.push_back((buffer, n as u64)));
            }
            self.flows.entry(handle).and_modify(|flow| flow.delivered_bytes += n as u64);
            budget -= n as u64;
        }
    }

    fn acknowledge(&mut self, handle: Handle) {
        let delivered = self.flows[&handle].delivered_bytes;
        let acked = self.random(2 * delivered + 1).min(delivered);
        let window = self.config.window_bytes;
        let Some(flow) = self.flows.get_mut(&handle) else { return };
        let mut left = acked;
        while left > 0
            && let Some(front) = flow.taken.front_mut()
        {
            let n = left.min(front.bytes.len() as u64);
            let now = copy_out(front.base, n);
            assert_eq!(now, front.bytes[..n as usize], "sent memory changed before SENT");
            front.bytes.drain(..n as usize);
            front.base += n;
            left -= n;
            if front.bytes.is_empty() {
                flow.taken.pop_front();
            }
        }
        flow.taken_bytes -= acked;
        flow.delivered_bytes -= acked;
        let room = window.saturating_sub(flow.taken_bytes);
        let opened = flow.wants_window && room > 0;
        if acked > 0 || opened {
            flow.wants_window = false;
            self.tell(handle, event_kind::SENT, |event| {
                (event.len, event.data) = (acked as u32, room);
            });
        }
    }

    /// An event about a flow to whoever holds it.
    fn tell(&mut self, handle: Handle, kind: u16, fill: impl FnOnce(&mut Event)) {
        let Some(flow) = self.flows.get(&handle) else { return };
        if flow.holder == Holder::Application {
            let mut event = Event { kind, cookie: flow.cookie, handle, ..Event::default() };
            fill(&mut event);
            self.lanes[flow.lane].queue.push_back(event);
        }
    }

    fn kill(&mut self, handle: Handle, reason: u16) {
        self.tell(handle, event_kind::DEAD, |event| event.code = reason);
        self.remove(handle);
    }

    fn remove(&mut self, handle: Handle) {
        if let Some(flow) = self.flows.remove(&handle) {
            let buffers = flow.held.into_iter().map(|held| held.0);
            self.lanes[flow.lane].dying.extend(buffers);
        }
    }
}
