//! What [`crate::Runner`] does between two cycles, for simulators with their own clock and sleep.
use crate::cycle::{CycleReport, ElasticThread};
use crate::observe::metrics::ThreadState;

impl ElasticThread {
    /// To be called when the application runs this thread for the first time, or again.
    pub fn enter(&mut self, now_us: u64) {
        self.io.enter(now_us);
    }

    /// [`ElasticThread::run_cycle`] of a thread that the control plane parks and resumes. `run`
    /// counts the application's returns; `look`: read the broker's messages now, about every
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
        CycleReport { events: self.io.cx.attached.events(), ..report }
    }

    /// Whether it must look at the directory before it sleeps.
    pub fn is_called(&self) -> bool {
        self.shared.updates.is_ordered(self.io.cx.index)
    }

    /// Whether a thread must look at the directory every few milliseconds.
    pub fn needs_look(&self) -> bool {
        self.shared.lives.needs_look()
    }

    /// The state of this thread.
    pub fn life(&self) -> ThreadState {
        self.shared.lives.state(self.io.cx.index)
    }
}
