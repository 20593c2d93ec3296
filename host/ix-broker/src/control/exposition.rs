//! All metrics as text: Prometheus' own format (version 0.0.4), and OpenMetrics 1.0.
//!
//! Names follow Prometheus' conventions: base units (seconds, bytes), counters end in `_total`, one
//! thing a name and its parts as labels. Every series of a dataplane has the labels of its
//! [`Source`].
use super::families::Families;
use ix_proto::ThreadState;
use ix_proto::control::{
    Commands, Hardware, PROTOCOL, Sharer, Status, TIME_BOUNDS_US, Thread, Times,
};
use std::fmt::Display;

pub use super::families::Format;

/// Counters of elastic threads: the page's name, ours without its ends, and what it is.
const COUNTERS: [(&str, &str, &str); 25] = [
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
    (
        "device_rx_other_vlan",
        "device_other_vlan_packets",
        "Packets of another VLAN than the device's, or of none",
    ),
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

/// A dataplane of which metrics are made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// Its program, without the folder.
    pub program: String,
    /// The program's process.
    pub pid: u32,
    /// Its devices, with commas between them.
    pub device: String,
    /// The version of the `ix` that runs it.
    pub version: String,
}

impl Source {
    /// The dataplane of a status, run by this version of `ix`.
    pub fn of(status: &Status, version: &str) -> Source {
        let (program, version) = (status.name().to_owned(), version.to_owned());
        Source { program, pid: status.pid, device: status.devices.join(","), version }
    }

