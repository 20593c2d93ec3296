//! `ix bench http`: Debian's haproxy in front of web servers, as in the Arrakis paper, on Linux
//! and, unmodified, on IX; with connections that are kept, and with a new one for each request;
//! with one process or several (its figure 5).
//!
//! The web servers and the load are at the client's end of the link: separate processes on Linux,
//! part of the load on IX. If that end has one hardware thread it may limit the rate. So the figure
//! to compare is requests per second in which the balancer's hardware thread was busy, as Linux
//! counts it: spinning is busy, too.
use super::busy::Busy;
use super::lab::{self, Host, Lab, Load, Server};
use super::plan::{length, or};
use super::runner::Setup;
use super::serve::{Program, Serve};
use super::tenants::{self, Tenants};
use crate::args::{BenchArgs, Client, Device};
use ix_report::problem::{Problem, Result};
use ix_report::report::Row;
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
/// Longest time for connecting and ending, beyond the measurement.
const SLACK: Duration = Duration::from_secs(30);

/// The pages and the balancer's configuration; removed at the end.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A point on one system.
struct Series {
    setup: Setup,
    /// 0: one process, alone on the link.
    processes: usize,
    connections: usize,
    /// The `ix load` flags that make the point.
    flags: &'static [&'static str],
    row: Row,
}

/// Measures all points; returns the rows.
pub fn measure(lab: &Lab, args: &BenchArgs, notes: &mut Vec<String>) -> Result<Vec<Row>> {
    if !super::installed("haproxy") {
        return Err(Problem::new("cannot measure HTTP", "haproxy is not installed")
            .mend("apt-get install haproxy"));
    }
    let (seconds, runs) = length(args);
    let page_bytes = or(&args.size, &[PAGE_BYTES])[0];
    let folder = prepare(page_bytes)?;
    let client = client(lab, args)?;
    let on_ix = client.is_ix();
    // One process needs no shared interface.
    let numbers = match args.processes.as_slice() {
        [] if args.quick || on_ix => Vec::new(),
        _ if on_ix => {
            let why = "with --client ix one dataplane runs all loads and web servers";
            return Err(Problem::new("cannot measure several balancers", why)
                .mend("remove --processes, or use --client linux"));
        }
        [] if lab.device() == Device::Afxdp => vec![0, 2],
        _ => tenants::numbers(lab, args)?,
    };
    let mut all = Vec::new();
    for setup in setups(lab, client) {
        for &connections in &or(&args.connections, &[CONNECTIONS]) {
            for &processes in &or(&numbers, &[0]) {
                let kept = ("kept", &[][..]);
                for (kind, flags) in [kept, ("one a request", &["--messages-per-connection", "1"])]
                {
                    let also = (kind, processes.max(1));
                    let row = row(lab, setup, connections, page_bytes, also);
                    all.push(Series { setup, processes, connections, flags, row });
                }
            }
        }
    }
    notes.extend(tenants::note(lab, &numbers));
    for run in 1..=runs {
        for series in &mut all {
            series.measure(lab, &folder, seconds, &format!("run {run}/{runs}"))?;
        }
    }
    notes.push(format!(
        "{BACK_ENDS} web servers (ix-httpd: on Linux sockets, with a client on IX within the load) and \
         the load share the client's end; requests/busy s: per second in which the balancer's hardware \
         thread was busy"
    ));
    notes.push(
        "forwarded/req: calls of the balancer forwarded to Linux since its first connection"
            .to_owned(),
    );
    Ok(all.into_iter().map(|series| series.row).collect())
}

/// Linux and IX with the same client.
fn setups(lab: &Lab, client: Host) -> Vec<Setup> {
    let linux = Setup { server: Host::BLOCKING, client: Host::BLOCKING };
    // A load on IX leaves its end less work; Linux's server must profit from that, too.
    let both = client.is_ix() && lab.has_linux_client();
    let same_client = both.then_some(Setup { client, ..linux });
    let on_linux = [Some(linux), same_client].into_iter().flatten();
    on_linux.chain(lab.each_on_ix().map(|server| Setup { server, client })).collect()
}

/// Where the load runs: Linux by default, if the device allows it.
fn client(lab: &Lab, args: &BenchArgs) -> Result<Host> {
    if let Some(client) = args.client {
        super::check_client(lab, client)?;
    }
    let on_ix = args.client == Some(Client::Ix) || !lab.has_linux_client();
    Ok(if on_ix { Host::IX } else { Host::BLOCKING })
}

fn row(
    lab: &Lab,
    setup: Setup,
    connections: usize,
    size: u64,
    (kind, processes): (&str, usize),
) -> Row {
    let settings = match setup.server.domain() {
        Some(domain) => format!("1 pinned thread, domain {}", domain.name()),
        None => format!("1 pinned thread, epoll, {}, offloads on", lab.congestion_control()),
    };
    let also = vec![
        ("server", json!("haproxy")),
        ("connection", json!(kind)),
        ("processes", json!(processes)),
    ];
    setup.row(lab, connections, size, also, settings)
}

