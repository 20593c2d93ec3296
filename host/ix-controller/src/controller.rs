//! The controller: decides for all dataplanes of a host when each gets more or less, and which.
mod host_plan;
mod seat;
mod shares;

use crate::{DataplaneId, Decision, Machine, Observation, Policy};
use host_plan::{HostPlan, Wish};
use seat::{Seat, Tick};
use shares::Shares;
use std::collections::{BTreeMap, BTreeSet};

/// A dataplane that says nothing for so long has gone, µs: its cores are free again.
const GONE_AFTER_US: u64 = 10_000_000;
/// A core that was given up to another dataplane is not asked back for so long, µs.
const GIVEN_FOR_US: u64 = 5_000_000;
/// A clock that is another than it was set to is set again, once in so long, µs.
const CLOCK_AGAIN_US: u64 = 1_000_000;

/// Decides for all dataplanes of a host. Pure: time is an argument, nothing is read or written.
///
/// It observes rather than assumes: what it finds at its first tick is where it begins, and what
/// others change under its hands is where it goes on.
#[derive(Debug)]
pub struct Controller {
    policy: Policy,
    /// Of dataplanes that have another.
    own: BTreeMap<DataplaneId, Policy>,
    machine: Machine,
    seats: BTreeMap<DataplaneId, Seat>,
    arrivals: u64,
    /// What the host was told last; `None`: nothing, or it failed.
    plan: Option<HostPlan>,
    told_us: u64,
}