    /// The labels of all its series.
    fn labels(&self) -> [(&'static str, String); 3] {
        let Source { program, pid, device, .. } = self;
        [("program", program.clone()), ("pid", pid.to_string()), ("device", device.clone())]
    }
}

/// How a dataplane has answered the exporter.
#[derive(Clone, Debug)]
pub struct Answered {
    /// Which dataplane, as far as known.
    pub source: Source,
    /// Its state and the time that it took to say it, seconds; `None`: it did not.
    pub status: Option<(Status, f64)>,
}

/// The metrics of one dataplane, in Prometheus' format.
pub fn text(status: &Status) -> String {
    one(status, Format::Text)
}

/// The metrics of a dataplane that this version of `ix` runs.
pub fn one(status: &Status, format: Format) -> String {
    let mut page = Families::default();
    build_info(&mut page);
    dataplane(&mut page, &Source::of(status, env!("CARGO_PKG_VERSION")), status);
    page.text(format)
}

/// The metrics of all dataplanes of a host.
pub fn all(dataplanes: &[Answered], format: Format) -> String {
    let mut page = Families::default();
    build_info(&mut page);
    for Answered { source, status } in dataplanes {
        page.source(source.labels());
        page.head("dataplane_up", "gauge", "Whether the dataplane answered the exporter in time");
        page.put("dataplane_up", &[], u8::from(status.is_some()));
        if let Some((status, took_s)) = status {
            page.head("answer_seconds", "gauge", "Time that the dataplane's answer took");
            page.put("answer_seconds", &[], took_s);
            dataplane(&mut page, source, status);
        }
    }
    page.text(format)
}

/// Of what serves the page.
fn build_info(page: &mut Families) {
    page.head("build_info", "info", "Version of the ix that serves this, and its control protocol");
    let labels: [(&str, &dyn Display); 2] =
        [("version", &env!("CARGO_PKG_VERSION")), ("protocol", &PROTOCOL)];
    page.put("build_info", &labels, 1);
}

/// All of one dataplane.
fn dataplane(page: &mut Families, source: &Source, status: &Status) {
    page.source(source.labels());
    page.head("dataplane_info", "info", "A dataplane, with the version of the ix that runs it");
    page.put("dataplane_info", &[("version", &source.version)], 1);
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
            page.put("process", &[("number", number), ("process", pid)], 1);
        }
        let help = "Memory that the dataplane uses, by what it is for";
        page.head("memory_bytes", "gauge", help);
        for (part, bytes) in sharing.memory.parts() {
            page.put("memory_bytes", &[("part", &part)], bytes);
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
    threads(page, status);
    stages(page, status);
    windows(page, status);
    batches(page, status);
    let took = |thread: &'_ Thread| thread.busy_cycles_took.clone();
    times(page, status, "busy_cycle_seconds", "Length of cycles that did something", took);
    let waited = |thread: &'_ Thread| thread.packets_waited.clone();
    let help = "Received packets by the queueing delay of their 10 ms";
    times(page, status, "packet_delay_seconds", help, waited);
    groups(page, status);
}

/// Counters and gauges of each thread.
fn threads(page: &mut Families, status: &Status) {
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
        each(page, status, &format!("{name}_total"), "counter", help, value);
    }
    for (key, name, help) in GAUGES {
        let value = |thread: &Thread| thread.counters.get(key).copied();
        each(page, status, name, "gauge", help, value);
    }
    for (count, name, help) in HARDWARE {
        let value = |thread: &Thread| count(thread.hardware.as_ref()?);
        each(page, status, &format!("{name}_total"), "counter", help, value);
    }
    let groups = |thread: &Thread| Some(thread.flow_groups.len() as u64);
    each(page, status, "flow_groups", "gauge", "Flow groups that a thread owns", groups);
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
fn stages(page: &mut Families, status: &Status) {
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
fn windows(page: &mut Families, status: &Status) {
    let mut average = |name: &str, help: &str, value: &dyn Fn(&Thread) -> f64| {
        each(page, status, name, "gauge", help, |thread| Some(value(thread)));
    };
    average("queueing_delay_seconds", "From a packet's arrival to the end of its batch", &|t| {
        t.window.queueing_delay_us[0] / 1e6
    });
    average("tail_delay_seconds", "Estimate of the tail of the queueing delay", &|t| {
        t.tail_us(status.batch_bound) / 1e6
    });
    average("queue_depth_packets", "Packets that waited when a cycle began", &|t| {
        t.window.queue_depth[0]
    });
    average("batch_mean_packets", "Packets of a cycle that received any", &|t| t.window.batch[0]);
    average("iteration_seconds", "Time of a cycle that did something", &|t| {
        t.window.iteration_us[0] / 1e6
    });
    average("idle_ratio", "Share of the time without work", &|t| t.window.idle[0]);
}

/// How many packets cycles received.
fn batches(page: &mut Families, status: &Status) {
    let name = "cycle_received_packets";
    page.head(name, "histogram", "Packets received by a cycle");
    for (i, thread) in status.threads.iter().enumerate() {
        let last = thread.batches.len().saturating_sub(1);
        // The last one has no bound.
        let bounds = (0..last).map(|bucket| ((1u64 << bucket.min(63)) - 1) as f64);
        let sum = thread.counter("rx_packets") as f64;
        page.histogram(name, &[("thread", &i)], bounds, &thread.batches, sum);
    }
}

/// A distribution of times of each thread.
fn times(
    page: &mut Families,
    status: &Status,
    name: &str,
    help: &str,
    of: impl Fn(&Thread) -> Times,
) {
    page.head(name, "histogram", help);
    for (i, thread) in status.threads.iter().enumerate() {
        let Times { counts, sum_ns } = of(thread);
        let bounds = TIME_BOUNDS_US.iter().map(|us| f64::from(*us) / 1e6);
        page.histogram(name, &[("thread", &i)], bounds, &counts, sum_ns as f64 / 1e9);
    }
}

/// Flow groups, and the control plane's commands.
fn groups(page: &mut Families, status: &Status) {
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

/// A metric of each thread, if any has it.
fn each<T: Display>(
    page: &mut Families,
    status: &Status,
    name: &str,
    kind: &'static str,
    help: &str,
    value: impl Fn(&Thread) -> Option<T>,
) {
    page.head(name, kind, help);
    for (i, thread) in status.threads.iter().enumerate() {
        if let Some(value) = value(thread) {
            page.put(name, &[("thread", &i)], value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::sample;
    use crate::counters;
    use ix_dataplane::metrics::{ControlPage, Snapshot};
    use ix_testbed::prometheus::Samples;
    use std::fmt::Write;

    #[test]
    fn the_text_is_what_prometheus_reads() {
        let program = "odd \"name\" \\ of\na program".to_owned();
        let status = Status { program, ..sample(5_000_000) };
        let samples = Samples::parse(&text(&status));
        let get = |name: &str, labels: &[(&str, &str)]| {
            samples
                .sum(&format!("ix_{name}"), labels)
                .unwrap_or_else(|| panic!("{name} {labels:?}"))
        };
        let series = "ix_dataplane_info{program=\"odd \\\"name\\\" \\\\ of\\na program\",pid=\"7\",\
                      device=\"tap:ix0\",version=\"0.1.0\"}";
        assert_eq!(samples.get(series), Some(1.0));
        let (first, second) = (("thread", "0"), ("thread", "1"));
        assert_eq!(get("received_packets_total", &[first]), 5000.0);
        let state = |state| get("thread_state", &[second, ("cpu", "3"), ("state", state)]);
        assert_eq!((state("parked"), state("active")), (1.0, 0.0));
        assert_eq!(get("queueing_delay_seconds", &[first]), 12.5e-6);
        assert_eq!(get("cycle_received_packets_bucket", &[first, ("le", "1.0")]), 5000.0);
        assert_eq!(get("packet_delay_seconds_bucket", &[first, ("le", "2e-6")]), 4000.0);
        assert_eq!(get("packet_delay_seconds_bucket", &[first, ("le", "+Inf")]), 5000.0);
        assert_eq!(get("packet_delay_seconds_sum", &[first]), 5e-3);
        assert_eq!(get("dropped_packets_total", &[first, ("reason", "no_flow")]), 50.0);
        assert_eq!(get("commands_total", &[("outcome", "refused")]), 1.0);
        assert_eq!(get("slo_seconds", &[("policy", "energy")]), 300e-6);
        assert_eq!(get("process", &[("number", "2"), ("process", "9"), ("pid", "7")]), 1.0);
        assert_eq!(get("refused_processes_total", &[]), 1.0);
        assert_eq!(get("memory_bytes", &[("part", "build")]), 4096.0);
        assert_eq!(get("dataplane_deaths_total", &[]), 3.0);
        assert_eq!(get("device_up", &[("device", "tap:ix0")]), 1.0);
        let idle = get("time_seconds_total", &[first, ("stage", "idle")]);
        assert_eq!(idle, 20_000.0 / 2500e6);
        assert_eq!(samples.sum("ix_dataplane_up", &[]), None, "nobody had to ask for it");
    }

    fn answered(pid: u32, status: Option<Status>) -> Answered {
        let mut source = Source { pid, ..Source::default() };
        if let Some(status) = &status {
            source = Source { pid, ..Source::of(status, "0.1.0") };
        }
        Answered { source, status: status.map(|status| (status, 0.001)) }
    }

    #[test]
    fn all_dataplanes_are_on_one_page_with_their_labels() {
        let dataplanes = [
            answered(7, Some(sample(1_000_000))),
            answered(8, Some(sample(2_000_000))),
            answered(9, None),
        ];
        // The parser wants each family in one piece and each series once.
        let samples = Samples::parse(&all(&dataplanes, Format::Text));
        let of = |name: &str, pid: &str| samples.sum(name, &[("pid", pid)]);
        assert_eq!(of("ix_received_packets_total", "7"), Some(1000.0));
        assert_eq!(of("ix_received_packets_total", "8"), Some(2000.0));
        assert_eq!(
            samples.sum("ix_received_packets_total", &[("device", "tap:ix0")]),
            Some(3000.0)
        );
        let ups = ["7", "8", "9"].map(|pid| of("ix_dataplane_up", pid));
        assert_eq!(ups, [Some(1.0), Some(1.0), Some(0.0)]);
        assert_eq!(of("ix_flows", "9"), None);
        assert_eq!(samples.sum("ix_build_info", &[]), Some(1.0), "of the exporter");
    }

    #[test]
    fn a_dataplane_that_makes_things_up_does_not_spoil_the_page() {
        let mut status = sample(1_000_000);
        status.devices = vec!["tap:ix0".to_owned(); 3];
        status.device_states = vec!["up".to_owned(); 3];
        status.program = "x".repeat(100_000);
        let odd = Times { counts: vec![u64::MAX; 500], sum_ns: u64::MAX };
        status.threads[0].packets_waited = odd;
        status.threads[0].batches = vec![u64::MAX; 100];
        let names = (0..200_000).map(|i| (format!("r{i}\n\"\\"), u64::MAX));
        status.threads[1].drops = names.collect();
        let pages = [answered(7, Some(status)), answered(7, None), answered(8, None)];
        let page = all(&pages, Format::Text);
        let samples = Samples::parse(&page);
        assert_eq!(samples.sum("ix_dataplane_up", &[("pid", "8")]), Some(0.0));
        assert!(page.len() < 64 << 20, "{}", page.len());
    }

    #[test]
    fn openmetrics_differs_where_it_must() {
        let page = one(&sample(1_000_000), Format::OpenMetrics);
        for line in [
            "# TYPE ix_build info",
            "# TYPE ix_received_packets counter",
            "# TYPE ix_packet_delay_seconds histogram",
        ] {
            assert!(page.lines().any(|l| l == line), "no {line}");
        }
        assert!(page.contains("\nix_received_packets_total{"));
        assert!(page.ends_with("\n# EOF\n") && page.matches("# EOF").count() == 1);
        let text = one(&sample(1_000_000), Format::Text);
        let series = |page: &str| -> Vec<String> {
            page.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
        };
        assert_eq!(series(&text), series(&page), "the numbers are the same");
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
        let source = Source::of(&status, "0.1.0");
        let text = all(&[Answered { source, status: Some((status, 0.001)) }], Format::Text);
        let mut page = String::from(
            "# Metrics\n\nMade from the code by `IX_BLESS=1 cargo test -p ix-broker --lib exposition`; do \
             not edit.\n\n`ix exporter` serves these series of all dataplanes of a host at `/metrics`, \
             and `ix run --metrics\nADDRESS:PORT` those of one, in Prometheus' text format or, for clients \
             that accept it, in OpenMetrics.\nEvery series of a dataplane has the labels `program`, `pid` \
             and `device` (with several devices, all with commas\nbetween them). The table has the \
             others. Counters end in `_total`; units are seconds and bytes.\n\
             [Drop reasons](drop-reasons.md) lists the values of `reason` and `kind`.\n\n\
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
            let shared = name != "ix_device_up";
            let names: Vec<String> = names
                .filter(|name| !name.is_empty() && !name.contains('}'))
                .filter(|name| !["program", "pid"].contains(name))
                .filter(|name| !(shared && *name == "device"))
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
