//! `ix bench fairness`: flows that share a bottleneck.
use super::flows::Receivers;
use super::{PLAIN, Place, row};
use crate::args::BenchArgs;
use ix_report::problem::Result;
use ix_report::report::Row;
use serde_json::json;

/// Flows that share the bottleneck: of IX and of Linux, each with its congestion control.
#[derive(Clone, Copy)]
struct Party {
    ix: usize,
    of_ix: &'static str,
    linux: usize,
    of_linux: &'static str,
}

const PARTIES: [Party; 7] = [
    Party { ix: 4, of_ix: "cubic", linux: 0, of_linux: "" },
    Party { ix: 16, of_ix: "cubic", linux: 0, of_linux: "" },
    Party { ix: 4, of_ix: "reno", linux: 0, of_linux: "" },
    Party { ix: 0, of_ix: "", linux: 4, of_linux: "cubic" },
    Party { ix: 2, of_ix: "cubic", linux: 2, of_linux: "cubic" },
    Party { ix: 2, of_ix: "reno", linux: 2, of_linux: "reno" },
    Party { ix: 2, of_ix: "cubic", linux: 2, of_linux: "bbr" },
];
/// Points that `--quick` measures.
const QUICK: [usize; 2] = [0, 4];

impl Party {
    fn row(self) -> Row {
        let (system, congestion) = match (self.ix, self.linux) {
            (_, 0) => ("ix", self.of_ix.to_owned()),
            (0, _) => ("linux", self.of_linux.to_owned()),
            _ if self.of_ix == self.of_linux => ("ix+linux", self.of_ix.to_owned()),
            _ => ("ix+linux", format!("{} + {}", self.of_ix, self.of_linux)),
        };
        let mut row = row(system, &congestion, self.ix + self.linux);
        row.also.extend([("ix_flows", json!(self.ix)), ("linux_flows", json!(self.linux))]);
        row
    }
}

/// Jain's index: 1 if all flows get the same, 1/n if one gets all.
fn jain_index(rates: &[f64]) -> f64 {
    let (sum, squares) = rates.iter().fold((0.0, 0.0), |(s, q), r| (s + r, q + r * r));
    if squares > 0.0 { sum * sum / (rates.len() as f64 * squares) } else { 0.0 }
}

pub(super) fn measure(
    place: &Place,
    args: &BenchArgs,
    notes: &mut Vec<String>,
) -> Result<Vec<Row>> {
    let (seconds, warmup, runs) = match args.quick {
        true => (args.seconds.unwrap_or(6.0), 2.0, args.runs.unwrap_or(1)),
        false => (args.seconds.unwrap_or(15.0), 3.0, args.runs.unwrap_or(3)),
    };
    let known = place.of_linux(&["cubic", "reno", "bbr"], notes);
    let chosen = PARTIES.iter().enumerate().filter(|(index, party)| {
        let runs_here = party.linux == 0 || known.contains(&party.of_linux);
        runs_here && (!args.quick || QUICK.contains(index))
    });
    let mut rows: Vec<(Party, Row)> = chosen.map(|(_, party)| (*party, party.row())).collect();
    for run in 1..=runs {
        for (party, row) in &mut rows {
            eprintln!(
                "ix: run {run}/{runs}: {} flows of IX {}, {} of Linux {}",
                party.ix, party.of_ix, party.linux, party.of_linux
            );
            let rates = once(place, *party, warmup, seconds, run as u64)?;
            let sum: f64 = rates.iter().sum();
            let of_ix: f64 = rates[..party.ix].iter().sum();
            row.add([("mbit_per_s", sum), ("jain_index", jain_index(&rates))]);
            if party.ix > 0 && party.linux > 0 {
                row.add([("ix_share", of_ix / sum)]);
            }
        }
    }
    Ok(rows.into_iter().map(|(_, row)| row).collect())
}

/// Mbit/s of each flow, IX's first.
fn once(place: &Place, party: Party, warmup: f64, seconds: f64, seed: u64) -> Result<Vec<f64>> {
    let bridge = place.bridge(PLAIN, true, seed)?;
    let mut servers = Vec::new();
    let ix = if party.ix > 0 { Some(place.ix(party.of_ix)?) } else { None };
    servers.extend(ix.iter().flat_map(|server| vec![server.address(); party.ix]));
    let linux = if party.linux > 0 { Some(place.linux(party.of_linux)?) } else { None };
    servers.extend(linux.iter().flat_map(|(_, address)| vec![*address; party.linux]));
    let receivers = Receivers::start(place.lab.client_namespace(), &servers)?;
    let rates = receivers.measure(warmup, seconds);
    if let Some(server) = ix {
        server.stop();
    }
    drop(linux);
    bridge.finish();
    Ok(rates)
}

#[cfg(test)]
mod tests {
    use super::jain_index;

    #[test]
    fn the_index_is_jains() {
        assert_eq!(jain_index(&[5.0; 7]), 1.0);
        assert_eq!(jain_index(&[8.0, 0.0, 0.0, 0.0]), 0.25);
        assert!((jain_index(&[1.0, 3.0]) - 0.8).abs() < 1e-12);
        assert_eq!(jain_index(&[0.0, 0.0]), 0.0);
    }
}
