//! `ix ctl status`, `threads` and `flow-groups`: what there is, as tables.
use ix_broker::control::Change;
use ix_proto::control::{Report, Sharing, Status};
use ix_report::figure::{count, micros, percent, plural};
use ix_report::table::Table;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Flow groups that are named as those with most load.
const BUSIEST: usize = 8;

/// What a dataplane does now, in a few lines.
pub fn status(status: &Status) -> String {
    let mut out = String::new();
    let devices = status.devices.iter().zip(&status.device_states);
    let devices: Vec<String> =
        devices.map(|(device, state)| format!("{device} ({state})")).collect();
    let _ = writeln!(out, "{} ({}) on {}", status.name(), status.pid, devices.join(", "));
    let _ = writeln!(out, "  {}", threads_line(status));
    let idle: Vec<f64> = status.serving().map(|thread| thread.window.idle[0]).collect();
    let idle = idle.iter().sum::<f64>() / idle.len().max(1) as f64;
    let _ = writeln!(
        out,
        "  {} packets/s, queueing delay {} µs, tail ⌈Q/B⌉·τ {} µs, idle {}",
        count(status.rate_per_s()),
        micros(status.queueing_delay_us()),
        micros(status.tail_us()),
        percent(idle, 0),
    );
    let flows = ["flows", "half_open", "time_wait"].map(|name| status.total(name));
    let s = if flows[0] == 1 { "" } else { "s" };
    let [flows, half_open, time_wait] = flows.map(|n| count(n as f64));
    let _ = writeln!(out, "  {flows} flow{s}, {half_open} half open, {time_wait} in TIME-WAIT");
    let drops = status.drops();
    let drops: Vec<String> =
        drops.iter().map(|(reason, n)| format!("{reason} {}", count(*n as f64))).collect();
    let drops = if drops.is_empty() { "none".to_owned() } else { drops.join(", ") };
    let _ = writeln!(out, "  drops since the start: {drops}");
    status.sharing.iter().for_each(|sharing| out.push_str(&sharing_lines(sharing)));
    if let Some(controller) = &status.controller {
        let _ = writeln!(out, "  {}", controller_line(controller));
    }
    out
}

/// `2 processes share it: 0 (4711), 1 (4712)`, and what went wrong, if anything has.
fn sharing_lines(sharing: &Sharing) -> String {
    let Sharing { processes, refused, died, memory } = sharing;
    let who: Vec<String> =
        processes.iter().map(|one| format!("{} ({})", one.number, one.pid)).collect();
    let mut out = match who.len() {
        0 => "  no process has it\n".to_owned(),
        1 => format!("  1 process has it: {}\n", who[0]),
        n => format!("  {n} processes share it: {}\n", who.join(", ")),
    };
    if memory.parts().iter().any(|(_, bytes)| *bytes > 0) {
        let parts =
            memory.parts().map(|(part, bytes)| format!("{part} {}", bytes.div_ceil(1 << 10)));
        let _ = writeln!(out, "  memory in KB: {}", parts.join(", "));
    }
    if *refused > 0 {
        let _ = writeln!(out, "  processes that asked for it and were refused: {refused}");
    }
    if *died > 0 {
        let _ = writeln!(out, "  dataplanes of this run that have died: {died}");
    }
    out
}

/// `policy energy, at most 300 µs; 1 core, rung 2 of 5 (controller 99)`.
pub fn controller_line(controller: &Report) -> String {
    let Report { pid, policy, slo_us, rung, rungs, configuration, .. } = controller;
    let at = match rung {
        0 => "no rung yet".to_owned(),
        _ => format!("{configuration}, rung {rung} of {rungs}"),
    };
    format!("policy {policy}, at most {} µs; {at} (controller {pid})", micros(*slo_us))
}

/// The controller, and what it did last.
pub fn policy(status: &Status) -> String {
    let Some(controller) = &status.controller else {
        return "no controller: threads stay as they are; start one with `ix cp`\n".to_owned();
    };
    let mut out = format!("{}\n", controller_line(controller));
    if !controller.last.is_empty() {
        let _ = writeln!(out, "last: {}", controller.last);
    }
    if let Some(watts) = controller.power_w {
        let _ = writeln!(out, "power: {watts:.1} W");
    }
    out
}

/// The bound, and how the queueing delay stands to it.
pub fn slo(status: &Status) -> String {
    let delay = micros(status.queueing_delay_us().max(status.tail_us()));
    match &status.controller {
        Some(controller) => {
            let slo = micros(controller.slo_us);
            format!("at most {slo} µs; queueing delay and its tail are {delay} µs now\n")
        }
        None => format!("no controller, so no bound; queueing delay is {delay} µs now\n"),
    }
}

/// `2 elastic threads: 1 active, 1 parked; 128 flow groups; batch bound 64`.
fn threads_line(status: &Status) -> String {
    let mut states: BTreeMap<&str, usize> = BTreeMap::new();
    status.threads.iter().for_each(|thread| *states.entry(thread.state.name()).or_default() += 1);
    let states: Vec<String> = states.iter().map(|(state, n)| format!("{n} {state}")).collect();
    format!(
        "{}: {}; {}; batch bound {}",
        plural(status.threads.len(), "elastic thread"),
        states.join(", "),
        plural(status.groups.len(), "flow group"),
        status.batch_bound,
    )
}

