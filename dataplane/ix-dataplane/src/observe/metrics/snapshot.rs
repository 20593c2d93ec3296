//! A copy of the control page at one time, in plain numbers, and its JSON.
use super::{
    BATCH_BUCKETS, ControlPage, LocalDrop, Metric, Place, Stage, ThreadState, WindowMetrics,
};
use crate::observe::histogram::Histogram;
use crate::observe::migration::MigrationRecord;
use core::fmt;
use ix_proto::GroupSet;
use ix_tcp::TcpCounter;
use ix_wire::{DropReason, FLOW_GROUPS};

type Named = Vec<(&'static str, u64)>;

/// All that a dataplane says of itself.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// When it was taken, µs of the monotonic clock.
    pub now_us: u64,
    /// Ticks of the time stamp counter in a microsecond; 0: unknown.
    pub ticks_per_us: u64,
    /// Batch bound B.
    pub batch_bound: u32,
    /// One a thread.
    pub threads: Vec<ThreadSnapshot>,
    /// One a flow group.
    pub groups: Vec<GroupSnapshot>,
    /// What became of commands.
    pub commands: CommandSnapshot,
    /// Whether there is a wall between application and dataplane.
    pub walled: bool,
    /// What it refused.
    pub refused: Named,
    /// The last migrations, in the order in which they began. Of all there were, these are left.
    pub migrations: Vec<MigrationRecord>,
    /// How many there were.
    pub migrations_ever: u64,
}

/// One flow group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupSnapshot {
    /// The elastic thread that owns it; `None` while it moves.
    pub owner: Option<usize>,
    /// Packets of it that were handled, by whichever threads: its load is how this grows.
    pub packets: u64,
}

/// What became of the control plane's commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandSnapshot {
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

/// All of one elastic thread. Its [`Display`](fmt::Display) is a JSON object.
#[derive(Clone, Debug)]
pub struct ThreadSnapshot {
    /// What it is.
    pub state: ThreadState,
    /// Where it is.
    pub place: Place,
    /// The hardware thread that it is pinned to.
    pub cpu: u32,
    /// The flow groups it owns.
    pub owned: GroupSet,
    /// From the last command that woke it to its waking, ns; 0: none did, or unknown.
    pub wake_ns: u64,
    /// Averages of the last windows; those that a sleeping thread could not write are counted as
    /// idle.
    pub window: WindowMetrics,
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
    /// Reads all blocks now. Counters that belong together may differ by what happens meanwhile.
    pub fn of(page: &ControlPage) -> Snapshot {
        Snapshot::at(page, crate::clock::monotonic_ns() / 1000)
    }

    /// The same for one who has looked at the monotonic clock.
    pub fn at(page: &ControlPage, now_us: u64) -> Snapshot {
        let blocks = || (0..page.threads()).map(|i| page.thread(i));
        let threads: Vec<_> =
            (0..page.threads()).map(|thread| ThreadSnapshot::at(page, thread, now_us)).collect();
        let group = |group: usize| GroupSnapshot {
            owner: threads.iter().position(|thread| thread.owned.contains(group)),
            packets: blocks().map(|block| block.group_packets[group].get()).sum(),
        };
        let mut migrations: Vec<_> = blocks().flat_map(|block| block.migrations.read()).collect();
        migrations.sort_by_key(|record| record.start_us);
        let commands = page.commands();
        Snapshot {
            migrations,
            migrations_ever: blocks().map(|block| block.migrations.written()).sum(),
            now_us,
            ticks_per_us: page.ticks_per_us(),
            batch_bound: page.batch_bound(),
            groups: (0..FLOW_GROUPS).map(group).collect(),
            commands: CommandSnapshot {
                running: commands.running.get(),
                ended: commands.ended.get(),
                done: commands.done.get(),
                refused: commands.refused.get(),
                timed_out: commands.timed_out.get(),
            },
            walled: page.wall().stands.get() != 0,
            refused: page.wall().refused().collect(),
            threads,
        }
    }

    /// Sum of a counter over all threads; `None` when there is no such name.
    pub fn total(&self, name: &str) -> Option<u64> {
        self.threads.iter().map(|thread| thread.get(name)).sum()
    }
}

