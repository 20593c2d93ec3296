//! What [`crate::Runner`] sees to between two cycles, for hosts that bring their own clock and bed.
use crate::cycle::{CycleReport, ElasticThread};
use crate::observe::metrics::ThreadState;

impl ElasticThread {
    /// The application runs this thread for the first time, or again.
    pub fn enter(&mut self, now_us: u64) {
        self.io.enter(now_us);
    }

    /// [`ElasticThread::run_cycle`] of a thread that the control plane parks and resumes. `run`
    /// counts the application's returns; `look`: it is time to hear the broker, about every
    /// millisecond.
    pub fn run_cycle_and_attend(
        &mut self,
        calls: usize,
        run: u64,
        look: bool,
        now_us: u64,
    ) -> CycleReport {
        self.begin(calls, now_us);
        if self.is_called() {
            self.attend(run, now_us);
        }
        let report = self.turn(now_us);
        if look {
            self.io.read_updates(now_us);
            if self.shared.lives.is_unsettled() {
                self.attend(run, now_us);
            }
            self.publish_groups();
        }
        CycleReport { events: self.io.cx.events.count(), ..report }
    }

    /// Whether it must look at the directory before it sleeps.
    pub fn is_called(&self) -> bool {
        self.shared.updates.is_ordered(self.io.cx.index)
    }

    /// Whether somebody must look at the directory every few milliseconds.
    pub fn needs_care(&self) -> bool {
        self.shared.lives.needs_care()
    }

    /// What this thread is.
    pub fn life(&self) -> ThreadState {
        self.shared.lives.state(self.io.cx.index)
    }
}
