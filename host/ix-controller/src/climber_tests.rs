use super::*;
use crate::Policy;
use crate::test_support::machine;
use proptest::prelude::*;

const TICK_US: u64 = 100_000;

/// A server that differs from the policy's assumptions: each rung has its own throughput.
struct Server {
    /// Packets per second of each rung.
    truth: Vec<f64>,
    backlog: f64,
    /// Another program delays a thread, once.
    interrupted: bool,
}

impl Server {
    /// The load after 100 ms at a rung. Queues grow if the rung gives too little.
    fn load(&mut self, rung: usize, offered_per_s: f64, noise: f64) -> Load {
        let room = self.truth[rung] * 0.1;
        let wanted = offered_per_s * (1.0 + noise) * 0.1 + self.backlog;
        let served = wanted.min(room);
        self.backlog = (wanted - served).min(4096.0);
        let idle = 1.0 - served / room;
        let delay_us = self.backlog / self.truth[rung] * 1e6 + 5.0 / (idle + 0.02);
        let interruption = if std::mem::take(&mut self.interrupted) { 1000.0 } else { 0.0 };
        Load {
            delay_us: delay_us + interruption,
            slowest: 0,
            queue: self.backlog,
            iteration_us: 10.0,
            queue_mean: self.backlog,
            idle: [idle; 3],
            idle_least: idle,
            work: 1.0 - idle,
            work_most: 1.0 - idle,
            rate_per_s: served * 10.0,
        }
    }
}

struct Run {
    policy: Policy,
    rungs: Rungs,
    climber: Climber,
    server: Server,
    now_us: u64,
}

impl Run {
    /// The energy ladder on 4 cores; each rung's assumed throughput is wrong by `error`.
    fn new(error: &[f64]) -> Run {
        let policy = Policy::built_in("energy").expect("known");
        let rungs = policy.ladder.rungs(&machine(4, 2), &policy.gain, 4, 2);
        let truth = rungs.capacities.iter().enumerate();
        let truth: Vec<f64> =
            truth.map(|(n, c)| 100_000.0 * c * (1.0 + error[n % error.len()])).collect();
        let server = Server { truth, backlog: 0.0, interrupted: false };
        Run { policy, rungs, climber: Climber::at(0), server, now_us: 1_000_000 }
    }

    fn tick(&mut self, offered_per_s: f64, noise: f64) -> Option<(usize, Why)> {
        self.now_us += TICK_US;
        let load = self.server.load(self.climber.rung(), offered_per_s, noise);
        let when = (&self.policy.up, &self.policy.down);
        self.climber.tick(self.now_us, &load, 64, &self.rungs, self.policy.slo_us, when)
    }

    fn ticks(&mut self, n: usize, offered_per_s: f64) -> usize {
        (0..n).filter(|_| self.tick(offered_per_s, 0.0).is_some()).count()
    }
}

#[test]
fn every_rung_of_the_ladder_is_used_up_and_down_again() {
    let mut run = Run::new(&[0.0]);
    let top = run.rungs.top();
    let most = *run.server.truth.last().expect("rungs");
    let mut seen = vec![false; top + 1];
    for n in 0..2000 {
        run.tick(most * f64::from(n) / 2000.0, 0.0);
        seen[run.climber.rung()] = true;
    }
    assert_eq!(run.climber.rung(), top);
    assert!(seen.iter().all(|s| *s), "{seen:?}");
    for n in (0..2000).rev() {
        run.tick(most * f64::from(n) / 2000.0, 0.0);
    }
    assert_eq!(run.climber.rung(), 0);
}

#[test]
fn a_step_of_the_load_is_answered_at_the_next_tick_and_soon_enough() {
    let mut run = Run::new(&[0.0]);
    run.ticks(50, 20_000.0);
    assert_eq!(run.climber.rung(), 0);
    // From a fifth of one core to more than all of them at the lowest clock.
    let (_, why) = run.tick(500_000.0, 0.0).expect("at once");
    assert!(matches!(why, Why::Delay { .. }), "{why}");
    let line = why.to_string();
    assert!(line.contains("over 300 µs on thread 0 (Q 4"), "{line}");
    let ticks = (0..).find(|_| {
        run.tick(500_000.0, 0.0);
        run.server.truth[run.climber.rung()] > 500_000.0
    });
    // 1 + 2 + 4 rungs, with a step each 200 ms.
    assert!(ticks.expect("some") <= 6, "{ticks:?}");
    run.ticks(50, 500_000.0);
    assert_eq!(run.server.backlog, 0.0);
    // No load: all the way down, no sooner than the window.
    let mut quiet = 0;
    while run.climber.rung() > 0 {
        quiet += 1;
        let moved = run.tick(0.0, 0.0);
        assert!(moved.is_none() || quiet > 10, "{quiet}: {moved:?}");
        assert!(quiet < 60);
    }
}

