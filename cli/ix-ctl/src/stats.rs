//! `ix ctl stats`: the counters of a running dataplane, for people and for programs.
use crate::ctl::args::StatsArgs;
use ix_broker::control::{WallView, ask};
use ix_dataplane::metrics::Stage;
use ix_report::cost::{Figures, HARDWARE, quotient};
use ix_report::problem::Result;
use serde::Deserialize;
use serde_json::Value;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// `ix ctl stats`.
pub fn main(args: &StatsArgs) -> Result<()> {
    let path = args.dataplane.find()?;
    let Some(interval) = args.interval else {
        print(args, &ask(&path, "stats")?, None);
        return Ok(());
    };
    let interval = Duration::from_secs_f64(interval);
    let (mut before, mut looked) = (ask(&path, "stats")?, Instant::now());
    let mut shown = 0;
    while args.count.is_none_or(|count| shown < count) {
        std::thread::sleep(interval);
        let after = ask(&path, "stats")?;
        let seconds = looked.elapsed().as_secs_f64();
        looked = Instant::now();
        print(args, &after, Some((&before, seconds)));
        before = after;
        shown += 1;
    }
    Ok(())
}

/// Prints counters, or what they grew by since `before`, so many seconds ago.
fn print(args: &StatsArgs, stats: &Value, before: Option<(&Value, f64)>) {
    if args.json {
        let mut stats = stats.clone();
        add_cost(&mut stats, before);
        // An object a line where there will be several.
        if before.is_some() { println!("{stats}") } else { println!("{stats:#}") }
    } else if args.all {
        let mut lines = Vec::new();
        flatten("", stats, &mut lines);
        let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, value) in lines {
            println!("{name:<width$}  {value}");
        }
    } else {
        print!("{}", text(stats, before));
    }
}

/// Gives each thread what follows from its counters, under `cost`.
fn add_cost(stats: &mut Value, before: Option<(&Value, f64)>) {
    let costs: Vec<Value> = figures(stats, before).iter().map(Figures::to_json).collect();
    let threads = stats.get_mut("threads").and_then(Value::as_array_mut);
    for (thread, cost) in threads.into_iter().flatten().zip(costs) {
        thread["cost"] = cost;
    }
    if let Some((_, seconds)) = before {
        stats["cost_seconds"] = seconds.into();
    }
}

/// What each thread did, since its start or since `before`.
fn figures(stats: &Value, before: Option<(&Value, f64)>) -> Vec<Figures> {
    let now = Figures::of_threads(stats).unwrap_or_default();
    let Some(before) = before.and_then(|(before, _)| Figures::of_threads(before)) else {
        return now;
    };
    now.iter().zip(&before).map(|(now, before)| now.since(before)).collect()
}

/// The tables.
fn text(stats: &Value, before: Option<(&Value, f64)>) -> String {
    let mut out = String::new();
    let figures = figures(stats, before);
    let word = |name| stats.get(name).and_then(Value::as_str).unwrap_or("?");
    let pid = stats.get("pid").and_then(Value::as_u64).unwrap_or(0);
    let when = match before {
        Some((_, seconds)) => format!("the last {seconds:.1} s"),
        None => "since its start".to_owned(),
    };
    let _ = writeln!(out, "{} ({pid}), {when}", word("program"));
    let wall = stats.get("wall").and_then(|wall| WallView::deserialize(wall).ok());
    if let Some(words) = wall.and_then(|wall| wall.words()) {
        let _ = writeln!(out, "the wall, since its start: {words}");
    }
    let threads = stats.get("threads").and_then(Value::as_array);
    let threads: Vec<&Value> = threads.into_iter().flatten().collect();
    for (i, (figures, thread)) in figures.iter().zip(&threads).enumerate() {
        let _ = writeln!(out, "\nelastic thread {i}");
        out.push_str(&section(figures, before.map(|(_, seconds)| seconds)));
        hardware(&mut out, stats, figures);
        state(&mut out, thread);
    }
    let total = figures
        .iter()
        .skip(1)
        .fold(figures.first().cloned(), |sum, more| sum.map(|sum| sum.plus(more)));
    if let Some(total) = total.filter(|_| figures.len() > 1) {
        let _ = writeln!(out, "\nall elastic threads");
        out.push_str(&section(&total, before.map(|(_, seconds)| seconds)));
        hardware(&mut out, stats, &total);
    }
    out
}

