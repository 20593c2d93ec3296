//! One elastic thread in virtual time, with its arrays laid bare: the application is whoever writes
//! them.
use ix_abi::{CALLS_MAX, CallSlot, EVENTS_MAX, EventSlot};
use ix_dataplane::config::AddressCheck;
use ix_dataplane::metrics::{ControlPage, Snapshot, ThreadMetrics};
use ix_dataplane::{CallArray, Config, ElasticThread, EventWriter, Io, Shared, Waker, forwarding};
use ix_mem::{PacketMemory, Pool, Sizes};
use ix_sim::nic::{Port, PortConfig, Promise, Spread};
use ix_wire::IpAddr;
use std::sync::Arc;

const FRAMES: usize = 128;
const ARENA_BYTES: usize = 4 << 20;

pub const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub const OWN: [u8; 4] = [10, 0, 0, 1];
pub const PEER: [u8; 4] = [10, 0, 0, 2];

/// What must be zero when nothing is left, and what always is. (Entries of the wheel may stay: nobody
/// removes one, and an application sets timers of years.)
const GAUGES: [&str; 6] =
    ["flows", "half_open", "time_wait", "rx_frames_in_use", "tx_frames_in_use", "misrouted"];

/// The thread and what belongs to it.
pub struct Rig {
    // Before the arrays that it writes.
    elastic: ElasticThread,
    calls: Box<[CallSlot]>,
    events: Box<[EventSlot]>,
    page: Arc<ControlPage>,
    pub port: Port,
    pub now_us: u64,
    /// Transmit memory: first address and length.
    pub arena: (u64, u64),
}

impl Rig {
    pub fn new() -> Rig {
        let now_us = 1_000_000;
        let config = Config {
            host_addrs: vec![(IpAddr::v4(OWN), 24)],
            arp: vec![(IpAddr::v4(PEER), PEER_MAC)],
            address_check: AddressCheck::Off,
            flows_max: 64,
            timers_max: 64,
            backlog: 16,
            ..Config::default()
        };
        let port = Port::new(PortConfig {
            mac: OWN_MAC,
            mtu: 1500,
            queues: 1,
            ring: 64,
            spread: Spread::First,
            promise: Promise::Settled,
            lag_us: 0,
        });
        let sizes = Sizes { rx_frames: FRAMES, tx_frames: FRAMES, arena_bytes: ARENA_BYTES };
        let memory = PacketMemory::new(sizes).expect("memory for an elastic thread");
        let (base, len) = memory.arena();
        let wakers = vec![Waker::new(-1)];
        let shared = Arc::new(Shared::new(config, memory, wakers, &[OWN_MAC], now_us));
        let page = Arc::new(ControlPage::anonymous(1).expect("memory for a control page"));
        let mut calls = vec![CallSlot::default(); CALLS_MAX].into_boxed_slice();
        let mut events = vec![EventSlot::default(); EVENTS_MAX].into_boxed_slice();
        let (rx, tx) = (shared.memory.rx_frames(), shared.memory.tx_frames());
        // SAFETY: there is one thread; each pool takes its frames once.
        let pools = unsafe { (Pool::new(rx), Pool::new(tx)) };
        // SAFETY: the arrays live as long as the thread (fields of one struct, the thread first), and
        // move with their boxes, not in memory.
        let (writer, array) =
            unsafe { (EventWriter::new(events.as_mut_ptr()), CallArray::new(calls.as_mut_ptr())) };
        let nic = Box::new(port.queue(0));
        let metrics = ThreadMetrics::new(&page, 0);
        let io = Io::new(shared, 0, vec![nic], pools, writer, metrics);
        let rings = forwarding(1).into_iter().next().expect("rings of the only thread");
        let elastic = ElasticThread::new(io, array, rings, now_us);
        Rig { elastic, calls, events, page, port, now_us, arena: (base as u64, len as u64) }
    }

    /// One cycle with these calls: what they were answered, and what came of it.
    pub fn cycle(&mut self, calls: &[CallSlot]) -> (Vec<i64>, Vec<EventSlot>) {
        let count = calls.len().min(CALLS_MAX);
        // Volatile, as the dataplane does it: both know the arrays by other pointers.
        for (slot, call) in self.calls.iter_mut().zip(calls) {
            // SAFETY: a place of ours.
            unsafe { std::ptr::write_volatile(slot, *call) };
        }
        self.port.set_now(self.now_us);
        let report = self.elastic.run_cycle(count, self.now_us);
        assert!(report.events <= EVENTS_MAX);
        // SAFETY: places of ours.
        let rets = self.calls[..count].iter().map(|c| unsafe { std::ptr::read_volatile(c) }.ret);
        let rets = rets.collect();
        let events = self.events[..report.events].iter();
        // SAFETY: as above.
        (rets, events.map(|event| unsafe { std::ptr::read_volatile(event) }).collect())
    }

    /// What should be zero and is not.
    pub fn left(&self) -> Vec<(&'static str, u64)> {
        let metrics = Snapshot::of(&self.page);
        let totals = GAUGES.iter().map(|name| (*name, metrics.total(name).unwrap_or(u64::MAX)));
        totals.filter(|(_, value)| *value != 0).collect()
    }
}
