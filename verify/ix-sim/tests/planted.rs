//! Bugs are planted, and must be found: a simulator that finds nothing proves nothing.
//! `cargo test -p ix-sim --features planted --test planted`
#[path = "support/wrap.rs"]
mod wrap;
use ix_sim::plan::{Options, Plan, Scenario};
use ix_sim::world::World;
use ix_tcp::planted::{Bug, plant};
use std::time::Instant;

/// Runs seeds until one fails; returns its first violation. Seeds are few, so that what takes long
/// fails.
fn found(bug: Bug, plan: impl Fn(u64) -> Plan) -> String {
    let begin = Instant::now();
    for seed in 0..60 {
        let world = World::new(seed, plan(seed));
        plant(Some(bug));
        let outcome = world.run();
        plant(None);
        if let Some(what) = outcome.violations.first() {
            let seconds = begin.elapsed().as_secs_f64();
            println!("{bug:?}: found by seed {seed} after {seconds:.1} s: {what}");
            return what.clone();
        }
    }
    panic!("nobody finds {bug:?}");
}

fn of(scenario: Scenario) -> impl Fn(u64) -> Plan {
    move |seed| Plan::new(seed, scenario, &Options::default())
}

#[test]
fn a_lost_timer_is_found() {
    found(Bug::LostTimer, of(Scenario::Lives));
}

#[test]
fn a_window_that_is_off_by_one_is_found() {
    // Readers that leave data lying close windows.
    let what = found(Bug::WindowOffByOne, |seed| {
        let mut plan = of(Scenario::Bulk)(seed);
        plan.connections.iter_mut().for_each(|connection| connection.lazy = [true, true]);
        plan
    });
    assert!(what.contains("beyond the window"), "{what}");
}

#[test]
fn a_wrong_wrap_is_found() {
    found(Bug::WrongWrap, |seed| wrap::about_to_wrap(seed).0);
}

#[test]
fn a_skipped_retransmission_is_found() {
    found(Bug::SkippedRetransmission, of(Scenario::Lives));
}

#[test]
fn a_stale_handle_is_found() {
    found(Bug::StaleHandle, of(Scenario::All));
}
