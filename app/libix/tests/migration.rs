//! Connections that move between event loops, on the model of a dataplane.
use ix_random::Rng;
use libix::Dead;
use libix::event::{Conn, EventLoop, Handler, Io, Lease, Release, Team};
use libix::loopback::{Config, Loopback};
use libix::raw::{Lent, Wait};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

fn at(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

/// Byte `position` of the stream of connection `name`.
fn byte(name: u64, position: usize) -> u8 {
    (position.wrapping_mul(31) ^ (position >> 8) ^ name as usize) as u8
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    Lend,
    Copy,
    ZeroCopy,
    Shared,
}

/// A connection's state; it knows its id, so that a service that mistook it would notice.
enum Role {
    Server { echoed: u64 },
    Client { name: u64, total: usize, sent: usize, seen: usize },
}

/// Server and client of any thread.
struct Echo {
    how: How,
    /// Ids of the connections that this thread was told of and that have not ended.
    live: BTreeSet<u64>,
    left: Vec<u64>,
    moved: (u64, u64),
    /// Connections that were accepted, and ends of such.
    served: (usize, usize),
    finished: usize,
    /// Ends of a client's connections that came too early.
    dead: Vec<Dead>,
    revoked: Vec<bool>,
    timers: Vec<u64>,
}

impl Echo {
    fn new(how: How) -> Echo {
        let live = BTreeSet::new();
        let (left, dead, revoked, timers) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Echo { how, live, left, moved: (0, 0), served: (0, 0), finished: 0, dead, revoked, timers }
    }

    fn pump(&mut self, conn: &mut Conn<'_, Role>) {
        let Role::Client { name, total, sent, .. } = conn.state_mut() else { return };
        let data: Vec<u8> = (*sent..*total).map(|i| byte(*name, i)).collect();
        let n = conn.send(&data);
        if let Role::Client { sent, .. } = conn.state_mut() {
            *sent += n;
        }
    }

    fn answer(&mut self, conn: &mut Conn<'_, Role>) {
        let before = conn.received_bytes();
        match self.how {
            How::Lend => {
                conn.send_received(before);
            }
            How::Copy => {
                let data: Vec<u8> = conn.received().flatten().copied().collect();
                let n = conn.send(&data);
                conn.consume(n);
            }
            How::ZeroCopy | How::Shared => {
                while conn.received_bytes() > 0 {
                    let Some(mut buf) = conn.alloc(3000) else { break };
                    let n = conn.received().map(|slice| buf.extend(slice)).sum();
                    conn.consume(n);
                    if self.how == How::ZeroCopy {
                        conn.send_zc(buf).unwrap();
                    } else {
                        let (buf, half) = (buf.share(), n / 2);
                        assert!(conn.send_shared(&buf, 0..half));
                        assert!(conn.send_shared(&buf, half..n));
                    }
                }
            }
        }
        let answered = before - conn.received_bytes();
        if let Role::Server { echoed } = conn.state_mut() {
            *echoed += answered as u64;
        }
    }

    fn ended(&mut self, id: u64) {
        assert!(self.live.remove(&id), "told of a connection that is not here");
    }
}

impl Handler for Echo {
    type State = Role;

    fn on_accept(&mut self, _: &mut Io<Role>, _: u64, _: SocketAddr) -> Option<Role> {
        self.served.0 += 1;
        Some(Role::Server { echoed: 0 })
    }

    fn on_connected(&mut self, conn: &mut Conn<'_, Role>) {
        self.live.insert(conn.id());
        self.pump(conn);
    }

    fn on_writable(&mut self, conn: &mut Conn<'_, Role>) {
        match conn.state() {
            Role::Server { .. } => self.answer(conn),
            Role::Client { .. } => self.pump(conn),
        }
    }

    fn on_readable(&mut self, conn: &mut Conn<'_, Role>) {
        assert!(self.live.contains(&conn.id()));
        let (state, data) = conn.state_and_received();
        let Role::Client { name, total, seen, .. } = state else {
            drop(data);
            return self.answer(conn);
        };
        let mut n = 0;
        for slice in data {
            for (i, &got) in slice.iter().enumerate() {
                assert_eq!(got, byte(*name, *seen + n + i), "{name}, {}", *seen + n + i);
            }
            n += slice.len();
        }
        *seen += n;
        let done = *seen == *total;
        conn.consume(n);
        if done {
            self.finished += 1;
            self.ended(conn.id());
            conn.close();
        }
    }

    fn on_eof(&mut self, conn: &mut Conn<'_, Role>) {
        assert!(matches!(conn.state(), Role::Server { .. }), "the server closed first");
        assert_eq!(conn.received_bytes(), 0);
        self.ended(conn.id());
        self.served.1 += 1;
        conn.close();
    }

    fn on_dead(&mut self, conn: &mut Conn<'_, Role>, why: Dead) {
        let was_live = self.live.remove(&conn.id());
        match (conn.state(), why) {
            (Role::Server { .. }, _) => {
                assert!(was_live, "told of a connection that is not here");
                self.served.1 += 1;
            }
            // No flow group is here, or none settled anywhere.
            (&Role::Client { name, total, .. }, Dead::NotConnected(_)) => {
                conn.io().connect(at(7), Role::Client { name, total, sent: 0, seen: 0 });
            }
            (Role::Client { .. }, why) => self.dead.push(why),
        }
    }

    fn on_migrate_out(&mut self, conn: &mut Conn<'_, Role>, _: u32) {
        // One that is being opened was not told of yet.
        self.live.remove(&conn.id());
        self.left.push(conn.id());
        self.moved.0 += 1;
    }

    fn on_migrate_in(&mut self, conn: &mut Conn<'_, Role>, from: u32) {
        assert_ne!(from, conn.io().thread_index());
        self.live.insert(conn.id());
        self.moved.1 += 1;
    }

    fn on_timer(&mut self, _: &mut Io<Role>, token: u64) {
        self.timers.push(token);
    }

    fn on_revoke(&mut self, _: &mut Io<Role>) {
        self.revoked.push(true);
    }

    fn on_restore(&mut self, _: &mut Io<Role>) {
        self.revoked.push(false);
    }
}

/// All threads of a model, each with a loop that listens.
struct Rig {
    model: Loopback,
    loops: Vec<EventLoop<Echo>>,
    groups: usize,
    random: Rng,
}

impl Rig {
    fn new(threads: usize, config: Config, how: How) -> Rig {
        let model = Loopback::new(threads, config);
        let team = Team::new(threads as u32);
        let mut loops: Vec<_> = (0..threads as u32)
            .map(|index| EventLoop::in_team(model.enter(index).unwrap(), Echo::new(how), &team))
            .collect();
        loops.iter_mut().for_each(|one| assert!(one.listen(at(7), 0).is_ok()));
        Rig { model, loops, groups: config.groups, random: Rng::new(config.seed) }
    }

    fn random(&mut self, below: usize) -> usize {
        self.random.index(below)
    }

    fn dial(&mut self, thread: usize, name: u64, total: usize) {
        let state = Role::Client { name, total, sent: 0, seen: 0 };
        self.loops[thread].io().connect(at(7), state);
    }

    fn migrate_some(&mut self, some: usize) {
        for _ in 0..some {
            let (group, to) = (self.random(self.groups), self.random(self.loops.len()));
            self.model.migrate(group, to);
        }
    }

    /// One cycle of some thread, or of each.
    fn turn(&mut self) {
        if self.random(2) == 0 {
            let one = self.random(self.loops.len());
            return self.loops[one].turn(Wait::Poll).unwrap();
        }
        self.loops.iter_mut().for_each(|one| one.turn(Wait::Poll).unwrap());
    }

    fn sum(&mut self, of: impl Fn(&mut Echo) -> usize) -> usize {
        self.loops.iter_mut().map(|one| of(one.handler())).sum()
    }

    /// Turns with migrations until nothing is left, and looks whether anything leaked.
    fn settle(&mut self, migrations: usize) {
        for turn in 0..400_000 {
            if turn % 3 == 0 {
                self.migrate_some(migrations);
            }
            self.turn();
            let here: usize = self.loops.iter_mut().map(|one| one.io().connections()).sum();
            if self.model.flows() == 0 && here == 0 {
                // The last migrations end, a few turns each, and then the last buffers go back:
                // the model keeps those of a dead flow while its thread has events to read.
                for _ in 0..20 {
                    self.loops.iter_mut().for_each(|one| one.turn(Wait::Poll).unwrap());
                }
                return self.has_nothing_left();
            }
        }
        let here: Vec<_> = self.loops.iter_mut().map(|one| one.io().connections()).collect();
        panic!("{} flows never ended, loops {here:?}", self.model.flows());
    }

    fn has_nothing_left(&mut self) {
        assert_eq!(self.model.held_buffers(), 0);
        assert_eq!(self.sum(|echo| echo.live.len()), 0);
        assert_eq!(self.sum(|echo| echo.served.0), self.sum(|echo| echo.served.1));
        let (out, arrived) = (self.sum(|e| e.moved.0 as usize), self.sum(|e| e.moved.1 as usize));
        assert_eq!(out, arrived);
        let left: Vec<u64> =
            self.loops.iter_mut().flat_map(|one| one.handler().left.clone()).collect();
        for one in &mut self.loops {
            assert!(left.iter().all(|&id| one.io().conn(id).is_none()), "an id came back");
        }
    }
}

fn how() -> impl Strategy<Value = How> {
    prop_oneof![Just(How::Lend), Just(How::Copy), Just(How::ZeroCopy), Just(How::Shared)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Random traffic, random migrations of all groups at all times.
    #[test]
    fn every_byte_comes_back_once_and_in_order(
        seed in 1..u64::MAX,
        how in how(),
        threads in 2..5usize,
        groups in 4..20usize,
        window_bytes in 1..40_000u64,
        step_bytes in 200..20_000u64,
        refuse_one_in in prop_oneof![Just(0u64), 2..5u64],
        send_limit in 100..50_000u64,
        migrations in 0..4usize,
        sizes in prop::collection::vec(1..30_000usize, 1..12),
    ) {
        let longest = sizes.iter().max().copied().unwrap_or(0) as u64;
        let window_bytes = window_bytes.max(longest / 8);
        let config = Config { seed, window_bytes, step_bytes, refuse_one_in, ..Config::default() };
        let mut rig = Rig::new(threads, Config { tx_steps: threads, groups, ..config }, how);
        rig.loops.iter_mut().for_each(|one| one.io().set_send_limit(send_limit));
        for (name, &total) in sizes.iter().enumerate() {
            let thread = rig.random(threads);
            rig.dial(thread, name as u64, total);
        }
        rig.settle(migrations);
        prop_assert_eq!(rig.sum(|echo| echo.finished), sizes.len());
        prop_assert_eq!(rig.sum(|echo| echo.dead.len()), 0);
    }

    /// The network fails meanwhile: each connection's end is told once, somewhere.
    #[test]
    fn ends_are_told_once_whoever_has_the_connection(
        seed in 1..u64::MAX,
        how in how(),
        turns in prop::collection::vec(0..20usize, 1..10),
    ) {
        let config = Config { seed, step_bytes: 2000, refuse_one_in: 7, ..Config::default() };
        let mut rig = Rig::new(3, config, how);
        let mut dialled = 0;
        for &turns in &turns {
            for thread in 0..3 {
                rig.dial(thread, dialled, 20_000);
                dialled += 1;
            }
            for _ in 0..turns {
                rig.migrate_some(2);
                rig.turn();
            }
            rig.model.reset_all();
        }
        rig.settle(1);
        prop_assert_eq!(rig.sum(|echo| echo.finished + echo.dead.len()), dialled as usize);
    }
}

/// More connections than the call array has room for, in few groups: new cookies, accepts and all
/// else take several cycles.
#[test]
fn very_many_connections_of_one_group() {
    for (migrations, seed) in [(0, 1), (1, 2), (2, 3)] {
        let config = Config { groups: 3, rx_buffers: 20_000, seed, ..Config::default() };
        let mut rig = Rig::new(2, config, How::Lend);
        for name in 0..2500 {
            rig.dial(0, name, 640);
        }
        rig.loops[0].turn(Wait::Poll).unwrap();
        rig.settle(migrations);
        assert_eq!((rig.sum(|echo| echo.finished), rig.sum(|echo| echo.dead.len())), (2500, 0));
        assert_eq!(migrations == 0, rig.sum(|echo| echo.moved.0 as usize) == 0);
    }
}

#[test]
fn a_loop_of_its_own_resets_what_it_cannot_take_along() {
    let model = Loopback::new(2, Config { groups: 2, ..Config::default() });
    let mut alone = EventLoop::new(model.enter(0).unwrap(), Echo::new(How::Copy));
    let mut other = EventLoop::new(model.enter(1).unwrap(), Echo::new(How::Copy));
    alone.listen(at(7), 0).unwrap();
    for name in 0..10 {
        other.io().connect(at(7), Role::Client { name, total: 1 << 20, sent: 0, seen: 0 });
    }
    for _ in 0..20 {
        alone.turn(Wait::Poll).unwrap();
        other.turn(Wait::Poll).unwrap();
    }
    assert!(model.migrate(0, 1));
    for _ in 0..20 {
        alone.turn(Wait::Poll).unwrap();
        other.turn(Wait::Poll).unwrap();
    }
    assert_eq!(alone.handler().served, (10, 10));
    assert_eq!(other.handler().dead, [Dead::Reset; 10]);
    assert_eq!((model.flows(), alone.io().connections(), other.io().connections()), (0, 0, 0));
}

#[test]
fn a_thread_hears_that_it_is_taken_away_and_given_back() {
    let mut rig = Rig::new(2, Config::default(), How::Copy);
    rig.model.revoke(1, ix_abi::Revoke::Goes);
    rig.model.revoke(1, ix_abi::Revoke::Back);
    rig.loops.iter_mut().for_each(|one| one.turn(Wait::Poll).unwrap());
    assert_eq!(rig.loops[1].handler().revoked, [true, false]);
    assert!(rig.loops[0].handler().revoked.is_empty());
}

#[test]
fn an_elastic_thread_works_in_the_background_and_comes_back() {
    let mut rig = Rig::new(2, Config { step_bytes: 500, ..Config::default() }, How::Lend);
    for name in 0..20 {
        rig.dial(name as usize % 2, name, 50_000);
    }
    (0..20).for_each(|_| rig.turn());
    let before = rig.loops[0].io().connections();
    assert!(before > 0);
    // The other thread of the model turns when we turn it.
    let Rig { model, loops, .. } = &mut rig;
    let [first, second] = &mut loops[..] else { panic!("two loops") };
    first.io().set_timer(5_000, 7);
    first.turn(Wait::Poll).unwrap();
    let told = first.in_background(|_| {
        for _ in 0..100 {
            second.turn(Wait::Poll).unwrap();
        }
        assert!(!model.migrate(0, 0), "nobody is there");
        (second.io().connections(), model.flows())
    });
    let (there, flows) = told.unwrap();
    assert_eq!((there, first.io().connections()), (flows, 0));
    assert!(first.handler().live.is_empty());
    while first.handler().timers.is_empty() {
        first.turn(Wait::Us(1000)).unwrap();
    }
    assert!(model.migrate(0, 0));
    rig.settle(1);
    assert_eq!(rig.sum(|echo| echo.finished), 20);
}

#[test]
fn the_last_thread_cannot_leave() {
    let model = Loopback::new(1, Config::default());
    let mut only = EventLoop::new(model.enter(0).unwrap(), Echo::new(How::Copy));
    assert_eq!(only.in_background(|_| panic!("ran")), Err(libix::Error::State));
}

/// Counts the leases that ended.
#[derive(Default)]
struct Owner(AtomicU64);

impl Release for Owner {
    fn release(&self, token: u64) {
        self.0.fetch_add(token, Relaxed);
    }
}

/// Sends lent memory, closes at once, and so lets the connection linger.
struct Lender {
    data: Option<Lent>,
    owner: &'static Owner,
    told: u64,
}

impl Handler for Lender {
    type State = ();

    fn on_accept(&mut self, _: &mut Io<()>, _: u64, _: SocketAddr) -> Option<()> {
        Some(())
    }

    fn on_connected(&mut self, conn: &mut Conn<'_, ()>) {
        let Some(data) = self.data else { return };
        conn.send(b"<");
        assert!(conn.send_lent(data, Lease::new(self.owner, 1)));
        conn.close();
    }

    fn on_readable(&mut self, conn: &mut Conn<'_, ()>) {
        let at = self.told as usize;
        let received = conn.received().flatten().copied();
        let right = received.enumerate().all(|(i, got)| at + i == 0 || got == byte(5, at + i - 1));
        assert!(right, "after {at} bytes");
        self.told += conn.received_bytes() as u64;
        conn.consume(usize::MAX);
    }

    fn on_migrate_out(&mut self, _: &mut Conn<'_, ()>, _: u32) {
        panic!("a connection that the service has closed is none of its business");
    }
}

#[test]
fn closed_connections_go_on_elsewhere_until_all_has_arrived() {
    let model = Loopback::new(3, Config { groups: 3, step_bytes: 3000, ..Config::default() });
    let (team, owner) = (Team::new(2), &*Box::leak(Box::<Owner>::default()));
    let mut first = model.enter(0).unwrap();
    let words = first.shared_memory(4 << 20).unwrap();
    for (at, word) in words.iter().enumerate() {
        let bytes = std::array::from_fn(|i| byte(5, 8 * at + i));
        word.store(u64::from_le_bytes(bytes), Relaxed);
    }
    let data = Lent::of(words, 0, 300_000);
    let lender = |data| Lender { data, owner, told: 0 };
    let mut loops = [
        EventLoop::in_team(first, lender(data), &team),
        EventLoop::in_team(model.enter(1).unwrap(), lender(data), &team),
        EventLoop::new(model.enter(2).unwrap(), lender(None)),
    ];
    loops[0].listen(at(7), 0).unwrap();
    loops[1].listen(at(7), 0).unwrap();
    loops[2].io().connect(at(7), ());
    let mut migrations = 0;
    for turn in 0..10_000 {
        for group in 0..2 {
            migrations += usize::from(model.migrate(group, turn % 2));
        }
        loops.iter_mut().for_each(|one| one.turn(Wait::Poll).unwrap());
        if model.flows() == 0 {
            break;
        }
    }
    loops.iter_mut().for_each(|one| one.turn(Wait::Poll).unwrap());
    assert_eq!((model.flows(), model.held_buffers(), owner.0.load(Relaxed)), (0, 0, 1));
    assert_eq!(loops[2].handler().told, 300_001);
    assert!(migrations > 50, "{migrations}");
    assert!(loops.iter_mut().all(|one| one.io().connections() == 0));
}
