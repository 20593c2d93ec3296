//! `ix bench pareto`: all 224 static configurations of the papers' server, and their frontiers.
use super::model::{self, Results, cell, line};
use crate::args::ModelArgs;
use ix_model::pareto::{self, Objective, Segment, Static};
use ix_model::service::{System, Workload};
use ix_model::{Pattern, space};
use ix_report::problem::Result;
use serde_json::{Map, Value, json};

/// A frontier with its name.
struct Frontier {
    system: System,
    name: &'static str,
    objective: Objective,
    segments: Vec<Segment>,
}

/// Computes all configurations and prints.
pub fn main(args: &ModelArgs) -> Result<()> {
    run(args.seed).publish(&args.output)
}

/// The results.
pub fn run(seed: u64) -> Results {
    let sweep = |system| pareto::sweep(system, Workload::Usr, &space::all(), seed);
    let (ix, linux) = (sweep(System::Ix), sweep(System::Linux));
    let mut frontiers = Vec::new();
    for (system, all) in [(System::Ix, &ix), (System::Linux, &linux)] {
        let mut add = |name, all: &[Static], objective| {
            let segments = pareto::frontier(all, objective);
            frontiers.push(Frontier { system, name, objective, segments });
        };
        add("energy", all, Objective::Power);
        add("clock only", &pareto::clock_only(all), Objective::Power);
        add("background", all, Objective::Background);
    }
    let mut tables: Vec<_> = frontiers.iter().map(table).collect();
    tables.push(("the papers (paper / here)".to_owned(), beside_papers(&frontiers, &ix, &linux)));
    let mut notes = model::notes(seed);
    notes.extend([
        "power on a hot chip; background: the job's rate over that on all cores at 2.4 GHz, for \
         configurations at 2.4 GHz"
            .to_owned(),
        "Linux: interrupts and sleep, no gain by the second hardware thread".to_owned(),
    ]);
    let rows = frontiers.iter().flat_map(rows).collect();
    Results { bench: "pareto", rows, timelines: Vec::new(), tables, notes }
}

fn name(system: System) -> &'static str {
    match system {
        System::Ix => "IX",
        System::Linux => "Linux",
    }
}

/// A line for each configuration of a frontier.
fn table(frontier: &Frontier) -> (String, Vec<Vec<String>>) {
    let Frontier { system, name: kind, objective, segments } = frontier;
    let outcome = match objective {
        Objective::Power => "W",
        Objective::Background => "background %",
    };
    let mut lines = vec![line(&["configuration", "K requests/s", outcome, "carries K/s"])];
    for segment in segments {
        let best = &segment.best;
        let value = match objective {
            Objective::Power => cell(best.power_w(segment.to_per_s), 1),
            Objective::Background => cell(100.0 * best.background(), 1),
        };
        let range = format!("{:.0} – {:.0}", segment.from_per_s / 1e3, segment.to_per_s / 1e3);
        let carries = cell(best.at_slo_per_s / 1e3, 0);
        lines.push(vec![best.configuration.to_string(), range, value, carries]);
    }
    let count = pareto::contributing(segments);
    (format!("{}, {kind}: {count} configurations", name(*system)), lines)
}

/// A frontier as JSON: each segment with its first and last values.
fn rows(frontier: &Frontier) -> Vec<Map<String, Value>> {
    let system = name(frontier.system).to_lowercase();
    let row = |segment: &Segment| {
        let mut row = model::row(&system);
        let best = &segment.best;
        row.insert("frontier".into(), json!(frontier.name));
        model::add_configuration(&mut row, &best.configuration);
        row.insert("from_per_s".into(), json!(segment.from_per_s));
        row.insert("to_per_s".into(), json!(segment.to_per_s));
        row.insert("carries_per_s".into(), json!(best.at_slo_per_s));
        match frontier.objective {
            Objective::Power => {
                row.insert("power_from_w".into(), json!(best.power_w(segment.from_per_s)));
                row.insert("power_w".into(), json!(best.power_w(segment.to_per_s)));
            }
            Objective::Background => {
                row.insert("background_percent".into(), json!(100.0 * best.background()));
            }
        }
        row
    };
    frontier.segments.iter().map(row).collect()
}

