//! The papers' results beside ours. Their machines differ: 10 GbE, eight cores, a switch.
use super::arrakis;
use super::read::{Results, Row};
use super::series::{number, word};
use super::text::{full, short};
use ix_report::figure;

/// One result: what was measured, in the papers and here.
pub struct Line {
    /// What was measured.
    pub what: String,
    /// The papers' figure, and the paper.
    pub paper: &'static str,
    /// Our figure; empty where it was not measured.
    pub here: String,
}

/// What can be set beside a benchmark's results.
pub fn lines(results: &Results) -> Vec<Line> {
    let rows = Rows(results.rows.iter().collect());
    match results.bench.as_str() {
        "pingpong" => pingpong(&rows),
        "short" => short_messages(&rows),
        "connscaling" => connscaling(&rows),
        "memcached" => memcached(&rows),
        "memcached-udp" => arrakis::memcached_udp(&rows),
        "kv-steps" => arrakis::kv_steps(&rows),
        "http" => arrakis::http(&rows),
        "wakeup" => arrakis::wakeup(&rows),
        "batch" => batch(&rows),
        "udp-echo" => arrakis::udp_echo(&rows),
        "churn" => vec![line(
            "connections a second, one message each",
            "IX 4.2 M on eight cores and 4 × 10 GbE (TOCS '16)",
            best_of_both(&rows, "connections_per_s", "/s"),
        )],
        "pareto" => pareto(&rows),
        "dynamic" => dynamic(&rows),
        _ => Vec::new(),
    }
}

/// All or some rows of one benchmark.
pub(super) struct Rows<'a>(pub(super) Vec<&'a Row>);

impl<'a> Rows<'a> {
    pub(super) fn of(&self, keep: impl Fn(&Row) -> bool) -> Rows<'a> {
        Rows(self.0.iter().copied().filter(|row| keep(row)).collect())
    }

    pub(super) fn system(&self, system: &str) -> Rows<'a> {
        self.of(|row| word(row, "system") == system)
    }

    pub(super) fn having(&self, key: &str, value: f64) -> Rows<'a> {
        self.of(|row| number(row, key) == Some(value))
    }

    pub(super) fn values(&self, key: &str) -> impl Iterator<Item = f64> {
        self.0.iter().filter_map(move |row| number(row, key))
    }

    pub(super) fn highest(&self, key: &str) -> Option<f64> {
        self.values(key).reduce(f64::max)
    }

    pub(super) fn lowest(&self, key: &str) -> Option<f64> {
        self.values(key).reduce(f64::min)
    }
}

pub(super) fn line(what: impl Into<String>, paper: &'static str, here: String) -> Line {
    Line { what: what.into(), paper, here }
}

/// `IX 5.1 µs, Linux 12 µs`, of those that exist.
pub(super) fn both(ix: Option<f64>, linux: Option<f64>, unit: &str) -> String {
    let named = [("IX", ix), ("Linux", linux)];
    let told = named.iter().filter_map(|(name, v)| Some(format!("{name} {}{unit}", short((*v)?))));
    told.collect::<Vec<_>>().join(", ")
}

pub(super) fn best_of_both(rows: &Rows<'_>, key: &str, unit: &str) -> String {
    both(rows.system("ix").highest(key), rows.system("linux").highest(key), unit)
}

/// IX's best divided by Linux's best.
pub(super) fn over_linux(rows: &Rows<'_>, key: &str) -> String {
    match (rows.system("ix").highest(key), rows.system("linux").highest(key)) {
        (Some(ix), Some(linux)) if linux > 0.0 => format!("{}×", short(ix / linux)),
        _ => String::new(),
    }
}

fn percent(part: Option<f64>, whole: Option<f64>) -> String {
    match (part, whole) {
        (Some(part), Some(whole)) if whole > 0.0 => figure::percent(part / whole, 0),
        _ => String::new(),
    }
}

fn pingpong(rows: &Rows<'_>) -> Vec<Line> {
    let small = rows.having("size", 64.0);
    let one_way = |system: &str| small.system(system).lowest("one_way_us");
    let half = |system: &str| {
        let rows = rows.system(system);
        let peak = rows.highest("mbit_per_s")?;
        rows.of(|row| number(row, "mbit_per_s").is_some_and(|v| v >= peak / 2.0)).lowest("size")
    };
    vec![
        line(
            "one-way latency, 64 B",
            "IX 5.8 µs, Linux 19.0 µs, over a switch (TOCS '16)",
            both(one_way("ix"), one_way("linux"), " µs"),
        ),
        line(
            "message size that reaches half of the bandwidth (here: of its own peak)",
            "IX 20 KB, Linux 192 KB, of 10 Gbit/s (TOCS '16)",
            both(half("ix"), half("linux"), " B"),
        ),
    ]
}

fn short_messages(rows: &Rows<'_>) -> Vec<Line> {
    let many = rows.having("messages_per_connection", 1024.0);
    let one = rows.having("messages_per_connection", 1.0);
    let small = one.having("size", 64.0);
    vec![
        line(
            "64 B, 1024 messages a connection, IX over Linux",
            "6.6× (TOCS '16), 8.8× (OSDI '14)",
            over_linux(&many, "msgs_per_s"),
        ),
        line(
            "64 B, 1024 messages a connection",
            "IX 8.5 M/s: line rate of 10 GbE, eight cores (TOCS '16)",
            best_of_both(&many, "msgs_per_s", "/s"),
        ),
        line(
            "64 B, one message a connection",
            "IX 4.2 M/s on eight cores and 4 × 10 GbE (TOCS '16)",
            best_of_both(&small, "msgs_per_s", "/s"),
        ),
    ]
}

