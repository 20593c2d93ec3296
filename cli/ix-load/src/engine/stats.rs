//! What a thread measured in one interval.
use super::Times;
use crate::fault::Faults;
use crate::protocol::Outcome;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Longest latency that the histogram distinguishes: 1000 s.
const LONGEST_NS: u64 = 1_000_000_000_000;

/// Makes a histogram of latencies in ns, with three digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("constant bounds")
}

/// Class of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The load.
    Load = 0,
    /// The separate measuring client.
    Measure = 1,
}

/// Latency and counts of one class in one interval.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Latencies of requests that count.
    pub latency_ns: Histogram<u64>,
    /// Latencies of those that were in flight, or became due, while the generator stood still.
    pub in_stalls_ns: Histogram<u64>,
    /// Replies that came in the interval.
    pub answers: u64,
    /// Requests that became due in the interval (open loop).
    pub due: u64,
}

impl Sample {
    /// Counts a reply to a request that was due at `due_ns`; `stalled`: the generator has stood
    /// still since.
    #[inline]
    pub(super) fn answered(&mut self, times: &Times, due_ns: u64, now_ns: u64, stalled: bool) {
        self.answers += 1;
        if !times.counts(due_ns) {
            return;
        }
        let latency_ns = now_ns.saturating_sub(due_ns).max(1);
        self.latency_ns.saturating_record(latency_ns);
        if stalled {
            self.in_stalls_ns.saturating_record(latency_ns);
        }
    }

    /// Latencies of requests that no stall of the generator delayed.
    pub fn awake_ns(&self) -> Histogram<u64> {
        let mut awake = self.latency_ns.clone();
        // Each was recorded in both.
        let _ = awake.subtract(&self.in_stalls_ns);
        awake
    }
}

impl Default for Sample {
    fn default() -> Sample {
        Sample { latency_ns: histogram(), in_stalls_ns: histogram(), answers: 0, due: 0 }
    }
}

/// Number of the interval after the end, in which the last replies are awaited.
pub const DRAIN: i64 = i64::MAX;

/// All that one thread counted in one interval.
#[derive(Clone, Debug, Default)]
pub struct Interval {
    /// Second of the measured time; negative: warm-up; [`DRAIN`]: after the end.
    pub second: i64,
    /// By [`Class`].
    pub classes: [Sample; 2],
    /// Plain counts.
    pub counts: Counts,
}

/// Counts of one interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    /// Replies with a value.
    pub hits: u64,
    /// Replies without one.
    pub misses: u64,
    /// Connections that were opened.
    pub opened: u64,
    /// Requests without a reply at the end.
    pub unfinished: u64,
    /// Requests dropped because the queue of overdue requests was full.
    pub dropped: u64,
    /// Longest time from when a request could be sent to when it was sent, ns.
    pub lag_most_ns: u64,
    /// Greatest length of the queue of overdue requests.
    pub overdue_most: u64,
    /// How often the generator stood still when requests were due (open loop).
    #[serde(default)]
    pub stalls: u64,
    /// Total time of that, ns.
    #[serde(default)]
    pub stalled_ns: u64,
    /// Longest time of that, ns.
    #[serde(default)]
    pub stall_most_ns: u64,
    /// Replies that came after their request was given up (UDP).
    pub late: u64,
    /// Errors.
    pub faults: Faults,
}

impl Counts {
    /// Counts what a reply says.
    #[inline]
    pub(super) fn outcome(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Hit => self.hits += 1,
            Outcome::Miss => self.misses += 1,
            Outcome::Done => {}
        }
    }

    /// Adds the counts of another thread or interval.
    pub fn merge(&mut self, other: Counts) {
        self.hits += other.hits;
        self.misses += other.misses;
        self.opened += other.opened;
        self.unfinished += other.unfinished;
        self.dropped += other.dropped;
        self.lag_most_ns = self.lag_most_ns.max(other.lag_most_ns);
        self.overdue_most = self.overdue_most.max(other.overdue_most);
        self.stalls += other.stalls;
        self.stalled_ns += other.stalled_ns;
        self.stall_most_ns = self.stall_most_ns.max(other.stall_most_ns);
        self.late += other.late;
        self.faults.merge(other.faults);
    }
}

impl Interval {
    /// Adds another thread's interval, or another interval.
    pub fn merge(&mut self, other: Interval) {
        for (class, other) in self.classes.iter_mut().zip(other.classes) {
            class.latency_ns += other.latency_ns;
            class.in_stalls_ns += other.in_stalls_ns;
            class.answers += other.answers;
            class.due += other.due;
        }
        self.counts.merge(other.counts);
    }
}

/// An interval as sent between processes: histograms as pairs of value and count.
#[derive(Serialize, Deserialize)]
pub struct Portable {
    second: i64,
    latency_ns: [Vec<(u64, u64)>; 2],
    #[serde(default)]
    in_stalls_ns: [Vec<(u64, u64)>; 2],
    answers: [u64; 2],
    due: [u64; 2],
    counts: Counts,
}

impl From<&Interval> for Portable {
    fn from(interval: &Interval) -> Portable {
        let pairs = |latency: &Histogram<u64>| {
            let recorded = latency.iter_recorded();
            recorded.map(|v| (v.value_iterated_to(), v.count_at_value())).collect()
        };
        let [load, measure] = &interval.classes;
        Portable {
            second: interval.second,
            latency_ns: [pairs(&load.latency_ns), pairs(&measure.latency_ns)],
            in_stalls_ns: [pairs(&load.in_stalls_ns), pairs(&measure.in_stalls_ns)],
            answers: [load.answers, measure.answers],
            due: [load.due, measure.due],
            counts: interval.counts.clone(),
        }
    }
}

impl From<Portable> for Interval {
    fn from(portable: Portable) -> Interval {
        let (second, counts) = (portable.second, portable.counts);
        let mut interval = Interval { second, counts, ..Interval::default() };
        let all = portable.latency_ns.into_iter().zip(portable.in_stalls_ns);
        for (index, (latencies, in_stalls)) in all.enumerate() {
            let sample = &mut interval.classes[index];
            for (value, count) in latencies {
                sample.latency_ns.saturating_record_n(value, count);
            }
            for (value, count) in in_stalls {
                sample.in_stalls_ns.saturating_record_n(value, count);
            }
            (sample.answers, sample.due) = (portable.answers[index], portable.due[index]);
        }
        interval
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Fault;

    #[test]
    fn intervals_survive_the_way_between_processes() {
        let mut interval = Interval::default();
        for ns in [1, 999, 12_345, 12_345, 5_000_000_000] {
            interval.classes[0].latency_ns.saturating_record(ns);
        }
        interval.classes[0].in_stalls_ns.saturating_record(5_000_000_000);
        interval.classes[1].answers = 7;
        interval.counts.faults.add(Fault::Reset, || "once".into());
        let text = serde_json::to_string(&Portable::from(&interval)).unwrap();
        let portable: Portable = serde_json::from_str(&text).unwrap();
        let back = Interval::from(portable);
        assert_eq!(back.classes[0].latency_ns, interval.classes[0].latency_ns);
        assert_eq!(back.classes[0].in_stalls_ns.len(), 1);
        assert_eq!(back.classes[0].awake_ns().max(), 12_351, "12,345 to three digits");
        assert_eq!(back.classes[1].answers, 7);
        assert_eq!(back.counts, interval.counts);
    }
}
