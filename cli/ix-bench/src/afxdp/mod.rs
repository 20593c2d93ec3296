//! `ix bench afxdp`: each feature of AF_XDP with and without, on a veth pair.
mod feature;
mod link;

use clap::Args;
use feature::{FEATURES, Feature, Setting, USUAL};
use ix_report::machine::Machine;
use ix_report::output::OutputArgs;
use ix_report::problem::{Problem, Result};
use ix_report::report::median;
use ix_report::results::{Results, Row};
use ix_report::table::Table;
use link::{Link, Rate};
use serde_json::json;
use std::time::Duration;

pub const HELP: &str = "Sends bare frames to and fro between two AF_XDP sockets on a veth pair, \
    with each feature of the kernel and without it, in turn, and says which of them IX uses, what \
    each gives and why. Needs root and two hardware threads.\n\n\
    Examples:\n  \
    ix bench afxdp\n  \
    ix bench afxdp --quick --only need-wakeup,multi-buffer";

/// Bytes of the frames: a short message, and a full packet.
const SIZES: [usize; 2] = [106, 1514];
/// Seconds of a measurement and number of runs, with `--quick` and without.
const QUICK: (f64, usize) = (0.1, 1);
const USUALLY: (f64, usize) = (0.5, 5);

/// Flags of `ix bench afxdp`.
#[derive(Args, Debug, Clone)]
pub struct AfxdpArgs {
    /// Only these features, by their names in the table
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Duration of one measurement
    #[arg(long, value_name = "T")]
    pub seconds: Option<f64>,
    /// Measurements of each point; the medians are reported
    #[arg(long, value_name = "N")]
    pub runs: Option<usize>,
    /// Short runs
    #[arg(long)]
    pub quick: bool,
    /// Where the results go
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Measures and prints.
pub fn main(args: &AfxdpArgs) -> Result<()> {
    let chosen = choose(&args.only)?;
    let (seconds, runs) = if args.quick { QUICK } else { USUALLY };
    let time = Duration::from_secs_f64(args.seconds.unwrap_or(seconds).clamp(0.01, 60.0));
    let runs = args.runs.unwrap_or(runs).max(1);
    let link = Link::new()?;
    let (mut rows, mut modes) = (Vec::new(), Vec::new());
    for size in SIZES {
        let settings: Vec<Setting> = chosen.iter().filter_map(|feature| feature.other).collect();
        let mut usual = Vec::new();
        let mut others: Vec<Vec<Rate>> = settings.iter().map(|_| Vec::new()).collect();
        for run in 1..=runs {
            eprintln!("ix: frames of {size} bytes, run {run} of {runs}");
            let (rate, mode) = link.measure(USUAL, size, time)?;
            usual.push(rate);
            modes = vec![mode];
            for (setting, rates) in settings.iter().zip(&mut others) {
                let (rate, mode) = link.measure(*setting, size, time)?;
                rates.push(rate);
                modes.push(mode);
            }
        }
        let measured = chosen.iter().filter(|feature| feature.other.is_some());
        for (feature, other) in measured.zip(&others) {
            rows.push(row(feature, size, &usual, other));
        }
    }
    for feature in chosen.iter().filter(|feature| feature.other.is_none()) {
        rows.push(unmeasured(feature));
    }
    publish(args, rows, &chosen, &modes)
}

/// The features with these names; all if none is named.
fn choose(only: &[String]) -> Result<Vec<&'static Feature>> {
    let named = |name: &&String| FEATURES.iter().all(|feature| feature.name != **name);
    if let Some(unknown) = only.iter().find(named) {
        let names: Vec<&str> = FEATURES.iter().map(|feature| feature.name).collect();
        let what = format!("cannot measure the feature `{unknown}` of AF_XDP");
        return Err(Problem::new(what, format!("there are {}", names.join("; "))));
    }
    let is_chosen = |f: &&Feature| only.is_empty() || only.iter().any(|name| name == f.name);
    Ok(FEATURES.iter().filter(is_chosen).collect())
}

