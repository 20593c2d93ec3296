//! Measuring: every setup in turn, again and again, so that a change of the machine's mood meets
//! all of them.
use super::lab::{Host, Lab, Server};
use super::meter::Meter;
use super::plan::{Plan, Point};
use crate::cost::Figures;
use crate::problem::Result;
use crate::report::Row;
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};

/// Figures of a client that become figures of a row.
const CLIENT_FIGURES: [&str; 7] =
    ["msgs_per_s", "connections_per_s", "mbit_per_s", "p50_us", "p99_us", "p999_us", "errors"];
/// Time on top of the measurement for warm-up, connecting and ending.
const SLACK: Duration = Duration::from_secs(30);
/// Received packets that are taken for load.
const LOAD_PACKETS: u64 = 200;
/// Slowest bulk transfer that is waited for, bytes per second.
const SLOWEST_BULK: u64 = 4 << 20;

/// Who measures against whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The server's end.
    pub server: Host,
    /// The client's end.
    pub client: Host,
}

/// Measures every point with every setup; adds to the notes what mode the devices are in.
pub fn measure(
    lab: &Lab,
    plan: &Plan,
    setups: &[Setup],
    notes: &mut Vec<String>,
) -> Result<Vec<Row>> {
    let mut rows: Vec<Vec<Row>> = setups
        .iter()
        .map(|&setup| plan.points.iter().map(|point| row(lab, setup, point)).collect())
        .collect();
    for run in 1..=plan.runs {
        for (setup, rows) in setups.iter().zip(&mut rows) {
            measure_setup(lab, plan, *setup, rows, &format!("run {run}/{}", plan.runs), notes)?;
        }
    }
    // The same point of all setups side by side.
    let points = 0..plan.points.len();
    Ok(points.flat_map(|point| rows.iter().map(move |rows| rows[point].clone())).collect())
}

fn row(lab: &Lab, setup: Setup, point: &Point) -> Row {
    let mode = |host: Host| match host {
        Host::Ix => "run to completion",
        Host::Linux { spin: true } => "spinning",
        Host::Linux { spin: false } => "blocking",
    };
    Row {
        system: setup.server.system().to_owned(),
        mode: mode(setup.server).to_owned(),
        device: lab.device_of(setup.server).to_owned(),
        client: setup.client.system().to_owned(),
        client_mode: mode(setup.client).to_owned(),
        connections: point.connections,
        size: point.size,
        also: point.also.clone(),
        samples: Vec::new(),
    }
}

/// One round of all points with one setup; neighbouring points that agree share a server.
fn measure_setup(
    lab: &Lab,
    plan: &Plan,
    setup: Setup,
    rows: &mut [Row],
    progress: &str,
    notes: &mut Vec<String>,
) -> Result<()> {
    let same = |a: &Point, b: &Point| a.server == b.server && a.offloads == b.offloads;
    let mut rows = rows.iter_mut();
    for points in plan.points.chunk_by(same) {
        lab.set_offloads(points[0].offloads)?;
        let mut server = lab.start_server(setup.server, &points[0].server)?;
        note_mode(&server, notes);
        for (point, row) in points.iter().zip(&mut rows) {
            let figures = measure_point(lab, plan.seconds, setup, point, &mut server)?;
            eprintln!("ix: {progress}: {}", tell(row, &figures));
            row.add(figures);
        }
        server.stop();
    }
    Ok(())
}

fn note_mode(server: &Server, notes: &mut Vec<String>) {
    let note = server.mode().map(|mode| format!("IX's device: {mode}"));
    notes.extend(note.filter(|note| !notes.contains(note)));
}

