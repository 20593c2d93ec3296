//! The points that a benchmark measures. Parameters are those of IX's own benchmarks (ix-bench),
//! and of the papers if there are such.
use super::serve::{Program, Serve};
use crate::args::{BenchArgs, ServerKind};
use serde_json::{Value, json};

/// Connections of IX's bench_short: a hundred on each client machine.
const SHORT_CONNECTIONS: usize = 100;
const SHORT_MESSAGES: [u64; 8] = [2, 8, 32, 64, 128, 256, 512, 1024];
const SHORT_SIZES: [u64; 4] = [256, 1024, 4096, 8192];
/// Default size of a message, bytes.
pub(super) const MESSAGE_BYTES: u64 = 64;
/// Batch bounds of the papers' figures.
const BATCHES: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Connections at low and at high load.
const BATCH_LOADS: [(&str, usize); 2] = [("low", 1), ("high", 256)];
/// Sizes of Arrakis' UDP echo.
pub(super) const UDP_SIZES: [u64; 2] = [64, 1024];
/// Datagrams in flight: enough that the server never waits.
const UDP_DEPTH: usize = 64;
/// Messages in flight over all connections.
const ROUNDS_IN_FLIGHT: usize = 64;
/// Ports of a server with very many connections: each one gives a client its whole range of ports
/// again.
const ROUNDS_PORTS: usize = 32;
/// Connections opened per second, at least.
const ROUNDS_OPENED_PER_S: f64 = 4000.0;

/// What a point measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figures {
    /// Messages and their round trips.
    Messages,
    /// Messages, and half a round trip with the goodput that follows from it.
    OneWay,
    /// Messages, and connections per second.
    Churn,
    /// Few messages in flight on very many connections.
    Rounds,
    /// One transfer.
    Bulk,
    /// Time of a packet in each part.
    Breakdown,
}

/// Servers that a point is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// All.
    All,
    /// IX only: Linux has no such parameter.
    Ix,
    /// Linux only, to compare IX's points with.
    Linux,
}

/// One point: the arguments of server and client, and the labels of the row.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Number of connections.
    pub connections: usize,
    /// Bytes of a message.
    pub size: u64,
    /// More labels.
    pub also: Vec<(&'static str, Value)>,
    /// The server.
    pub server: Serve,
    /// Arguments of the client.
    pub client: Vec<String>,
    /// Checksum and segmentation offloads of Linux's ends of the link.
    pub offloads: bool,
    /// Largest IP packet of the link, if the point names one.
    pub mtu: Option<u32>,
    /// What it measures.
    pub figures: Figures,
    /// Servers that it is for.
    pub on: On,
    /// Time until the load begins, beyond the measurement, s.
    pub setup_seconds: f64,
}

/// All points of a benchmark, with length and number of measurements.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The points.
    pub points: Vec<Point>,
    /// Length of one measurement.
    pub seconds: f64,
    /// Measurements of each point.
    pub runs: usize,
}

impl Plan {
    /// The plan of the benchmark `name` with the changes of the flags, for a server with `cores`
    /// cores.
    pub fn of(name: &str, args: &BenchArgs, cores: usize) -> Plan {
        let points = match name {
            "pingpong" => pingpong(args),
            "short" => short(args, cores),
            "bulk" => bulk(args),
            "connscaling" => connscaling(args),
            "batch" => batch(args),
            "churn" => churn(args),
            "udp-echo" => udp_echo(args),
            _ => echo(args),
        };
        let (seconds, runs) = length(args);
        let mut plan = Plan { points, seconds, runs };
        plan.tell_seconds();
        plan
    }

    /// The echo points of `ix demo`.
    pub fn demo(connections: &[usize], seconds: f64, runs: usize) -> Plan {
        let points = connections.iter().map(|&c| echo_point(c, MESSAGE_BYTES)).collect();
        let mut plan = Plan { points, seconds: seconds.clamp(0.05, 3600.0), runs: runs.max(1) };
        plan.tell_seconds();
        plan
    }

    fn tell_seconds(&mut self) {
        for point in self.points.iter_mut().filter(|p| p.figures != Figures::Bulk) {
            point.client.extend(["--seconds".to_owned(), self.seconds.to_string()]);
        }
    }
}

/// Seconds and runs. IX's benchmarks measure each point for five seconds; the figures settle long
/// before, and the median of five runs is worth more than one long run.
pub(super) fn length(args: &BenchArgs) -> (f64, usize) {
    let (seconds, runs) = if args.quick { (0.3, 1) } else { (1.0, 5) };
    let seconds = args.seconds.unwrap_or(seconds).clamp(0.05, 3600.0);
    (seconds, args.runs.unwrap_or(runs).max(1))
}

fn texts<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

fn echo_point(connections: usize, size: u64) -> Point {
    let (bytes, count) = (size.to_string(), connections.to_string());
    Point {
        connections,
        size,
        also: Vec::new(),
        server: Serve::echo(std::slice::from_ref(&bytes)),
        client: texts(["--size", &bytes, "--connections", &count]),
        offloads: true,
        mtu: None,
        figures: Figures::Messages,
        on: On::All,
        setup_seconds: 0.0,
    }
}

