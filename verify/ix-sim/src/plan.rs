//! What a seed stands for: hosts, faults and their times, and the connections.
mod connections;

use crate::orders::{Order, orders};
use crate::wire::Faults;
use ix_dataplane::GroupSet;
use ix_random::Rng;
use ix_rig::Promise;
use ix_wire::FLOW_GROUPS;

/// What the connections of a run do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// Few connections, many bytes, both ways.
    Bulk,
    /// Messages and their echoes, one at a time.
    Echo,
    /// Many short connections that end in every way.
    Churn,
    /// All of these, on hosts with 2 to 16 elastic threads that stall, and whose flow groups move
    /// all the time.
    Migration,
    /// The same, but the control plane's commands move the flow groups, and park and resume
    /// threads.
    Life,
    /// Very many short connections, each with faults.
    Lives,
    /// All of it at once.
    All,
}

/// Which families of IP the hosts of a run speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Families {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
    /// Every other connection is of IPv6, at the same listeners.
    Both,
}

impl Families {
    /// Hosts have addresses of IPv4, of IPv6.
    pub fn has(self) -> [bool; 2] {
        [self != Families::V6, self != Families::V4]
    }
}

/// What the caller fixes about a run instead of the seed.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Probability of loss on every wire, instead of the seed's faults.
    pub loss: Option<f64>,
    /// Bytes of each bulk stream, instead of the seed's.
    pub bulk_bytes: Option<u64>,
}

/// A run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Virtual time at which the run begins, µs.
    pub start_us: u64,
    /// From this time on there are no faults, µs.
    pub heal_us: u64,
    /// At this time every connection must have ended, µs.
    pub deadline_us: u64,
    /// Families of IP.
    pub families: Families,
    /// The hosts.
    pub hosts: Vec<HostPlan>,
    /// Changes of wires, ordered by time.
    pub changes: Vec<Change>,
    /// Flow groups that are sent to other threads, ordered by time.
    pub moves: Vec<Move>,
    /// Commands of the control plane, ordered by time. A run has these or moves.
    pub orders: Vec<Order>,
    /// Changes of devices' redirection tables that IX did not make, ordered by time.
    pub tables: Vec<TableChange>,
    /// The connections.
    pub connections: Vec<ConnectionPlan>,
}

/// Flow groups of a host are sent to one of its threads.
#[derive(Clone, Copy, Debug)]
pub struct Move {
    /// When, µs.
    pub at_us: u64,
    /// The host.
    pub host: usize,
    /// The flow groups.
    pub groups: GroupSet,
    /// The thread.
    pub to: usize,
}

/// A device's redirection table changes, as if an administrator or a reset of the device did it.
#[derive(Clone, Copy, Debug)]
pub struct TableChange {
    /// When, µs.
    pub at_us: u64,
    /// The host.
    pub host: usize,
    /// The flow group whose packets move.
    pub group: usize,
    /// The queue that receives them from now on.
    pub queue: usize,
}

/// The wire from a host changes.
#[derive(Clone, Debug)]
pub struct Change {
    /// When, µs.
    pub at_us: u64,
    /// The host.
    pub host: usize,
    /// The faults from now on.
    pub faults: Faults,
}

/// How a host's device spreads packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpreadPlan {
    /// All to its first queue.
    First,
    /// At random over its queues.
    Random,
    /// By the dataplane's table.
    Table,
    /// By RSS.
    Rss,
}

/// One host.
#[derive(Clone, Debug)]
pub struct HostPlan {
    /// Elastic threads, each with a queue of its own.
    pub threads: usize,
    /// Batch bound.
    pub batch: usize,
    /// Receive frames of each thread.
    pub rx_frames: usize,
    /// Frames to build packets in, of each thread.
    pub tx_frames: usize,
    /// Slots of the device's rings.
    pub ring: usize,
    /// How packets are spread.
    pub spread: SpreadPlan,
    /// What the device says of a changed table, and how much later the change holds, µs.
    pub promise: (Promise, u64),
    /// Longest time of a cycle, µs.
    pub cycle_us: u64,
    /// Probability that a thread does not run for a while after a cycle.
    pub stall: f64,
    /// Longest such pause, µs.
    pub stall_us: u64,
    /// Whether the control plane gives commands, and threads read them.
    pub takes_orders: bool,
    /// Whether the guard serves threads whose applications stay away.
    pub is_guarded: bool,
    /// TCP's parameters.
    pub tcp: ix_tcp::Config,
    /// Bound of a listener's backlog.
    pub backlog: u32,
    /// With at least this many packets waiting in a receive ring, senders that know ECN are told of
    /// congestion.
    pub mark_queue: usize,
    /// With at least this many, some of the payload of other senders is dropped early; 0: never.
    pub drop_queue: usize,
    /// The host's wire.
    pub faults: Faults,
}

