//! A controller and the server together, in virtual time.
use crate::papers as p;
use crate::pareto::{self, Static};
use crate::pattern::Load;
use crate::server::{Sample, Server};
use ix_control::{Configuration, Controller, Platform, Step};

/// The controller's period, µs: 10 Hz (TOCS 4.6).
const PERIOD_US: u64 = 100_000;

/// One second of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Second {
    /// Its end, s.
    pub at_s: f64,
    /// What was measured.
    pub sample: Sample,
    /// The configuration at its end.
    pub configuration: Configuration,
}

/// A change of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// When, s.
    pub at_s: f64,
    /// Rungs before and after.
    pub rungs: (usize, usize),
    /// What is wanted now.
    pub configuration: Configuration,
    /// The controller's words.
    pub why: String,
}

/// A run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// Second by second.
    pub seconds: Vec<Second>,
    /// Changes of the configuration.
    pub events: Vec<Event>,
    /// Steps that the server refused.
    pub refused: Vec<String>,
    /// Migrations that were asked for.
    pub migrations: u64,
}

/// What a run comes to beside the best static configurations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Mean power, W.
    pub power_w: f64,
    /// Mean power of the largest static configuration under the same load, W.
    pub most_power_w: f64,
    /// Mean power of the best static configuration of each second, W.
    pub bound_power_w: f64,
    /// Mean rate of the background job, of its peak.
    pub background: f64,
    /// The same, of the best static configuration of each second.
    pub bound_background: f64,
    /// Times that the SLO was violated, whatever the seconds each took.
    pub violations: usize,
    /// Seconds in which it was.
    pub violated_s: usize,
}

/// Lets the controller drive the server through a load.
pub fn run(controller: &mut Controller, server: &mut Server, load: &Load) -> Run {
    let mut run = Run::default();
    let end_us = server.now_us() + (load.seconds() * 1e6) as u64;
    while server.now_us() < end_us {
        let now_us = server.now_us();
        turn(controller, server, now_us, &mut run);
        server.advance(now_us + PERIOD_US, |at_s| load.at(at_s));
        if server.now_us().is_multiple_of(1_000_000) {
            let at_s = server.now_us() as f64 / 1e6;
            let configuration = server.configuration();
            run.seconds.push(Second { at_s, sample: server.sample(), configuration });
        }
    }
    run
}

/// One turn of the controller's loop.
fn turn(controller: &mut Controller, server: &mut Server, now_us: u64, run: &mut Run) {
    let seen = server.observe(now_us);
    for decision in controller.tick(now_us, &seen) {
        if decision.rungs.0 != decision.rungs.1 {
            run.events.push(Event {
                at_s: now_us as f64 / 1e6,
                rungs: decision.rungs,
                configuration: decision.configuration,
                why: decision.why,
            });
        }
        let mut failed = None;
        for step in &decision.steps {
            run.migrations += u64::from(matches!(step, Step::Migrate { .. }));
            if let Err(e) = server.apply(now_us, decision.dataplane, step) {
                failed = Some(format!("{:.1} s: {step:?}: {e}", now_us as f64 / 1e6));
                break;
            }
        }
        match failed {
            None => controller.succeeded(decision.dataplane),
            Some(line) => {
                run.refused.push(line);
                controller.failed(now_us, decision.dataplane);
            }
        }
    }
}

impl Second {
    /// Whether it counts as a violation: the papers look at the pattern, not at the warm-up.
    pub fn violates(&self) -> bool {
        self.at_s > p::WARM_UP_S && self.sample.p99_us > p::SLO_US
    }
}

impl Run {
    /// The run beside static configurations. Averages are over the whole run, warm-up included, as
    /// ix-bench makes them; bounds are at the rates that were achieved.
    pub fn summary(&self, statics: &[Static]) -> Summary {
        let most = pareto::largest(statics);
        let mean = |of: &dyn Fn(&Second) -> f64| {
            self.seconds.iter().map(of).sum::<f64>() / self.seconds.len().max(1) as f64
        };
        let begins =
            |i: usize| self.seconds[i].violates() && !(i > 0 && self.seconds[i - 1].violates());
        Summary {
            power_w: mean(&|s| s.sample.power_w),
            most_power_w: mean(&|s| most.map_or(0.0, |m| m.power_w(s.sample.achieved_per_s))),
            bound_power_w: mean(&|s| pareto::power_bound_w(statics, s.sample.achieved_per_s)),
            background: mean(&|s| s.sample.background),
            bound_background: mean(&|s| pareto::background_bound(statics, s.sample.achieved_per_s)),
            violations: (0..self.seconds.len()).filter(|&i| begins(i)).count(),
            violated_s: self.seconds.iter().filter(|s| s.violates()).count(),
        }
    }
}

impl Summary {
    /// Energy saved against the largest static configuration, %.
    pub fn saved_percent(&self) -> f64 {
        100.0 * (1.0 - self.power_w / self.most_power_w)
    }

    /// What the best static configurations would save, %.
    pub fn bound_saved_percent(&self) -> f64 {
        100.0 * (1.0 - self.bound_power_w / self.most_power_w)
    }

    /// Energy saved, of what the best static configurations would save, %.
    pub fn energy_pareto_percent(&self) -> f64 {
        100.0 * self.saved_percent() / self.bound_saved_percent()
    }

    /// The background job's throughput, of that of the best static configurations, %.
    pub fn background_pareto_percent(&self) -> f64 {
        100.0 * self.background / self.bound_background
    }
}
