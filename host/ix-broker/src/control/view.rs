//! What a dataplane says of itself, as its clients read it: tables, `ix top` and the exposition for
//! Prometheus are drawn from here.
//!
//! Reading is lenient: what is missing is zero or empty, what is new is passed over.
use ix_dataplane::GroupSet;
use ix_dataplane::metrics::Stage;
use ix_problem::{Problem, Result};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A dataplane at one time.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct View {
    /// Its program.
    pub program: String,
    /// The program's process.
    pub pid: u64,
    /// When it was looked at, µs of its host's monotonic clock.
    pub now_us: u64,
    /// Ticks of the time stamp counter in a microsecond; 0: unknown.
    pub ticks_per_us: u64,
    /// Batch bound B.
    pub batch_bound: u32,
    /// Elastic threads.
    pub threads: Vec<ThreadView>,
    /// Flow groups.
    pub groups: Vec<GroupView>,
    /// Commands of the control plane, by what became of them.
    pub commands: BTreeMap<String, u64>,
    /// The wall between program and dataplane.
    pub wall: WallView,
    /// Migrations so far.
    pub migrations_ever: u64,
    /// The last of them, oldest first.
    pub migrations: Vec<Map<String, Value>>,
    /// The controller in charge.
    pub controller: Option<ControllerView>,
    /// Devices.
    pub devices: Vec<String>,
    /// What each one's link does.
    pub device_states: Vec<String>,
}

/// The wall between program and dataplane.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct WallView {
    /// Whether there is one.
    pub stands: bool,
    /// What it did not let through, by kind.
    pub refused: BTreeMap<String, u64>,
}

impl WallView {
    /// In words; `None` where there is no wall.
    pub fn words(&self) -> Option<String> {
        let counted = self.refused.iter().filter(|(_, count)| **count > 0);
        let counted: Vec<_> = counted.map(|(name, n)| format!("{name} {n}")).collect();
        let refused = if counted.is_empty() { "nothing".to_owned() } else { counted.join(", ") };
        self.stands.then(|| format!("refused {refused}"))
    }
}

/// An elastic thread.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ThreadView {
    /// What it is.
    pub state: String,
    /// Its hardware thread.
    pub cpu: u32,
    /// The flow groups it owns, as text.
    pub flow_groups: String,
    /// Averages of the last windows of 10 ms.
    pub window: WindowView,
    /// Dropped packets by reason.
    pub drops: BTreeMap<String, u64>,
    /// Incidents in TCP.
    pub tcp: BTreeMap<String, u64>,
    /// Ticks by stage.
    pub stage_ticks: BTreeMap<String, u64>,
    /// Cycles by packets received: 0, 1, 2..4, 4..8, …
    pub batches: Vec<u64>,
    /// All other counters.
    #[serde(flatten)]
    pub counters: Map<String, Value>,
}

/// Averages of an elastic thread under each smoothing factor, fastest first.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct WindowView {
    /// From a packet's arrival to the end of its batch, µs.
    pub queueing_delay_us: [f64; 3],
    /// Queue depth Q, packets.
    pub queue_depth: [f64; 3],
    /// Packets of a cycle that took any.
    pub batch: [f64; 3],
    /// Iteration time τ, µs.
    pub iteration_us: [f64; 3],
    /// Share of the time without work.
    pub idle: [f64; 3],
    /// Packets received a second.
    pub rate_per_s: [f64; 3],
}

/// A controller, as it says of itself.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ControllerView {
    /// Its process.
    pub pid: u32,
    /// Name of its policy.
    pub policy: String,
    /// Its bound on the queueing delay, µs.
    pub slo_us: f64,
    /// The rung, counted from 1; 0 while there is none.
    pub rung: usize,
    /// How many there are.
    pub rungs: usize,
    /// The rung in words.
    pub configuration: String,
    /// What it did last, in words.
    pub last: String,
    /// Power of the machine, W, where it can be had.
    pub power_w: Option<f64>,
}

/// A flow group.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct GroupView {
    /// Its owner; none while it moves.
    pub thread: Option<usize>,
    /// Packets of it so far.
    pub packets: u64,
}

impl View {
    /// From an answer to `status` or `stats`.
    pub fn read(value: &Value) -> Result<View> {
        if let Some(why) = value.get("error").and_then(Value::as_str) {
            return Err(Problem::line(why));
        }
        View::deserialize(value).map_err(|e| Problem::new("cannot read what the dataplane says", e))
    }

    /// The program's name without its folder.
    pub fn name(&self) -> &str {
        self.program.rsplit('/').next().unwrap_or(&self.program)
    }

    /// Sum of a counter over all threads.
    pub fn total(&self, name: &str) -> u64 {
        self.threads.iter().map(|thread| thread.counter(name)).sum()
    }

