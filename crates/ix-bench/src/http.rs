//! `ix bench http`: Debian's haproxy in front of web servers, as in the Arrakis paper, on Linux and on
//! IX by its sockets; with connections that are kept, and with a new one for each request.
//!
//! The web servers and the load stand at the client's end of the link. Where that has one hardware
//! thread they are what limits the rate, so the figure that compares is requests by second that the
//! balancer's hardware thread was busy, as Linux counts it: spinning is busy, too.
use super::lab::{Host, Lab, Load, Server};
use super::plan::{length, or};
use super::runner::Setup;
use super::serve::{Program, Serve};
use crate::args::{BenchArgs, Client, Device};
use ix_cli::problem::{Problem, Result};
use ix_cli::report::Row;
use serde_json::json;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Connections at a time.
const CONNECTIONS: usize = 64;
/// Bytes of the page.
const PAGE_BYTES: u64 = 1024;
/// Web servers behind the balancer.
const BACK_ENDS: u16 = 2;
/// The first one's port.
const BACK_PORT: u16 = 8001;
/// Time for connecting and ending, on top of the measurement.
const SLACK: Duration = Duration::from_secs(30);

/// Pages and the balancer's configuration, gone at the end.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A point of one system.
struct Series {
    setup: Setup,
    connections: usize,
    /// The `ix load` flags that make the point.
    flags: &'static [&'static str],
    row: Row,
}

/// Measures everything; answers the rows.
pub fn measure(lab: &Lab, args: &BenchArgs, notes: &mut Vec<String>) -> Result<Vec<Row>> {
    if !super::installed("haproxy") {
        return Err(Problem::new("cannot measure HTTP", "haproxy is not installed")
            .mend("apt-get install haproxy"));
    }
    let (seconds, runs) = length(args);
    let page_bytes = or(&args.size, &[PAGE_BYTES])[0];
    let folder = prepare(page_bytes)?;
    let mut all = Vec::new();
    for setup in setups(lab, args)? {
        for &connections in &or(&args.connections, &[CONNECTIONS]) {
            let kept = ("kept", &[][..]);
            for (kind, flags) in [kept, ("one a request", &["--messages-per-connection", "1"])] {
                let row = row(lab, setup, connections, page_bytes, kind);
                all.push(Series { setup, connections, flags, row });
            }
        }
    }
    for run in 1..=runs {
        for series in &mut all {
            series.measure(lab, &folder, seconds, &format!("run {run}/{runs}"))?;
        }
    }
    notes.push(format!(
        "{BACK_ENDS} web servers (ix-httpd on Linux sockets) and the load share the client's end; \
         requests/busy s: by second that the balancer's hardware thread was not idle"
    ));
    notes.push(
        "forwarded/req: calls of the balancer that went on to Linux since its first connection"
            .to_owned(),
    );
    Ok(all.into_iter().map(|series| series.row).collect())
}

/// Linux and IX with the same client.
fn setups(lab: &Lab, args: &BenchArgs) -> Result<Vec<Setup>> {
    if lab.device() == Device::Memif {
        return Err(Problem::new("cannot measure HTTP over memif", "web servers are on Linux")
            .mend("say --device afxdp or tap"));
    }
    let linux = Setup { server: Host::BLOCKING, client: Host::BLOCKING };
    let client = match args.client {
        Some(Client::Ix) if lab.has_ix_client() => Host::Ix,
        Some(Client::Ix) => {
            return Err(Problem::new(
                "cannot run the client on IX",
                "this device has one end only",
            )
            .mend("use --device afxdp or --client linux"));
        }
        _ => Host::BLOCKING,
    };
    Ok(vec![linux, Setup { server: Host::Ix, client }])
}

fn row(lab: &Lab, setup: Setup, connections: usize, size: u64, kind: &str) -> Row {
    let settings = match setup.server {
        Host::Ix => "1 pinned thread, domain none".to_owned(),
        Host::Linux { .. } => {
            format!("1 pinned thread, epoll, {}, offloads on", lab.congestion_control())
        }
    };
    let also = vec![("server", json!("haproxy")), ("connection", json!(kind))];
    setup.row(lab, connections, size, also, settings)
}

/// The page and the configuration. Addresses come by haproxy's environment.
fn prepare(page_bytes: u64) -> Result<Folder> {
    let cannot = |e| Problem::new("cannot prepare the pages", e);
    let folder = Folder(std::env::temp_dir().join(format!("ix-http-{}", std::process::id())));
    std::fs::create_dir_all(&folder.0).map_err(cannot)?;
    std::fs::write(folder.0.join("page.txt"), "x".repeat(page_bytes as usize)).map_err(cannot)?;
    let servers: String = (0..BACK_ENDS)
        .map(|n| format!(" server s{n} \"${{IX_BACK}}:{}\"\n", BACK_PORT + n))
        .collect();
    let config = format!(
        "global\n nbthread 1\n maxconn 8192\n\
         defaults\n mode http\n timeout connect 20s\n timeout client 20s\n timeout server 20s\n\
         frontend web\n bind \"${{IX_FRONT}}\"\n default_backend servers\n\
         backend servers\n balance roundrobin\n{servers}"
    );
    std::fs::write(folder.0.join("haproxy.cfg"), config).map_err(cannot)?;
    Ok(folder)
}

