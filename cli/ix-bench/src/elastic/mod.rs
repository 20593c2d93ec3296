//! `ix bench elastic`: two elastic threads under a load that rises and falls, a controller that
//! adds and parks the second, and the papers' background job, which gets the remaining time (SoCC
//! '15, section 5).
//!
//! Everything runs on one machine, so the load must be light: it is paced, sleeps between its
//! requests, and the table shows its share of the processor.
mod actors;
mod machine;
mod timeline;

use super::lab::{Host, Lab};
use super::plan::{MESSAGE_BYTES, or};
use super::serve::Serve;
use crate::args::BenchArgs;
use actors::{Background, Controller, Watch};
use ix_load::row::LoadResult;
use ix_report::problem::{Problem, Result};
use ix_report::report::Row;
use machine::{Aside, put_first};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;
use timeline::{Second, Timeline};

/// Help of `ix bench elastic`.
pub const HELP: &str = "Runs two elastic threads under a load that rises and falls once. A controller \
    (`ix cp`, consolidation) adds the second thread when the load needs it, and parks it otherwise; \
    meanwhile the papers' background job gets its hardware thread. Prints for every second: rate, \
    99th percentile, threads, work of the background job, and the load's share of the processor.\n\n\
    --seconds is the time of rise and fall together.\n\n\
    Examples:\n  \
    ix bench elastic --quick\n  \
    ix bench elastic --device tap --seconds 120 --output elastic.json && ix bench report elastic.json";

/// Time of one rise and fall, s; with `--quick`.
const PERIOD_S: (f64, f64) = (60.0, 20.0);
/// Connections of the load, and requests in flight on each.
const CONNECTIONS: usize = 64;
const DEPTH: &str = "4";
/// Work of the server on each message, µs: most of the work must be the server's, not the load's.
const WORK_US: f64 = 100.0;
/// The lowest and the highest rate, relative to the rate of one thread. A hardware thread that also
/// carries the load allows no more.
const RATES: (f64, f64) = (0.1, 1.2);
/// The service level objective: the 99th percentile of a second, µs. Linux may let a program keep a
/// hardware thread for a tick, 4 ms on most kernels, so a lower objective cannot be met where other
/// programs run.
const SLO_US: f64 = 5000.0;
/// The controller's bound on the queueing delay: the same share of the objective as in the papers.
const BOUND_US: f64 = SLO_US * 300.0 / 500.0;
/// The controller's policy: the consolidation ladder, for a service whose messages cost so much
/// more than its cycles that batching saves nothing, and whose objective is only `SLO_US` /
/// `WORK_US` messages away, not hundreds. In such a queue (M/D/1) the 99th percentile meets the
/// objective at 95 % of one thread.
const POLICY: &str = "name = \"consolidation\"\n\
    [base]\ncores = 1\nthreads_per_core = \"all\"\nclock = \"nominal\"\n\
    [ladder]\nadd = [\"cores\", \"turbo\"]\nbackground = true\n\
    [gain]\nbatching = 0\n[up]\nbusy_max = 0.9\n[down]\nbusy_max = 0.75\n";
/// Length of the measurement before the run, s.
const CALIBRATE_S: f64 = 2.0;
/// Load before the first second that counts, s.
const WARMUP_S: f64 = 1.0;
/// Longest time for connecting and ending, beyond that.
const SLACK: Duration = Duration::from_secs(20);

/// Runs the benchmark; returns a row for each second, and one for the whole run.
pub(super) fn measure(lab: &Lab, args: &BenchArgs, notes: &mut Vec<String>) -> Result<Vec<Row>> {
    if lab.cpus.0 == lab.cpus.1 {
        let why = "this machine has one hardware thread";
        return Err(Problem::new("cannot add a second elastic thread", why)
            .mend("run it on a machine where `nproc` prints 2 or more"));
    }
    let run = Run {
        lab,
        connections: or(&args.connections, &[CONNECTIONS])[0],
        size: or(&args.size, &[MESSAGE_BYTES])[0],
        period_s: args.seconds.unwrap_or(if args.quick { PERIOD_S.1 } else { PERIOD_S.0 }),
        spare_cpu: lab.cpus_for(2)[1],
    };
    let timeline = run.measure()?;
    notes.extend(timeline.figure());
    notes.extend(timeline.remarks());
    Ok(run.rows(&timeline))
}

/// One run.
struct Run<'a> {
    lab: &'a Lab,
    connections: usize,
    size: u64,
    period_s: f64,
    /// The hardware thread of the second elastic thread.
    spare_cpu: usize,
}