    /// Threads in a state.
    pub fn in_state(&self, state: &str) -> usize {
        self.threads.iter().filter(|thread| thread.state == state).count()
    }

    /// Threads that serve: those that run the cycle.
    pub fn serving(&self) -> impl Iterator<Item = &ThreadView> {
        self.threads.iter().filter(|thread| thread.serves())
    }

    /// Dropped packets by reason, of all threads together, those that there were.
    pub fn drops(&self) -> BTreeMap<&str, u64> {
        let mut sum = BTreeMap::new();
        for (reason, &count) in self.threads.iter().flat_map(|thread| &thread.drops) {
            if count > 0 {
                *sum.entry(reason.as_str()).or_default() += count;
            }
        }
        sum
    }

    /// The longest queueing delay of any thread that serves, µs.
    pub fn queueing_delay_us(&self) -> f64 {
        self.serving().map(|thread| thread.window.queueing_delay_us[0]).fold(0.0, f64::max)
    }

    /// The longest estimated tail of any thread that serves, µs.
    pub fn tail_us(&self) -> f64 {
        self.serving().map(|thread| thread.tail_us(self.batch_bound)).fold(0.0, f64::max)
    }

    /// Packets received a second.
    pub fn rate_per_s(&self) -> f64 {
        self.serving().map(|thread| thread.window.rate_per_s[0]).sum()
    }
}

impl ThreadView {
    /// A counter or gauge by name; 0 where there is none.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).and_then(Value::as_u64).unwrap_or(0)
    }

    /// Whether it runs the cycle.
    pub fn serves(&self) -> bool {
        matches!(self.state.as_str(), "active" | "parking" | "non-responsive")
    }

    /// How many flow groups it owns.
    pub fn groups(&self) -> usize {
        self.flow_groups.parse().map_or(0, |groups: GroupSet| groups.len())
    }

    /// The papers' estimate of the tail, ⌈Q/B⌉·τ, µs.
    pub fn tail_us(&self, batch_bound: u32) -> f64 {
        let WindowView { queue_depth, iteration_us, .. } = &self.window;
        (queue_depth[0] / f64::from(batch_bound.max(1))).ceil() * iteration_us[0]
    }
}

/// What happened between two looks at the same dataplane.
#[derive(Clone, Copy)]
pub struct Change<'a> {
    before: &'a View,
    after: &'a View,
}

/// Parts of a thread's time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shares {
    /// In the dataplane.
    pub dataplane: f64,
    /// In the application.
    pub app: f64,
    /// Without work.
    pub idle: f64,
}

impl<'a> Change<'a> {
    /// `None` when they are of two dataplanes, or no time lies between them.
    pub fn between(before: &'a View, after: &'a View) -> Option<Change<'a>> {
        let same = before.pid == after.pid && before.threads.len() == after.threads.len();
        (same && before.now_us < after.now_us).then_some(Change { before, after })
    }

    /// Between the two looks, s.
    pub fn seconds(&self) -> f64 {
        (self.after.now_us - self.before.now_us) as f64 / 1e6
    }

    /// How fast a thread's counter grew, a second.
    pub fn rate(&self, thread: usize, name: &str) -> f64 {
        let count = |view: &View| view.threads.get(thread).map_or(0, |t| t.counter(name));
        count(self.after).saturating_sub(count(self.before)) as f64 / self.seconds()
    }

    /// How fast a counter of all threads together grew, a second.
    pub fn total_rate(&self, name: &str) -> f64 {
        (0..self.after.threads.len()).map(|thread| self.rate(thread, name)).sum()
    }

    /// Where a thread's time went.
    pub fn shares(&self, thread: usize) -> Shares {
        let (Some(before), Some(after)) =
            (self.before.threads.get(thread), self.after.threads.get(thread))
        else {
            return Shares::default();
        };
        let ticks = |stage: Stage| {
            let count = |t: &ThreadView| t.stage_ticks.get(stage.name()).copied().unwrap_or(0);
            count(after).saturating_sub(count(before)) as f64
        };
        let all: f64 = Stage::ALL.into_iter().map(ticks).sum();
        let share = |part: f64| if all > 0.0 { part / all } else { 0.0 };
        let (app, idle) = (ticks(Stage::App), ticks(Stage::Idle));
        Shares { dataplane: share(all - app - idle), app: share(app), idle: share(idle) }
    }

    /// Packets of each flow group, a second.
    pub fn group_rates(&self) -> Vec<f64> {
        let before = self.before.groups.iter().map(|group| group.packets);
        let before = before.chain(std::iter::repeat(0));
        let pairs = self.after.groups.iter().zip(before);
        pairs.map(|(g, b)| g.packets.saturating_sub(b) as f64 / self.seconds()).collect()
    }

    /// Dropped packets a second, by reason, those that there were.
    pub fn drop_rates(&self) -> BTreeMap<&'a str, f64> {
        let before = self.before.drops();
        let grown = self.after.drops().into_iter().map(|(reason, count)| {
            let old = before.get(reason).copied().unwrap_or(0);
            (reason, count.saturating_sub(old) as f64 / self.seconds())
        });
        grown.filter(|(_, rate)| *rate > 0.0).collect()
    }
}