#[test]
fn more_is_given_before_a_queue_builds() {
    let mut run = Run::new(&[0.0]);
    run.ticks(20, 90_000.0);
    assert_eq!(run.climber.rung(), 0);
    let (rung, why) = run.tick(97_000.0, 0.0).expect("busy");
    assert_eq!((rung, why.to_string().as_str()), (1, "busy 97 % of the time, over 96 %"));
    // "1" waits for the queue.
    let mut run = Run::new(&[0.0]);
    run.policy.up.busy_max = 1.0;
    run.ticks(20, 90_000.0);
    assert_eq!(run.tick(99_000.0, 0.0), None);
    assert!(matches!(run.tick(110_000.0, 0.0), Some((1, Why::Delay { .. }))));
}

#[test]
fn as_much_goes_as_the_ratio_of_configurations_says() {
    // At 4 cores, the fourth can go from a load of 3 cores on, less a fifth of the ratio: idle for
    // more than 0.3 of the time.
    let mut run = Run::new(&[0.0]);
    run.climber = Climber::at(3);
    assert_eq!(run.ticks(100, 290_000.0), 0);
    let moved = (0..100).find_map(|_| run.tick(265_000.0, 0.0));
    let (rung, why) = moved.expect("down");
    assert_eq!(rung, 2);
    assert!(why.to_string().starts_with("idle 34 %, over 30 %; the load will take 88 %"), "{why}");
    // No more rungs at once than the policy allows.
    for (rungs_max, rung) in [(1, 2), (2, 1), (9, 0)] {
        let mut run = Run::new(&[0.0]);
        run.policy.down.rungs_max = rungs_max;
        run.climber = Climber::at(3);
        assert_eq!((0..100).find_map(|_| run.tick(1000.0, 0.0)).expect("down").0, rung);
    }
}

#[test]
fn a_rung_that_was_too_low_is_tried_again_only_with_less_load() {
    // The second core gives nothing.
    let mut run = Run::new(&[0.0, -0.5, 0.0]);
    run.climber = Climber::at(2);
    let moves = run.ticks(600, 120_000.0);
    assert_eq!((moves, run.climber.rung()), (2, 2), "down once and up again");
    assert_eq!(run.ticks(3000, 120_000.0), 0);
    assert!(run.ticks(100, 30_000.0) > 0, "less load");
    assert_eq!(run.climber.rung(), 0);
}

#[test]
fn bad_luck_is_forgiven_after_a_while_and_each_time_later() {
    let mut run = Run::new(&[0.0]);
    run.climber = Climber::at(1);
    let mut downs = Vec::new();
    for _ in 0..6000 {
        let before = run.climber.rung();
        run.tick(50_000.0, 0.0);
        if run.climber.rung() < before {
            downs.push(run.now_us / 1_000_000);
            run.server.interrupted = true;
        }
    }
    let gaps: Vec<u64> = downs.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.len() >= 4, "{downs:?}");
    assert!(gaps.windows(2).all(|pair| pair[1] >= pair[0] * 3 / 2), "{gaps:?}");
}

proptest! {
    /// Whatever the rungs really give, and wherever it starts: with a steady load it settles on a
    /// rung that carries the load, if there is one, and stays. A rung that was unlucky is tried
    /// again, each time after twice as long, from ten seconds on: five times in these five minutes.
    #[test]
    fn a_steady_load_means_a_steady_configuration(
        errors in proptest::collection::vec(-0.3f64..0.3, 1..16),
        start in 0usize..18,
        share in 0.0f64..1.1,
        noise in proptest::collection::vec(-0.02f64..0.02, 1..200),
    ) {
        let mut run = Run::new(&errors);
        run.climber = Climber::at(start.min(run.rungs.top()));
        let most = run.server.truth.iter().copied().fold(0.0, f64::max);
        let offered = most * share;
        for n in 0..1200 {
            run.tick(offered, noise[n % noise.len()]);
        }
        let settled = run.climber.rung();
        let mut moves = 0;
        for n in 0..3000 {
            moves += usize::from(run.tick(offered, noise[n % noise.len()]).is_some());
        }
        prop_assert!(moves <= 10, "{moves} from rung {settled} to {}", run.climber.rung());
        let carries = run.server.truth[settled] >= offered * 1.02;
        prop_assert!(carries || settled == run.rungs.top(), "rung {}", settled);
    }
}
