//! A clock that advances only when a test says so.
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A clock in virtual time, µs. Clones are the same clock.
#[derive(Clone, Debug, Default)]
pub struct VirtualClock(Arc<AtomicU64>);

impl VirtualClock {
    /// A clock that shows `now_us`.
    pub fn new(now_us: u64) -> VirtualClock {
        VirtualClock(Arc::new(AtomicU64::new(now_us)))
    }

    /// The time, µs.
    #[inline]
    pub fn now_us(&self) -> u64 {
        // One thread runs a rig; the atomic is there because devices must be `Send`.
        self.0.load(Ordering::Relaxed)
    }

    /// Sets the time, which does not go back.
    pub fn set(&self, now_us: u64) {
        debug_assert!(now_us >= self.now_us(), "{now_us} is before {}", self.now_us());
        self.0.store(now_us, Ordering::Relaxed);
    }

    /// Lets `us` microseconds pass; returns the new time.
    pub fn advance(&self, us: u64) -> u64 {
        let now_us = self.now_us() + us;
        self.0.store(now_us, Ordering::Relaxed);
        now_us
    }
}