/// One line of progress.
fn tell(row: &Row, figures: &[(&'static str, f64)]) -> String {
    let value = |key| figures.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
    let what = format!(
        "{} ({}), {} client ({}), {} × {} B",
        row.system, row.mode, row.client, row.client_mode, row.connections, row.size
    );
    match (value("msgs_per_s"), value("p50_us"), value("mbit_per_s")) {
        (Some(rate), Some(p50), _) => format!("{what}: {rate:.0} msg/s, p50 {p50:.1} µs"),
        (_, _, Some(rate)) => format!("{what}: {rate:.0} Mbit/s"),
        _ => what,
    }
}

fn measure_point(
    lab: &Lab,
    seconds: f64,
    setup: Setup,
    point: &Point,
    server: &mut Server,
) -> Result<Vec<(&'static str, f64)>> {
    let bulk = point.client.iter().any(|arg| arg == "--bulk");
    let expected = if bulk { point.size / SLOWEST_BULK } else { 0 };
    let timeout = Duration::from_secs_f64(seconds * 2.0) + Duration::from_secs(expected) + SLACK;
    let meter = Meter::of_cpu(lab.cpus.0).ok();
    let control = server.control();
    let (result, costs) = std::thread::scope(|scope| {
        // In the middle of the measurement, so that warming up and ending are left out.
        let costs = scope.spawn(|| costs(meter.as_ref(), control.as_deref(), seconds));
        let result = lab.run_client(setup.client, server, &point.client, timeout);
        (result, costs.join().unwrap_or_default())
    });
    let result = result?;
    let mut figures: Vec<(&'static str, f64)> = CLIENT_FIGURES
        .iter()
        .filter(|&&key| key != "connections_per_s" || point.churns())
        .filter_map(|&key| Some((key, result.get(key)?.as_f64()?)))
        .collect();
    let value = |key| result.get(key).and_then(Value::as_f64).filter(|v| *v > 0.0);
    if let Some(rate) = value("msgs_per_s").filter(|_| !bulk) {
        figures.extend(costs.per_second.iter().map(|(key, cost)| (*key, cost / rate)));
    }
    figures.extend(costs.ratios);
    if let Some(p50_us) = value("p50_us").filter(|_| point.one_way) {
        figures.push(("one_way_us", p50_us / 2.0));
        // Both ways: a message out and the same message back.
        figures.push(("mbit_per_s", 16.0 * point.size as f64 / p50_us));
    }
    Ok(figures)
}

/// What the server spends while it is measured.
#[derive(Default)]
struct Costs {
    /// What a rate of messages divides, by the name of the quotient.
    per_second: Vec<(&'static str, f64)>,
    /// Shares of time and the average batch of IX.
    ratios: Vec<(&'static str, f64)>,
}

/// What the server's hardware thread spends: all of it by the hardware's counters, and the
/// dataplane's part (cycles of the time stamp counter, packets) by its own.
fn costs(meter: Option<&Meter>, control: Option<&Path>, seconds: f64) -> Costs {
    let stats = || control.and_then(|path| crate::control::ask(path, "stats").ok());
    let own = || stats().and_then(|stats| Figures::total(&stats));
    let look = || (Instant::now(), meter.map(Meter::read), own());
    wait_for_load(|| stats().and_then(|s| received(&s)));
    std::thread::sleep(Duration::from_secs_f64(seconds * 0.3));
    let (start, counted, figures) = look();
    std::thread::sleep(Duration::from_secs_f64(seconds * 0.4));
    let (end, counted_after, figures_after) = look();
    let per_second = |count: u64| count as f64 / (end - start).as_secs_f64();
    let mut costs = Costs::default();
    if let (Some(before), Some(after)) = (figures, figures_after) {
        let done = after.since(&before);
        costs.per_second.push(("cycles_per_msg", per_second(done.dataplane_ticks())));
        let packets = done.rx_packets + done.tx_packets;
        costs.per_second.push(("packets_per_msg", per_second(packets)));
        costs.ratios = done.ratios();
    }
    if let (Some(before), Some(after)) = (counted, counted_after) {
        let mut add = |key, before: u64, after: u64| {
            costs.per_second.push((key, per_second(after.saturating_sub(before))));
        };
        add("cpu_cycles_per_msg", before.cycles, after.cycles);
        add("instructions_per_msg", before.instructions, after.instructions);
        if let (Some(before), Some(after)) = (before.cache_misses, after.cache_misses) {
            add("cache_misses_per_msg", before, after);
        }
    }
    costs
}

/// Waits until more than connecting goes on; a client on IX takes a while to come up.
fn wait_for_load(received: impl Fn() -> Option<u64>) {
    let end = Instant::now() + SLACK;
    let Some(before) = received() else { return };
    while received().is_some_and(|now| now < before + LOAD_PACKETS) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Packets that the dataplane's threads received.
fn received(stats: &Value) -> Option<u64> {
    stats.get("threads")?.as_array()?.iter().map(|t| t.get("rx_packets")?.as_u64()).sum()
}
