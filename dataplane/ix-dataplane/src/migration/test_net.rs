//! Two hosts with several elastic threads each on one wire, and an application that knows what
//! every byte must be and hands its connections over as libix does.
use crate::config::{AddressCheck, Config};
use crate::cycle::ElasticThread;
use crate::flows::handle::FlowId;
use crate::observe::metrics::{ControlPage, Snapshot};
use crate::shared::Shared;
use crate::test_rig::{TestRig, TestThread};
use ix_abi::{
    CALLS_MAX, Call, CallError, Cookie, DeadReason, Endpoint, Event, Handle, SgArray, SgEntry, v4,
};
use ix_mem::Sizes;
use ix_proto::GroupSet;
use ix_proto::MigrationRecord;
use ix_random::Rng;
use ix_rig::{Arrays, SimDevice, SimOptions, VirtualClock};
use ix_wire::{FLOW_GROUPS, IpAddr};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

pub const FRAMES: usize = 2048;
pub const PORT: u16 = 80;
const STEP: usize = 2 << 20;
/// Length of the pattern that all streams are made of.
const PATTERN: usize = 60_013;

/// A byte of the pattern.
fn pattern(at: usize) -> u8 {
    (at.wrapping_mul(2_654_435_761) >> 11) as u8
}

/// Where the stream of a connection begins in the pattern; `up`: from the client.
fn key(client_port: u16, up: bool) -> usize {
    (usize::from(client_port) * 7919 + usize::from(up) * 12_347) % PATTERN
}

/// One side of a connection.
#[derive(Clone, Debug)]
pub struct Conn {
    pub handle: Handle,
    pub client: bool,
    pub client_port: u16,
    pub sent: usize,
    pub received: usize,
    pub total: usize,
    pub shut: bool,
    pub eof: bool,
}

/// The application of one elastic thread.
#[derive(Default)]
pub struct App {
    /// By cookie.
    pub conns: BTreeMap<Cookie, Conn>,
    next_cookie: u64,
    calls: Vec<Call>,
    /// Connections that other threads have handed over.
    pub mailbox: Vec<Conn>,
    pub ended: usize,
    pub dead: usize,
    pub arrived: usize,
}

pub struct Thread {
    pub elastic: ElasticThread,
    arrays: Arrays,
    pub app: App,
    pub records: Vec<MigrationRecord>,
    scratch: u64,
    base: u64,
}

pub struct Host {
    pub device: SimDevice,
    pub threads: Vec<Thread>,
    pub shared: Arc<Shared>,
    page: Arc<ControlPage>,
    /// Bytes that each side of a connection sends.
    pub bytes: usize,
    pub commands: u64,
    /// The application sends nothing for now.
    pub idle: bool,
}

/// The configuration of a host.
#[derive(Clone)]
pub struct Kind {
    pub last: u8,
    pub threads: usize,
    pub options: SimOptions,
    pub bytes: usize,
    pub config: fn(&mut Config),
}

pub fn ip(last: u8) -> IpAddr {
    IpAddr::v4([10, 0, 0, last])
}

impl Host {
    pub fn new(kind: &Kind) -> Host {
        let threads = kind.threads;
        let mac = [2, 0, 0, 0, 0, kind.last];
        let options = SimOptions { queues: threads, mac, ..kind.options.clone() };
        let mut config = Config {
            host_addrs: vec![(ip(kind.last), 24)],
            cpus: (0..threads as u32).collect(),
            address_check: AddressCheck::Off,
            arena_bytes: STEP,
            rx_frames: FRAMES,
            tx_frames: FRAMES,
            ..Config::default()
        };
        config.tcp.time_wait_us = 30_000;
        (kind.config)(&mut config);
        let device = SimDevice::new(options, &VirtualClock::default());
        let frames = FRAMES * threads;
        let sizes = Sizes { rx_frames: frames, tx_frames: frames, arena_bytes: STEP };
        let TestRig { threads, shared, page } = TestRig::new(config, sizes, &device);
        let (base, _) = shared.memory.arena();
        for at in 0..2 * PATTERN {
            // SAFETY: within the arena, which only this test writes.
            unsafe { *((base + at) as *mut u8) = pattern(at % PATTERN) };
        }
        let thread = |(i, TestThread { elastic, arrays }): (usize, TestThread)| {
            let scratch = (base + 2 * PATTERN).next_multiple_of(64) as u64
                + (i * CALLS_MAX * size_of::<SgEntry>()) as u64;
            let (app, records) = (App::default(), Vec::new());
            Thread { elastic, arrays, app, records, scratch, base: base as u64 }
        };
        let threads = threads.into_iter().enumerate().map(thread).collect();
        Host { device, threads, shared, page, bytes: kind.bytes, commands: 0, idle: false }
    }

