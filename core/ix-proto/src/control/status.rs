//! What a dataplane says of itself: the answer to `status` and `stats`, and what is subscribed to.
//!
//! Reading is lenient: what is missing is zero or empty, what is new is passed over. Counters,
//! drops and stages have the names that the dataplane gives them, so they are maps.
use super::{Report, text};
use crate::{GroupSet, MigrationRecord, ThreadState};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// What one sees who looks at a dataplane.
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
    /// What it lacks.
    pub error: String,
    /// Its program.
    pub program: String,
    /// The program's process.
    pub pid: u32,
    /// The controller in charge.
    pub controller: Option<Report>,
    /// Devices.
    pub devices: Vec<String>,
    /// What each one's link does.
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
    /// When it was looked at, µs of its host's monotonic clock.
    pub now_us: u64,
    /// Ticks of the time stamp counter in a microsecond; 0: unknown.
    pub ticks_per_us: u64,
    /// Batch bound B.
    pub batch_bound: u32,
    /// Elastic threads.
    pub threads: Vec<Thread>,
    /// Flow groups.
    pub groups: Vec<Group>,
    /// Commands of the control plane, by what became of them.
    pub commands: Commands,
    /// The wall between program and dataplane.
    pub wall: Wall,
    /// Migrations so far.
    pub migrations_ever: u64,
    /// The last of them, oldest first.
    pub migrations: Vec<MigrationRecord>,
    /// The controller in charge.
    pub controller: Option<Report>,
    /// Devices.
    pub devices: Vec<String>,
    /// What each one's link does.
    pub device_states: Vec<String>,
    /// Why there are no hardware counters, where there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hardware_missing: Option<String>,
}

/// Commands of the control plane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Commands {
    /// Number of the command that runs; 0: none does.
    pub running: u64,
    /// Number of the last one that ended.
    pub ended: u64,
    /// Commands that were carried out.
    pub done: u64,
    /// Commands that were refused.
    pub refused: u64,
    /// Commands that were undone because they took too long.
    pub timed_out: u64,
}

/// The wall between program and dataplane.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Wall {
    /// Whether there is one.
    pub stands: bool,
    /// What it did not let through, by kind.
    pub refused: BTreeMap<String, u64>,
}

/// An elastic thread.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Thread {
    /// What it is.
    pub state: ThreadState,
    /// Its hardware thread.
    pub cpu: u32,
    /// The flow groups it owns.
    #[serde(with = "text::one")]
    pub flow_groups: GroupSet,
    /// From the last command that woke it to its waking, ns; 0: none did, or unknown.
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
    /// Length of cycles that did something.
    pub busy_cycle_ticks: CycleTicks,
    /// What its hardware thread executed, where that is counted.
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
    /// Packets of a cycle that took any.
    pub batch: [f64; 3],
    /// Iteration time τ, µs.
    pub iteration_us: [f64; 3],
    /// Share of the time without work.
    pub idle: [f64; 3],
    /// Packets received a second.
    pub rate_per_s: [f64; 3],
}

/// Length of cycles, ticks of the time stamp counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CycleTicks {
    /// How many cycles.
    pub count: u64,
    /// Their average.
    pub mean: u64,
    /// The median.
    pub p50: u64,
    /// 99 of 100 are no longer.
    pub p99: u64,
    /// 999 of 1000 are no longer.
    pub p999: u64,
    /// The longest.
    pub max: u64,
}

/// What a hardware thread executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hardware {
    /// Cycles.
    pub cycles: u64,
    /// Instructions.
    pub instructions: u64,
    /// Misses of the last cache, where they can be counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_misses: Option<u64>,
}

/// A flow group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Group {
    /// Its owner; none while it moves.
    pub thread: Option<usize>,
    /// Packets of it so far.
    pub packets: u64,
}

/// What else a thread says, as far as it is a count.
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

    /// What a running dataplane says; or why it says nothing.
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

    /// Dropped packets by reason, of all threads together, those that there were.
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

    /// Packets received a second.
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
