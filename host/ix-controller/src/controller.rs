//! The controller: decides for all dataplanes of a host when each gets more or fewer resources, and
//! which.
mod host_plan;
mod managed;
mod shares;

use crate::{DataplaneId, Decision, Machine, Observation, Policy};
use host_plan::{HostPlan, Wish};
use managed::{Managed, Tick};
use shares::Shares;
use std::collections::{BTreeMap, BTreeSet};

/// A dataplane that is silent for this long has ended, µs: its cores are free again.
const GONE_AFTER_US: u64 = 10_000_000;
/// A core that was given up to another dataplane is not asked back for this long, µs.
const GIVEN_FOR_US: u64 = 5_000_000;
/// Least time between two attempts to correct a clock that someone else changed, µs.
const CLOCK_AGAIN_US: u64 = 1_000_000;

/// Decides for all dataplanes of a host. Pure: time is an argument, and nothing is read or written.
///
/// It observes and does not assume: it begins with the state of its first tick, and continues from
/// whatever others change.
#[derive(Debug)]
pub struct Controller {
    policy: Policy,
    /// Policies of dataplanes that have their own.
    own: BTreeMap<DataplaneId, Policy>,
    machine: Machine,
    dataplanes: BTreeMap<DataplaneId, Managed>,
    arrivals: u64,
    /// The last plan that the host carried out; `None`: none, or it failed.
    plan: Option<HostPlan>,
    told_us: u64,
}

