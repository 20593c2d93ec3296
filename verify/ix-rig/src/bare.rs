//! A dataplane whose application is a test that writes anything it wants.
use crate::{Rig, RigOptions};
use ix_abi::{CallSlot, EventSlot};
use ix_dataplane::metrics::Snapshot;
use ix_nic::Nic;

/// A dataplane whose transmit memory the test owns. Its threads are private: no library enters one,
/// so that memory holds no other buffers.
pub struct BareRig(Rig);

impl BareRig {
    /// As [`Rig::new`].
    ///
    /// # Panics
    /// As there.
    pub fn new(options: RigOptions, nics: Vec<Box<dyn Nic>>) -> BareRig {
        BareRig(Rig::new(options, nics))
    }

    /// As [`Rig::with_devices`].
    ///
    /// # Panics
    /// As there.
    pub fn with_devices(options: RigOptions, devices: Vec<Vec<Box<dyn Nic>>>) -> BareRig {
        BareRig(Rig::with_devices(options, devices))
    }

    /// One cycle of elastic thread `index` with these calls: their return codes, and the events.
    ///
    /// # Panics
    /// When there is no such thread.
    pub fn run(
        &mut self,
        index: usize,
        calls: &[CallSlot],
        now_us: u64,
    ) -> (Vec<i64>, Vec<EventSlot>) {
        self.0.threads[index].run(calls, now_us)
    }

    /// Transmit memory: first address and bytes.
    pub fn transmit_memory(&self) -> (u64, u64) {
        let (base, bytes) = self.0.shared.memory.arena();
        (base as u64, bytes as u64)
    }

    /// Writes words into transmit memory, as a hostile program can at any time.
    ///
    /// # Panics
    /// When the words do not lie there, or are not aligned.
    pub fn write(&mut self, at: u64, words: &[u64]) {
        let (base, bytes) = self.0.shared.memory.arena();
        let room = (base + bytes).checked_sub(at as usize).filter(|_| at as usize >= base);
        assert!(at.is_multiple_of(8) && room.is_some_and(|room| size_of_val(words) <= room));
        let to = std::ptr::with_exposed_provenance_mut::<u64>(at as usize);
        for (index, word) in words.iter().enumerate() {
            // SAFETY: within transmit memory, aligned, and nobody else's: no thread of this rig was
            // entered, and the dataplane looks there within a cycle only, which takes `self`.
            unsafe { to.add(index).write_volatile(*word) };
        }
    }

    /// All counters and gauges, as they are now.
    pub fn metrics(&self) -> Snapshot {
        self.0.metrics()
    }
}
