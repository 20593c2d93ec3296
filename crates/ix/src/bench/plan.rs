//! Which points a benchmark measures. Parameters are those of IX's own benchmarks (ix-bench) where
//! there is one.
use crate::args::BenchArgs;
use serde_json::{Value, json};

/// Connections of IX's bench_short: a hundred on each client machine.
const SHORT_CONNECTIONS: usize = 100;
const SHORT_MESSAGES: [u64; 9] = [1, 2, 8, 32, 64, 128, 256, 512, 1024];
const SHORT_SIZES: [u64; 4] = [256, 1024, 4096, 8192];
const MESSAGE_BYTES: u64 = 64;

/// One point: what the server and the client are told, and how the row names it.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Connections at a time.
    pub connections: usize,
    /// Bytes of a message.
    pub size: u64,
    /// What else makes the point.
    pub also: Vec<(&'static str, Value)>,
    /// Arguments of the server.
    pub server: Vec<String>,
    /// Arguments of the client.
    pub client: Vec<String>,
    /// Checksum and segmentation offloads of Linux's ends of the link.
    pub offloads: bool,
    /// Half a round trip and the rate that follows from it are of interest.
    pub one_way: bool,
}

impl Point {
    /// Whether connections come and go.
    pub fn churns(&self) -> bool {
        self.also.iter().any(|(key, _)| *key == "messages_per_connection")
    }
}

/// All points of a benchmark, and how often and how long.
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
    /// The plan of the benchmark `name`, with what the flags change.
    pub fn of(name: &str, args: &BenchArgs) -> Plan {
        let points = match name {
            "pingpong" => pingpong(args),
            "short" => short(args),
            "bulk" => bulk(args),
            _ => echo(args),
        };
        // IX's points take five seconds; the figures settle long before.
        let (seconds, runs) = if args.quick { (0.5, 1) } else { (2.0, 5) };
        let mut plan = Plan {
            points,
            seconds: args.seconds.unwrap_or(seconds).clamp(0.05, 3600.0),
            runs: args.runs.unwrap_or(runs).max(1),
        };
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
        for point in &mut self.points {
            if !point.client.iter().any(|arg| arg == "--bulk") {
                point.client.extend(["--seconds".to_owned(), self.seconds.to_string()]);
            }
        }
    }
}

fn echo_point(connections: usize, size: u64) -> Point {
    let text = |n: u64| n.to_string();
    let client =
        ["--size".to_owned(), text(size), "--connections".to_owned(), connections.to_string()];
    Point {
        connections,
        size,
        also: Vec::new(),
        server: vec![text(size)],
        client: client.to_vec(),
        offloads: true,
        one_way: false,
    }
}

/// The list that was asked for, or the usual one.
fn or<T: Copy>(asked: &[T], usual: &[T]) -> Vec<T> {
    if asked.is_empty() { usual.to_vec() } else { asked.to_vec() }
}

fn echo(args: &BenchArgs) -> Vec<Point> {
    let usual: &[usize] = if args.quick { &[1, 64] } else { &[1, 16, 64, 256] };
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
    let point = |c, size| Point { one_way: c == 1, ..echo_point(c, size) };
    sizes.iter().flat_map(|&size| connections.iter().map(move |&c| point(c, size))).collect()
}

fn short(args: &BenchArgs) -> Vec<Point> {
    let messages: &[u64] = if args.quick { &[1, 8, 1024] } else { &SHORT_MESSAGES };
    let sizes: &[u64] = if args.quick { &[] } else { &SHORT_SIZES };
    let sizes = or(&args.size, sizes);
    let sweep = messages
        .iter()
        .map(|&m| (m, MESSAGE_BYTES))
        .chain(sizes.into_iter().filter(|&size| size != MESSAGE_BYTES).map(|size| (1, size)));
    let connections = or(&args.connections, &[SHORT_CONNECTIONS]);
    let points = sweep.flat_map(|(messages, size)| {
        connections.iter().map(move |&c| {
            let mut point = echo_point(c, size);
            point.also.push(("messages_per_connection", json!(messages)));
            point.client.extend(["--messages-per-connection".to_owned(), messages.to_string()]);
            point
        })
    });
    points.collect()
}

fn bulk(args: &BenchArgs) -> Vec<Point> {
    let usual = if args.quick { 128 << 20 } else { 1 << 30 };
    let bytes = or(&args.size, &[usual]);
    let variants = [("send", false), ("recv", false), ("send", true), ("recv", true)];
    let points = bytes.iter().flat_map(|&bytes| {
        variants.map(|(direction, offloads)| Point {
            connections: 1,
            size: bytes,
            also: vec![
                ("direction", json!(direction)),
                ("offloads", json!(if offloads { "on" } else { "off" })),
            ],
            server: vec!["bulk".to_owned()],
            client: ["--bulk", direction, "--bytes", &bytes.to_string()]
                .map(str::to_owned)
                .to_vec(),
            offloads,
            one_way: false,
        })
    });
    points.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Domain;

    fn args() -> BenchArgs {
        BenchArgs {
            device: None,
            client: None,
            connections: vec![],
            size: vec![],
            seconds: None,
            runs: None,
            domain: Domain::None,
            quick: false,
            json: None,
        }
    }

    #[test]
    fn the_points_are_those_of_ixs_benchmarks() {
        let pingpong = Plan::of("pingpong", &args());
        let sizes: Vec<_> = pingpong.points.iter().map(|p| p.size).collect();
        assert_eq!(sizes.len(), 14);
        assert_eq!((sizes[0], sizes[1], sizes[10], sizes[13]), (64, 20_000, 200_000, 524_288));
        assert!(pingpong.points.iter().all(|p| p.connections == 1));
        let short = Plan::of("short", &args());
        assert_eq!(short.points.len(), 13);
        assert!(short.points.iter().all(|p| p.connections == 100));
        assert_eq!(short.points[12].also, [("messages_per_connection", json!(1))]);
        assert_eq!((pingpong.runs, short.runs), (5, 5), "medians of five");
    }

    #[test]
    fn flags_replace_what_they_name() {
        let asked = BenchArgs {
            connections: vec![3, 5],
            size: vec![100],
            seconds: Some(0.25),
            runs: Some(2),
            ..args()
        };
        let plan = Plan::of("echo", &asked);
        let points: Vec<_> = plan.points.iter().map(|p| (p.connections, p.size)).collect();
        assert_eq!(points, [(3, 100), (5, 100)]);
        assert_eq!(plan.points[0].client.join(" "), "--size 100 --connections 3 --seconds 0.25");
        assert_eq!((plan.points[0].server.join(" ").as_str(), plan.runs), ("100", 2));
    }

    #[test]
    fn bulk_goes_both_ways_with_and_without_offloads() {
        let plan = Plan::of("bulk", &BenchArgs { quick: true, ..args() });
        assert_eq!(plan.points.len(), 4);
        assert!(plan.points.iter().all(|p| !p.client.contains(&"--seconds".to_owned())));
        assert!(plan.points.iter().any(|p| p.offloads) && plan.points.iter().any(|p| !p.offloads));
    }
}
