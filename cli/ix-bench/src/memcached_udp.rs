//! `ix bench memcached-udp`: Arrakis' figure 4, memcached over UDP with the binary protocol.
//!
//! 90 % gets, keys of 64 bytes, values of 1,024, 128 records, in closed loop; one process or
//! several, each on one hardware thread, with its own vNIC on IX.
use crate::args::{BenchArgs, Client, ServerKind};
use crate::installed;
use crate::lab::{self, Host, Lab};
use crate::plan::{length, or};
use crate::runner::Setup;
use crate::serve::{Program, Serve};
use crate::tenants::{self, Tenants};
use ix_load::row::LoadResult;
use ix_report::problem::{Problem, Result};
use ix_report::report::Row;
use serde_json::json;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::time::Duration;

/// Bytes of a value, which is the size of a row.
pub(crate) const VALUE_BYTES: u64 = 1024;
/// The paper's workload, as flags of `ix load`.
const WORKLOAD: [&str; 11] = [
    "--udp",
    "--protocol",
    "memcached-binary",
    "--key-size",
    "fixed:64",
    "--value-size",
    "fixed:1024",
    "--update",
    "0.1",
    "--records",
    "128",
];
/// Sockets of the client, each with one request in flight: with 64 the server never waits.
const SOCKETS: [usize; 3] = [1, 16, 64];
const QUICK_SOCKETS: [usize; 1] = [64];
/// Longest time for storing the records and for ending, beyond the measurement.
const SLACK: Duration = Duration::from_secs(60);

/// A point of one server on one system.
struct Series {
    program: Program,
    setup: Setup,
    /// 0: one process, alone on the link.
    processes: usize,
    sockets: usize,
    row: Row,
}

/// Measures all points; returns the rows.
pub fn measure(lab: &Lab, args: &BenchArgs, notes: &mut Vec<String>) -> Result<Vec<Row>> {
    let (seconds, runs) = length(args);
    let processes = tenants::numbers(lab, args)?;
    let usual: &[usize] = if args.quick { &QUICK_SOCKETS } else { &SOCKETS };
    let sockets = or(&args.connections, usual);
    let most = sockets.iter().copied().max().unwrap_or(0);
    let mut points: Vec<_> = sockets.iter().map(|&sockets| (sockets, 1)).collect();
    // Several processes are measured at the load that keeps one busy.
    points.extend(processes.iter().filter(|n| **n > 1).map(|&n| (most, n)));
    if !processes.is_empty() && !processes.contains(&1) {
        points.retain(|(_, processes)| *processes > 1);
    }
    let contestants = contestants(lab, args, notes)?;
    let mut all = Vec::new();
    for (sockets, count) in points {
        let series = |&(program, setup)| {
            let row = row(lab, program, setup, sockets, count);
            let processes = if processes.is_empty() { 0 } else { count };
            Series { program, setup, processes, sockets, row }
        };
        all.extend(contestants.iter().map(series));
    }
    for run in 1..=runs {
        for series in &mut all {
            series.measure(lab, seconds, &format!("run {run}/{runs}"))?;
        }
    }
    notes.push(format!(
        "binary protocol over UDP, 90 % gets, 128 records of 64 and {VALUE_BYTES} bytes, sockets in \
         closed loop"
    ));
    notes.extend(tenants::note(lab, &processes));
    Ok(all.into_iter().map(|series| series.row).collect())
}

