//! Fixed seeds: whole hosts under every fault, each byte checked, everything given back.
//! `ix sim --seed S --scenario NAME -v` repeats one by itself.

use crate::support::outcomes::{total, well};
use ix_sim::plan::{End, Exchange, Families, Options, Plan, Scenario};
use ix_sim::wire::Faults;
use ix_sim::world::{Outcome, World};
use std::ops::Range;

fn run(seed: u64, scenario: Scenario, options: &Options) -> Outcome {
    World::new(seed, Plan::new(seed, scenario, options)).run()
}

/// Runs the seeds; returns the totals of what they exercised.
fn all_well(seeds: Range<u64>, scenario: Scenario, options: &Options) -> Vec<Outcome> {
    let outcomes: Vec<Outcome> = seeds.clone().map(|seed| run(seed, scenario, options)).collect();
    for (seed, outcome) in seeds.zip(&outcomes) {
        assert!(outcome.violations.is_empty(), "seed {seed}, {scenario:?}: {outcome:#?}");
    }
    outcomes
}

#[test]
fn everything_at_once() {
    let outcomes = all_well(0..60, Scenario::All, &Options::default());
    // Not a wire that happened to be good: what is here to be survived did happen.
    let faults = |count: fn(&Outcome) -> u64| outcomes.iter().map(count).sum::<u64>();
    assert!(faults(|o| o.frames.lost) > 500);
    assert!(faults(|o| o.frames.reordered) > 100);
    assert!(faults(|o| o.frames.duplicated) > 100);
    assert!(faults(|o| o.frames.corrupted) > 50);
    assert!(faults(|o| o.frames.overflowed) > 50);
    for name in ["forwarded", "tcp.retransmits", "tcp.rto", "tcp.tlp", "tcp.recoveries"] {
        assert!(total(&outcomes, name) > 50, "{name} {}", total(&outcomes, name));
    }
    for name in ["tcp.undos", "tcp.challenge_acks", "tcp.resets_received"] {
        assert!(total(&outcomes, name) > 0, "{name} never happened");
    }
}

#[test]
fn many_short_connections() {
    let outcomes = all_well(1000..1030, Scenario::Churn, &Options::default());
    assert!(outcomes.iter().map(|outcome| outcome.connections).sum::<usize>() > 2000);
}

/// Data is left unread for up to two seconds at a time.
#[test]
fn windows_close_and_open_again() {
    let mut probes = 0;
    for seed in 1200..1220 {
        let mut plan = Plan::new(seed, Scenario::Bulk, &Options::default());
        plan.connections.iter_mut().for_each(|connection| connection.lazy = [true, true]);
        probes += well(seed, plan).counter("tcp.window_probes");
    }
    assert!(probes > 10, "{probes} probes");
}

/// Hundreds of handshakes in the same instant, at listeners with room for few.
#[test]
fn everybody_at_once() {
    let cookies: u64 = (1100..1120).map(|s| well(s, flood(s, 32)).counter("syn_cookies")).sum();
    assert!(cookies > 100, "{cookies} cookies");
}

/// 400 connections that begin in the same instant, on hosts with one thread and this backlog.
fn flood(seed: u64, backlog: u32) -> Plan {
    let mut plan = Plan::new(seed, Scenario::Churn, &Options::default());
    let first = plan.connections[0];
    plan.connections.resize(400, first);
    for connection in &mut plan.connections {
        connection.after_us = 0;
        connection.client.1 = 0;
    }
    for host in &mut plan.hosts {
        (host.threads, host.backlog) = (1, backlog);
    }
    plan
}

#[test]
fn messages_and_their_echoes() {
    all_well(2000..2040, Scenario::Echo, &Options::default());
}

/// 16 MiB each way on each connection, with 1 % loss.
#[test]
fn long_streams_both_ways_under_loss() {
    let options = Options { loss: Some(0.01), bulk_bytes: Some(16 << 20) };
    let outcomes = all_well(3000..3002, Scenario::Bulk, &options);
    for outcome in &outcomes {
        assert_eq!(outcome.bytes, outcome.connections as u64 * (32 << 20));
        assert!(outcome.frames.lost > 100);
    }
}

/// 1 GiB; `cargo test --release -p ix-sim -- --ignored`.
#[test]
#[ignore = "takes long without optimisation"]
fn a_gibibyte() {
    let options = Options { loss: None, bulk_bytes: Some(512 << 20) };
    all_well(4000..4001, Scenario::Bulk, &options);
}

