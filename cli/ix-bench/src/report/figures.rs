//! What the figures of each benchmark show.
use super::bars::{Grouped, Stacked};
use super::chart::{Axis, Chart};
use super::read::{Results, Row};
use super::scale::Kind;
use super::{series, text};

/// At most this many figures of one kind: further points are in the table.
const SLICES: usize = 4;

/// A benchmark that has figures of its own.
struct Bench {
    name: &'static str,
    what: &'static str,
    figures: &'static [Figure],
}

/// How one quantity depends on another.
struct Figure {
    title: &'static str,
    x: &'static str,
    x_kind: Kind,
    /// Figures, and the names of their lines. Of figures without a name, the first that rows have
    /// is drawn.
    ys: &'static [(&'static str, &'static str)],
    /// Logarithmic; otherwise from zero on.
    y_kind: Kind,
    /// Keys that follow from other keys: they do not separate points.
    ignored: &'static [&'static str],
    /// A value of the upward axis at which a line is drawn, and its name.
    mark: Option<(f64, &'static str)>,
}

const fn figure(
    title: &'static str,
    x: (&'static str, Kind),
    ys: &'static [(&'static str, &'static str)],
    y_kind: Kind,
) -> Figure {
    Figure { title, x: x.0, x_kind: x.1, ys, y_kind, ignored: &[], mark: None }
}

const RATE: &[(&str, &str)] = &[("msgs_per_s", "")];
/// Keys that say how much load was offered.
pub const OFFERED: &[&str] =
    &["rate", "offered_per_s", "wanted_per_s", "target_per_s", "point", "share_of_peak"];
/// Points whose latency is that of the load itself, not of a measuring client.
const CLOSED_LOOP: &str = "closed loop";
use Kind::{Linear, Log};

/// Figures measured second by second, whatever load was offered.
const fn over_time(
    title: &'static str,
    ys: &'static [(&'static str, &'static str)],
    y_kind: Kind,
) -> Figure {
    Figure { ignored: OFFERED, ..figure(title, ("second", Linear), ys, y_kind) }
}

const ACHIEVED: Figure = over_time(
    "Throughput over time",
    &[("msgs_per_s", "achieved"), ("wanted_per_s", "wanted")],
    Linear,
);

const BENCHES: [Bench; 25] = [
    Bench {
        name: "echo",
        what: "Messages of one size, echoed, over the number of connections.",
        figures: &[
            figure("Messages a second", ("connections", Log), RATE, Linear),
            figure("Median round trip", ("connections", Log), &[("p50_us", "")], Log),
            figure("99th percentile", ("connections", Log), &[("p99_us", "")], Log),
        ],
    },
    Bench {
        name: "pingpong",
        what: "One message back and forth on one connection, by size: NetPIPE.",
        figures: &[
            figure("Goodput by message size", ("size", Linear), &[("mbit_per_s", "")], Linear),
            figure("One-way latency by message size", ("size", Log), &[("one_way_us", "")], Log),
        ],
    },
    Bench {
        name: "short",
        what: "Connections that carry few messages and end by reset.",
        figures: &[
            figure("Messages a second by cores", ("cores", Linear), RATE, Linear),
            figure(
                "Messages a second by messages of a connection",
                ("messages_per_connection", Log),
                RATE,
                Linear,
            ),
            figure("Messages a second by size", ("size", Log), RATE, Linear),
        ],
    },
    Bench {
        name: "connscaling",
        what: "Messages over more and more established connections.",
        figures: &[
            figure("Messages a second by connections", ("connections", Log), RATE, Linear),
            figure("Cycles a message", ("connections", Log), &[("cycles_per_msg", "")], Linear),
            figure(
                "Cache misses a message",
                ("connections", Log),
                &[("cache_misses_per_msg", "")],
                Linear,
            ),
        ],
    },
    Bench {
        name: "memcached",
        what: "Latency of a measuring client against the throughput of the load: ETC and USR.",
        figures: &[
            Figure {
                ignored: OFFERED,
                mark: Some((500.0, "500 µs")),
                ..figure(
                    "99th percentile against throughput",
                    ("msgs_per_s", Linear),
                    &[("measure_p99_us", ""), ("p99_us", "")],
                    Linear,
                )
            },
            Figure {
                ignored: OFFERED,
                ..figure(
                    "Average latency against throughput",
                    ("msgs_per_s", Linear),
                    &[("measure_avg_us", ""), ("avg_us", ""), ("mean_us", "")],
                    Linear,
                )
            },
        ],
    },
    Bench {
        name: "memcached-udp",
        what: "Key-value servers over UDP, 90 % gets of 1,024 bytes, each process on one core \
               (Arrakis' figure 4).",
        figures: &[
            figure("Requests a second", ("connections", Log), RATE, Linear),
            figure("Requests a second by processes", ("processes", Linear), RATE, Linear),
        ],
    },
    Bench {
        name: "kv-steps",
        what: "A key-value server over UDP from sockets to the native interface (Arrakis' case study).",
        figures: &[
            figure("Requests a second", ("connections", Log), RATE, Linear),
            figure("Median round trip", ("connections", Log), &[("p50_us", "")], Linear),
        ],
    },
    Bench {
        name: "http",
        what: "haproxy in front of web servers, by number of processes (Arrakis' figure 5).",
        figures: &[
            figure("Requests a second by processes", ("processes", Linear), RATE, Linear),
            figure(
                "Requests by second that the balancer is busy",
                ("connections", Log),
                &[("msgs_per_busy_s", "")],
                Linear,
            ),
        ],
    },
    Bench {
        name: "wakeup",
        what: "How soon a sleeping service gets a packet, and what it costs while it is idle.",
        figures: &[figure(
            "Until the program hears",
            ("connections", Log),
            &[("wake_p50_us", "")],
            Linear,
        )],
    },
    Bench {
        name: "sharing",
        what: "IX at the address of Linux beside one of its own, and Linux beside IX.",
        figures: &[figure("Messages a second", ("connections", Log), RATE, Linear)],
    },
    Bench {
        name: "batch",
        what: "The bound B on the packets of a cycle, at low and at high load.",
        figures: &[
            figure("Messages a second by batch bound", ("batch", Log), RATE, Linear),
            figure("99th percentile by batch bound", ("batch", Log), &[("p99_us", "")], Linear),
        ],
    },
    Bench {
        name: "udp-echo",
        what: "Where the time of datagrams goes (Arrakis' table 1), and their rate (figure 3).",
        figures: &[figure("Datagrams a second by size", ("size", Log), RATE, Linear)],
    },
    Bench {
        name: "churn",
        what: "Connections opened and closed as fast as possible.",
        figures: &[figure(
            "Connections a second",
            ("connections", Log),
            &[("connections_per_s", "")],
            Linear,
        )],
    },
    Bench {
        name: "elastic",
        what: "A load that goes up and down, a second thread that comes and goes, and what a \
               background job gets.",
        figures: &[
            ACHIEVED,
            Figure {
                mark: Some((5000.0, "5 ms")),
                ..over_time("Latency over time", &[("p99_us", "99th percentile")], Log)
            },
            over_time("Elastic threads over time", &[("threads", "threads")], Linear),
            over_time(
                "Background job over time",
                &[("background_mb_per_s", "background job")],
                Linear,
            ),
        ],
    },
    Bench {
        name: "load",
        what: "One run of the load generator, second by second.",
        figures: &[
            ACHIEVED,
            over_time(
                "Latency over time",
                &[("p50_us", "median"), ("p99_us", "99th percentile")],
                Log,
            ),
        ],
    },
    Bench {
        name: "pareto",
        what: "The papers' server in virtual time: all 224 static configurations and their frontiers.",
        figures: &[],
    },
    Bench {
        name: "dynamic",
        what: "The controller on the papers' server in virtual time, against the Pareto bound.",
        figures: &[],
    },
    Bench {
        name: "bulk",
        what: "One flow of bulk data in each direction, with and without the offloads of Linux.",
        figures: &[],
    },
    Bench {
        name: "loss",
        what: "Bulk data and replies over long, lossy and reordering paths.",
        figures: &[Figure {
            ignored: &["point"],
            ..figure("Goodput by loss", ("loss_percent", Linear), &[("mbit_per_s", "")], Linear)
        }],
    },
    Bench {
        name: "fairness",
        what: "Flows of IX and of Linux that share a bottleneck; Jain's index is 1 when all get \
               the same.",
        figures: &[],
    },
    Bench {
        name: "rates",
        what: "How exactly limits hold, how evenly paced packets leave, what a tenant notices of a \
               neighbour that floods, shares by weight, and how soon Linux has a dead vNIC's traffic.",
        figures: &[figure(
            "Error of a limit in its worst second",
            ("limit_mbit_per_s", Log),
            &[("worst_error_percent", "")],
            Linear,
        )],
    },
    Bench {
        name: "migration",
        what: "Flow groups that move back and forth between threads under full load.",
        figures: &[],
    },
    Bench {
        name: "hostile",
        what: "An honest client beside crowds of slow, half-open and closed peers.",
        figures: &[],
    },
    Bench {
        name: "gate",
        what: "The cost of a crossing into the dataplane, and programs with and without the wall.",
        figures: &[],
    },
    Bench {
        name: "soak",
        what: "A service with migrations, kills, link failures and restarts, part by part.",
        figures: &[
            figure("Throughput over time", ("from_s", Linear), RATE, Linear),
            figure("Memory over time", ("from_s", Linear), &[("rss_mb", "")], Linear),
        ],
    },
];

/// Figures that a benchmark without figures of its own may have.
const OUTCOMES: [&str; 6] =
    ["msgs_per_s", "connections_per_s", "mbit_per_s", "p50_us", "p99_us", "cycles_per_msg"];

/// Parts of a packet's time, in the order of its way, where rows have them as `NAME_ns`; the whole
/// where the parts are unknown.
const PARTS: [&str; 12] = [
    "receive",
    "stack_in",
    "stack",
    "scheduler",
    "copy_in",
    "gate",
    "app",
    "copy_out",
    "stack_out",
    "timers",
    "transmit",
    "total",
];

/// Position of a benchmark on the page; unknown ones come last.
pub fn place(bench: &str) -> usize {
    BENCHES.iter().position(|known| known.name == bench).unwrap_or(BENCHES.len())
}

/// What a benchmark measures; empty for unknown ones.
pub fn what(bench: &str) -> &'static str {
    BENCHES.get(place(bench)).map_or("", |known| known.what)
}

