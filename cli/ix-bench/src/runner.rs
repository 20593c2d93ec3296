//! Measuring: every setup in turn, again and again, so that slow changes of the machine affect all
//! of them.
use super::breakdown::{breakdown, gate_ticks};
use super::busy::Busy;
use super::lab::{Host, Lab, Load, Server};
use super::plan::{Figures, On, Plan, Point};
use ix_broker::control::Client;
use ix_report::cost;
use ix_report::meter::{Count, Meter};
use ix_report::problem::Result;
use ix_report::report::Row;
use ix_sys::limits::{self, Limit, Resource};
use serde_json::Value;
use std::time::{Duration, Instant};

/// Figures of a client that become figures of a row.
const CLIENT_FIGURES: [&str; 10] = [
    "msgs_per_s",
    "connections_per_s",
    "connections_opened",
    "mbit_per_s",
    "mean_us",
    "p50_us",
    "p99_us",
    "p999_us",
    "lost",
    "errors",
];
/// Longest time for warm-up, connecting and ending, beyond the measurement.
const SLACK: Duration = Duration::from_secs(30);
/// After this many received packets there is load.
const LOAD_PACKETS: u64 = 200;
/// Slowest expected bulk transfer, bytes per second.
const SLOWEST_BULK: u64 = 4 << 20;
/// How long the gate is measured before there is load.
const GATE_TIME: Duration = Duration::from_millis(30);

/// The systems at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The server's end.
    pub server: Host,
    /// The client's end.
    pub client: Host,
}

impl Setup {
    fn takes(self, point: &Point) -> bool {
        match point.on {
            On::All => true,
            On::Ix => self.server.is_ix(),
            On::Linux => self.server.is_linux(),
        }
    }

    /// Most connections that a Linux end can have.
    fn connections_max(self) -> usize {
        if !self.server.is_linux() && self.client.is_ix() {
            return usize::MAX;
        }
        descriptors_max().saturating_sub(200)
    }
}

/// Measures every point with every setup; adds notes for the reader.
pub fn measure(
    lab: &Lab,
    plan: &Plan,
    setups: &[Setup],
    notes: &mut Vec<String>,
) -> Result<Vec<Row>> {
    let mut series: Vec<Vec<(&Point, Row)>> = setups
        .iter()
        .map(|&setup| {
            let points = plan.points.iter().filter(|point| setup.takes(point));
            points.map(|point| (point, row(lab, setup, point))).collect()
        })
        .collect();
    leave_out_what_linux_cannot(setups, &mut series, notes);
    for run in 1..=plan.runs {
        for (setup, rows) in setups.iter().zip(&mut series) {
            measure_setup(lab, plan, *setup, rows, &format!("run {run}/{}", plan.runs), notes)?;
        }
    }
    // The same point of all setups, side by side.
    let mut rows = Vec::new();
    for point in &plan.points {
        let same = |(other, _): &&(&Point, Row)| std::ptr::eq(*other, point);
        rows.extend(
            series.iter().filter_map(|rows| rows.iter().find(same)).map(|(_, r)| r.clone()),
        );
    }
    Ok(rows)
}

/// Many connections need as many descriptors on Linux.
fn leave_out_what_linux_cannot(
    setups: &[Setup],
    series: &mut [Vec<(&Point, Row)>],
    notes: &mut Vec<String>,
) {
    let mut left_out = false;
    for (setup, rows) in setups.iter().zip(series) {
        let before = rows.len();
        rows.retain(|(point, _)| point.connections <= setup.connections_max());
        left_out |= rows.len() < before;
    }
    if left_out {
        let limit = descriptors_max();
        notes.push(format!(
            "Linux may open only {limit} files here (ulimit -Hn), so it has fewer connections than IX"
        ));
    }
}

/// The descriptor limit of a process after raising it as far as allowed.
fn descriptors_max() -> usize {
    let Ok(limit) = limits::get(Resource::Descriptors) else { return 0 };
    let wish = Limit { hard: limit.hard.max(1 << 20), ..limit };
    // A refusal changes nothing.
    let raised = limits::set(Resource::Descriptors, wish).is_ok();
    if raised { wish.hard as usize } else { limit.hard as usize }
}

/// How an end waits for work.
fn mode(host: Host) -> &'static str {
    match host {
        Host::Ix(_) => "run to completion",
        Host::Linux { spin: true } => "spinning",
        Host::Linux { spin: false } => "blocking",
        Host::Peer => "its own",
    }
}

