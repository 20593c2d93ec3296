//! Elastic threads that nobody is: who looks after what they still have.
//!
//! An elastic thread that the program has not entered, or has left, may still have flow groups, and
//! a device whose redirection table we cannot write goes on to put packets into its queue. So
//! whichever elastic thread is awake looks after it about every millisecond: it claims the thread,
//! as one who enters it must, and for that moment is it: hands its packets over and sends its flow
//! groups away. There is no application to hear of it.
use crate::observe::survey::SLICE;
use crate::run::runner::Runner;
use core::cell::UnsafeCell;
use std::sync::atomic::{AtomicU8, Ordering};

const NOBODY: u8 = 0;
const ENTERED: u8 = 1;
const CARED_FOR: u8 = 2;

/// Who uses each elastic thread.
pub(crate) struct Claims(Box<[AtomicU8]>);

impl Claims {
    /// Nobody uses any of so many.
    pub fn new(threads: usize) -> Claims {
        Claims((0..threads).map(|_| AtomicU8::new(NOBODY)).collect())
    }

    /// Whether the program has entered a thread.
    #[inline]
    pub fn is_entered(&self, thread: usize) -> bool {
        self.0[thread].load(Ordering::Relaxed) == ENTERED
    }

    /// The program enters a thread. Waits while somebody looks after it, which is soon over.
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

    /// Looks after all threads that nobody is, if there is anything to do.
    pub fn care(&self, runners: &[UnsafeCell<Runner>], now_us: u64) {
        for (claim, runner) in self.0.iter().zip(runners) {
            let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
            if claim.load(relaxed) != NOBODY
                || claim.compare_exchange(NOBODY, CARED_FOR, acquire, relaxed).is_err()
            {
                continue;
            }
            // SAFETY: whoever uses a runner has its claim, and we have it now.
            unsafe { (*runner.get()).care(now_us) };
            claim.store(NOBODY, Ordering::Release);
        }
    }
}

/// Cycles that one look takes at most: those of a migration that nothing holds up.
const CYCLES_MAX: usize = 16;

impl Runner {
    /// Does what this thread, which nobody is, has to do.
    fn care(&mut self, now_us: u64) {
        if self.thread.shared.updates.is_surveyed(self.thread.io.cx.index) {
            self.thread.attend_survey(CYCLES_MAX * SLICE, now_us);
        }
        let groups = !self.thread.groups_here().is_empty();
        let strays = self.thread.io.ports.iter().any(|port| port.reta.is_none());
        let unsettled = self.thread.shared.lives.is_unsettled();
        // Flow groups that are to stay may have somebody soon: their packets wait in the devices.
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
