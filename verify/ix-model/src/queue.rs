//! One hardware thread's queue, in ticks: arrivals at random, service in batches, run to
//! completion.
//!
//! Within a tick the queue is a fluid with Poisson arrivals; what matters to the 99th percentile
//! under 500 µs happens over many ticks. Papers: "each IX core operates like a simple FCFS queuing
//! server" (TOCS 4.6).
use crate::meter::Meter;
use crate::papers as p;
use crate::service::Cost;
use ix_random::Rng;
use std::f64::consts::TAU;

/// Length of a tick, µs.
pub const TICK_US: u64 = 250;

/// Who sends to a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Clients {
    /// Requests a second.
    pub rate_per_s: f64,
    /// Requests that their connections may have under way together.
    pub window: f64,
}

/// A thread's queue.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    /// Requests that wait or are served.
    pub backlog: f64,
    /// Requests that wait in the clients for their connections' windows.
    owed: f64,
    /// Until when the thread does something else, µs.
    stalled_until_us: u64,
    /// What it measures.
    pub meter: Meter,
}

/// What a tick did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Served {
    /// Requests.
    pub requests: f64,
    /// How long one that arrived in the tick waits and is served, µs.
    pub delay_us: f64,
    /// Time with work.
    pub busy_us: f64,
}

impl Queue {
    /// The thread does nothing else until then.
    pub fn stall(&mut self, until_us: u64) {
        self.stalled_until_us = self.stalled_until_us.max(until_us);
    }

    /// Takes a part of what waits away.
    pub fn take(&mut self, part: f64) -> (f64, f64) {
        let taken = (self.backlog * part, self.owed * part);
        self.backlog -= taken.0;
        self.owed -= taken.1;
        taken
    }

    /// Adds what waited elsewhere.
    pub fn put(&mut self, (backlog, owed): (f64, f64)) {
        self.backlog += backlog;
        self.owed += owed;
    }

    /// One tick that begins now.
    pub fn tick(&mut self, now_us: u64, clients: Clients, cost: &Cost, rng: &mut Rng) -> Served {
        let tick_us = TICK_US as f64;
        let wanted = poisson(clients.rate_per_s * tick_us / 1e6, rng) + self.owed;
        let sent = wanted.min((clients.window - self.backlog).max(0.0));
        self.owed = wanted - sent;
        let pending = self.backlog + sent;
        let before = self.backlog;
        let stalled_us = (self.stalled_until_us.saturating_sub(now_us) as f64).min(tick_us);
        let time_us = tick_us - stalled_us;
        let batch = batch(before, pending, clients.rate_per_s, cost);
        let each_us = cost.each_us(batch);
        let requests = pending.min(time_us / each_us);
        self.backlog = pending - requests;
        let busy_us = requests * each_us;
        // A request finds a cycle under way, then its place in the queue comes.
        let cycle_us = cost.cycle_us(batch);
        let waiting = (before + self.backlog) / 2.0;
        let delay_us = stalled_us / 2.0 + waiting * each_us + cycle_us * (1.0 + rng.open_unit());
        let depth = waiting.max(batch);
        self.meter.add(requests / batch, requests, busy_us, depth);
        Served { requests, delay_us, busy_us }
    }
}

/// Packets of a cycle: what waits, or what comes during a cycle, at most the bound.
fn batch(before: f64, pending: f64, rate_per_s: f64, cost: &Cost) -> f64 {
    let per_us = rate_per_s / 1e6;
    let free = 1.0 - per_us * cost.request_us;
    let steady = if free > 0.0 { per_us * cost.fixed_us / free } else { f64::INFINITY };
    steady.max(before).min(pending).clamp(1.0, f64::from(p::BATCH_BOUND))
}

/// A draw of Poisson's law; by the normal one where that is as good.
pub fn poisson(mean: f64, rng: &mut Rng) -> f64 {
    if mean > 30.0 {
        return (mean + mean.sqrt() * normal(rng)).round().max(0.0);
    }
    let (limit, mut product, mut count) = ((-mean).exp(), rng.open_unit(), 0.0);
    while product > limit {
        product *= rng.open_unit();
        count += 1.0;
    }
    count
}

/// A draw of the standard normal law (Box and Muller).
pub fn normal(rng: &mut Rng) -> f64 {
    (-2.0 * rng.open_unit().ln()).sqrt() * (TAU * rng.open_unit()).cos()
}