impl Series {
    /// One round with servers of its own.
    fn measure(&mut self, lab: &Lab, folder: &Folder, seconds: f64, told: &str) -> Result<()> {
        lab.set_offloads(true)?;
        let config = folder.0.join("haproxy.cfg").display().to_string();
        let arguments = vec!["-db".to_owned(), "-f".to_owned(), config];
        let serve = Serve { program: Program::Haproxy, arguments, ..Serve::default() };
        let mut balancer = lab.start(self.setup.server, &serve)?;
        let back_ends: Vec<Server> = (0..BACK_ENDS)
            .map(|n| lab.start_back_end(&folder.0, BACK_PORT + n))
            .collect::<Result<_>>()?;
        let load = lab.start_load(self.setup.client, &self.arguments(&balancer, seconds))?;
        let busy = busy_share(lab.cpus.0, &load, self.setup.client, seconds);
        let timeout = Duration::from_secs_f64(seconds * 2.0) + SLACK;
        let result = load.finish(&mut balancer, timeout)?;
        let rows = result.get("rows").and_then(|rows| rows.as_array());
        let summary = rows.and_then(|rows| rows.last()).ok_or_else(|| {
            Problem::new("cannot read the result of the load generator", "it has no rows")
        })?;
        let mut figures = Vec::new();
        for key in ["msgs_per_s", "p50_us", "p99_us", "errors"] {
            figures.extend(summary.get(key).and_then(|v| v.as_f64()).map(|value| (key, value)));
        }
        let rate = summary.get("msgs_per_s").and_then(|v| v.as_f64()).unwrap_or(0.0);
        if let Some(busy) = busy {
            figures.extend([("server_busy", busy), ("msgs_per_busy_s", rate / busy)]);
        }
        let forwarded = balancer.stop();
        if let Some(forwarded) = forwarded.filter(|_| rate > 0.0) {
            // The load's warm-up is part of the balancer's life.
            let requests = rate * (seconds + warm_up(seconds));
            figures.push(("forwarded_per_msg", forwarded as f64 / requests));
        }
        for back_end in back_ends {
            back_end.stop();
        }
        eprintln!(
            "ix: {told}: haproxy on {}, connections {}: {rate:.0} requests/s, {:.0} a busy second",
            self.row.system,
            self.row.also[1].1.as_str().unwrap_or_default(),
            busy.map_or(0.0, |busy| rate / busy),
        );
        self.row.add(figures);
        Ok(())
    }

    fn arguments(&self, balancer: &Server, seconds: f64) -> Vec<OsString> {
        let mut args: Vec<OsString> =
            ["load", &balancer.address().to_string()].map(Into::into).into();
        args.extend(["--protocol", "http", "--path", "/page.txt", "--quiet"].map(Into::into));
        args.extend(["--connections".into(), self.connections.to_string().into()]);
        args.extend(self.flags.iter().map(Into::into));
        args.extend(["--warmup".into(), warm_up(seconds).to_string().into()]);
        args.extend(["--json".into(), "-".into(), "--seconds".into(), seconds.to_string().into()]);
        args
    }
}

fn warm_up(seconds: f64) -> f64 {
    (seconds / 10.0).min(1.0)
}

/// How much of a second this hardware thread was busy in the middle of the measurement.
fn busy_share(cpu: usize, load: &Load, client: Host, seconds: f64) -> Option<f64> {
    // A client on IX takes a while to come up.
    let end = Instant::now() + SLACK;
    while client == Host::Ix && !load.has_said("ix: device ") && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_secs_f64(warm_up(seconds) + seconds * 0.3));
    let before = ticks(cpu)?;
    std::thread::sleep(Duration::from_secs_f64(seconds * 0.5));
    let after = ticks(cpu)?;
    let (busy, idle) = (after.0 - before.0, after.1 - before.1);
    (busy > 0).then(|| busy as f64 / (busy + idle) as f64)
}

/// Ticks that a hardware thread was busy, and idle.
fn ticks(cpu: usize) -> Option<(u64, u64)> {
    busy_and_idle(&std::fs::read_to_string("/proc/stat").ok()?, cpu)
}

/// From `/proc/stat`: user, nice, system, idle, iowait, irq, softirq.
fn busy_and_idle(stat: &str, cpu: usize) -> Option<(u64, u64)> {
    let name = format!("cpu{cpu}");
    let line = stat.lines().find(|line| line.split(' ').next() == Some(&name))?;
    let numbers = line.split_whitespace().skip(1).take(7);
    let numbers: Vec<u64> = numbers.filter_map(|number| number.parse().ok()).collect();
    let &[user, nice, system, idle, iowait, irq, softirq] = numbers.as_slice() else {
        return None;
    };
    Some((user + nice + system + irq + softirq, idle + iowait))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hardware_threads_time_is_read() {
        let stat = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 40 5 6 7 8 0 0\ncpu1 0 0 0 7 0 0 1 0\n";
        assert_eq!(busy_and_idle(stat, 0), Some((19, 45)));
        assert_eq!(busy_and_idle(stat, 1), Some((1, 7)));
        assert_eq!(busy_and_idle(stat, 2), None);
    }
}
