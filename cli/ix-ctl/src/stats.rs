//! `ix ctl stats`: the counters of a running dataplane, for people and for programs.
use crate::ctl::args::StatsArgs;
use crate::ctl::json;
use ix_broker::control::Client;
use ix_dataplane::metrics::Stage;
use ix_proto::control::{OwnCalls, Status, Thread};
use ix_report::cost::{Figures, HARDWARE, quotient};
use ix_report::figure;
use ix_report::output::write_json;
use ix_report::problem::Result;
use serde_json::Value;
use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// `ix ctl stats`.
pub fn main(args: &StatsArgs) -> Result<()> {
    let path = args.dataplane.find()?;
    let Some(interval) = args.interval else {
        return print(args, &ask(&path)?, None);
    };
    let interval = Duration::from_secs_f64(interval);
    let (mut before, mut looked) = (ask(&path)?, Instant::now());
    let mut shown = 0;
    while args.count.is_none_or(|count| shown < count) {
        std::thread::sleep(interval);
        let after = ask(&path)?;
        let seconds = looked.elapsed().as_secs_f64();
        looked = Instant::now();
        print(args, &after, Some((&before, seconds)))?;
        before = after;
        shown += 1;
    }
    Ok(())
}

fn ask(path: &Path) -> Result<Status> {
    Client::connect(path)?.stats()
}

/// Prints counters, or what they grew by since `before`, so many seconds ago.
fn print(args: &StatsArgs, stats: &Status, before: Option<(&Status, f64)>) -> Result<()> {
    let file = args.output.as_ref();
    file.map_or(Ok(()), |file| write_json(file, &with_cost(stats, before)?))?;
    if args.json {
        let stats = with_cost(stats, before)?;
        // An object a line where there will be several.
        if before.is_some() { ix_sys::outln!("{stats}") } else { ix_sys::outln!("{stats:#}") }
    } else if args.all {
        let mut lines = Vec::new();
        flatten("", &json(stats)?, &mut lines);
        let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, value) in lines {
            ix_sys::outln!("{name:<width$}  {value}");
        }
    } else {
        ix_sys::out!("{}", text(stats, before));
    }
    Ok(())
}

/// Counters as JSON, with what follows from them under `cost` of each thread.
pub(crate) fn with_cost(stats: &Status, before: Option<(&Status, f64)>) -> Result<Value> {
    let costs = figures(stats, before);
    let costed = stats.threads.iter().zip(&costs).map(|(thread, figures)| {
        let mut thread = json(thread)?;
        insert(&mut thread, "cost", figures.to_json());
        Ok(thread)
    });
    let threads = costed.collect::<Result<Vec<Value>>>()?;
    let mut stats = json(stats)?;
    insert(&mut stats, "threads", threads.into());
    if let Some((_, seconds)) = before {
        insert(&mut stats, "cost_seconds", seconds.into());
    }
    Ok(stats)
}

fn insert(object: &mut Value, key: &str, value: Value) {
    if let Some(object) = object.as_object_mut() {
        object.insert(key.to_owned(), value);
    }
}

/// What each thread did, since its start or since `before`.
fn figures(stats: &Status, before: Option<(&Status, f64)>) -> Vec<Figures> {
    let now = Figures::of_threads(stats);
    let Some((before, _)) = before else { return now };
    now.iter().zip(&Figures::of_threads(before)).map(|(now, before)| now.since(before)).collect()
}

