//! When to move on the ladder: compares one dataplane's load with what the rungs give. Pure.
//!
//! Up: the queueing delay is above its bound, or the threads are busy for almost all of the time.
//! Short queues do not show how many resources are superfluous, so idle time decides when to go
//! down. Each rung is assumed to give a known throughput, so the present busy time is a load. A
//! lower rung suffices if the highest load of the window fits into it with a margin (SoCC '15,
//! section 4.4). Busy time is counted as if batches were full: from three quarters of its load on,
//! a polling thread is busy all the time, with growing batches.
//!
//! Assumptions about throughput can be wrong. If a move up follows soon after a move down, the
//! lower rung was too low for that load: it is not taken again while the load stays. So a steady
//! load leads to a steady configuration, however wrong the assumptions are.
use crate::observation::Smoothed;
use crate::policy::{Down, Gain, Rungs, Up};
use crate::{Observation, ThreadState};
use std::collections::VecDeque;
use std::fmt;

/// A move up this soon after a move down undoes it, µs.
const REGRET_WITHIN_US: u64 = 10_000_000;
/// How long the first regret of a rung lasts that was not saturated, µs.
const REGRET_FIRST_US: u64 = 10_000_000;
/// Busy share from which a rung is saturated.
const SATURATED: f64 = 0.9;
/// Loads that differ by less count as equal.
const SAME_LOAD: f64 = 0.95;
/// Most samples in the window, whatever the tick.
const SAMPLES_MAX: usize = 4096;
/// Steps up in a row double up to this many rungs.
const STREAK_MAX: u32 = 8;

/// The load of one dataplane, over all its elastic threads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Load {
    /// Longest wait on any thread, µs, and the thread.
    pub(crate) delay_us: f64,
    pub(crate) slowest: u16,
    /// Packets waiting on that thread, and its iteration time τ.
    pub(crate) queue: f64,
    pub(crate) iteration_us: f64,
    /// Packets waiting, mean over threads, slowest average.
    pub(crate) queue_mean: f64,
    /// Idle share, mean over threads.
    pub(crate) idle: Smoothed,
    /// Idle share of the busiest thread.
    pub(crate) idle_least: f64,
    /// Share of time that the packets would take in full batches, mean over threads, and on the
    /// busiest.
    pub(crate) work: f64,
    pub(crate) work_most: f64,
    pub(crate) rate_per_s: f64,
}

impl Load {
    /// `None` if no thread runs.
    pub(crate) fn of(seen: &Observation, gain: &Gain) -> Option<Load> {
        let delay = |&i: &usize| seen.threads[i].delay_us(seen.batch_bound);
        let slowest = seen.elastic().max_by(|a, b| delay(a).total_cmp(&delay(b)))?;
        let threads: Vec<_> =
            seen.threads.iter().filter(|t| t.state == ThreadState::Elastic).collect();
        let mean = |of: &dyn Fn(usize) -> f64| {
            (0..threads.len()).map(of).sum::<f64>() / threads.len() as f64
        };
        let work = |i: usize| {
            let busy = 1.0 - threads[i].idle[0].clamp(0.0, 1.0);
            busy * gain.full_batches(threads[i].batch, seen.batch_bound)
        };
        Some(Load {
            delay_us: delay(&slowest),
            slowest: slowest as u16,
            queue: seen.threads[slowest].queue_depth[0],
            iteration_us: seen.threads[slowest].iteration_us,
            queue_mean: mean(&|i| threads[i].queue_depth[2]),
            idle: [0, 1, 2].map(|alpha| mean(&|i| threads[i].idle[alpha])),
            idle_least: threads.iter().map(|t| t.idle[0]).fold(1.0, f64::min),
            work: mean(&work),
            work_most: (0..threads.len()).map(work).fold(0.0, f64::max),
            rate_per_s: threads.iter().map(|t| t.rate_per_s).sum(),
        })
    }

    pub(crate) fn busy(&self) -> f64 {
        self.work
    }
}

/// Reason of a move.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Why {
    Delay { slo_us: f64, load: Load, batch_bound: u32 },
    Busy { busy: f64, busy_max: f64 },
    Idle { idle: f64, threshold: f64, fits: f64 },
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        match self {
            Why::Delay { slo_us, load, batch_bound } => write!(
                f,
                "queueing delay {:.0} µs over {slo_us:.0} µs on thread {} (Q {:.0}, B \
                 {batch_bound}, τ {:.1} µs), idle {}",
                load.delay_us,
                load.slowest,
                load.queue,
                load.iteration_us,
                percent(load.idle[0]),
            ),
            Why::Busy { busy, busy_max } => {
                write!(f, "busy {} of the time, over {}", percent(*busy), percent(*busy_max))
            }
            Why::Idle { idle, threshold, fits } => write!(
                f,
                "idle {}, over {}; the load will take {} of it",
                percent(*idle),
                percent(*threshold),
                percent(*fits),
            ),
        }
    }
}

/// A rung that was too low for a load.
#[derive(Clone, Copy, Debug)]
struct Regret {
    rung: usize,
    rate_per_s: f64,
    until_us: u64,
    lasts_us: u64,
}

/// One dataplane's place on its ladder.
#[derive(Debug)]
pub(crate) struct Climber {
    rung: usize,
    up_us: Option<u64>,
    down_us: Option<u64>,
    streak: u32,
    /// Recent loads, in the unit of the rungs, with their times.
    window: VecDeque<(u64, f64)>,
    watched_since_us: Option<u64>,
    regrets: Vec<Regret>,
}

