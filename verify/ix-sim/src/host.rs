//! A host: real elastic threads with real event loops, on a simulated device and clock.
use crate::audit::{Audit, Wall};
use crate::ledger::{Ledger, Role};
use crate::orders::{Broker, Order};
use crate::peer::{PORT, Peer, Talk};
use crate::plan::{ConnectionPlan, Families, HostPlan, SpreadPlan};
use ix_abi::{CALLS_MAX, Call};
use ix_dataplane::config::AddressCheck;
use ix_dataplane::metrics::{ControlPage, Snapshot};
use ix_dataplane::{
    Command, Config, CycleReport, ElasticThread, GroupSet, MigrationEnd, MigrationRecord, Outcome,
    Shared,
};
use ix_random::Rng;
use ix_rig::{Arrays, Core, Rig, RigOptions, SimDevice, SimOptions, Spread, VirtualClock, Watch};
use ix_wire::{FLOW_GROUPS, FlowHash, FlowTuple, Toeplitz, flow_group};
use libix::event::{EventLoop, Team};
use libix::raw::Wait;
use std::cell::RefCell;
use std::net::{IpAddr as NetAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

/// Transmit memory of each elastic thread.
const ARENA_BYTES: usize = 16 << 20;

/// The addresses of a host: of IPv4, of IPv6.
pub fn addresses(host: usize) -> [NetAddr; 2] {
    let number = host as u8 + 1;
    let v6 = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number.into());
    [Ipv4Addr::new(10, 0, 0, number).into(), v6.into()]
}

/// State of one elastic thread that belongs neither to the dataplane nor to the application.
struct ThreadState {
    audit: Audit,
    /// How long the application asked to wait, µs.
    wait_us: u64,
    /// Migrations that ended here.
    records: Vec<MigrationRecord>,
    life: Option<Life>,
    /// Draws the calls that no library makes.
    rng: Rng,
}

/// How a thread, which may be parked, reads the commands of the control plane.
struct Life {
    broker: Broker,
    /// Number of the application's calls of `run_io`.
    run: u64,
    /// When to read commands next.
    look_us: u64,
}

/// Time between two readings of commands while there is work, µs.
const LOOK_US: u64 = 1_000;
/// Time after which the guard serves a thread whose application is away, µs.
const AWAY_US: u64 = 10_000;
/// Time between two turns of the guard, µs.
const TURN_US: usize = 1_000;
/// Most turns of the guard in a row: more would show nothing new.
const TURNS_MAX: usize = 100;
/// Longest sleep of a thread that must read commands, µs.
const SLEEP_MAX_US: u64 = 2_000;

/// When a thread has work again, not before `ready_us`; `u64::MAX`: only when it is woken.
fn next_run_us(core: &mut Core<ThreadState>, ready_us: u64) -> u64 {
    let (CycleReport { events, busy }, now_us) = (core.report, core.clock.now_us());
    let (elastic, watch) = (&mut core.thread.elastic, &core.watch);
    if events > 0 || busy || !elastic.may_sleep() || elastic.is_called() {
        return ready_us;
    }
    let mut due_us = elastic.next_deadline_us().unwrap_or(u64::MAX);
    if watch.life.is_some() && elastic.needs_look() {
        due_us = due_us.min(now_us + SLEEP_MAX_US);
    }
    due_us.min(now_us.saturating_add(watch.wait_us)).max(ready_us)
}

/// How often an application uses the handle of an ended flow: the probability for each batch.
const STALE: f64 = 0.02;

impl ThreadState {
    /// Adds, with probability [`STALE`], a call on an old handle to the application's calls.
    /// Returns the number of calls. The dataplane must refuse it ([`Audit`]).
    fn add_stale_call(&mut self, arrays: &mut Arrays, calls: usize) -> usize {
        if calls >= CALLS_MAX || !self.rng.chance(STALE) {
            return calls;
        }
        let ThreadState { rng, audit, .. } = self;
        let Some(handle) = audit.stale(|n| rng.below(n)) else { return calls };
        let call =
            rng.pick(&[Call::Abort { handle }, Call::Close { handle }, Call::Shutdown { handle }]);
        arrays.set_call(calls, call.encode());
        calls + 1
    }
}

