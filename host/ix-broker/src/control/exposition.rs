//! All metrics in Prometheus' text format (version 0.0.4).
//!
//! Names follow its conventions: base units (seconds, bytes), counters end in `_total`, one thing a
//! name and its parts as labels.
use ix_proto::ThreadState;
use ix_proto::control::{Commands, Hardware, Sharer, Status, Thread};
use std::fmt::{Display, Write};

/// Media type of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Counters of elastic threads: the page's name, ours without its ends, and what it is.
const COUNTERS: [(&str, &str, &str); 24] = [
    ("rx_packets", "received_packets", "Packets that devices handed over"),
    ("rx_bytes", "received_bytes", "Bytes of received packets, Ethernet headers included"),
    ("tx_packets", "sent_packets", "Packets handed to devices"),
    ("tx_bytes", "sent_bytes", "Bytes of sent packets, Ethernet headers included"),
    ("cycles", "cycles", "Run-to-completion cycles, empty ones included"),
    ("busy_cycles", "busy_cycles", "Cycles that received or sent packets"),
    ("events", "event_conditions", "Event conditions"),
    ("calls", "system_calls", "Batched system calls"),
    ("call_errors", "system_call_errors", "Batched system calls that answered an error"),
    (
        "address_conflicts",
        "address_conflicts",
        "packets of other hosts that claim an address of ours",
    ),
    ("syn_cookies", "syn_cookies", "SYNs answered with a cookie"),
    ("knocks", "knocks", "Connections announced to the application"),
    ("connects", "connects", "Connections opened by the application"),
    ("accepted", "accepted_connections", "Connections accepted by the application"),
    ("closed", "closed_flows", "Flows that ended"),
    ("orphans_reset", "reset_orphans", "Connections reset at close: too many were ending"),
    ("time_wait_recycled", "recycled_time_wait_flows", "Flows whose TIME-WAIT ended early"),
    ("away_turns", "away_turns", "Turns of the guard while the application stayed away"),
    ("misrouted", "misrouted_packets", "Packets handled by another thread than the owner"),
    ("forwarded", "forwarded_packets", "Packets handed to the owner of their flow group"),
    ("event_back_pressure", "event_back_pressure", "Turns that left packets in the device"),
    ("device_rx_overrun", "device_overruns", "Packets lost by devices: not polled in time"),
    ("device_rx_invalid", "device_invalid_packets", "Packets that devices did not take"),
    ("device_tx_failed", "device_send_failures", "Packets that devices could not send"),
];

/// Gauges of elastic threads.
const GAUGES: [(&str, &str, &str); 12] = [
    ("flows", "flows", "Flows in all states"),
    ("flows_peak", "flows_peak", "Most flows at one time"),
    ("half_open", "half_open_flows", "Flows in SYN-RECEIVED"),
    (
        "time_wait",
        "time_wait_flows",
        "Flows in TIME-WAIT, and closed ones that only wait for the peer's FIN",
    ),
    ("orphans", "orphan_flows", "Flows that the application closed and that are still ending"),
    ("rx_frames_in_use", "receive_frames_in_use", "Receive frames out of the pool"),
    ("tx_frames_in_use", "transmit_frames_in_use", "Transmit frames out of the pool"),
    ("rx_frames_owned", "receive_frames_owned", "Receive frames that belong to a thread's pool"),
    ("rx_frames_in_device", "receive_frames_in_device", "Receive frames that devices hold"),
    ("tx_frames_in_device", "transmit_frames_in_device", "Transmit frames that devices hold"),
    ("app_timers", "app_timers", "Application timers armed"),
    ("wheel_entries", "wheel_entries", "Entries in the timing wheel, stale ones included"),
];

/// A count of what a hardware thread executed, if it is counted.
type Executed = fn(&Hardware) -> Option<u64>;

/// What the hardware threads under the elastic threads executed.
const HARDWARE: [(Executed, &str, &str); 3] = [
    (|h| Some(h.cycles), "hardware_cycles", "Cycles of the hardware thread"),
    (|h| Some(h.instructions), "hardware_instructions", "Instructions of the hardware thread"),
    (|h| h.cache_misses, "hardware_cache_misses", "Cache misses of the hardware thread"),
];