/// What is exchanged on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// Independent streams, both ways.
    Bulk {
        /// From the client, bytes.
        up: u64,
        /// From the server, bytes.
        down: u64,
    },
    /// A message, its echo, the next message.
    Echo {
        /// Bytes of a message.
        size: u64,
        /// How many.
        count: u64,
    },
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Each side shuts its direction when it has sent everything.
    HalfClose,
    /// The client closes when everything was exchanged.
    ClientCloses,
    /// The server does.
    ServerCloses,
    /// The client resets after so many bytes.
    ClientAborts(u64),
    /// The server does.
    ServerAborts(u64),
}

impl End {
    /// Whether the streams may end anywhere.
    pub fn is_abort(self) -> bool {
        matches!(self, End::ClientAborts(_) | End::ServerAborts(_))
    }
}

/// One connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionPlan {
    /// When the client connects, µs after the start.
    pub after_us: u64,
    /// Host and thread that connect.
    pub client: (usize, usize),
    /// Host that it connects to.
    pub server: usize,
    /// Whether it does so over IPv6.
    pub v6: bool,
    /// What is exchanged.
    pub exchange: Exchange,
    /// How it ends.
    pub end: End,
    /// Whether client and server leave data unread for a while, so that windows close.
    pub lazy: [bool; 2],
    /// Both connect to each other at the same time, from these ports of client and server.
    pub meets: Option<[u16; 2]>,
}

impl ConnectionPlan {
    /// Bytes that the client sends after its greeting.
    pub fn up(&self) -> u64 {
        match self.exchange {
            Exchange::Bulk { up, .. } => up,
            Exchange::Echo { size, count } => size * count,
        }
    }

    /// Bytes that the server sends.
    pub fn down(&self) -> u64 {
        match self.exchange {
            Exchange::Bulk { down, .. } => down,
            Exchange::Echo { size, count } => size * count,
        }
    }
}

/// Longest time of a connection after the faults ended: a retransmission timeout that has backed
/// off to a minute, a closed window, and the transfer itself.
const PATIENCE_US: u64 = 300_000_000;

