//! The memory of a capture of one thread, with a ring of a few words.
use crate::sync::AtomicU64;

pub struct CaptureMemory {
    line: [AtomicU64; 2],
    slots: Vec<AtomicU64>,
}

impl CaptureMemory {
    pub fn new(words: usize) -> CaptureMemory {
        let word = |_| AtomicU64::new(0);
        CaptureMemory { line: [0, 1].map(word), slots: (0..words).map(word).collect() }
    }

    pub fn ring_words(&self) -> u64 {
        self.slots.len() as u64
    }

    pub fn line(&self, _thread: usize, which: usize) -> &AtomicU64 {
        &self.line[which]
    }

    pub fn slot(&self, _thread: usize, position: u64) -> &AtomicU64 {
        &self.slots[position as usize % self.slots.len()]
    }
}
