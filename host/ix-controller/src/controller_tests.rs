use super::*;
use crate::test_support::{machine, observation};
use crate::{Clock, Step, ThreadState};
use proptest::prelude::*;

const TICK_US: u64 = 100_000;
/// Packets per second of a hardware thread that has its core alone, at the lowest clock.
const THREAD_PER_S: f64 = 100_000.0;

/// A host that carries out all steps, and serves loads at the speed that it then has.
struct Host {
    machine: Machine,
    seen: Vec<Observation>,
    /// Packets per second for each dataplane.
    offered: Vec<f64>,
    backlog: Vec<Vec<f64>>,
    clocks: BTreeMap<u32, Clock>,
    background: Option<Vec<u32>>,
    now_us: u64,
    controller: Controller,
    /// Whether it is an error when two share a core.
    checks: bool,
}

impl Host {
    fn new(policy: Policy, machine: Machine, seen: Vec<Observation>) -> Host {
        let threads = seen.iter().map(|o| vec![0.0; o.threads.len()]).collect();
        Host {
            controller: Controller::new(policy, machine.clone()),
            machine,
            offered: vec![0.0; seen.len()],
            backlog: threads,
            clocks: BTreeMap::new(),
            background: None,
            seen,
            now_us: 1_000_000,
            checks: true,
        }
    }

    fn speed(&self, n: usize, thread: usize) -> f64 {
        let cpu = self.seen[n].threads[thread].cpu;
        let core = self.machine.core_of(cpu);
        let all = self.seen.iter().flat_map(|o| &o.threads);
        let on_core =
            all.filter(|t| t.state == ThreadState::Elastic && self.machine.core_of(t.cpu) == core);
        let clock = match self.clocks.get(&cpu) {
            Some(Clock::Khz(khz)) => f64::from(*khz) / 1_200_000.0,
            Some(Clock::Turbo) => 2.2,
            None => 2.0,
        };
        let together = on_core.count().max(1) as f64;
        THREAD_PER_S * clock * (1.0 + 0.3 * (together - 1.0)) / together
    }

    /// Serves 100 ms of load on every thread.
    fn serve(&mut self) {
        for n in 0..self.seen.len() {
            let sum: f64 = self.seen[n].groups.iter().map(|g| g.load).sum();
            for thread in 0..self.seen[n].threads.len() {
                let speed = self.speed(n, thread);
                let seen = &mut self.seen[n];
                let own = seen.groups.iter().filter(|g| usize::from(g.thread) == thread);
                let share = own.map(|g| g.load).sum::<f64>() / sum.max(1e-9);
                let backlog = &mut self.backlog[n][thread];
                let runs = seen.threads[thread].state == ThreadState::Elastic;
                let wanted = self.offered[n] * share * 0.1 + *backlog;
                let served = if runs { wanted.min(speed * 0.1) } else { 0.0 };
                *backlog = (wanted - served).min(1024.0);
                let seen = &mut seen.threads[thread];
                seen.idle = [1.0 - served / (speed * 0.1); 3];
                seen.rate_per_s = served * 10.0;
                seen.queue_depth = [*backlog; 3];
                seen.iteration_us = 64.0 / speed * 1e6;
                seen.queueing_delay_us = *backlog / speed * 1e6;
                seen.clock = self.clocks.get(&seen.cpu).copied();
            }
        }
    }

    fn apply(&mut self, decision: &Decision) {
        let at = self.seen.iter().position(|o| o.dataplane == decision.dataplane).expect("known");
        for step in &decision.steps {
            match step {
                Step::Clock { cpus, clock } => {
                    self.clocks.extend(cpus.iter().map(|cpu| (*cpu, *clock)));
                }
                Step::Background { cpus } => self.background = Some(cpus.clone()),
                Step::Resume { thread } => {
                    let thread = &mut self.seen[at].threads[usize::from(*thread)];
                    assert_eq!(thread.state, ThreadState::Parked, "{decision}");
                    thread.state = ThreadState::Elastic;
                }
                Step::Park { thread } => {
                    let owned = |g: &crate::GroupObservation| g.thread == *thread;
                    assert!(!self.seen[at].groups.iter().any(owned), "{decision}");
                    self.seen[at].threads[usize::from(*thread)].state = ThreadState::Parked;
                }
                Step::Migrate { from, to, groups } => {
                    let runs = self.seen[at].threads[usize::from(*to)].state;
                    assert_eq!(runs, ThreadState::Elastic, "{decision}");
                    for group in groups {
                        let group = &mut self.seen[at].groups[usize::from(*group)];
                        assert_eq!(group.thread, *from, "{decision}");
                        group.thread = *to;
                    }
                }
            }
            if self.checks {
                self.check(decision);
            }
        }
    }