impl Setup {
    /// Makes a row for these two ends, without samples.
    pub(super) fn row(
        &self,
        lab: &Lab,
        connections: usize,
        size: u64,
        also: Vec<(&'static str, Value)>,
        settings: String,
    ) -> Row {
        Row {
            system: lab.system_of(self.server).to_owned(),
            domain: self.server.domain(),
            mode: mode(self.server).to_owned(),
            device: lab.device_of(self.server).to_owned(),
            client: self.client.system().to_owned(),
            client_mode: mode(self.client).to_owned(),
            connections,
            size,
            also,
            settings,
            samples: Vec::new(),
        }
    }
}

fn row(lab: &Lab, setup: Setup, point: &Point) -> Row {
    let settings = settings(lab, setup.server, point);
    let mut also = point.also.clone();
    also.extend(lab.is_v6().then(|| ("family", Value::from("ipv6"))));
    setup.row(lab, point.connections, point.size, also, settings)
}

/// Settings of the server's system.
fn settings(lab: &Lab, server: Host, point: &Point) -> String {
    let pinned = format!("{} pinned thread(s)", point.server.threads());
    let spin = match server {
        Host::Linux { spin } => spin,
        Host::Peer => {
            let words = lab.peer.as_ref().map_or(String::new(), |peer| peer.command.join(" "));
            return format!("pinned: {words}");
        }
        Host::Ix(domain) => {
            let batch = point.server.batch.map_or(String::new(), |b| format!(", batch {b}"));
            return format!("{pinned}, domain {}{batch}", domain.name());
        }
    };
    let udp = point.figures == Figures::Breakdown;
    format!(
        "{pinned}, SO_REUSEPORT, {}, {}, {}, offloads {}",
        if udp { "recvmmsg and sendmmsg" } else { "epoll, TCP_NODELAY" },
        if spin { "spinning in user mode" } else { "sleeping, no busy polling" },
        lab.congestion_control(),
        if point.offloads { "on" } else { "off" },
    )
}

/// One round of all points with one setup; consecutive points with equal settings share a server.
fn measure_setup(
    lab: &Lab,
    plan: &Plan,
    setup: Setup,
    rows: &mut [(&Point, Row)],
    progress: &str,
    notes: &mut Vec<String>,
) -> Result<()> {
    // A server full of TIME-WAIT would refuse the next client's connections.
    let ends = |point: &Point| point.also.iter().any(|(key, _)| *key == "close");
    let same = |(a, _): &(&Point, Row), (b, _): &(&Point, Row)| {
        a.server == b.server && (a.offloads, a.mtu) == (b.offloads, b.mtu) && !ends(a)
    };
    for group in rows.chunk_by_mut(same) {
        let first = group[0].0;
        lab.set_offloads(first.offloads)?;
        first.mtu.map_or(Ok(()), |mtu| lab.set_mtu(mtu))?;
        let mut server = lab.start(setup.server, &first.server)?;
        note_mode(&server, notes);
        for (point, row) in group {
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

/// Prints one line of progress.
fn tell(row: &Row, figures: &[(&'static str, f64)]) -> String {
    let value = |key| figures.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
    let wall = row.wall();
    let what = format!(
        "{} ({}{wall}), {} client ({}), {} × {} B",
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
    let bulk = point.figures == Figures::Bulk;
    let expected = if bulk { point.size / SLOWEST_BULK } else { 0 };
    let timeout = Duration::from_secs_f64(seconds * 2.0 + point.setup_seconds)
        + Duration::from_secs(expected)
        + SLACK;
    let gate = (point.figures == Figures::Breakdown).then(|| cost_of_gate(server)).flatten();
    let args = lab.echo_client(setup.client, server, &point.client);
    let mut load = lab.start_load(setup.client, &args)?;
    let meter = Meter::of_cpu(lab.cpus.0).ok();
    let spent = match bulk {
        true => None,
        false => Some(spend(lab, point, seconds, server, &mut load, meter.as_ref())?),
    };
    let result = load.finish(server, timeout)?;
    let mut figures: Vec<(&'static str, f64)> = CLIENT_FIGURES
        .iter()
        .filter(|&&key| is_of_interest(key, point.figures))
        .filter_map(|&key| Some((key, result.get(key)?.as_f64()?)))
        .collect();
    let value = |key| result.get(key).and_then(Value::as_f64).filter(|v| *v > 0.0);
    if let Some(spent) = spent {
        figures.extend(spent.figures(value("msgs_per_s"), point.figures, gate));
    }
    if let Some(p50_us) = value("p50_us").filter(|_| point.figures == Figures::OneWay) {
        figures.push(("one_way_us", p50_us / 2.0));
        // Both ways: a message out and the same message back.
        figures.push(("mbit_per_s", 16.0 * point.size as f64 / p50_us));
    }
    Ok(figures)
}

fn is_of_interest(key: &str, figures: Figures) -> bool {
    match key {
        "connections_per_s" => figures == Figures::Churn,
        "connections_opened" => figures == Figures::Rounds,
        "lost" => figures == Figures::Breakdown,
        _ => true,
    }
}

/// The server's counters, and ticks per microsecond; `None` on Linux.
pub(crate) fn usage(server: &Server) -> Option<(cost::Figures, f64)> {
    let stats = Client::connect(&server.control()?).and_then(|mut client| client.stats()).ok()?;
    Some((cost::Figures::total(&stats)?, stats.ticks_per_us as f64))
}

/// Ticks of crossing the gate, from a server without load that never waits.
fn cost_of_gate(server: &Server) -> Option<f64> {
    let (before, _) = usage(server)?;
    std::thread::sleep(GATE_TIME);
    gate_ticks(&usage(server)?.0.since(&before))
}

/// What the server's first hardware thread spent in the middle of a measurement, and the work of
/// all its elastic threads meanwhile.
struct Spent {
    seconds: f64,
    /// Busy share of the client's hardware thread.
    client_busy: Option<f64>,
    counted: Option<(Count, Count)>,
    used: Option<(cost::Figures, f64)>,
}

/// Reads the counters in the middle of the measurement, so that warm-up and ending are left out.
fn spend(
    lab: &Lab,
    point: &Point,
    seconds: f64,
    server: &Server,
    load: &mut Load,
    meter: Option<&Meter>,
) -> Result<Spent> {
    wait_for_load(point, server, load)?;
    let look = || (Instant::now(), meter.map(Meter::read), usage(server));
    std::thread::sleep(Duration::from_secs_f64(seconds * 0.3));
    let busy = Busy::of(lab.cpus.1);
    let (start, counted, used) = look();
    std::thread::sleep(Duration::from_secs_f64(seconds * 0.4));
    let (end, counted_after, used_after) = look();
    Ok(Spent {
        seconds: (end - start).as_secs_f64(),
        client_busy: busy.and_then(Busy::share),
        counted: counted.zip(counted_after),
        used: used_after
            .zip(used)
            .map(|((after, ticks_per_us), (before, _))| (after.since(&before), ticks_per_us)),
    })
}

/// Waits until there is more than connecting; a client on IX takes a while to start.
fn wait_for_load(point: &Point, server: &Server, load: &mut Load) -> Result<()> {
    let end = Instant::now() + SLACK + Duration::from_secs_f64(point.setup_seconds);
    let before = usage(server).map(|(usage, _)| usage.rx_packets);
    let begun = |load: &Load| match (point.figures, before) {
        (Figures::Rounds, _) => load.has_said("connections open, measuring"),
        (_, Some(before)) => {
            usage(server).is_none_or(|(now, _)| now.rx_packets >= before + LOAD_PACKETS)
        }
        _ => true,
    };
    while !begun(load) && Instant::now() < end {
        if load.check().is_err() {
            // Its message at the end is the better reason.
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

impl Spent {
    /// Cost of a message, shares of time, and for a breakdown the time of a packet.
    fn figures(
        &self,
        msgs_per_s: Option<f64>,
        kind: Figures,
        gate: Option<f64>,
    ) -> Vec<(&'static str, f64)> {
        let mut figures = Vec::new();
        let Some(rate) = msgs_per_s else { return figures };
        let messages = rate * self.seconds;
        if let Some((used, _)) = &self.used {
            figures.push(("cycles_per_msg", used.dataplane_ticks() as f64 / messages));
            let packets = (used.rx_packets + used.tx_packets) as f64;
            figures.push(("packets_per_msg", packets / messages));
            figures.extend(used.ratios());
        }
        if let Some((before, after)) = &self.counted {
            let per_message =
                |before: u64, after: u64| after.saturating_sub(before) as f64 / messages;
            figures.push(("cpu_cycles_per_msg", per_message(before.cycles, after.cycles)));
            let instructions = per_message(before.instructions, after.instructions);
            figures.push(("instructions_per_msg", instructions));
            if let (Some(before), Some(after)) = (before.cache_misses, after.cache_misses) {
                figures.push(("cache_misses_per_msg", per_message(before, after)));
            }
        }
        if kind == Figures::Breakdown {
            figures.extend(self.client_busy.map(|share| ("client_busy", share)));
            match &self.used {
                Some((used, ticks_per_us)) => figures.extend(breakdown(used, *ticks_per_us, gate)),
                // Linux reports the total only.
                None => figures.push(("total_ns", 1e9 / rate)),
            }
        }
        figures
    }
}
