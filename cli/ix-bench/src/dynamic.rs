//! `ix bench dynamic`: the controller on the papers' server, through their three load patterns.
use super::model::{self, Results, line};
use crate::args::DynamicArgs;
use ix_controller::Policy;
use ix_model::pareto::{self, Static};
use ix_model::run::{Run, Summary, run};
use ix_model::service::{System, Workload};
use ix_model::{Pattern, Server, space};
use ix_report::problem::{Problem, Result};
use ix_report::results::{Change, Timeline};
use serde_json::{Map, Value, json};

/// The papers' table IV for one pattern, with their rounding.
#[derive(Clone, Copy)]
struct TableIv {
    /// Power with all on, measured, and at the frontier, W.
    most_w: f64,
    measured_w: f64,
    bound_w: f64,
    /// Saved power, relative to all on: measured, at the frontier, and their ratio, %.
    saved: f64,
    bound_saved: f64,
    of_bound: f64,
    /// Rate of the background job, relative to its peak: at the frontier, and measured, %.
    bound_background: f64,
    background: f64,
}

const fn table_iv(watts: [f64; 3], saved: [f64; 3], background: [f64; 2]) -> TableIv {
    let [most_w, measured_w, bound_w] = watts;
    let [saved, bound_saved, of_bound] = saved;
    let [bound_background, background] = background;
    TableIv {
        most_w,
        measured_w,
        bound_w,
        saved,
        bound_saved,
        of_bound,
        bound_background,
        background,
    }
}

/// In the order of [`Pattern::ALL`].
const TABLE_IV: [TableIv; 3] = [
    table_iv([92.0, 43.0, 38.0], [54.0, 59.0, 92.0], [53.0, 47.0]),
    table_iv([93.0, 46.0, 38.0], [51.0, 59.0, 86.0], [51.0, 43.0]),
    table_iv([94.0, 51.0, 43.0], [46.0, 54.0, 85.0], [44.0, 35.0]),
];
/// SLO violations in the papers' six runs (TOCS 5.4).
const VIOLATIONS: usize = 25;

/// One run with its results.
struct Dynamic {
    pattern: Pattern,
    policy: Policy,
    run: Run,
    summary: Summary,
}

/// Runs the benchmark and prints the results.
pub fn main(args: &DynamicArgs) -> Result<()> {
    let policies = args.policy.iter().map(|name| policy(name)).collect::<Result<Vec<_>>>()?;
    let patterns = args.pattern.iter().map(|name| pattern(name)).collect::<Result<Vec<_>>>()?;
    measure(&patterns, &policies, args.model.seed).publish(&args.model.output)
}

/// Finds a built-in policy, or reads a file.
fn policy(name: &str) -> Result<Policy> {
    if let Some(policy) = Policy::built_in(name) {
        return Ok(policy);
    }
    let cannot = || format!("cannot use the policy {name}");
    let text = std::fs::read_to_string(name).map_err(|e| {
        Problem::new(cannot(), e)
            .mend("use energy, consolidation, minmax or the path of a policy file")
    })?;
    Policy::parse(&text).map_err(|e| Problem::new(cannot(), e))
}

fn pattern(name: &str) -> Result<Pattern> {
    Pattern::ALL
        .into_iter()
        .find(|pattern| pattern.name() == name)
        .ok_or_else(|| Problem::new("no such pattern", name).mend("use slope, step or sine+noise"))
}