/// Stages, shares, packets and batches.
fn section(figures: &Figures, seconds: Option<f64>) -> String {
    let mut out = String::new();
    stages(&mut out, figures);
    let percent = |ticks| percent(figures.share(ticks));
    let _ = writeln!(
        out,
        "  time: dataplane {}, application {}, idle {}",
        percent(figures.dataplane_ticks()).trim(),
        percent(figures.ticks(Stage::App)).trim(),
        percent(figures.ticks(Stage::Idle)).trim(),
    );
    let counts = [
        ("packets received", figures.rx_packets),
        ("sent", figures.tx_packets),
        ("event conditions", figures.events),
        ("system calls", figures.calls),
    ];
    let counts = counts.map(|(name, count)| match seconds {
        Some(seconds) => format!("{:.0} {name} a second", count as f64 / seconds),
        None => format!("{count} {name}"),
    });
    let _ = writeln!(out, "  {}", counts.join(", "));
    batches(&mut out, figures);
    out
}

fn stages(out: &mut String, figures: &Figures) {
    let heading = ["stage", "time", "ticks a packet", "ticks each"];
    let [stage, time, packet, each] = heading;
    let _ = writeln!(out, "  {stage:<9} {time:>7} {packet:>15} {each:>11}");
    for stage in Stage::ALL {
        let ticks = figures.ticks(stage);
        let (count, unit) = match stage {
            Stage::Poll | Stage::Process => (figures.rx_packets, "packet received"),
            Stage::App => (figures.events, "event condition"),
            Stage::Calls => (figures.calls, "system call"),
            Stage::Timers => (figures.busy_cycles, "cycle"),
            Stage::Transmit => (figures.tx_packets, "packet sent"),
            Stage::Idle => (0, ""),
        };
        let share = percent(figures.share(ticks));
        let packet = if unit.is_empty() { None } else { quotient(ticks, figures.rx_packets) };
        let (packet, each) = (number(packet), number(quotient(ticks, count)));
        let line = format!("  {:<9} {share} {packet:>15} {each:>11}  {unit}", stage.name());
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

/// Cycles by packets received, those without any left out, as bars.
fn batches(out: &mut String, figures: &Figures) {
    let Some(average) = figures.batch_avg() else { return };
    let _ = writeln!(out, "  packets of a cycle that received any: {average:.1} on average");
    let cycles: u64 = figures.batches.iter().skip(1).sum();
    let last = figures.batches.iter().rposition(|count| *count > 0).unwrap_or(0);
    for (bucket, &count) in figures.batches.iter().enumerate().skip(1).take(last) {
        let (low, high) = (1u64 << (bucket - 1), (1u64 << bucket) - 1);
        let range = match bucket {
            1 => "1".to_owned(),
            _ if bucket + 1 == figures.batches.len() => format!("{low}-"),
            _ => format!("{low}-{high}"),
        };
        let share = quotient(count, cycles).unwrap_or(0.0);
        let bar = "#".repeat((share * 50.0).round() as usize);
        let line = format!("  {range:>9} {} {bar}", percent(Some(share)));
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

/// What the hardware thread executed, or why that is not known.
fn hardware(out: &mut String, stats: &Value, figures: &Figures) {
    let each = |name: &str| {
        let count = quotient(figures.hardware(name)?, figures.rx_packets)?;
        Some(format!("{count:.1} {}", name.replace('_', " ")))
    };
    let known: Vec<String> = HARDWARE.iter().filter_map(|name| each(name)).collect();
    if !known.is_empty() {
        let _ = writeln!(out, "  hardware thread, for each packet received: {}", known.join(", "));
    } else if let Some(why) = stats.get("hardware_missing").and_then(Value::as_str) {
        let _ = writeln!(out, "  hardware thread: not counted ({why})");
    }
}

/// Flows and frames now, and drops and TCP's incidents that there were, since the start.
fn state(out: &mut String, thread: &Value) {
    let now = ["flows", "half_open", "time_wait", "rx_frames_in_use", "tx_frames_in_use"];
    let now = now.map(|name| format!("{name} {}", thread.get(name).unwrap_or(&Value::Null)));
    let _ = writeln!(out, "  now: {}", now.join(", "));
    for list in ["drops", "tcp"] {
        let counters = thread.get(list).and_then(Value::as_object);
        let counted = counters.into_iter().flatten().filter(|(_, count)| count.as_u64() != Some(0));
        let counted: Vec<String> = counted.map(|(name, n)| format!("{name} {n}")).collect();
        let counted = if counted.is_empty() { "none".to_owned() } else { counted.join(", ") };
        let _ = writeln!(out, "  {list}, since the start: {counted}");
    }
}

fn percent(share: Option<f64>) -> String {
    share.map_or("      -".to_owned(), |share| format!("{:>5.1} %", share * 100.0))
}

fn number(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.0}"))
}

/// One line a number: `threads.0.rx_packets`.
fn flatten(name: &str, value: &Value, lines: &mut Vec<(String, String)>) {
    let join = |key: &str| if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") };
    match value {
        Value::Object(map) => map.iter().for_each(|(k, v)| flatten(&join(k), v, lines)),
        Value::Array(values) => {
            values.iter().enumerate().for_each(|(i, v)| flatten(&join(&i.to_string()), v, lines));
        }
        Value::String(text) => lines.push((name.to_owned(), text.clone())),
        other => lines.push((name.to_owned(), other.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ix_report::cost_sample::thread;
    use serde_json::json;

    fn stats() -> Value {
        let mut thread = thread(Some(json!({ "cycles": 3000, "cache_misses": 30 })));
        thread["drops"] = json!({ "no_flow": 2, "backlog": 0 });
        thread["flows"] = json!(64);
        json!({ "program": "/bin/x", "pid": 7, "threads": [thread] })
    }

    #[test]
    fn the_table_says_what_each_stage_took() {
        let text = text(&stats(), None);
        let line = |start: &str| {
            let line = text.lines().find(|line| line.trim_start().starts_with(start));
            let words = line.unwrap_or_else(|| panic!("no {start} in {text}")).split_whitespace();
            words.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(line("/bin/x"), "/bin/x (7), since its start");
        assert_eq!(line("process"), "process 30.0 % 100 100 packet received");
        assert_eq!(line("calls"), "calls 12.0 % 40 20 system call");
        assert_eq!(line("idle "), "idle 20.0 % - -");
        assert_eq!(line("time:"), "time: dataplane 60.0 %, application 20.0 %, idle 20.0 %");
        let bar = "#############"; // a quarter of 50, rounded
        assert_eq!(line("16-31"), format!("16-31 25.0 % {bar}"));
        assert!(!text.contains("256-"), "{text}");
        assert_eq!(
            line("hardware"),
            "hardware thread, for each packet received: 10.0 cycles, 0.1 cache misses"
        );
        assert_eq!(line("drops"), "drops, since the start: no_flow 2");
        assert!(!text.contains("all elastic threads"));
    }

    #[test]
    fn several_threads_have_a_sum_and_an_interval_has_rates() {
        let mut after = stats();
        let mut first = after["threads"][0].clone();
        first["rx_packets"] = json!(1300);
        after["threads"] = json!([first, after["threads"][0]]);
        let mut before = stats();
        before["threads"] = json!([before["threads"][0], before["threads"][0]]);
        let text = text(&after, Some((&before, 2.0)));
        assert!(text.contains("the last 2.0 s"), "{text}");
        assert_eq!(text.matches("500 packets received a second").count(), 2, "{text}");
        assert!(text.contains("all elastic threads"), "{text}");
        add_cost(&mut after, Some((&before, 2.0)));
        assert_eq!(after["cost_seconds"], 2.0);
        assert!(after["threads"][1]["cost"].is_object());
    }

    #[test]
    fn what_the_wall_refused_is_said() {
        let mut stats = stats();
        assert!(!text(&stats, None).contains("the wall"));
        stats["wall"] = json!({ "stands": true, "refused": { "code": 2, "memory": 0 } });
        assert!(text(&stats, None).contains("the wall, since its start: refused code 2\n"));
    }

    #[test]
    fn why_there_are_no_hardware_counters_is_said() {
        let why = "no such device";
        let stats = json!({ "threads": [thread(None)], "hardware_missing": why });
        assert!(text(&stats, None).contains("not counted (no such device)"));
    }

    #[test]
    fn numbers_get_dotted_names() {
        let mut lines = Vec::new();
        flatten("", &json!({ "a": { "b": [1, { "c": 2 }] }, "d": "x" }), &mut lines);
        let text: Vec<_> = lines.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(text, ["a.b.0=1", "a.b.1.c=2", "d=x"]);
    }
}
