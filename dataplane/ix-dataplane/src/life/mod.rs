//! The life of elastic threads: entered, parked, resumed; and the commands of the control plane.
//!
//! ```text
//! background ── first RUN_IO ──▶ active ── park: REVOKE 1 ──▶ parking ── groups have left ──▶
//! parked
//!                                    ▲                                                          │
//!                                    └────────── resume: groups come, then REVOKE 0 ────────────┘
//! ```
//!
//! An application that turns an elastic thread into a background thread calls `DRAIN`, gets
//! `REVOKE` 2 when its flow groups have left, and leaves. A thread that the application has left,
//! or has not entered for a while, has no flow groups once another thread is active: a thread that
//! is awake sends them (`run/unentered.rs`).
//!
//! One [`Directory`] for all threads has the state of each thread and the owner of each flow group.
//! A command only changes the directory. Then each thread that is concerned looks between two of
//! its cycles and does its part: it tells its application, and sends what belongs to others.
//! Whatever happens to the sender of the command, the threads carry out what the directory says. If
//! a command is not carried out in time, the directory gets its old plan back.
pub(crate) mod directory;
mod plan;

use crate::observe::metrics::ThreadState;
use directory::Directory;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The directory, and the parts of it that threads read without the lock.
pub struct Lives {
    pub(crate) directory: Mutex<Directory>,
    pub(crate) unsettled: AtomicBool,
    /// A thread that is not entered may receive packets.
    pub(crate) strays: AtomicBool,
    /// Threads that the program's own threads take turns running.
    pub(crate) shared: Box<[AtomicBool]>,
    /// When the first thread was entered, µs; 0: none was.
    pub(crate) first_entered_us: AtomicU64,
}

/// How long after the first thread the others may be entered before their flow groups go to those
/// that were, µs. A program that enters all of them at its start causes no migration.
pub(crate) const ENTER_US: u64 = 1_000_000;

impl Lives {
    /// The state of threads that were not entered yet. Flow groups belong to their current owners.
    pub(crate) fn new(threads: usize, owner: impl Fn(usize) -> usize) -> Lives {
        Lives {
            directory: Mutex::new(Directory::new(threads, owner)),
            unsettled: AtomicBool::new(false),
            strays: AtomicBool::new(false),
            shared: (0..threads).map(|_| AtomicBool::new(false)).collect(),
            first_entered_us: AtomicU64::new(0),
        }
    }

    /// Whether a thread or flow group is not yet as the directory says, so that threads must look
    /// from time to time.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.unsettled.load(Ordering::Relaxed)
    }

    /// Whether a thread must be awake every few milliseconds.
    pub(crate) fn needs_look(&self) -> bool {
        self.is_unsettled() || self.strays.load(Ordering::Relaxed)
    }

    /// The state of a thread.
    pub(crate) fn state(&self, thread: usize) -> ThreadState {
        self.lock().state(thread)
    }

    /// The program's own threads take turns running this elastic thread, so it cannot be parked.
    /// Uses no thread-local storage.
    pub(crate) fn share(&self, thread: usize) {
        self.shared[thread].store(true, Ordering::Relaxed);
    }

    /// Whether the program's own threads take turns running elastic threads: flow groups stay where
    /// they are ([`Directory`]).
    pub(crate) fn is_any_shared(&self) -> bool {
        self.shared.iter().any(|shared| shared.load(Ordering::Relaxed))
    }

    /// The directory, which knows by now which threads are shared.
    pub(crate) fn lock_with_shares(&self) -> MutexGuard<'_, Directory> {
        let mut directory = self.lock();
        for (thread, shared) in self.shared.iter().enumerate() {
            if shared.load(Ordering::Relaxed) {
                directory.share(thread);
            }
        }
        directory
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Directory> {
        self.directory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
