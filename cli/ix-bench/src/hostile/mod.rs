//! `ix bench hostile`: an honest client beside peers that read slowly, never finish their
//! handshakes, or keep their windows closed.
mod crowd;
mod honest;

use crate::args::{BenchArgs, Device};
use crate::lab::{Host, Lab, Server};
use crate::serve::Serve;
use crowd::{Crowd, Gathering};
use honest::Honest;
use ix_broker::control::Client;
use ix_proto::control::Status;
use ix_report::problem::{Problem, Result};
use ix_report::report::Row;
use ix_testbed::{Namespace, VethEnd};
use serde_json::json;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

/// Help of the benchmark.
pub const HELP: &str = "Measures an echo client's rate alone, and beside crowds of other peers: \
    1,000 that ask for more than they read, 10,000 that begin a handshake and do not finish it, \
    10,000 that ask for something and keep their windows closed but answer every probe; each crowd, \
    and all at once. Then the crowd has gone, its hosts reset what still arrives, and the dataplane's \
    flows, buffers and memory are those of before. `of alone` is the rate divided by that without a \
    crowd. --quick has a tenth of the peers. Needs root.";

/// Bytes of a message.
const SIZE: usize = 64;
/// Longest wait until nothing of a crowd is left.
const SETTLE: Duration = Duration::from_secs(60);
/// Networks of the crowd, behind the client's end (RFC 2544).
const CROWD_NET: (Ipv4Addr, u8) = (Ipv4Addr::new(198, 18, 0, 0), 15);
/// The road to them: the client's end, and theirs.
const ROAD: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 65, 0, 1), Ipv4Addr::new(10, 65, 0, 2)];
const ROAD_PREFIX: u8 = 30;
const ROAD_LINKS: [&str; 2] = ["ix-road", "ix-crowd"];

/// The crowds, with their names in results.
const CROWDS: [(&str, Crowd); 5] = [
    ("none", Crowd { slow: 0, half_open: 0, closed: 0 }),
    ("slow readers", Crowd { slow: 1_000, half_open: 0, closed: 0 }),
    ("half open", Crowd { slow: 0, half_open: 10_000, closed: 0 }),
    ("closed windows", Crowd { slow: 0, half_open: 0, closed: 10_000 }),
    ("all", Crowd { slow: 1_000, half_open: 10_000, closed: 10_000 }),
];
/// What a row without a crowd that comes after them is called.
const GONE: &str = "gone";

/// Measures all crowds.
pub fn measure(lab: &Lab, args: &BenchArgs, notes: &mut Vec<String>) -> Result<Vec<Row>> {
    if lab.device() == Device::Memif {
        let why = "its clients are on Linux, and memif connects IX to IX only";
        return Err(Problem::new("cannot measure hostile peers over memif", why)
            .mend("use --device afxdp or tap"));
    }
    if !ix_sys::process::is_root() {
        let why = "the crowd's packets are made by hand, and its network is a namespace of its own";
        return Err(
            Problem::new("cannot make hostile peers without root", why).mend("run it as root")
        );
    }
    ix_programs::socket::raise_descriptor_limit()
        .map_err(|e| Problem::new("cannot open so many connections", e))?;
    let (seconds, runs) = match args.quick {
        true => (args.seconds.unwrap_or(1.0), args.runs.unwrap_or(1)),
        false => (args.seconds.unwrap_or(5.0), args.runs.unwrap_or(3)),
    };
    let crowds: Vec<(&str, Crowd)> = match args.quick {
        true => [CROWDS[0], CROWDS[4]].map(|(name, crowd)| (name, crowd.tenth())).to_vec(),
        false => CROWDS.to_vec(),
    };
    let beyond = make_road(lab)?;
    let hosts: Vec<Host> = lab.each_on_ix().chain([Host::BLOCKING]).collect();
    let mut rows: Vec<(Host, Vec<Row>)> = hosts
        .into_iter()
        .map(|host| {
            let kinds = crowds.iter().copied().chain([(GONE, CROWDS[0].1)]);
            (host, kinds.map(|(name, crowd)| row(lab, host, name, crowd)).collect())
        })
        .collect();
    for run in 1..=runs {
        for (host, rows) in &mut rows {
            let place = Place { lab, beyond: &beyond, host: *host };
            eprintln!("ix: run {run}/{runs}: {}", lab.system_of(*host));
            place.once(&crowds, seconds, rows)?;
        }
    }
    notes.extend([
        "one client of Linux, one message at a time; the crowd's processes share its hardware thread"
            .to_owned(),
        format!(
            "{GONE}: after the crowds; flows, buffers and memory are those of that moment, and the \
             hosts of the crowd reset what still comes to them"
        ),
        "reset: connections of the crowd that were reset so far, because almost no frame was left"
            .to_owned(),
        "buffers: frames that are neither free nor in a device; memory: pages of the dataplane that \
         exist, or those of the program where both are one process"
            .to_owned(),
    ]);
    Ok(rows.into_iter().flat_map(|(_, rows)| rows).collect())
}