impl Run<'_> {
    fn measure(&self) -> Result<Timeline> {
        let arguments = [self.size.to_string(), "--work-us".to_owned(), WORK_US.to_string()];
        let serve = Serve { threads: 2, ..Serve::echo(&arguments) };
        let mut server = self.lab.start(self.lab.on_ix(), &serve)?;
        let path = server.control().ok_or_else(|| Problem::line("no control socket"))?;
        let mut watch = Watch::new(&path)?;
        // Processes started from here on run there, too, with this priority, unless they change it.
        let aside = put_first(server.pid(), self.spare_cpu)
            .map_err(|e| Problem::new("cannot raise the priority", e))
            .and_then(|()| Aside::on(self.spare_cpu));
        if let Err(e) = &aside {
            eprintln!(
                "ix: load generator and controller run without priority, so their delays count: {e}"
            );
        }
        // Measures the rate of one thread, and of the background job on the other one.
        watch.park(1)?;
        let closed = self.load(&mut server, None, CALIBRATE_S)?;
        let one_thread = closed.summary().msgs_per_s;
        let mut job = Background::start(self.lab.ix_file(), self.spare_cpu)?;
        let alone = job.alone(Duration::from_secs_f64(CALIBRATE_S))?;
        eprintln!(
            "ix: one thread serves {one_thread:.0} requests/s; the background job alone does {:.0} MB/s",
            alone / 1e6
        );
        let policy = PolicyFile::beside(&path)?;
        let controller =
            Controller::start(self.lab.ix_file(), &policy.0, &path, job.pid(), self.spare_cpu)?;
        let (low, high) = (one_thread * RATES.0, one_thread * RATES.1);
        let pattern = format!("triangle:{low:.0}:{high:.0}:{}:0", self.period_s);
        let args = self.arguments(&server, Some(&pattern), self.period_s);
        let load = self.lab.start_load(Host::BLOCKING, &args)?;
        let seen = watch.each_second(&mut job, load.pid(), WARMUP_S, self.period_s);
        let limit = Duration::from_secs_f64(self.period_s * 1.5) + SLACK;
        let result = load.finish_load(&mut server, limit)?;
        drop(aside);
        let decisions = controller.stop();
        server.stop();
        let seconds = result.seconds().iter().zip(seen).map(|(row, seen)| Second {
            wanted_per_s: row.wanted_per_s.unwrap_or(0.0),
            msgs_per_s: row.msgs_per_s,
            p50_us: row.latency.p50_us.unwrap_or(0.0),
            p99_us: row.latency.p99_us.unwrap_or(0.0),
            errors: row.errors as f64,
            stall_ms: row.stall_most_us.unwrap_or(0.0) / 1000.0,
            seen,
        });
        let (seconds, wakes_us) = (seconds.collect(), watch.wakes_us);
        Ok(Timeline { seconds, alone, slo_us: SLO_US, decisions, wakes_us })
    }

    /// Runs one load to its end.
    fn load(
        &self,
        server: &mut super::lab::Server,
        pattern: Option<&str>,
        seconds: f64,
    ) -> Result<LoadResult> {
        let args = self.arguments(server, pattern, seconds);
        let limit = Duration::from_secs_f64(seconds * 1.5) + SLACK;
        self.lab.run_load(Host::BLOCKING, server, &args, limit)
    }

    fn arguments(
        &self,
        server: &super::lab::Server,
        pattern: Option<&str>,
        seconds: f64,
    ) -> Vec<OsString> {
        let mut words = vec!["load".to_owned(), server.address().to_string()];
        let numbers = [
            ("--size", self.size.to_string()),
            ("--connections", self.connections.to_string()),
            ("--depth", DEPTH.to_owned()),
            ("--warmup", WARMUP_S.to_string()),
            ("--seconds", seconds.to_string()),
            ("--json", "-".to_owned()),
        ];
        numbers.into_iter().for_each(|(flag, value)| words.extend([flag.to_owned(), value]));
        words.extend(["--quiet", "--sleep"].map(str::to_owned));
        if let Some(pattern) = pattern {
            words.extend(["--pattern".to_owned(), pattern.to_owned()]);
        }
        words.into_iter().map(OsString::from).collect()
    }

    fn rows(&self, timeline: &Timeline) -> Vec<Row> {
        let row = |second: Value| Row {
            system: "ix".to_owned(),
            domain: self.lab.on_ix().domain(),
            mode: "consolidation".to_owned(),
            device: self.lab.device_of(Host::IX).to_owned(),
            client: "linux".to_owned(),
            client_mode: "blocking".to_owned(),
            connections: self.connections,
            size: self.size,
            also: vec![("second", second)],
            settings: format!("2 elastic threads, {WORK_US} µs of work per message"),
            samples: Vec::new(),
        };
        let mut rows = Vec::new();
        for (second, at) in timeline.seconds.iter().enumerate() {
            let mut row = row(json!(second));
            row.add(timeline.figures(at));
            rows.push(row);
        }
        let mut whole = row(Value::Null);
        whole.add(timeline.whole());
        rows.push(whole);
        rows
    }
}

/// The policy as a file for the controller; removed at the end.
struct PolicyFile(PathBuf);

impl PolicyFile {
    fn beside(control: &Path) -> Result<PolicyFile> {
        let file = control.with_extension("policy.toml");
        std::fs::write(&file, format!("slo_us = {BOUND_US}\n{POLICY}"))
            .map_err(|e| Problem::new(format!("cannot write {}", file.display()), e))?;
        Ok(PolicyFile(file))
    }
}

impl Drop for PolicyFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
