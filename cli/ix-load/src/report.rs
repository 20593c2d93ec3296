//! The measurement as lines, as a table and as JSON.
use crate::engine::{Class, DRAIN, Interval, Sample};
use crate::plan::Plan;
use crate::row::{Latency, Row};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A result needs at least this share of hits.
pub const HIT_RATE_LEAST: f64 = 0.98;
/// A rate counts as reached from this share on, less what chance explains.
const REACHED: f64 = 0.99;

/// The measured seconds, merged from all threads and agents.
pub struct Collected {
    plan: Plan,
    /// `linux` or `ix`.
    client: &'static str,
    pending: BTreeMap<i64, (usize, Interval)>,
    seconds: Vec<(i64, f64, Interval)>,
    total: Interval,
    /// Measured time so far, s.
    measured_s: f64,
    /// An agent was lost.
    pub partial: bool,
    /// Why the run ended early, if it did.
    pub stopped: Option<String>,
}

/// One second of all threads.
pub struct Second {
    /// Its figures.
    pub row: Row,
    /// Why the run must stop, if it must.
    pub stop: Option<String>,
}

impl Collected {
    /// No seconds yet.
    pub fn new(plan: Plan, client: &'static str) -> Collected {
        Collected {
            plan,
            client,
            pending: BTreeMap::new(),
            seconds: Vec::new(),
            total: Interval::default(),
            measured_s: 0.0,
            partial: false,
            stopped: None,
        }
    }

    /// Adds one source's measurements of a second; returns the second once all `sources` have
    /// reported it.
    pub fn add(&mut self, interval: Interval, sources: usize) -> Option<Second> {
        let second = interval.second;
        let entry = self.pending.entry(second).or_default();
        entry.0 += 1;
        entry.1.merge(interval);
        if entry.0 < sources || second == DRAIN { None } else { self.complete(second) }
    }

    /// Returns the seconds that are complete now that there are fewer sources.
    pub fn settle(&mut self, sources: usize) -> Vec<Second> {
        let whole = |(second, (told, _)): (&i64, &(usize, Interval))| {
            (*told >= sources && *second != DRAIN).then_some(*second)
        };
        let whole: Vec<i64> = self.pending.iter().filter_map(whole).collect();
        whole.into_iter().filter_map(|second| self.complete(second)).collect()
    }

    /// Completes the seconds that no source will add to.
    pub fn flush(&mut self) {
        let all: Vec<i64> = self.pending.keys().copied().collect();
        for second in all {
            self.complete(second);
        }
    }

    fn complete(&mut self, second: i64) -> Option<Second> {
        let (_, mut interval) = self.pending.remove(&second)?;
        interval.second = second;
        if second == DRAIN {
            // Its latencies count; its replies came too late for the rate.
            interval.classes.iter_mut().for_each(|class| class.answers = 0);
            self.total.merge(interval);
            return None;
        }
        // The first second of the warm-up and the last measured one may be shorter.
        let length_s = match second {
            0.. => self.plan.args.seconds - second as f64,
            _ => self.plan.warmup_s + (second + 1) as f64,
        };
        let length_s = length_s.min(1.0);
        let row = self.row(&interval, second as f64, length_s);
        let stop = if second >= 0 { self.stop_reason(&interval) } else { None };
        if second >= 0 {
            self.measured_s += length_s;
            self.total.merge(interval.clone());
            self.seconds.push((second, length_s, interval));
        } else {
            // Errors during the warm-up are errors, too.
            self.total.counts.faults.merge(interval.counts.faults);
        }
        Some(Second { row, stop })
    }

    /// Returns why the run must stop because of a second's latency, if it must.
    fn stop_reason(&self, interval: &Interval) -> Option<String> {
        let (percentile, most_us) = self.plan.args.stop_latency?;
        let latency = &interval.classes[Class::Load as usize].latency_ns;
        let us = latency.value_at_percentile(percentile) as f64 / 1000.0;
        (us > most_us).then(|| {
            format!("p{percentile} was {us:.0} µs in second {}, above {most_us}", interval.second)
        })
    }

    /// The rate that was asked for in a span of the run, per second.
    fn wanted(&self, from_s: f64, to_s: f64) -> Option<f64> {
        let from_s = from_s + self.plan.warmup_s;
        let rate = self.plan.rate.as_ref()?;
        Some(rate.mean(from_s, to_s + self.plan.warmup_s, self.plan.args.seed))
    }