/// A line for each elastic thread.
pub fn threads(status: &Status) -> String {
    let heading = [
        "thread",
        "cpu",
        "state",
        "groups",
        "flows",
        "packets/s",
        "Q",
        "batch",
        "τ µs",
        "delay µs",
        "tail µs",
        "idle",
    ];
    let mut table = Table::new(&heading, &[2]);
    for (i, thread) in status.threads.iter().enumerate() {
        let window = &thread.window;
        let first = [
            i.to_string(),
            thread.cpu.to_string(),
            thread.state.name().to_owned(),
            thread.flow_groups.len().to_string(),
            count(thread.counter("flows") as f64),
        ];
        let load = [
            count(window.rate_per_s[0]),
            format!("{:.1}", window.queue_depth[0]),
            format!("{:.1}", window.batch[0]),
            micros(window.iteration_us[0]),
            micros(window.queueing_delay_us[0]),
            micros(thread.tail_us(status.batch_bound)),
            percent(window.idle[0], 0),
        ];
        let load = if thread.state.serves() { load } else { load.map(|_| "-".to_owned()) };
        table.row(first.into_iter().chain(load));
    }
    table.text()
}

/// Who owns which flow groups and which carry the load; with `all`, a line for each.
pub fn flow_groups(change: &Change<'_>, status: &Status, all: bool) -> String {
    let rates = change.group_rates();
    let total: f64 = rates.iter().sum();
    let share = |rate: f64| if total > 0.0 { percent(rate / total, 0) } else { "-".to_owned() };
    if all {
        let mut table = Table::new(&["group", "thread", "packets/s", "share"], &[]);
        for (i, (group, rate)) in status.groups.iter().zip(&rates).enumerate() {
            let owner = group.thread.map_or("moves".to_owned(), |thread| thread.to_string());
            table.row([i.to_string(), owner, count(*rate), share(*rate)]);
        }
        return table.text();
    }
    let mut table = Table::new(&["thread", "state", "groups", "packets/s", "share", ""], &[1, 5]);
    for (i, thread) in status.threads.iter().enumerate() {
        let of_it = status.groups.iter().zip(&rates).filter(|(group, _)| group.thread == Some(i));
        let rate: f64 = of_it.map(|(_, rate)| *rate).sum();
        let groups = thread.flow_groups.len().to_string();
        let names = shorten(&thread.flow_groups.to_string());
        table.row([
            i.to_string(),
            thread.state.name().to_owned(),
            groups,
            count(rate),
            share(rate),
            names,
        ]);
    }
    let mut out = table.text();
    let moving = status.groups.iter().filter(|group| group.thread.is_none()).count();
    if moving > 0 {
        let _ = writeln!(out, "{} just now on the way", plural(moving, "flow group"));
    }
    let mut busiest: Vec<(usize, f64)> =
        rates.iter().copied().enumerate().filter(|(_, rate)| *rate > 0.0).collect();
    busiest.sort_by(|a, b| b.1.total_cmp(&a.1));
    let shown = busiest.iter().take(BUSIEST);
    let shown: Vec<String> =
        shown.map(|(group, rate)| format!("{group} ({}/s)", count(*rate))).collect();
    if !shown.is_empty() {
        let _ = writeln!(out, "busiest: {}", shown.join(", "));
    }
    out
}

/// As many of the groups as fit a line.
fn shorten(names: &str) -> String {
    const MOST: usize = 40;
    match names.get(..MOST).and_then(|start| start.rsplit_once(',')) {
        Some((start, _)) if names.len() > MOST => format!("{start},…"),
        _ => names.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ix_broker::control::sample;

    fn looks() -> [Status; 2] {
        [1_000_000, 2_000_000].map(sample)
    }

    #[test]
    fn the_status_says_what_matters() {
        let [_, after] = looks();
        let text = status(&after);
        for says in [
            "ix-echo (7) on tap:ix0 (up)",
            "2 elastic threads: 1 active, 1 parked; 128 flow groups; batch bound 64",
            "1.00k packets/s, queueing delay 12 µs, tail ⌈Q/B⌉·τ 20 µs, idle 40%",
            "6 flows, 0 half open",
            "drops since the start: no_flow 20",
            "2 processes share it: 0 (7), 2 (9)",
            "memory in KB: receive 6144, build 4, transmit 0, own 2442",
            "processes that asked for it and were refused: 1",
            "dataplanes of this run that have died: 3",
            "policy energy, at most 300 µs; 1 core, rung 2 of 5 (controller 99)",
        ] {
            assert!(text.contains(says), "{says}: {text}");
        }
    }

    #[test]
    fn threads_have_a_line_each() {
        let [_, after] = looks();
        let text = threads(&after);
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        let first =
            ["0", "2", "active", "128", "3", "1.00k", "70.0", "8.0", "10", "12", "20", "40%"];
        assert_eq!(lines[1], first);
        let second = ["1", "3", "parked", "0", "3", "-", "-", "-", "-", "-", "-", "-"];
        assert_eq!(lines[2], second);
    }

    #[test]
    fn flow_groups_are_counted_by_owner_and_by_load() {
        let [before, after] = looks();
        let change = Change::between(&before, &after).expect("comparable");
        let text = flow_groups(&change, &after, false);
        assert!(text.contains("0-127"), "{text}");
        assert_eq!(
            shorten("0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30,32"),
            "0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,…"
        );
        assert!(text.contains("busiest: 127 (127k/s), 126 (126k/s)"), "{text}");
        let text = flow_groups(&change, &after, true);
        assert_eq!(text.lines().count(), 129);
        assert!(
            text.lines().any(|l| l.split_whitespace().eq(["64", "0", "64.0k", "1%"])),
            "{text}"
        );
    }
}
