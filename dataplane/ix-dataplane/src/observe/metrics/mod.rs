//! Counters and histograms of the elastic threads, in memory that the control plane reads.
//!
//! One elastic thread writes its own block, with plain loads and stores. All others only read, so a
//! reader sees each counter a little late but never torn. Names are stable: tools rely on them.
//!
//! There are two kinds of numbers: counters, which only grow, and the averages of the last windows
//! of 10 ms, by which the control plane decides (`window.rs`).
mod page;
mod records;
mod refusal;
mod snapshot;
mod state;
mod stopwatch;
mod window;
mod word_ring;

pub use ix_proto::ThreadState;
pub use page::{CommandBlock, ControlPage, PageError};
pub use records::RecordRing;
pub use refusal::{Refusal, WallBlock};
pub use snapshot::{CommandSnapshot, GroupSnapshot, Snapshot, ThreadSnapshot};
pub use state::{NONRESPONSIVE_US, Place, Whereabouts};
pub use stopwatch::{Stage, ThreadMetrics};
pub use window::{ALPHAS, Smoothed, WINDOW_US, WindowBlock, WindowMetrics};

use crate::observe::histogram::{BUCKETS, Histogram, bucket_of};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use ix_tcp::TcpCounter;
use ix_wire::{DropReason, FLOW_GROUPS};

/// Version of the control page's layout. A change of any list in this module, or of the meaning of
/// one of its numbers, needs a new version.
pub const VERSION: u32 = 9;

/// Buckets of the batch histogram: 0, 1, 2..4, 4..8, … the last is open-ended.
pub const BATCH_BUCKETS: usize = 12;

/// A number that one thread writes and others read.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Metric(AtomicU64);

impl Metric {
    /// Adds to a counter.
    #[inline]
    pub fn add(&self, n: u64) {
        // One writer, so no atomic read-modify-write is needed.
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Adds to a counter that has several writers. Not for the packet path.
    pub fn add_shared(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// Sets a gauge.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    /// Keeps the larger of the gauge and `value`.
    #[inline]
    pub fn raise(&self, value: u64) {
        if value > self.0.load(Relaxed) {
            self.0.store(value, Relaxed);
        }
    }

    /// The value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)*) => {
        /// Counters and gauges of one elastic thread.
        #[derive(Debug, Default)]
        #[repr(C)]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $name: Metric,)*
        }

        impl Counters {
            /// Every name with its value, in the order of declaration.
            pub fn for_each(&self, mut f: impl FnMut(&'static str, u64)) {
                $(f(stringify!($name), self.$name.get());)*
            }
        }
    };
}

counters! {
    /// Packets received from devices.
    rx_packets,
    /// Their bytes, with Ethernet headers.
    rx_bytes,
    /// Packets given to devices.
    tx_packets,
    /// Their bytes.
    tx_bytes,
    /// Run-to-completion cycles, with empty ones.
    cycles,
    /// Cycles that received or sent something.
    busy_cycles,
    /// Event conditions written.
    events,
    /// Batched system calls carried out.
    calls,
    /// Batched system calls that returned an error.
    call_errors,
    /// ARP packets and messages of neighbours that claim an own address.
    address_conflicts,
    /// SYNs that got a SYN cookie.
    syn_cookies,
    /// Events `KNOCK`.
    knocks,
    /// Connections opened successfully by the application.
    connects,
    /// Knocks that the application accepted.
    accepted,
    /// Flows that ended, for any reason.
    closed,
    /// Turns of the guard while the application was non-responsive.
    away_turns,
    /// Flows now, in all states.
    flows,
    /// Most flows at one time.
    flows_peak,
    /// Flows in SYN-RECEIVED now.
    half_open,
    /// Flows in TIME-WAIT now.
    time_wait,
    /// Flows that the application has closed and that have not ended yet, without those in
    /// TIME-WAIT.
    orphans,
    /// Connections that were reset when the application closed them, because of too many orphans.
    orphans_reset,
    /// Flows in TIME-WAIT that ended early, to make room for others.
    time_wait_recycled,
    /// Receive frames that are not in the pool now: in rings, queues, or with the application.
    rx_frames_in_use,
    /// Transmit frames that are not in the pool now.
    tx_frames_in_use,
    /// Receive frames that belong to this thread's pool, in use or not.
    rx_frames_owned,
    /// Receive frames in use that devices hold for receiving.
    rx_frames_in_device,
    /// Transmit frames in use that devices are sending.
    tx_frames_in_device,
    /// Application timers that are set now.
    app_timers,
    /// Entries in the timing wheel now, with stale ones.
    wheel_entries,
    /// Packets processed by another thread than the owner of their flow group; must stay 0.
    misrouted,
    /// Packets handed over to the owner of their flow group.
    forwarded,
    /// Turns that left packets in the device because the event array was full.
    event_back_pressure,
    /// Packets lost by devices because they were not polled in time.
    device_rx_overrun,
    /// Packets lost by devices because the device did not accept them.
    device_rx_invalid,
    /// Packets of another VLAN than the device's, or of none.
    device_rx_other_vlan,
    /// Packets lost by devices because they could not be sent.
    device_tx_failed,
}

macro_rules! local_drops {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)*) => {
        /// Why the dataplane itself drops a well-formed packet.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum LocalDrop {
            $($(#[doc = $doc])+ $variant,)*
        }

        impl LocalDrop {
            /// All reasons, in the order of their counters.
            pub const ALL: &'static [LocalDrop] = &[$(LocalDrop::$variant,)*];
            /// Number of reasons.
            pub const COUNT: usize = Self::ALL.len();

            /// Name of the counter.
            pub const fn name(self) -> &'static str {
                match self { $(LocalDrop::$variant => $name,)* }
            }

            /// One sentence for the user: when the packet is dropped for this reason.
            pub const fn describe(self) -> &'static str {
                match self { $(LocalDrop::$variant => concat!($($doc),+).trim_ascii(),)* }
            }
        }
    };
}