/// The tables.
fn text(stats: &Status, before: Option<(&Status, f64)>) -> String {
    let mut out = String::new();
    let figures = figures(stats, before);
    let when = match before {
        Some((_, seconds)) => format!("the last {seconds:.1} s"),
        None => "since its start".to_owned(),
    };
    let _ = writeln!(out, "{} ({}), {when}", stats.program, stats.pid);
    if let Some(words) = stats.wall.words() {
        let _ = writeln!(out, "the wall, since its start: {words}");
    }
    for (i, (figures, thread)) in figures.iter().zip(&stats.threads).enumerate() {
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
    own_calls(&mut out, stats);
    out
}

/// System calls that the program makes by instructions of its own, and those with the most.
fn own_calls(out: &mut String, stats: &Status) {
    const SHOWN: usize = 8;
    let Some(sites) = Some(&stats.own_calls).filter(|sites| !sites.is_empty()) else { return };
    let sum = |of: fn(&OwnCalls) -> u64| sites.iter().map(of).fold(0, u64::saturating_add);
    let (trapped, rewritten) = (sum(|site| site.trapped), sum(|site| site.rewritten));
    let _ = writeln!(
        out,
        "\nsystem calls by the program's own instructions, since its start: {trapped} trapped, \
         {rewritten} did not"
    );
    for site in sites.iter().take(SHOWN) {
        let why = site.why.as_ref().map_or(String::new(), |why| format!("  ({why})"));
        let OwnCalls { process, address, number, trapped, rewritten, .. } = site;
        let _ = writeln!(
            out,
            "  process {process} at {address:#x}: {trapped} trapped, {rewritten} did not, last \
             call {number}{why}"
        );
    }
    if let Some(more) = sites.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        let _ = writeln!(out, "  and {more} others (--all shows them)");
    }
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
fn hardware(out: &mut String, stats: &Status, figures: &Figures) {
    let each = |name: &str| {
        let count = quotient(figures.hardware(name)?, figures.rx_packets)?;
        Some(format!("{count:.1} {}", name.replace('_', " ")))
    };
    let known: Vec<String> = HARDWARE.iter().filter_map(|name| each(name)).collect();
    if !known.is_empty() {
        let _ = writeln!(out, "  hardware thread, for each packet received: {}", known.join(", "));
    } else if let Some(why) = &stats.hardware_missing {
        let _ = writeln!(out, "  hardware thread: not counted ({why})");
    }
}

/// Flows and frames now, and drops and TCP's incidents that there were, since the start.
fn state(out: &mut String, thread: &Thread) {
    let now = ["flows", "half_open", "time_wait", "rx_frames_in_use", "tx_frames_in_use"];
    let now = now.map(|name| format!("{name} {}", thread.counter(name)));
    let _ = writeln!(out, "  now: {}", now.join(", "));
    for (title, counters) in [("drops", &thread.drops), ("tcp", &thread.tcp)] {
        let counted = counters.iter().filter(|(_, count)| **count != 0);
        let counted: Vec<String> = counted.map(|(name, n)| format!("{name} {n}")).collect();
        let counted = if counted.is_empty() { "none".to_owned() } else { counted.join(", ") };
        let _ = writeln!(out, "  {title}, since the start: {counted}");
    }
}

fn percent(share: Option<f64>) -> String {
    format!("{:>7}", share.map_or("-".to_owned(), |share| figure::percent(share, 1)))
}

fn number(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| figure::fixed(value, 0))
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
    use ix_proto::control::{Hardware, Wall};
    use ix_report::cost_sample::thread;
    use serde_json::json;

    fn stats() -> Status {
        let hardware = Hardware { cycles: 3000, instructions: 6000, cache_misses: Some(30) };
        let mut thread = thread(Some(hardware));
        thread.drops.extend([("no_flow".to_owned(), 2), ("backlog".to_owned(), 0)]);
        thread.counters.insert("flows".to_owned(), 64);
        let program = "/bin/x".to_owned();
        Status { program, pid: 7, threads: vec![thread], ..Status::default() }
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
        assert_eq!(line("process"), "process 30.0% 100 100 packet received");
        assert_eq!(line("calls"), "calls 12.0% 40 20 system call");
        assert_eq!(line("idle "), "idle 20.0% - -");
        assert_eq!(line("time:"), "time: dataplane 60.0%, application 20.0%, idle 20.0%");
        let bar = "#############"; // a quarter of 50, rounded
        assert_eq!(line("16-31"), format!("16-31 25.0% {bar}"));
        assert!(!text.contains("256-"), "{text}");
        assert_eq!(
            line("hardware"),
            "hardware thread, for each packet received: 10.0 cycles, 20.0 instructions, 0.1 cache misses"
        );
        assert_eq!(line("drops"), "drops, since the start: no_flow 2");
        assert!(!text.contains("all elastic threads"));
    }

    #[test]
    fn several_threads_have_a_sum_and_an_interval_has_rates() {
        let mut after = stats();
        after.threads.push(after.threads[0].clone());
        after.threads[0].counters.insert("rx_packets".to_owned(), 1300);
        let mut before = stats();
        before.threads.push(before.threads[0].clone());
        let text = text(&after, Some((&before, 2.0)));
        assert!(text.contains("the last 2.0 s"), "{text}");
        assert_eq!(text.matches("500 packets received a second").count(), 2, "{text}");
        assert!(text.contains("all elastic threads"), "{text}");
        let after = with_cost(&after, Some((&before, 2.0))).expect("JSON");
        assert_eq!(after["cost_seconds"], 2.0);
        assert!(after["threads"][1]["cost"].is_object());
    }

    #[test]
    fn what_the_wall_refused_is_said() {
        let mut stats = stats();
        assert!(!text(&stats, None).contains("the wall"));
        let refused = [("code".to_owned(), 2), ("memory".to_owned(), 0)].into();
        stats.wall = Wall { stands: true, refused };
        assert!(text(&stats, None).contains("the wall, since its start: refused code 2\n"));
    }

    #[test]
    fn why_there_are_no_hardware_counters_is_said() {
        let why = "no such device";
        let hardware_missing = Some(why.to_owned());
        let stats = Status { threads: vec![thread(None)], hardware_missing, ..Status::default() };
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
