//! Turns rows into series: which points belong together, and with which name and colour.
use super::chart::{Point, Series};
use super::read::Row;
use super::text;
use serde_json::Value;

/// Keys that make a point, besides who was measured; everything else in a row is an outcome.
pub const POINT_KEYS: [&str; 34] = [
    "workload",
    "work",
    "rtt_ms",
    "jitter_percent",
    "burst_packets",
    "reorder_percent",
    "connections",
    "size",
    "messages_per_connection",
    "cores",
    "processes",
    "connection",
    "neighbour",
    "threads",
    "batch",
    "load",
    "direction",
    "offloads",
    "transport",
    "protocol",
    "depth",
    "in_flight",
    "close",
    "end",
    "kept_by",
    "pages",
    "ports",
    "rate",
    "offered_per_s",
    "wanted_per_s",
    "target_per_s",
    "second",
    "point",
    "share_of_peak",
];

/// A number of a row.
pub fn number(row: &Row, key: &str) -> Option<f64> {
    row.get(key).and_then(Value::as_f64).filter(|value| value.is_finite())
}

/// A text of a row.
pub fn word<'a>(row: &'a Row, key: &str) -> &'a str {
    row.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Different values in order of appearance.
fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut kept = Vec::new();
    for value in values {
        if !kept.contains(&value) {
            kept.push(value);
        }
    }
    kept
}

/// How many different values of a key there are.
pub fn variety(rows: &[&Row], key: &str) -> usize {
    distinct(rows.iter().filter_map(|row| row.get(key))).len()
}

/// Name of the server, as short as it is unique among `all`.
pub fn server(row: &Row, all: &[&Row]) -> String {
    let (system, mode) = (word(row, "system"), word(row, "mode"));
    let same = || all.iter().copied().filter(|other| word(other, "system") == system);
    let several = |key: &str| distinct(same().map(|other| word(other, key))).len() > 1;
    let mut name = with_mode(system, "");
    for key in ["server", "device", "domain"] {
        if several(key) && !word(row, key).is_empty() {
            name += &format!(" {}", word(row, key));
        }
    }
    // Linux performs differently in each mode.
    if !mode.is_empty() && (system != "ix" || several("mode")) {
        name += &format!(", {mode}");
    }
    name
}

/// Server and, where a server has several, client.
pub fn label(row: &Row, all: &[&Row]) -> String {
    let name = server(row, all);
    let same = || all.iter().copied().filter(|other| server(other, all) == name);
    let clients = distinct(same().map(|other| (word(other, "client"), word(other, "client_mode"))));
    let client = word(row, "client");
    if clients.len() < 2 || client.is_empty() {
        return name;
    }
    let modes = distinct(clients.iter().filter(|(c, _)| *c == client).map(|(_, m)| *m));
    let mode = if modes.len() > 1 { word(row, "client_mode") } else { "" };
    format!("{name} ← {}", with_mode(client, mode))
}

/// A system's name, with its mode where there is one.
pub fn with_mode(system: &str, mode: &str) -> String {
    let name = match system {
        "ix" => "IX",
        "linux" => "Linux",
        other => other,
    };
    if mode.is_empty() { name.to_owned() } else { format!("{name}, {mode}") }
}

/// Groups of rows that differ only in `x` and in who was measured, with what they have in common
/// that others have not. Returns the groups with most values of `x`, in order of appearance.
pub fn slices<'a>(rows: &[&'a Row], x: &str, ignored: &[&str]) -> Vec<(String, Vec<&'a Row>)> {
    let with_x: Vec<_> = rows.iter().copied().filter(|row| row.contains_key(x)).collect();
    let others = || {
        let varies = |key: &&&str| variety(&with_x, key) > 1;
        POINT_KEYS.iter().filter(|key| **key != x && !ignored.contains(key)).filter(varies)
    };
    let point = |row: &Row| -> Vec<_> { others().map(|key| row.get(*key).cloned()).collect() };
    let mut slices: Vec<(String, Vec<&Row>)> = Vec::new();
    for values in distinct(with_x.iter().map(|row| point(row))) {
        let named = others().zip(&values).filter_map(|(key, value)| {
            Some(format!("{} {}", text::heading(key), text::of_value(value.as_ref()?)))
        });
        let name = named.collect::<Vec<_>>().join(" · ");
        slices.push((name, with_x.iter().copied().filter(|row| point(row) == values).collect()));
    }
    let most = slices.iter().map(|(_, rows)| variety(rows, x)).max().unwrap_or(0);
    slices.retain(|(_, rows)| variety(rows, x) * 2 > most);
    slices
}

/// A class of colour for each label: the system's, one shade after the other.
pub fn colours(rows: &[(String, &Row)]) -> Vec<String> {
    let kind = |row: &Row| match word(row, "system") {
        "ix" => "ix",
        "linux" => "linux",
        _ => "other",
    };
    let colour = |(index, (_, row)): (usize, &(String, &Row))| {
        let before = rows[..index].iter().filter(|(_, other)| kind(other) == kind(row)).count();
        format!("{}{}", kind(row), before % 4)
    };
    rows.iter().enumerate().map(colour).collect()
}

/// Lines of figure `y` over `x`; `ys` has the keys, and the names of their lines.
pub fn lines(rows: &[&Row], all: &[&Row], x: &str, ys: &[(&str, &str)]) -> Vec<Series> {
    let mut named: Vec<(String, &Row, &str)> = Vec::new();
    for (key, suffix) in ys {
        for row in rows.iter().copied().filter(|row| number(row, key).is_some()) {
            let parts = [&label(row, all), *suffix];
            let label = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>();
            let label = label.join(": ");
            if !named.iter().any(|(other, _, _)| *other == label) {
                named.push((label, row, key));
            }
        }
    }
    let legend: Vec<_> = named.iter().map(|(label, row, _)| (label.clone(), *row)).collect();
    let colours = colours(&legend);
    let series = named.into_iter().zip(colours).map(|((name, first, key), colour)| {
        let own = label(first, all);
        let own = rows.iter().copied().filter(|row| label(row, all) == own);
        let mut points: Vec<_> = own.filter_map(|row| point(row, x, key)).collect();
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        Series { label: name, colour, points }
    });
    series.collect()
}

/// A row as a point.
fn point(row: &Row, x: &str, y: &str) -> Option<Point> {
    let value = number(row, y)?;
    Some(Point { x: number(row, x)?, y: value, range: range(row, y, value) })
}

/// Lowest and highest of the runs.
pub fn range(row: &Row, key: &str, value: f64) -> (f64, f64) {
    let end = |end: &str| number(row, &format!("{key}_{end}")).unwrap_or(value);
    (end("min").min(value), end("max").max(value))
}
