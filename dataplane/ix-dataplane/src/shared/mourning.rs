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
    /// How often each frame is among them.
    frames: BTreeMap<u32, u32>,
    /// Elastic threads that have closed its flows; 0: it has not ended.
    closed_by: usize,
}

impl Mourned {
    fn claim(&mut self, frames: &[u32]) {
        frames.iter().for_each(|frame| *self.frames.entry(*frame).or_default() += 1);
    }

    fn release(&mut self, frames: &[u32]) {
        for frame in frames {
            let Some(count) = self.frames.get_mut(frame) else { continue };
            *count -= 1;
            if *count == 0 {
                self.frames.remove(frame);
            }
        }
    }

    /// Sets the frames of a flow; returns whether there were any of it before.
    fn set(&mut self, flow: u64, frames: Vec<u32>) -> bool {
        self.claim(&frames);
        let before = self.flows.insert(flow, frames);
        before.inspect(|before| self.release(before)).is_some()
    }

    fn remove(&mut self, flow: u64) {
        if let Some(frames) = self.flows.remove(&flow) {
            self.release(&frames);
        }
    }
}

/// What a flow still sends of what a process has left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Still {
    /// From these receive frames, or from its transmit memory.
    Sends(Vec<u32>),
    /// Nothing.
    Nothing,
    /// The flow is on another elastic thread, which looks itself.
    Elsewhere,
}

/// A flow of a process.
pub type Left = (AttachmentId, u64);

/// What is left of each process.
pub struct Mourning {
    all: [Mutex<Mourned>; ATTACHMENTS_MAX],
    /// Bits of processes that have flows here.
    with_flows: AtomicU64,
    /// Number of flows that have sent all, or some of it.
    changes: AtomicU64,
    /// Number of flows of all of them.
    count: AtomicUsize,
    /// Bits of processes whose flows an elastic thread has closed, until nothing is left of them.
    ended: AtomicU64,
    /// Bits of those whose numbers are wanted back.
    wanted: AtomicU64,
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
            with_flows: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            count: AtomicUsize::new(0),
            ended: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
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
        let mut mourned = self.lock(number);
        if !mourned.set(flow, frames) {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        self.with_flows.fetch_or(1 << number, Ordering::SeqCst);
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

    /// Whether this frame of the process is still being sent; `None`: that is not known yet,
    /// because a flow of its may be on an elastic thread that has not heard of its end, or between
    /// two.
    pub fn is_sent(&self, number: AttachmentId, frame: u32) -> Option<bool> {
        let mourned = self.lock(number);
        let is_closed = mourned.closed_by == 0 || mourned.closed_by >= self.threads;
        let is_known = is_closed && self.ships.load(Ordering::SeqCst) == 0;
        is_known.then(|| mourned.frames.contains_key(&frame))
    }

    /// Number of changes by [`Mourning::review`].
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
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
        self.wanted.fetch_and(!(1 << number), Ordering::SeqCst);
    }

