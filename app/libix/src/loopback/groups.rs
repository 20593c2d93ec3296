//! Flow groups of the model, and how they move between its threads.
use super::World;
use super::calls::Answer;
use ix_abi::{CallError, DeadReason, Event, Handle, Revoke, group_of};

/// How far a migration is. While it lasts nothing happens to the group's flows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// None is under way.
    Settled,
    /// `LEAVES` is queued for the old thread, or was `told`.
    Leaving { to: usize, told: bool },
    /// `ARRIVED` is queued for the new thread, or was `told`.
    Arriving { told: bool },
}

/// One flow group.
pub(super) struct Group {
    pub(super) lane: usize,
    phase: Phase,
    /// Flows that die when the migration is over, and why.
    doomed: Vec<(Handle, DeadReason)>,
}

impl Group {
    pub(super) fn new(lane: usize) -> Group {
        Group { lane, phase: Phase::Settled, doomed: Vec::new() }
    }
}

impl World {
    pub(super) fn is_settled(&self, handle: Handle) -> bool {
        self.groups[group_of(handle) as usize].phase == Phase::Settled
    }

    /// The flow will be killed once its group has settled.
    pub(super) fn doom(&mut self, handle: Handle, reason: DeadReason) {
        self.groups[group_of(handle) as usize].doomed.push((handle, reason));
    }

    /// The name of a new flow in some group of a thread that `serves`.
    pub(super) fn new_handle(&mut self, serves: impl Fn(usize) -> bool) -> Option<Handle> {
        let settled = self
            .groups
            .iter()
            .enumerate()
            .filter(|(_, group)| group.phase == Phase::Settled && serves(group.lane));
        let numbers: Vec<_> = settled.map(|(number, _)| number as u64).collect();
        let group = numbers.get(self.random(numbers.len() as u64) as usize)?;
        Some(group << 48 | self.name())
    }

    pub(super) fn migrate(&mut self, number: usize, to: usize) -> bool {
        let group = &mut self.groups[number];
        if group.phase != Phase::Settled || group.lane == to || !self.lanes[to].entered {
            return false;
        }
        group.phase = Phase::Leaving { to, told: false };
        let lane = group.lane;
        self.lanes[lane].tell(Event::GroupLeaves { group: number as u32, to: to as u32 });
        true
    }

    /// The groups of a thread are to go to the others.
    pub(super) fn drain(&mut self, lane: usize) -> Answer {
        let others = (0..self.lanes.len()).filter(|&other| other != lane);
        let others: Vec<_> = others.filter(|&other| self.lanes[other].entered).collect();
        if others.is_empty() {
            return Err(CallError::State);
        }
        self.lanes[lane].draining = true;
        for number in 0..self.groups.len() {
            if self.groups[number].lane == lane {
                self.migrate(number, others[number % others.len()]);
            }
        }
        Ok(0)
    }

    /// Says when no group is left on a thread that wants to leave.
    pub(super) fn end_drain(&mut self, lane: usize) {
        let coming = |group: &Group| matches!(group.phase, Phase::Leaving { to, .. } if to == lane);
        let any = self.groups.iter().any(|group| group.lane == lane || coming(group));
        if self.lanes[lane].draining && !any {
            self.lanes[lane].draining = false;
            self.lanes[lane].tell(Event::Revoke(Revoke::Drained));
        }
    }

    /// An event is handed over.
    pub(super) fn note_told(&mut self, event: &Event) {
        if let Event::GroupLeaves { group, .. } | Event::GroupArrived { group, .. } = *event {
            match &mut self.groups[group as usize].phase {
                Phase::Leaving { told, .. } | Phase::Arriving { told } => *told = true,
                Phase::Settled => panic!("told of a migration that is over"),
            }
        }
    }

    /// The calls of a thread were carried out: groups that it was told of go on their way.
    pub(super) fn move_groups(&mut self, lane: usize) {
        for number in 0..self.groups.len() {
            let group = &mut self.groups[number];
            if group.lane != lane {
                continue;
            }
            match group.phase {
                Phase::Leaving { to, told: true } => {
                    group.lane = to;
                    group.phase = Phase::Arriving { told: false };
                    let of_group = |handle: &Handle| group_of(*handle) as usize == number;
                    let flows = self.flows.iter_mut().filter(|(handle, _)| of_group(handle));
                    flows.for_each(|(_, flow)| flow.lane = to);
                    let (group, from) = (number as u32, lane as u32);
                    self.lanes[to].tell(Event::GroupArrived { group, from });
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