    fn row(&self, interval: &Interval, from_s: f64, length_s: f64) -> Row {
        let load = &interval.classes[Class::Load as usize];
        let measure = &interval.classes[Class::Measure as usize];
        let counts = &interval.counts;
        let mut row = Row {
            second: Some(from_s),
            wanted_per_s: self.wanted(from_s, from_s + length_s).map(round),
            msgs_per_s: round(load.answers as f64 / length_s),
            latency: latency(load),
            errors: counts.faults.total(),
            hit_rate: hit_rate(interval).map(|rate| (rate * 1e5).round() / 1e5),
            ..Row::default()
        };
        if self.plan.measure_connections > 0 {
            row.measure_msgs_per_s = Some(round(measure.answers as f64 / length_s));
            row.measure = latency(measure).into();
        }
        let mut put = |key: &str, value: Value| drop(row.more.insert(key.to_owned(), value));
        for (fault, count, _) in counts.faults.kinds() {
            put(fault.name(), json!(count));
        }
        if self.plan.args.messages_per_connection.is_some() {
            put("connections_per_s", json!(round(counts.opened as f64 / length_s)));
        }
        if self.plan.rate.is_some() {
            put("lag_most_us", json!(round(counts.lag_most_ns as f64 / 1000.0)));
            put("overdue_most", json!(counts.overdue_most));
            put("stalls_per_s", json!(round(counts.stalls as f64 / length_s)));
            put("stalled_share", json!(round(counts.stalled_ns as f64 / 1e9 / length_s)));
            awake(load, "", &mut put);
            awake(measure, "measure_", &mut put);
            row.stall_most_us = Some(round(counts.stall_most_ns as f64 / 1000.0));
        }
        row
    }

    /// The whole measured time as one row.
    pub fn summary(&self) -> Row {
        let args = &self.plan.args;
        let length_s = self.measured_s.max(1e-9);
        let mut row = self.row(&self.total, 0.0, length_s);
        row.second = None;
        row.reached = self.plan.rate.is_some().then(|| self.reached());
        let mut put = |key: &str, value: Value| drop(row.more.insert(key.to_owned(), value));
        put("summary", json!(true));
        put("system", json!(args.system));
        put("device", json!(device(args.place.nic.as_deref(), self.client)));
        put("client", json!(self.client));
        put("protocol", json!(args.protocol));
        put("transport", json!(if args.udp { "udp" } else { "tcp" }));
        put("loop", json!(if self.plan.rate.is_some() { "open" } else { "closed" }));
        put("connections", json!(args.connections));
        put("depth", json!(args.depth));
        put("size", json!(args.size));
        put("messages_per_connection", json!(args.messages_per_connection));
        put("seconds", json!(round(length_s)));
        put("seed", json!(args.seed));
        if self.plan.records.is_some() {
            put("workload", json!(args.workload));
            put("records", json!(args.records));
        }
        if let Some(rate) = &self.plan.rate {
            put("pattern", json!(rate.to_string()));
            put("arrival", json!(self.plan.arrival));
            put("unfinished", json!(self.total.counts.unfinished));
            put("dropped", json!(self.total.counts.dropped));
        }
        put("late", json!(self.total.counts.late));
        put("partial", json!(self.partial));
        put("stopped", json!(self.stopped));
        row
    }

    /// Whether the rate that was asked for was reached.
    pub fn reached(&self) -> bool {
        let Some(wanted) = self.wanted(0.0, self.measured_s) else { return true };
        let wanted = wanted * self.measured_s;
        // Four standard deviations of a Poisson count.
        let least = wanted * REACHED - 4.0 * wanted.sqrt();
        let achieved = self.total.classes[Class::Load as usize].answers as f64;
        self.total.counts.dropped == 0 && achieved >= least
    }

    /// Number of requests with a reply.
    pub fn answers(&self) -> u64 {
        self.total.classes.iter().map(|class| class.answers).sum()
    }

    /// Share of reads that found a value.
    pub fn hit_rate(&self) -> Option<f64> {
        hit_rate(&self.total)
    }

    /// Errors by kind.
    pub fn faults(&self) -> &crate::fault::Faults {
        &self.total.counts.faults
    }

    /// A row for each second, and the summary.
    pub fn rows(&self) -> Vec<Row> {
        let row = |(second, length_s, interval): &(i64, f64, Interval)| {
            self.row(interval, *second as f64, *length_s)
        };
        let mut rows: Vec<Row> = self.seconds.iter().map(row).collect();
        rows.push(self.summary());
        rows
    }

    /// Reports how long the generator itself stood still, and the latency without that.
    fn stalls(&self) -> String {
        let (counts, seconds) = (&self.total.counts, self.measured_s.max(1e-9));
        let load = &self.total.classes[Class::Load as usize];
        let (awake, all) = (load.awake_ns(), load.latency_ns.len().max(1));
        format!(
            "stalls: the generator stood still {:.0} times per second for 50 µs or more, {:.2} % of \
             the time, {:.0} µs at most (the host, the kernel, or its own work); p99 of the {:.1} % \
             of requests that were not in flight then: {:.1} µs",
            counts.stalls as f64 / seconds,
            counts.stalled_ns as f64 / 1e7 / seconds,
            counts.stall_most_ns as f64 / 1000.0,
            awake.len() as f64 * 100.0 / all as f64,
            awake.value_at_quantile(0.99) as f64 / 1000.0,
        )
    }