fn row(lab: &Lab, host: Host, name: &str, crowd: Crowd) -> Row {
    Row {
        system: lab.system_of(host).to_owned(),
        domain: host.domain(),
        mode: if host.is_ix() { "run to completion" } else { "blocking" }.to_owned(),
        device: lab.device_of(host).to_owned(),
        client: "linux".to_owned(),
        client_mode: "blocking".to_owned(),
        connections: 1,
        size: SIZE as u64,
        also: vec![
            ("crowd", json!(name)),
            ("slow_readers", json!(crowd.slow)),
            ("half_open_peers", json!(crowd.half_open)),
            ("closed_windows", json!(crowd.closed)),
        ],
        ..Row::default()
    }
}

/// A network behind the client's end, for hosts that no stack answers for. Linux at the client's
/// end forwards between it and the servers.
fn make_road(lab: &Lab) -> Result<Namespace> {
    let cannot = |e: ix_testbed::Error| {
        Problem::new("cannot make a network for the crowd", e).mend("see `ix doctor`")
    };
    let make = || {
        let (beyond, client) = (Namespace::new()?, lab.client_namespace());
        client.add_veth(&VethEnd::new(ROAD_LINKS[0]), &beyond, &VethEnd::new(ROAD_LINKS[1]))?;
        client.add_address(ROAD_LINKS[0], ROAD[0], ROAD_PREFIX)?;
        beyond.add_address(ROAD_LINKS[1], ROAD[1], ROAD_PREFIX)?;
        client.set_up(ROAD_LINKS[0], true)?;
        beyond.set_up(ROAD_LINKS[1], true)?;
        client.wait_running(ROAD_LINKS[0], SETTLE)?;
        let (network, prefix) = CROWD_NET;
        client.add_route(network, prefix, ROAD[1])?;
        client.set_sysctl("net/ipv4/ip_forward", "1")?;
        let gateway = lab.client_of(Host::BLOCKING);
        lab.server_namespace().add_route(network, prefix, gateway)?;
        Ok(beyond)
    };
    make().map_err(cannot)
}

/// Where a system is measured.
struct Place<'a> {
    lab: &'a Lab,
    beyond: &'a Namespace,
    host: Host,
}