    /// At no moment does the job run on a core of a dataplane, or two dataplanes on one core.
    fn check(&self, decision: &Decision) {
        let running = |o: &Observation| -> BTreeSet<_> {
            o.elastic().map(|t| self.machine.core_of(o.threads[t].cpu)).collect()
        };
        let all: Vec<_> = self.seen.iter().map(running).collect();
        for (n, cores) in all.iter().enumerate() {
            assert!(all[..n].iter().all(|other| other.is_disjoint(cores)), "{decision}");
            let job = self.background.iter().flatten().map(|cpu| self.machine.core_of(*cpu));
            assert!(job.filter(|core| cores.contains(core)).count() == 0, "{decision}");
        }
    }

    fn tick(&mut self) -> Vec<Decision> {
        self.now_us += TICK_US;
        self.serve();
        let decisions = self.controller.tick(self.now_us, &self.seen);
        for decision in &decisions {
            self.apply(decision);
            assert!(!decision.to_string().contains('\n'));
        }
        decisions
    }

    fn ticks(&mut self, n: usize) -> Vec<Decision> {
        (0..n).flat_map(|_| self.tick()).collect()
    }

    fn running(&self, n: usize) -> Vec<usize> {
        self.seen[n].elastic().collect()
    }
}

fn policy(name: &str) -> Policy {
    Policy::built_in(name).expect("known")
}

/// One dataplane with a thread on every hardware thread of 4 cores; groups of equal load.
fn one(name: &str, elastic: &[u16]) -> Host {
    let cpus: Vec<u32> = (0..8).collect();
    let mut seen = observation(7, &cpus, elastic);
    for (n, group) in seen.groups.iter_mut().enumerate() {
        group.thread = elastic[n % elastic.len()];
        group.load = 1.0;
    }
    Host::new(policy(name), machine(4, 2), vec![seen])
}

/// Dataplanes with a thread on each of 4 cores; of each, one runs.
fn several(weights: &[f64]) -> Host {
    let mut policy = policy("energy");
    let seen = |n: usize| {
        let mut seen = observation(n as u32 + 1, &[0, 1, 2, 3], &[n as u16]);
        seen.program = format!("p{n}");
        seen.groups.iter_mut().for_each(|g| g.load = 1.0);
        seen
    };
    let exception = |n: usize| crate::policy::Exception {
        program: format!("p{n}"),
        slo_us: None,
        weight: weights[n],
    };
    policy.dataplanes = (0..weights.len()).map(exception).collect();
    // Without clocks, so that cores are the only resource.
    let machine = Machine { clocks_khz: Vec::new(), turbo: false, ..machine(4, 1) };
    Host::new(policy, machine, (0..weights.len()).map(seen).collect())
}

