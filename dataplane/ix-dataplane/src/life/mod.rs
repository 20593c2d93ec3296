//! The life of elastic threads: entered, parked, resumed; and the commands of the control plane.
//!
//! ```text
//!  background ── first RUN_IO ──▶ active ── park: REVOKE 1 ──▶ parking ── groups have left ──▶ parked
//!                                    ▲                                                          │
//!                                    └────────── resume: groups come, then REVOKE 0 ────────────┘
//! ```
//!
//! An application that turns an elastic thread into a background thread says `DRAIN`, hears
//! `REVOKE` 2 when its flow groups are gone, and leaves. What it has not entered for a while, or
//! has left, has no flow groups once another thread is active: whoever is there sends them
//! (`care.rs`).
//!
//! One [`Directory`] for all threads says what each is and where each flow group belongs; a command
//! changes it and so is over at once. Then each thread that has to do with it looks between two of
//! its cycles, and does its part: tells its application, sends what belongs elsewhere. Whatever
//! happens to whoever wanted it, the threads bring about what the directory says. A command that is
//! not carried out in time gives the directory back its old plan.
pub(crate) mod directory;
mod plan;

use crate::observe::metrics::ThreadState;
use directory::Directory;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The directory, and what threads see of it without the lock.
pub struct Lives {
    pub(crate) directory: Mutex<Directory>,
    pub(crate) unsettled: AtomicBool,
    /// A thread that nobody is may receive packets.
    pub(crate) strays: AtomicBool,
    /// Which threads the program's own threads take turns in being.
    pub(crate) shared: Box<[AtomicBool]>,
    /// When the first thread was entered, µs; 0: none was.
    pub(crate) first_entered_us: AtomicU64,
}

/// So long after the first thread was entered have the others time to be, before their flow groups
/// are given to those that were, µs. A program that enters all of them at its start sees no
/// migration.
pub(crate) const ENTER_US: u64 = 1_000_000;

impl Lives {
    /// Of so many threads that nobody has entered; flow groups belong where they are.
    pub(crate) fn new(threads: usize, owner: impl Fn(usize) -> usize) -> Lives {
        Lives {
            directory: Mutex::new(Directory::new(threads, owner)),
            unsettled: AtomicBool::new(false),
            strays: AtomicBool::new(false),
            shared: (0..threads).map(|_| AtomicBool::new(false)).collect(),
            first_entered_us: AtomicU64::new(0),
        }
    }

    /// Whether something is not as it should be: threads look from time to time.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.unsettled.load(Ordering::Relaxed)
    }

    /// Whether somebody must be awake every few milliseconds.
    pub(crate) fn needs_care(&self) -> bool {
        self.is_unsettled() || self.strays.load(Ordering::Relaxed)
    }

    /// What a thread is.
    pub(crate) fn state(&self, thread: usize) -> ThreadState {
        self.lock().state(thread)
    }

    /// The program's own threads take turns in being this elastic thread: it cannot be parked. Uses
    /// no thread-local storage.
    pub(crate) fn share(&self, thread: usize) {
        self.shared[thread].store(true, Ordering::Relaxed);
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Directory> {
        self.directory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
