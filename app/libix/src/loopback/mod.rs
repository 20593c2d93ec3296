//! A model of a dataplane inside the process, to test programs without a dataplane.
//!
//! All elastic threads of a [`Loopback`] are on one Linux thread. Each `run_io` carries out the
//! caller's batch and moves some bytes between flows, as a seed decides. The model is strict where
//! the real dataplane must be forgiving: a change of memory with unacknowledged bytes, bytes given
//! back twice and calls on dead handles fail the test, and received buffers are overwritten once
//! given back. Flow groups can be moved between its threads ([`Loopback::migrate`]).
mod calls;
mod flow;
mod groups;
mod memory;
mod packets;
mod udp;

use crate::raw::{EnterError, Gate, Thread};
use core::ptr::with_exposed_provenance_mut;
use flow::Flow;
use groups::Group;
use ix_abi::{
    CALLS_MAX, CallError, CallSlot, DeadReason, EVENTS_MAX, Event, EventSlot, Handle, Revoke,
    ThreadArea, ThreadStatus, gate_op,
};
use ix_random::Rng;
use memory::Memory;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::mem::ManuallyDrop;
use std::rc::Rc;

const RX_BUFFER_BYTES: usize = 2048;
const TX_STEP_BYTES: u64 = 2 << 20;

/// Settings of the model.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Seed of all random choices.
    pub seed: u64,
    /// Most unacknowledged bytes of a flow.
    pub window_bytes: u64,
    /// Most bytes of a flow that one step delivers.
    pub step_bytes: u64,
    /// Steps of 2 MB of transmit memory.
    pub tx_steps: usize,
    /// Buffers for received bytes.
    pub rx_buffers: usize,
    /// One in this many `sendv` and `timer_set` finds no resources; 0: none.
    pub refuse_one_in: u64,
    /// Number of flow groups, dealt to the threads in turn.
    pub groups: usize,
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
            groups: 16,
        }
    }
}

/// One elastic thread of the model.
struct ModelThread {
    calls: Memory,
    events: Memory,
    status: Memory,
    queue: VecDeque<EventSlot>,
    entered: bool,
    /// Its application wants to leave.
    draining: bool,
    /// Buffers of dead flows: readable until the cycle after their `DEAD` was delivered.
    dying: Vec<usize>,
}

impl ModelThread {
    /// Queues an event for the application.
    fn tell(&mut self, event: Event) {
        self.queue.push_back(event.encode());
    }
}

struct World {
    config: Config,
    random: Rng,
    now_us: u64,
    threads: Vec<ModelThread>,
    tx: Memory,
    /// Transmit memory that was allocated in one piece; it is never freed.
    shared: Vec<ManuallyDrop<Memory>>,
    tx_given: usize,
    rx: Memory,
    rx_free: Vec<usize>,
    flows: BTreeMap<Handle, Flow>,
    groups: Vec<Group>,
    next_name: u64,
    listeners: BTreeMap<u64, (usize, u16, u64)>,
    timers: BTreeMap<u64, (usize, u64, u64)>,
    udp: udp::Udp,
    packets: packets::Packets,
    sendv_calls: u64,
    closed: u64,
}

/// A dataplane in the process. Clones are the same dataplane.
#[derive(Clone)]
pub struct Loopback(Rc<RefCell<World>>);

struct LoopbackGate(Rc<RefCell<World>>);

impl Gate for LoopbackGate {
    fn call(&mut self, op: u64, a: u64, b: u64, c: u64) -> i64 {
        let mut world = self.0.borrow_mut();
        let thread = a as usize;
        match op {
            gate_op::ENTER if thread >= world.threads.len() => {
                CallError::encode(Err(CallError::Invalid))
            }
            gate_op::ENTER if world.threads[thread].entered => {
                CallError::encode(Err(CallError::InUse))
            }
            gate_op::ENTER => {
                world.threads[thread].entered = true;
                0
            }
            gate_op::LEAVE => {
                world.threads[thread].entered = false;
                world.timers.retain(|_, timer| timer.0 != thread);
                0
            }
            gate_op::RUN_IO => world.run_io(thread, b as usize, c),
            _ => CallError::encode(Err(CallError::NoSys)),
        }
    }
}

impl Loopback {
    /// A dataplane with this many elastic threads.
    pub fn new(threads: usize, config: Config) -> Loopback {
        let thread = |_| ModelThread {
            calls: Memory::new(CALLS_MAX * size_of::<CallSlot>()),
            events: Memory::new(EVENTS_MAX * size_of::<EventSlot>()),
            status: Memory::new(size_of::<ThreadStatus>()),
            queue: VecDeque::new(),
            entered: false,
            draining: false,
            dying: Vec::new(),
        };
        Loopback(Rc::new(RefCell::new(World {
            random: Rng::new(config.seed),
            now_us: 1,
            threads: (0..threads).map(thread).collect(),
            tx: Memory::new(config.tx_steps * TX_STEP_BYTES as usize),
            shared: Vec::new(),
            tx_given: 0,
            rx: Memory::new(config.rx_buffers * RX_BUFFER_BYTES),
            rx_free: (0..config.rx_buffers).collect(),
            flows: BTreeMap::new(),
            groups: (0..config.groups).map(|number| Group::new(number % threads)).collect(),
            next_name: 1,
            listeners: BTreeMap::new(),
            timers: BTreeMap::new(),
            udp: udp::Udp::default(),
            packets: packets::Packets::default(),
            sendv_calls: 0,
            closed: 0,
            config,
        })))
    }