local_drops! {
    /// A segment that belongs to no flow, and no listener has its port.
    NoFlow = "no_flow",
    /// A SYN beyond the listener's backlog, or refused by the listener for another reason.
    Backlog = "backlog",
    /// A segment of no flow without a valid SYN cookie, while cookies are in use.
    NoCookie = "no_cookie",
    /// Payload dropped because receive frames were short.
    RxPressure = "rx_pressure",
    /// Payload dropped early because very many packets were waiting (`drop_queue`).
    Early = "early",
    /// A packet that needs a new flow beyond `flows_max`.
    FlowsMax = "flows_max",
    /// A datagram to a port that no socket has.
    UdpNoSocket = "udp_no_socket",
    /// A datagram to a socket whose application holds too many datagrams.
    UdpQueueFull = "udp_queue_full",
    /// A packet that could not be built because no transmit frame was free.
    NoTxFrame = "no_tx_frame",
    /// A packet that had to be stored and for which no receive frame was free.
    NoRxFrame = "no_rx_frame",
    /// A packet whose next hop did not reply to ARP in time.
    ArpPending = "arp_pending",
    /// A packet without a route to its destination.
    NoRoute = "no_route",
    /// A packet for another elastic thread, because the ring to that thread was full.
    ForwardFull = "forward_full",
    /// A later part of a frame whose first part was dropped.
    FrameTail = "frame_tail",
    /// A received packet that none of the vNIC's filters matches.
    RxFiltered = "rx_filtered",
    /// A received packet beyond the vNIC's rate.
    RxRate = "rx_rate",
    /// Not sent: the Ethernet source is not the vNIC's.
    TxForeignMac = "tx_foreign_mac",
    /// Not sent: the VLAN is not the vNIC's.
    TxForeignVlan = "tx_foreign_vlan",
    /// Not sent: the IPv4 source, or the sender in an ARP packet, is not the vNIC's.
    TxForeignAddress = "tx_foreign_address",
    /// Not sent: the source port is not the vNIC's.
    TxForeignPort = "tx_foreign_port",
    /// Not sent: only filters of other queues of the vNIC match the packet.
    TxForeignQueue = "tx_foreign_queue",
    /// Not sent: no filter of the vNIC has this peer or protocol.
    TxForeignOther = "tx_foreign_other",
    /// Not sent: too many packets wait for the vNIC's rate.
    TxRate = "tx_rate",
    /// A frame for a packet queue whose application holds too many frames, or a frame in several
    /// pieces.
    PacketQueueFull = "packet_queue_full",
}