/// The whole page.
pub fn text(status: &Status) -> String {
    let mut page = Page::default();
    page.head("info", "gauge", "The program and its dataplane");
    page.put("info", &[("program", &status.name()), ("pid", &status.pid)], 1);
    page.head("batch_bound_packets", "gauge", "Batch bound B");
    page.put("batch_bound_packets", &[], status.batch_bound);
    page.head("device_up", "gauge", "Whether a device's link is up");
    for (device, state) in status.devices.iter().zip(&status.device_states) {
        page.put("device_up", &[("device", device)], u8::from(state.contains("up")));
    }
    page.head("wall", "gauge", "Whether the program is kept out of the dataplane's memory");
    page.put("wall", &[], u8::from(status.wall.stands));
    page.head("refusals_total", "counter", "What the wall did not let through, by kind");
    for (kind, count) in &status.wall.refused {
        page.put("refusals_total", &[("kind", kind)], count);
    }
    if let Some(sharing) = &status.sharing {
        page.head(
            "process",
            "gauge",
            "1 for each process of the program that shares the dataplane",
        );
        for Sharer { number, pid } in &sharing.processes {
            page.put("process", &[("number", number), ("pid", pid)], 1);
        }
        let help = "Processes that have asked for the dataplane and were refused";
        page.head("refused_processes_total", "counter", help);
        page.put("refused_processes_total", &[], sharing.refused);
        page.head("dataplane_deaths_total", "counter", "Dataplanes of this run that have died");
        page.put("dataplane_deaths_total", &[], sharing.died);
    }
    if let Some(controller) = &status.controller {
        page.head("slo_seconds", "gauge", "Bound on the queueing delay");
        page.put("slo_seconds", &[("policy", &controller.policy)], controller.slo_us / 1e6);
        page.head("rung", "gauge", "Rung of the policy's ladder, counted from 1");
        page.put("rung", &[("policy", &controller.policy)], controller.rung);
        if let Some(watts) = controller.power_w {
            page.head("power_watts", "gauge", "Power of the machine");
            page.put("power_watts", &[], watts);
        }
    }
    threads(&mut page, status);
    stages(&mut page, status);
    windows(&mut page, status);
    histograms(&mut page, status);
    groups(&mut page, status);
    page.0
}

/// Counters and gauges of each thread.
fn threads(page: &mut Page, status: &Status) {
    page.head("thread_state", "gauge", "1 for the state that an elastic thread is in");
    for (i, thread) in status.threads.iter().enumerate() {
        for state in ThreadState::ALL {
            let is = u8::from(state == thread.state);
            let labels: [(&str, &dyn Display); 3] =
                [("thread", &i), ("cpu", &thread.cpu), ("state", &state.name())];
            page.put("thread_state", &labels, is);
        }
    }
    for (key, name, help) in COUNTERS {
        let value = |thread: &Thread| thread.counters.get(key).copied();
        page.each(status, &format!("{name}_total"), "counter", help, value);
    }
    for (key, name, help) in GAUGES {
        let value = |thread: &Thread| thread.counters.get(key).copied();
        page.each(status, name, "gauge", help, value);
    }
    for (count, name, help) in HARDWARE {
        let value = |thread: &Thread| count(thread.hardware.as_ref()?);
        page.each(status, &format!("{name}_total"), "counter", help, value);
    }
    let groups = |thread: &Thread| Some(thread.flow_groups.len() as u64);
    page.each(status, "flow_groups", "gauge", "Flow groups that a thread owns", groups);
    page.head("dropped_packets_total", "counter", "Packets dropped, by reason");
    for (i, thread) in status.threads.iter().enumerate() {
        for (reason, count) in &thread.drops {
            page.put("dropped_packets_total", &[("thread", &i), ("reason", reason)], count);
        }
    }
    page.head("tcp_incidents_total", "counter", "What happened inside TCP, by kind");
    for (i, thread) in status.threads.iter().enumerate() {
        for (kind, count) in &thread.tcp {
            page.put("tcp_incidents_total", &[("thread", &i), ("kind", kind)], count);
        }
    }
}

/// Where the time goes.
fn stages(page: &mut Page, status: &Status) {
    if status.ticks_per_us == 0 {
        return;
    }
    let name = "time_seconds_total";
    page.head(name, "counter", "Time by stage of the cycle; app and idle are none of it");
    for (i, thread) in status.threads.iter().enumerate() {
        for (stage, ticks) in &thread.stage_ticks {
            let seconds = *ticks as f64 / status.ticks_per_us as f64 / 1e6;
            page.put(name, &[("thread", &i), ("stage", stage)], seconds);
        }
    }
}

