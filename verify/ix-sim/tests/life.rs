//! The control plane parks, resumes and drains elastic threads and moves flow groups, at any
//! moment, while threads stand still and networks lose: `ix sim --scenario life --seed S -v`
//! repeats one seed.

use crate::support::outcomes::{total, well};
use ix_sim::plan::{Options, Plan, Scenario};
use ix_sim::world::Outcome;

#[test]
fn threads_are_parked_whatever_else_happens() {
    let plan = |seed| Plan::new(seed, Scenario::Life, &Options::default());
    let outcomes: Vec<Outcome> = (7000..7016).map(|seed| well(seed, plan(seed))).collect();
    for name in ["parked", "resumed", "drained", "migrated", "refused"] {
        let name = format!("orders.{name}");
        assert!(total(&outcomes, &name) > 20, "{name} {}", total(&outcomes, &name));
    }
    for name in ["orders.undone", "away_turns"] {
        assert!(total(&outcomes, name) > 0, "{name} never happened");
    }
}

/// For `.ci/run nightly`: twenty thousand runs, on all hardware threads.
#[test]
#[ignore = "takes minutes"]
fn twenty_thousand_seeds() {
    const LAST: u64 = 120_000;
    let next = std::sync::atomic::AtomicU64::new(100_000);
    let jobs = std::thread::available_parallelism().map_or(1, |n| n.get().min(8));
    let work = || loop {
        let seed = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if seed >= LAST {
            return;
        }
        well(seed, Plan::new(seed, Scenario::Life, &Options::default()));
        if seed.is_multiple_of(1_000) {
            println!("up to seed {seed}: all well");
        }
    };
    std::thread::scope(|scope| (0..jobs).for_each(|_| drop(scope.spawn(work))));
}
