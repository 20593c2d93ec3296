//! What comes first on the page: how many times Linux IX is, by benchmark and server.
//!
//! A point of IX is set against the best that Linux has at the same point, in whatever mode. Where
//! a benchmark offers a load step by step, the highest rate that was reached is set against
//! Linux's highest; latencies of different loads are not compared.
use super::figures::OFFERED;
use super::read::{Results, Row};
use super::series::{self, number, word};
use std::cmp::Ordering;

/// Quantities that are compared, most telling first, and whether more is better. Of those of one
/// name the first that both systems have is taken.
const QUANTITIES: [(&str, &str, bool); 12] = [
    ("rate", "msgs_per_busy_s", true),
    ("rate", "msgs_per_s", true),
    ("rate", "connections_per_s", true),
    ("rate", "mbit_per_s", true),
    ("median latency", "one_way_us", false),
    ("median latency", "wake_p50_us", false),
    ("median latency", "p50_us", false),
    ("99th percentile", "wake_p99_us", false),
    ("99th percentile", "p99_us", false),
    ("time of a packet", "total_ns", false),
    ("fairness", "jain_index", true),
    ("cost of idleness", "idle_cpu_us_per_s", false),
];

/// Keys of points of `ix bench loss`, and the crowd of `ix bench hostile`.
pub const PATH_KEYS: [&str; 3] = ["loss_percent", "congestion", "crowd"];

/// Some ratios: the middle, the lowest and the highest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

/// A server on IX beside Linux, by one quantity.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Who was measured.
    pub server: String,
    /// The device under it.
    pub device: String,
    /// What is compared.
    pub quantity: &'static str,
    /// How many times better than Linux, over all points.
    pub times: Spread,
    /// Points that both have.
    pub points: usize,
    /// How far the runs of one point of IX are from its median, as a part of it.
    pub runs: f64,
}

/// All lines of a benchmark.
pub fn lines(result: &Results) -> Vec<Line> {
    let rows: Vec<&Row> = result.rows.iter().collect();
    let (ours, linux): (Vec<&Row>, Vec<&Row>) = rows
        .iter()
        .copied()
        .filter(|row| word(row, "system") != "ix+linux" && !word(row, "system").is_empty())
        .partition(|row| word(row, "system") == "ix");
    let has_steps = rows.iter().any(|row| OFFERED.iter().any(|key| row.contains_key(*key)));
    let mut lines = Vec::new();
    let mut servers: Vec<String> = Vec::new();
    for row in &ours {
        let server = series::label(row, &rows);
        if !servers.contains(&server) {
            servers.push(server);
        }
    }
    for server in servers {
        let own: Vec<&Row> =
            ours.iter().copied().filter(|row| series::label(row, &rows) == server).collect();
        let mut named = Vec::new();
        for (name, key, more) in QUANTITIES {
            let usable = more || !has_steps;
            if !usable || named.contains(&name) {
                continue;
            }
            if let Some(line) = line(&server, &own, &linux, (name, key, more)) {
                named.push(name);
                lines.push(line);
            }
        }
    }
    lines
}

fn line(
    server: &str,
    own: &[&Row],
    linux: &[&Row],
    (quantity, key, more): (&'static str, &str, bool),
) -> Option<Line> {
    // Best of those rows, which differ in the offered load and in the mode only.
    let best = |rows: &mut dyn Iterator<Item = &Row>| -> Option<f64> {
        let values = rows.filter_map(|row| number(row, key)).filter(|value| *value > 0.0);
        values.reduce(if more { f64::max } else { f64::min })
    };
    let mut done: Vec<&Row> = Vec::new();
    let (mut ratios, mut runs) = (Vec::new(), Vec::new());
    for row in own.iter().copied().filter(|row| number(row, key).is_some()) {
        if done.iter().any(|other| same_point(row, other)) {
            continue;
        }
        done.push(row);
        let ours = best(&mut own.iter().copied().filter(|other| same_point(row, other)));
        let theirs = || linux.iter().copied().filter(|other| same_point(row, other));
        let same_client = |other: &&Row| word(other, "client") == word(row, "client");
        // With the same client if there is such a row.
        let theirs = best(&mut theirs().filter(same_client)).or_else(|| best(&mut theirs()));
        let (Some(ours), Some(theirs)) = (ours, theirs) else { continue };
        let ratio = if more { ours / theirs } else { theirs / ours };
        if !ratio.is_finite() {
            continue;
        }
        ratios.push(ratio);
        if let Some(median) = number(row, key).filter(|median| *median > 0.0) {
            let (low, high) = series::range(row, key, median);
            runs.push((high - median).max(median - low) / median);
        }
    }
    let count = ratios.len();
    let times = spread(ratios)?;
    let runs_spread = spread(runs).map_or(0.0, |spread| spread.median);
    let device = done.first().map_or("", |row| word(row, "device")).to_owned();
    let (server, points) = (server.to_owned(), count);
    Some(Line { server, device, quantity, times, points, runs: runs_spread })
}

/// Whether two rows are the same point, whatever load was offered. What one of them lacks is no
/// difference: Linux has no batch bound.
fn same_point(a: &Row, b: &Row) -> bool {
    let keys = series::POINT_KEYS.iter().chain(&PATH_KEYS).filter(|key| !OFFERED.contains(key));
    keys.copied().all(|key| match (a.get(key), b.get(key)) {
        (Some(a), Some(b)) => a == b || a.is_null() || b.is_null(),
        _ => true,
    })
}

/// The spread of some values; `None` without any.
pub fn spread(mut values: Vec<f64>) -> Option<Spread> {
    values.sort_by(|a, b| a.partial_cmp(b).unwrap_or(Ordering::Equal));
    let (low, high) = (*values.first()?, *values.last()?);
    let middle = values[(values.len() - 1) / 2] + values[values.len() / 2];
    Some(Spread { median: middle / 2.0, low, high })
}
