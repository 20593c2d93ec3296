//! `ix bench memcached`: throughput against latency for the ETC and USR workloads of Atikoglu et
//! al., unloaded latency, and the highest rate whose 99th percentile stays below 500 µs.
//!
//! The load is open loop. Its latency is measured by a separate client with little load, as in the
//! papers. Rates are shares of the same server's closed-loop rate, so that each server is measured
//! over its whole range.
use super::installed;
use super::lab::{Host, Lab, Server};
use super::plan::{length, or};
use super::runner::Setup;
use super::serve::{Program, Serve};
use crate::args::{BenchArgs, Client, ServerKind};
use ix_report::problem::{Problem, Result};
use ix_report::report::Row;
use serde_json::json;
use std::ffi::OsString;
use std::time::Duration;

/// Connections, and requests in flight on each, as in IX's bench_memcached.
const CONNECTIONS: usize = 2720;
const QUICK_CONNECTIONS: usize = 64;
const DEPTH: &str = "4";
const RECORDS: u32 = 1_000_000;
const QUICK_RECORDS: u32 = 20_000;
/// The measuring client.
const MEASURE: [&str; 4] = ["--measure-connections", "32", "--measure-rate", "2000"];
/// Requests per second of an unloaded server, besides the measuring client's.
const UNLOADED_PER_S: f64 = 1000.0;
/// The service-level agreement: p99, µs.
const SLA_US: f64 = 500.0;
/// Rates as shares of the peak, percent.
const SHARES: [u32; 9] = [10, 20, 30, 40, 50, 60, 70, 80, 90];
const QUICK_SHARES: [u32; 3] = [25, 50, 80];
/// Workloads, with the mean size of their values.
const WORKLOADS: [(&str, u64); 2] = [("etc", 194), ("usr", 2)];
/// Longest time for storing the records and for ending, beyond the measurement.
const SLACK: Duration = Duration::from_secs(90);

/// What is measured, and how.
struct Plan {
    connections: usize,
    records: u32,
    shares: &'static [u32],
    /// Steps of the search for the highest rate.
    steps: u32,
    seconds: f64,
    runs: usize,
}

/// One server with one workload.
struct Series {
    program: Program,
    setup: Setup,
    workload: &'static str,
    /// Closed-loop rate, requests per second; known after the first run.
    peak_per_s: Option<f64>,
    unloaded: Row,
    peak: Row,
    rates: Vec<Row>,
    best: Row,
    /// About how many requests the server has received.
    requests: f64,
}