/// The list that the user gave, or the default.
pub(super) fn or<T: Copy>(asked: &[T], usual: &[T]) -> Vec<T> {
    if asked.is_empty() { usual.to_vec() } else { asked.to_vec() }
}

fn echo(args: &BenchArgs) -> Vec<Point> {
    let usual: &[usize] = if args.quick { &[1, 64] } else { &[1, 16, 64, 256, 1024] };
    let connections = or(&args.connections, usual);
    let sizes = or(&args.size, &[MESSAGE_BYTES]);
    sizes.iter().flat_map(|&size| connections.iter().map(move |&c| echo_point(c, size))).collect()
}

fn pingpong(args: &BenchArgs) -> Vec<Point> {
    let full: Vec<u64> = [64]
        .into_iter()
        .chain((1..=10).map(|i| i * 20_000))
        .chain([300_000, 400_000, 524_288])
        .collect();
    let usual = if args.quick { vec![64, 20_000, 200_000] } else { full };
    let connections = or(&args.connections, &[1]);
    let sizes = or(&args.size, &usual);
    let figures = |c| if c == 1 { Figures::OneWay } else { Figures::Messages };
    let point = |c, size| Point { figures: figures(c), ..echo_point(c, size) };
    sizes.iter().flat_map(|&size| connections.iter().map(move |&c| point(c, size))).collect()
}

/// A point whose connections carry `messages` messages and then end.
fn short_point(connections: usize, size: u64, messages: u64, cores: usize) -> Point {
    let mut point = echo_point(connections, size);
    point.also.push(("messages_per_connection", json!(messages)));
    point.also.push(("cores", json!(cores)));
    point.server.threads = cores;
    point.client.extend(texts(["--messages-per-connection", &messages.to_string()]));
    point.figures = Figures::Churn;
    point
}

/// Three sweeps: cores, messages per connection, sizes. The latter two use all cores.
fn short(args: &BenchArgs, cores: usize) -> Vec<Point> {
    let all_cores: Vec<usize> = (1..=cores.max(1)).collect();
    let most = or(&args.cores, &all_cores).into_iter().max().unwrap_or(1);
    let messages: &[u64] = if args.quick { &[8, 1024] } else { &SHORT_MESSAGES };
    let sizes: &[u64] = if args.quick { &[] } else { &SHORT_SIZES };
    let mut sweep: Vec<(u64, u64, usize)> = Vec::new();
    sweep.extend(or(&args.cores, &all_cores).iter().map(|&n| (1, MESSAGE_BYTES, n)));
    sweep.extend(or(&args.messages, messages).iter().map(|&m| (m, MESSAGE_BYTES, most)));
    sweep.extend(or(&args.size, sizes).iter().map(|&size| (1, size, most)));
    let mut points: Vec<Point> = Vec::new();
    for (messages, size, cores) in sweep {
        for connections in or(&args.connections, &[SHORT_CONNECTIONS]) {
            let point = short_point(connections, size, messages, cores);
            if !points.contains(&point) {
                points.push(point);
            }
        }
    }
    points
}

/// Connections per second: by their number, and by which end closes them and how.
fn churn(args: &BenchArgs) -> Vec<Point> {
    let usual: &[usize] = if args.quick { &[16, 128] } else { &[1, 16, 128, 1024] };
    let sizes = or(&args.size, &[MESSAGE_BYTES]);
    let messages = or(&args.messages, &[1]);
    let mut points = Vec::new();
    for close in ["client resets", "client closes", "server closes"] {
        for (&size, &messages) in sizes.iter().flat_map(|s| messages.iter().map(move |m| (s, m))) {
            for connections in or(&args.connections, usual) {
                let mut point = short_point(connections, size, messages, 1);
                point.also.retain(|(key, _)| *key != "cores");
                point.also.push(("close", json!(close)));
                match close {
                    "client closes" => point.client.extend(texts(["--close", "fin"])),
                    "server closes" => {
                        let count = messages.to_string();
                        point.client.extend(texts(["--close", "wait"]));
                        let limit = texts(["--messages-per-connection", &count]);
                        point.server.arguments.extend(limit);
                    }
                    _ => {}
                }
                points.push(point);
            }
        }
    }
    points
}

/// 10^1.4 to 10^5.4 connections in steps of 10^0.2, as in IX's bench_connscaling.
pub(super) fn scaling_connections() -> Vec<usize> {
    (0..=20).map(|i| 10f64.powf(1.4 + 0.2 * f64::from(i)) as usize).collect()
}

fn connscaling(args: &BenchArgs) -> Vec<Point> {
    let full = scaling_connections();
    let usual = if args.quick { vec![full[0], full[8], full[13]] } else { full };
    let sizes = or(&args.size, &[MESSAGE_BYTES]);
    let points = or(&args.connections, &usual).into_iter().flat_map(|connections| {
        sizes.clone().into_iter().map(move |size| {
            let in_flight = ROUNDS_IN_FLIGHT.min(connections);
            let mut point = echo_point(connections, size);
            let ports = texts(["--ports", &ROUNDS_PORTS.to_string()]);
            point.also.push(("in_flight", json!(in_flight)));
            point.server.arguments.extend(ports.clone());
            point.client.extend(ports);
            point.client.extend(texts(["--in-flight", &in_flight.to_string()]));
            point.figures = Figures::Rounds;
            point.setup_seconds = connections as f64 / ROUNDS_OPENED_PER_S;
            point
        })
    });
    points.collect()
}