impl Plan {
    /// The run of a seed.
    pub fn new(seed: u64, scenario: Scenario, options: &Options) -> Plan {
        let mut rng = Rng::new(seed);
        let start_us = start(&mut rng);
        let heal_us = start_us + rng.spread(100_000, 20_000_000);
        let count = rng.between(2, 3) as usize;
        // The same on all hosts: along a path, faults multiply, and so do their kinds.
        let kinds: [bool; 6] = std::array::from_fn(|_| rng.chance(0.5));
        let mut hosts: Vec<HostPlan> =
            (0..count).map(|_| host(&mut rng, kinds, options.loss)).collect();
        // A random stream of its own, so that moves do not change what else happens.
        let mut moving = Rng::new(seed ^ 0x6d6f_7665);
        for host in &mut hosts {
            let promises = [Promise::Settled, Promise::InOrder, Promise::Silent];
            host.promise = (moving.pick(&promises), moving.pick(&[0, 5, 100, 900]));
            if matches!(scenario, Scenario::Migration | Scenario::Life) {
                make_elastic(&mut moving, host);
            }
            if scenario == Scenario::Lives {
                make_hard(&mut moving, host);
            }
            if scenario == Scenario::Life {
                (host.takes_orders, host.is_guarded) = (true, moving.chance(0.7));
                // Sometimes longer than a command may take.
                host.stall_us = moving.pick(&[1_000, 10_000, 300_000, 300_000, 2_500_000]);
                if host.stall_us > 1_000_000 {
                    host.stall = host.stall.min(0.0005);
                }
            }
        }
        // Another random stream: hosts with and without ECN meet, and some feel the marks of
        // receive rings.
        let mut marking = Rng::new(seed ^ 0x65_636e);
        for host in &mut hosts {
            use ix_tcp::EcnMode::{Accept, AcceptAccurate, Ask, AskAccurate, Off};
            host.tcp.ecn =
                marking.pick(&[Accept, Off, Ask, AcceptAccurate, AskAccurate, AskAccurate]);
            if marking.chance(0.3) {
                host.mark_queue = marking.between(2, 16) as usize;
            }
        }
        let hosts = hosts;
        let changes = changes(&mut rng, &hosts, start_us, heal_us, options.loss.is_some());
        let span_us = heal_us - start_us;
        let mut connections = connections::of(&mut rng, scenario, &hosts, span_us, options);
        if scenario == Scenario::Lives {
            connections.extend(connections::meetings(seed, &hosts, span_us));
        }
        let often = scenario == Scenario::Migration;
        let (moves, orders) = match scenario {
            Scenario::Life => (Vec::new(), orders(&mut moving, &hosts, start_us, heal_us)),
            _ => (moves(&mut moving, &hosts, start_us, heal_us, often), Vec::new()),
        };
        let bytes: u64 = connections.iter().map(|c| c.up() + c.down()).sum();
        let slowest = hosts.iter().map(|h| h.faults.rate_mbit_s.max(1)).min().unwrap_or(1);
        let unlimited = hosts.iter().all(|h| h.faults.rate_mbit_s == 0);
        let transfer_us = if unlimited { bytes } else { bytes * 8 / slowest * 4 + bytes };
        let last_us = orders.last().map_or(0, |order| order.at_us.saturating_sub(heal_us));
        let deadline_us = heal_us + last_us + PATIENCE_US + transfer_us;
        // Where a device promises when its table changes, only IX changes the table.
        let tables = match hosts.iter().all(|host| host.promise.0 == Promise::Silent) {
            true => tables(&mut moving, &hosts, start_us, heal_us),
            false => Vec::new(),
        };
        // A random stream of its own, so that the family does not change what else happens.
        let families =
            Rng::new(seed ^ 0x6970_7636).pick(&[Families::V4, Families::V6, Families::Both]);
        let plan = Plan {
            start_us,
            heal_us,
            deadline_us,
            families,
            hosts,
            changes,
            moves,
            orders,
            tables,
            connections,
        };
        plan.over(families)
    }

    /// The same over these families.
    pub fn over(mut self, families: Families) -> Plan {
        self.families = families;
        for (number, connection) in self.connections.iter_mut().enumerate() {
            connection.v6 = match families {
                Families::V4 => false,
                Families::V6 => true,
                Families::Both => number % 2 == 1,
            };
        }
        self
    }
}

/// Adds every kind of fault to every wire, and sometimes little memory, short queues and slow
/// hosts.
fn make_hard(rng: &mut Rng, host: &mut HostPlan) {
    let percent = |rng: &mut Rng, most: u64| rng.between(1, most) as f64 / 100.0;
    let faults = &mut host.faults;
    faults.loss = percent(rng, 6);
    (faults.burst, faults.burst_frames) = (percent(rng, 2) / 2.0, 3.0);
    (faults.reorder, faults.reorder_us) = (percent(rng, 20), rng.spread(10, 5_000));
    faults.duplicate = percent(rng, 10);
    faults.corrupt = percent(rng, 4);
    (host.stall, host.stall_us) = rng.pick(&[(0.0, 1), (0.001, 50_000), (0.01, 5_000)]);
    if rng.chance(0.2) {
        (host.rx_frames, host.tx_frames) = (256, 256);
        host.tcp.rcv_buffers_max = 16;
        host.ring = 64;
        host.batch = host.batch.min(16);
    }
}

/// A few table changes, on hosts where they make a difference.
fn tables(rng: &mut Rng, hosts: &[HostPlan], start_us: u64, heal_us: u64) -> Vec<TableChange> {
    let mut tables = Vec::new();
    for (host, plan) in hosts.iter().enumerate().filter(|(_, plan)| plan.threads > 1) {
        for _ in 0..rng.pick(&[0, 5, 100]) {
            let at_us = rng.between(start_us, heal_us);
            let group = rng.below(FLOW_GROUPS as u64) as usize;
            let queue = rng.below(plan.threads as u64) as usize;
            tables.push(TableChange { at_us, host, group, queue });
        }
    }
    tables.sort_by_key(|change| change.at_us);
    tables
}