/// Figures of one load.
type Figures = Vec<(&'static str, f64)>;

/// Measures all points; returns the rows.
pub fn measure(lab: &Lab, args: &BenchArgs, notes: &mut Vec<String>) -> Result<Vec<Row>> {
    let (seconds, runs) = length(args);
    let plan = Plan {
        connections: or(&args.connections, &[usual(args, QUICK_CONNECTIONS, CONNECTIONS)])[0],
        records: usual(args, QUICK_RECORDS, RECORDS),
        shares: if args.quick { &QUICK_SHARES } else { &SHARES },
        steps: usual(args, 2, 5),
        seconds,
        runs,
    };
    let mut all = Vec::new();
    for (workload, value_bytes) in WORKLOADS {
        for (program, setup) in contestants(lab, args, notes)? {
            all.push(Series::new(lab, &plan, program, setup, workload, value_bytes));
        }
    }
    for run in 1..=plan.runs {
        for series in &mut all {
            series.measure(lab, &plan, &format!("run {run}/{}", plan.runs))?;
        }
    }
    notes.push(format!(
        "{} records, {DEPTH} requests in flight on each of {} connections; latencies are those of \
         a separate client with 32 connections and 2000 requests/s; size: mean of the values",
        plan.records, plan.connections
    ));
    notes.extend(all.iter().map(Series::remark));
    Ok(all.into_iter().flat_map(Series::into_rows).collect())
}

fn usual<T>(args: &BenchArgs, quick: T, full: T) -> T {
    if args.quick { quick } else { full }
}

/// The servers: ours on Linux and on IX, and memcached on both if it is installed.
fn contestants(
    lab: &Lab,
    args: &BenchArgs,
    notes: &mut Vec<String>,
) -> Result<Vec<(Program, Setup)>> {
    let linux = Setup { server: Host::BLOCKING, client: Host::BLOCKING };
    let mut all = vec![(Program::Kv, linux)];
    if !args.quick {
        all.push((Program::Kv, Setup { server: Host::SPINNING, client: Host::SPINNING }));
    }
    if installed("memcached") {
        all.push((Program::Memcached, linux));
    } else {
        let note =
            "memcached is not measured, because it is not installed: apt-get install memcached";
        if !notes.iter().any(|other| other == note) {
            notes.push(note.to_owned());
        }
    }
    let wanted = |client| args.client.is_none_or(|asked| asked == client);
    let asked = |kind| args.server.is_none_or(|asked| asked == kind);
    let mut on_ix = Vec::new();
    if asked(ServerKind::Native) {
        on_ix.push(Program::Kv);
    }
    if asked(ServerKind::Posix) && installed("memcached") {
        on_ix.push(Program::Memcached);
    }
    for program in on_ix {
        if lab.has_linux_client() && wanted(Client::Linux) {
            let client = Host::BLOCKING;
            all.extend(lab.each_on_ix().map(|server| (program, Setup { server, client })));
        }
        if lab.has_ix_client() && wanted(Client::Ix) {
            let client = Host::IX;
            all.extend(lab.each_on_ix().map(|server| (program, Setup { server, client })));
        }
    }
    if all.iter().any(|(_, setup)| setup.server.is_ix()) {
        return Ok(all);
    }
    Err(Problem::new("cannot put this load on IX", "this device does not support that client")
        .mend("use another --device or --client"))
}

impl Series {
    fn new(
        lab: &Lab,
        plan: &Plan,
        program: Program,
        setup: Setup,
        workload: &'static str,
        value_bytes: u64,
    ) -> Series {
        let settings = match setup.server.domain() {
            Some(domain) => format!("1 pinned thread, domain {}", domain.name()),
            None => format!(
                "1 pinned thread, epoll, TCP_NODELAY, {}, offloads on",
                lab.congestion_control()
            ),
        };
        let row = |kind: &str, share: Option<u32>| {
            let also = vec![
                ("workload", json!(workload)),
                ("server", json!(program.name())),
                ("point", json!(kind)),
                ("share_of_peak", json!(share)),
            ];
            let row = setup.row(lab, plan.connections, value_bytes, also, settings.clone());
            let system = match (program, setup.server) {
                (Program::Memcached, Host::Ix(_)) => "memcached on ix".to_owned(),
                (Program::Memcached, _) => "memcached".to_owned(),
                _ => return row,
            };
            Row { system, ..row }
        };
        Series {
            program,
            setup,
            workload,
            peak_per_s: None,
            unloaded: row("unloaded", None),
            peak: row("closed loop", None),
            rates: plan.shares.iter().map(|&share| row("rate", Some(share))).collect(),
            best: row("p99 under 500 µs", None),
            requests: 0.0,
        }
    }

    /// One round: a new server, unloaded, closed loop, all rates, the search.
    fn measure(&mut self, lab: &Lab, plan: &Plan, progress: &str) -> Result<()> {
        lab.set_offloads(true)?;
        let mut server = lab.start(self.setup.server, &self.serve())?;
        let told = format!(
            "{progress}: {} {} ({}), {} client",
            self.workload, self.best.system, self.best.mode, self.best.client
        );
        self.store(lab, plan, &mut server)?;
        let unloaded = self.load(lab, plan, &mut server, Some(UNLOADED_PER_S))?;
        self.unloaded.add(unloaded.clone());
        let closed = self.load(lab, plan, &mut server, None)?;
        let peak_per_s = *self.peak_per_s.get_or_insert(value(&closed, "msgs_per_s"));
        self.peak.add(closed);
        // The highest rate that meets the objective, and the lowest that does not.
        let mut best = (value(&unloaded, "p99_us") <= SLA_US).then_some(unloaded);
        let mut lowest_bad = peak_per_s * 1.2;
        for index in 0..plan.shares.len() {
            let rate = peak_per_s * f64::from(plan.shares[index]) / 100.0;
            let figures = self.load(lab, plan, &mut server, Some(rate))?;
            self.rates[index].add(figures.clone());
            judge(figures, rate, &mut best, &mut lowest_bad);
        }
        for _ in 0..plan.steps {
            let good = best.as_ref().map_or(0.0, |best| value(best, "wanted_per_s"));
            let rate = f64::midpoint(good, lowest_bad);
            let figures = self.load(lab, plan, &mut server, Some(rate))?;
            judge(figures, rate, &mut best, &mut lowest_bad);
        }
        let most = best.as_ref().map_or(0.0, |best| value(best, "msgs_per_s"));
        eprintln!("ix: {told}: {peak_per_s:.0} req/s closed loop, {most:.0} under 500 µs p99");
        // Zero is a result, too.
        self.best.add(best.unwrap_or_else(|| vec![("msgs_per_s", 0.0), ("errors", 0.0)]));
        if let Some(forwarded) = server.stop() {
            self.best.add([("forwarded_per_msg", forwarded as f64 / self.requests.max(1.0))]);
            self.requests = 0.0;
        }
        Ok(())
    }

    fn serve(&self) -> Serve {
        let arguments = ["-m", "1024", "-c", "4096"].map(str::to_owned).to_vec();
        Serve { program: self.program, arguments, ..Serve::default() }
    }

    fn arguments(&self, plan: &Plan, server: &Server) -> Vec<OsString> {
        let mut args: Vec<OsString> =
            ["load", &server.address().to_string()].map(Into::into).into();
        args.extend(
            ["--protocol", "memcached-binary", "--workload", self.workload].map(Into::into),
        );
        args.extend(["--records".into(), plan.records.to_string().into(), "--quiet".into()]);
        args.extend(["--connections".into(), plan.connections.to_string().into()]);
        args.extend(["--depth", DEPTH].map(Into::into));
        if self.setup.client == Host::SPINNING {
            args.push("--spin".into());
        }
        args
    }

    /// Stores the records.
    fn store(&mut self, lab: &Lab, plan: &Plan, server: &mut Server) -> Result<()> {
        let mut args = self.arguments(plan, server);
        args.push("--preload-only".into());
        self.requests += f64::from(plan.records);
        lab.start_load(self.setup.client, &args)?.wait_for("stored", server, SLACK)
    }

    /// Runs one load: open loop with `rate_per_s`, else closed loop.
    fn load(
        &mut self,
        lab: &Lab,
        plan: &Plan,
        server: &mut Server,
        rate_per_s: Option<f64>,
    ) -> Result<Figures> {
        let mut args = self.arguments(plan, server);
        args.extend(["--no-preload", "--json", "-", "--seconds"].map(Into::into));
        args.push(plan.seconds.to_string().into());
        if let Some(rate) = rate_per_s {
            args.extend(["--rate".into(), format!("{rate:.0}").into()]);
            args.extend(MEASURE.map(Into::into));
        }
        let timeout = Duration::from_secs_f64(plan.seconds * 2.0) + SLACK;
        let result = lab.run_load(self.setup.client, server, &args, timeout)?;
        let figures = figures(result.summary(), rate_per_s.is_some());
        self.requests += value(&figures, "msgs_per_s") * plan.seconds;
        Ok(figures)
    }

    fn remark(&self) -> String {
        let number = |row: &Row, key| row.median(key).unwrap_or(0.0);
        format!(
            "{} {} ({}), {} client: p99 {:.0} µs unloaded, {:.0} requests/s under 500 µs p99",
            self.workload.to_uppercase(),
            self.best.system,
            self.best.mode,
            self.best.client,
            number(&self.unloaded, "p99_us"),
            number(&self.best, "msgs_per_s"),
        )
    }

    fn into_rows(self) -> Vec<Row> {
        let mut rows = vec![self.unloaded, self.peak];
        rows.extend(self.rates);
        rows.push(self.best);
        rows
    }
}

/// Figures of a load's summary; the latency of an open loop is the measuring client's.
fn figures(summary: &ix_load::row::Row, open: bool) -> Figures {
    let latency = if open { summary.measure.into() } else { summary.latency };
    [
        ("wanted_per_s", summary.wanted_per_s),
        ("msgs_per_s", Some(summary.msgs_per_s)),
        ("avg_us", latency.avg_us),
        ("p50_us", latency.p50_us),
        ("p99_us", latency.p99_us),
        ("hit_rate", summary.hit_rate),
        ("reached", summary.reached.map(|yes| f64::from(u8::from(yes)))),
        ("errors", Some(summary.errors as f64)),
    ]
    .into_iter()
    .filter_map(|(key, value)| Some((key, value?)))
    .collect()
}

fn value(figures: &Figures, key: &str) -> f64 {
    figures.iter().find(|(name, _)| *name == key).map_or(0.0, |(_, value)| *value)
}

/// A rate meets the objective if it was reached and its p99 is low enough.
fn judge(figures: Figures, rate: f64, best: &mut Option<Figures>, lowest_bad: &mut f64) {
    let good = value(&figures, "p99_us") <= SLA_US && value(&figures, "reached") > 0.0;
    if !good {
        *lowest_bad = lowest_bad.min(rate);
    } else if best.as_ref().is_none_or(|best| value(best, "wanted_per_s") < rate) {
        *best = Some(figures);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ix_load::row::Latency;

    fn at(rate: f64, p99_us: f64, reached: bool) -> Figures {
        let latency = |us| Latency { p99_us: Some(us), ..Latency::default() };
        let summary = ix_load::row::Row {
            wanted_per_s: Some(rate),
            msgs_per_s: rate,
            latency: latency(1.0),
            measure: latency(p99_us).into(),
            hit_rate: Some(1.0),
            reached: Some(reached),
            ..Default::default()
        };
        figures(&summary, true)
    }

    #[test]
    fn the_best_rate_was_reached_and_is_fast_enough() {
        let (mut best, mut lowest_bad) = (None, 1000.0);
        judge(at(100.0, 80.0, true), 100.0, &mut best, &mut lowest_bad);
        judge(at(500.0, 480.0, true), 500.0, &mut best, &mut lowest_bad);
        judge(at(300.0, 200.0, true), 300.0, &mut best, &mut lowest_bad);
        assert_eq!((value(&best.clone().expect("one"), "msgs_per_s"), lowest_bad), (500.0, 1000.0));
        judge(at(800.0, 90.0, false), 800.0, &mut best, &mut lowest_bad);
        judge(at(700.0, 510.0, true), 700.0, &mut best, &mut lowest_bad);
        assert_eq!((value(&best.expect("one"), "p99_us"), lowest_bad), (480.0, 700.0));
    }

    #[test]
    fn latencies_are_the_measuring_clients() {
        assert_eq!(value(&at(1.0, 80.0, true), "p99_us"), 80.0);
        let latency = Latency { p99_us: Some(5.0), ..Latency::default() };
        let closed = ix_load::row::Row { msgs_per_s: 2.0, latency, ..Default::default() };
        let wanted = [("msgs_per_s", 2.0), ("p99_us", 5.0), ("errors", 0.0)];
        assert_eq!(figures(&closed, false), wanted);
    }
}
