//! The controller's log: lines for people, or objects of JSON.
use ix_controller::{Event, Observation, Step};
use ix_proto::control::Report;
use ix_report::control_log::{self, Decision, Entry, Line};
use ix_sys::say;
use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

/// Where the log goes.
pub(super) struct Log {
    json: bool,
    dry_run: bool,
}

/// What one dataplane does at a time.
pub(super) struct State {
    pub(super) seen: Observation,
    pub(super) report: Report,
    pub(super) power_w: Option<f64>,
}

impl Log {
    pub(super) fn new(json: bool, dry_run: bool) -> Log {
        Log { json, dry_run }
    }

    /// A line about anything else than a decision.
    pub(super) fn say(&self, line: &str) {
        if self.json {
            return put(Entry::Note { line: line.to_owned() });
        }
        say!("control: {line}");
    }

    /// A decision and what came of it.
    pub(super) fn event(&self, event: &Event) {
        if self.json {
            return put(self.entry(event));
        }
        // Of a dry run, that nothing was done is no news.
        match event {
            Event::Failed { decision, .. } if self.dry_run => {
                say!("control: dry run: {decision}");
            }
            event => say!("control: {event}"),
        }
    }

    /// The state of a dataplane; for programs only.
    pub(super) fn state(&self, state: &State) {
        if self.json {
            put(state.entry());
        }
    }

    fn entry(&self, event: &Event) -> Entry {
        let Some(decision) = event.decision() else {
            return Entry::Note { line: event.to_string() };
        };
        let error = match event {
            Event::Failed { error, .. } if !self.dry_run => Some(error.line.clone()),
            _ => None,
        };
        Entry::Decision(Decision {
            pid: decision.dataplane.0,
            program: decision.program.clone(),
            from: decision.rungs.0 + 1,
            to: decision.rungs.1 + 1,
            rungs: decision.top + 1,
            cores: decision.configuration.cores,
            threads_per_core: decision.configuration.threads_per_core,
            clock: decision.configuration.clock.map(|clock| clock.to_string()),
            why: decision.why.clone(),
            steps: decision.steps.iter().map(step).collect(),
            done: matches!(event, Event::Done(_)),
            error,
        })
    }
}

impl State {
    fn entry(&self) -> Entry {
        let seen = &self.seen;
        let running: Vec<_> = seen.elastic().map(|i| &seen.threads[i]).collect();
        let idle = running.iter().map(|t| t.idle[0]).sum::<f64>() / running.len().max(1) as f64;
        let delay_us = running.iter().map(|t| t.delay_us(seen.batch_bound)).fold(0.0, f64::max);
        Entry::State(control_log::State {
            pid: seen.dataplane.0,
            program: seen.program.clone(),
            policy: self.report.policy.clone(),
            slo_us: self.report.slo_us,
            rung: self.report.rung,
            rungs: self.report.rungs,
            threads: seen.elastic().collect(),
            rate_per_s: running.iter().map(|t| t.rate_per_s).sum(),
            delay_us,
            idle,
            power_w: self.power_w,
        })
    }
}

fn step(step: &Step) -> control_log::Step {
    use control_log::Step as Logged;
    match step {
        Step::Clock { cpus, clock } => {
            Logged::Clock { clock: clock.to_string(), cpus: cpus.clone() }
        }
        Step::Background { cpus } => Logged::Background { background: cpus.clone() },
        Step::Resume { thread } => Logged::Resume { resume: *thread },
        Step::Park { thread } => Logged::Park { park: *thread },
        Step::Migrate { from, to, groups } => {
            Logged::Migrate { migrate: groups.len(), from: *from, to: *to }
        }
    }
}

/// The reader may have gone; that does not end the loop.
fn put(entry: Entry) {
    if let Ok(line) = serde_json::to_string(&Line { time_s: now_s(), entry }) {
        let _ = writeln!(std::io::stdout().lock(), "{line}");
    }
}

fn now_s() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (since.as_secs_f64() * 1000.0).round() / 1000.0
}