#[test]
fn load_brings_threads_and_silence_parks_them() {
    let mut host = one("energy", &[0]);
    host.ticks(30);
    assert_eq!(host.running(0), [0]);
    assert_eq!(host.clocks[&0], Clock::Khz(1_200_000));
    host.offered[0] = 180_000.0;
    let up = host.tick();
    assert_eq!(up.len(), 1);
    let line = up[0].to_string();
    assert!(line.starts_with("ix-kv (7) up to 2×1 at 1.20 GHz, rung 2 of 18: queueing delay"));
    assert!(line.ends_with("; resume 1, move 64 groups 0→1"), "{line}");
    host.ticks(20);
    assert_eq!(host.running(0), [0, 1]);
    host.offered[0] = 10_000_000.0;
    host.ticks(60);
    assert_eq!(host.running(0), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(host.clocks[&0], Clock::Turbo);
    host.offered[0] = 0.0;
    let down = host.ticks(100);
    assert_eq!(host.running(0), [0]);
    assert_eq!(host.clocks[&7], Clock::Khz(1_200_000));
    assert!(down.iter().any(|d| d.to_string().contains("park 1")), "{down:?}");
}

#[test]
fn the_background_job_has_what_is_left_over() {
    let mut host = one("consolidation", &[0, 4]);
    host.tick();
    assert_eq!(host.background.as_deref(), Some(&[1, 2, 3, 5, 6, 7][..]));
    assert_eq!(host.clocks[&3], Clock::Khz(2_400_000), "the job at the nominal clock too");
    host.offered[0] = 400_000.0;
    host.ticks(50);
    assert_eq!(host.running(0), [0, 1, 4, 5]);
    assert_eq!(host.background.as_deref(), Some(&[2, 3, 6, 7][..]));
    host.offered[0] = 10_000_000.0;
    host.ticks(50);
    assert_eq!(host.background.as_deref(), Some(&[][..]), "frozen");
    assert_eq!(host.clocks[&0], Clock::Turbo);
    host.offered[0] = 0.0;
    host.ticks(100);
    assert_eq!(host.background.as_deref(), Some(&[1, 2, 3, 5, 6, 7][..]));
}

#[test]
fn a_restarted_controller_goes_on_where_the_last_one_was() {
    let mut host = one("consolidation", &[0, 4]);
    host.offered[0] = 650_000.0;
    host.ticks(50);
    let (running, clocks) = (host.running(0), host.clocks.clone());
    assert_eq!(running, [0, 1, 2, 4, 5, 6]);
    host.controller = Controller::new(policy("consolidation"), host.machine.clone());
    let first = host.tick();
    assert!(first[0].why.starts_with("took over 3×2 at 2.40 GHz"), "{}", first[0]);
    assert!(
        first[0].steps.iter().all(|s| matches!(s, Step::Clock { .. } | Step::Background { .. }))
    );
    assert_eq!(host.ticks(100), []);
    assert_eq!((host.running(0), &host.clocks), (running, &clocks));
}

#[test]
fn what_others_change_is_where_it_goes_on() {
    let mut host = one("energy", &[0]);
    host.offered[0] = 270_000.0;
    host.ticks(50);
    assert_eq!(host.running(0), [0, 1, 2]);
    // An operator parks two threads by hand.
    for thread in [1, 2] {
        host.seen[0].threads[thread].state = ThreadState::Parked;
    }
    host.seen[0].groups.iter_mut().for_each(|g| g.thread = 0);
    host.offered[0] = 50_000.0;
    assert_eq!(host.ticks(2), []);
    let line = host.tick()[0].to_string();
    assert!(line.contains("threads 0 run, not 0,1,2: continuing from there"), "{line}");
    assert_eq!(host.ticks(30), []);
    // And a clock is set again.
    host.clocks.insert(3, Clock::Turbo);
    let again = host.ticks(12);
    assert_eq!(again.len(), 1, "{again:?}");
    assert_eq!(host.clocks[&3], Clock::Khz(1_200_000));
}

#[test]
fn a_step_that_fails_is_tried_again_later_and_later() {
    let mut host = one("energy", &[0]);
    host.ticks(30);
    host.offered[0] = 180_000.0;
    let mut tries = Vec::new();
    for _ in 0..300 {
        host.now_us += TICK_US;
        host.serve();
        for decision in host.controller.tick(host.now_us, &host.seen) {
            if decision.steps.iter().any(|s| matches!(s, Step::Resume { .. })) {
                tries.push(host.now_us);
                host.controller.failed(host.now_us, decision.dataplane);
            }
        }
    }
    let gaps: Vec<u64> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!((3..12).contains(&tries.len()), "{gaps:?}");
    assert!(gaps.is_sorted(), "{gaps:?}");
}

#[test]
fn another_policy_goes_on_from_what_there_is() {
    let mut host = one("energy", &[0]);
    host.offered[0] = 350_000.0;
    host.ticks(50);
    assert_eq!(host.running(0), [0, 1, 2, 3]);
    host.controller.set_policy(policy("energy").with_slo_us(100.0).expect("right"));
    assert_eq!(host.ticks(20), [], "another bound alone changes nothing now");
    host.controller.set_policy(policy("consolidation"));
    let line = host.tick()[0].to_string();
    assert!(line.contains("took over 4×1 at 1.20 GHz, policy consolidation"), "{line}");
    host.ticks(50);
    assert_eq!(host.running(0), [0, 1, 4, 5]);
}

#[test]
fn a_core_that_goes_offline_is_left_and_taken_again() {
    let mut host = one("energy", &[0]);
    host.offered[0] = 350_000.0;
    host.ticks(50);
    let mut less = host.machine.clone();
    less.cores.remove(2);
    host.controller.set_machine(less);
    host.ticks(50);
    assert!(!host.running(0).contains(&2) && !host.running(0).contains(&6));
    assert!(host.seen[0].groups.iter().all(|g| g.thread != 2 && g.thread != 6));
    assert!(host.ticks(50).is_empty());
    host.controller.set_machine(host.machine.clone());
    host.offered[0] = 10_000_000.0;
    host.ticks(100);
    assert_eq!(host.running(0).len(), 8);
    // A dataplane without any core is ignored.
    host.controller.set_machine(Machine::default());
    assert_eq!(host.ticks(3), []);
}

#[test]
fn one_heavy_thread_is_relieved_without_another_core() {
    let mut host = one("energy", &[0, 1]);
    host.clocks = (0..8).map(|cpu| (cpu, Clock::Khz(1_200_000))).collect();
    // 64 groups of thread 0 with most of the load.
    for group in host.seen[0].groups.iter_mut().filter(|g| g.thread == 0) {
        group.load = 9.0;
    }
    host.offered[0] = 160_000.0;
    host.ticks(100);
    assert_eq!(host.running(0), [0, 1]);
    let share = |thread| -> f64 {
        host.seen[0].groups.iter().filter(|g| g.thread == thread).map(|g| g.load).sum()
    };
    assert!((share(0) / share(1) - 1.0).abs() < 0.1, "{} {}", share(0), share(1));
}

#[test]
fn dataplanes_share_cores_by_weight_and_do_not_fight() {
    let mut host = several(&[1.0, 1.0]);
    host.offered = vec![390_000.0, 20_000.0];
    host.ticks(100);
    assert_eq!((host.running(0).len(), host.running(1).len()), (3, 1));
    host.offered = vec![1e6, 1e6];
    host.ticks(200);
    assert_eq!((host.running(0).len(), host.running(1).len()), (2, 2), "equal weights");
    assert_eq!(host.ticks(3000), [], "and there it stays");
    host.offered = vec![1e6, 20_000.0];
    host.ticks(100);
    assert_eq!((host.running(0).len(), host.running(1).len()), (3, 1), "who needs it has it");
    let mut host = several(&[3.0, 1.0]);
    host.offered = vec![20_000.0, 1e6];
    host.ticks(100);
    assert_eq!((host.running(0).len(), host.running(1).len()), (1, 3));
    host.offered = vec![1e6, 1e6];
    host.ticks(300);
    assert_eq!((host.running(0).len(), host.running(1).len()), (3, 1));
    assert_eq!(host.ticks(3000), []);
}

/// As `ix run` starts them: every thread runs, here on the same cores.
#[test]
fn dataplanes_that_begin_on_the_same_cores_part() {
    for cores in [2u32, 3, 4] {
        let mut host = several(&[1.0, 1.0]);
        host.machine = Machine { clocks_khz: Vec::new(), turbo: false, ..machine(cores, 1) };
        host.controller = Controller::new(policy("energy"), host.machine.clone());
        let (cpus, threads): (Vec<u32>, Vec<u16>) = (0..cores).map(|n| (n, n as u16)).unzip();
        host.seen = vec![observation(1, &cpus, &threads), observation(2, &cpus, &threads)];
        let groups = host.seen.iter_mut().flat_map(|seen| &mut seen.groups);
        groups.for_each(|group| group.load = 1.0);
        host.backlog = vec![vec![0.0; cores as usize]; 2];
        host.checks = false;
        host.offered = vec![10_000.0, 10_000.0];
        host.ticks(50);
        assert_eq!((host.running(0).len(), host.running(1).len()), (1, 1), "{cores} cores");
        assert_ne!(host.running(0), host.running(1), "{cores} cores");
        host.checks = true;
        // If load moves from one to the other, cores follow, but for the last.
        let all = cores as usize;
        for (offered, wanted) in
            [([1e6, 1e4], (all - 1, 1)), ([1e4, 1e6], (1, all - 1)), ([1e6, 1e4], (all - 1, 1))]
        {
            host.offered = offered.to_vec();
            host.ticks(200);
            let runs = (host.running(0).len(), host.running(1).len());
            assert_eq!(runs, wanted, "{cores} cores, {offered:?}");
            assert_eq!(host.ticks(500), [], "and there they stay");
        }
        // One ends, and the other gets all.
        drop((host.seen.remove(1), host.offered.remove(1), host.backlog.remove(1)));
        let said: Vec<String> = host.ticks(200).iter().map(Decision::to_string).collect();
        assert_eq!(host.running(0).len(), all, "{cores} cores: {said:#?}");
    }
}

#[test]
fn one_that_does_not_answer_keeps_its_cores_for_a_while() {
    let mut host = several(&[1.0, 1.0]);
    host.offered = vec![290_000.0, 20_000.0];
    host.ticks(50);
    assert_eq!(host.running(0).len(), 2);
    let held = host.running(0).len();
    let silent = host.seen.remove(0);
    host.offered.remove(0);
    let backlog = host.backlog.remove(0);
    host.offered[0] = 1e6;
    host.ticks(90);
    assert_eq!(host.running(0).len(), 4 - held, "not its cores");
    host.ticks(50);
    assert_eq!(host.running(0).len(), 4, "it is gone");
    // It had not ended: each gets cores again. Both ran on some for a moment.
    host.seen.push(silent);
    host.offered.push(290_000.0);
    host.backlog.push(backlog);
    let shared = |host: &Host| -> usize {
        host.running(0).iter().filter(|thread| host.running(1).contains(thread)).count()
    };
    assert!(shared(&host) > 0);
    host.checks = false;
    host.ticks(100);
    assert_eq!(shared(&host), 0);
    assert!(!host.running(0).is_empty() && !host.running(1).is_empty());
    // No dataplane at all.
    assert_eq!(host.controller.tick(host.now_us, &[]), []);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For any initial state and any load, threads, flow groups and clocks come to rest.
    #[test]
    fn a_steady_load_comes_to_rest(
        name in proptest::sample::select(vec!["energy", "consolidation", "minmax"]),
        elastic in proptest::collection::btree_set(0u16..8, 1..=8),
        offered in 0.0f64..1_300_000.0,
        loads in proptest::collection::vec(0.1f64..4.0, 128),
    ) {
        let elastic: Vec<u16> = elastic.into_iter().collect();
        let mut host = one(name, &elastic);
        for (group, load) in host.seen[0].groups.iter_mut().zip(loads) {
            group.load = load;
        }
        host.offered[0] = offered;
        host.ticks(600);
        let decisions = host.ticks(1500);
        prop_assert!(decisions.is_empty(), "{}", decisions[0]);
        let top = host.controller.dataplanes[&DataplaneId(7)].configuration();
        let carried: f64 = host.seen[0].threads.iter().map(|t| t.rate_per_s).sum();
        let all = host.running(0).len() == 8 && top.clock == Some(Clock::Turbo);
        prop_assert!(carried >= offered * 0.99 || all, "{carried} of {offered} at {top}");
    }
}
