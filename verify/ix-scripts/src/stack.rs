//! One elastic thread on a simulated device and clock, with a raw IP link to the script.
use crate::settings::Settings;
use ix_abi::{CALLS_MAX, CallSlot, EVENTS_MAX, EventSlot, ThreadArea, ThreadStatus, gate_op};
use ix_dataplane::config::AddressCheck;
use ix_dataplane::metrics::{ControlPage, ThreadMetrics};
use ix_dataplane::{
    CallArray, Config, CycleReport, ElasticThread, EventWriter, Io, Shared, Waker, forwarding,
};
use ix_mem::{PacketMemory, Pool, Sizes};
use ix_sim::nic::{Port, PortConfig, Promise, Spread};
use ix_tcp::{LossInfo, TcbInfo};
use ix_wire::IpAddr;
use libix::raw::call::{self, Batched};
use libix::raw::{Event, Gate, Thread, TxBuf, Wait};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::sync::Arc;

/// Frames each way, and transmit memory: more than a script can fill.
const FRAMES: usize = 4096;
const ARENA_BYTES: usize = 32 << 20;
const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const ROUTER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const ETHERNET_BYTES: usize = 14;

/// The arrays that application and dataplane share.
struct Arrays {
    calls: *mut [CallSlot],
    events: *mut [EventSlot],
    status: *mut ThreadStatus,
}

impl Arrays {
    fn new() -> Arrays {
        Arrays {
            calls: Box::into_raw(vec![CallSlot::default(); CALLS_MAX].into_boxed_slice()),
            events: Box::into_raw(vec![EventSlot::default(); EVENTS_MAX].into_boxed_slice()),
            status: Box::into_raw(Box::new(ThreadStatus::default())),
        }
    }

    fn area(&self) -> ThreadArea {
        ThreadArea {
            calls: self.calls.cast::<CallSlot>().expose_provenance() as u64,
            events: self.events.cast::<EventSlot>().expose_provenance() as u64,
            status: self.status.expose_provenance() as u64,
            cpu: 0,
            reserved: 0,
        }
    }
}

impl Drop for Arrays {
    fn drop(&mut self) {
        // SAFETY: each was made by `Box::into_raw` in `new`. `Core` owns this; it is dropped after the
        // library's thread (whose gate holds the core) and after the elastic thread (an earlier field).
        unsafe {
            drop(Box::from_raw(self.calls));
            drop(Box::from_raw(self.events));
            drop(Box::from_raw(self.status));
        }
    }
}

struct Core {
    elastic: ElasticThread,
    arrays: Arrays,
    now_us: u64,
    report: CycleReport,
}

/// The wall: a gate that runs one cycle in virtual time.
struct VirtualGate(Rc<RefCell<Core>>);

impl Gate for VirtualGate {
    fn call(&mut self, op: u64, _thread: u64, calls: u64, _wait_us: u64) -> i64 {
        if op != gate_op::RUN_IO {
            return 0;
        }
        let core = &mut *self.0.borrow_mut();
        // SAFETY: the status lives as long as the core; the library reads it between gate calls.
        unsafe { (*core.arrays.status).now_us = core.now_us };
        core.report = core.elastic.run_cycle(calls as usize, core.now_us);
        core.report.events as i64
    }
}

/// Something that the dataplane told, with received bytes copied out.
#[derive(Clone, Debug)]
pub enum Told {
    /// A flow waits at a listener: cookie of the listener, handle, peer.
    Knock(u64, u64, std::net::SocketAddr),
    /// Bytes of a flow: cookie, bytes.
    Received(u64, Vec<u8>),
    /// A datagram: cookie, bytes, sender.
    Datagram(u64, Vec<u8>, std::net::SocketAddr),
    /// Everything else that is about a flow.
    Other(Event),
}

/// An elastic thread in virtual time.
pub struct Stack {
    thread: Thread,
    core: Rc<RefCell<Core>>,
    port: Port,
    /// Calls that give back what was copied.
    spent: Vec<Batched>,
    /// What was told and not taken.
    pub told: VecDeque<Told>,
    /// IP packets that were sent, each with its time, and not taken.
    pub sent: VecDeque<(u64, Vec<u8>)>,
}