    pub fn listen(&mut self) {
        for thread in &mut self.threads {
            let at = Endpoint { addr: v4([0; 4]), port: PORT };
            thread.app.calls.push(Call::Listen { at, backlog: 0, cookie: 0, holds: false });
        }
    }

    /// Opens a connection from a thread of this host.
    pub fn connect(&mut self, thread: usize, to: u8, total: usize) {
        let app = &mut self.threads[thread].app;
        app.next_cookie += 1;
        let cookie = cookie_of(thread, app.next_cookie);
        let conn = Conn {
            handle: 0,
            client: true,
            client_port: 0,
            sent: 0,
            received: 0,
            total,
            shut: false,
            eof: false,
        };
        app.conns.insert(cookie, conn);
        let to = Endpoint { addr: ip(to).0, port: PORT };
        app.calls.push(Call::Connect { cookie, to, congestion: None, local_port: 0 });
    }

    /// Moves groups to a thread, from whichever threads have them.
    pub fn migrate(&mut self, groups: &GroupSet, to: usize) -> usize {
        let mut begun = 0;
        for from in (0..self.threads.len()).filter(|from| *from != to) {
            let theirs: GroupSet =
                groups.iter().filter(|g| self.shared.owner(*g) == from).collect();
            if theirs.is_empty() {
                continue;
            }
            self.commands += 1;
            if self.threads[from].elastic.migrate(theirs, to, self.commands).is_ok() {
                begun += 1;
            } else {
                self.commands -= 1;
            }
        }
        begun
    }

    /// One cycle of a thread and its application.
    pub fn run(&mut self, thread: usize, now_us: u64) {
        let bytes = self.bytes;
        let running = &mut self.threads[thread];
        let calls = std::mem::take(&mut running.app.calls);
        for (slot, call) in calls.iter().enumerate() {
            running.arrays.set_call(slot, call.encode());
        }
        let report = running.elastic.run_cycle(calls.len(), now_us);
        running.records.extend(std::iter::from_fn(|| running.elastic.take_migration()));
        for (call, slot) in calls.iter().zip(running.arrays.first_calls(calls.len())) {
            running.app.answered(call, CallError::check(slot.ret));
        }
        let events = running.arrays.first_events(report.events);
        let events: Vec<Event> = events.map(|slot| Event::decode(&slot).unwrap()).collect();
        let mut leaving = Vec::new();
        for event in &events {
            running.event(thread, event, bytes);
            if let Event::GroupLeaves { group, to } = *event {
                leaving.push((group as u16, to as usize));
            } else if let Some(group) = group_of(event) {
                assert!(leaving.iter().all(|(g, _)| *g != group), "{event:?} after LEAVES");
            }
        }
        // Nothing more is sent on flows that leave, because the replies would come here.
        for (group, to) in leaving {
            let conns = running_conns(&mut self.threads[thread].app, group);
            self.threads[to].app.mailbox.extend(conns);
        }
        let running = &mut self.threads[thread];
        if !self.idle {
            running.app.pump((running.scratch, running.base));
        }
    }

    pub fn total(&self, name: &str) -> u64 {
        Snapshot::of(&self.page).total(name).unwrap()
    }

    pub fn count(&self, thread: usize, name: &str) -> u64 {
        Snapshot::of(&self.page).threads[thread].get(name).unwrap()
    }

    pub fn conns(&self) -> usize {
        self.threads.iter().map(|t| t.app.conns.len() + t.app.mailbox.len()).sum()
    }

