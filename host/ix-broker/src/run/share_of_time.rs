//! The dataplane's share of processor time, where it takes turns with its program.
use super::Running;
use crate::apart::Apart;
use crate::run_delays::RunDelays;
use ix_sys::say;
use std::time::Instant;

impl Running {
    /// A dataplane that has its share of processor time with the program gets one of its own if
    /// threads of the program keep it from its hardware thread.
    pub(super) fn look_after_share(&mut self) {
        let Some(pid) = self.shares_with_program() else { return };
        if self.delays.as_ref().is_none_or(|delays| delays.pid() != pid) {
            self.delays = Some(RunDelays::of(pid));
        }
        let is_slow = self.commands.slow_at().is_some_and(|at| at <= Instant::now());
        if !is_slow && !self.delays.as_mut().is_some_and(RunDelays::look) {
            return;
        }
        self.parted = Some(pid);
        if self.group.part_dataplane(pid) {
            say!(
                "many threads of {} keep the dataplane from their hardware thread: it has a share \
                 of its own there from now on; --program-cpus gives them others",
                self.name
            );
        }
    }

    /// The dataplane's process, if it may get a share of its own.
    fn shares_with_program(&self) -> Option<u32> {
        let pid = self.apart.as_ref().and_then(Apart::pid).filter(|_| self.group.is_shared());
        pid.filter(|pid| self.parted != Some(*pid))
    }

    /// When to look after its share next.
    pub(super) fn share_due(&self) -> Option<Instant> {
        let pid = self.shares_with_program()?;
        let delays = self.delays.as_ref().filter(|delays| delays.pid() == pid);
        let due = delays.map_or_else(Instant::now, RunDelays::due);
        Some(self.commands.slow_at().map_or(due, |slow| slow.min(due)))
    }
}
