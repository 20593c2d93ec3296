//! Flows that still refer to the transmit memory of a process that has ended, or has given them to
//! another one. That memory stays mapped until the last byte in it was acknowledged.
use ix_proto::crossing::{ATTACHMENTS_MAX, AttachmentId};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The handles of such flows, for each process.
pub struct Mourning {
    flows: [Mutex<Vec<u64>>; ATTACHMENTS_MAX],
    /// Number of all of them.
    count: AtomicUsize,
}

impl Default for Mourning {
    fn default() -> Mourning {
        let flows = std::array::from_fn(|_| Mutex::default());
        Mourning { flows, count: AtomicUsize::new(0) }
    }
}

impl Mourning {
    fn lock(&self, number: usize) -> MutexGuard<'_, Vec<u64>> {
        self.flows[number].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These flows refer to the memory of this process.
    pub fn add(&self, number: AttachmentId, flows: Vec<u64>) {
        self.count.fetch_add(flows.len(), Ordering::Relaxed);
        self.lock(number.into()).extend(flows);
    }

    /// Whether there are any.
    #[inline]
    pub fn is_any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Whether a flow refers to the memory of this process.
    pub fn is_mourned(&self, number: AttachmentId) -> bool {
        !self.lock(number.into()).is_empty()
    }

    /// Forgets flows that do not refer to it any more; `still` gets the process and the flow.
    pub fn review(&self, mut still: impl FnMut(AttachmentId, u64) -> bool) {
        for number in 0..ATTACHMENTS_MAX {
            let mut flows = self.lock(number);
            let before = flows.len();
            flows.retain(|id| still(number as AttachmentId, *id));
            self.count.fetch_sub(before - flows.len(), Ordering::Relaxed);
        }
    }
}