    /// Enters elastic thread `index`.
    pub fn enter(&self, index: u32) -> Result<Thread, EnterError> {
        let area = {
            let world = self.0.borrow();
            let threads = world.threads.len() as u32;
            let thread =
                world.threads.get(index as usize).ok_or(EnterError::NoSuchThread { threads })?;
            ThreadArea {
                calls: thread.calls.base(),
                events: thread.events.base(),
                status: thread.status.base(),
                cpu: 0,
                attachment: 0,
                will: 0,
            }
        };
        // SAFETY: the gate keeps the world, and so the arrays, alive as long as the thread; the
        // model writes events and status only in `run_io`, and gives each step of memory out
        // once.
        unsafe { Thread::with_gate(Box::new(LoopbackGate(Rc::clone(&self.0))), area, index) }
    }

    /// Number of flows.
    pub fn flows(&self) -> usize {
        self.0.borrow().flows.len()
    }

    /// Number of received buffers that have not been given back.
    pub fn held_buffers(&self) -> usize {
        let world = self.0.borrow();
        world.config.rx_buffers - world.rx_free.len()
    }

    /// Number of frames that have not been given back.
    pub fn held_frames(&self) -> usize {
        self.0.borrow().packets.held()
    }

    /// Number of `sendv` calls so far.
    pub fn sendv_calls(&self) -> u64 {
        self.0.borrow().sendv_calls
    }

    /// How many ends of flows were shut down.
    pub fn fins(&self) -> usize {
        self.0.borrow().flows.values().filter(|flow| flow.fin).count()
    }

    /// How many flows were said to be closed while they still had something to send.
    pub fn closed(&self) -> u64 {
        self.0.borrow().closed
    }

    /// Begins to move a flow group to another thread; `false`: it is already there, or moving.
    pub fn migrate(&self, group: usize, to: usize) -> bool {
        self.0.borrow_mut().migrate(group, to)
    }

    /// Tells a thread that it is revoked or restored.
    pub fn revoke(&self, thread: usize, what: Revoke) {
        self.0.borrow_mut().threads[thread].tell(Event::Revoke(what));
    }

    /// Resets every connection, as a failing network would.
    pub fn reset_all(&self) {
        let mut world = self.0.borrow_mut();
        let all: Vec<Handle> = world.flows.keys().copied().collect();
        all.into_iter().for_each(|handle| world.kill(handle, DeadReason::Reset));
    }
}

impl World {
    fn random(&mut self, below: u64) -> u64 {
        self.random.below(below)
    }

    fn in_tx(&self, base: u64, len: u64) -> bool {
        let mut shared = self.shared.iter();
        self.tx.contains(base, len) || shared.any(|memory| memory.contains(base, len))
    }

    fn run_io(&mut self, thread: usize, calls: usize, wait_us: u64) -> i64 {
        assert!(calls <= CALLS_MAX && self.threads[thread].entered);
        if self.threads[thread].queue.is_empty() {
            let dying = core::mem::take(&mut self.threads[thread].dying);
            dying.into_iter().for_each(|buffer| self.free(buffer));
        }
        let array =
            with_exposed_provenance_mut::<CallSlot>(self.threads[thread].calls.base() as usize);
        for slot in 0..calls {
            // SAFETY: slot is below CALLS_MAX, and the application is in the gate.
            let call = unsafe { array.add(slot).read() };
            let answer = self.carry_out(thread, &call);
            // SAFETY: as above.
            unsafe { (*array.add(slot)).ret = CallError::encode(answer) };
        }
        self.move_groups(thread);
        self.end_drain(thread);
        self.now_us += 1 + self.random(20);
        let handles: Vec<Handle> = self.flows.keys().copied().collect();
        handles.into_iter().for_each(|handle| self.step(handle));
        self.move_datagrams();
        self.fire_timers(thread, wait_us);
        self.publish(thread)
    }

    fn publish(&mut self, thread: usize) -> i64 {
        let n = self.threads[thread].queue.len().min(EVENTS_MAX);
        let array =
            with_exposed_provenance_mut::<EventSlot>(self.threads[thread].events.base() as usize);
        let events: Vec<EventSlot> = self.threads[thread].queue.drain(..n).collect();
        let told = events.iter().filter_map(|event| Event::decode(event).ok());
        told.for_each(|event| self.note_told(&event));
        for (index, event) in events.into_iter().enumerate() {
            // SAFETY: index is below EVENTS_MAX, and the application is in the gate.
            unsafe { array.add(index).write(event) };
        }
        let status = self.threads[thread].status.base() as usize;
        // SAFETY: the status of the thread, as above.
        unsafe { (*with_exposed_provenance_mut::<ThreadStatus>(status)).now_us = self.now_us };
        n as i64
    }

    fn fire_timers(&mut self, thread: usize, wait_us: u64) {
        let next =
            self.timers.values().filter(|timer| timer.0 == thread).map(|timer| timer.2).min();
        if let Some(next) = next
            && self.threads[thread].queue.is_empty()
            && next.saturating_sub(self.now_us) <= wait_us
        {
            self.now_us = self.now_us.max(next);
        }
        let now_us = self.now_us;
        let due = |timer: &(usize, u64, u64)| timer.0 == thread && timer.2 <= now_us;
        for (_, (_, cookie, _)) in self.timers.extract_if(.., |_, timer| due(timer)) {
            self.threads[thread].tell(Event::Timer { cookie });
        }
    }
}
