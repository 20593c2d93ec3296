//! The state of a dataplane: the answer to `status` and `stats`, and the snapshots of
//! subscriptions.
//!
//! Reading is lenient: missing keys are zero or empty, unknown keys are ignored. Counters, drops
//! and stages have the names that the dataplane gives them, so they are maps.
use super::{Report, text};
use crate::{GroupSet, MigrationRecord, ThreadState};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// A snapshot of a dataplane.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Look {
    /// It has no control page yet.
    Starting(Box<Starting>),
    /// It runs.
    Running(Box<Status>),
}

/// A dataplane that has no control page yet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Starting {
    /// Why it has none.
    pub error: String,
    /// Its program.
    pub program: String,
    /// The program's process.
    pub pid: u32,
    /// The active controller.
    pub controller: Option<Report>,
    /// Devices.
    pub devices: Vec<String>,
    /// States of the devices' links, in words.
    pub device_states: Vec<String>,
}

/// A dataplane at one time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Its program.
    pub program: String,
    /// The program's process.
    pub pid: u32,
    /// Time of the snapshot, µs of the host's monotonic clock.
    pub now_us: u64,
    /// Ticks of the time stamp counter in a microsecond; 0: unknown.
    pub ticks_per_us: u64,
    /// Batch bound B.
    pub batch_bound: u32,
    /// Elastic threads.
    pub threads: Vec<Thread>,
    /// Flow groups.
    pub groups: Vec<Group>,
    /// Commands of the control plane, by outcome.
    pub commands: Commands,
    /// The wall between program and dataplane.
    pub wall: Wall,
    /// Migrations so far.
    pub migrations_ever: u64,
    /// The last of them, oldest first.
    pub migrations: Vec<MigrationRecord>,
    /// The active controller.
    pub controller: Option<Report>,
    /// Devices.
    pub devices: Vec<String>,
    /// States of the devices' links, in words.
    pub device_states: Vec<String>,
    /// Who shares it, if it has a process of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sharing: Option<Sharing>,
    /// Why there are no hardware counters, if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hardware_missing: Option<String>,
    /// System calls that the program makes by instructions of its own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub own_calls: Vec<OwnCalls>,
}

/// Calls of one instruction of the program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OwnCalls {
    /// The process, by its number in the program's namespace.
    pub process: u32,
    /// Where the instruction is.
    pub address: u64,
    /// The number of its last call.
    pub number: u64,
    /// Calls that trapped.
    pub trapped: u64,
    /// Calls that came without a trap, because the instruction was rewritten.
    pub rewritten: u64,
    /// Why it goes on trapping, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Commands of the control plane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Commands {
    /// Number of the running command; 0: none.
    pub running: u64,
    /// Number of the last command that has ended.
    pub ended: u64,
    /// Commands that were carried out.
    pub done: u64,
    /// Commands that were refused.
    pub refused: u64,
    /// Commands that were undone because they took too long.
    pub timed_out: u64,
}

/// The processes of a program that share a dataplane which has a process of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sharing {
    /// Those that share it now.
    pub processes: Vec<Sharer>,
    /// Processes that have asked and were refused.
    pub refused: u64,
    /// Dataplanes of this run that have died. Each was replaced, or ended the run.
    pub died: u64,
    /// Memory that the dataplane uses now.
    pub memory: MemoryUse,
}

/// Memory that a dataplane in a process of its own uses: pages that exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryUse {
    /// Receive frames, bytes.
    pub receive_bytes: u64,
    /// Frames in which packets are built, bytes.
    pub build_bytes: u64,
    /// Transmit memory of the program's first process, bytes.
    pub transmit_bytes: u64,
    /// Flows, tables, stacks and the image in the dataplane's process, bytes.
    pub own_bytes: u64,
}

impl MemoryUse {
    /// Each part with its name.
    pub fn parts(&self) -> [(&'static str, u64); 4] {
        [
            ("receive", self.receive_bytes),
            ("build", self.build_bytes),
            ("transmit", self.transmit_bytes),
            ("own", self.own_bytes),
        ]
    }
}

/// A process that shares a dataplane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sharer {
    /// Its number: that of its attachment.
    pub number: u32,
    /// The process.
    pub pid: u32,
}

/// The wall between program and dataplane.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Wall {
    /// Whether there is one.
    pub stands: bool,
    /// What it has refused, by kind.
    pub refused: BTreeMap<String, u64>,
}

/// An elastic thread.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Thread {
    /// Its state.
    pub state: ThreadState,
    /// Its hardware thread.
    pub cpu: u32,
    /// The flow groups it owns.
    #[serde(with = "text::one")]
    pub flow_groups: GroupSet,
    /// Time from the last command that woke it until it was awake, ns; 0: unknown, or never.
    pub wake_ns: u64,
    /// Averages of the last windows of 10 ms.
    pub window: Window,
    /// Dropped packets by reason.
    pub drops: BTreeMap<String, u64>,
    /// Incidents in TCP.
    pub tcp: BTreeMap<String, u64>,
    /// Ticks by stage.
    pub stage_ticks: BTreeMap<String, u64>,
    /// Cycles by packets received: 0, 1, 2..4, 4..8, …
    pub batches: Vec<u64>,
    /// Length of cycles with work.
    pub busy_cycle_ticks: CycleTicks,
    /// The same as a distribution.
    pub busy_cycles_took: Times,
    /// Received packets by the queueing delay of their window of 10 ms.
    pub packets_waited: Times,
    /// What its hardware thread has executed, if that is counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hardware: Option<Hardware>,
    /// All other counters and gauges.
    #[serde(flatten, deserialize_with = "counters")]
    pub counters: BTreeMap<String, u64>,
}

