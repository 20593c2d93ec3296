//! `ix bench loss`: one bulk flow over a path that loses or reorders packets.
use super::flows::Receivers;
use super::{Harm, Place, row};
use crate::args::BenchArgs;
use ix_report::problem::Result;
use ix_report::report::Row;
use serde_json::json;

/// Faults of the path at each point.
const POINTS: [Harm; 6] = [
    Harm { loss_percent: 0.0, burst: 1.0, reorder_percent: 0.0 },
    Harm { loss_percent: 0.1, burst: 1.0, reorder_percent: 0.0 },
    Harm { loss_percent: 1.0, burst: 1.0, reorder_percent: 0.0 },
    Harm { loss_percent: 5.0, burst: 1.0, reorder_percent: 0.0 },
    Harm { loss_percent: 1.0, burst: 5.0, reorder_percent: 0.0 },
    Harm { loss_percent: 0.0, burst: 1.0, reorder_percent: 2.0 },
];
/// Points that `--quick` measures.
const QUICK: [usize; 3] = [0, 2, 5];

/// A sender.
#[derive(Clone, Copy)]
struct Sender {
    system: &'static str,
    congestion: &'static str,
}

pub(super) fn measure(
    place: &Place,
    args: &BenchArgs,
    notes: &mut Vec<String>,
) -> Result<Vec<Row>> {
    let (seconds, warmup, runs) = match args.quick {
        true => (args.seconds.unwrap_or(2.0), 0.5, args.runs.unwrap_or(1)),
        false => (args.seconds.unwrap_or(5.0), 1.0, args.runs.unwrap_or(3)),
    };
    let of_ix: &[&str] = if args.quick { &["cubic"] } else { &["cubic", "reno"] };
    let wanted: &[&str] = if args.quick { &["cubic"] } else { &["cubic", "reno", "bbr"] };
    let linux = place.of_linux(wanted, notes);
    let senders: Vec<Sender> = of_ix
        .iter()
        .map(|congestion| Sender { system: "ix", congestion })
        .chain(linux.iter().map(|congestion| Sender { system: "linux", congestion }))
        .collect();
    let harms: Vec<Harm> = match args.quick {
        true => QUICK.map(|index| POINTS[index]).to_vec(),
        false => POINTS.to_vec(),
    };
    let mut rows: Vec<(Harm, Sender, Row)> = Vec::new();
    for harm in harms {
        for &sender in &senders {
            let mut row = row(sender.system, sender.congestion, 1);
            row.also.extend([
                ("loss_percent", json!(harm.loss_percent)),
                ("burst_packets", json!(harm.burst)),
                ("reorder_percent", json!(harm.reorder_percent)),
            ]);
            rows.push((harm, sender, row));
        }
    }
    for run in 1..=runs {
        for (harm, sender, row) in &mut rows {
            eprintln!(
                "ix: run {run}/{runs}: {} {}, loss {} %, reordering {} %",
                sender.system, sender.congestion, harm.loss_percent, harm.reorder_percent
            );
            row.add(once(place, *harm, *sender, warmup, seconds, run as u64)?);
        }
    }
    notes.push("× Linux: the same congestion control on Linux, at the same point".to_owned());
    Ok(rows.into_iter().map(|(_, _, row)| row).collect())
}

fn once(
    place: &Place,
    harm: Harm,
    sender: Sender,
    warmup: f64,
    seconds: f64,
    seed: u64,
) -> Result<[(&'static str, f64); 3]> {
    let bridge = place.bridge(harm, seed)?;
    let client = place.lab.client_namespace();
    let rates = if sender.system == "ix" {
        let server = place.ix(sender.congestion)?;
        let rates = Receivers::start(client, &[server.address()])?.measure(warmup, seconds);
        server.stop();
        rates
    } else {
        let (_source, address) = place.linux(sender.congestion)?;
        Receivers::start(client, &[address])?.measure(warmup, seconds)
    };
    let [there, _] = bridge.finish();
    Ok([
        ("mbit_per_s", rates.iter().sum()),
        ("lost_packets", there.lost as f64),
        ("overflowed_packets", there.overflowed as f64),
    ])
}