/// Averages of the last windows, under the fastest smoothing factor.
fn windows(page: &mut Page, status: &Status) {
    let mut each = |name: &str, help: &str, value: &dyn Fn(&Thread) -> f64| {
        page.each(status, name, "gauge", help, |thread| Some(value(thread)));
    };
    each("queueing_delay_seconds", "From a packet's arrival to the end of its batch", &|t| {
        t.window.queueing_delay_us[0] / 1e6
    });
    each("tail_delay_seconds", "Estimate of the tail of the queueing delay", &|t| {
        t.tail_us(status.batch_bound) / 1e6
    });
    each("queue_depth_packets", "Packets that waited when a cycle began", &|t| {
        t.window.queue_depth[0]
    });
    each("batch_mean_packets", "Packets of a cycle that received any", &|t| t.window.batch[0]);
    each("iteration_seconds", "Time of a cycle that did something", &|t| {
        t.window.iteration_us[0] / 1e6
    });
    each("idle_ratio", "Share of the time without work", &|t| t.window.idle[0]);
}

/// Distributions.
fn histograms(page: &mut Page, status: &Status) {
    let name = "cycle_received_packets";
    page.head(name, "histogram", "Packets received by a cycle");
    for (i, thread) in status.threads.iter().enumerate() {
        let mut sum = 0u64;
        let last = thread.batches.len().saturating_sub(1);
        for (bucket, count) in thread.batches.iter().enumerate() {
            sum = sum.saturating_add(*count);
            // The last one has no bound.
            let bound = (bucket < last).then(|| ((1u64 << bucket) - 1).to_string());
            let bound = bound.unwrap_or_else(|| "+Inf".to_owned());
            page.put(&format!("{name}_bucket"), &[("thread", &i), ("le", &bound)], sum);
        }
        if !thread.batches.is_empty() {
            page.put(&format!("{name}_sum"), &[("thread", &i)], thread.counter("rx_packets"));
            page.put(&format!("{name}_count"), &[("thread", &i)], sum);
        }
    }
    let ticks_per_s = status.ticks_per_us as f64 * 1e6;
    if ticks_per_s == 0.0 {
        return;
    }
    let name = "busy_cycle_seconds";
    page.head(name, "summary", "Length of cycles that did something");
    for (i, thread) in status.threads.iter().enumerate() {
        let ticks = &thread.busy_cycle_ticks;
        for (quantile, value) in [("0.5", ticks.p50), ("0.99", ticks.p99), ("0.999", ticks.p999)] {
            let labels: [(&str, &dyn Display); 2] = [("thread", &i), ("quantile", &quantile)];
            page.put(name, &labels, value as f64 / ticks_per_s);
        }
        let sum = ticks.mean as f64 * ticks.count as f64 / ticks_per_s;
        page.put(&format!("{name}_sum"), &[("thread", &i)], sum);
        page.put(&format!("{name}_count"), &[("thread", &i)], ticks.count as f64);
    }
}

/// Flow groups, and the control plane's commands.
fn groups(page: &mut Page, status: &Status) {
    page.head("flow_group_packets_total", "counter", "Packets of a flow group, on any thread");
    for (i, group) in status.groups.iter().enumerate() {
        page.put("flow_group_packets_total", &[("group", &i)], group.packets);
    }
    page.head("migrations_total", "counter", "Migrations of flow groups between threads");
    page.put("migrations_total", &[], status.migrations_ever);
    page.head("commands_total", "counter", "Commands of the control plane, by outcome");
    let Commands { done, refused, timed_out, .. } = status.commands;
    for (outcome, count) in [("done", done), ("refused", refused), ("timed_out", timed_out)] {
        page.put("commands_total", &[("outcome", &outcome)], count);
    }
}

/// The text so far.
#[derive(Default)]
struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP ix_{name} {help}.\n# TYPE ix_{name} {kind}");
    }

    fn put(&mut self, name: &str, labels: &[(&str, &dyn Display)], value: impl Display) {
        let labels: Vec<String> =
            labels.iter().map(|(k, v)| format!("{k}=\"{}\"", escape(v))).collect();
        let labels =
            if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.0, "ix_{name}{labels} {value}");
    }

    /// A metric of each thread, if any has it.
    fn each<T: Display>(
        &mut self,
        status: &Status,
        name: &str,
        kind: &str,
        help: &str,
        value: impl Fn(&Thread) -> Option<T>,
    ) {
        let values: Vec<Option<T>> = status.threads.iter().map(value).collect();
        if values.iter().all(Option::is_none) {
            return;
        }
        self.head(name, kind, help);
        for (i, value) in values.into_iter().enumerate() {
            if let Some(value) = value {
                self.put(name, &[("thread", &i)], value);
            }
        }
    }
}

