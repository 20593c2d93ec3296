//! Elastic threads for the tests in this crate that look at what is private.
//!
//! All other tests take theirs from `ix-rig`. These cannot: it is built against the crate as others
//! see it, whose types are not those of the crate under test. Device, clock and arrays are its.
use crate::calls::CallArray;
use crate::config::Config;
use crate::cycle::ElasticThread;
use crate::events::EventWriter;
use crate::observe::metrics::ControlPage;
use crate::run::assembly::{ThreadParts, elastic_threads, equal_parts, pools};
use crate::shared::{Shared, Waker};
use ix_mem::{PacketMemory, Sizes};
use ix_rig::{Arrays, SimDevice, SimOptions, Spread, VirtualClock};
use ix_wire::FlowHash;
use std::sync::Arc;

/// A dataplane at time 0.
pub(crate) struct TestRig {
    pub threads: Vec<TestThread>,
    pub shared: Arc<Shared>,
    pub page: Arc<ControlPage>,
}

/// An elastic thread and its arrays.
pub(crate) struct TestThread {
    // Before the arrays, which it writes.
    pub elastic: ElasticThread,
    pub arrays: Arrays,
}

impl TestRig {
    /// One elastic thread for each queue of the device, with equal parts of this memory.
    pub fn new(config: Config, sizes: Sizes, device: &SimDevice) -> TestRig {
        let nics = device.nics();
        let threads = nics.len();
        let memory = PacketMemory::new(sizes).unwrap();
        // SAFETY: the only pools of this memory.
        let pools = unsafe { pools(&memory, threads, equal_parts(&memory, threads)) };
        let wakers = (0..threads).map(|_| Waker::new(-1)).collect();
        let shared = Arc::new(Shared::new(config, memory, wakers, &[device.options().mac], 0));
        let page = Arc::new(ControlPage::anonymous(threads).unwrap());
        let arrays: Vec<Arrays> = nics.iter().map(|_| Arrays::new()).collect();
        let parts = nics.into_iter().zip(pools).zip(&arrays).map(|((nic, pools), arrays)| {
            // SAFETY: the arrays outlive the thread (`TestThread`), and are used for nothing else.
            let (calls, events) =
                unsafe { (CallArray::new(arrays.calls()), EventWriter::new(arrays.events())) };
            ThreadParts { nics: vec![nic], pools, calls, events }
        });
        let threads = elastic_threads(&shared, &page, parts.collect(), &[], 0).into_iter();
        let threads = threads.zip(arrays).map(|(elastic, arrays)| TestThread { elastic, arrays });
        TestRig { threads: threads.collect(), shared, page }
    }
}

/// A device with so many queues, our redirection table, and the key 0.
pub(crate) fn device(queues: usize) -> SimDevice {
    let spread = Spread::Table(FlowHash::new([0; 2]));
    let options = SimOptions { queues, spread, fences: true, ..SimOptions::default() };
    SimDevice::new(options, &VirtualClock::default())
}