/// Two threads, one of them parked, at a time in µs, under a load that grows with it.
#[cfg(any(test, feature = "samples"))]
pub fn sample(now_us: u64) -> Value {
    let n = now_us / 1000;
    let window = |busy: f64| {
        serde_json::json!({
            "queueing_delay_us": [12.5 * busy, 12.0, 11.0], "queue_depth": [70.0 * busy, 60.0, 50.0],
            "batch": [8.0 * busy, 8.0, 8.0], "iteration_us": [10.0 * busy, 10.0, 10.0],
            "idle": [1.0 - 0.6 * busy, 0.4, 0.4], "rate_per_s": [1000.0 * busy, 990.0, 900.0],
        })
    };
    let thread = |state: &str, cpu: u64, groups: &str, n: u64, busy: f64| {
        serde_json::json!({
            "state": state, "cpu": cpu, "flow_groups": groups, "window": window(busy),
            "rx_packets": n, "tx_packets": n, "rx_bytes": 64 * n, "tx_bytes": 64 * n,
            "cycles": n, "busy_cycles": n, "events": n, "calls": n, "flows": 3,
            "drops": { "no_flow": n / 100, "backlog": 0 }, "tcp": { "fast_retransmits": 1 },
            "stage_ticks": { "poll": n, "process": n, "app": 2 * n, "idle": 4 * n },
            "batches": [0, n, 0],
        })
    };
    serde_json::json!({
        "program": "/usr/bin/ix-echo", "pid": 7, "now_us": now_us, "ticks_per_us": 2500,
        "batch_bound": 64, "devices": ["tap:ix0"], "device_states": ["up"],
        "threads": [thread("active", 2, "0-127", n, 1.0), thread("parked", 3, "-", 0, 0.0)],
        "groups": (0..128).map(|g| serde_json::json!({ "thread": 0, "packets": n * g })).collect::<Vec<_>>(),
        "commands": { "done": 2, "refused": 1, "timed_out": 0, "running": 0, "ended": 3 },
        "migrations_ever": 12, "migrations": [{
            "flow_groups": "0-63", "from": 1, "to": 0, "flows": 31, "packets": 2,
            "prepare_us": 11, "wait_us": 42, "rpc_us": 23, "deferred_us": 0,
            "total_us": 76, "pause_us": 60, "end": "early",
        }],
        "controller": {
            "pid": 99, "policy": "energy", "slo_us": 300.0, "rung": 2, "rungs": 5,
            "configuration": "1 core", "last": "ix-echo (7) up to 1 core", "power_w": null,
        },
        "something": "new",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_look_is_read_and_two_are_compared() {
        let views = [1_000_000, 3_000_000].map(|at| View::read(&sample(at)).expect("fine"));
        let [before, after] = &views;
        assert_eq!(
            (after.name(), after.in_state("active"), after.total("flows")),
            ("ix-echo", 1, 6)
        );
        assert_eq!((after.threads[0].groups(), after.threads[1].groups()), (128, 0));
        assert_eq!(after.threads[0].tail_us(64), 20.0, "two batches of 10 µs");
        assert_eq!(after.tail_us(), 20.0);
        assert_eq!(after.drops(), [("no_flow", 30)].into());
        let change = Change::between(before, after).expect("comparable");
        assert_eq!((change.seconds(), change.rate(0, "rx_packets")), (2.0, 1000.0));
        assert_eq!(change.total_rate("tx_packets"), 1000.0);
        let shares = change.shares(0);
        assert_eq!((shares.dataplane, shares.app, shares.idle), (0.25, 0.25, 0.5));
        assert_eq!(change.group_rates()[127], 127_000.0);
        assert_eq!(change.drop_rates(), [("no_flow", 10.0)].into());
        assert!(Change::between(after, before).is_none());
    }

    #[test]
    fn what_is_missing_is_no_error_and_an_error_is() {
        let view = View::read(&json!({ "threads": [{ "rx_packets": 4 }] })).expect("lenient");
        assert_eq!((view.total("rx_packets"), view.threads[0].groups()), (4, 0));
        let e = View::read(&json!({ "error": "its dataplane is starting" })).expect_err("says so");
        assert!(e.to_string().contains("starting"));
        assert!(View::read(&json!({ "threads": 5 })).is_err());
    }
}
