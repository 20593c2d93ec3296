//! Flow groups move between 2 to 16 elastic threads, at any moment, while threads stand still and
//! networks lose: `ix sim --scenario migration --seed S -v` repeats one seed by itself.

use crate::support::outcomes::{total, well};
use ix_sim::plan::{Families, Options, Plan, Scenario, SpreadPlan};
use ix_sim::wire::Faults;
use ix_sim::world::Outcome;

#[test]
fn groups_move_whatever_else_happens() {
    let plan = |seed| Plan::new(seed, Scenario::Migration, &Options::default());
    let outcomes: Vec<Outcome> = (6000..6012).map(|seed| well(seed, plan(seed))).collect();
    // Every way to end was there.
    assert!(total(&outcomes, "moves.early") > 500);
    for name in ["moves.bound", "moves.refused"] {
        assert!(total(&outcomes, name) > 50, "{name} {}", total(&outcomes, name));
    }
    for name in ["forwarded", "tcp.rto", "tcp.recoveries"] {
        assert!(total(&outcomes, name) > 10, "{name} {}", total(&outcomes, name));
    }
}

/// Threads that stand still for longer than anybody waits: migrations are undone, or order is given
/// up, but nothing is lost.
/// A thread that stands still hears of a migration that was given up when the groups have come to
/// it another way. It used to hand their packets to the thread that had offered them, which handed
/// them back, for ever.
#[test]
fn no_packet_goes_in_a_circle_when_an_offer_is_heard_late() {
    for seed in [200_333, 200_384, 201_161] {
        let plan = Plan::new(seed, Scenario::Migration, &Options::default());
        well(seed, plan.over(Families::V4));
    }
}

#[test]
fn threads_that_stand_still_hang_nothing() {
    let mut outcomes = Vec::new();
    for seed in 6100..6106 {
        let mut plan = Plan::new(seed, Scenario::Migration, &Options::default());
        for host in &mut plan.hosts {
            (host.stall, host.stall_us) = (0.05, 400_000);
        }
        outcomes.push(well(seed, plan));
    }
    for name in ["moves.overdue", "moves.refused"] {
        assert!(total(&outcomes, name) > 3, "{name} {}", total(&outcomes, name));
    }
}

/// A network that keeps order, devices that keep what they promise: then every segment arrives in
/// order, however often its group moves.
#[test]
fn no_segment_is_lost_or_overtaken() {
    let mut moved = 0;
    for seed in 6200..6212 {
        let mut plan = Plan::new(seed, Scenario::Migration, &Options::default());
        plan.changes.clear();
        for host in &mut plan.hosts {
            host.faults = Faults::none(host.faults.latency_us);
            host.stall = 0.0;
            (host.ring, host.rx_frames, host.tx_frames) = (4096, 4096, 2048);
            // A thread without a buffer for a segment loses it.
            let ix_tcp::Config { rcv_buffers_max, rcv_buf_bytes, .. } = ix_tcp::Config::default();
            (host.tcp.rcv_buffers_max, host.tcp.rcv_buf_bytes) = (rcv_buffers_max, rcv_buf_bytes);
            if host.spread == SpreadPlan::Random {
                host.spread = SpreadPlan::First;
            }
        }
        let outcome = well(seed, plan);
        let names = ["tcp.out_of_order", "drops.forward_full", "drops.rx_pressure"];
        for name in names {
            assert_eq!(outcome.counter(name), 0, "seed {seed}: {name} {outcome:#?}");
        }
        moved += outcome.counter("moves.early") + outcome.counter("moves.bound");
    }
    assert!(moved > 500, "{moved} migrations");
}