    /// Remarks about the result, one per line.
    pub fn remarks(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (fault, count, first) in self.faults().kinds() {
            lines.push(format!("{count} errors `{}`, the first: {first}", fault.name()));
        }
        let counts = &self.total.counts;
        if !self.reached() {
            let wanted = self.wanted(0.0, self.measured_s).unwrap_or_default();
            let achieved = self.total.classes[0].answers as f64 / self.measured_s;
            lines.push(format!(
                "the rate was NOT reached: {achieved:.0} of {wanted:.0} requests per second; in such \
                 a run latency grows with its length"
            ));
        }
        if counts.stalls > 0 {
            lines.push(self.stalls());
        }
        if counts.unfinished > 0 {
            lines.push(format!(
                "{} requests had no reply at the end; they count with their age",
                counts.unfinished
            ));
        }
        if let Some(why) = &self.stopped {
            lines.push(format!("stopped early: {why}"));
        }
        if self.partial {
            lines.push("an agent was lost: the result is partial".to_string());
        }
        lines
    }
}

fn hit_rate(interval: &Interval) -> Option<f64> {
    let reads = interval.counts.hits + interval.counts.misses;
    (reads > 0).then(|| interval.counts.hits as f64 / reads as f64)
}

fn latency(sample: &Sample) -> Latency {
    let all = &sample.latency_ns;
    if all.is_empty() {
        return Latency::default();
    }
    let us = |ns: f64| Some(round(ns / 1000.0));
    let quantile = |quantile| us(all.value_at_quantile(quantile) as f64);
    Latency {
        avg_us: us(all.mean()),
        p50_us: quantile(0.5),
        p90_us: quantile(0.9),
        p95_us: quantile(0.95),
        p99_us: quantile(0.99),
        p999_us: quantile(0.999),
        max_us: us(all.max() as f64),
    }
}

/// Adds figures of requests in flight during no stall of the generator.
fn awake(sample: &Sample, prefix: &str, put: &mut impl FnMut(&str, Value)) {
    let latency = sample.awake_ns();
    if latency.is_empty() {
        return;
    }
    let share = latency.len() as f64 / sample.latency_ns.len() as f64;
    put(&format!("{prefix}awake_share"), json!(round(share)));
    for (name, quantile) in [("p50_us", 0.5), ("p99_us", 0.99), ("p999_us", 0.999)] {
        let us = latency.value_at_quantile(quantile) as f64 / 1000.0;
        put(&format!("{prefix}awake_{name}"), json!(round(us)));
    }
}

/// The kind of device in a specification, or `linux`.
fn device<'a>(nic: Option<&'a str>, client: &'a str) -> &'a str {
    nic.and_then(|spec| spec.split(':').next()).unwrap_or(client)
}

fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// Returns one line of progress.
pub fn progress(row: &Row) -> String {
    let mut line = match row.second {
        Some(second) if second < 0.0 => "warm-up".to_string(),
        Some(second) => format!("{:>4} s ", second + 1.0),
        None => String::new(),
    };
    line += &format!(" {:>9.0}/s", row.msgs_per_s);
    if let Some(wanted) = row.wanted_per_s {
        line += &format!(" of {wanted:.0}");
    }
    if let (Some(p50), Some(p99)) = (row.latency.p50_us, row.latency.p99_us) {
        line += &format!(", p50 {p50:.1} µs, p99 {p99:.1} µs");
    }
    if let Some(p99) = row.measure.p99_us {
        line += &format!(", measured p99 {p99:.1} µs");
    }
    if let Some(rate) = row.hit_rate {
        line += &format!(", hits {:.2} %", rate * 100.0);
    }
    match row.errors {
        0 => line,
        errors => line + &format!(", {errors} errors"),
    }
}

/// The summary as a table: one line per figure, the most important first.
pub fn table(summary: &Row) -> String {
    let summary = summary.figures();
    const FIRST: [&str; 19] = [
        "protocol",
        "transport",
        "loop",
        "connections",
        "depth",
        "wanted_per_s",
        "reached",
        "msgs_per_s",
        "connections_per_s",
        "avg_us",
        "p50_us",
        "p90_us",
        "p95_us",
        "p99_us",
        "p999_us",
        "max_us",
        "measure_p50_us",
        "measure_p99_us",
        "hit_rate",
    ];
    let line = |key: &str| match summary.get(key)? {
        Value::Null => None,
        value => Some(format!("{key:<24} {}\n", plain(value))),
    };
    let rest = summary.keys().map(String::as_str).filter(|key| !FIRST.contains(key));
    FIRST.into_iter().chain(rest).filter_map(line).collect()
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}
