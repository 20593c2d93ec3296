//! Flows that still send what a process has given them that has ended: its transmit memory, or
//! frames that it had received and sent on. Its memory stays mapped, and its frames stay out of the
//! pools, until the last byte in them was acknowledged.
use ix_proto::crossing::{ATTACHMENTS_MAX, AttachmentId};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is left of one process.
#[derive(Default)]
struct Mourned {
    /// Receive frames that each flow sends from, by the flow's handle. A process may leave as many
    /// flows as there are, so none is looked for among all.
    flows: BTreeMap<u64, Vec<u32>>,
    /// Elastic threads that have closed its flows; 0: it has not ended.
    closed_by: usize,
}

/// What is left of each process.
pub struct Mourning {
    all: [Mutex<Mourned>; ATTACHMENTS_MAX],
    /// Number of flows of all of them.
    count: AtomicUsize,
    /// Bits of processes whose flows an elastic thread has closed, until nothing is left of them.
    ended: AtomicU64,
    threads: usize,
    /// Number of flow groups on their way between elastic threads.
    ships: AtomicUsize,
}

/// Flow groups on their way to another elastic thread, until this is dropped there.
pub struct UnderWay(Arc<crate::shared::Shared>);

impl UnderWay {
    /// They leave.
    pub fn new(shared: Arc<crate::shared::Shared>) -> UnderWay {
        shared.mourning.ships.fetch_add(1, Ordering::SeqCst);
        UnderWay(shared)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.mourning.ships.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Mourning {
    /// Nothing, of a dataplane with so many elastic threads.
    pub fn new(threads: usize) -> Mourning {
        Mourning {
            all: std::array::from_fn(|_| Mutex::default()),
            count: AtomicUsize::new(0),
            ended: AtomicU64::new(0),
            threads,
            ships: AtomicUsize::new(0),
        }
    }

    fn lock(&self, number: AttachmentId) -> MutexGuard<'_, Mourned> {
        self.all[usize::from(number)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An elastic thread has closed the flows of this process.
    pub fn close(&self, number: AttachmentId) {
        let mut mourned = self.lock(number);
        mourned.closed_by += 1;
        self.ended.fetch_or(1 << number, Ordering::SeqCst);
    }

    /// Whether flows of processes that have ended may arrive from other threads.
    pub fn has_any_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst) != 0
    }

    /// The flow of this handle sends what the process has given it, from these receive frames among
    /// others.
    pub fn add(&self, number: AttachmentId, flow: u64, frames: Vec<u32>) {
        if self.lock(number).flows.insert(flow, frames).is_none() {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether there are flows of any process.
    #[inline]
    pub fn is_any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Whether a flow sends what this process has given it.
    pub fn is_mourned(&self, number: AttachmentId) -> bool {
        !self.lock(number).flows.is_empty()
    }

    /// Frames of this process that are still being sent; `None`: that is not known yet, because a
    /// flow of its may be on an elastic thread that has not heard of its end, or between two.
    pub fn frames(&self, number: AttachmentId) -> Option<Vec<u32>> {
        let mourned = self.lock(number);
        let is_closed = mourned.closed_by == 0 || mourned.closed_by >= self.threads;
        let is_known = is_closed && self.ships.load(Ordering::SeqCst) == 0;
        is_known.then(|| mourned.flows.values().flatten().copied().collect())
    }

    /// Whether nothing is left of a process that has ended.
    pub fn is_over(&self, number: AttachmentId) -> bool {
        let mourned = self.lock(number);
        let is_closed = mourned.closed_by >= self.threads && mourned.flows.is_empty();
        is_closed && self.ships.load(Ordering::SeqCst) == 0
    }

    /// Nothing is left of this process, whose number another one may get.
    pub fn forget(&self, number: AttachmentId) {
        let mut mourned = self.lock(number);
        mourned.closed_by = 0;
        self.ended.fetch_and(!(1 << number), Ordering::SeqCst);
    }

    /// Looks at all flows again: `still` gets the process, the flow and its frames, changes which
    /// frames it needs, and returns whether it needs anything.
    pub fn review(&self, mut still: impl FnMut(AttachmentId, u64, &mut Vec<u32>) -> bool) {
        for number in 0..ATTACHMENTS_MAX as AttachmentId {
            let flows = &mut self.lock(number).flows;
            let before = flows.len();
            flows.retain(|flow, frames| still(number, *flow, frames));
            self.count.fetch_sub(before - flows.len(), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn a_process_that_leaves_many_flows_delays_nobody_for_long() {
        const FLOWS: u64 = 100_000;
        let mourning = Mourning::new(1);
        let start = Instant::now();
        for flow in 0..FLOWS {
            mourning.add(3, flow << 20, vec![flow as u32]);
        }
        let taken = start.elapsed();
        assert!(taken < Duration::from_secs(3), "{taken:?}");
        mourning.add(3, 0, vec![7, 8]);
        mourning.close(3);
        assert_eq!(mourning.frames(3).map(|frames| frames.len() as u64), Some(FLOWS + 1));
        mourning.review(|_, flow, _| flow == 0);
        assert_eq!(mourning.frames(3), Some(vec![7, 8]));
        mourning.review(|_, _, _| false);
        assert!(!mourning.is_any() && mourning.is_over(3));
    }

    #[test]
    fn nobody_has_ended_once_nothing_is_left_of_all_that_have() {
        let mourning = Mourning::new(2);
        assert!(!mourning.has_any_ended());
        for number in [0, ATTACHMENTS_MAX as AttachmentId - 1] {
            mourning.close(number);
            mourning.close(number);
        }
        mourning.forget(0);
        assert!(mourning.has_any_ended(), "one is left");
        mourning.forget(ATTACHMENTS_MAX as AttachmentId - 1);
        assert!(!mourning.has_any_ended());
    }
}