fn connscaling(rows: &Rows<'_>) -> Vec<Line> {
    let ix = rows.system("ix");
    let most = ix.highest("connections");
    let at_most = |key: &str| most.and_then(|most| ix.having("connections", most).highest(key));
    let count = most.map_or_else(|| "most".to_owned(), full);
    vec![
        line(
            "peak, IX over Linux",
            "11× (TOCS '16), 10× (OSDI '14)",
            over_linux(rows, "msgs_per_s"),
        ),
        line(
            format!("rate kept at 250,000 connections (here: {count}), of the peak"),
            "IX 41 % (TOCS '16), 47 % (OSDI '14)",
            percent(at_most("msgs_per_s"), ix.highest("msgs_per_s")),
        ),
        line(
            "cache misses a message, few and many connections",
            "1.6 and 29, of the last level (TOCS '16)",
            match (ix.lowest("cache_misses_per_msg"), at_most("cache_misses_per_msg")) {
                (Some(few), Some(many)) => format!("{} and {}", short(few), short(many)),
                _ => String::new(),
            },
        ),
    ]
}

fn memcached(rows: &Rows<'_>) -> Vec<Line> {
    let workloads = [
        ("etc", "IX 34 µs, Linux 65 µs", "IX 4.19 M/s, Linux 898 k/s"),
        ("usr", "IX 33 µs, Linux 66 µs", "IX 5.82 M/s, Linux 902 k/s"),
    ];
    let mut lines = Vec::new();
    for (workload, unloaded, rate) in workloads {
        let rows = rows.of(|row| word(row, "workload").eq_ignore_ascii_case(workload));
        let open = rows.of(|row| word(row, "point") != "closed loop");
        let within = open.of(|row| number(row, "p99_us").is_some_and(|us| us < 500.0));
        let name = workload.to_uppercase();
        // Memcached is a system of its own; the papers' Linux rows are memcached on Linux.
        let told = |rows: &Rows<'_>, of: fn(&Rows<'_>) -> Option<f64>, unit: &str| {
            let memcached = of(&rows.system("memcached"));
            let memcached = memcached.map(|v| format!("memcached on Linux {}{unit}", short(v)));
            let ours = both(of(&rows.system("ix")), of(&rows.system("linux")), unit);
            let parts = [Some(ours).filter(|ours| !ours.is_empty()), memcached];
            parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
        };
        lines.push(line(
            format!("{name}, p99 unloaded (here: the lowest measured)"),
            unloaded,
            told(&open, |rows| rows.lowest("p99_us"), " µs"),
        ));
        lines.push(line(
            format!("{name}, rate with p99 under 500 µs, eight cores there"),
            rate,
            told(&within, |rows| rows.highest("msgs_per_s"), "/s"),
        ));
    }
    lines
}

fn batch(rows: &Rows<'_>) -> Vec<Line> {
    let ix = rows.system("ix");
    let at = |bound: f64| ix.having("batch", bound).highest("msgs_per_s");
    let gain = match (at(16.0), at(1.0)) {
        (Some(sixteen), Some(one)) if one > 0.0 => {
            format!("{:+.0} %", 100.0 * (sixteen / one - 1.0))
        }
        _ => String::new(),
    };
    vec![line("rate at B = 16 over B = 1", "+29 % (TOCS '16)", gain)]
}

fn pareto(rows: &Rows<'_>) -> Vec<Line> {
    let energy = rows.system("ix").of(|row| word(row, "frontier") == "energy");
    let mut names: Vec<&str> = energy.0.iter().map(|row| word(row, "configuration")).collect();
    names.sort_unstable();
    names.dedup();
    vec![
        line(
            "configurations that make the energy frontier, of 224",
            "45 (TOCS '16), 32 (SoCC '15)",
            if names.is_empty() { String::new() } else { names.len().to_string() },
        ),
        line(
            "most within the SLO, with turbo",
            "patterns up to 6.3 M/s; IX 4.8 × Linux (SoCC '15)",
            best_of_both(rows, "carries_per_s", "/s"),
        ),
    ]
}

fn dynamic(rows: &Rows<'_>) -> Vec<Line> {
    const SAVED: [(&str, &str, &str); 3] = [
        ("slope", "54 %, 92 % of the bound (TOCS '16)", "47 %, 89 % of the bound (TOCS '16)"),
        ("step", "51 %, 86 % of the bound (TOCS '16)", "43 %, 84 % of the bound (TOCS '16)"),
        ("sine+noise", "46 %, 85 % of the bound (TOCS '16)", "35 %, 80 % of the bound (TOCS '16)"),
    ];
    let mut lines = Vec::new();
    for (pattern, saved, background) in SAVED {
        let of = rows.of(|row| word(row, "pattern") == pattern);
        let here = |key: &str| {
            let own = of.of(|row| row.contains_key(key));
            match (own.highest(key), own.highest("pareto_percent")) {
                (Some(value), Some(bound)) => {
                    format!("{} %, {} % of the bound", short(value), short(bound))
                }
                _ => String::new(),
            }
        };
        lines.push(line(format!("{pattern}: energy saved"), saved, here("saved_percent")));
        let what = format!("{pattern}: background job, of its peak");
        lines.push(line(what, background, here("background_percent")));
    }
    let all = rows.values("violations").sum::<f64>();
    let count = rows.values("violations").count();
    let here = if count > 0 { format!("{all:.0} in {count} runs") } else { String::new() };
    lines.push(line("violations of the SLO", "25 in six runs (TOCS '16)", here));
    lines
}