/// Addresses of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The stack's.
    pub local: Ipv4Addr,
    /// The script's.
    pub remote: Ipv4Addr,
}

impl Stack {
    /// A fresh elastic thread at `now_us`.
    pub fn new(settings: &Settings, backlog: u32, at: Addresses, now_us: u64) -> Stack {
        let config = configuration(settings, backlog, at);
        let port = Port::new(PortConfig {
            mac: OWN_MAC,
            mtu: settings.mtu.into(),
            queues: 1,
            ring: FRAMES,
            spread: Spread::First,
            promise: Promise::Settled,
            lag_us: 0,
        });
        let sizes = Sizes { rx_frames: FRAMES, tx_frames: FRAMES, arena_bytes: ARENA_BYTES };
        let memory = PacketMemory::new(sizes).expect("memory for an elastic thread");
        let wakers = vec![Waker::new(-1)];
        let shared = Arc::new(Shared::new(config, memory, wakers, &[OWN_MAC], now_us));
        let page = ControlPage::anonymous(1).expect("memory for a control page");
        let arrays = Arrays::new();
        let (rx, tx) = (shared.memory.rx_frames(), shared.memory.tx_frames());
        // SAFETY: there is one thread; each pool takes its frames once.
        let pools = unsafe { (Pool::new(rx), Pool::new(tx)) };
        // SAFETY: the arrays live in the core beside the elastic thread, and outlive it (`Drop`).
        let (events, calls) = unsafe {
            (EventWriter::new(arrays.events.cast()), CallArray::new(arrays.calls.cast()))
        };
        let metrics = ThreadMetrics::new(&Arc::new(page), 0);
        let nic = Box::new(port.queue(0));
        let io = Io::new(shared, 0, vec![nic], pools, events, metrics);
        let rings = forwarding(1).into_iter().next().expect("rings of the only thread");
        let elastic = ElasticThread::new(io, calls, rings, now_us);
        let report = CycleReport { events: 0, busy: false };
        let area = arrays.area();
        let core = Rc::new(RefCell::new(Core { elastic, arrays, now_us, report }));
        let gate = Box::new(VirtualGate(core.clone()));
        // SAFETY: the core, which the gate holds, owns the arrays and serves them as the contract
        // says; it writes them within gate calls only.
        let entered = unsafe { Thread::with_gate(gate, area, 0) };
        let thread = entered.expect("a fresh elastic thread");
        let mut stack = Stack {
            thread,
            core,
            port,
            spent: vec![],
            told: VecDeque::new(),
            sent: VecDeque::new(),
        };
        while !stack.is_at_rest() {
            stack.cycle();
        }
        stack.sent.clear();
        stack
    }

    /// Virtual time, µs.
    pub fn now_us(&self) -> u64 {
        self.core.borrow().now_us
    }

    /// Carries out one call, in a cycle of its own.
    pub fn call(&mut self, call: Batched) -> Result<u64, libix::Error> {
        let slot = self.thread.push(call).ok_or(libix::Error::NoResource)?;
        self.cycle();
        self.thread.answer(slot)
    }

    /// Appends what `piece` holds to a flow's send stream; answers how many bytes were taken.
    pub fn send(&mut self, handle: u64, piece: &TxBuf) -> Result<u64, libix::Error> {
        let entry = ix_abi::SgEntry { base: piece.base(), len: piece.len() as u64 };
        let pushed = self.thread.push_sendv(handle, [entry].into_iter());
        let (slot, _) = pushed.ok_or(libix::Error::NoResource)?;
        self.cycle();
        self.thread.answer(slot)
    }

    /// Sends a datagram; the buffer comes back with `UdpSent` of this cookie.
    pub fn send_datagram(
        &mut self,
        from: (u64, u16),
        to: std::net::SocketAddr,
        piece: &TxBuf,
        cookie: u64,
    ) -> Result<u64, libix::Error> {
        let entry = ix_abi::SgEntry { base: piece.base(), len: piece.len() as u64 };
        let pieces = [entry].into_iter();
        let slot = self.thread.push_udp_sendv(from.0, to, pieces, cookie);
        let (slot, _) = slot.ok_or(libix::Error::NoResource)?;
        self.cycle();
        self.thread.answer(slot)
    }