impl Controller {
    /// A controller that has seen nothing yet: it takes over whatever state it finds.
    pub fn new(policy: Policy, machine: Machine) -> Controller {
        Controller {
            policy,
            own: BTreeMap::new(),
            machine,
            seats: BTreeMap::new(),
            arrivals: 0,
            plan: None,
            told_us: 0,
        }
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The machine.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The policy of one dataplane.
    pub fn policy_of(&self, dataplane: DataplaneId) -> &Policy {
        self.own.get(&dataplane).unwrap_or(&self.policy)
    }

    /// Another policy for all from now on, also for those that had one of their own. Each goes on
    /// from the rung that is nearest to what it has, at the next tick.
    pub fn set_policy(&mut self, policy: Policy) {
        let mut old = std::mem::take(&mut self.own);
        let before = std::mem::replace(&mut self.policy, policy);
        let changed = |id: &DataplaneId| {
            let old = old.remove(id);
            !same_ladder(old.as_ref().unwrap_or(&before), &self.policy)
        };
        let changed: Vec<_> = self.seats.keys().copied().filter(changed).collect();
        self.leave(&changed);
    }

    /// Another policy for one dataplane from now on.
    pub fn set_policy_of(&mut self, dataplane: DataplaneId, policy: Policy) {
        let same = same_ladder(self.policy_of(dataplane), &policy);
        self.own.insert(dataplane, policy);
        if !same {
            self.leave(&[dataplane]);
        }
    }

    /// These are observed anew.
    fn leave(&mut self, dataplanes: &[DataplaneId]) {
        self.seats.retain(|id, _| !dataplanes.contains(id));
        if !dataplanes.is_empty() {
            self.plan = None;
        }
    }

    /// The machine has changed.
    pub fn set_machine(&mut self, machine: Machine) {
        if machine != self.machine {
            self.machine = machine;
            self.forget();
        }
    }

    /// Everything is observed anew; who came when is kept.
    fn forget(&mut self) {
        self.seats.clear();
        self.plan = None;
    }

    /// A step of a decision about this dataplane failed.
    pub fn failed(&mut self, now_us: u64, dataplane: DataplaneId) {
        self.plan = None;
        if let Some(seat) = self.seats.get_mut(&dataplane) {
            seat.failed(now_us);
        }
    }

    /// All steps of a decision about this dataplane were done.
    pub fn succeeded(&mut self, dataplane: DataplaneId) {
        if let Some(seat) = self.seats.get_mut(&dataplane) {
            seat.failures = 0;
        }
    }

    /// One turn of the 10 Hz loop.
    pub fn tick(&mut self, now_us: u64, observations: &[Observation]) -> Vec<Decision> {
        self.seats.retain(|_, seat| now_us < seat.seen_us + GONE_AFTER_US);
        let seats = &self.seats;
        self.own.retain(|id, _| {
            seats.contains_key(id) || observations.iter().any(|o| o.dataplane == *id)
        });
        let mut seen: Vec<(&Observation, f64)> = observations
            .iter()
            .filter(|o| o.threads.iter().any(|t| self.machine.core_of(t.cpu).is_some()))
            .map(|o| (o, self.policy_of(o.dataplane).weight_of(&o.program)))
            .collect();
        let order = |o: &Observation| self.seats.get(&o.dataplane).map_or(u64::MAX, |s| s.order);
        seen.sort_by_key(|(o, _)| (order(o), o.dataplane));
        let answers = |id: &DataplaneId| seen.iter().any(|(o, _)| o.dataplane == *id);
        let silent = self.seats.iter().filter(|(id, _)| !answers(id));
        let reserved = silent.flat_map(|(_, seat)| seat.held.iter().copied()).collect();
        let mut shares = Shares::of(&seen, &self.machine, reserved);
        let by_id: BTreeMap<_, _> = seen.iter().map(|(o, _)| (o.dataplane, *o)).collect();
        let mut decisions = Vec::new();
        for id in shares.order() {
            let observation = by_id[&id];
            let cap = self.seats.get(&id).and_then(|seat| seat.cap);
            let cap = cap.filter(|(_, until)| now_us < *until).map(|(cores, _)| cores);
            let may_use = shares.usable(id, cap);
            let decision = self.decide(now_us, observation, &may_use);
            if let Some(seat) = self.seats.get_mut(&id) {
                seat.held = seat.cores(observation, &self.machine);
                shares.take(id, &seat.held);
            }
            decisions.extend(decision);
        }
        self.share_out(now_us, &shares);
        self.tell_host(now_us, &by_id, &mut decisions);
        decisions
    }

    fn decide(
        &mut self,
        now_us: u64,
        seen: &Observation,
        may_use: &BTreeSet<usize>,
    ) -> Option<Decision> {
        let policy = self.own.get(&seen.dataplane).unwrap_or(&self.policy);
        let tick = Tick { now_us, policy, machine: &self.machine };
        if let Some(seat) = self.seats.get_mut(&seen.dataplane) {
            return seat.tick(&tick, seen, may_use);
        }
        self.arrivals += 1;
        let (seat, decision) = Seat::new(&tick, seen, may_use, self.arrivals);
        self.seats.insert(seen.dataplane, seat);
        Some(decision)
    }

    /// Who needs more than there is gets a core of who has most for its weight, if that is fair.
    fn share_out(&mut self, now_us: u64, shares: &Shares) {
        let hungry: Vec<_> = self.seats.iter().filter(|(_, seat)| seat.hungry).collect();
        let hungry: Vec<_> = hungry.into_iter().map(|(id, _)| *id).collect();
        for id in hungry.into_iter().filter(|id| shares.contends(*id)) {
            let Some((giver, keeps)) = shares.giver(id) else { continue };
            let giver = self.seats.get_mut(&giver);
            if let Some(seat) = giver.filter(|s| s.cap.is_none_or(|(_, until)| now_us >= until)) {
                seat.cap = Some((keeps, now_us + GIVEN_FOR_US));
            }
        }
    }

    /// Hardware threads of all cores that dataplanes run on now.
    fn busy(&self, by_id: &BTreeMap<DataplaneId, &Observation>) -> BTreeSet<u32> {
        let cores = by_id.values().flat_map(|seen| {
            seen.elastic().filter_map(|thread| self.machine.core_of(seen.threads[thread].cpu))
        });
        cores.flat_map(|core| self.machine.cores[core].cpus.iter().copied()).collect()
    }

    /// Clocks and the background job, as all dataplanes together want them.
    fn tell_host(
        &mut self,
        now_us: u64,
        by_id: &BTreeMap<DataplaneId, &Observation>,
        decisions: &mut Vec<Decision>,
    ) {
        let wish = |(id, seat): (&DataplaneId, &Seat)| {
            let seen = by_id.get(id)?;
            let cores = seen.threads.iter().filter_map(|t| self.machine.core_of(t.cpu)).collect();
            Some(Wish {
                cores,
                running: seat.cores(seen, &self.machine),
                clock: seat.configuration().clock,
                background: self.policy_of(*id).ladder.background,
            })
        };
        let wishes: Vec<Wish> = self.seats.iter().filter_map(wish).collect();
        if wishes.is_empty() || wishes.len() < self.seats.len() {
            // Of one that says nothing at this tick it is not known where it runs.
            return;
        }
        let plan = HostPlan::of(&self.machine, &wishes);
        let mut threads = by_id.values().flat_map(|seen| &seen.threads);
        let told = self.plan.as_ref();
        let differs = threads.any(|t| told.is_some_and(|plan| plan.differs(t.cpu, t.clock)));
        if differs && now_us >= self.told_us + CLOCK_AGAIN_US {
            self.plan = None;
        }
        let (first, last) = plan.steps(self.plan.as_ref(), &self.busy(by_id));
        if first.is_empty() && last.is_empty() {
            return;
        }
        (self.plan, self.told_us) = (Some(plan), now_us);
        if decisions.is_empty() {
            let Some((id, seat)) = self.seats.iter().next() else { return };
            let why = "clocks and background job are set again".to_owned();
            decisions.push(seat.standing(by_id[id], why));
        }
        let at = decisions.len() - 1;
        decisions[0].steps.splice(0..0, first);
        decisions[at].steps.extend(last);
    }
}

/// Whether rungs stay what they are.
fn same_ladder(a: &Policy, b: &Policy) -> bool {
    a.ladder == b.ladder && a.gain == b.gain && a.name == b.name
}

#[cfg(test)]
#[path = "controller_tests.rs"]
mod tests;