/// Benchmarks without results.
pub fn missing(results: &[Results]) -> Vec<&'static str> {
    let has = |name: &str| results.iter().any(|result| result.bench == name);
    BENCHES.iter().map(|bench| bench.name).filter(|name| !has(name)).collect()
}

/// All figures of a benchmark: title and SVG. A figure whose key no row has is left out.
pub fn of(result: &Results) -> Vec<(String, String)> {
    let rows: Vec<&Row> = result.rows.iter().collect();
    match result.bench.as_str() {
        "pareto" => return super::model::pareto(&rows),
        "dynamic" => return super::model::dynamic(&result.timelines),
        _ => {}
    }
    let known = BENCHES.get(place(&result.bench)).map_or(&[][..], |bench| bench.figures);
    let mut figures: Vec<_> = stacked(&rows).into_iter().collect();
    figures.extend(known.iter().flat_map(|figure| draw(figure, &rows)));
    if figures.is_empty() {
        figures = generic(&rows);
    }
    figures
}

/// A figure for each slice of the points.
fn draw(figure: &Figure, rows: &[&Row]) -> Vec<(String, String)> {
    let measured = |row: &&Row| figure.ys.iter().any(|(y, _)| series::number(row, y).is_some());
    let open = |row: &&Row| series::word(row, "point") != CLOSED_LOOP;
    let rows: Vec<_> = rows.iter().copied().filter(measured).filter(open).collect();
    let several = figure.ys.len() > 1;
    let mut drawn = Vec::new();
    for (name, slice) in series::slices(&rows, figure.x, figure.ignored).iter().take(SLICES) {
        let present =
            figure.ys.iter().filter(|(y, _)| slice.iter().any(|row| row.contains_key(*y)));
        let mut ys: Vec<_> = present.copied().collect();
        if ys.iter().all(|(_, name)| name.is_empty()) {
            ys.truncate(1);
        }
        let title = match name.is_empty() {
            true => figure.title.to_owned(),
            false => format!("{} ({name})", figure.title),
        };
        let points = series::variety(slice, figure.x);
        // A sweep that was not run gives no figure, and two points give no line.
        if points < 3 {
            if points == 2 || figure.x == "connections" {
                drawn.extend(grouped(slice, &rows, &title, &[figure.x], ys[0].0));
            }
            continue;
        }
        let quantity =
            if several && ys.len() > 1 { unit_of(ys[0].0) } else { text::heading(ys[0].0) };
        let chart = Chart {
            title: title.clone(),
            x: Axis { label: text::heading(figure.x), kind: figure.x_kind },
            y: Axis { label: quantity, kind: figure.y_kind },
            mark: figure.mark,
            series: series::lines(slice, &rows, figure.x, &ys),
        };
        drawn.push((title, chart.svg()));
    }
    drawn
}