/// A histogram that one thread writes and others read.
#[derive(Debug)]
#[repr(C)]
pub struct SharedHistogram {
    counts: [Metric; BUCKETS],
    sum: Metric,
    max: Metric,
}

impl SharedHistogram {
    /// Counts a value.
    #[inline]
    pub fn record(&self, value: u64) {
        self.counts[bucket_of(value)].add(1);
        self.sum.add(value);
        self.max.raise(value);
    }

    /// Counts a value that came several times.
    pub fn record_many(&self, value: u64, times: u64) {
        self.counts[bucket_of(value)].add(times);
        self.sum.add(value.saturating_mul(times));
        self.max.raise(value);
    }

    /// Returns a copy.
    pub fn read(&self) -> Histogram {
        let counts = core::array::from_fn(|bucket| self.counts[bucket].get());
        Histogram::from_parts(counts, self.sum.get(), self.max.get())
    }
}

/// The block that one elastic thread writes. All zeros is valid, and the initial state.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct ThreadBlock {
    /// Counters and gauges.
    pub counters: Counters,
    /// Received packets refused by the parser, by reason.
    pub drops: [Metric; DropReason::COUNT],
    /// Packets dropped by the dataplane, by reason.
    pub local_drops: [Metric; LocalDrop::COUNT],
    /// What TCP has counted.
    pub tcp: [Metric; TcpCounter::COUNT],
    /// Time stamp counter ticks by stage. When a cycle ends, its time is charged to its stages if
    /// it did anything, else to [`Stage::Idle`].
    pub stage_ticks: [Metric; Stage::COUNT],
    /// Cycles, by number of received packets.
    pub batches: [Metric; BATCH_BUCKETS],
    /// Ticks from the application's return to its next turn, for cycles that did something.
    pub busy_cycle_ticks: SharedHistogram,
    /// Received packets by the queueing delay of their window, ns.
    pub queueing_delay_ns: SharedHistogram,
    /// The thread's [`ThreadState`]. Written by the thread that holds the directory's lock.
    pub life: Metric,
    /// Where the thread is now, and since when.
    pub whereabouts: Whereabouts,
    /// The hardware thread that it is pinned to when it is entered.
    pub cpu: Metric,
    /// Ticks from the last ring for a command, or from the sending of the command, to the end of
    /// the sleep that it ended.
    pub wake_ticks: Metric,
    /// Averages of the last windows.
    pub window: WindowBlock,
    /// The flow groups that it owns, as bits.
    pub owned: [Metric; FLOW_GROUPS / 64],
    /// Packets that it has processed, by flow group.
    pub group_packets: [Metric; FLOW_GROUPS],
    /// The last migrations that ended here.
    pub migrations: RecordRing,
}

#[cfg(test)]
mod tests {
    use super::*;
    use ix_proto::MigrationRecord;
    use std::os::fd::{AsFd, FromRawFd, OwnedFd};
    use std::sync::Arc;

    fn memfd() -> OwnedFd {
        // SAFETY: a plain system call with a constant string.
        let fd = unsafe { libc::memfd_create(c"ix-test".as_ptr(), 0) };
        assert!(fd >= 0);
        // SAFETY: a fresh descriptor that nobody else owns.
        unsafe { OwnedFd::from_raw_fd(fd) }
    }

    #[test]
    fn a_reader_in_another_mapping_sees_what_each_thread_counted() {
        let fd = memfd();
        let page = Arc::new(ControlPage::create(fd.as_fd(), 2, 2500).unwrap());
        let mut second = ThreadMetrics::new(&page, 1);
        second.counters.rx_packets.add(3);
        second.counters.flows_peak.raise(9);
        second.counters.flows_peak.raise(4);
        second.drop_packet(DropReason::IpFragment);
        second.drop_local(LocalDrop::ForwardFull);
        second.enter(Stage::Calls);
        second.cycle_done(5, 0, true);
        second.cycle_done(0, 0, false);
        let reader = ControlPage::open(fd.as_fd()).unwrap();
        drop((second, page));
        let snapshot = Snapshot::of(&reader);
        assert_eq!((snapshot.threads.len(), snapshot.ticks_per_us), (2, 2500));
        let (first, second) = (&snapshot.threads[0], &snapshot.threads[1]);
        assert_eq!(first.get("rx_packets"), Some(0));
        assert_eq!(second.get("flows_peak"), Some(9));
        assert_eq!(second.get("drops.ip_fragment"), Some(1));
        assert_eq!(second.get("drops.forward_full"), Some(1));
        assert_eq!((second.get("cycles"), second.get("busy_cycles")), (Some(2), Some(1)));
        assert_eq!((second.batches[0], second.batches[3]), (1, 1));
        assert_eq!(second.busy_cycle_ticks.count(), 1);
        assert_eq!(snapshot.total("rx_packets"), Some(3));
        assert_eq!(snapshot.total("no_such_counter"), None);
    }

