//! The elastic threads of one dataplane, with everything that they need.
use crate::{Arrays, VirtualClock};
use ix_abi::{CALLS_MAX, CallSlot, EventSlot};
use ix_dataplane::metrics::{ControlPage, Snapshot};
use ix_dataplane::{
    CallArray, Config, CycleReport, ElasticThread, EventWriter, Shared, ThreadParts, Waker,
};
use ix_mem::{PacketMemory, Sizes};
use ix_nic::Nic;
use std::sync::Arc;

/// What a dataplane in virtual time is built of.
pub struct RigOptions {
    /// The dataplane's configuration.
    pub config: Config,
    /// Packet memory of all its threads together, divided into equal parts. Without it each thread
    /// has exactly the number of frames in the configuration, so that a test can make them scarce.
    pub sizes: Option<Sizes>,
    /// Its clock.
    pub clock: VirtualClock,
}

/// A dataplane in virtual time.
pub struct Rig {
    /// Its elastic threads; a test may take them out, and give each to another part of itself.
    pub threads: Vec<RigThread>,
    /// What they share.
    pub shared: Arc<Shared>,
    /// Their counters.
    pub page: Arc<ControlPage>,
}

/// An elastic thread and its arrays.
pub struct RigThread {
    // Before the arrays, which it writes.
    /// The elastic thread.
    pub elastic: ElasticThread,
    /// What it shares with its application.
    pub arrays: Arrays,
}

impl Rig {
    /// A dataplane with one elastic thread for each of these queue pairs of its device.
    ///
    /// When memory or a queue pair is missing, or when the memory follows from the configuration
    /// and `config.cpus` names another number of threads.
    pub fn new(options: RigOptions, nics: Vec<Box<dyn Nic>>) -> Rig {
        Rig::with_devices(options, vec![nics])
    }

    /// The same with several devices, each with a queue pair for each thread.
    ///
    /// As there, and when the devices have different numbers of queue pairs.
    pub fn with_devices(options: RigOptions, devices: Vec<Vec<Box<dyn Nic>>>) -> Rig {
        let RigOptions { config, sizes, clock } = options;
        let (threads, now_us) = (devices[0].len(), clock.now_us());
        let macs: Vec<_> = devices.iter().map(|queues| queues[0].info().mac).collect();
        let mut nics: Vec<Vec<Box<dyn Nic>>> = (0..threads).map(|_| Vec::new()).collect();
        for queues in devices {
            assert_eq!(queues.len(), threads);
            nics.iter_mut().zip(queues).for_each(|(nics, nic)| nics.push(nic));
        }
        assert!(sizes.is_some() || threads == config.cpus.len());
        let wanted = sizes.unwrap_or_else(|| ix_dataplane::memory_sizes(&config));
        let memory = PacketMemory::new(wanted).expect("packet memory for a test");
        let each = match sizes {
            Some(_) => ix_dataplane::equal_parts(&memory, threads),
            None => [config.rx_frames, config.tx_frames],
        };
        // SAFETY: these are the only pools of this memory, which has frames for this many threads.
        let pools = unsafe { ix_dataplane::pools(&memory, threads, each) };
        let wakers = (0..threads).map(|_| Waker::new(-1)).collect();
        let shared = Arc::new(Shared::new(config, memory, wakers, &macs, now_us));
        let page = ControlPage::anonymous(threads).expect("memory for a control page");
        let page = Arc::new(page);
        let arrays: Vec<Arrays> = nics.iter().map(|_| Arrays::new()).collect();
        let parts = nics.into_iter().zip(pools).zip(&arrays).map(|((nics, pools), arrays)| {
            // SAFETY: the arrays live beside the thread, and outlive it (`RigThread`). No other
            // writer or call array uses them.
            let (calls, events) =
                unsafe { (CallArray::new(arrays.calls()), EventWriter::new(arrays.events())) };
            ThreadParts { nics, pools, calls, events }
        });
        let elastic = ix_dataplane::elastic_threads(&shared, &page, parts.collect(), &[], now_us);
        let threads = elastic.into_iter().zip(arrays);
        let threads = threads.map(|(elastic, arrays)| RigThread { elastic, arrays }).collect();
        Rig { threads, shared, page }
    }

    /// All counters and gauges, as they are now.
    pub fn metrics(&self) -> Snapshot {
        Snapshot::of(&self.page)
    }
}

impl RigThread {
    /// One cycle with these calls, of which there are at most [`CALLS_MAX`]: their return codes,
    /// and the events.
    pub fn run(&mut self, calls: &[CallSlot], now_us: u64) -> (Vec<i64>, Vec<EventSlot>) {
        let count = calls.len().min(CALLS_MAX);
        for (index, call) in calls[..count].iter().enumerate() {
            self.arrays.set_call(index, *call);
        }
        let report = self.run_cycle(count, now_us);
        let codes = self.arrays.first_calls(count).map(|call| call.ret);
        (codes.collect(), self.arrays.first_events(report.events).collect())
    }

    /// One cycle with the first `calls` slots of the call array as they are.
    pub fn run_cycle(&mut self, calls: usize, now_us: u64) -> CycleReport {
        self.arrays.set_now(now_us);
        self.elastic.run_cycle(calls, now_us)
    }
}