/// Averages of an elastic thread under each smoothing factor, fastest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Window {
    /// From a packet's arrival to the end of its batch, µs.
    pub queueing_delay_us: [f64; 3],
    /// Queue depth Q, packets.
    pub queue_depth: [f64; 3],
    /// Packets of a cycle, of cycles with packets.
    pub batch: [f64; 3],
    /// Iteration time τ, µs.
    pub iteration_us: [f64; 3],
    /// Share of the time without work.
    pub idle: [f64; 3],
    /// Packets received per second.
    pub rate_per_s: [f64; 3],
}

/// Length of cycles, ticks of the time stamp counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CycleTicks {
    /// Number of cycles.
    pub count: u64,
    /// Average.
    pub mean: u64,
    /// Median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p999: u64,
    /// Maximum.
    pub max: u64,
}

/// Upper ends of the times that [`Times`] tells apart, µs. One more has no end.
pub const TIME_BOUNDS_US: [u32; 19] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000,
    200_000, 500_000, 1_000_000,
];

/// A distribution of times.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Times {
    /// How many were at most as long as each of [`TIME_BOUNDS_US`], and longer than the one before;
    /// the last ones were longer than all. Empty: none was counted.
    pub counts: Vec<u64>,
    /// Their sum, ns.
    pub sum_ns: u64,
}

/// What a hardware thread has executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hardware {
    /// Cycles.
    pub cycles: u64,
    /// Instructions.
    pub instructions: u64,
    /// Misses of the last cache, if they can be counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_misses: Option<u64>,
}

/// A flow group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Group {
    /// Its owner; none while it migrates.
    pub thread: Option<usize>,
    /// Packets of it so far.
    pub packets: u64,
}

/// A thread's other keys, as far as they are counts.
fn counters<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, u64>, D::Error> {
    let all = BTreeMap::<String, Value>::deserialize(from)?;
    Ok(all.into_iter().filter_map(|(name, value)| Some((name, value.as_u64()?))).collect())
}

impl Look {
    /// From JSON.
    pub(super) fn read(value: Value) -> serde_json::Result<Look> {
        match value.get("error") {
            Some(_) => serde_json::from_value(value).map(Look::Starting),
            None => serde_json::from_value(value).map(Look::Running),
        }
    }

    /// The state of a running dataplane, or why there is none.
    pub fn running(self) -> Result<Status, String> {
        match self {
            Look::Running(status) => Ok(*status),
            Look::Starting(starting) => Err(starting.error),
        }
    }
}

impl Wall {
    /// In words; `None` where there is no wall.
    pub fn words(&self) -> Option<String> {
        let counted = self.refused.iter().filter(|(_, count)| **count > 0);
        let counted: Vec<_> = counted.map(|(name, n)| format!("{name} {n}")).collect();
        let refused = if counted.is_empty() { "nothing".to_owned() } else { counted.join(", ") };
        self.stands.then(|| format!("refused {refused}"))
    }
}

impl Status {
    /// The program's name without its folder.
    pub fn name(&self) -> &str {
        self.program.rsplit('/').next().unwrap_or(&self.program)
    }

    /// Sum of a counter over all threads.
    pub fn total(&self, name: &str) -> u64 {
        let counts = self.threads.iter().map(|thread| thread.counter(name));
        counts.fold(0, u64::saturating_add)
    }

    /// Threads in a state.
    pub fn in_state(&self, state: ThreadState) -> usize {
        self.threads.iter().filter(|thread| thread.state == state).count()
    }

    /// Threads that serve: those that run the cycle.
    pub fn serving(&self) -> impl Iterator<Item = &Thread> {
        self.threads.iter().filter(|thread| thread.state.serves())
    }

    /// Dropped packets of all threads by reason, without zeros.
    pub fn drops(&self) -> BTreeMap<&str, u64> {
        let mut sum = BTreeMap::new();
        for (reason, &count) in self.threads.iter().flat_map(|thread| &thread.drops) {
            if count > 0 {
                let of_reason: &mut u64 = sum.entry(reason.as_str()).or_default();
                *of_reason = of_reason.saturating_add(count);
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

    /// Packets received per second.
    pub fn rate_per_s(&self) -> f64 {
        self.serving().map(|thread| thread.window.rate_per_s[0]).sum()
    }
}

impl Thread {
    /// A counter or gauge by name; 0 where there is none.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }

    /// The papers' estimate of the tail, ⌈Q/B⌉·τ, µs.
    pub fn tail_us(&self, batch_bound: u32) -> f64 {
        let Window { queue_depth, iteration_us, .. } = &self.window;
        (queue_depth[0] / f64::from(batch_bound.max(1))).ceil() * iteration_us[0]
    }
}