/// The figures of a feature: with it and without, and the median of the runs' ratios.
fn row(feature: &Feature, size: usize, usual: &[Rate], other: &[Rate]) -> Row {
    let (with, without) = if feature.used { (usual, other) } else { (other, usual) };
    let middle = |rates: &[Rate], at: usize| {
        median(&rates.iter().map(|rate| rate.echoes[at]).collect::<Vec<_>>()).unwrap_or(0.0)
    };
    // Of neighbours in time.
    let gives = |at: usize| {
        let pairs = with.iter().zip(without);
        let ratios: Vec<f64> = pairs.map(|(a, b)| a.echoes[at] / b.echoes[at]).collect();
        median(&ratios).map(|ratio| (ratio * 1000.0).round() / 1000.0)
    };
    let us = |rate: f64| (1e8 / rate.max(1.0)).round() / 100.0;
    let row = json!({
        "what": feature.name,
        "used": feature.used,
        "size": size,
        "trip_us_with": us(middle(with, 0)),
        "trip_us_without": us(middle(without, 0)),
        "gives_1": gives(0),
        "echoes_per_s_with": middle(with, 1).round(),
        "echoes_per_s_without": middle(without, 1).round(),
        "gives_64": gives(1),
        "runs": usual.len(),
        "why": feature.why,
    });
    ix_report::results::object(&row)
}

fn unmeasured(feature: &Feature) -> Row {
    ix_report::results::object(
        &json!({ "what": feature.name, "used": feature.used, "why": feature.why }),
    )
}

fn publish(args: &AfxdpArgs, rows: Vec<Row>, chosen: &[&Feature], modes: &[String]) -> Result<()> {
    let machine = Machine::read();
    let mut notes: Vec<String> =
        chosen.iter().map(|feature| format!("{}: {}", feature.name, feature.why)).collect();
    notes.push(
        "gives: echoes a second with the feature by those without, median of the runs' ratios; \
         neither end has a stack"
            .to_owned(),
    );
    let mut modes = modes.to_vec();
    modes.sort();
    modes.dedup();
    notes.extend(modes.iter().map(|mode| format!("measured in the mode {mode}")));
    let mut text = format!("{}\n\n{}\n", machine.summary(), table(&rows));
    notes.iter().for_each(|note| text += &format!("{note}\n"));
    args.output.publish(&text, || Results::new("afxdp", &machine, rows, notes).to_json())
}

fn table(rows: &[Row]) -> String {
    const COLUMNS: [&str; 7] = [
        "size",
        "trip_us_with",
        "trip_us_without",
        "gives_1",
        "echoes_per_s_with",
        "echoes_per_s_without",
        "gives_64",
    ];
    let heading = [
        "feature",
        "IX",
        "bytes",
        "trip µs",
        "without",
        "gives",
        "64: echoes/s",
        "without",
        "gives",
    ];
    let mut table = Table::new(&heading, &[0, 1]);
    for row in rows {
        let cell = |key: &&str| row.get(*key).map_or_else(|| "-".to_owned(), ToString::to_string);
        let used = if row.get("used") == Some(&json!(true)) { "uses it" } else { "does not" };
        let name = row.get("what").and_then(|name| name.as_str()).unwrap_or_default();
        let first = [name.to_owned(), used.to_owned()];
        table.row(first.into_iter().chain(COLUMNS.iter().map(cell)));
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_feature_differs_in_itself_alone() {
        let others: Vec<Setting> = FEATURES.iter().filter_map(|feature| feature.other).collect();
        for (number, other) in others.iter().enumerate() {
            assert!(*other != USUAL && !others[..number].contains(other), "{other:?}");
        }
        // What cannot be measured is not used.
        assert!(FEATURES.iter().all(|feature| feature.other.is_some() || !feature.used));
    }

    #[test]
    fn with_and_without_follow_from_what_is_usual() {
        let [usual, other] = [[100.0, 400.0], [200.0, 200.0]].map(|echoes| [Rate { echoes }]);
        let used = row(&FEATURES[0], 106, &usual, &other);
        assert!(FEATURES[0].used);
        assert_eq!((&used["gives_1"], &used["gives_64"]), (&json!(0.5), &json!(2.0)));
        assert_eq!(used["trip_us_with"], 10_000.0);
        let unused = FEATURES.iter().find(|feature| !feature.used).expect("one");
        let unused = row(unused, 106, &usual, &other);
        assert_eq!((&unused["gives_1"], &unused["gives_64"]), (&json!(2.0), &json!(0.5)));
        let table = table(&[used, unmeasured(&FEATURES[FEATURES.len() - 1])]);
        assert!(table.contains("uses it") && table.contains("does not"), "{table}");
    }

    #[test]
    fn features_are_chosen_by_name() {
        let names = |only: &[&str]| {
            let only: Vec<String> = only.iter().map(|name| (*name).to_owned()).collect();
            choose(&only).map(|all| all.len()).map_err(|e| e.to_string())
        };
        assert_eq!(names(&[]), Ok(FEATURES.len()));
        assert_eq!(names(&["busy poll", "native"]), Ok(2));
        assert!(names(&["zero"]).is_err_and(|e| e.contains("`zero`") && e.contains("busy poll")));
    }
}
