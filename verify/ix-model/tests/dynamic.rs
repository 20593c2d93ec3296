//! The controller that the machines get drives the model: what issue 6 asks of it, and that it
//! stays within the papers' configurations.
use ix_controller::{Configuration, Policy, policy::BUILT_IN};
use ix_model::run::{Run, run};
use ix_model::service::{System, Workload};
use ix_model::{Pattern, Server, pareto, space};

fn policy(name: &str) -> Policy {
    let (_, text) = BUILT_IN.iter().find(|(n, _)| *n == name).expect("known");
    Policy::parse(text).expect("right")
}

fn dynamic(name: &str, pattern: Pattern, seed: u64) -> Run {
    run(policy(name), Server::new(System::Ix, Workload::Usr, seed), &pattern.load(seed))
}

#[test]
fn the_controller_never_leaves_the_papers_configurations() {
    let known: Vec<Configuration> = space::all();
    for (name, rungs) in [("energy", 22), ("consolidation", 9)] {
        let run = dynamic(name, Pattern::Slope, 3);
        assert_eq!(run.refused, Vec::<String>::new());
        assert_eq!(run.seconds.len(), 300);
        let mut used: Vec<Configuration> = Vec::new();
        for event in &run.events {
            assert!(known.contains(&event.configuration), "{}", event.configuration);
            if !used.contains(&event.configuration) {
                used.push(event.configuration);
            }
        }
        assert_eq!(used.len(), rungs, "TOCS 5.4: the whole sequence is exercised");
        // What is served is what was asked for, but for moments.
        let sum = |of: fn(&ix_model::server::Sample) -> f64| -> f64 {
            run.seconds.iter().map(|s| of(&s.sample)).sum()
        };
        let served = sum(|s| s.achieved_per_s) / sum(|s| s.offered_per_s);
        assert!((0.99..1.001).contains(&served), "{name}: {served}");
    }
}

#[test]
fn a_seed_is_a_run() {
    let two = [1, 1].map(|seed| dynamic("consolidation", Pattern::SineNoise, seed));
    assert_eq!(two[0], two[1]);
    assert_ne!(two[0], dynamic("consolidation", Pattern::SineNoise, 2));
}

/// Issue 6: saved 54 / 51 / 46 %, the papers' table IV; 92 % of the Pareto bound, where the papers
/// have 85 to 92; background 90 %, where they have 80 to 92; fewer violations than their 25.
fn assert_targets(seeds: &[u64]) {
    let statics = pareto::sweep(System::Ix, Workload::Usr, &space::all(), 1);
    for &seed in seeds {
        let mut violations = 0;
        for (pattern, saved) in Pattern::ALL.into_iter().zip([54.0, 51.0, 46.0]) {
            let energy = dynamic("energy", pattern, seed).summary(&statics);
            let at = format!("{}, seed {seed}: {energy:?}", pattern.name());
            assert!(energy.saved_percent() >= saved, "{at}");
            assert!(energy.energy_pareto_percent() >= 92.0, "{at}");
            // Faster than the best static configuration of each second is only luck of seconds.
            assert!(energy.energy_pareto_percent() <= 101.0, "{at}");
            let background = dynamic("consolidation", pattern, seed).summary(&statics);
            let at = format!("{}, seed {seed}: {background:?}", pattern.name());
            assert!(background.background_pareto_percent() >= 90.0, "{at}");
            assert!(background.background_pareto_percent() <= 101.0, "{at}");
            violations += energy.violations + background.violations;
        }
        assert!(violations < 25, "{violations} violations");
    }
}

#[test]
fn the_targets_of_issue_6() {
    assert_targets(&[1]);
}

#[test]
#[ignore = "long: the same with other loads"]
fn the_targets_of_issue_6_with_other_seeds() {
    assert_targets(&[2, 3, 4, 5]);
}
