//! The dataplane's share of processor time, where it takes turns with its program.
use super::Running;
use crate::apart::Apart;
use crate::run_delays::RunDelays;
use ix_sys::say;
use std::time::Instant;

impl Running {
    /// Gives a dataplane that has started a share of processor time together with its program, if
    /// the two take turns. While it started it had one of its own, however many threads the program
    /// has.
    pub(super) fn begin_share(&mut self) {
        let pid = self.apart.as_ref().and_then(Apart::pid);
        let pid = pid.filter(|pid| self.group.join_dataplane(*pid));
        self.delays = pid.map(RunDelays::of);
    }

    /// A dataplane that has its share of processor time with the program gets one of its own if
    /// threads of the program keep it from its hardware thread.
    pub(super) fn look_after_share(&mut self) {
        let Some(delays) = self.shared_delays() else { return };
        let pid = delays.pid();
        let is_slow = self.commands.slow_at().is_some_and(|at| at <= Instant::now());
        if !is_slow && !self.delays.as_mut().is_some_and(RunDelays::look) {
            return;
        }
        self.delays = None;
        if self.group.part_dataplane(pid) {
            say!(
                "many threads of {} keep the dataplane from their hardware thread: it has a share \
                 of its own there from now on; --program-cpus gives them others",
                self.name
            );
        }
    }

    /// How long the dataplane waits, if it has its share with the program.
    fn shared_delays(&self) -> Option<&RunDelays> {
        let pid = self.apart.as_ref().and_then(Apart::pid);
        self.delays.as_ref().filter(|delays| Some(delays.pid()) == pid)
    }

    /// When to look after its share next.
    pub(super) fn share_due(&self) -> Option<Instant> {
        let due = self.shared_delays()?.due();
        Some(self.commands.slow_at().map_or(due, |slow| slow.min(due)))
    }
}
