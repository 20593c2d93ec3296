//! Figures of the papers' server in virtual time: frontiers, and runs second by second.
use super::chart::{Axis, Chart, Point, Series};
use super::read::Row;
use super::scale::Kind;
use super::series::{number, word};
use ix_report::results::{Change, Timeline};

/// What latencies are drawn up to, µs: the papers' figures end there too.
const LATENCY_TOP_US: f64 = 1_000.0;

fn point(x: f64, y: f64) -> Point {
    Point { x, y, range: (y, y) }
}

fn axis(label: &str) -> Axis {
    Axis { label: label.to_owned(), kind: Kind::Linear }
}

fn chart(title: String, (x, y): (&str, &str), series: Vec<Series>) -> (String, String) {
    let chart = Chart { title: title.clone(), x: axis(x), y: axis(y), mark: None, series };
    (title, chart.svg())
}

fn series(label: &str, colour: &str, points: Vec<Point>) -> Series {
    Series { label: label.to_owned(), colour: colour.to_owned(), points }
}

/// The frontiers of `ix bench pareto` (TOCS '16, figures 8 and 9).
pub fn pareto(rows: &[&Row]) -> Vec<(String, String)> {
    let of = |system: &str, frontier: &str| -> Vec<&Row> {
        let mut own = Vec::new();
        own.extend(
            rows.iter()
                .copied()
                .filter(|row| (word(row, "system"), word(row, "frontier")) == (system, frontier)),
        );
        own
    };
    // A frontier goes on from where the segment before it ended.
    let steps = |rows: &[&Row], from: &str, to: &str| -> Vec<Point> {
        let ends = |row: &&Row| {
            let begin = point(number(row, "from_per_s")? / 1e6, number(row, from)?);
            Some([begin, point(number(row, "to_per_s")? / 1e6, number(row, to)?)])
        };
        rows.iter().filter_map(ends).flatten().collect()
    };
    let power =
        |system: &str, frontier: &str| steps(&of(system, frontier), "power_from_w", "power_w");
    let percent = "background_percent";
    let background = |system: &str| steps(&of(system, "background"), percent, percent);
    let energy = of("ix", "energy");
    let x = "requests a second within the SLO, millions";
    let frontiers = vec![
        series("IX, frontier", "bare ix0", power("ix", "energy")),
        series("IX, clock only", "bare ix2", power("ix", "clock only")),
        series("Linux, frontier", "bare linux0", power("linux", "energy")),
        series("Linux, clock only", "bare linux1", power("linux", "clock only")),
    ];
    let background = vec![
        series("IX", "bare ix0", background("ix")),
        series("Linux", "bare linux0", background("linux")),
    ];
    vec![
        chart("IX: the configurations of the energy frontier".into(), (x, "W"), lines(&energy)),
        chart("Energy: frontier and changes of the clock only".into(), (x, "W"), frontiers),
        chart("Background job beside memcached".into(), (x, "% of its peak"), background),
    ]
}

/// Each configuration of a frontier, from no load to the highest load that it carries.
fn lines(rows: &[&Row]) -> Vec<Series> {
    let mut named = [false; 3];
    let mut all = Vec::new();
    for row in rows {
        let (Some(carries), Some(to), Some(power), Some(from), Some(from_w)) = (
            number(row, "carries_per_s"),
            number(row, "to_per_s"),
            number(row, "power_w"),
            number(row, "from_per_s"),
            number(row, "power_from_w"),
        ) else {
            continue;
        };
        let slope = if to > from { (power - from_w) / (to - from) } else { 0.0 };
        let everything =
            number(row, "cores") == Some(8.0) && number(row, "threads_per_core") == Some(2.0);
        let kind = match number(row, "clock_khz") {
            Some(khz) if khz <= 1_200_000.0 => 0,
            _ if everything => 1,
            _ => 2,
        };
        let (label, colour) =
            [("at 1.2 GHz", "thin other0"), ("8 cores × 2", "thin ix0"), ("others", "thin other1")]
                [kind];
        let label = if std::mem::replace(&mut named[kind], true) { "" } else { label };
        let at = |rate: f64| point(rate / 1e6, power + slope * (rate - to));
        all.push(series(label, colour, vec![at(0.0), at(carries)]));
    }
    let frontier = rows.iter().flat_map(|row| {
        let at = |x: &str, y: &str| Some(point(number(row, x)? / 1e6, number(row, y)?));
        [at("from_per_s", "power_from_w"), at("to_per_s", "power_w")].into_iter().flatten()
    });
    all.push(series("frontier", "plain linux2", frontier.collect()));
    all
}

/// The runs of `ix bench dynamic` (TOCS '16, figures 10 to 12).
pub fn dynamic(timelines: &[Timeline]) -> Vec<(String, String)> {
    timelines.iter().flat_map(one).collect()
}

fn one(timeline: &Timeline) -> Vec<(String, String)> {
    let over_time = |list: &[f64], of: &dyn Fn(f64) -> f64| -> Vec<Point> {
        let pattern = timeline.at_s.iter().zip(list).filter(|(at, _)| **at > 0.0);
        pattern.map(|(at, value)| point(*at, of(*value))).collect()
    };
    let name = format!("{}, {}", timeline.pattern, timeline.policy);
    let millions = |value: f64| value / 1e6;
    let throughput = over_time(&timeline.achieved_per_s, &millions);
    let changes = |up: bool| -> Vec<Point> {
        let own = timeline.events.iter().filter(|change| change.up == up && change.at_s >= 0.0);
        let at = |change: &Change| {
            let near = throughput.iter().find(|p| p.x >= change.at_s)?;
            Some(point(change.at_s, near.y))
        };
        own.filter_map(at).collect()
    };
    let (x, seconds) = ("time, s", "requests a second, millions");
    let rates = vec![
        series("more resources", "marks other0", changes(true)),
        series("achieved", "ix0", throughput.clone()),
        series("fewer", "marks linux2", changes(false)),
    ];
    let tail = over_time(&timeline.p99_us, &|us| us.min(LATENCY_TOP_US));
    let mut latency = Chart {
        title: format!("{name}: 99th percentile (1000 µs: that or more)"),
        x: axis(x),
        y: axis("µs"),
        mark: Some((500.0, "SLO, 500 µs")),
        series: vec![series("p99", "ix0", tail)],
    };
    // The axis reaches the objective in quiet runs too.
    latency.series.push(series("", "none", vec![point(0.0, LATENCY_TOP_US)]));
    let as_is = |value: f64| value;
    let outcome = if timeline.background {
        let lines = vec![
            series("dynamic", "plain ix0", over_time(&timeline.background_percent, &as_is)),
            series("Pareto bound", "linux2", over_time(&timeline.bound_background_percent, &as_is)),
        ];
        chart(format!("{name}: background job"), (x, "% of its peak"), lines)
    } else {
        let lines = vec![
            series("dynamic", "plain ix0", over_time(&timeline.power_w, &as_is)),
            series("Pareto bound", "linux2", over_time(&timeline.bound_power_w, &as_is)),
            series(
                "everything the server has",
                "other1",
                over_time(&timeline.most_power_w, &as_is),
            ),
        ];
        chart(format!("{name}: power"), (x, "W"), lines)
    };
    let latency = (latency.title.clone(), latency.svg());
    vec![chart(format!("{name}: throughput"), (x, seconds), rates), latency, outcome]
}
