use super::*;
use crate::test_support::{machine, observation};
use crate::{Clock, GroupObservation};
use proptest::prelude::*;

fn chosen(seen: &Observation, machine: &Machine, cores: u32, threads_per_core: u32) -> Vec<u16> {
    let all = (0..machine.cores.len()).collect();
    let configuration = Configuration { cores, threads_per_core, clock: Some(Clock::Turbo) };
    choose_threads(seen, machine, &configuration, &all).into_iter().collect()
}

/// Owner of each group after the steps, whose owners before must be right.
fn apply(seen: &Observation, steps: &[Step]) -> Vec<GroupObservation> {
    let mut groups = seen.groups.clone();
    for step in steps {
        let Step::Migrate { from, to, groups: moved } = step else { panic!("{step:?}") };
        for &group in moved {
            let group = &mut groups[usize::from(group)];
            assert_eq!(group.thread, *from);
            group.thread = *to;
        }
    }
    groups
}

#[test]
fn threads_come_core_by_core_and_what_runs_goes_on() {
    let machine = machine(4, 2);
    let mut seen = observation(1, &[0, 1, 2, 3, 4, 5, 6, 7], &[0]);
    // Core n has the hardware threads n and n + 4.
    assert_eq!(chosen(&seen, &machine, 1, 1), [0]);
    assert_eq!(chosen(&seen, &machine, 2, 2), [0, 1, 4, 5]);
    assert_eq!(chosen(&seen, &machine, 9, 9), [0, 1, 2, 3, 4, 5, 6, 7]);
    // A core in use is kept, whichever of its threads runs.
    seen = observation(1, &[0, 1, 2, 3, 4, 5, 6, 7], &[6]);
    assert_eq!(chosen(&seen, &machine, 1, 1), [6]);
    assert_eq!(chosen(&seen, &machine, 2, 1), [0, 6]);
    // Threads on offline hardware threads are no candidates.
    let mut less = machine.clone();
    less.cores.remove(2);
    assert_eq!(chosen(&seen, &less, 4, 2), [0, 1, 3, 4, 5, 7]);
}

#[test]
fn a_thread_that_comes_gets_its_share_from_all() {
    let machine = machine(3, 1);
    let mut seen = observation(1, &[0, 1, 2], &[0, 1]);
    for (n, group) in seen.groups.iter_mut().enumerate() {
        *group = GroupObservation { thread: n as u16 % 2, load: 10.0 };
    }
    let gain = Gain::default();
    let weights = weights(&seen, &machine, &BTreeSet::from([0, 1, 2]), &gain);
    let steps = balance(&seen, &weights);
    let groups = apply(&seen, &steps);
    let of = |thread| groups.iter().filter(|g| g.thread == thread).count();
    assert_eq!(groups.len(), 128);
    assert!((42..=43).contains(&of(0)) && (42..=43).contains(&of(2)), "{} {}", of(0), of(2));
    let moved: usize = steps
        .iter()
        .map(|step| match step {
            Step::Migrate { to, groups, .. } => {
                assert_eq!(*to, 2, "nobody else gets any");
                groups.len()
            }
            other => panic!("{other:?}"),
        })
        .sum();
    assert_eq!(moved, of(2), "and none moves twice");
}

#[test]
fn siblings_get_less_than_a_thread_that_has_its_core_alone() {
    let machine = machine(2, 2);
    let mut seen = observation(1, &[0, 1, 2, 3], &[0, 1, 2]);
    seen.groups.iter_mut().for_each(|g| *g = GroupObservation { thread: 0, load: 1.0 });
    // Threads 0 and 2 share core 0.
    let weights = weights(&seen, &machine, &running(&seen), &Gain::default());
    assert_eq!(weights[&1], 1.0);
    assert_eq!(weights[&0], 0.65);
    let groups = apply(&seen, &balance(&seen, &weights));
    let of = |thread| groups.iter().filter(|g| g.thread == thread).count();
    assert_eq!((of(0), of(1), of(2)), (36, 56, 36));
    assert!(unevenness(&seen, &weights) > 3.0);
    seen.groups = groups;
    assert!(unevenness(&seen, &weights) < 1.03);
    assert_eq!(balance(&seen, &weights), [], "what is even stays");
}

proptest! {
    /// After any change only running threads own groups, the load is as even as the heaviest groups
    /// allow, and a group moved between threads that stay only if its owner had too much.
    #[test]
    fn loads_are_balanced_and_little_moves(
        loads in proptest::collection::vec(0.0f64..100.0, 128),
        owners in proptest::collection::vec(0u16..6, 128),
        after in proptest::collection::btree_set(0u16..6, 1..=6),
    ) {
        let machine = machine(6, 1);
        let mut seen = observation(1, &[0, 1, 2, 3, 4, 5], &[0]);
        for ((group, load), thread) in seen.groups.iter_mut().zip(&loads).zip(&owners) {
            *group = GroupObservation { thread: *thread, load: *load };
        }
        let weights = weights(&seen, &machine, &after, &Gain::default());
        let steps = balance(&seen, &weights);
        let groups = apply(&seen, &steps);
        let total: f64 = loads.iter().sum();
        let heaviest = loads.iter().copied().fold(0.0, f64::max);
        let share = total / after.len() as f64;
        let before = |thread| -> f64 {
            seen.groups.iter().filter(|g| g.thread == thread).map(|g| g.load).sum()
        };
        for &thread in &after {
            let load: f64 = groups.iter().filter(|g| g.thread == thread).map(|g| g.load).sum();
            let slack = heaviest + share * 0.05 + 1e-6;
            prop_assert!(load <= share + slack, "thread {thread}: {load} of {share}");
        }
        for (group, was) in groups.iter().zip(&seen.groups) {
            prop_assert!(after.contains(&group.thread));
            if group.thread != was.thread && after.contains(&was.thread) {
                let load = before(was.thread);
                prop_assert!(load > share * 0.95 - 1e-6, "{load} of {share} gave some away");
            }
        }
    }
}
