//! Runs that must go well, and what they counted together.
use ix_sim::plan::Plan;
use ix_sim::world::{Outcome, World};

/// Runs a plan, which must show no violation.
pub fn well(seed: u64, plan: Plan) -> Outcome {
    let outcome = World::new(seed, plan).run();
    assert!(outcome.violations.is_empty(), "seed {seed}: {outcome:#?}");
    outcome
}

/// The sum of a counter.
pub fn total(outcomes: &[Outcome], name: &str) -> u64 {
    outcomes.iter().map(|outcome| outcome.counter(name)).sum()
}