/// Runs all patterns under all policies.
pub fn measure(patterns: &[Pattern], policies: &[Policy], seed: u64) -> Results {
    let statics = pareto::sweep(System::Ix, Workload::Usr, &space::all(), seed);
    let mut all = Vec::new();
    for policy in policies {
        for &pattern in patterns {
            eprintln!("ix: {}, {}", policy.name, pattern.name());
            let server = Server::new(System::Ix, Workload::Usr, seed);
            let run = run(policy.clone(), server, &pattern.load(seed));
            let summary = run.summary(&statics);
            all.push(Dynamic { pattern, policy: policy.clone(), run, summary });
        }
    }
    let mut notes = model::notes(seed);
    notes.extend([
        "each run: one minute at the pattern's first rate, then its four minutes; means are over \
         all five, as in the papers' scripts, violations over the pattern only"
            .to_owned(),
        "a violation is a second, or several in a row, with a 99th percentile above 500 µs; a bound \
         is the result of the best static configuration of each second"
            .to_owned(),
    ]);
    for dynamic in all.iter().filter(|d| !d.run.refused.is_empty()) {
        notes.push(format!(
            "{}, {}: {} steps refused, the first: {}",
            dynamic.policy.name,
            dynamic.pattern.name(),
            dynamic.run.refused.len(),
            dynamic.run.refused[0]
        ));
    }
    let violations: usize = all.iter().map(|d| d.summary.violations).sum();
    notes.push(format!(
        "SLO violations in {} runs: {violations} (the papers: {VIOLATIONS} in six)",
        all.len()
    ));
    Results {
        bench: "dynamic",
        rows: all.iter().map(row).collect(),
        timelines: all.iter().map(|dynamic| timeline(dynamic, &statics)).collect(),
        tables: vec![
            ("Table IV, energy (paper / here)".to_owned(), energy(&all)),
            ("Table IV, background job (paper / here)".to_owned(), background(&all)),
            ("Changes (paper: table V)".to_owned(), changes(&all)),
        ],
        notes,
    }
}

fn of_papers(pattern: Pattern) -> TableIv {
    let index = Pattern::ALL.iter().position(|p| *p == pattern).unwrap_or(0);
    TABLE_IV[index]
}

fn energy(all: &[Dynamic]) -> Vec<Vec<String>> {
    let head = ["pattern", "policy", "most W", "measured W", "bound W", "saved %", "bound %"];
    let mut lines = vec![line(&head)];
    lines[0].extend(line(&["of the bound %", "violations"]));
    for dynamic in all.iter().filter(|d| !d.policy.ladder.background) {
        let s = &dynamic.summary;
        let paper = of_papers(dynamic.pattern);
        let pair = |paper: f64, here: f64| format!("{paper:.0} / {here:.1}");
        lines.push(vec![
            dynamic.pattern.name().to_owned(),
            dynamic.policy.name.clone(),
            pair(paper.most_w, s.most_power_w),
            pair(paper.measured_w, s.power_w),
            pair(paper.bound_w, s.bound_power_w),
            pair(paper.saved, s.saved_percent()),
            pair(paper.bound_saved, s.bound_saved_percent()),
            pair(paper.of_bound, s.energy_pareto_percent()),
            s.violations.to_string(),
        ]);
    }
    lines
}

fn background(all: &[Dynamic]) -> Vec<Vec<String>> {
    let head = ["pattern", "policy", "measured %", "bound %", "of the bound %", "violations"];
    let mut lines = vec![line(&head)];
    for dynamic in all.iter().filter(|d| d.policy.ladder.background) {
        let s = &dynamic.summary;
        let paper = of_papers(dynamic.pattern);
        let pair = |paper: f64, here: f64| format!("{paper:.0} / {here:.1}");
        lines.push(vec![
            dynamic.pattern.name().to_owned(),
            dynamic.policy.name.clone(),
            pair(paper.background, 100.0 * s.background),
            pair(paper.bound_background, 100.0 * s.bound_background),
            pair(100.0 * paper.background / paper.bound_background, s.background_pareto_percent()),
            s.violations.to_string(),
        ]);
    }
    lines
}

/// How often the configuration changed and flow groups moved.
fn changes(all: &[Dynamic]) -> Vec<Vec<String>> {
    let head = ["pattern", "policy", "rungs up", "rungs down", "migrations", "violated s"];
    let mut lines = vec![line(&head)];
    for dynamic in all {
        let ups = dynamic.run.events.iter().filter(|e| e.rungs.1 > e.rungs.0).count();
        lines.push(vec![
            dynamic.pattern.name().to_owned(),
            dynamic.policy.name.clone(),
            ups.to_string(),
            (dynamic.run.events.len() - ups).to_string(),
            dynamic.run.migrations.to_string(),
            dynamic.summary.violated_s.to_string(),
        ]);
    }
    lines
}

