//! One dataplane's state in the controller between ticks.
use crate::climber::{Climber, Load};
use crate::placement::{balance, choose_threads, running, unevenness, weights};
use crate::policy::{Policy, Rungs};
use crate::{Configuration, Decision, Machine, Observation, Step, ThreadState};
use std::collections::BTreeSet;

/// Ticks for which other threads may run than were chosen before that is accepted: steps take time.
const STRANGE_TICKS: u32 = 3;
/// More cores than before count only after this long, µs, because other dataplanes come and go.
const MORE_AFTER_US: u64 = 2_000_000;
/// Least time between two times of balancing load on one rung, µs.
const EVEN_EVERY_US: u64 = 1_000_000;
/// Load is balanced if the heaviest thread has more than this multiple of its share.
const UNEVEN: f64 = 1.06;
/// Load is not balanced if the busiest thread is busy for less than this share of the time.
const UNEVEN_BUSY: f64 = 0.5;

/// Number of cores that a dataplane may have, and of hardware threads of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    cores: u32,
    threads_per_core: u32,
}

#[derive(Debug)]
pub(super) struct Managed {
    climber: Climber,
    rungs: Rungs,
    limits: Limits,
    /// Since when more cores are available.
    more_since_us: Option<u64>,
    /// The threads that were chosen last.
    chosen: BTreeSet<u16>,
    strange_ticks: u32,
    evened_us: u64,
    /// No decision before this time: a step failed.
    not_before_us: u64,
    /// Number of failed steps in a row.
    pub(super) failures: u32,
    pub(super) seen_us: u64,
    /// Cores that it runs on, if all steps were carried out.
    pub(super) held: BTreeSet<usize>,
    /// Number of its arrival.
    pub(super) order: u64,
    /// Number of cores that it may have for now, and until when: another dataplane needs some.
    pub(super) cap: Option<(usize, u64)>,
    /// It needed more than its limits allow.
    pub(super) hungry: bool,
}

/// Values of a tick that all dataplanes share.
pub(super) struct Tick<'a> {
    pub(super) now_us: u64,
    pub(super) policy: &'a Policy,
    pub(super) machine: &'a Machine,
}

impl Managed {
    /// Takes over a dataplane in its present state; the decision's line describes it.
    pub(super) fn new(
        tick: &Tick<'_>,
        seen: &Observation,
        may_use: &BTreeSet<usize>,
        order: u64,
    ) -> (Managed, Decision) {
        let limits = limits(seen, tick.machine, may_use);
        let Limits { cores, threads_per_core } = limits;
        let Policy { ladder, gain, .. } = tick.policy;
        let rungs = ladder.rungs(tick.machine, gain, cores, threads_per_core);
        let present = present(seen, tick.machine);
        let rung = rungs.nearest(&present, gain, tick.machine.nominal());
        let mut why = format!("took over {}×{}", present.cores, present.threads_per_core);
        if let Some(clock) = present.clock {
            why += &format!(" at {clock}");
        }
        why += &format!(", policy {}", tick.policy.name);
        if !rungs.skipped.is_empty() {
            why += &format!("; without {}", rungs.skipped.join(", "));
        }
        let mut managed = Managed {
            climber: Climber::at(rung),
            rungs,
            limits,
            more_since_us: None,
            chosen: running(seen),
            strange_ticks: 0,
            evened_us: tick.now_us,
            not_before_us: 0,
            failures: 0,
            seen_us: tick.now_us,
            held: BTreeSet::new(),
            order,
            cap: None,
            hungry: false,
        };
        let steps = managed.place(tick, seen, may_use, true);
        let decision = managed.decision(seen, rung, steps, why);
        (managed, decision)
    }

    pub(super) fn configuration(&self) -> Configuration {
        self.rungs.list[self.climber.rung()]
    }

    /// Cores of the chosen threads.
    pub(super) fn cores(&self, seen: &Observation, machine: &Machine) -> BTreeSet<usize> {
        let core = |thread: &u16| machine.core_of(seen.threads.get(usize::from(*thread))?.cpu);
        self.chosen.iter().filter_map(core).collect()
    }

    /// Steps failed: try again later, each time after a longer time.
    pub(super) fn failed(&mut self, now_us: u64) {
        self.failures += 1;
        let wait_us = 500_000u64 << self.failures.min(6);
        self.not_before_us = now_us + wait_us;
    }