impl Plan {
    /// Begins the run at another time: clocks, and so initial sequence numbers, differ.
    pub fn begin_at(&mut self, start_us: u64) {
        let old_us = std::mem::replace(&mut self.start_us, start_us);
        let times = [&mut self.heal_us, &mut self.deadline_us].into_iter();
        let times = times.chain(self.changes.iter_mut().map(|change| &mut change.at_us));
        let times = times.chain(self.moves.iter_mut().map(|moved| &mut moved.at_us));
        let times = times.chain(self.tables.iter_mut().map(|table| &mut table.at_us));
        times.for_each(|at_us| *at_us = *at_us - old_us + start_us);
    }
}

/// Adds threads. Some of them stand still for a while now and then.
fn make_elastic(rng: &mut Rng, host: &mut HostPlan) {
    host.threads = rng.pick(&[2, 2, 3, 4, 6, 8, 16]);
    if host.threads > 4 {
        (host.rx_frames, host.tx_frames) = (1024, 1024);
    }
    host.stall = rng.pick(&[0.0, 0.001, 0.02]);
    host.stall_us = rng.pick(&[1_000, 10_000, 60_000, 300_000]);
}

/// Moves of flow groups. Most runs with several threads have some; sometimes many come at once.
fn moves(rng: &mut Rng, hosts: &[HostPlan], start_us: u64, heal_us: u64, often: bool) -> Vec<Move> {
    let mut moves = Vec::new();
    for (host, plan) in hosts.iter().enumerate().filter(|(_, plan)| plan.threads > 1) {
        let count = match (often, rng.chance(0.7)) {
            (true, _) => rng.spread(20, 1_000),
            (false, true) => rng.spread(1, 100),
            (false, false) => 0,
        };
        // Some moves come after the faults have ended: then they meet quiet connections.
        let span_us = (heal_us - start_us).min(rng.spread(5_000, 30_000_000)) * 11 / 10;
        let mut at_us = start_us;
        for _ in 0..count {
            at_us = match rng.chance(0.4) {
                true => at_us + rng.below(200),
                false => start_us + rng.below(span_us),
            };
            let groups = match rng.below(4) {
                0 => GroupSet::all(),
                1 => (0..FLOW_GROUPS).filter(|_| rng.chance(0.5)).collect(),
                _ => {
                    (0..rng.between(1, 4)).map(|_| rng.below(FLOW_GROUPS as u64) as usize).collect()
                }
            };
            let to = rng.below(plan.threads as u64) as usize;
            moves.push(Move { at_us, host, groups, to });
        }
        // At the end every thread gets groups again: without groups it could not connect. Some of
        // these attempts may fail, because a thread may be standing still.
        for again_us in if count > 0 { [500_000, 3_000_000, 10_000_000].as_slice() } else { &[] } {
            for to in 0..plan.threads {
                let groups = (0..FLOW_GROUPS).filter(|g| g % plan.threads == to).collect();
                moves.push(Move { at_us: heal_us + again_us, host, groups, to });
            }
        }
    }
    moves.sort_by_key(|m| m.at_us);
    moves
}

/// The time at which clocks begin: often shortly before a 32-bit count of µs wraps.
fn start(rng: &mut Rng) -> u64 {
    let wrap = rng.pick(&[1 << 31, 1 << 32, 1 << 33, 1 << 36, 1 << 52]);
    if rng.chance(0.5) { wrap - rng.below(10_000_000) } else { rng.between(1_000, 1 << 40) }
}

fn host(rng: &mut Rng, kinds: [bool; 6], loss: Option<f64>) -> HostPlan {
    let threads = rng.pick(&[1, 1, 1, 2, 3, 4]);
    let faults = match loss {
        Some(loss) => Faults { loss, ..Faults::none(rng.spread(5, 5_000)) },
        None => faults(rng, kinds),
    };
    HostPlan {
        threads,
        batch: rng.pick(&[1, 2, 16, 64, 64, 1024]),
        rx_frames: rng.pick(&[1024, 4096, 8192]),
        tx_frames: rng.pick(&[1024, 2048]),
        ring: rng.pick(&[64, 256, 1024, 4096]),
        spread: rng.pick(&[
            SpreadPlan::First,
            SpreadPlan::Random,
            SpreadPlan::Table,
            SpreadPlan::Rss,
        ]),
        promise: (Promise::Silent, 0),
        cycle_us: rng.pick(&[3, 3, 3, 10, 200, 3_000]),
        stall: if rng.chance(0.3) { 0.001 } else { 0.0 },
        stall_us: 50_000,
        takes_orders: false,
        is_guarded: false,
        tcp: tcp(rng),
        backlog: rng.pick(&[0, 0, 32, 128]),
        mark_queue: 256,
        drop_queue: 0,
        faults,
    }
}