fn beside_papers(frontiers: &[Frontier], ix: &[Static], linux: &[Static]) -> Vec<Vec<String>> {
    let most = |all: &[Static]| all.iter().map(|s| s.at_slo_per_s).fold(0.0, f64::max);
    let nominal = |all: &[Static]| {
        let is = |s: &&Static| {
            let c = &s.configuration;
            (c.cores, c.threads_per_core, space::khz_of(c)) == (8, 2, 2_400_000)
        };
        all.iter().find(is).map_or(0.0, |s| s.at_slo_per_s / 1e3)
    };
    let energy = pareto::contributing(&frontiers[0].segments).to_string();
    let largest = pareto::largest(ix).map_or(0.0, |s| s.power_w(s.at_slo_per_s.min(6.3e6)));
    let half = 0.54 * most(linux);
    let over = pareto::power_bound_w(ix, half) / pareto::power_bound_w(linux, half);
    let mut lines = vec![
        line(&["", "paper", "here"]),
        vec!["configurations on IX's energy frontier".into(), "45 (TOCS 5.3)".into(), energy],
        vec![
            "IX, 8 cores × 2 at 2.4 GHz, K requests/s at the SLO".into(),
            "5817 (table III)".into(),
            cell(nominal(ix), 0),
        ],
        vec!["Linux, same conditions".into(), "902 (table III)".into(), cell(nominal(linux), 0)],
        vec!["most power, W".into(), "92 to 94 (table IV)".into(), cell(largest, 1)],
        vec![
            "IX's frontier over Linux's at 54 % of Linux's most".into(),
            "under 0.5 (SoCC 3.1, Linux 3.16)".into(),
            cell(over, 2),
        ],
    ];
    let papers = [("59", "53"), ("59", "51"), ("54", "44")];
    for (pattern, (saved, background)) in Pattern::ALL.into_iter().zip(papers) {
        let (here_saved, here_background) = bounds(pattern, ix);
        lines.push(vec![
            format!("{}: most energy saved, %", pattern.name()),
            format!("{saved} (table IV)"),
            cell(here_saved, 1),
        ]);
        lines.push(vec![
            format!("{}: most background work, %", pattern.name()),
            format!("{background} (table IV)"),
            cell(here_background, 1),
        ]);
    }
    lines
}

/// What the best configuration of each second would save, and would leave to the background job, %.
fn bounds(pattern: Pattern, ix: &[Static]) -> (f64, f64) {
    let load = pattern.load(1);
    let seconds = 0..load.seconds() as u32;
    let rates: Vec<f64> = seconds.map(|s| load.at(f64::from(s) + 0.5)).collect();
    let sum = |of: &dyn Fn(f64) -> f64| rates.iter().map(|rate| of(*rate)).sum::<f64>();
    let most = sum(&|rate| pareto::largest(ix).map_or(0.0, |s| s.power_w(rate)));
    let least = sum(&|rate| pareto::power_bound_w(ix, rate));
    let background = sum(&|rate| pareto::background_bound(ix, rate));
    (100.0 * (1.0 - least / most), 100.0 * background / rates.len().max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Vec<Static> {
        let configurations = [(1, 1_200_000), (1, 2_400_000), (2, 1_200_000), (8, 2_400_000)];
        let make = |(cores, khz): (u32, u32)| Static {
            system: System::Ix,
            configuration: ix_controller::Configuration {
                cores,
                threads_per_core: 1,
                clock: Some(ix_controller::Clock::Khz(khz)),
            },
            at_slo_per_s: f64::from(cores) * f64::from(khz) / 10.0,
            full_per_s: f64::from(cores) * f64::from(khz) / 9.0,
        };
        configurations.map(make).to_vec()
    }

    #[test]
    fn tables_and_rows_have_a_line_a_segment() {
        let segments = pareto::frontier(&small(), Objective::Power);
        let frontier =
            Frontier { system: System::Ix, name: "energy", objective: Objective::Power, segments };
        let (heading, lines) = table(&frontier);
        assert!(heading.starts_with("IX, energy: 3 configurations"), "{heading}");
        assert_eq!(lines.len(), frontier.segments.len() + 1);
        assert!(lines.iter().all(|l| l.len() == 4));
        assert_eq!(lines[1][0], "1×1 at 1.20 GHz");
        assert_eq!(lines[1][1], "10 – 120");
        let rows = rows(&frontier);
        assert_eq!(rows.len(), frontier.segments.len());
        assert!(rows.iter().all(|row| row["system"] == "ix" && row["power_w"].is_number()));
        assert_eq!((&rows[0]["cores"], &rows[0]["clock_khz"]), (&json!(1), &json!(1_200_000)));
    }
}