/// The batch bound B at low and at high load, beside Linux, which has none.
fn batch(args: &BenchArgs) -> Vec<Point> {
    let bounds = or(&args.batch, if args.quick { &[1, 16, 64] } else { &BATCHES });
    let sizes = or(&args.size, &[MESSAGE_BYTES]);
    let asked: Vec<_> = args.connections.iter().map(|&c| ("asked", c)).collect();
    let loads = or(&asked, &BATCH_LOADS);
    let bounds = std::iter::once(None).chain(bounds.into_iter().map(Some));
    let mut points = Vec::new();
    for bound in bounds {
        for &size in &sizes {
            for &(load, connections) in &loads {
                let mut point = echo_point(connections, size);
                point.also = vec![("load", json!(load)), ("batch", json!(bound))];
                point.server.batch = bound;
                point.on = if bound.is_some() { On::Ix } else { On::Linux };
                points.push(point);
            }
        }
    }
    points
}

/// How a server receives its datagrams. On Linux: many per call, or one. On IX: by the dataplane's
/// UDP, by its own UDP over whole frames (Arrakis' native interface), unmodified on sockets, or
/// inside the driver.
const UDP_SERVERS: [Option<&str>; 6] =
    [None, Some(ONE_A_CALL), Some("udp"), Some("packets"), Some("sockets"), Some(DRIVER)];
const ONE_A_CALL: &str = "one a call";
const DRIVER: &str = "driver";

/// Arrakis' UDP echo: one flow, a server that is never idle, and the time of a packet in each part.
fn udp_echo(args: &BenchArgs) -> Vec<Point> {
    let depths = or(&args.connections, &[UDP_DEPTH]);
    let mut points = Vec::new();
    for size in or(&args.size, &UDP_SIZES) {
        for &depth in &depths {
            points.extend(UDP_SERVERS.map(|server| udp_point(size, depth, server)));
        }
    }
    let asked = |point: &Point| match args.server {
        None => true,
        Some(kind) => point.server.run_flags.is_empty() == (kind == ServerKind::Native),
    };
    points.retain(|point| point.on == On::Linux || asked(point));
    points
}

fn udp_point(size: u64, depth: usize, server: Option<&str>) -> Point {
    let mut point = echo_point(1, size);
    point.also = vec![("in_flight", json!(depth)), ("server", json!(server))];
    let linux = matches!(server, None | Some(ONE_A_CALL));
    point.on = if linux { On::Linux } else { On::Ix };
    point.server.arguments.push("--udp".to_owned());
    match server {
        Some(ONE_A_CALL) => point.server.arguments.extend(texts(["--burst", "1"])),
        Some(DRIVER) => point.server.program = Program::Driver,
        _ => {}
    }
    let only_ix: &[&str] = match server {
        None | Some(ONE_A_CALL | DRIVER) => &[],
        Some("sockets") => &["--linux"],
        Some("packets") => &["--poll", "--packets"],
        Some(_) => &["--poll"],
    };
    point.server.only_ix = only_ix.iter().map(|flag| (*flag).to_owned()).collect();
    if server == Some("sockets") {
        point.server.run_flags = texts(["--posix", "on"]);
    }
    point.client.extend(texts(["--udp", "--depth", &depth.to_string()]));
    point.figures = Figures::Breakdown;
    point
}

fn bulk(args: &BenchArgs) -> Vec<Point> {
    let usual = if args.quick { 64 << 20 } else { 1 << 30 };
    let bytes = or(&args.size, &[usual]);
    let mtus: Vec<Option<u32>> = match args.mtu.is_empty() {
        true => vec![None],
        false => args.mtu.iter().copied().map(Some).collect(),
    };
    let variants = [("send", false), ("recv", false), ("send", true), ("recv", true)];
    let ways = mtus.into_iter().flat_map(|mtu| variants.map(|(way, loads)| (way, loads, mtu)));
    let ways: Vec<_> = ways.collect();
    let points = bytes.iter().flat_map(|&bytes| {
        ways.iter().map(move |&(direction, offloads, mtu)| Point {
            size: bytes,
            also: [
                ("direction", json!(direction)),
                ("offloads", json!(if offloads { "on" } else { "off" })),
            ]
            .into_iter()
            .chain(mtu.map(|mtu| ("mtu", json!(mtu))))
            .collect(),
            mtu,
            server: Serve::echo(&["bulk".to_owned()]),
            client: texts(["--bulk", direction, "--bytes", &bytes.to_string()]),
            offloads,
            figures: Figures::Bulk,
            ..echo_point(1, bytes)
        })
    });
    points.collect()
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
