//! Static configurations: the load that each carries within the SLO, its cost, and the frontier.
use crate::papers as p;
use crate::power::{self, CoreLoad};
use crate::server::Server;
use crate::service::{Cost, Place, System, Workload};
use crate::space;
use ix_controller::{Clock, Configuration};
use std::thread;

/// Distance of the rates at which frontiers are computed, requests per second.
pub const GRID_PER_S: f64 = 10_000.0;
/// Times of a measurement of a static configuration: to settle, and to measure.
const SETTLE_US: u64 = 200_000;
const MEASURE_US: u64 = 1_000_000;
/// Number of bisections in the search for the highest rate.
const HALVINGS: u32 = 9;

/// A static configuration and the load that it carries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Static {
    /// System that runs on it.
    pub system: System,
    /// Its part of the server.
    pub configuration: Configuration,
    /// Highest rate with a 99th percentile within the SLO, requests per second.
    pub at_slo_per_s: f64,
    /// Rate at which its threads would never pause.
    pub full_per_s: f64,
}

/// Objective for a given load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objective {
    /// Least power.
    Power,
    /// Highest throughput of the background job, at the nominal clock (TOCS 5.3).
    Background,
}

impl Static {
    /// Power of the package at a rate, on a hot chip, W.
    pub fn power_w(&self, rate_per_s: f64) -> f64 {
        let configuration = &self.configuration;
        let busy = power::busy(self.system, rate_per_s / self.full_per_s);
        let used = CoreLoad { threads: configuration.threads_per_core, busy };
        let cores = vec![used; configuration.cores as usize];
        power::package_w(space::khz_of(configuration), &cores, rate_per_s, 1.0)
    }

    /// The background job's rate on the remaining cores, relative to its rate on all of them.
    pub fn background(&self) -> f64 {
        f64::from(p::CORES - self.configuration.cores) / f64::from(p::CORES)
    }

    /// Whether it takes part for an objective.
    pub fn counts(&self, objective: Objective) -> bool {
        let nominal = p::CLOCKS_KHZ.last().map(|&khz| Clock::Khz(khz));
        objective == Objective::Power || self.configuration.clock == nominal
    }

    /// Its cost at a rate; less is better.
    fn cost(&self, objective: Objective, rate_per_s: f64) -> f64 {
        match objective {
            Objective::Power => self.power_w(rate_per_s),
            Objective::Background => -self.background(),
        }
    }
}

/// The load that each of these configurations carries, for a seed, computed on all hardware
/// threads.
pub fn sweep(system: System, workload: Workload, all: &[Configuration], seed: u64) -> Vec<Static> {
    let workers = thread::available_parallelism().map_or(1, usize::from).min(all.len().max(1));
    let one = |configuration: &Configuration| highest(system, workload, configuration, seed);
    let mut found: Vec<Option<Static>> = vec![None; all.len()];
    let part = all.len().div_ceil(workers).max(1);
    thread::scope(|scope| {
        for (found, all) in found.chunks_mut(part).zip(all.chunks(part)) {
            let fill = move || {
                found.iter_mut().zip(all).for_each(|(found, c)| *found = Some(one(c)));
            };
            scope.spawn(fill);
        }
    });
    found.into_iter().flatten().collect()
}

/// The highest rate of a configuration within the SLO.
pub fn highest(
    system: System,
    workload: Workload,
    configuration: &Configuration,
    seed: u64,
) -> Static {
    let place = Place {
        khz: space::khz_of(configuration),
        cores: configuration.cores,
        threads_on_core: configuration.threads_per_core,
        shared: false,
    };
    let threads = f64::from(configuration.cores * configuration.threads_per_core);
    let full_per_s = Cost::of(system, workload, place).most_per_s() * threads;
    let (mut low, mut high) = (0.0, full_per_s * 1.05);
    // Low rates are within the SLO: search the upper part first.
    let mut middle = full_per_s * 0.9;
    for _ in 0..HALVINGS {
        let within = p99_us(system, workload, configuration, middle, seed) <= p::SLO_US;
        *(if within { &mut low } else { &mut high }) = middle;
        middle = (low + high) / 2.0;
    }
    Static { system, configuration: *configuration, at_slo_per_s: low, full_per_s }
}