/// Copies and late arrivals of SYNs among cookies: some clients get two different answers.
#[test]
fn everybody_at_once_on_a_bad_network() {
    let mut cookies = 0;
    for seed in 1300..1310 {
        let mut plan = flood(seed, 64);
        for host in &mut plan.hosts {
            let latency_us = host.faults.latency_us;
            let (loss, duplicate, reorder, reorder_us) = (0.1, 0.2, 0.3, 20_000);
            host.faults =
                Faults { loss, duplicate, reorder, reorder_us, ..Faults::none(latency_us) };
        }
        let heal_us = plan.heal_us;
        plan.changes.retain(|change| change.at_us == heal_us);
        cookies += well(seed, plan).counter("syn_cookies");
    }
    assert!(cookies > 100, "{cookies} cookies");
}

/// So many streams with gaps that their out-of-order queues could hold every receive frame.
#[test]
fn gaps_everywhere_do_not_use_up_the_receive_frames() {
    let mut given_up = 0;
    for seed in 1400..1402 {
        let mut plan = flood(seed, 0);
        for host in &mut plan.hosts {
            host.rx_frames = 256;
            host.batch = 64;
            host.tcp.sack = true;
            // Nothing that is dropped early, at the edge.
            host.mark_queue = usize::MAX;
            host.faults = Faults { loss: 0.1, ..Faults::none(5_000) };
        }
        for connection in &mut plan.connections {
            connection.exchange = Exchange::Bulk { up: 20_000, down: 20_000 };
            connection.end = End::HalfClose;
        }
        given_up += well(seed, plan).counter("drops.rx_pressure");
    }
    assert!(given_up > 50, "{given_up} segments");
}

#[test]
fn a_seed_repeats_to_the_last_counter() {
    for seed in 5000..5005 {
        let first = run(seed, Scenario::All, &Options::default());
        assert_eq!(first, run(seed, Scenario::All, &Options::default()));
        assert_ne!(first, run(seed + 100, Scenario::All, &Options::default()));
    }
}

/// A run of lives as it was before there were simultaneous opens and IPv6 among them.
fn as_it_was_found(seed: u64) -> Outcome {
    let mut plan = Plan::new(seed, Scenario::Lives, &Options::default()).over(Families::V4);
    plan.connections.retain(|connection| connection.meets.is_none());
    well(seed, plan)
}

/// Small pools of receive frames: what one thread received for the others left its own pool empty,
/// and the others kept it.
#[test]
fn regression_a_thread_that_receives_for_others_keeps_frames() {
    as_it_was_found(70_000);
}

/// Segments that waited for ARP on the old thread left after newer ones of the thread to which
/// their flow group had moved.
#[test]
fn regression_what_waits_for_a_next_hop_moves_with_its_group() {
    assert!(as_it_was_found(2_000_642).counter("moves.bound") > 0, "nothing moved");
}

/// Hundreds of connections begin at once behind a small queue. With exact timeouts their
/// retransmissions stayed in step, and the same ones overflowed the queue until they gave up.
#[test]
fn regression_retransmissions_do_not_stay_in_step() {
    assert!(as_it_was_found(1869).counter("tcp.rto") > 400, "the queue was large enough");
}

/// Hosts that fall behind what comes in: senders that know ECN hear of it before the ring
/// overflows.
#[test]
fn a_queue_in_front_of_a_host_is_told_of_by_marks() {
    let run = |seed, mark_queue| {
        let mut plan = Plan::new(seed, Scenario::Bulk, &Options::default());
        for host in &mut plan.hosts {
            host.faults = Faults::none(500);
            host.tcp.ecn = ix_tcp::EcnMode::Ask;
            (host.ring, host.batch, host.cycle_us, host.stall) = (256, 8, 200, 0.0);
            host.mark_queue = mark_queue;
        }
        let heal_us = plan.heal_us;
        plan.changes.retain(|change| change.at_us == heal_us);
        plan.moves.clear();
        well(seed, plan)
    };
    let marked: Vec<Outcome> = (1700..1710).map(|seed| run(seed, 16)).collect();
    let unmarked: Vec<Outcome> = (1700..1710).map(|seed| run(seed, 0)).collect();
    assert!(total(&marked, "tcp.ce_received") > 100);
    assert!(total(&marked, "tcp.ecn_reductions") > 10);
    assert_eq!(total(&unmarked, "tcp.ce_received") + total(&unmarked, "tcp.ecn_reductions"), 0);
    let (with, without) = (total(&marked, "tcp.retransmits"), total(&unmarked, "tcp.retransmits"));
    assert!(with * 2 < without, "{with} retransmissions with marks, {without} without");
}