impl Watch for ThreadState {
    fn before(&mut self, arrays: &mut Arrays, calls: usize, wait_us: u64) -> usize {
        self.wait_us = wait_us;
        self.add_stale_call(arrays, calls)
    }

    fn cycle(
        &mut self,
        elastic: &mut ElasticThread,
        calls: usize,
        last: CycleReport,
        now_us: u64,
    ) -> CycleReport {
        let Some(life) = &mut self.life else {
            let report = elastic.run_cycle(calls, now_us);
            self.records.extend(std::iter::from_fn(|| elastic.take_migration()));
            return report;
        };
        if life.run == 0 {
            elastic.enter(now_us);
        }
        life.run += 1;
        // A thread that was woken reads commands at once; a busy one does so now and then.
        let look = now_us >= life.look_us || life.broker.waits() && !last.busy;
        if look {
            life.look_us = now_us + LOOK_US;
        }
        let report = elastic.run_cycle_and_attend(calls, life.run, look, now_us);
        // A refused call may make the application act.
        CycleReport { busy: report.busy || calls > 0, ..report }
    }

    fn after(&mut self, arrays: &Arrays, calls: usize, report: CycleReport) {
        self.audit.calls(arrays.first_calls(calls));
        self.audit.events(arrays.first_events(report.events));
    }
}

/// One elastic thread with its application.
struct SimThread {
    service: EventLoop<Peer>,
    core: Rc<RefCell<Core<ThreadState>>>,
    /// The thread is busy with its last cycle until then.
    ready_us: u64,
}

/// A host.
pub struct Host {
    threads: Vec<SimThread>,
    device: SimDevice,
    /// The time when the host last ran, or when something arrived at its device.
    clock: VirtualClock,
    page: Arc<ControlPage>,
    plan: HostPlan,
    rng: Rng,
    wall: Rc<RefCell<Wall>>,
    shared: Arc<Shared>,
    /// Number of migrations that began.
    commands: u64,
    broker: Broker,
    /// Number of commands whose outcomes were checked.
    heard: usize,
    /// What was wrong when commands ended.
    broken: Vec<String>,
    /// When the guard checks threads whose applications are away.
    guard: Vec<Next>,
}

/// When a thread wants to run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Next {
    /// The thread.
    pub thread: usize,
    /// The time, µs.
    pub at_us: u64,
}

impl Host {
    /// Starts host `index` at `now_us`. Its threads listen, and will connect as planned.
    pub fn new(
        index: usize,
        (plan, families): (&HostPlan, Families),
        ledger: &Rc<RefCell<Ledger>>,
        servers: &Rc<[[NetAddr; 2]]>,
        now_us: u64,
        rng: &mut Rng,
    ) -> Host {
        let clock = VirtualClock::new(now_us);
        let mut rng = rng.fork();
        let config = config(index, plan, families, &mut rng);
        let hash = FlowHash::new(config.flow_hash_key);
        let options = SimOptions {
            mac: [2, 0, 0, 0, 0, index as u8 + 1],
            queues: plan.threads,
            ring: plan.ring,
            spread: spread(plan.spread, hash, &mut rng),
            promise: plan.promise.0,
            lag_us: Some(plan.promise.1),
            ..SimOptions::default()
        };
        let device = SimDevice::new(options, &clock);
        let options = RigOptions { config, sizes: None, clock: clock.clone() };
        let Rig { threads, shared, page } = Rig::new(options, device.nics());
        let wall = Wall::new((0..FLOW_GROUPS).map(|group| shared.owner(group)));
        let team = Team::new(plan.threads as u32);
        let mut host = Host {
            threads: Vec::new(),
            device,
            clock,
            page,
            plan: plan.clone(),
            rng,
            wall,
            shared,
            commands: 0,
            broker: Broker::default(),
            heard: 0,
            broken: Vec::new(),
            guard: Vec::new(),
        };
        host.shared.updates.set_source(Box::new(host.broker.clone()));
        for (number, thread) in threads.into_iter().enumerate() {
            let core = Core::new(thread, &host.clock, host.thread_state(number));
            let rng = host.rng.fork();
            let peer = Peer::new(ledger.clone(), servers.clone(), rng, now_us);
            let started = host.start(core, peer, number, &team);
            host.threads.push(started);
        }
        let plans = ledger.borrow().plans.clone();
        for (number, connection) in plans.iter().enumerate() {
            host.schedule(index, number, connection);
        }
        host
    }