    pub fn records(&self) -> Vec<MigrationRecord> {
        self.threads.iter().flat_map(|t| t.records.iter().copied()).collect()
    }
}

/// The cookie names the thread.
fn cookie_of(thread: usize, number: u64) -> Cookie {
    (thread as u64) << 48 | number
}

fn group_of(event: &Event) -> Option<u16> {
    let (Event::Knock { handle, .. }
    | Event::Connected { handle, .. }
    | Event::Recv { handle, .. }
    | Event::Eof { handle, .. }
    | Event::Sent { handle, .. }
    | Event::Dead { handle, .. }
    | Event::FlowError { handle, .. }) = *event
    else {
        return None;
    };
    Some(FlowId::from_handle(handle).group)
}

/// Removes the connections of a group from the application that loses it.
fn running_conns(app: &mut App, group: u16) -> Vec<Conn> {
    let of_it = |conn: &Conn| conn.handle != 0 && FlowId::from_handle(conn.handle).group == group;
    let cookies: Vec<u64> =
        app.conns.iter().filter(|(_, conn)| of_it(conn)).map(|(cookie, _)| *cookie).collect();
    cookies.iter().filter_map(|cookie| app.conns.remove(cookie)).collect()
}

impl App {
    fn answered(&mut self, call: &Call, answer: Result<u64, CallError>) {
        match (*call, answer) {
            (Call::Connect { cookie, .. }, Ok(handle)) => {
                self.conns.get_mut(&cookie).unwrap().handle = handle;
            }
            (Call::SendV { handle, .. }, answer) => {
                let conn = self.conns.values_mut().find(|conn| conn.handle == handle);
                match (answer, conn) {
                    (Ok(taken), Some(conn)) => conn.sent += taken as usize,
                    (Err(CallError::BadHandle), None) => {}
                    (answer, conn) => panic!("{answer:?} {call:?} {conn:?}"),
                }
            }
            (Call::Connect { .. }, Err(why)) => panic!("{why} {call:?}"),
            (_, Ok(_) | Err(CallError::BadHandle)) => {}
            (_, Err(why)) => panic!("{why} {call:?}"),
        }
    }

    /// The connection that an event to this thread names.
    fn named(&mut self, thread: usize, cookie: Cookie) -> &mut Conn {
        assert_eq!(cookie >> 48, thread as u64, "another thread's name: {cookie:x}");
        self.conns.get_mut(&cookie).unwrap_or_else(|| panic!("an event of nobody: {cookie:x}"))
    }

    /// Sends what there is to send, and ends connections that are done.
    fn pump(&mut self, (scratch, base): (u64, u64)) {
        let mut entries = 0;
        let mut calls = Vec::new();
        let mut over = Vec::new();
        for (cookie, conn) in &mut self.conns {
            if conn.handle == 0 || conn.client_port == 0 {
                continue;
            }
            let handle = conn.handle;
            if conn.sent < conn.total && entries < CALLS_MAX / 4 {
                let from = (key(conn.client_port, conn.client) + conn.sent) % PATTERN;
                let len = (conn.total - conn.sent).min(PATTERN) as u64;
                let at = scratch + (entries * size_of::<SgEntry>()) as u64;
                // SAFETY: this thread's scratch part of the arena.
                unsafe { *(at as *mut SgEntry) = SgEntry { base: base + from as u64, len } };
                calls.push(Call::SendV {
                    handle,
                    sg: SgArray { addr: at, entries: 1 },
                    fin: false,
                    eor: false,
                    done: 0,
                });
                entries += 1;
            } else if conn.sent == conn.total && !conn.shut {
                conn.shut = true;
                calls.push(Call::Shutdown { handle });
            } else if conn.eof && conn.shut {
                calls.push(Call::Close { handle });
                over.push(*cookie);
            }
        }
        self.calls.append(&mut calls);
        for cookie in over {
            let conn = self.conns.remove(&cookie).unwrap();
            assert_eq!((conn.received, conn.sent), (conn.total, conn.total));
            self.ended += 1;
        }
    }
}

