//! A copy of all counters at one time, by name, and its JSON.
use super::{BATCH_BUCKETS, ControlPage, LocalDrop, Metric, Stage, ThreadBlock};
use crate::histogram::Histogram;
use core::fmt::{self, Write};
use ix_tcp::TcpCounter;
use ix_wire::DropReason;

type Named = Vec<(&'static str, u64)>;

/// All counters of a dataplane.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Ticks of the time stamp counter in a microsecond; 0: unknown.
    pub ticks_per_us: u64,
    /// One a thread.
    pub threads: Vec<ThreadSnapshot>,
}

/// All counters of one elastic thread. Its [`Display`](fmt::Display) is a JSON object.
#[derive(Clone, Debug)]
pub struct ThreadSnapshot {
    /// Counters and gauges.
    pub counters: Named,
    /// Drops by reason: the parser's, then the dataplane's.
    pub drops: Named,
    /// TCP.
    pub tcp: Named,
    /// Ticks by stage.
    pub stage_ticks: Named,
    /// Cycles by packets received: 0, 1, 2..4, 4..8, …
    pub batches: [u64; BATCH_BUCKETS],
    /// Length of cycles that did something, ticks.
    pub busy_cycle_ticks: Histogram,
}

impl Snapshot {
    /// Reads all blocks. Counters that belong together may differ by what happens meanwhile.
    pub fn of(page: &ControlPage) -> Snapshot {
        let threads = (0..page.threads()).map(|i| ThreadSnapshot::of(page.thread(i))).collect();
        Snapshot { ticks_per_us: page.ticks_per_us(), threads }
    }

    /// Sum of a counter over all threads; `None` when there is no such name.
    pub fn total(&self, name: &str) -> Option<u64> {
        self.threads.iter().map(|thread| thread.get(name)).sum()
    }
}

impl ThreadSnapshot {
    fn of(block: &ThreadBlock) -> ThreadSnapshot {
        let mut counters = Named::new();
        block.counters.for_each(|name, value| counters.push((name, value)));
        let parser = DropReason::ALL.iter().map(|reason| reason.name()).zip(&block.drops);
        let local = LocalDrop::ALL.iter().map(|reason| reason.name()).zip(&block.local_drops);
        ThreadSnapshot {
            counters,
            drops: named(parser.chain(local)),
            tcp: named(TcpCounter::ALL.iter().map(|stat| stat.name()).zip(&block.tcp)),
            stage_ticks: named(Stage::ALL.iter().map(|s| s.name()).zip(&block.stage_ticks)),
            batches: core::array::from_fn(|bucket| block.batches[bucket].get()),
            busy_cycle_ticks: block.busy_cycle_ticks.read(),
        }
    }

    /// A counter by name: plain, or `drops.NAME`, `tcp.NAME`, `stage_ticks.NAME`.
    pub fn get(&self, name: &str) -> Option<u64> {
        let (list, name) = match name.split_once('.') {
            None => (&self.counters, name),
            Some(("drops", name)) => (&self.drops, name),
            Some(("tcp", name)) => (&self.tcp, name),
            Some(("stage_ticks", name)) => (&self.stage_ticks, name),
            Some(_) => return None,
        };
        list.iter().find(|(n, _)| *n == name).map(|(_, value)| *value)
    }
}

fn named<'a>(pairs: impl Iterator<Item = (&'static str, &'a Metric)>) -> Named {
    pairs.map(|(name, metric)| (name, metric.get())).collect()
}

/// JSON: `{"ticks_per_us": …, "threads": [ … ]}`.
impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{\"ticks_per_us\":{},\"threads\":[", self.ticks_per_us)?;
        for (i, thread) in self.threads.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            write!(f, "{comma}{thread}")?;
        }
        f.write_str("]}")
    }
}

impl fmt::Display for ThreadSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Names are identifiers, so nothing needs escaping.
        f.write_char('{')?;
        for (name, value) in &self.counters {
            write!(f, "\"{name}\":{value},")?;
        }
        let lists =
            [("drops", &self.drops), ("tcp", &self.tcp), ("stage_ticks", &self.stage_ticks)];
        for (title, list) in lists {
            write!(f, "\"{title}\":{{")?;
            for (i, (name, value)) in list.iter().enumerate() {
                let comma = if i > 0 { "," } else { "" };
                write!(f, "{comma}\"{name}\":{value}")?;
            }
            f.write_str("},")?;
        }
        write!(f, "\"batches\":{:?},", self.batches)?;
        let h = &self.busy_cycle_ticks;
        write!(f, "\"busy_cycle_ticks\":{{\"count\":{},\"mean\":{:.0}", h.count(), h.mean())?;
        for (name, percent) in [("p50", 50.0), ("p99", 99.0), ("p999", 99.9)] {
            write!(f, ",\"{name}\":{}", h.percentile(percent))?;
        }
        write!(f, ",\"max\":{}}}}}", h.max())
    }
}