    /// Plans what the host's applications do with a connection.
    fn schedule(&mut self, index: usize, number: usize, connection: &ConnectionPlan) {
        let (client, server) = (connection.client, connection.server);
        if connection.meets.is_none() {
            if client.0 == index {
                let (io, peer) = self.threads[client.1].service.parts();
                peer.schedule(io, number);
            }
            return;
        }
        // The thread that owns the flow group of these ports is unknown: all threads try.
        let role = if client.0 == index { Role::Client } else { Role::Server };
        for thread in self.threads.iter_mut().filter(|_| index == client.0 || index == server) {
            let (io, peer) = thread.service.parts();
            peer.schedule_meeting(io, number, role);
        }
    }

    fn thread_state(&self, thread: usize) -> ThreadState {
        let (rx_base, rx_len) = self.shared.memory.rx_area();
        let seed = self.clock.now_us() ^ u64::from(self.device.options().mac[5]) << 8;
        ThreadState {
            audit: Audit::new(rx_base as u64..(rx_base + rx_len) as u64, self.wall.clone(), thread),
            wait_us: 0,
            records: Vec::new(),
            life: self.plan.takes_orders.then(|| Life {
                broker: self.broker.clone(),
                run: 0,
                look_us: 0,
            }),
            rng: Rng::new(seed ^ thread as u64),
        }
    }

