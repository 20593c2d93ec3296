//! What packets cost: figures from the counters of elastic threads, since their start or between
//! two looks at them.
use ix_dataplane::metrics::Stage;
use serde_json::{Map, Value, json};

/// What one elastic thread, or several together, did in some time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Ticks of the time stamp counter by stage, in the order of [`Stage::ALL`].
    pub stage_ticks: [u64; Stage::COUNT],
    /// Cycles that received or sent packets.
    pub busy_cycles: u64,
    /// Event conditions.
    pub events: u64,
    /// Batched system calls.
    pub calls: u64,
    /// Packets received.
    pub rx_packets: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Cycles by packets received: 0, 1, 2..4, 4..8, …
    pub batches: Vec<u64>,
    /// What the hardware thread executed, by the names of [`HARDWARE`]; those that are counted.
    pub hardware: Vec<(&'static str, u64)>,
}

/// Hardware counters that there may be, in the order of their table.
pub const HARDWARE: [&str; 3] = ["cycles", "instructions", "cache_misses"];

impl Figures {
    /// Of one elastic thread of `ix ctl stats`; `None` when something is missing.
    pub fn of_thread(thread: &Value) -> Option<Figures> {
        let number = |name: &str| thread.get(name)?.as_u64();
        let ticks = thread.get("stage_ticks")?;
        let mut stage_ticks = [0; Stage::COUNT];
        for stage in Stage::ALL {
            stage_ticks[stage as usize] = ticks.get(stage.name())?.as_u64()?;
        }
        let batches = thread.get("batches")?.as_array()?.iter().map(Value::as_u64);
        let counted =
            |name: &'static str| Some((name, thread.get("hardware")?.get(name)?.as_u64()?));
        Some(Figures {
            stage_ticks,
            busy_cycles: number("busy_cycles")?,
            events: number("events")?,
            calls: number("calls")?,
            rx_packets: number("rx_packets")?,
            tx_packets: number("tx_packets")?,
            batches: batches.collect::<Option<_>>()?,
            hardware: HARDWARE.into_iter().filter_map(counted).collect(),
        })
    }

    /// Of each elastic thread of `ix ctl stats`.
    pub fn of_threads(stats: &Value) -> Option<Vec<Figures>> {
        stats.get("threads")?.as_array()?.iter().map(Figures::of_thread).collect()
    }

    /// Of all elastic threads together.
    pub fn total(stats: &Value) -> Option<Figures> {
        let threads = Figures::of_threads(stats)?;
        threads.into_iter().reduce(|sum, thread| sum.plus(&thread))
    }

    /// Both together.
    pub fn plus(&self, other: &Figures) -> Figures {
        self.combine(other, u64::wrapping_add)
    }

    /// What was done since `earlier`.
    pub fn since(&self, earlier: &Figures) -> Figures {
        self.combine(earlier, u64::saturating_sub)
    }

    fn combine(&self, other: &Figures, f: fn(u64, u64) -> u64) -> Figures {
        let theirs =
            |name| other.hardware.iter().find(|(n, _)| *n == name).map(|(_, count)| *count);
        let hardware = self.hardware.iter();
        Figures {
            stage_ticks: core::array::from_fn(|i| f(self.stage_ticks[i], other.stage_ticks[i])),
            busy_cycles: f(self.busy_cycles, other.busy_cycles),
            events: f(self.events, other.events),
            calls: f(self.calls, other.calls),
            rx_packets: f(self.rx_packets, other.rx_packets),
            tx_packets: f(self.tx_packets, other.tx_packets),
            batches: self.batches.iter().zip(&other.batches).map(|(a, b)| f(*a, *b)).collect(),
            // Counted on both sides, or unknown.
            hardware: hardware
                .filter_map(|(name, count)| Some((*name, f(*count, theirs(*name)?))))
                .collect(),
        }
    }

    /// Ticks of a stage.
    pub fn ticks(&self, stage: Stage) -> u64 {
        self.stage_ticks[stage as usize]
    }

    /// Ticks of all stages.
    pub fn all_ticks(&self) -> u64 {
        self.stage_ticks.iter().sum()
    }

    /// Ticks in which the dataplane worked.
    pub fn dataplane_ticks(&self) -> u64 {
        self.all_ticks() - self.ticks(Stage::App) - self.ticks(Stage::Idle)
    }

    /// What part of the time `ticks` are; `None` of no time.
    pub fn share(&self, ticks: u64) -> Option<f64> {
        quotient(ticks, self.all_ticks())
    }

    /// Packets of a cycle that received any, on average.
    pub fn batch_avg(&self) -> Option<f64> {
        quotient(self.rx_packets, self.batches.iter().skip(1).sum())
    }

    /// A hardware counter, if it counts.
    pub fn hardware(&self, name: &str) -> Option<u64> {
        self.hardware.iter().find(|(n, _)| *n == name).map(|(_, count)| *count)
    }

    /// What follows from the counters, for programs: the shares of time and the average batch.
    pub fn to_json(&self) -> Value {
        let mut map = Map::new();
        for (name, value) in self.ratios() {
            map.insert(name.to_owned(), json!(value));
        }
        Value::Object(map)
    }

    /// The same as names and numbers; those that are known.
    pub fn ratios(&self) -> Vec<(&'static str, f64)> {
        let ratios = [
            ("dataplane_share", self.share(self.dataplane_ticks())),
            ("app_share", self.share(self.ticks(Stage::App))),
            ("idle_share", self.share(self.ticks(Stage::Idle))),
            ("batch_avg", self.batch_avg()),
        ];
        ratios.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}

/// a / b, if that is a number.
pub fn quotient(a: u64, b: u64) -> Option<f64> {
    (b > 0).then(|| a as f64 / b as f64)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::cost_sample::thread;

    fn two_threads() -> Value {
        let hardware = json!({ "cycles": 1000, "instructions": 2000 });
        json!({ "threads": [thread(Some(hardware)), thread(Some(json!({ "cycles": 10 })))] })
    }

    #[test]
    fn time_is_shared_between_dataplane_application_and_idleness() {
        let figures = Figures::of_thread(&thread(None)).expect("complete");
        assert_eq!((figures.all_ticks(), figures.dataplane_ticks()), (100_000, 60_000));
        let json = figures.to_json();
        assert_eq!(json["dataplane_share"], 0.6);
        assert_eq!(json["app_share"], 0.2);
        assert_eq!(json["idle_share"], 0.2);
        // 300 packets in the four cycles that received any.
        assert_eq!(json["batch_avg"], 75.0);
        assert!(figures.hardware.is_empty());
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        let none = Figures { batches: vec![3, 0], ..Figures::default() };
        assert_eq!(none.to_json(), json!({}));
        assert_eq!(Figures::of_thread(&json!({ "rx_packets": 1 })), None);
        // Of several threads, only what each of them counts has a sum.
        let total = Figures::total(&two_threads()).expect("complete");
        assert_eq!(total.hardware, [("cycles", 1010)]);
        assert_eq!((total.rx_packets, total.batches[0]), (600, 14));
        assert_eq!(Figures::total(&json!({ "threads": [] })), None);
    }

    #[test]
    fn an_interval_is_the_difference() {
        let after = Figures::total(&two_threads()).expect("complete");
        let before = Figures::of_thread(&thread(Some(json!({ "cycles": 10 })))).expect("complete");
        let between = after.since(&before);
        assert_eq!(between.hardware("cycles"), Some(1000));
        assert_eq!((between.rx_packets, between.all_ticks()), (300, 100_000));
        // A dataplane that was started anew says less than before.
        assert_eq!(before.since(&after).rx_packets, 0);
    }
}