impl ThreadSnapshot {
    fn at(page: &ControlPage, thread: usize, now_us: u64) -> ThreadSnapshot {
        let (block, ticks_per_us) = (page.thread(thread), page.ticks_per_us());
        let place = block.whereabouts.get();
        let window = block.window.read().unwrap_or_default();
        let since_us = |time_us: u64| now_us.saturating_sub(time_us);
        let life = ThreadState::of(block.life.get());
        let (state, window) = match place {
            Place::Asleep { since_us: asleep } => (life, window.after_idle_us(since_us(asleep))),
            Place::Application { since_us: left }
                if life == ThreadState::Active && since_us(left) > page.nonresponsive_us() =>
            {
                (ThreadState::NonResponsive, window)
            }
            _ => (life, window),
        };
        let mut counters = Named::new();
        block.counters.for_each(|name, value| counters.push((name, value)));
        let parser = DropReason::ALL.iter().map(|reason| reason.name()).zip(&block.drops);
        let local = LocalDrop::ALL.iter().map(|reason| reason.name()).zip(&block.local_drops);
        ThreadSnapshot {
            state,
            place,
            cpu: block.cpu.get() as u32,
            owned: GroupSet::from_words(core::array::from_fn(|i| block.owned[i].get())),
            wake_ns: (block.wake_ticks.get() * 1000).checked_div(ticks_per_us).unwrap_or(0),
            window,
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

/// JSON: `{"ticks_per_us": …, "batch_bound": …, "threads": [ … ], "groups": [ … ], …}`.
impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Snapshot { now_us, ticks_per_us, batch_bound, .. } = self;
        write!(f, "{{\"now_us\":{now_us},\"ticks_per_us\":{ticks_per_us},")?;
        write!(f, "\"batch_bound\":{batch_bound},\"threads\":[")?;
        for (i, thread) in self.threads.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            write!(f, "{comma}{thread}")?;
        }
        f.write_str("],\"groups\":[")?;
        for (i, GroupSnapshot { owner, packets }) in self.groups.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            let owner = owner.map_or("null".to_owned(), |owner| owner.to_string());
            write!(f, "{comma}{{\"thread\":{owner},\"packets\":{packets}}}")?;
        }
        let CommandSnapshot { running, ended, done, refused, timed_out } = self.commands;
        write!(
            f,
            "],\"commands\":{{\"running\":{running},\"ended\":{ended},\"done\":{done},\
             \"refused\":{refused},\"timed_out\":{timed_out}}},\
             \"wall\":{{\"stands\":{},\"refused\":{{",
            self.walled
        )?;
        for (i, (name, count)) in self.refused.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            write!(f, "{comma}\"{name}\":{count}")?;
        }
        write!(f, "}}}},\"migrations_ever\":{},\"migrations\":[", self.migrations_ever)?;
        for (i, record) in self.migrations.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            write_migration(f, record)?;
        }
        f.write_str("]}")
    }
}

fn write_migration(f: &mut fmt::Formatter<'_>, r: &MigrationRecord) -> fmt::Result {
    write!(
        f,
        "{{\"command\":{},\"flow_groups\":\"{}\",\"from\":{},\"to\":{},\"flows\":{},\
         \"start_us\":{},\"prepare_us\":{},\"wait_us\":{},\"rpc_us\":{},\"deferred_us\":{},\
         \"total_us\":{},\"pause_us\":{},\"descheduled_us\":{},\"packets\":{},\"end\":\"{}\"}}",
        r.command,
        r.groups,
        r.from,
        r.to,
        r.flows,
        r.start_us,
        r.prepare_us,
        r.wait_us,
        r.rpc_us,
        r.deferred_us,
        r.total_us,
        r.pause_us,
        r.descheduled_us,
        r.packets,
        r.end.name(),
    )
}

impl fmt::Display for ThreadSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Names are identifiers, so nothing needs escaping.
        let (state, cpu, owned) = (self.state.name(), self.cpu, self.owned);
        write!(f, "{{\"state\":\"{state}\",\"cpu\":{cpu},\"flow_groups\":\"{owned}\",")?;
        write!(f, "\"wake_ns\":{},", self.wake_ns)?;
        f.write_str("\"window\":{")?;
        for (i, (name, [a, b, c])) in self.window.by_name().into_iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            write!(f, "{comma}\"{name}\":[{a:.3},{b:.3},{c:.3}]")?;
        }
        f.write_str("},")?;
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