    /// One tick.
    pub(super) fn tick(
        &mut self,
        tick: &Tick<'_>,
        seen: &Observation,
        may_use: &BTreeSet<usize>,
    ) -> Option<Decision> {
        self.seen_us = tick.now_us;
        if tick.now_us < self.not_before_us {
            return None;
        }
        let before = self.climber.rung();
        if self.limits_changed(tick, seen, may_use) {
            let Limits { cores, threads_per_core } = self.limits;
            let why = format!("it may use {cores} cores of {threads_per_core} threads each");
            self.relearn(tick, seen);
            let steps = self.place(tick, seen, may_use, true);
            return Some(self.decision(seen, before, steps, why));
        }
        if let Some(why) = self.displaced(tick, seen, may_use) {
            let steps = self.place(tick, seen, may_use, true);
            return Some(self.decision(seen, before, steps, why));
        }
        if running(seen) != self.chosen {
            return self.strange(tick, seen, may_use);
        }
        self.strange_ticks = 0;
        let load = Load::of(seen, &tick.policy.gain)?;
        let slo_us = tick.policy.slo_us_of(&seen.program);
        let overloaded = load.delay_us > slo_us;
        if let Some(decision) = self.even_out(tick, seen, &load) {
            return Some(decision);
        }
        let when = (&tick.policy.up, &tick.policy.down);
        let climbed =
            self.climber.tick(tick.now_us, &load, seen.batch_bound, &self.rungs, slo_us, when);
        let at_top = before == self.rungs.top();
        self.hungry = at_top && (overloaded || load.busy() > tick.policy.up.busy_max);
        let (_, why) = climbed?;
        let steps = self.place(tick, seen, may_use, false);
        Some(self.decision(seen, before, steps, why.to_string()))
    }

    /// Makes new rungs after limits, machine or policy have changed; the observation gives the
    /// place on them.
    pub(super) fn relearn(&mut self, tick: &Tick<'_>, seen: &Observation) {
        let Limits { cores, threads_per_core } = self.limits;
        let Policy { ladder, gain, .. } = tick.policy;
        self.rungs = ladder.rungs(tick.machine, gain, cores, threads_per_core);
        let present = present(seen, tick.machine);
        let rung = self.rungs.nearest(&present, gain, tick.machine.nominal());
        self.climber.move_to(rung);
    }

    fn limits_changed(
        &mut self,
        tick: &Tick<'_>,
        seen: &Observation,
        may_use: &BTreeSet<usize>,
    ) -> bool {
        let limits = limits(seen, tick.machine, may_use);
        if limits == self.limits || limits.cores == 0 {
            self.more_since_us = None;
            return false;
        }
        if limits.cores > self.limits.cores {
            let since = *self.more_since_us.get_or_insert(tick.now_us);
            if tick.now_us < since + MORE_AFTER_US && !self.hungry {
                return false;
            }
        }
        self.more_since_us = None;
        self.limits = limits;
        true
    }

    /// Whether all chosen cores belong to another dataplane that came earlier, while others are
    /// free.
    fn displaced(
        &self,
        tick: &Tick<'_>,
        seen: &Observation,
        may_use: &BTreeSet<usize>,
    ) -> Option<String> {
        let cores = self.cores(seen, tick.machine);
        let others = !may_use.is_empty() && cores.is_disjoint(may_use);
        let cores: Vec<u32> = cores.into_iter().map(|core| core as u32).collect();
        others.then(|| format!("core {} belongs to another dataplane", crate::ranges(&cores)))
    }

    /// Whether other threads run than were chosen, and not only for a moment: someone else has
    /// changed them, or a step had another effect.
    fn strange(
        &mut self,
        tick: &Tick<'_>,
        seen: &Observation,
        may_use: &BTreeSet<usize>,
    ) -> Option<Decision> {
        self.strange_ticks += 1;
        if self.strange_ticks < STRANGE_TICKS {
            return None;
        }
        self.strange_ticks = 0;
        let runs = running(seen);
        let (before, expected) = (self.climber.rung(), list(&self.chosen));
        self.relearn(tick, seen);
        let steps = self.place(tick, seen, may_use, true);
        let why = format!("threads {} run, not {expected}: continuing from there", list(&runs));
        Some(self.decision(seen, before, steps, why))
    }