    fn start(
        &self,
        core: Core<ThreadState>,
        peer: Peer,
        thread: usize,
        team: &Team<Talk>,
    ) -> SimThread {
        let core = Rc::new(RefCell::new(core));
        let entered = ix_rig::enter(&core, thread);
        let mut service = EventLoop::in_team(entered, peer, team);
        // Of all addresses of both families.
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, PORT));
        service.listen(any, self.plan.backlog).expect("a fresh host has no listeners");
        SimThread { service, core, ready_us: self.clock.now_us() }
    }

    /// The network's end of the host's device.
    pub fn device(&self) -> &SimDevice {
        &self.device
    }

    /// Sets the time at which something happens to its device.
    pub fn set_now(&self, now_us: u64) {
        self.clock.set(now_us);
        self.device.tick();
    }

    /// Number of elastic threads.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// The earliest time at which this thread, which has work now, can run.
    pub fn earliest(&self, thread: usize, now_us: u64) -> u64 {
        self.threads[thread].ready_us.max(now_us)
    }

    /// Runs one cycle of a thread. Calls `next` for each thread that wants to run again.
    pub fn run(&mut self, thread: usize, now_us: u64, mut next: impl FnMut(Next)) {
        self.set_now(now_us);
        let running = &mut self.threads[thread];
        running.service.turn(Wait::Forever).expect("the dataplane runs its threads");
        let mut cost_us = self.rng.between(1, self.plan.cycle_us);
        if self.rng.chance(self.plan.stall) {
            cost_us += self.rng.below(self.plan.stall_us);
        }
        let ready_us = now_us + cost_us;
        running.ready_us = ready_us;
        if self.plan.is_guarded {
            let turns = (now_us + AWAY_US..ready_us).step_by(TURN_US);
            self.guard.extend(turns.take(TURNS_MAX).map(|at_us| Next { thread, at_us }));
        }
        let at_us = next_run_us(&mut running.core.borrow_mut(), ready_us);
        if at_us < u64::MAX {
            next(Next { thread, at_us });
        }
        self.wake_others(thread, ready_us, next);
    }

    /// The guard does the work of a thread whose application is still non-responsive.
    pub fn serve_non_responsive(&mut self, thread: usize, now_us: u64, mut next: impl FnMut(Next)) {
        let ready_us = self.threads[thread].ready_us;
        if ready_us <= now_us {
            return;
        }
        next(Next { thread, at_us: ready_us });
        self.set_now(now_us);
        self.threads[thread].core.borrow_mut().thread.elastic.turn_non_responsive(now_us);
        self.wake_others(thread, now_us, next);
    }

    /// When the guard comes again, as found since the last call.
    pub fn take_guard_turns(&mut self) -> Vec<Next> {
        std::mem::take(&mut self.guard)
    }

    fn wake_others(&self, thread: usize, ready_us: u64, mut next: impl FnMut(Next)) {
        for (other, sibling) in self.threads.iter().enumerate() {
            // A packet was forwarded: on Linux, an eventfd does this.
            let elastic = &mut sibling.core.borrow_mut().thread.elastic;
            if other != thread && (!elastic.may_sleep() || elastic.is_called()) {
                next(Next { thread: other, at_us: sibling.ready_us.max(ready_us) });
            }
        }
    }

    /// Moves flow groups to a thread. Returns the threads that have work.
    pub fn migrate(&mut self, groups: &GroupSet, to: usize) -> Vec<usize> {
        let mut begun = Vec::new();
        for (from, thread) in self.threads.iter().enumerate() {
            let theirs = groups.iter().filter(|group| self.shared.owner(*group) == from);
            let theirs: GroupSet = theirs.collect();
            let elastic = &mut thread.core.borrow_mut().thread.elastic;
            if !theirs.is_empty() && elastic.migrate(theirs, to, self.commands).is_ok() {
                self.commands += 1;
                begun.push(from);
            }
        }
        begun
    }

    /// Gives a command of the control plane. Returns the thread that reads it first.
    pub fn command(&mut self, order: &Order) -> usize {
        self.broker.say(order);
        // All sleeping threads are woken, and one of them is first.
        self.rng.below(self.threads.len() as u64) as usize
    }

    /// Checks the effect of each command that ended, without knowledge of the protocol.
    fn check_orders(&mut self) {
        for (command, outcome) in self.broker.heard_since(self.heard) {
            self.heard += 1;
            let groups =
                |thread: usize| self.threads[thread].core.borrow().thread.elastic.groups_here();
            let wrong = match (command, &outcome) {
                (None, _) => Some("a reply without a command".to_owned()),
                (Some(Command::Park { thread }), Outcome::Done) if !groups(thread).is_empty() => {
                    Some(format!("thread {thread} is parked with flow groups {}", groups(thread)))
                }
                (Some(Command::Resume { thread }), Outcome::Done) if groups(thread).is_empty() => {
                    Some(format!("thread {thread} was resumed and has no flow groups"))
                }
                _ => None,
            };
            self.broken.extend(wrong);
        }
    }

    /// Outcomes of the commands that ended, by name.
    pub fn orders_ended(&self) -> Vec<&'static str> {
        let name = |(command, outcome): (Option<Command>, Outcome)| match (outcome, command) {
            (Outcome::Refused(_), _) => "orders.refused",
            (Outcome::TimedOut(_), _) => "orders.undone",
            (Outcome::Done, Some(Command::Park { .. })) => "orders.parked",
            (Outcome::Done, Some(Command::Resume { .. })) => "orders.resumed",
            (Outcome::Done, Some(Command::Drain { .. })) => "orders.drained",
            (Outcome::Done, _) => "orders.migrated",
        };
        self.broker.heard_since(0).into_iter().map(name).collect()
    }

    /// What is wrong with commands at the end.
    pub fn unfinished_orders(&self) -> impl Iterator<Item = String> {
        let (said, heard) = (self.broker.said(), self.broker.heard_since(0).len());
        let twice = self.broker.answered_twice();
        let cares = self.threads[0].core.borrow().thread.elastic.needs_look();
        [
            (heard != said).then(|| format!("{heard} replies to {said} commands")),
            (twice > 0).then(|| format!("{twice} commands got two replies")),
            cares.then(|| "commands are not settled".to_owned()),
        ]
        .into_iter()
        .flatten()
    }

    /// What is wrong with migrations at the end.
    pub fn unfinished_moves(&self) -> impl Iterator<Item = String> {
        let cores = self.threads.iter().map(|thread| thread.core.borrow());
        let (mut ended, mut restless, mut groups) = (0, 0, 0);
        for core in cores {
            ended += core.watch.records.len() as u64;
            restless += usize::from(!core.thread.elastic.at_rest());
            groups += core.thread.elastic.groups_here().len();
        }
        let begun = self.commands;
        [
            (ended != begun).then(|| format!("{ended} records of {begun} migrations")),
            (restless > 0).then(|| format!("{restless} threads still move flow groups")),
            (groups != FLOW_GROUPS).then(|| format!("{groups} flow groups on all threads")),
        ]
        .into_iter()
        .flatten()
    }

    /// Migrations that ended, by how.
    pub fn moved(&self, end: MigrationEnd) -> u64 {
        let of = |thread: &SimThread| {
            let core = thread.core.borrow();
            core.watch.records.iter().filter(|record| record.end == end).count() as u64
        };
        self.threads.iter().map(of).sum()
    }

    /// Durations of all migrations, total and pauses, µs.
    pub fn moves_took_us(&self) -> [u64; 2] {
        let mut took_us = [0; 2];
        for thread in &self.threads {
            for record in &thread.core.borrow().watch.records {
                took_us[0] += u64::from(record.total_us);
                took_us[1] += u64::from(record.pause_us + record.descheduled_us);
            }
        }
        took_us
    }

    /// Counters of all threads.
    pub fn metrics(&self) -> Snapshot {
        Snapshot::of(&self.page)
    }

    /// Violations at the wall since the last call.
    pub fn take_violations(&mut self) -> Vec<String> {
        self.check_orders();
        let audits = self.threads.iter();
        let audits = audits.flat_map(|t| t.core.borrow_mut().watch.audit.take_violations());
        audits.chain(std::mem::take(&mut self.broken)).collect()
    }

    /// Flows that applications hold.
    pub fn live_flows(&self) -> usize {
        self.wall.borrow().live()
    }

    /// Connections that the library keeps.
    pub fn connections(&mut self) -> usize {
        self.threads.iter_mut().map(|t| t.service.io().connections()).sum()
    }
}