/// What several figures with one axis have in common.
fn unit_of(key: &str) -> String {
    if key.ends_with("_us") { "latency, µs".to_owned() } else { text::heading(key) }
}

/// The parts of a packet's time in a row, 0 where it has none.
pub fn parts_ns(row: &Row) -> [f64; PARTS.len()] {
    let value = |part: &str| series::number(row, &format!("{part}_ns")).unwrap_or(0.0);
    let mut parts = PARTS.map(value);
    if let [known @ .., total] = &mut parts
        && known.iter().any(|part| *part > 0.0)
    {
        *total = 0.0;
    }
    parts
}

/// The parts of a packet's time, a bar for each system and size.
fn stacked(rows: &[&Row]) -> Option<(String, String)> {
    let used = |part: &usize| rows.iter().any(|row| parts_ns(row)[*part] > 0.0);
    let used: Vec<_> = (0..PARTS.len()).filter(used).collect();
    let mut bars = Vec::new();
    for row in rows {
        let all = parts_ns(row);
        if all.iter().any(|value| *value > 0.0) {
            let size = row.get("size").map(|size| format!(", {} B", text::of_value(size)));
            let name = series::label(row, rows) + &size.unwrap_or_default();
            bars.push((name, used.iter().map(|part| all[*part]).collect()));
        }
    }
    if bars.is_empty() {
        return None;
    }
    let title = "Where the time of a packet goes".to_owned();
    let parts = used.iter().map(|part| PARTS[*part].replace('_', " ")).collect();
    let chart = Stacked { title: title.clone(), x_label: "ns a packet".to_owned(), parts, bars };
    Some((title, chart.svg()))
}