impl Thread {
    /// Returns the result of one call, by a cycle of its own.
    pub fn ask(&mut self, call: Call, now_us: u64) -> Result<u64, CallError> {
        self.arrays.set_call(0, call.encode());
        self.elastic.begin(1, now_us);
        CallError::check(self.arrays.call(0).ret)
    }

    fn event(&mut self, index: usize, event: &Event, bytes: usize) {
        match *event {
            Event::GroupArrived { group, .. } => self.arrive(index, group as u16),
            Event::GroupLeaves { .. } => {}
            Event::Knock { handle, peer, .. } => {
                self.app.next_cookie += 1;
                let cookie = cookie_of(index, self.app.next_cookie);
                self.app.calls.push(Call::Accept { handle, cookie });
                let conn = Conn {
                    handle,
                    client: false,
                    client_port: peer.port,
                    sent: 0,
                    received: 0,
                    total: bytes,
                    shut: false,
                    eof: false,
                };
                self.app.conns.insert(cookie, conn);
            }
            Event::Connected { cookie, handle, outcome } => {
                assert_eq!(outcome, Ok(()));
                let client_port = port_of(&mut self.elastic, handle);
                let conn = self.app.named(index, cookie);
                (conn.handle, conn.client_port) = (handle, client_port);
            }
            Event::Recv { cookie, handle, data, .. } => {
                let conn = self.app.named(index, cookie);
                // SAFETY: received memory, ours until it is given back.
                let bytes = unsafe {
                    std::slice::from_raw_parts(data.addr as *const u8, data.len as usize)
                };
                let from = key(conn.client_port, !conn.client) + conn.received;
                for (at, byte) in bytes.iter().enumerate() {
                    assert_eq!(*byte, pattern((from + at) % PATTERN), "{conn:?}");
                }
                conn.received += bytes.len();
                self.app.calls.push(Call::RecvDone { handle, bytes: data.len.into() });
            }
            Event::Eof { cookie, .. } => {
                let conn = self.app.named(index, cookie);
                conn.eof = true;
                assert_eq!(conn.received, conn.total, "an early end");
            }
            Event::Sent { cookie, .. } => {
                self.app.named(index, cookie);
            }
            Event::Dead { cookie, reason, .. } => {
                let conn = self.app.named(index, cookie);
                // Both ends had closed in order before our CLOSE was carried out.
                let is_over = reason == DeadReason::Closed && conn.shut && conn.eof;
                assert!(is_over, "{event:?} {conn:?}");
                self.app.conns.remove(&cookie);
                self.app.ended += 1;
                self.app.dead += 1;
            }
            _ => panic!("{event:?}"),
        }
    }

    /// A group has arrived: its connections get this thread's names.
    fn arrive(&mut self, index: usize, group: u16) {
        self.app.arrived += 1;
        let mailbox = std::mem::take(&mut self.app.mailbox);
        for conn in mailbox {
            if FlowId::from_handle(conn.handle).group != group {
                self.app.mailbox.push(conn);
                continue;
            }
            self.app.next_cookie += 1;
            let cookie = cookie_of(index, self.app.next_cookie);
            self.app.calls.push(Call::SetCookie { handle: conn.handle, cookie });
            self.app.conns.insert(cookie, conn);
        }
    }
}

/// The local port, as the peer sees it.
fn port_of(elastic: &mut ElasticThread, handle: Handle) -> u16 {
    let flow = elastic.flows.get(FlowId::from_handle(handle));
    flow.map_or(0, |flow| flow.tcb.tuple().local_port)
}

/// Faults of the wire.
#[derive(Clone, Copy, Default)]
pub struct Faults {
    pub loss_percent: usize,
    pub late_percent: usize,
}

/// Two hosts on a wire, in virtual time.
pub struct TestNet {
    pub hosts: [Host; 2],
    pub now_us: u64,
    pub random: Rng,
    pub faults: Faults,
    flying: VecDeque<(u64, usize, Vec<u8>)>,
    /// A thread that stays in its application until this time.
    pub stuck: Option<(usize, usize, u64)>,
}