    /// Moves flow groups only, if one thread has much more than its share.
    fn even_out(&mut self, tick: &Tick<'_>, seen: &Observation, load: &Load) -> Option<Decision> {
        let due = tick.now_us >= self.evened_us + EVEN_EVERY_US;
        if !due || self.chosen.len() < 2 || 1.0 - load.idle_least < UNEVEN_BUSY {
            return None;
        }
        let weights = weights(seen, tick.machine, &self.chosen, &tick.policy.gain);
        let before = unevenness(seen, &weights);
        if before < UNEVEN {
            return None;
        }
        let steps = balance(seen, &weights);
        let mut after = seen.clone();
        for step in &steps {
            if let Step::Migrate { to, groups, .. } = step {
                groups.iter().for_each(|&g| after.groups[usize::from(g)].thread = *to);
            }
        }
        let after = unevenness(&after, &weights);
        // A single heavy group cannot be divided.
        if after > 1.0 + (before - 1.0) / 2.0 {
            return None;
        }
        self.evened_us = tick.now_us;
        let why =
            format!("the busiest thread has {before:.2} times its share, and will have {after:.2}");
        Some(self.decision(seen, self.climber.rung(), steps, why))
    }

    /// Threads and flow groups for the present rung. With `first`, any threads may run now.
    fn place(
        &mut self,
        tick: &Tick<'_>,
        seen: &Observation,
        may_use: &BTreeSet<usize>,
        first: bool,
    ) -> Vec<Step> {
        let chosen = choose_threads(seen, tick.machine, &self.configuration(), may_use);
        if chosen.is_empty() {
            return Vec::new();
        }
        let runs = running(seen);
        self.chosen = chosen;
        self.strange_ticks = 0;
        if runs == self.chosen && !first {
            return Vec::new();
        }
        self.evened_us = tick.now_us;
        let weights = weights(seen, tick.machine, &self.chosen, &tick.policy.gain);
        let resumed = self.chosen.difference(&runs).map(|&thread| Step::Resume { thread });
        let parked = runs.difference(&self.chosen).map(|&thread| Step::Park { thread });
        // If the set of threads is unchanged, the load is balanced only when that matters, not
        // here.
        let moves = if runs == self.chosen && !owned_by_others(seen, &runs) {
            Vec::new()
        } else {
            balance(seen, &weights)
        };
        resumed.chain(moves).chain(parked).collect()
    }

    /// A decision to stay, with steps for the host.
    pub(super) fn standing(&self, seen: &Observation, why: String) -> Decision {
        self.decision(seen, self.climber.rung(), Vec::new(), why)
    }

    fn decision(
        &self,
        seen: &Observation,
        before: usize,
        steps: Vec<Step>,
        why: String,
    ) -> Decision {
        Decision {
            dataplane: seen.dataplane,
            program: seen.program.clone(),
            rungs: (before, self.climber.rung()),
            top: self.rungs.top(),
            configuration: self.configuration(),
            steps,
            why,
        }
    }
}

fn owned_by_others(seen: &Observation, threads: &BTreeSet<u16>) -> bool {
    seen.groups.iter().any(|group| !threads.contains(&group.thread))
}

fn list(threads: &BTreeSet<u16>) -> String {
    let numbers: Vec<_> = threads.iter().map(u16::to_string).collect();
    if numbers.is_empty() { "none".to_owned() } else { numbers.join(",") }
}

/// Resources that a dataplane may use of these cores.
fn limits(seen: &Observation, machine: &Machine, may_use: &BTreeSet<usize>) -> Limits {
    let threads = |core: usize| {
        let ours = seen.threads.iter().filter(|thread| thread.is_ours());
        ours.filter(|thread| machine.core_of(thread.cpu) == Some(core)).count()
    };
    let own: Vec<usize> = may_use.iter().map(|&core| threads(core)).filter(|n| *n > 0).collect();
    let threads_per_core = own.iter().copied().max().unwrap_or(1) as u32;
    Limits { cores: own.len() as u32, threads_per_core }
}

/// The present configuration of a dataplane. The clock counts if it is known.
fn present(seen: &Observation, machine: &Machine) -> Configuration {
    let runs: Vec<_> =
        seen.threads.iter().filter(|thread| thread.state == ThreadState::Elastic).collect();
    let core = |cpu: u32| machine.core_of(cpu);
    let cores: BTreeSet<_> = runs.iter().filter_map(|thread| core(thread.cpu)).collect();
    let on = |&n: &usize| runs.iter().filter(|thread| core(thread.cpu) == Some(n)).count();
    Configuration {
        cores: cores.len().max(1) as u32,
        threads_per_core: cores.iter().map(on).max().unwrap_or(1) as u32,
        clock: runs.iter().filter_map(|thread| thread.clock).max(),
    }
}
