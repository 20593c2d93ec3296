//! Two hosts on one wire: elastic threads with libix event loops, in virtual time.
//!
//! Nothing here depends on a clock, a kernel or another thread, so the same run executes the same
//! instructions every time.
use crate::wire::{WireEnd, wire};
use ix_abi::{CALLS_MAX, CallSlot, EVENTS_MAX, EventSlot, ThreadArea, ThreadStatus, gate_op};
use ix_dataplane::config::AddressCheck;
use ix_dataplane::metrics::{ControlPage, ThreadMetrics};
use ix_dataplane::{CallArray, Config, ElasticThread, EventWriter, Io, Shared, Waker, forwarding};
use ix_mem::{PacketMemory, Pool, Sizes};
use ix_nic::Nic;
use ix_wire::IpAddr;
use libix::event::{EventLoop, Handler};
use libix::raw::{Gate, Thread, Wait};
use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const ADDRS: [[u8; 4]; 2] = [[10, 0, 0, 1], [10, 0, 0, 2]];
/// What a turn of both hosts takes: about a full batch at the speed that is aimed at.
const TURN_US: u64 = 20;
/// TIME-WAIT, short enough that connections end as fast as they begin.
const TIME_WAIT_US: u32 = 1000;

/// Where the server listens.
pub fn server_addr() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::from(ADDRS[1]), 7))
}

/// The wall: a gate that runs one cycle in virtual time. Its arrays live as long as the process.
struct VirtualGate {
    elastic: ElasticThread,
    status: *mut ThreadStatus,
    now_us: Rc<Cell<u64>>,
}

impl Gate for VirtualGate {
    fn call(&mut self, op: u64, _thread: u64, calls: u64, _wait_us: u64) -> i64 {
        if op != gate_op::RUN_IO {
            return 0;
        }
        let now_us = self.now_us.get();
        // SAFETY: leaked in `host`, so it is there; the library reads it between gate calls.
        unsafe { (*self.status).now_us = now_us };
        self.elastic.run_cycle(calls as usize, now_us).events as i64
    }
}

/// A client and a server.
pub struct Pair<C: Handler, S: Handler> {
    /// The first host.
    pub client: EventLoop<C>,
    /// The second host, which listens at [`server_addr`].
    pub server: EventLoop<S>,
    now_us: Rc<Cell<u64>>,
}

impl<C: Handler, S: Handler> Pair<C, S> {
    /// Both hosts, the server listening.
    pub fn new(client: C, server: S) -> Pair<C, S> {
        let now_us = Rc::new(Cell::new(1));
        let [a, b] = wire(MACS);
        let client = EventLoop::new(host(0, a, &now_us), client);
        let mut server = EventLoop::new(host(1, b, &now_us), server);
        let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, server_addr().port()));
        server.listen(any, 0).expect("a fresh host has no listeners");
        Pair { client, server, now_us }
    }

    /// One cycle of each.
    pub fn turn(&mut self) {
        self.now_us.set(self.now_us.get() + TURN_US);
        client_turn(&mut self.client);
        server_turn(&mut self.server);
    }
}

// Functions of their own, so that a profile tells the two sides apart.

#[inline(never)]
fn client_turn<H: Handler>(host: &mut EventLoop<H>) {
    host.turn(Wait::Poll).expect("the dataplane runs its threads");
}

#[inline(never)]
fn server_turn<H: Handler>(host: &mut EventLoop<H>) {
    host.turn(Wait::Poll).expect("the dataplane runs its threads");
}

fn config(index: usize) -> Config {
    let other = 1 - index;
    let mut config = Config {
        host_addrs: vec![(IpAddr::v4(ADDRS[index]), 24)],
        arp: vec![(IpAddr::v4(ADDRS[other]), MACS[other])],
        address_check: AddressCheck::Off,
        secret: [index as u8; 16],
        isn_secret: [index as u8; 16],
        ..Config::default()
    };
    config.tcp.time_wait_us = TIME_WAIT_US;
    config
}

/// One host with one elastic thread. What application and dataplane share is leaked: hosts live as
/// long as the process.
fn host(index: usize, nic: WireEnd, now_us: &Rc<Cell<u64>>) -> Thread {
    let config = config(index);
    let sizes = Sizes {
        rx_frames: config.rx_frames,
        tx_frames: config.tx_frames,
        arena_bytes: config.arena_bytes,
    };
    let memory = PacketMemory::new(sizes).expect("memory for a host");
    // SAFETY: the only pools of this memory.
    let pools = unsafe { (Pool::new(memory.rx_frames()), Pool::new(memory.tx_frames())) };
    let mac = nic.info().mac;
    let shared = Arc::new(Shared::new(config, memory, vec![Waker::new(-1)], &[mac], now_us.get()));
    let page = Arc::new(ControlPage::anonymous(1).expect("memory for a control page"));
    let calls = Box::leak(vec![CallSlot::default(); CALLS_MAX].into_boxed_slice()).as_mut_ptr();
    let events = Box::leak(vec![EventSlot::default(); EVENTS_MAX].into_boxed_slice()).as_mut_ptr();
    let status: *mut ThreadStatus = Box::leak(Box::default());
    // SAFETY: leaked arrays of the right lengths; the library only reads events, and writes calls
    // between gate calls.
    let (writer, array) = unsafe { (EventWriter::new(events), CallArray::new(calls)) };
    let nics: Vec<Box<dyn Nic>> = vec![Box::new(nic)];
    let io = Io::new(shared, 0, nics, pools, writer, ThreadMetrics::new(&page, 0));
    let rings = forwarding(1).pop().expect("one thread, one set of rings");
    let elastic = ElasticThread::new(io, array, rings, now_us.get());
    let gate = Box::new(VirtualGate { elastic, status, now_us: now_us.clone() });
    let area = ThreadArea {
        calls: calls.expose_provenance() as u64,
        events: events.expose_provenance() as u64,
        status: status.expose_provenance() as u64,
        cpu: 0,
        reserved: 0,
    };
    // SAFETY: the arrays are leaked, and the gate serves them as the contract says: it writes them
    // within gate calls only.
    unsafe { Thread::with_gate(gate, area, 0) }.expect("a fresh elastic thread")
}
