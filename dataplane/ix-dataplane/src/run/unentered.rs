//! Elastic threads that no thread runs: what they still have is looked after.
//!
//! An elastic thread that the program has not entered, or has left, may still have flow groups, and
//! a device whose redirection table cannot be written continues to put packets into its queue. So
//! any elastic thread that is awake looks after it about every millisecond. It claims the thread,
//! as one that enters it must, runs it for a moment, hands over its packets and sends away its flow
//! groups. There is no application that could be told.
use crate::observe::survey::SLICE;
use crate::run::runner::Runner;
use core::cell::UnsafeCell;
use std::sync::atomic::{AtomicU8, Ordering};

const NOBODY: u8 = 0;
const ENTERED: u8 = 1;
const CARED_FOR: u8 = 2;

/// Which Linux thread uses each elastic thread.
pub(crate) struct Claims(Box<[AtomicU8]>);

impl Claims {
    /// No thread is used.
    pub fn new(threads: usize) -> Claims {
        Claims((0..threads).map(|_| AtomicU8::new(NOBODY)).collect())
    }

    /// Whether the program has entered a thread.
    #[inline]
    pub fn is_entered(&self, thread: usize) -> bool {
        self.0[thread].load(Ordering::Relaxed) == ENTERED
    }

    /// The program enters a thread. Waits for a short time if another thread is looking after it.
    #[cold]
    pub fn enter(&self, thread: usize) {
        while !self.is_entered(thread) {
            let claim = &self.0[thread];
            let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
            if claim.compare_exchange(NOBODY, ENTERED, acquire, relaxed).is_err() {
                // SAFETY: a plain system call without arguments.
                unsafe { libc::sched_yield() };
            }
        }
    }

    /// The program has left a thread.
    pub fn leave(&self, thread: usize) {
        self.0[thread].store(NOBODY, Ordering::Release);
    }

    /// Looks after all threads that are not entered, if there is anything to do.
    pub fn look_after(&self, runners: &[UnsafeCell<Runner>], now_us: u64) {
        for (claim, runner) in self.0.iter().zip(runners) {
            let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
            if claim.load(relaxed) != NOBODY
                || claim.compare_exchange(NOBODY, CARED_FOR, acquire, relaxed).is_err()
            {
                continue;
            }
            // SAFETY: the user of a runner has its claim, and we have it now.
            unsafe { (*runner.get()).look_after(now_us) };
            claim.store(NOBODY, Ordering::Release);
        }
    }
}

/// Most cycles of one look: as many as a migration takes that nothing delays.
const CYCLES_MAX: usize = 16;

impl Runner {
    /// Does what this thread, which is not entered, has to do.
    fn look_after(&mut self, now_us: u64) {
        if self.thread.shared.updates.is_surveyed(self.thread.io.cx.index) {
            self.thread.attend_survey(CYCLES_MAX * SLICE, now_us);
        }
        if self.thread.mourns() {
            self.thread.run_housekeeping(now_us, true);
        }
        let groups = !self.thread.groups_here().is_empty();
        let strays = self.thread.io.ports.iter().any(|port| port.reta.is_none());
        let unsettled = self.thread.shared.lives.is_unsettled();
        // Flow groups that are to stay may soon have a thread: their packets wait in the devices.
        let stays = groups && !unsettled;
        if stays || !(groups || strays || !self.thread.at_rest()) {
            return;
        }
        for _ in 0..CYCLES_MAX {
            self.turn_alone(now_us);
            if self.thread.at_rest() && !self.busy {
                break;
            }
        }
        self.thread.publish_groups();
    }
}