/// Bars over all combinations of some keys.
fn grouped(
    rows: &[&Row],
    all: &[&Row],
    title: &str,
    keys: &[&str],
    y: &str,
) -> Option<(String, String)> {
    let category = |row: &Row| {
        let named = keys.iter().filter_map(|key| {
            let value = row.get(*key)?;
            let words = value.is_string() && *key != "offloads";
            let value = text::of_value(value);
            Some(if words { value } else { format!("{} {value}", text::heading(key)) })
        });
        named.collect::<Vec<_>>().join(", ")
    };
    let (mut categories, mut legend) = (Vec::new(), Vec::<(String, &Row)>::new());
    for row in rows.iter().copied().filter(|row| series::number(row, y).is_some()) {
        let (c, label) = (category(row), series::label(row, all));
        if !categories.contains(&c) {
            categories.push(c);
        }
        if !legend.iter().any(|(other, _)| *other == label) {
            legend.push((label, row));
        }
    }
    let colours = series::colours(&legend);
    let value = |label: &str, wanted: &str| {
        let mut rows = rows.iter().copied();
        let row = rows.find(|row| series::label(row, all) == label && category(row) == wanted)?;
        let value = series::number(row, y)?;
        let (low, high) = series::range(row, y, value);
        Some((value, low, high))
    };
    let series: Vec<_> = legend
        .iter()
        .zip(colours)
        .map(|((label, _), colour)| {
            (label.clone(), colour, categories.iter().map(|c| value(label, c)).collect())
        })
        .collect();
    if categories.is_empty() {
        return None;
    }
    let y = Axis { label: text::heading(y), kind: Linear };
    let chart = Grouped { title: title.to_owned(), x_label: String::new(), y, categories, series };
    Some((title.to_owned(), chart.svg()))
}

/// Figures of any benchmark: bars over what makes its points, or lines where a number has many
/// values.
fn generic(rows: &[&Row]) -> Vec<(String, String)> {
    let outcomes = OUTCOMES.iter().filter(|y| rows.iter().any(|r| series::number(r, y).is_some()));
    let numeric = |key: &&&str| rows.iter().any(|row| series::number(row, key).is_some());
    let most = series::POINT_KEYS
        .iter()
        .filter(numeric)
        .max_by_key(|key| series::variety(rows, key))
        .copied()
        .unwrap_or("connections");
    let varying: Vec<_> =
        series::POINT_KEYS.iter().copied().filter(|key| series::variety(rows, key) > 1).collect();
    let mut figures = Vec::new();
    for y in outcomes.take(3) {
        let title = text::heading(y);
        if series::variety(rows, most) < 5 {
            figures.extend(grouped(rows, rows, &title, &varying, y));
            continue;
        }
        for (name, slice) in series::slices(rows, most, &[]).iter().take(SLICES) {
            let title = if name.is_empty() { title.clone() } else { format!("{title} ({name})") };
            let chart = Chart {
                title: title.clone(),
                x: Axis { label: text::heading(most), kind: Linear },
                y: Axis { label: text::heading(y), kind: Linear },
                mark: None,
                series: series::lines(slice, rows, most, &[(*y, "")]),
            };
            figures.push((title, chart.svg()));
        }
    }
    figures
}
