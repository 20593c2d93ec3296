//! `ix bench loss`: what IX and Linux carry over long, lossy and reordering paths.
use super::cells::{Cell, Work, cells};
use super::flows::Receivers;
use super::senders::Senders;
use super::{Place, rounds, row};
use crate::args::BenchArgs;
use crate::lab::Server;
use ix_report::problem::{Problem, Result};
use ix_report::report::{Row, median};
use serde_json::json;

/// IX carries at least this part of what Linux does.
const ENOUGH: f64 = 0.95;

pub(super) fn measure(
    place: &Place,
    args: &BenchArgs,
    notes: &mut Vec<String>,
) -> Result<Vec<Row>> {
    let (seconds, runs) = match args.quick {
        true => (args.seconds.unwrap_or(2.0), args.runs.unwrap_or(1)),
        false => (args.seconds.unwrap_or(3.0), args.runs.unwrap_or(5)),
    };
    let known = place.of_linux(&["cubic", "bbr"], notes);
    let linux = !known.is_empty();
    place.forget_paths()?;
    let mut rows: Vec<(Cell, Row)> = Vec::new();
    for cell in chosen(args)? {
        let both = known.contains(&cell.congestion);
        let systems = if both { &["ix", "linux"][..] } else { &["ix"] };
        rows.extend(systems.iter().map(|system| (cell, row_of(&cell, system))));
    }
    for run in 1..=runs {
        for (cell, row) in &mut rows {
            eprintln!("ix: run {run}/{runs}: {} {}", row.system, cell.name());
            let figures = once(place, cell, &row.system, seconds, run as u64)?;
            row.add(figures);
        }
    }
    if linux {
        notes.push("× Linux: Linux at the same point, with the same congestion control".to_owned());
        notes.push(verdict(&rows));
    }
    Ok(rows.into_iter().map(|(_, row)| row).collect())
}

/// The points that were asked for.
fn chosen(args: &BenchArgs) -> Result<Vec<Cell>> {
    let mut all = cells(args.quick && args.only.is_empty());
    if !args.only.is_empty() {
        let names: Vec<String> = all.iter().map(Cell::name).collect();
        // A whole name is this point alone, though others begin with it.
        let is_chosen = |name: &str, part: &String| {
            if names.contains(part) { name == part } else { name.contains(part) }
        };
        all.retain(|cell| args.only.iter().any(|part| is_chosen(&cell.name(), part)));
    }
    if all.is_empty() {
        let names: Vec<String> = cells(false).iter().map(Cell::name).collect();
        let why = format!("no name of a point contains {}", args.only.join(" or "));
        let mend = format!("take a part of one of these: {}", names.join(", "));
        return Err(Problem::new("cannot choose what to measure", why).mend(mend));
    }
    Ok(all)
}

fn row_of(cell: &Cell, system: &str) -> Row {
    let mut row = row(system, cell.congestion, cell.flows);
    let harm = cell.harm;
    row.also.extend([
        ("point", json!(cell.name())),
        ("work", json!(cell.work.name())),
        ("rtt_ms", json!(harm.rtt_us as f64 / 1e3)),
        ("loss_percent", json!(harm.loss_percent)),
        ("burst_packets", json!(harm.burst)),
        ("jitter_percent", json!(harm.jitter_percent)),
        ("reorder_percent", json!(harm.reorder_percent)),
    ]);
    if cell.work == Work::Replies {
        row.size = rounds::REPLY_BYTES as u64;
    }
    row
}

