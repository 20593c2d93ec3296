//! A controller and the server together, in virtual time.
use crate::papers as p;
use crate::pareto::{self, Static};
use crate::pattern::Load;
use crate::server::{Sample, Server};
use ix_controller::{self as control, Configuration, ControlLoop, Policy, Step, TICK_US};

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

/// Lets the controller's own loop drive the server through a load.
pub fn run(policy: Policy, server: Server, load: &Load) -> Run {
    let mut run = Run::default();
    let mut control = ControlLoop::new(policy, server);
    let end_us = (load.seconds() * 1e6) as u64;
    loop {
        let now_us = control.platform().now_us();
        if now_us >= end_us {
            return run;
        }
        for event in control.turn(now_us) {
            run.note(now_us as f64 / 1e6, &event);
        }
        let server = control.platform();
        server.advance(now_us + TICK_US, |at_s| load.at(at_s));
        if server.now_us().is_multiple_of(1_000_000) {
            let at_s = server.now_us() as f64 / 1e6;
            let configuration = server.configuration();
            run.seconds.push(Second { at_s, sample: server.sample(), configuration });
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
    fn note(&mut self, at_s: f64, event: &control::Event) {
        if let control::Event::Failed { .. } = event {
            self.refused.push(format!("{at_s:.1} s: {event}"));
        }
        let Some(decision) = event.decision() else { return };
        let migrates = |step: &&Step| matches!(step, Step::Migrate { .. });
        self.migrations += decision.steps.iter().filter(migrates).count() as u64;
        if decision.rungs.0 != decision.rungs.1 {
            self.events.push(Event {
                at_s,
                rungs: decision.rungs,
                configuration: decision.configuration,
                why: decision.why.clone(),
            });
        }
    }

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