impl Climber {
    pub(crate) fn at(rung: usize) -> Climber {
        Climber {
            rung,
            up_us: None,
            down_us: None,
            streak: 0,
            window: VecDeque::new(),
            watched_since_us: None,
            regrets: Vec::new(),
        }
    }

    pub(crate) fn rung(&self) -> usize {
        self.rung
    }

    /// Moves to a rung of a new ladder.
    pub(crate) fn move_to(&mut self, rung: usize) {
        *self = Climber { up_us: self.up_us, ..Climber::at(rung) };
    }

    /// The rung to go to, if any.
    pub(crate) fn tick(
        &mut self,
        now_us: u64,
        load: &Load,
        batch_bound: u32,
        rungs: &Rungs,
        slo_us: f64,
        (up, down): (&Up, &Down),
    ) -> Option<(usize, Why)> {
        let capacity = rungs.capacities[self.rung];
        let demand = load.busy() * capacity;
        self.remember(now_us, demand, down.window_ms);
        let moved = if load.delay_us > slo_us {
            let why = Why::Delay { slo_us, load: *load, batch_bound };
            self.up(now_us, demand, rungs, up).map(|rung| (rung, why))
        } else if up.busy_max < 1.0 && load.work_most > up.busy_max {
            let why = Why::Busy { busy: load.work_most, busy_max: up.busy_max };
            self.up(now_us, demand, rungs, up).map(|rung| (rung, why))
        } else {
            self.streak = 0;
            self.down(now_us, load, rungs, down)
        };
        let (rung, _) = moved.as_ref()?;
        self.went(now_us, *rung, load, down);
        moved
    }

    fn remember(&mut self, now_us: u64, demand: f64, window_ms: f64) {
        self.watched_since_us.get_or_insert(now_us);
        let oldest = now_us.saturating_sub((window_ms * 1000.0) as u64);
        while self.window.front().is_some_and(|(at, _)| *at < oldest)
            || self.window.len() >= SAMPLES_MAX
        {
            self.window.pop_front();
        }
        self.window.push_back((now_us, demand));
    }

    /// One rung, twice as many if that was not enough, and at least as many as the load needs.
    fn up(&mut self, now_us: u64, demand: f64, rungs: &Rungs, up: &Up) -> Option<usize> {
        let hold_us = (up.hold_ms * 1000.0) as u64;
        if self.rung == rungs.top() || self.up_us.is_some_and(|at| now_us < at + hold_us) {
            return None;
        }
        let needed = rungs.lowest_with(demand / up.busy_max);
        let rung = (self.rung + (1 << self.streak.min(STREAK_MAX))).max(needed);
        self.streak += 1;
        Some(rung.min(rungs.top()))
    }

    fn down(
        &mut self,
        now_us: u64,
        load: &Load,
        rungs: &Rungs,
        down: &Down,
    ) -> Option<(usize, Why)> {
        let window_us = (down.window_ms * 1000.0) as u64;
        let long_ago = |since: Option<u64>| since.is_none_or(|at| now_us >= at + window_us);
        // A load that was not observed for the whole window may have been higher.
        if !long_ago(self.watched_since_us)
            || !long_ago(self.up_us)
            || load.queue_mean > down.queue_max
        {
            return None;
        }
        let capacity = rungs.capacities[self.rung];
        let peak = self.window.iter().map(|(_, demand)| *demand).fold(0.0, f64::max);
        let idle = 1.0 - peak / capacity;
        let lowest = self.rung.saturating_sub(down.rungs_max as usize);
        let fits = |rung: usize| {
            let threshold = down.margin * (1.0 - rungs.capacities[rung] / capacity);
            let regretted = |r: &Regret| {
                rung <= r.rung && now_us < r.until_us && load.rate_per_s >= r.rate_per_s * SAME_LOAD
            };
            let share = peak / rungs.capacities[rung];
            let right =
                idle > threshold && share <= down.busy_max && !self.regrets.iter().any(regretted);
            right.then_some((rung, Why::Idle { idle, threshold, fits: share }))
        };
        (lowest..self.rung).find_map(fits)
    }

    fn went(&mut self, now_us: u64, rung: usize, load: &Load, down: &Down) {
        if rung > self.rung {
            let soon = |at: u64| now_us < at + REGRET_WITHIN_US;
            if self.down_us.is_some_and(soon) {
                self.regret(now_us, load, (down.regret_s * 1e6) as u64);
            }
            self.up_us = Some(now_us);
        } else {
            self.down_us = Some(now_us);
        }
        self.rung = rung;
    }

    /// A rung whose threads had no idle time was too low for this load. A rung that only had a long
    /// queue may have been unlucky: it is tried again, each time after a longer time.
    fn regret(&mut self, now_us: u64, load: &Load, most_us: u64) {
        let before = self.regrets.iter().position(|r| r.rung == self.rung);
        let before = before.map(|at| self.regrets.swap_remove(at));
        let again_us = before.map_or(REGRET_FIRST_US, |r| r.lasts_us.saturating_mul(2));
        let lasts_us = if load.busy() > SATURATED { most_us } else { again_us.min(most_us) };
        let known = before.filter(|r| now_us < r.until_us).map_or(f64::MAX, |r| r.rate_per_s);
        self.regrets.push(Regret {
            rung: self.rung,
            rate_per_s: known.min(load.rate_per_s),
            until_us: now_us + lasts_us,
            lasts_us,
        });
    }
}

#[cfg(test)]
#[path = "climber_tests.rs"]
mod tests;