    /// The numbers of these processes, by bits, are wanted back: their flows whose peers take
    /// nothing may be reset.
    pub fn want(&self, numbers: u64) {
        let before = self.wanted.swap(numbers, Ordering::SeqCst);
        if before | numbers != 0 {
            // All elastic threads look at flows again: time has passed for their peers.
            self.changes.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Whether any number is wanted back.
    pub fn is_any_wanted(&self) -> bool {
        self.wanted.load(Ordering::SeqCst) != 0
    }

    /// Whether the number of this process is wanted back.
    pub fn is_wanted(&self, number: AttachmentId) -> bool {
        self.wanted.load(Ordering::SeqCst) >> number & 1 != 0
    }

    /// Looks at flows again, at most at so many, from this one on: `still` gets the process and the
    /// flow. Returns the next flow to look at; `None` after the last one.
    pub fn review(
        &self,
        (first, mut flow): Left,
        most: usize,
        mut still: impl FnMut(AttachmentId, u64) -> Still,
    ) -> Option<Left> {
        let mut looks = 0;
        let all = self.with_flows.load(Ordering::SeqCst);
        let numbers = first..ATTACHMENTS_MAX as AttachmentId;
        for number in numbers.filter(|number| all >> number & 1 != 0) {
            if number != first {
                flow = 0;
            }
            let mut mourned = self.lock(number);
            while let Some((&next, before)) = mourned.flows.range(flow..).next() {
                if looks >= most {
                    return Some((number, next));
                }
                looks += 1;
                match still(number, next) {
                    Still::Elsewhere => {}
                    Still::Sends(frames) => {
                        // Whoever sends from many frames takes as long as many flows do.
                        looks += frames.len();
                        if *before != frames {
                            mourned.set(next, frames);
                            self.changes.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                    Still::Nothing => {
                        mourned.remove(next);
                        self.count.fetch_sub(1, Ordering::Relaxed);
                        self.changes.fetch_add(1, Ordering::SeqCst);
                    }
                }
                let Some(behind) = next.checked_add(1) else { break };
                flow = behind;
            }
            if mourned.flows.is_empty() {
                self.with_flows.fetch_and(!(1 << number), Ordering::SeqCst);
            }
        }
        None
    }
}

/// How far one elastic thread has come in its review of what is left, and of the frames that
/// processes have left here. It looks at a few at a time, so that a process which leaves much
/// delays nobody, and begins anew as long as something has changed meanwhile.
#[derive(Debug, Default)]
pub struct Review {
    stage: Stage,
    /// What had changed when this review began, and when the last whole one did.
    began: Stamp,
    done: Option<Stamp>,
}

/// Grows with each change: of this elastic thread, and of others.
pub type Stamp = (u64, u64);

/// What is looked at next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// Nothing.
    #[default]
    Over,
    /// Flows, from this one on.
    Flows(Left),
    /// So many of the frames.
    Frames(usize),
}

impl Review {
    /// What is to be looked at, if `now` is how much has changed.
    pub fn stage(&mut self, now: Stamp) -> Stage {
        if self.stage == Stage::Over && self.done != Some(now) {
            (self.stage, self.began) = (Stage::Flows((0, 0)), now);
        }
        self.stage
    }

    /// What is to be looked at after this.
    pub fn goes_on(&mut self, next: Stage) {
        self.stage = next;
        if next == Stage::Over {
            self.done = Some(self.began);
        }
    }

    /// Whether something is to be looked at without any further change.
    pub fn is_under_way(&self) -> bool {
        self.stage != Stage::Over
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn a_process_that_leaves_many_flows_delays_nobody_for_long() {
        const FLOWS: u64 = 100_000;
        const MOST: usize = 64;
        let mourning = Mourning::new(1);
        let start = Instant::now();
        for flow in 0..FLOWS {
            mourning.add(3, flow << 20, vec![flow as u32]);
        }
        let taken = start.elapsed();
        assert!(taken < Duration::from_secs(3), "{taken:?}");
        mourning.add(3, 0, vec![7, 8]);
        mourning.close(3);
        assert_eq!(mourning.is_sent(3, FLOWS as u32 - 1), Some(true));
        assert_eq!(mourning.is_sent(3, FLOWS as u32), Some(false));
        // Few at a time, all of them, and none of those that have sent all.
        let (mut next, mut rounds, mut seen) = (Some((0, 0)), 0, 0);
        while let Some(from) = next {
            let mut looks = 0;
            next = mourning.review(from, MOST, |number, flow| {
                assert_eq!(number, 3);
                looks += 1;
                if flow == 0 { Still::Sends(vec![8]) } else { Still::Nothing }
            });
            assert!(looks <= MOST, "{looks}");
            (rounds, seen) = (rounds + 1, seen + looks as u64);
        }
        assert_eq!((seen, rounds), (FLOWS, FLOWS.div_ceil(MOST as u64)));
        assert_eq!([7, 8].map(|frame| mourning.is_sent(3, frame)), [Some(false), Some(true)]);
        assert!(mourning.is_any() && !mourning.is_over(3));
        assert_eq!(mourning.review((0, 0), MOST, |_, _| Still::Elsewhere), None);
        assert!(mourning.is_any(), "whoever has the flow looks");
        assert_eq!(mourning.review((0, 0), MOST, |_, _| Still::Nothing), None);
        assert!(!mourning.is_any() && mourning.is_over(3));
        assert_eq!(mourning.is_sent(3, 8), Some(false));
    }

    #[test]
    fn a_review_begins_anew_after_a_change_and_only_then() {
        let mut review = Review::default();
        assert_eq!(review.stage((0, 0)), Stage::Flows((0, 0)));
        review.goes_on(Stage::Flows((0, 64)));
        // A change in its midst: what lies before may have changed.
        assert_eq!(review.stage((1, 0)), Stage::Flows((0, 64)));
        review.goes_on(Stage::Over);
        assert!(!review.is_under_way());
        assert_eq!(review.stage((1, 0)), Stage::Flows((0, 0)));
        review.goes_on(Stage::Over);
        assert_eq!(review.stage((1, 0)), Stage::Over);
        assert_eq!(review.stage((1, 1)), Stage::Flows((0, 0)));
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