fn row(dynamic: &Dynamic) -> Map<String, Value> {
    let (mut row, s) = (model::row("ix"), &dynamic.summary);
    let mut add = |key: &str, value: Value| row.insert(key.to_owned(), value);
    add("pattern", json!(dynamic.pattern.name()));
    add("policy", json!(dynamic.policy.name));
    if dynamic.policy.ladder.background {
        add("background_percent", json!(100.0 * s.background));
        add("bound_percent", json!(100.0 * s.bound_background));
        add("pareto_percent", json!(s.background_pareto_percent()));
    } else {
        add("saved_percent", json!(s.saved_percent()));
        add("bound_percent", json!(s.bound_saved_percent()));
        add("pareto_percent", json!(s.energy_pareto_percent()));
        add("most_power_w", json!(s.most_power_w));
        add("bound_power_w", json!(s.bound_power_w));
    }
    add("power_w", json!(s.power_w));
    add("violations", json!(s.violations));
    add("violated_s", json!(s.violated_s));
    add("migrations", json!(dynamic.run.migrations));
    row
}

/// The run second by second, with the changes; time 0 is the start of the pattern.
fn timeline(dynamic: &Dynamic, statics: &[Static]) -> Timeline {
    let seconds = &dynamic.run.seconds;
    let most = pareto::largest(statics);
    let list = |of: &dyn Fn(&ix_model::run::Second) -> f64| -> Vec<f64> {
        seconds.iter().map(|second| (of(second) * 1000.0).round() / 1000.0).collect()
    };
    let warm_up = ix_model::papers::WARM_UP_S;
    let events = (dynamic.run.events.iter())
        .map(|event| Change {
            at_s: event.at_s - warm_up,
            up: event.rungs.1 > event.rungs.0,
            configuration: event.configuration.to_string(),
            why: event.why.to_string(),
        })
        .collect();
    let achieved = |s: &ix_model::run::Second| s.sample.achieved_per_s;
    Timeline {
        pattern: dynamic.pattern.name().to_string(),
        policy: dynamic.policy.name.to_string(),
        background: dynamic.policy.ladder.background,
        at_s: list(&|s| s.at_s - warm_up),
        offered_per_s: list(&|s| s.sample.offered_per_s),
        achieved_per_s: list(&achieved),
        p99_us: list(&|s| s.sample.p99_us),
        power_w: list(&|s| s.sample.power_w),
        bound_power_w: list(&|s| pareto::power_bound_w(statics, achieved(s))),
        most_power_w: list(&|s| most.map_or(0.0, |m| m.power_w(achieved(s)))),
        background_percent: list(&|s| 100.0 * s.sample.background),
        bound_background_percent: list(&|s| 100.0 * pareto::background_bound(statics, achieved(s))),
        events,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_do_not_exist_are_told_with_those_that_do() {
        let told = pattern("sinus").expect_err("none").to_string();
        assert!(told.contains("sinus") && told.contains("sine+noise"), "{told}");
        let told = policy("/nowhere").expect_err("none").to_string();
        assert!(told.contains("/nowhere") && told.contains("consolidation"), "{told}");
        assert!(policy("energy").is_ok() && pattern("step").is_ok());
    }

    #[test]
    fn a_row_and_a_line_for_each_run() {
        let summary = Summary {
            power_w: 40.0,
            most_power_w: 92.0,
            bound_power_w: 38.0,
            background: 0.45,
            bound_background: 0.5,
            violations: 3,
            violated_s: 4,
        };
        let make = |name: &str| Dynamic {
            pattern: Pattern::Slope,
            policy: policy(name).expect("known"),
            run: Run::default(),
            summary,
        };
        let all = [make("energy"), make("consolidation")];
        let (energy, background) = (energy(&all), background(&all));
        assert_eq!((energy.len(), background.len(), changes(&all).len()), (2, 2, 3));
        assert_eq!(energy[1][3..5], ["43 / 40.0", "38 / 38.0"]);
        assert_eq!(background[1][4], "89 / 90.0");
        let row = row(&all[0]);
        for key in ["pattern", "policy", "saved_percent", "pareto_percent", "violations"] {
            assert!(row.contains_key(key), "{key}");
        }
        let row = super::row(&all[1]);
        assert_eq!(row["background_percent"], 45.0);
        assert!((row["pareto_percent"].as_f64().expect("number") - 90.0).abs() < 1e-9);
    }
}