impl Controller {
    /// A controller that has seen nothing yet: it takes over the state that it finds.
    pub fn new(policy: Policy, machine: Machine) -> Controller {
        Controller {
            policy,
            own: BTreeMap::new(),
            machine,
            dataplanes: BTreeMap::new(),
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

    /// Sets another policy for all dataplanes, also for those that had their own. At the next tick
    /// each continues from the rung that is nearest to its state.
    pub fn set_policy(&mut self, policy: Policy) {
        let mut old = std::mem::take(&mut self.own);
        let before = std::mem::replace(&mut self.policy, policy);
        let changed = |id: &DataplaneId| {
            let old = old.remove(id);
            !same_ladder(old.as_ref().unwrap_or(&before), &self.policy)
        };
        let changed: Vec<_> = self.dataplanes.keys().copied().filter(changed).collect();
        self.leave(&changed);
    }

    /// Sets another policy for one dataplane.
    pub fn set_policy_of(&mut self, dataplane: DataplaneId, policy: Policy) {
        let same = same_ladder(self.policy_of(dataplane), &policy);
        self.own.insert(dataplane, policy);
        if !same {
            self.leave(&[dataplane]);
        }
    }

    /// Forgets these dataplanes, so that they are observed anew.
    fn leave(&mut self, dataplanes: &[DataplaneId]) {
        self.dataplanes.retain(|id, _| !dataplanes.contains(id));
        if !dataplanes.is_empty() {
            self.plan = None;
        }
    }

    /// Replaces the machine.
    pub fn set_machine(&mut self, machine: Machine) {
        if machine != self.machine {
            self.machine = machine;
            self.forget();
        }
    }

    /// Forgets all dataplanes but their order of arrival, so that they are observed anew.
    fn forget(&mut self) {
        self.dataplanes.clear();
        self.plan = None;
    }

    /// Reports that a step of a decision about this dataplane failed.
    pub fn failed(&mut self, now_us: u64, dataplane: DataplaneId) {
        self.plan = None;
        if let Some(managed) = self.dataplanes.get_mut(&dataplane) {
            managed.failed(now_us);
        }
    }

    /// Reports that all steps of a decision about this dataplane were done.
    pub fn succeeded(&mut self, dataplane: DataplaneId) {
        if let Some(managed) = self.dataplanes.get_mut(&dataplane) {
            managed.failures = 0;
        }
    }

    /// One turn of the 10 Hz loop.
    pub fn tick(&mut self, now_us: u64, observations: &[Observation]) -> Vec<Decision> {
        self.dataplanes.retain(|_, managed| now_us < managed.seen_us + GONE_AFTER_US);
        let dataplanes = &self.dataplanes;
        self.own.retain(|id, _| {
            dataplanes.contains_key(id) || observations.iter().any(|o| o.dataplane == *id)
        });
        let mut seen: Vec<(&Observation, f64)> = observations
            .iter()
            .filter(|o| o.threads.iter().any(|t| self.machine.core_of(t.cpu).is_some()))
            .map(|o| (o, self.policy_of(o.dataplane).weight_of(&o.program)))
            .collect();
        let order =
            |o: &Observation| self.dataplanes.get(&o.dataplane).map_or(u64::MAX, |s| s.order);
        seen.sort_by_key(|(o, _)| (order(o), o.dataplane));
        let answers = |id: &DataplaneId| seen.iter().any(|(o, _)| o.dataplane == *id);
        let silent = self.dataplanes.iter().filter(|(id, _)| !answers(id));
        let reserved = silent.flat_map(|(_, managed)| managed.held.iter().copied()).collect();
        let mut shares = Shares::of(&seen, &self.machine, reserved);
        let by_id: BTreeMap<_, _> = seen.iter().map(|(o, _)| (o.dataplane, *o)).collect();
        let mut decisions = Vec::new();
        for id in shares.order() {
            let observation = by_id[&id];
            let cap = self.dataplanes.get(&id).and_then(|managed| managed.cap);
            let cap = cap.filter(|(_, until)| now_us < *until).map(|(cores, _)| cores);
            let may_use = shares.usable(id, cap);
            let decision = self.decide(now_us, observation, &may_use);
            if let Some(managed) = self.dataplanes.get_mut(&id) {
                managed.held = managed.cores(observation, &self.machine);
                shares.take(id, &managed.held);
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
        if let Some(managed) = self.dataplanes.get_mut(&seen.dataplane) {
            return managed.tick(&tick, seen, may_use);
        }
        self.arrivals += 1;
        let (managed, decision) = Managed::new(&tick, seen, may_use, self.arrivals);
        self.dataplanes.insert(seen.dataplane, managed);
        Some(decision)
    }

    /// A dataplane that needs more cores than there are gets one of the dataplane with most for its
    /// weight, if that is fair.
    fn share_out(&mut self, now_us: u64, shares: &Shares) {
        let hungry: Vec<_> = self.dataplanes.iter().filter(|(_, managed)| managed.hungry).collect();
        let hungry: Vec<_> = hungry.into_iter().map(|(id, _)| *id).collect();
        for id in hungry.into_iter().filter(|id| shares.contends(*id)) {
            let Some((giver, keeps)) = shares.giver(id) else { continue };
            let giver = self.dataplanes.get_mut(&giver);
            if let Some(managed) = giver.filter(|s| s.cap.is_none_or(|(_, until)| now_us >= until))
            {
                managed.cap = Some((keeps, now_us + GIVEN_FOR_US));
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

    /// Adds the steps for clocks and the background job that all dataplanes together ask for.
    fn tell_host(
        &mut self,
        now_us: u64,
        by_id: &BTreeMap<DataplaneId, &Observation>,
        decisions: &mut Vec<Decision>,
    ) {
        let wish = |(id, managed): (&DataplaneId, &Managed)| {
            let seen = by_id.get(id)?;
            let cores = seen.threads.iter().filter_map(|t| self.machine.core_of(t.cpu)).collect();
            Some(Wish {
                cores,
                running: managed.cores(seen, &self.machine),
                clock: managed.configuration().clock,
                background: self.policy_of(*id).ladder.background,
            })
        };
        let wishes: Vec<Wish> = self.dataplanes.iter().filter_map(wish).collect();
        if wishes.is_empty() || wishes.len() < self.dataplanes.len() {
            // If a dataplane is silent at this tick, its cores are not known.
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
            let Some((id, managed)) = self.dataplanes.iter().next() else { return };
            let why = "clocks and background job were changed, and are set again".to_owned();
            decisions.push(managed.standing(by_id[id], why));
        }
        let at = decisions.len() - 1;
        decisions[0].steps.splice(0..0, first);
        decisions[at].steps.extend(last);
    }
}

/// Whether two policies have the same rungs.
fn same_ladder(a: &Policy, b: &Policy) -> bool {
    a.ladder == b.ladder && a.gain == b.gain && a.name == b.name
}

#[cfg(test)]
#[path = "controller_tests.rs"]
mod tests;
