//! The cost of packets: figures from the counters of elastic threads, since their start or between
//! two readings.
use ix_dataplane::metrics::Stage;
use ix_proto::control::{Status, Thread};
use serde_json::{Map, Value, json};

/// Counters of one elastic thread, or of several together, over some time.
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
    /// What the hardware thread executed, by the names of [`HARDWARE`], as far as it is counted.
    pub hardware: Vec<(&'static str, u64)>,
}

/// Possible hardware counters, in the order of their table.
pub const HARDWARE: [&str; 3] = ["cycles", "instructions", "cache_misses"];

impl Figures {
    /// Figures of one elastic thread of `ix ctl stats`.
    pub fn of_thread(thread: &Thread) -> Figures {
        let ticks = |stage: Stage| thread.stage_ticks.get(stage.name()).copied().unwrap_or(0);
        let executed = thread.hardware.map(|hardware| {
            [Some(hardware.cycles), Some(hardware.instructions), hardware.cache_misses]
        });
        let executed = HARDWARE.into_iter().zip(executed.into_iter().flatten());
        Figures {
            stage_ticks: Stage::ALL.map(ticks),
            busy_cycles: thread.counter("busy_cycles"),
            events: thread.counter("events"),
            calls: thread.counter("calls"),
            rx_packets: thread.counter("rx_packets"),
            tx_packets: thread.counter("tx_packets"),
            batches: thread.batches.clone(),
            hardware: executed.filter_map(|(name, count)| Some((name, count?))).collect(),
        }
    }

    /// Figures of each elastic thread of `ix ctl stats`.
    pub fn of_threads(stats: &Status) -> Vec<Figures> {
        stats.threads.iter().map(Figures::of_thread).collect()
    }

    /// Figures of all elastic threads together; `None` if there are none.
    pub fn total(stats: &Status) -> Option<Figures> {
        Figures::of_threads(stats).into_iter().reduce(|sum, thread| sum.plus(&thread))
    }

    /// The sum of both.
    pub fn plus(&self, other: &Figures) -> Figures {
        self.combine(other, u64::wrapping_add)
    }

    /// The difference to `earlier`.
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

    /// The share of time of `ticks`; `None` if there was no time.
    pub fn share(&self, ticks: u64) -> Option<f64> {
        quotient(ticks, self.all_ticks())
    }

    /// Packets of a cycle that received any, on average.
    pub fn batch_avg(&self) -> Option<f64> {
        quotient(self.rx_packets, self.batches.iter().skip(1).sum())
    }

    /// A hardware counter, if it is counted.
    pub fn hardware(&self, name: &str) -> Option<u64> {
        self.hardware.iter().find(|(n, _)| *n == name).map(|(_, count)| *count)
    }

    /// Derived figures for programs: the shares of time and the average batch.
    pub fn to_json(&self) -> Value {
        let mut map = Map::new();
        for (name, value) in self.ratios() {
            map.insert(name.to_owned(), json!(value));
        }
        Value::Object(map)
    }

    /// Derived figures as names and numbers, as far as they are known.
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
    use ix_proto::control::Hardware;

    fn counted(cycles: u64, cache_misses: Option<u64>) -> Option<Hardware> {
        Some(Hardware { cycles, instructions: 2 * cycles, cache_misses })
    }

    fn two_threads() -> Status {
        let threads = vec![thread(counted(1000, Some(7))), thread(counted(10, None))];
        Status { threads, ..Status::default() }
    }

    #[test]
    fn time_is_shared_between_dataplane_application_and_idleness() {
        let figures = Figures::of_thread(&thread(None));
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
        // Of several threads, only counters that each of them has are summed.
        let total = Figures::total(&two_threads()).expect("two");
        assert_eq!(total.hardware, [("cycles", 1010), ("instructions", 2020)]);
        assert_eq!((total.rx_packets, total.batches[0]), (600, 14));
        assert_eq!(Figures::total(&Status::default()), None);
    }

    #[test]
    fn an_interval_is_the_difference() {
        let after = Figures::total(&two_threads()).expect("complete");
        let before = Figures::of_thread(&thread(counted(10, None)));
        let between = after.since(&before);
        assert_eq!(between.hardware("cycles"), Some(1000));
        assert_eq!((between.rx_packets, between.all_ticks()), (300, 100_000));
        // A dataplane that was restarted has smaller counters than before.
        assert_eq!(before.since(&after).rx_packets, 0);
    }
}