impl TestNet {
    pub fn new(client: &Kind, server: &Kind, seed: u64) -> TestNet {
        let mut hosts = [Host::new(client), Host::new(server)];
        hosts[1].listen();
        let mut net = TestNet {
            hosts,
            now_us: 1_000_000,
            random: Rng::new(seed),
            faults: Faults::default(),
            flying: VecDeque::new(),
            stuck: None,
        };
        net.spin(50);
        net
    }

    /// One cycle of a random thread.
    pub fn step(&mut self) {
        let host = self.random.index(2);
        let thread = self.random.index(self.hosts[host].threads.len());
        self.now_us += 1 + self.random.below(4);
        if self.stuck.is_some_and(|(h, t, until)| (h, t) == (host, thread) && self.now_us < until) {
            return;
        }
        self.run(host, thread);
    }

    pub fn run(&mut self, host: usize, thread: usize) {
        self.hosts[host].run(thread, self.now_us);
        // What one queue has sent may wait for the wire, and another queue may be faster.
        let sent = match self.random.chance(0.6) {
            true => self.hosts[host].device.take_sent(),
            false => Vec::new(),
        };
        for (_, frame) in sent {
            if self.random.chance(self.faults.loss_percent as f64 / 100.0) {
                continue;
            }
            let late = self.random.chance(self.faults.late_percent as f64 / 100.0);
            let delay_us = if late { 200 + self.random.below(400) } else { 3 };
            self.flying.push_back((self.now_us + delay_us, 1 - host, frame));
        }
        let now_us = self.now_us;
        // In order of sending where the delay is the same.
        self.flying.retain_mut(|(at_us, to, frame)| {
            let due = *at_us <= now_us;
            if due {
                self.hosts[*to].device.deliver(std::mem::take(frame));
            }
            !due
        });
    }

    pub fn spin(&mut self, steps: usize) {
        for _ in 0..steps {
            self.step();
        }
    }

    /// Moves some groups of a host to a random thread.
    pub fn migrate_some(&mut self, host: usize, most: usize) -> usize {
        let threads = self.hosts[host].threads.len();
        let to = self.random.index(threads);
        let count = 1 + self.random.index(most);
        let groups: GroupSet = (0..count).map(|_| self.random.index(FLOW_GROUPS)).collect();
        self.hosts[host].migrate(&groups, to)
    }

    pub fn conns(&self) -> usize {
        self.hosts.iter().map(Host::conns).sum()
    }

    /// Runs until all connections have ended and nothing is left of them or of any migration.
    pub fn finish(&mut self) {
        self.faults = Faults::default();
        self.stuck = None;
        let mut rounds = 0;
        while self.conns() > 0 {
            self.spin(100);
            rounds += 1;
            assert!(rounds < 100_000, "{} connections do not end", self.conns());
        }
        // TIME-WAIT, and stale entries of timers.
        for _ in 0..400 {
            self.spin(30);
            self.now_us += 10_000;
        }
        for host in &mut self.hosts {
            for thread in &mut host.threads {
                thread.elastic.run_housekeeping(self.now_us, true);
            }
            for name in [
                "flows",
                "time_wait",
                "orphans",
                "half_open",
                "rx_frames_in_use",
                "tx_frames_in_use",
                "wheel_entries",
                "misrouted",
            ] {
                let each: Vec<u64> = (0..host.threads.len()).map(|i| host.count(i, name)).collect();
                assert_eq!(host.total(name), 0, "{name} {each:?}");
            }
            for thread in &host.threads {
                assert!(thread.elastic.at_rest());
            }
            let mut commands: Vec<u64> = host.records().iter().map(|r| r.command).collect();
            commands.sort_unstable();
            assert!(commands.iter().copied().eq(1..=host.commands), "a record for each command");
            for group in 0..FLOW_GROUPS {
                let here = |t: &Thread| t.elastic.flows.groups[group].is_some();
                let owners: Vec<usize> =
                    (0..host.threads.len()).filter(|i| here(&host.threads[*i])).collect();
                assert_eq!(owners, [host.shared.owner(group)]);
            }
        }
    }
}