    /// A buffer of transmit memory with the first of `bytes`.
    pub fn buffer(&mut self, bytes: &[u8]) -> Option<TxBuf> {
        if self.thread.tx().wants_memory() {
            let slot = self.thread.push(call::tx_alloc(2 << 20))?;
            self.cycle();
            self.thread.adopt_tx(slot).ok();
        }
        let mut buffer = self.thread.tx().alloc(bytes.len())?;
        buffer.extend(bytes);
        Some(buffer)
    }

    /// An IP packet arrives.
    pub fn deliver(&mut self, packet: &[u8]) {
        let mut frame = Vec::with_capacity(ETHERNET_BYTES + packet.len());
        frame.extend_from_slice(&OWN_MAC);
        frame.extend_from_slice(&ROUTER_MAC);
        frame.extend_from_slice(&[8, 0]);
        frame.extend_from_slice(packet);
        self.port.deliver(frame);
    }

    /// When a timer fires next.
    pub fn next_deadline_us(&self) -> Option<u64> {
        self.core.borrow().elastic.next_deadline_us()
    }

    /// It is that late now; a timer that is due and stays due waits for the next tick.
    pub fn set_now(&mut self, now_us: u64) {
        let mut core = self.core.borrow_mut();
        core.now_us = core.now_us.max(now_us);
    }

    /// What a flow knows about itself; `None`: it is gone.
    pub fn inspect(&self, handle: u64) -> Option<(TcbInfo, LossInfo)> {
        self.core.borrow_mut().elastic.inspect(handle)
    }

    /// Whether the last cycle left nothing to do at this time.
    pub fn is_at_rest(&self) -> bool {
        let mut core = self.core.borrow_mut();
        let CycleReport { events, busy } = core.report;
        events == 0 && !busy && core.elastic.may_sleep()
    }

    /// Runs one cycle.
    pub fn cycle(&mut self) {
        self.port.set_now(self.now_us());
        for call in std::mem::take(&mut self.spent) {
            self.thread.push(call);
        }
        let count = self.thread.run_io(Wait::Poll).unwrap_or(0);
        for index in 0..count {
            let event = self.thread.event(index);
            let told = self.take(event);
            self.told.push_back(told);
        }
        let now_us = self.now_us();
        while let Some(frame) = self.port.take_sent() {
            if frame.get(12..ETHERNET_BYTES) == Some(&[8, 0]) {
                self.sent.push_back((now_us, frame[ETHERNET_BYTES..].to_vec()));
            }
        }
    }

    fn take(&mut self, event: Event) -> Told {
        match event {
            Event::Knock { listener, handle, peer } => Told::Knock(listener, handle, peer),
            Event::Recv { cookie, data, .. } => {
                // SAFETY: bytes of this event, given back later at the earliest.
                Told::Received(cookie, unsafe { data.bytes() }.to_vec())
            }
            Event::UdpRecv { cookie, data, peer, .. } => {
                // SAFETY: as above.
                let bytes = unsafe { data.bytes() }.to_vec();
                self.spent.push(call::udp_recv_done(data));
                Told::Datagram(cookie, bytes, peer)
            }
            Event::UdpError { data: Some(data), .. } => {
                self.spent.push(call::udp_recv_done(data));
                Told::Other(event)
            }
            other => Told::Other(other),
        }
    }
}

fn configuration(settings: &Settings, backlog: u32, at: Addresses) -> Config {
    let [a, b, _, _] = at.local.octets();
    let router = IpAddr::v4([a, b, 255, 254]);
    Config {
        host_addrs: vec![(IpAddr::v4(at.local.octets()), 16)],
        gateway_addr: Some(router),
        arp: vec![(router, ROUTER_MAC), (IpAddr::v4(at.remote.octets()), ROUTER_MAC)],
        address_check: AddressCheck::Off,
        secret: *b"packets: secret.",
        isn_secret: *b"packets: numbers",
        rx_frames: FRAMES,
        tx_frames: FRAMES,
        arena_bytes: ARENA_BYTES,
        backlog,
        tcp: settings.tcp.clone(),
        ttl: settings.ttl,
        ..Config::default()
    }
}