    #[test]
    fn the_control_plane_reads_plain_numbers() {
        let page = Arc::new(ControlPage::anonymous(2).unwrap());
        page.set_batch_bound(64);
        let (first, second) = (ThreadMetrics::new(&page, 0), ThreadMetrics::new(&page, 1));
        second.cpu.set(7);
        second.life.set(ThreadState::Active as u64);
        second.set_owned(&[3, 5, 127].into_iter().collect());
        first.group_packets[3].add(4);
        second.group_packets[3].add(5);
        second.whereabouts.set(Place::Application { since_us: 1_000 });
        let record = MigrationRecord { command: 9, to: 1, ..MigrationRecord::default() };
        first.migrated(&MigrationRecord { start_us: 2, ..record });
        second.migrated(&MigrationRecord { start_us: 1, ..record });
        page.commands().refused.add(2);
        page.wall().refuse(Refusal::Code);
        let at = |now_us| Snapshot::at(&page, now_us);
        let snapshot = at(1_000 + NONRESPONSIVE_US);
        assert_eq!(snapshot.threads[0].state, ThreadState::Background);
        let thread = &snapshot.threads[1];
        assert_eq!((thread.state, thread.cpu), (ThreadState::Active, 7));
        assert_eq!(thread.owned.to_string(), "3,5,127");
        assert_eq!(snapshot.groups[3], GroupSnapshot { owner: Some(1), packets: 9 });
        assert_eq!(snapshot.groups[4], GroupSnapshot { owner: None, packets: 0 });
        let starts: Vec<_> = snapshot.migrations.iter().map(|r| r.start_us).collect();
        assert_eq!((starts, snapshot.migrations_ever), (vec![1, 2], 2));
        assert_eq!((snapshot.batch_bound, snapshot.commands.refused), (64, 2));
        assert!(snapshot.refused.contains(&("code", 1)) && !snapshot.walled);
        // Not written by the thread, which cannot.
        let late = at(1_001 + NONRESPONSIVE_US);
        assert_eq!(late.threads[1].state, ThreadState::NonResponsive);
        second.life.set(ThreadState::Parked as u64);
        assert_eq!(at(1 << 40).threads[1].state, ThreadState::Parked);
        second.whereabouts.set(Place::Asleep { since_us: 1_000 });
        let idle = at(1_000 + 20 * WINDOW_US).threads[1].window.idle;
        assert!(idle[0] > 0.99 && idle[2] < 0.95, "{idle:?}");
    }

    #[test]
    fn strange_memory_is_refused() {
        let fd = memfd();
        assert_eq!(ControlPage::open(fd.as_fd()).err(), Some(PageError::NotAPage));
        // SAFETY: a plain system call on our descriptor.
        unsafe { libc::ftruncate(std::os::fd::AsRawFd::as_raw_fd(&fd), 4096) };
        assert_eq!(ControlPage::open(fd.as_fd()).err(), Some(PageError::NotAPage));
        drop(ControlPage::create(fd.as_fd(), 4, 0).unwrap());
        // SAFETY: as above.
        unsafe { libc::ftruncate(std::os::fd::AsRawFd::as_raw_fd(&fd), 4096) };
        assert_eq!(ControlPage::open(fd.as_fd()).err(), Some(PageError::Truncated));
    }

    #[test]
    fn blocks_share_no_cache_line() {
        assert_eq!(size_of::<ThreadBlock>() % 128, 0);
        assert_eq!(align_of::<ThreadBlock>(), 128);
    }
}
