//! State of the host that dataplanes share: clocks, and where the background job runs.
use crate::{Clock, Machine, Step};
use std::collections::{BTreeMap, BTreeSet};

/// One dataplane's demands on the host.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Wish {
    /// Cores with a thread of the dataplane, running or not.
    pub(super) cores: BTreeSet<usize>,
    /// Cores that it runs on.
    pub(super) running: BTreeSet<usize>,
    /// The clock of both sets.
    pub(super) clock: Option<Clock>,
    /// Whether cores left over belong to the background job.
    pub(super) background: bool,
}

/// The state that the host must have.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct HostPlan {
    /// Clocks of hardware threads that the controller sets.
    clocks: BTreeMap<u32, Clock>,
    /// Hardware threads of the background job; `None`: there is no job to place.
    background: Option<BTreeSet<u32>>,
}

impl HostPlan {
    /// A core that several dataplanes may use gets the fastest clock that one of them asks for. The
    /// background job gets whole cores: on a core's other hardware thread it would slow the
    /// dataplane below what the policy assumes.
    pub(super) fn of(machine: &Machine, wishes: &[Wish]) -> HostPlan {
        let mut plan = HostPlan::default();
        let background = wishes.iter().any(|wish| wish.background);
        for (number, core) in machine.cores.iter().enumerate() {
            let run = wishes.iter().any(|wish| wish.running.contains(&number));
            let own = wishes.iter().filter(|wish| wish.cores.contains(&number));
            let mut clock = own.filter_map(|wish| wish.clock).max();
            if background && !run {
                clock = wishes.iter().filter_map(|wish| wish.clock).max();
            }
            if let Some(clock) = clock {
                plan.clocks.extend(core.cpus.iter().map(|&cpu| (cpu, clock)));
            }
            if background && !run {
                plan.background.get_or_insert_default().extend(core.cpus.iter().copied());
            }
        }
        if background {
            plan.background.get_or_insert_default();
        }
        plan
    }

    /// Steps from `before` to this plan: those before threads resume, and those after threads were
    /// parked. `None`: the state before is unknown. `busy` are hardware threads of cores that
    /// dataplanes run on until then.
    pub(super) fn steps(
        &self,
        before: Option<&HostPlan>,
        busy: &BTreeSet<u32>,
    ) -> (Vec<Step>, Vec<Step>) {
        let (mut first, mut last) = (Vec::new(), Vec::new());
        let was = |cpu: &u32| before.and_then(|plan| plan.clocks.get(cpu));
        let mut changes: BTreeMap<Clock, Vec<u32>> = BTreeMap::new();
        for (cpu, clock) in self.clocks.iter().filter(|(cpu, clock)| was(cpu) != Some(clock)) {
            changes.entry(*clock).or_default().push(*cpu);
        }
        for (clock, cpus) in changes {
            let slower = cpus.iter().all(|cpu| was(cpu).is_some_and(|old| *old > clock));
            if slower { &mut last } else { &mut first }.push(Step::Clock { cpus, clock });
        }
        let step = |cpus: &BTreeSet<u32>| Step::Background { cpus: cpus.iter().copied().collect() };
        if let Some(now) = &self.background {
            let old = before.and_then(|plan| plan.background.as_ref());
            let mut both: BTreeSet<u32> = now.difference(busy).copied().collect();
            if let Some(old) = old {
                both.retain(|cpu| old.contains(cpu));
            }
            if old != Some(&both) && old != Some(now) {
                first.insert(0, step(&both));
            }
            if both != *now && old != Some(now) {
                last.push(step(now));
            }
        }
        (first, last)
    }

    /// Whether the clock seen on a hardware thread differs from the plan.
    pub(super) fn differs(&self, cpu: u32, seen: Option<Clock>) -> bool {
        match (self.clocks.get(&cpu), seen) {
            (Some(planned), Some(seen)) => *planned != seen,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::machine;

    const GHZ: Clock = Clock::Khz(1_200_000);

    fn wish(cores: &[usize], running: &[usize], clock: Clock, background: bool) -> Wish {
        Wish {
            cores: cores.iter().copied().collect(),
            running: running.iter().copied().collect(),
            clock: Some(clock),
            background,
        }
    }

    #[test]
    fn the_job_shrinks_before_and_grows_after_and_clocks_rise_before_and_fall_after() {
        let machine = machine(3, 2);
        let plan = |running: &[usize], clock| {
            HostPlan::of(&machine, &[wish(&[0, 1, 2], running, clock, true)])
        };
        let (low, high) = (plan(&[0], GHZ), plan(&[0, 1], Clock::Turbo));
        let background = |cpus: &[u32]| Step::Background { cpus: cpus.to_vec() };
        let clock = |clock| Step::Clock { cpus: (0..6).collect(), clock };
        let (first, last) = low.steps(None, &BTreeSet::new());
        assert_eq!((first, last), (vec![background(&[1, 2, 4, 5]), clock(GHZ)], vec![]));
        let (first, last) = high.steps(Some(&low), &BTreeSet::new());
        assert_eq!((first, last), (vec![background(&[2, 5]), clock(Clock::Turbo)], vec![]));
        let (first, last) = low.steps(Some(&high), &BTreeSet::new());
        assert_eq!((first, last), (vec![], vec![clock(GHZ), background(&[1, 2, 4, 5])]));
        assert_eq!(high.steps(Some(&high), &BTreeSet::new()), (vec![], vec![]));
        // Nothing is known of the state before, but threads run on a core of the new job.
        let (first, last) = low.steps(None, &BTreeSet::from([1, 4]));
        assert_eq!(first, [background(&[2, 5]), clock(GHZ)]);
        assert_eq!(last, [background(&[1, 2, 4, 5])]);
        // No core is left over: the job is frozen, not forgotten.
        let (first, _) = plan(&[0, 1, 2], GHZ).steps(Some(&low), &BTreeSet::new());
        assert_eq!(first, [background(&[])]);
        // Cores change hands.
        let (first, last) = plan(&[1], GHZ).steps(Some(&low), &BTreeSet::new());
        assert_eq!((first, last), (vec![background(&[2, 5])], vec![background(&[0, 2, 3, 5])]));
    }

    #[test]
    fn the_fastest_wish_for_a_core_counts_and_other_cores_are_left_alone() {
        let machine = machine(3, 1);
        let wishes = [wish(&[0, 1], &[0], GHZ, false), wish(&[1], &[1], Clock::Turbo, false)];
        let plan = HostPlan::of(&machine, &wishes);
        let (first, last) = plan.steps(None, &BTreeSet::new());
        let clock = |cpus: &[u32], clock| Step::Clock { cpus: cpus.to_vec(), clock };
        assert_eq!((first, last), (vec![clock(&[0], GHZ), clock(&[1], Clock::Turbo)], vec![]));
        assert!(plan.differs(0, Some(Clock::Turbo)) && !plan.differs(0, Some(GHZ)));
        assert!(!plan.differs(0, None) && !plan.differs(2, Some(GHZ)));
    }
}
