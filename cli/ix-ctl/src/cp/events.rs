//! The controller's log: lines for people, or objects of JSON.
use ix_controller::{Event, Observation, Step};
use ix_proto::control::Report;
use ix_sys::say;
use serde_json::{Value, json};
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
            return put(&json!({ "event": "note", "time_s": now_s(), "line": line }));
        }
        say!("control: {line}");
    }

    /// A decision and what came of it.
    pub(super) fn event(&self, event: &Event) {
        if self.json {
            return put(&self.to_json(event));
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
            put(&state.to_json());
        }
    }

    fn to_json(&self, event: &Event) -> Value {
        let Some(decision) = event.decision() else {
            return json!({ "event": "note", "time_s": now_s(), "line": event.to_string() });
        };
        let clock = decision.configuration.clock.map(|clock| clock.to_string());
        let failed = match event {
            Event::Failed { error, .. } if !self.dry_run => Some(error.line.clone()),
            _ => None,
        };
        json!({
            "event": "decision",
            "time_s": now_s(),
            "pid": decision.dataplane.0,
            "program": decision.program,
            "from": decision.rungs.0 + 1,
            "to": decision.rungs.1 + 1,
            "rungs": decision.top + 1,
            "cores": decision.configuration.cores,
            "threads_per_core": decision.configuration.threads_per_core,
            "clock": clock,
            "why": decision.why,
            "steps": decision.steps.iter().map(step).collect::<Vec<_>>(),
            "done": matches!(event, Event::Done(_)),
            "error": failed,
        })
    }
}

impl State {
    fn to_json(&self) -> Value {
        let seen = &self.seen;
        let running: Vec<_> = seen.elastic().map(|i| &seen.threads[i]).collect();
        let idle = running.iter().map(|t| t.idle[0]).sum::<f64>() / running.len().max(1) as f64;
        let delay_us = running.iter().map(|t| t.delay_us(seen.batch_bound)).fold(0.0, f64::max);
        json!({
            "event": "state",
            "time_s": now_s(),
            "pid": seen.dataplane.0,
            "program": seen.program,
            "policy": self.report.policy,
            "slo_us": self.report.slo_us,
            "rung": self.report.rung,
            "rungs": self.report.rungs,
            "threads": seen.elastic().collect::<Vec<_>>(),
            "rate_per_s": running.iter().map(|t| t.rate_per_s).sum::<f64>(),
            "delay_us": delay_us,
            "idle": idle,
            "power_w": self.power_w,
        })
    }
}

fn step(step: &Step) -> Value {
    match step {
        Step::Clock { cpus, clock } => json!({ "clock": clock.to_string(), "cpus": cpus }),
        Step::Background { cpus } => json!({ "background": cpus }),
        Step::Resume { thread } => json!({ "resume": thread }),
        Step::Park { thread } => json!({ "park": thread }),
        Step::Migrate { from, to, groups } => {
            json!({ "migrate": groups.len(), "from": from, "to": to })
        }
    }
}

/// The reader may have gone; that does not end the loop.
fn put(value: &Value) {
    let _ = writeln!(std::io::stdout().lock(), "{value}");
}

fn now_s() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (since.as_secs_f64() * 1000.0).round() / 1000.0
}
