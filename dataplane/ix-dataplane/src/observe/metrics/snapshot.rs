//! A copy of the control page at one time, in plain numbers.
use super::{
    BATCH_BUCKETS, ControlPage, LocalDrop, Metric, Place, Stage, ThreadState, WindowMetrics,
};
use crate::observe::histogram::Histogram;
use ix_proto::GroupSet;
use ix_proto::MigrationRecord;
use ix_tcp::TcpCounter;
use ix_wire::{DropReason, FLOW_GROUPS};

type Named = Vec<(&'static str, u64)>;

/// All figures of a dataplane.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// When it was taken, µs of the monotonic clock.
    pub now_us: u64,
    /// Ticks of the time stamp counter per microsecond; 0: unknown.
    pub ticks_per_us: u64,
    /// Batch bound B.
    pub batch_bound: u32,
    /// One for each thread.
    pub threads: Vec<ThreadSnapshot>,
    /// One for each flow group.
    pub groups: Vec<GroupSnapshot>,
    /// The results of commands.
    pub commands: CommandSnapshot,
    /// Whether there is a wall between application and dataplane.
    pub walled: bool,
    /// What the wall has refused.
    pub refused: Named,
    /// The last migrations, in the order in which they began.
    pub migrations: Vec<MigrationRecord>,
    /// Number of all migrations so far.
    pub migrations_ever: u64,
}

/// One flow group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupSnapshot {
    /// The elastic thread that owns it; `None` while it moves.
    pub owner: Option<usize>,
    /// Number of its packets that were processed, by any thread. Its load is how fast this grows.
    pub packets: u64,
}

/// The results of the control plane's commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandSnapshot {
    /// Number of the running command; 0: none.
    pub running: u64,
    /// Number of the last command that ended.
    pub ended: u64,
    /// Commands that were carried out.
    pub done: u64,
    /// Commands that were refused.
    pub refused: u64,
    /// Commands that were undone because they took too long.
    pub timed_out: u64,
}

/// All of one elastic thread.
#[derive(Clone, Debug)]
pub struct ThreadSnapshot {
    /// The state of the thread.
    pub state: ThreadState,
    /// Where the thread is.
    pub place: Place,
    /// The hardware thread that it is pinned to.
    pub cpu: u32,
    /// The flow groups that it owns.
    pub owned: GroupSet,
    /// Time from the last command that woke it to its waking, ns; 0: none did, or unknown.
    pub wake_ns: u64,
    /// Averages of the last windows. Windows that a sleeping thread could not write count as idle.
    pub window: WindowMetrics,
    /// Counters and gauges.
    pub counters: Named,
    /// Drops by reason: the parser's, then the dataplane's.
    pub drops: Named,
    /// Counters of TCP.
    pub tcp: Named,
    /// Ticks by stage.
    pub stage_ticks: Named,
    /// Cycles by packets received: 0, 1, 2..4, 4..8, …
    pub batches: [u64; BATCH_BUCKETS],
    /// Length of cycles that did something, ticks.
    pub busy_cycle_ticks: Histogram,
    /// Received packets by the queueing delay of their window, ns.
    pub queueing_delay_ns: Histogram,
}

impl Snapshot {
    /// Reads all blocks now. Counters that belong together may differ by what happens meanwhile.
    pub fn of(page: &ControlPage) -> Snapshot {
        Snapshot::at(page, crate::clock::monotonic_ns() / 1000)
    }

    /// As [`Snapshot::of`], for a caller that knows the time.
    pub fn at(page: &ControlPage, now_us: u64) -> Snapshot {
        let blocks = || (0..page.threads()).map(|i| page.thread(i));
        let threads: Vec<_> =
            (0..page.threads()).map(|thread| ThreadSnapshot::at(page, thread, now_us)).collect();
        let group = |group: usize| GroupSnapshot {
            owner: threads.iter().position(|thread| thread.owned.contains(group)),
            packets: sum(blocks().map(|block| block.group_packets[group].get())),
        };
        let mut migrations: Vec<_> = blocks().flat_map(|block| block.migrations.read()).collect();
        migrations.sort_by_key(|record| record.start_us);
        let commands = page.commands();
        Snapshot {
            migrations,
            migrations_ever: sum(blocks().map(|block| block.migrations.written())),
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

    /// Sum of a counter over all threads; `None` if there is no counter of this name.
    pub fn total(&self, name: &str) -> Option<u64> {
        let all: Option<Vec<u64>> = self.threads.iter().map(|thread| thread.get(name)).collect();
        all.map(|all| sum(all.into_iter()))
    }
}

/// The numbers may be of a program that made them up.
fn sum(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
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
            queueing_delay_ns: block.queueing_delay_ns.read(),
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
