//! One direction of a crossing: how a message is published and how its receiver goes to sleep, so
//! that no wake-up is lost. `verify/loom/` compiles this file with loom's atomics and tries every
//! order.
//!
//! The sender writes the words of a message and publishes its number; then it looks whether the
//! receiver sleeps. The receiver notes that it is about to sleep and then looks for a new number.
//! Each has a full fence between its store and its load, so at least one of them sees the other
//! (the store-buffering pattern of Dekker's algorithm).
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// The two words of one direction. The sender can write the first one only and the receiver the
/// second one only, so neither can forge the other's.
#[derive(Clone, Copy)]
pub struct Direction<'a> {
    /// Number of the newest message.
    pub serial: &'a AtomicU64,
    /// 1: the receiver sleeps until its bell rings.
    pub is_asleep: &'a AtomicU32,
}

impl Direction<'_> {
    /// Publishes the message of this number, whose words are written. Returns whether the sender
    /// must ring the receiver's bell now.
    #[must_use]
    #[inline]
    pub fn publish(self, serial: u64) -> bool {
        self.serial.store(serial, Ordering::Release);
        fence(Ordering::SeqCst);
        self.is_asleep.load(Ordering::Relaxed) != 0
    }

    /// Number of the newest message, whose words the receiver may read then.
    #[inline]
    pub fn newest(self) -> u64 {
        self.serial.load(Ordering::Acquire)
    }

    /// Notes that the receiver is about to sleep, and returns the number of the newest message: if
    /// it is one that the receiver has seen, it may wait for its bell, which rings for the next.
    #[must_use]
    pub fn going_to_sleep(self) -> u64 {
        self.is_asleep.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.newest()
    }

    /// Notes that the receiver is awake. A bell that was rung in vain may still be heard later.
    pub fn awake(self) {
        self.is_asleep.store(0, Ordering::Relaxed);
    }
}
