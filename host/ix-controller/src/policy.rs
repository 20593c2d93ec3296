//! Policies: the user's choices, conditions for moves on a ladder, and the ladder. Written as TOML.
mod file;
mod ladder;

pub use file::{BUILT_IN, PolicyError};
pub use ladder::{Add, Ladder, Level, Rungs};

use crate::{Clock, Configuration};

/// A policy of the user.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Name in logs.
    pub name: String,
    /// Upper bound on the queueing delay, µs.
    pub slo_us: f64,
    /// Order in which resources are added.
    pub ladder: Ladder,
    /// Throughput that a resource is assumed to add.
    pub gain: Gain,
    /// When to add resources.
    pub up: Up,
    /// When to remove resources.
    pub down: Down,
    /// Exceptions for some programs.
    pub dataplanes: Vec<Exception>,
}

/// Throughput that resources add, as the policy assumes. Cores and clocks are proportional.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gain {
    /// Gain of each further hardware thread of a core, relative to the first (the papers: 0.3).
    pub hyperthreads: f64,
    /// Gain of turbo, relative to the nominal clock.
    pub turbo: f64,
    /// Cost of a cycle besides its packets, relative to one packet. Small batches spend much time
    /// on it: a thread that is always busy with few packets per cycle can take more load.
    pub batching: f64,
}

/// When resources are added.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Up {
    /// Busy share from which resources are added before a queue builds; 1: never.
    pub busy_max: f64,
    /// Least time between two steps up, ms.
    pub hold_ms: f64,
}

/// When resources are removed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Down {
    /// The idle time must exceed the ratio of the configurations by this factor.
    pub margin: f64,
    /// Busy share that the lower rung may reach.
    pub busy_max: f64,
    /// The highest load of this many ms must fit into the lower rung.
    pub window_ms: f64,
    /// Mean number of packets that may wait.
    pub queue_max: f64,
    /// Most rungs of one step.
    pub rungs_max: u32,
    /// Time for which a rung that was too low for a load is not tried again with that load, s.
    pub regret_s: f64,
}

/// Exceptions for the dataplanes of a program.
#[derive(Clone, Debug, PartialEq)]
pub struct Exception {
    /// The program's name, without its folder.
    pub program: String,
    /// Its bound on the queueing delay, µs.
    pub slo_us: Option<f64>,
    /// Its share of cores that several dataplanes can use, relative to 1 of others.
    pub weight: f64,
}

impl Default for Gain {
    fn default() -> Gain {
        Gain { hyperthreads: 0.3, turbo: 0.16, batching: 0.3 }
    }
}

impl Default for Up {
    fn default() -> Up {
        Up { busy_max: 0.96, hold_ms: 200.0 }
    }
}

impl Default for Down {
    fn default() -> Down {
        Down {
            margin: 1.2,
            busy_max: 0.91,
            window_ms: 1000.0,
            queue_max: 8.0,
            rungs_max: 4,
            regret_s: 600.0,
        }
    }
}

impl Gain {
    /// Throughput of a configuration, in units of one hardware thread of one core at 1 kHz, or at
    /// the only clock there is. `nominal` is the clock that turbo adds to.
    pub fn capacity(&self, configuration: &Configuration, nominal: Option<Clock>) -> f64 {
        let threads = f64::from(configuration.threads_per_core.max(1));
        let core = 1.0 + self.hyperthreads * (threads - 1.0);
        let khz = |clock| match clock {
            Some(Clock::Khz(khz)) => f64::from(khz),
            _ => 1.0,
        };
        let clock = match configuration.clock {
            Some(Clock::Turbo) => khz(nominal) * (1.0 + self.turbo),
            clock => khz(clock),
        };
        f64::from(configuration.cores) * core * clock
    }

    /// Time of a packet in full batches, relative to its time in batches of `batch`.
    pub fn full_batches(&self, batch: f64, bound: u32) -> f64 {
        let packet = |batch: f64| 1.0 + self.batching / batch.max(1.0);
        if batch > 0.0 { packet(f64::from(bound)) / packet(batch) } else { 1.0 }
    }

    /// Throughput of one hardware thread while `together` threads of its core are in use; alone: 1.
    pub fn thread_weight(&self, together: usize) -> f64 {
        let n = together.max(1) as f64;
        (1.0 + self.hyperthreads * (n - 1.0)) / n
    }
}

impl Policy {
    /// The bound for a program.
    pub fn slo_us_of(&self, program: &str) -> f64 {
        self.exception(program).and_then(|e| e.slo_us).unwrap_or(self.slo_us)
    }

    /// A program's share of cores that several dataplanes want.
    pub fn weight_of(&self, program: &str) -> f64 {
        self.exception(program).map_or(1.0, |e| e.weight)
    }

    fn exception(&self, program: &str) -> Option<&Exception> {
        self.dataplanes.iter().find(|e| e.program == program)
    }
}