fn once(
    place: &Place,
    cell: &Cell,
    system: &str,
    seconds: f64,
    seed: u64,
) -> Result<Vec<(&'static str, f64)>> {
    let bridge = place.bridge(cell.harm, cell.work != Work::In, seed)?;
    let client = place.lab.client_namespace();
    let (ix, linux) = match system {
        "ix" => (Some(place.ix(cell.congestion)?), None),
        _ => (None, Some(place.linux(cell.congestion)?)),
    };
    let of_ix = ix.as_ref().map(Server::address);
    let Some(at) = of_ix.or(linux.as_ref().map(|(_, at)| *at)) else { return Ok(Vec::new()) };
    let (warmup, seconds) = cell.times(seconds);
    let mut figures = match cell.work {
        Work::Out => {
            let receivers = Receivers::start(client, &vec![at; cell.flows])?;
            vec![("mbit_per_s", receivers.measure(warmup, seconds).iter().sum())]
        }
        Work::In => {
            let senders = Senders::start(client, at, (cell.flows, cell.congestion))?;
            vec![("mbit_per_s", senders.measure(warmup, seconds))]
        }
        Work::Replies => {
            let rounds = rounds::measure(client, at, cell.flows, (warmup, seconds))?;
            let mbit_per_s = rounds.per_s * rounds::REPLY_BYTES as f64 * 8e-6;
            vec![("mbit_per_s", mbit_per_s), ("p50_us", rounds.p50_us), ("p99_us", rounds.p99_us)]
        }
    };
    drop(linux);
    if let Some(server) = ix {
        server.stop();
    }
    let ways = bridge.finish();
    let way = ways[usize::from(cell.work == Work::In)];
    figures.push(("lost_packets", way.lost as f64));
    figures.push(("overflowed_packets", way.overflowed as f64));
    Ok(figures)
}

/// In how many points IX carries enough, the mean of its ratios to Linux, and which fall short.
fn verdict(rows: &[(Cell, Row)]) -> String {
    let mut ratios = Vec::new();
    for pair in rows.windows(2) {
        let rate = |index: usize| pair[index].1.median("mbit_per_s");
        if pair[1].1.system == "linux"
            && let (Some(ix), Some(linux)) = (rate(0), rate(1))
            && linux > 0.0
        {
            ratios.push((pair[0].0.name(), ix / linux));
        }
    }
    let (count, mean) =
        (ratios.len(), ratios.iter().map(|(_, r)| r).sum::<f64>() / ratios.len().max(1) as f64);
    let below: Vec<String> = ratios
        .iter()
        .filter(|(_, ratio)| *ratio < ENOUGH)
        .map(|(name, ratio)| format!("{name} ({ratio:.2})"))
        .collect();
    let middle = median(&ratios.iter().map(|(_, r)| *r).collect::<Vec<_>>()).unwrap_or(0.0);
    let mut text = format!(
        "IX carries at least {ENOUGH} of what Linux does in {} of {count} points; mean {mean:.2}, \
         median {middle:.2}",
        count - below.len()
    );
    if !below.is_empty() {
        text += &format!("; less in {}", below.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verdict_counts_and_names_what_falls_short() {
        let cells = cells(true);
        let rates = [(95.0, 100.0), (90.0, 100.0), (150.0, 100.0)];
        let mut rows = Vec::new();
        for (cell, (ix, linux)) in cells.iter().zip(rates) {
            for (system, rate) in [("ix", ix), ("linux", linux)] {
                let mut row = row_of(cell, system);
                row.add([("mbit_per_s", rate)]);
                rows.push((*cell, row));
            }
        }
        let text = verdict(&rows);
        assert!(text.contains("in 2 of 3 points; mean 1.12, median 0.95"), "{text}");
        assert!(text.ends_with(&format!("less in {} (0.90)", cells[1].name())), "{text}");
    }

    #[test]
    fn a_part_of_a_name_chooses_and_a_wrong_one_is_refused() {
        let only = |text: &str| BenchArgs { only: vec![text.to_owned()], ..BenchArgs::default() };
        assert_eq!(chosen(&only("replies-80ms-1%-16")).unwrap().len(), 1);
        assert_eq!(chosen(&only("out-10ms-0%")).unwrap().len(), 1);
        assert!(chosen(&only("80ms")).unwrap().len() > 5);
        let refused = chosen(&only("90ms")).unwrap_err().to_string();
        assert!(refused.contains("90ms"), "{refused}");
    }
}