/// The same for senders without ECN: some payload is dropped long before the ring is full, so
/// packets wait a fraction of the time, and what arrives is hardly less.
#[test]
fn a_queue_in_front_of_a_host_is_kept_short_by_early_drops() {
    let run = |seed, drop_queue| {
        let options = Options { bulk_bytes: Some(3 << 20), ..Options::default() };
        let mut plan = Plan::new(seed, Scenario::Bulk, &options);
        for host in &mut plan.hosts {
            host.faults = Faults::none(500);
            host.tcp = ix_tcp::Config { ecn: ix_tcp::EcnMode::Off, ..ix_tcp::Config::default() };
            (host.ring, host.batch, host.cycle_us, host.stall) = (1024, 8, 200, 0.0);
            (host.rx_frames, host.threads) = (8192, 1);
            (host.mark_queue, host.drop_queue) = (0, drop_queue);
        }
        for connection in &mut plan.connections {
            (connection.client.1, connection.lazy) = (0, [false; 2]);
        }
        let heal_us = plan.heal_us;
        plan.changes.retain(|change| change.at_us == heal_us);
        plan.moves.clear();
        well(seed, plan)
    };
    let early: Vec<Outcome> = (1750..1758).map(|seed| run(seed, 32)).collect();
    let never: Vec<Outcome> = (1750..1758).map(|seed| run(seed, 0)).collect();
    assert!(total(&early, "drops.early") > 100);
    assert_eq!(total(&never, "drops.early"), 0);
    let wait_us = |runs: &[Outcome]| total(runs, "rx_waited_us") / total(runs, "rx_packets");
    let most_us = |runs: &[Outcome]| runs.iter().map(|o| o.counter("rx_waited_most_us")).max();
    let took_us = |runs: &[Outcome]| runs.iter().map(|outcome| outcome.took_us).sum::<u64>();
    println!("early drops: {} µs, {:?}; {} µs", wait_us(&early), most_us(&early), took_us(&early));
    println!("none: {} µs, {:?}; {} µs", wait_us(&never), most_us(&never), took_us(&never));
    assert!(wait_us(&early) * 3 < wait_us(&never), "packets wait");
    assert!(took_us(&early) * 4 < took_us(&never) * 5, "goodput falls");
}

/// Both ends connect to each other at the same time, on hosts with several threads whose flow
/// groups move: either of them may open first, and some want to close before they are open.
#[test]
fn both_ends_open_at_once() {
    use ix_sim::observer::State::{FinWait1, SynReceived, SynSent};
    let (mut met, mut closed) = (0, 0);
    for seed in 1800..1836 {
        let mut plan = Plan::new(seed, Scenario::Lives, &Options::default());
        plan.connections.retain(|connection| connection.meets.is_some());
        if plan.connections.is_empty() {
            continue;
        }
        let outcome = well(seed, plan);
        met += outcome.lives.transitions((SynSent, SynReceived));
        closed += outcome.lives.transitions((SynReceived, FinWait1));
    }
    println!("{met} ends have met, {closed} closed at once");
    assert!(met > 40 && closed > 3, "{met} ends have met, {closed} closed at once");
}

/// A router on the way drops what is longer than it likes and does not say so: segments become
/// smaller until they get through, and as large as gets through.
#[test]
fn a_black_hole_is_found_and_measured() {
    let mut outcomes = Vec::new();
    for (seed, mtu) in (1600..1606).zip([576, 1000, 1200, 1280, 1400, 1492]) {
        // Slow enough for a search, with a second between its steps.
        let options = Options { bulk_bytes: Some(2 << 20), ..Options::default() };
        // No path of IPv6 takes less than 1,280 octets.
        let families = if mtu < 1280 { Families::V4 } else { Families::V6 };
        let mut plan = Plan::new(seed, Scenario::Bulk, &options).over(families);
        for host in &mut plan.hosts {
            (host.tcp.mss, host.tcp.sack) = (1460, true);
        }
        let faults = plan.hosts.iter_mut().map(|host| &mut host.faults);
        for faults in faults.chain(plan.changes.iter_mut().map(|change| &mut change.faults)) {
            (faults.black_hole_mtu, faults.rate_mbit_s, faults.queue_bytes) = (mtu, 2, 100_000);
        }
        outcomes.push(well(seed, plan));
    }
    assert!(total(&outcomes, "tcp.pmtu_black_hole") > 10);
    assert!(total(&outcomes, "tcp.pmtu_raised") > 10);
}

/// Segments of several buffers under every fault, on hosts that move flow groups and have little
/// memory, and whose packets are of different lengths.
#[test]
fn long_segments_survive_every_fault() {
    for (scenario, seeds) in [(Scenario::Bulk, 5000..5012), (Scenario::All, 5100..5112)] {
        for seed in seeds {
            let mut plan = Plan::new(seed, scenario, &Options::default());
            for (number, host) in plan.hosts.iter_mut().enumerate() {
                host.tcp.mss = [8960, 8960, 1460, 4000, 1800][(seed as usize + number) % 5];
            }
            well(seed, plan);
        }
    }
}

/// Sequence numbers go over the top in the middle of transfers.
#[test]
fn sequence_numbers_wrap() {
    for seed in 1500..1510 {
        let (plan, begins) = crate::support::wrap::about_to_wrap(seed);
        // A SYN may have been sent again some time later.
        assert!(begins >= u32::MAX - 25_000, "begins with {begins}");
        well(seed, plan);
    }
}