/// Writes the page and the configuration. haproxy gets the addresses by its environment.
fn prepare(page_bytes: u64) -> Result<Folder> {
    let cannot = |e| Problem::new("cannot prepare the pages", e);
    let folder = Folder(std::env::temp_dir().join(format!("ix-http-{}", std::process::id())));
    std::fs::create_dir_all(&folder.0).map_err(cannot)?;
    std::fs::write(folder.0.join("page.txt"), "x".repeat(page_bytes as usize)).map_err(cannot)?;
    let servers: String = (0..BACK_ENDS)
        .map(|n| format!(" server s{n} \"${{IX_BACK}}:{}\" cookie s{n}\n", BACK_PORT + n))
        .collect();
    let config = format!(
        "global\n nbthread 1\n maxconn 8192\n hard-stop-after 1s\n\
         defaults\n mode http\n timeout connect 20s\n timeout client 20s\n timeout server 20s\n\
         frontend web\n bind \"${{IX_FRONT}}\"\n default_backend servers\n\
         backend servers\n balance roundrobin\n \
         cookie IXSERVER insert indirect nocache\n{servers}"
    );
    std::fs::write(folder.0.join("haproxy.cfg"), config).map_err(cannot)?;
    Ok(folder)
}

impl Series {
    /// One round with its own servers.
    fn measure(&mut self, lab: &Lab, folder: &Folder, seconds: f64, told: &str) -> Result<()> {
        lab.set_offloads(true)?;
        let config = folder.0.join("haproxy.cfg").display().to_string();
        let arguments = vec!["-db".to_owned(), "-f".to_owned(), config];
        let behind_on_ix = self.setup.client.is_ix();
        let program = Program::Haproxy;
        let serve = Serve { program, arguments, behind_on_ix, ..Serve::default() };
        let serve = |_| serve.clone();
        let mut balancers = Tenants::start(lab, self.setup.server, self.processes, serve)?;
        let on_linux = if behind_on_ix { 0 } else { BACK_ENDS };
        let back_ends: Vec<Server> = (0..on_linux)
            .map(|n| lab.start_back_end(&folder.0, BACK_PORT + n))
            .collect::<Result<_>>()?;
        let mut loads = Vec::new();
        for balancer in &balancers.servers {
            let args = self.arguments(balancer, folder, seconds);
            loads.push(lab.start_load(self.setup.client, &args)?);
        }
        // Of one process only: several share hardware threads with the load.
        let busy = match loads.as_slice() {
            [load] => busy_share(lab.cpus.0, load, self.setup.client, seconds),
            _ => None,
        };
        let timeout = Duration::from_secs_f64(seconds * 2.0) + SLACK;
        let mut figures = Vec::new();
        for (load, balancer) in loads.into_iter().zip(&mut balancers.servers) {
            figures.push(lab::figures(&load.finish_load(balancer, timeout)?));
        }
        let mut figures = tenants::merge(&figures);
        let rate = figures.iter().find(|(key, _)| *key == "msgs_per_s").map_or(0.0, |(_, v)| *v);
        if let Some(busy) = busy {
            figures.extend([("server_busy", busy), ("msgs_per_busy_s", rate / busy)]);
        }
        let forwarded = balancers.stop();
        if let Some(forwarded) = forwarded.filter(|_| rate > 0.0) {
            // The balancer also serves the load's warm-up.
            let requests = rate * (seconds + warm_up(seconds));
            figures.push(("forwarded_per_msg", forwarded as f64 / requests));
        }
        for back_end in back_ends {
            back_end.stop();
        }
        eprintln!(
            "ix: {told}: {} × haproxy on {}, connections {}: {rate:.0} requests/s{}",
            self.processes.max(1),
            self.row.system,
            self.row.also[1].1.as_str().unwrap_or_default(),
            busy.map_or(String::new(), |busy| format!(", {:.0} per busy second", rate / busy)),
        );
        self.row.add(figures);
        Ok(())
    }

    fn arguments(&self, balancer: &Server, folder: &Folder, seconds: f64) -> Vec<OsString> {
        let mut args: Vec<OsString> =
            ["load", &balancer.address().to_string()].map(Into::into).into();
        args.extend(["--protocol", "http", "--path", "/page.txt", "--quiet"].map(Into::into));
        args.extend(["--connections".into(), self.connections.to_string().into()]);
        args.extend(self.flags.iter().map(Into::into));
        if self.setup.client.is_ix() {
            let ports: Vec<_> = (0..BACK_ENDS).map(|n| (BACK_PORT + n).to_string()).collect();
            let at = format!("{}@{}", folder.0.display(), ports.join(","));
            args.extend(["--back-ends".into(), at.into()]);
        }
        args.extend(["--warmup".into(), warm_up(seconds).to_string().into()]);
        args.extend(["--json".into(), "-".into(), "--seconds".into(), seconds.to_string().into()]);
        args
    }
}

fn warm_up(seconds: f64) -> f64 {
    (seconds / 10.0).min(1.0)
}

/// Share of time in which a hardware thread was busy, in the middle of the measurement.
fn busy_share(cpu: usize, load: &Load, client: Host, seconds: f64) -> Option<f64> {
    // A client on IX takes a while to start.
    let end = Instant::now() + SLACK;
    while client.is_ix() && !load.has_said("ix: device ") && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_secs_f64(warm_up(seconds) + seconds * 0.3));
    let busy = Busy::of(cpu)?;
    std::thread::sleep(Duration::from_secs_f64(seconds * 0.5));
    busy.share()
}
