//! `ix bench rates`: accuracy of rates, and isolation on a shared interface.
//!
//! How exactly a limit holds, how evenly paced packets leave, how a neighbour that floods the same
//! interface affects a tenant, how tenants share by weight, and how soon Linux gets the packets of
//! a vNIC that ends.
mod gaps;
mod limits;
pub(crate) mod shared;
mod tenants;

use crate::args::{Device, RatesArgs};
use crate::lab::Lab;
use ix_broker::control::Client;
use ix_proto::control::vnic::RateChange;
use ix_proto::control::{Answer, Request};
use ix_report::machine::Machine;
use ix_report::problem::{Problem, Result};
use ix_report::results::{Results, Row};
use ix_report::table::layout;
use serde_json::Value;
use std::path::Path;

/// Help of the benchmark.
pub const HELP: &str = "Measures rates and the sharing of an interface: how exactly a limit holds, \
    from 1 Mbit/s to the speed of the link; how evenly the packets of paced flows leave (a \
    histogram of their gaps); the p99 of a paced tenant alone and beside a neighbour that floods the \
    same interface; how tenants share a full interface by weight; how soon Linux receives the first \
    packet after a vNIC was deleted or its owner killed; and what an honest tenant loses by two \
    hostile ones, which must be next to nothing beside two honest ones. Needs root.";

/// Measures and prints.
pub fn main(args: &RatesArgs) -> Result<()> {
    if !ix_sys::process::is_root() {
        let why = "sharing an interface needs XDP programs";
        return Err(Problem::new("cannot measure rates without root", why).mend("run it as root"));
    }
    let machine = Machine::read();
    eprintln!("ix: {}", machine.summary());
    let lab = Lab::new(Device::Afxdp)?;
    let mut rows = Vec::new();
    let wanted = |part: &str| args.only.is_empty() || args.only.iter().any(|o| o == part);
    if let Some(unknown) = args.only.iter().find(|part| !PARTS.contains(&part.as_str())) {
        return Err(
            Problem::new("no such part", unknown).mend(format!("choose from {}", PARTS.join(", ")))
        );
    }
    if wanted("limits") {
        rows.extend(limits::measure(&lab, args.quick)?);
    }
    if wanted("gaps") {
        rows.extend(gaps::measure(&lab, args.quick)?);
    }
    if wanted("neighbour") {
        // A separate thread, because flooded packets are received on the hardware thread of their
        // sender.
        let neighbour = || shared::neighbour(&lab, args.quick);
        let rows_of = std::thread::scope(|scope| scope.spawn(neighbour).join());
        let panicked = |_| Err(Problem::new("cannot measure a neighbour", "its thread panicked"));
        rows.extend(rows_of.unwrap_or_else(panicked)?);
    }
    if wanted("weights") {
        rows.extend(shared::weights(&lab, args.quick)?);
    }
    if wanted("handover") {
        rows.extend(shared::handover(&lab, args.quick)?);
    }
    if wanted("tenants") {
        rows.extend(tenants::measure(&lab, args.quick)?);
    }
    publish(args, &machine, &rows)
}

/// Parts that may be measured alone.
const PARTS: [&str; 6] = ["limits", "gaps", "neighbour", "weights", "handover", "tenants"];

/// Sends a request to a dataplane or to `ix share`.
fn ask(control: &Path, request: &Request) -> Result<Answer> {
    Client::connect(control)?.ask(request)
}

/// Changes rates of a dataplane.
fn limit(control: &Path, tx: RateChange, flow: RateChange) -> Result<()> {
    let rx = RateChange::Keep;
    let request = Request::Rate { rx, tx, flow, vnic: None, queue: None, weight: None };
    ask(control, &request).map(drop)
}

/// Quantile of a sorted list.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * part).round() as usize).copied().unwrap_or(0.0)
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

fn publish(args: &RatesArgs, machine: &Machine, rows: &[Value]) -> Result<()> {
    let notes = [
        "limits: bits that arrive in whole seconds, relative to the rate: the median second, \
         those with the fewest and the most, the worst; enforced by the tenant's dataplane alone, and behind \
         `ix share`, where the kernel drops packets beyond the rate",
        "gaps: times between arrivals of one flow's packets in the kernel at the other end",
        "neighbour: a closed loop of one connection over 64 bytes, client and tenant on one hardware \
         thread, the neighbour and its receiver on another (if there is one): they share only the \
         interface and its links",
        "handover: from kill(2), or from the request to delete, to the first datagram that a socket \
         of Linux receives; disturbed: runs in which a hardware thread stood still for more than 1 ms, \
         measured by a real-time thread on each (a hypervisor takes them away); \
         most, undisturbed: of the other runs",
        "tenants: a closed loop with one tenant, beside two others that serve such loops, whose \
         programs compute without a pause, or that attack the first one, their own dataplanes and \
         the processor; each behind the default wall, all on one hardware thread, their clients on \
         another (if there is one); of_serving: the rate, of that beside two that serve",
        "link: its rate without a limit in its slowest and its fastest second",
        "domain none, but for tenants: the program can access the dataplane's memory",
    ];
    let all: Vec<Row> = rows.iter().filter_map(|row| row.as_object().cloned()).collect();
    let notes_of = notes.iter().map(ToString::to_string).collect();
    let report = Results::new("rates", machine, all, notes_of).to_json();
    let mut text = format!("{}\n", machine.summary());
    for part in PARTS {
        let of_part: Vec<&Value> = rows.iter().filter(|row| row["what"] == part).collect();
        if !of_part.is_empty() {
            text += &format!("\n{}\n", table(&of_part));
        }
    }
    notes.iter().for_each(|note| text += &format!("{note}\n"));
    args.output.publish(&text, || report)
}

/// Prints rows of one part, which have the same keys; a list gets its own line.
fn table(rows: &[&Value]) -> String {
    let columns: Vec<&String> = match rows.first().and_then(|row| row.as_object()) {
        Some(row) => row.iter().filter(|(_, v)| !v.is_array()).map(|(key, _)| key).collect(),
        None => return String::new(),
    };
    let mut lines = vec![columns.iter().map(|key| (*key).clone()).collect()];
    for row in rows {
        let cell = |key: &&String| match &row[key.as_str()] {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            value => value.to_string(),
        };
        lines.push(columns.iter().map(cell).collect::<Vec<_>>());
    }
    let mut text = layout(&lines);
    for row in rows {
        for (key, list) in row.as_object().into_iter().flatten().filter(|(_, v)| v.is_array()) {
            let list = list.as_array().into_iter().flatten().map(Value::to_string);
            text += &format!("{key}: {}\n", list.collect::<Vec<_>>().join(" "));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn quantiles_are_of_the_list() {
        assert_eq!(quantile(&[], 0.5), 0.0);
        assert_eq!(quantile(&[1.0, 2.0, 3.0], 0.5), 2.0);
        assert_eq!(quantile(&[1.0, 2.0, 3.0], 1.0), 3.0);
    }

    #[test]
    fn lists_stand_below_the_table() {
        let row = json!({ "what": "gaps", "flows": 1, "histogram": [1, 2] });
        let text = table(&[&row]);
        assert!(text.contains("flows") && text.contains("histogram: 1 2"), "{text}");
    }
}
