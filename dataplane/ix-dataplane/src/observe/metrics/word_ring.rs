//! A ring of records in shared memory: one thread writes and waits for no reader, others read, and
//! no record is ever torn.
use super::Metric;
use crate::sync::{AtomicU64, Ordering, fence};

/// Records of `WORDS` words. A reader gets one record fewer than there are slots, because the
/// oldest may be about to be overwritten.
#[derive(Debug)]
#[repr(C)]
pub struct WordRing<const SLOTS: usize, const WORDS: usize> {
    /// Records that were ever written.
    written: AtomicU64,
    slots: [[Metric; WORDS]; SLOTS],
}

impl<const SLOTS: usize, const WORDS: usize> WordRing<SLOTS, WORDS> {
    /// A ring without records.
    #[cfg(test)]
    pub fn new() -> Self {
        let slot = |_| core::array::from_fn(|_| Metric::default());
        WordRing { written: AtomicU64::new(0), slots: core::array::from_fn(slot) }
    }

    /// Adds a record.
    pub fn push(&self, record: [u64; WORDS]) {
        let written = self.written.load(Ordering::Relaxed);
        // The announcement of the last record comes before the overwriting of the oldest.
        fence(Ordering::Release);
        let slot = &self.slots[written as usize % SLOTS];
        for (word, value) in slot.iter().zip(record) {
            word.set(value);
        }
        self.written.store(written.wrapping_add(1), Ordering::Release);
    }

    /// Number of records that were ever written.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// The last records, oldest first.
    pub fn read(&self) -> Vec<[u64; WORDS]> {
        let end = self.written.load(Ordering::Acquire);
        let first = end.saturating_sub(SLOTS as u64 - 1);
        let copy = |number: u64| {
            let slot = &self.slots[number as usize % SLOTS];
            (number, core::array::from_fn(|i| slot[i].get()))
        };
        let copies: Vec<_> = (first..end).map(copy).collect();
        fence(Ordering::Acquire);
        // The writer may be writing the slot of `written - SLOTS`.
        let intact = self.written.load(Ordering::Relaxed).saturating_sub(SLOTS as u64 - 1);
        let kept = copies.into_iter().filter(|(number, _)| *number >= intact);
        kept.map(|(_, words)| words).collect()
    }
}
