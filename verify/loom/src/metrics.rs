//! The part of `ix_dataplane::metrics` that its ring of records is made of.
use crate::sync::{AtomicU64, Ordering};

#[path = "../../../dataplane/ix-dataplane/src/observe/metrics/word_ring.rs"]
pub mod word_ring;

/// A number that one thread writes and others read.
#[derive(Debug, Default)]
pub struct Metric(AtomicU64);

impl Metric {
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