fn config(index: usize, plan: &HostPlan, families: Families, rng: &mut Rng) -> Config {
    let mut secret = [0; 16];
    secret[..8].copy_from_slice(&rng.next_u64().to_le_bytes());
    secret[8..].copy_from_slice(&rng.next_u64().to_le_bytes());
    let own = addresses(index).into_iter().zip([24, 64]).zip(families.has());
    let own = own.filter(|(_, has)| *has).map(|((address, bits), _)| (address.into(), bits));
    Config {
        host_addrs: own.collect(),
        cpus: (0..plan.threads as u32).collect(),
        batch: plan.batch,
        flow_hash_key: [rng.next_u64(), rng.next_u64()],
        secret,
        isn_secret: secret,
        address_check: rng.pick(&[AddressCheck::Off, AddressCheck::Announce]),
        rx_frames: plan.rx_frames,
        tx_frames: plan.tx_frames,
        arena_bytes: ARENA_BYTES * plan.threads,
        backlog: if plan.backlog == 0 { Config::default().backlog } else { plan.backlog },
        tcp: plan.tcp.clone(),
        mark_queue: plan.mark_queue,
        drop_queue: plan.drop_queue,
        ..Config::default()
    }
}

fn spread(plan: SpreadPlan, hash: FlowHash, rng: &mut Rng) -> Spread {
    match plan {
        SpreadPlan::First => Spread::First,
        SpreadPlan::Random => Spread::Random(rng.fork()),
        SpreadPlan::Table => Spread::Table(hash),
        SpreadPlan::Rss => {
            let mut key = [0; 40];
            while !reaches_all(&key) {
                key.fill_with(|| rng.next_u64() as u8);
            }
            Spread::Rss(key)
        }
    }
}

/// Whether a client's choice of a port affects the flow group. With a few keys it does not, and
/// then some threads cannot connect to some servers.
fn reaches_all(key: &[u8; 40]) -> bool {
    let toeplitz = Toeplitz::new(key);
    addresses(0).into_iter().zip(addresses(1)).all(|(local, remote)| {
        let tuple = |local_port| FlowTuple {
            local: local.into(),
            remote: remote.into(),
            local_port,
            remote_port: PORT,
        };
        let hash = |port| flow_group(toeplitz.hash(&tuple(port)).into());
        (0x8000..0x9000).map(hash).collect::<GroupSet>().len() == FLOW_GROUPS
    })
}