impl Place<'_> {
    /// One run: all crowds beside one server, one after the other.
    fn once(&self, crowds: &[(&str, Crowd)], seconds: f64, rows: &mut [Row]) -> Result<()> {
        let mut serve = Serve::echo(&[SIZE.to_string()]);
        serve.run_flags = vec!["--gateway".into(), self.lab.client_of(self.host).to_string()];
        let mut server = self.lab.start(self.host, &serve)?;
        let mut honest = Honest::connect(self.lab, server.address())?;
        // Addresses are resolved, and caches and pools are filled.
        honest.measure(0.3)?;
        let control = server.control();
        let (mut alone, mut gone_s) = (0.0, 0.0f64);
        let before = Held::of(control.as_deref());
        for ((name, crowd), row) in crowds.iter().zip(rows.iter_mut()) {
            let at = server.address();
            eprintln!("ix: {}, crowd: {name}", self.lab.system_of(self.host));
            let gathered = Gathering::meet(self.lab, self.beyond, at, *crowd)?;
            let seen = honest.measure(seconds)?;
            let held = Held::of(control.as_deref());
            gathered.leave(|| settled(control.as_deref(), &mut gone_s))?;
            server.check()?;
            if *name == CROWDS[0].0 {
                alone = seen.msgs_per_s;
            }
            row.add(figures(seen, alone, held));
        }
        let Some(gone) = rows.get_mut(crowds.len()) else { return Ok(()) };
        gone.add(figures(honest.measure(seconds)?, alone, Held::of(control.as_deref())));
        gone.add([("gone_s", gone_s)]);
        if let (Some(before), Some(after)) = (before, Held::of(control.as_deref())) {
            gone.add([("memory_before_mb", before.memory_mb), ("flows_before", before.flows)]);
            after.check(&before)?;
        }
        end(server, honest);
        Ok(())
    }
}

fn end(server: Server, honest: Honest) {
    drop(honest);
    server.stop();
}

fn figures(
    seen: honest::Seen,
    alone: f64,
    held: Option<Held>,
) -> impl IntoIterator<Item = (&'static str, f64)> {
    let mut figures = vec![
        ("msgs_per_s", seen.msgs_per_s),
        ("p50_us", seen.p50_us),
        ("p99_us", seen.p99_us),
        ("of_alone", seen.msgs_per_s / alone.max(1.0)),
    ];
    if let Some(held) = held {
        figures.extend([
            ("flows", held.flows),
            ("half_open", held.half_open),
            ("frames", held.frames),
            ("memory_mb", held.memory_mb),
            ("reset_for_buffers", held.reset),
        ]);
    }
    figures
}

/// What a dataplane holds at one time.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    flows: f64,
    half_open: f64,
    frames: f64,
    memory_mb: f64,
    /// Connections that were reset so far, because no frame was left.
    reset: f64,
}

impl Held {
    fn of(control: Option<&Path>) -> Option<Held> {
        let status = Client::connect(control?).and_then(|mut client| client.stats()).ok()?;
        let count = |name| status.total(name) as f64;
        let held = |used, device| (count(used) - count(device)).max(0.0);
        Some(Held {
            flows: count("flows"),
            half_open: count("half_open"),
            frames: held("rx_frames_in_use", "rx_frames_in_device")
                + held("tx_frames_in_use", "tx_frames_in_device"),
            reset: count("tcp.reset_for_buffers"),
            memory_mb: memory_bytes(&status) as f64 / f64::from(1 << 20),
        })
    }

    /// Fails if more is held than before. Frames may be in flight.
    fn check(&self, before: &Held) -> Result<()> {
        const IN_FLIGHT: f64 = 64.0;
        if self.flows <= before.flows && self.frames <= before.frames + IN_FLIGHT {
            return Ok(());
        }
        let why = format!(
            "{} flows and {} buffers are left of the crowd after {} s",
            self.flows - before.flows,
            self.frames - before.frames,
            SETTLE.as_secs()
        );
        Err(Problem::new("the dataplane has not let go of its hostile peers", why))
    }
}

/// Pages of the dataplane's process that exist.
fn memory_bytes(status: &Status) -> u64 {
    match &status.sharing {
        Some(sharing) => sharing.memory.parts().iter().map(|(_, bytes)| bytes).sum(),
        None => crate::soak::rss_kb(status.pid.into()) << 10,
    }
}

/// Waits until only the honest client is left; keeps the longest time that this took, s.
fn settled(control: Option<&Path>, longest_s: &mut f64) {
    let begin = Instant::now();
    while begin.elapsed() < SETTLE {
        match Held::of(control) {
            Some(held) if held.flows > 1.0 => std::thread::sleep(Duration::from_millis(50)),
            _ => break,
        }
    }
    *longest_s = longest_s.max(begin.elapsed().as_secs_f64());
}