/// The 99th percentile of a static configuration at a constant rate, µs.
pub fn p99_us(
    system: System,
    workload: Workload,
    configuration: &Configuration,
    rate_per_s: f64,
    seed: u64,
) -> f64 {
    let mut server = Server::new(system, workload, seed);
    server.configure(configuration, false);
    server.advance(SETTLE_US, |_| rate_per_s);
    server.sample();
    server.advance(SETTLE_US + MEASURE_US, |_| rate_per_s);
    server.sample().p99_us
}

/// The best configuration among those that carry a rate within the SLO; if none does, the one with
/// the highest rate.
pub fn best(all: &[Static], objective: Objective, rate_per_s: f64) -> Option<&Static> {
    let comparable = || all.iter().filter(|s| s.counts(objective));
    let carry = comparable().filter(|s| s.at_slo_per_s >= rate_per_s);
    let cost = |s: &&Static| s.cost(objective, rate_per_s);
    carry
        .min_by(|a, b| cost(a).total_cmp(&cost(b)))
        .or_else(|| comparable().max_by(|a, b| a.at_slo_per_s.total_cmp(&b.at_slo_per_s)))
}

/// The configuration with all resources.
pub fn largest(all: &[Static]) -> Option<&Static> {
    all.iter().find(|s| s.configuration == space::most())
}

/// A segment of a frontier: rates at which one configuration is the best.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Segment {
    /// Lowest rate, requests per second.
    pub from_per_s: f64,
    /// Highest rate.
    pub to_per_s: f64,
    /// The best configuration.
    pub best: Static,
}

/// The frontier of these configurations from low to high rates.
pub fn frontier(all: &[Static], objective: Objective) -> Vec<Segment> {
    let counting = all.iter().filter(|s| s.counts(objective));
    let most = counting.map(|s| s.at_slo_per_s).fold(0.0, f64::max);
    let mut segments: Vec<Segment> = Vec::new();
    let mut rate = GRID_PER_S;
    while rate <= most {
        let Some(&best) = best(all, objective, rate) else { break };
        match segments.last_mut() {
            Some(last) if last.best == best => last.to_per_s = rate,
            _ => segments.push(Segment { from_per_s: rate, to_per_s: rate, best }),
        }
        rate += GRID_PER_S;
    }
    segments
}

/// Number of different configurations in a frontier.
pub fn contributing(frontier: &[Segment]) -> usize {
    let is_first = |i: &usize| frontier[..*i].iter().all(|s| s.best != frontier[*i].best);
    (0..frontier.len()).filter(is_first).count()
}

/// Configurations that differ in the clock only: all cores and hardware threads.
pub fn clock_only(all: &[Static]) -> Vec<Static> {
    let most = space::most();
    let everything = |s: &&Static| {
        let c = &s.configuration;
        (c.cores, c.threads_per_core) == (most.cores, most.threads_per_core)
    };
    all.iter().filter(everything).copied().collect()
}

/// The power that the best static configuration draws at a rate, W: a bound for dynamic
/// configurations.
pub fn power_bound_w(all: &[Static], rate_per_s: f64) -> f64 {
    best(all, Objective::Power, rate_per_s).map_or(0.0, |s| s.power_w(rate_per_s))
}

/// The highest rate of the background job at a load; 0 if the nominal clock does not carry the
/// load.
pub fn background_bound(all: &[Static], rate_per_s: f64) -> f64 {
    best(all, Objective::Background, rate_per_s)
        .filter(|s| s.at_slo_per_s >= rate_per_s)
        .map_or(0.0, Static::background)
}