/// A label's value as it may stand between quotes.
fn escape(value: &dyn Display) -> String {
    value.to_string().replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::sample;
    use crate::counters;
    use ix_dataplane::metrics::{ControlPage, Snapshot};
    use ix_testbed::prometheus::Samples;

    #[test]
    fn the_text_is_what_prometheus_reads() {
        let program = "odd \"name\" \\ of\na program".to_owned();
        let status = Status { program, ..sample(5_000_000) };
        let samples = Samples::parse(&text(&status));
        let get = |series: &str| samples.get(series).unwrap_or_else(|| panic!("no {series}"));
        assert_eq!(get("ix_received_packets_total{thread=\"0\"}"), 5000.0);
        assert_eq!(get("ix_thread_state{thread=\"1\",cpu=\"3\",state=\"parked\"}"), 1.0);
        assert_eq!(get("ix_thread_state{thread=\"1\",cpu=\"3\",state=\"active\"}"), 0.0);
        assert_eq!(get("ix_queueing_delay_seconds{thread=\"0\"}"), 12.5e-6);
        assert_eq!(get("ix_cycle_received_packets_bucket{thread=\"0\",le=\"1\"}"), 5000.0);
        assert_eq!(get("ix_dropped_packets_total{thread=\"0\",reason=\"no_flow\"}"), 50.0);
        assert_eq!(get("ix_commands_total{outcome=\"refused\"}"), 1.0);
        assert_eq!(get("ix_slo_seconds{policy=\"energy\"}"), 300e-6);
        assert_eq!(get("ix_process{number=\"2\",pid=\"9\"}"), 1.0);
        assert_eq!(get("ix_refused_processes_total"), 1.0);
        assert_eq!(get("ix_dataplane_deaths_total"), 3.0);
        assert_eq!(get("ix_device_up{device=\"tap:ix0\"}"), 1.0);
        assert_eq!(get("ix_time_seconds_total{thread=\"0\",stage=\"idle\"}"), 20_000.0 / 2500e6);
    }

    /// The page of the book about metrics: every series with its kind, its labels and its help.
    fn reference() -> String {
        let mut status = sample(5_000_000);
        status.wall.refused.insert("call".to_owned(), 1);
        status.controller.as_mut().expect("a controller").power_w = Some(5.0);
        for thread in &mut status.threads {
            for (key, ..) in COUNTERS.iter().chain(&GAUGES) {
                thread.counters.insert((*key).to_owned(), 1);
            }
            let hardware = Hardware { cycles: 1, instructions: 1, cache_misses: Some(1) };
            thread.hardware = Some(hardware);
        }
        let text = text(&status);
        let mut page = String::from(
            "# Metrics\n\nMade from the code by `IX_BLESS=1 cargo test -p ix-broker --lib exposition`; do \
             not edit.\n\n`ix run --metrics ADDRESS:PORT` serves these series in Prometheus' text format \
             at `/metrics`. Counters\nend in `_total`; units are seconds and bytes. [Drop \
             reasons](drop-reasons.md) lists the values of `reason` and\n`kind`.\n\n\
             | series | kind | labels | meaning |\n|---|---|---|---|\n",
        );
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|l| l.split_once(' '))
            else {
                continue;
            };
            let kind = lines.next().and_then(|l| l.rsplit(' ').next()).unwrap_or_default();
            let labels = lines.peek().and_then(|l| l.split_once('{')).map_or("", |(_, rest)| rest);
            let names = labels.split("=\"").filter_map(|part| part.rsplit([',', '"']).next());
            let names: Vec<String> = names
                .filter(|name| !name.is_empty() && !name.contains('}'))
                .map(|name| format!("`{name}`"))
                .collect();
            let _ = writeln!(page, "| `{name}` | {kind} | {} | {help} |", names.join(", "));
        }
        page
    }

    #[test]
    fn the_reference_is_what_is_served() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/metrics.md");
        let page = reference();
        if std::env::var_os("IX_BLESS").is_some() {
            std::fs::write(path, &page).expect("the page can be written");
        }
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert_eq!(committed, page, "IX_BLESS=1 writes it");
    }

    #[test]
    fn no_counter_of_the_page_is_forgotten() {
        let page = ControlPage::anonymous(1).expect("memory");
        let snapshot = Snapshot::of(&page);
        let known: Vec<&str> = COUNTERS.iter().chain(&GAUGES).map(|(key, ..)| *key).collect();
        let names: Vec<&str> = snapshot.threads[0].counters.iter().map(|(name, _)| *name).collect();
        let missing: Vec<_> = names.iter().filter(|name| !known.contains(name)).collect();
        assert!(missing.is_empty(), "give these a name for Prometheus: {missing:?}");
        let gone: Vec<_> = known.iter().filter(|name| !names.contains(name)).collect();
        assert!(gone.is_empty(), "there is no such counter: {gone:?}");
        Samples::parse(&text(&counters::status_of(&snapshot)));
    }
}
