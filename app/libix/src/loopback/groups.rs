//! Flow groups of the model, and how they move between its threads.
use super::World;
use super::calls::Answer;
use ix_abi::{CallError, DeadReason, Event, Handle, Revoke, group_of};

/// State of a migration. While it lasts nothing happens to the group's flows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// No migration.
    Settled,
    /// `LEAVES` is queued for the old thread, or was `told`.
    Leaving { to: usize, told: bool },
    /// `ARRIVED` is queued for the new thread, or was `told`.
    Arriving { told: bool },
}

/// One flow group.
pub(super) struct Group {
    pub(super) thread: usize,
    phase: Phase,
    /// Flows that die after the migration, and why.
    doomed: Vec<(Handle, DeadReason)>,
}

impl Group {
    pub(super) fn new(thread: usize) -> Group {
        Group { thread, phase: Phase::Settled, doomed: Vec::new() }
    }
}

impl World {
    pub(super) fn is_settled(&self, handle: Handle) -> bool {
        self.groups[group_of(handle) as usize].phase == Phase::Settled
    }

    /// Kills the flow once its group has settled.
    pub(super) fn doom(&mut self, handle: Handle, reason: DeadReason) {
        self.groups[group_of(handle) as usize].doomed.push((handle, reason));
    }

    /// A handle for a new flow in a group of a thread that `serves`.
    pub(super) fn new_handle(&mut self, serves: impl Fn(usize) -> bool) -> Option<Handle> {
        let settled = self
            .groups
            .iter()
            .enumerate()
            .filter(|(_, group)| group.phase == Phase::Settled && serves(group.thread));
        let numbers: Vec<_> = settled.map(|(number, _)| number as u64).collect();
        let group = numbers.get(self.random(numbers.len() as u64) as usize)?;
        Some(group << 48 | self.name())
    }

    pub(super) fn migrate(&mut self, number: usize, to: usize) -> bool {
        let group = &mut self.groups[number];
        if group.phase != Phase::Settled || group.thread == to || !self.threads[to].entered {
            return false;
        }
        group.phase = Phase::Leaving { to, told: false };
        let thread = group.thread;
        self.threads[thread].tell(Event::GroupLeaves { group: number as u32, to: to as u32 });
        true
    }

    /// Begins to move the groups of a thread to the others.
    pub(super) fn drain(&mut self, thread: usize) -> Answer {
        let others = (0..self.threads.len()).filter(|&other| other != thread);
        let others: Vec<_> = others.filter(|&other| self.threads[other].entered).collect();
        if others.is_empty() {
            return Err(CallError::State);
        }
        self.threads[thread].draining = true;
        for number in 0..self.groups.len() {
            if self.groups[number].thread == thread {
                self.migrate(number, others[number % others.len()]);
            }
        }
        Ok(0)
    }

    /// Reports that no group is left on a thread that wants to leave.
    pub(super) fn end_drain(&mut self, thread: usize) {
        let coming =
            |group: &Group| matches!(group.phase, Phase::Leaving { to, .. } if to == thread);
        let any = self.groups.iter().any(|group| group.thread == thread || coming(group));
        if self.threads[thread].draining && !any {
            self.threads[thread].draining = false;
            self.threads[thread].tell(Event::Revoke(Revoke::Drained));
        }
    }

    /// An event is delivered.
    pub(super) fn note_told(&mut self, event: &Event) {
        if let Event::GroupLeaves { group, .. } | Event::GroupArrived { group, .. } = *event {
            match &mut self.groups[group as usize].phase {
                Phase::Leaving { told, .. } | Phase::Arriving { told } => *told = true,
                Phase::Settled => panic!("told of a migration that is over"),
            }
        }
    }

    /// After the calls of a thread: groups whose leaving it was told of move on.
    pub(super) fn move_groups(&mut self, thread: usize) {
        for number in 0..self.groups.len() {
            let group = &mut self.groups[number];
            if group.thread != thread {
                continue;
            }
            match group.phase {
                Phase::Leaving { to, told: true } => {
                    group.thread = to;
                    group.phase = Phase::Arriving { told: false };
                    let of_group = |handle: &Handle| group_of(*handle) as usize == number;
                    let flows = self.flows.iter_mut().filter(|(handle, _)| of_group(handle));
                    flows.for_each(|(_, flow)| flow.thread = to);
                    let (group, from) = (number as u32, thread as u32);
                    self.threads[to].tell(Event::GroupArrived { group, from });
                }
                Phase::Arriving { told: true } => {
                    group.phase = Phase::Settled;
                    let doomed = core::mem::take(&mut group.doomed);
                    doomed.into_iter().for_each(|(handle, reason)| self.kill(handle, reason));
                }
                _ => {}
            }
        }
    }
}