fn tcp(rng: &mut Rng) -> ix_tcp::Config {
    let mut tcp = ix_tcp::Config {
        mss: rng.pick(&[1460, 1460, 1460, 536, 1000]),
        sack: rng.chance(0.8),
        timestamps: rng.chance(0.8),
        window_scaling: rng.chance(0.8),
        nagle: rng.chance(0.1),
        min_rto_us: rng.pick(&[1_000, 5_000, 200_000]),
        // Resets get lost; then only keepalive tells the other side.
        keepalive_idle_s: 20,
        keepalive_interval_us: 5_000_000,
        time_wait_us: rng.pick(&[100_000, 1_000_000, 60_000_000]),
        ..ix_tcp::Config::default()
    };
    tcp.congestion = match rng.below(10) {
        0..3 => ix_tcp::CongestionControl::NewReno,
        3..6 => ix_tcp::CongestionControl::Bbr,
        _ => ix_tcp::CongestionControl::Cubic,
    };
    if rng.chance(0.2) {
        tcp.rcv_buf_bytes = rng.pick(&[8 << 10, 32 << 10]);
    }
    if rng.chance(0.2) {
        tcp.rcv_buffers_max = rng.between(8, 64) as u32;
    }
    tcp
}

/// Each kind of fault that `kinds` allows occurs with a probability of one half.
fn faults(rng: &mut Rng, kinds: [bool; 6]) -> Faults {
    let mut faults = Faults::none(rng.spread(2, 20_000));
    let on = |rng: &mut Rng, kind: usize| kinds[kind] && rng.chance(0.5);
    if on(rng, 0) {
        faults.loss = rng.spread(1, 1000) as f64 / 10_000.0;
    }
    if on(rng, 1) {
        faults.burst = rng.spread(1, 100) as f64 / 10_000.0;
        faults.burst_frames = rng.between(2, 20) as f64;
    }
    if on(rng, 2) {
        faults.reorder = rng.spread(1, 2000) as f64 / 10_000.0;
        faults.reorder_us = rng.spread(10, 10_000);
    }
    if on(rng, 3) {
        faults.duplicate = rng.spread(1, 1000) as f64 / 10_000.0;
    }
    if on(rng, 4) {
        faults.corrupt = rng.spread(1, 500) as f64 / 10_000.0;
    }
    if on(rng, 5) {
        faults.rate_mbit_s = rng.spread(10, 10_000);
        faults.queue_bytes = rng.spread(20_000, 1_000_000);
    }
    if rng.chance(0.5) {
        faults.jitter_us = rng.spread(1, 2_000);
    }
    faults
}

/// Cuts of wires, and the end of all faults.
fn changes(
    rng: &mut Rng,
    hosts: &[HostPlan],
    start_us: u64,
    heal_us: u64,
    only_loss: bool,
) -> Vec<Change> {
    let mut changes = Vec::new();
    for (host, plan) in hosts.iter().enumerate() {
        let cuts = if only_loss { 0 } else { rng.pick(&[0, 0, 1, 3]) };
        for _ in 0..cuts {
            let at_us = rng.between(start_us, heal_us);
            let cut = Faults { cut: true, ..plan.faults.clone() };
            changes.push(Change { at_us, host, faults: cut });
            let back_us = (at_us + rng.spread(1_000, 5_000_000)).min(heal_us);
            changes.push(Change { at_us: back_us, host, faults: plan.faults.clone() });
        }
        changes.push(Change { at_us: heal_us, host, faults: plan.faults.healed() });
    }
    changes.sort_by_key(|change| change.at_us);
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_plan() {
        for seed in 0..300 {
            let plan = Plan::new(seed, Scenario::All, &Options::default());
            let again = Plan::new(seed, Scenario::All, &Options::default());
            assert_eq!(format!("{plan:?}"), format!("{again:?}"));
            assert!(plan.start_us < plan.heal_us && plan.heal_us < plan.deadline_us);
            assert!(!plan.connections.is_empty());
            for connection in &plan.connections {
                assert_ne!(connection.client.0, connection.server);
                assert!(connection.client.1 < plan.hosts[connection.client.0].threads);
            }
            // At the end every wire is whole.
            for host in 0..plan.hosts.len() {
                let last = plan.changes.iter().rfind(|change| change.host == host).unwrap();
                assert_eq!(last.faults, last.faults.healed());
                assert_eq!(last.at_us, plan.heal_us);
            }
        }
    }
}