impl Series {
    /// One round with its own servers and loads.
    fn measure(&mut self, lab: &Lab, seconds: f64, told: &str) -> Result<()> {
        lab.set_offloads(true)?;
        let serve = |port| serve(self.program, port);
        let mut tenants = Tenants::start(lab, self.setup.server, self.processes, serve)?;
        let timeout = Duration::from_secs_f64(seconds * 2.0) + SLACK;
        let mut loads = Vec::new();
        for server in &tenants.servers {
            let args = load(server.address(), self.sockets, seconds);
            loads.push(lab.start_load(self.setup.client, &args)?);
        }
        let mut figures = Vec::new();
        for (load, server) in loads.into_iter().zip(&mut tenants.servers) {
            figures.push(self::figures(&load.finish_load(server, timeout)?));
        }
        tenants.stop();
        let figures = tenants::merge(&figures);
        let rate = figures.iter().find(|(key, _)| *key == "msgs_per_s").map_or(0.0, |(_, v)| *v);
        eprintln!(
            "ix: {told}: {} × {} on {}, {} sockets each: {rate:.0} requests/s",
            self.processes.max(1),
            self.program.name(),
            self.row.system,
            self.sockets
        );
        self.row.add(figures);
        Ok(())
    }
}

/// Arguments of `ix` for a load on one server.
pub(crate) fn load(to: SocketAddr, sockets: usize, seconds: f64) -> Vec<OsString> {
    let mut load: Vec<OsString> = ["load".into(), to.to_string().into()].into();
    load.extend(WORKLOAD.map(Into::into));
    load.extend(["--connections".into(), sockets.to_string().into()]);
    load.extend(["--quiet", "--json", "-", "--seconds"].map(Into::into));
    load.push(seconds.to_string().into());
    load
}

/// The servers: memcached and ours on Linux, memcached unmodified on IX, ours on IX.
fn contestants(
    lab: &Lab,
    args: &BenchArgs,
    notes: &mut Vec<String>,
) -> Result<Vec<(Program, Setup)>> {
    let client = if lab.has_linux_client() { Host::BLOCKING } else { Host::IX };
    let (other, why, mend) = match client.is_ix() {
        true => {
            (Client::Linux, "memif connects IX to IX only", "use --client ix or --device afxdp")
        }
        false => (Client::Ix, "the clients are on Linux sockets", "use --device memif"),
    };
    if args.client == Some(other) {
        return Err(Problem::new("cannot use this kind of client", why).mend(mend));
    }
    let mut programs = vec![Program::Kv];
    if installed("memcached") {
        programs.push(Program::Memcached);
    } else {
        let missing =
            "memcached is not measured, because it is not installed: apt-get install memcached";
        notes.push(missing.to_owned());
    }
    let on_linux = |&program: &Program| (program, Setup { server: Host::BLOCKING, client });
    // Linux cannot use a memif.
    let on_linux = programs.iter().filter(|_| !client.is_ix()).map(on_linux);
    let mut all: Vec<_> = on_linux.collect();
    let asked = |program: &Program| match args.server {
        None => true,
        Some(kind) => program.is_unmodified() == (kind == ServerKind::Posix),
    };
    for program in programs.into_iter().filter(asked) {
        all.extend(lab.each_on_ix().map(|server| (program, Setup { server, client })));
    }
    Ok(all)
}

fn serve(program: Program, port: u16) -> Serve {
    let arguments = ["-m", "64", "-U", &port.to_string()].map(str::to_owned).to_vec();
    Serve { program, arguments, ..Serve::default() }
}

fn row(lab: &Lab, program: Program, setup: Setup, sockets: usize, processes: usize) -> Row {
    let settings = match setup.server.domain() {
        Some(domain) => format!("1 pinned thread each, domain {}", domain.name()),
        None => "1 pinned thread each, sleeping, offloads on".to_owned(),
    };
    let also = vec![("server", json!(program.name())), ("processes", json!(processes))];
    setup.row(lab, sockets, VALUE_BYTES, also, settings)
}

/// Figures of a load's whole measured time.
pub(crate) fn figures(result: &LoadResult) -> Vec<(&'static str, f64)> {
    let summary = result.summary();
    let mut figures = lab::figures(result);
    figures.extend(summary.latency.avg_us.map(|us| ("avg_us", us)));
    figures.extend(summary.hit_rate.map(|rate| ("hit_rate", rate)));
    figures
}
