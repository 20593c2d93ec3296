//! The event loop from the outside, on the model of a dataplane.
use libix::event::{Conn, EventLoop, Handler, Io};
use libix::loopback::{Config, Loopback};
use libix::raw::{Lent, Wait};
use libix::{Dead, Error};
use proptest::prelude::*;
use std::net::SocketAddr;

fn at(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

/// Byte `position` of the stream of connection `name`.
fn byte(name: u64, position: usize) -> u8 {
    (position.wrapping_mul(31) ^ (position >> 8) ^ name as usize) as u8
}

/// How a server answers what it received.
#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    Lend,
    Copy,
    ZeroCopy,
    Shared,
}

enum Role {
    Server,
    /// Sends `total` bytes in pieces of `piece`, wants the same back, then closes.
    Client {
        name: u64,
        total: usize,
        piece: usize,
        sent: usize,
        seen: usize,
    },
}

/// Echo server and client in one handler.
struct Echo {
    how: How,
    finished: usize,
    dead: Vec<Dead>,
}

impl Echo {
    fn new(how: How) -> Echo {
        Echo { how, finished: 0, dead: Vec::new() }
    }

    fn pump(&mut self, conn: &mut Conn<'_, Role>) {
        loop {
            let Role::Client { name, total, piece, sent, .. } = *conn.state() else { return };
            let end = (sent + piece).min(total);
            let data: Vec<u8> = (sent..end).map(|i| byte(name, i)).collect();
            let n = conn.send(&data);
            if let Role::Client { sent, .. } = conn.state_mut() {
                *sent += n;
            }
            if n < data.len() || sent + n == total {
                return;
            }
        }
    }

    /// Answers as much as there is room for.
    fn answer(&mut self, conn: &mut Conn<'_, Role>) {
        match self.how {
            How::Lend => {
                let all = conn.received_bytes();
                assert_eq!(conn.send_received(all), all);
            }
            How::Copy => {
                let data: Vec<u8> = conn.received().flatten().copied().collect();
                let n = conn.send(&data);
                conn.consume(n);
            }
            How::ZeroCopy | How::Shared => {
                let Some(mut buf) = conn.alloc(3000) else { return };
                let n = conn.received().map(|slice| buf.extend(slice)).sum();
                conn.consume(n);
                if self.how == How::ZeroCopy {
                    conn.send_zc(buf).unwrap();
                } else {
                    let (buf, half) = (buf.share(), n / 2);
                    assert!(conn.send_shared(&buf, 0..half) && conn.send_shared(&buf, half..n));
                }
                if conn.received_bytes() > 0 {
                    self.answer(conn);
                }
            }
        }
    }
}

impl Handler for Echo {
    type State = Role;

    fn on_accept(&mut self, _: &mut Io<Role>, _: u64, _: SocketAddr) -> Option<Role> {
        Some(Role::Server)
    }

    fn on_connected(&mut self, conn: &mut Conn<'_, Role>) {
        self.pump(conn);
    }

    fn on_writable(&mut self, conn: &mut Conn<'_, Role>) {
        match conn.state() {
            Role::Server => self.answer(conn),
            Role::Client { .. } => self.pump(conn),
        }
    }

    fn on_readable(&mut self, conn: &mut Conn<'_, Role>) {
        let (state, data) = conn.state_and_received();
        let Role::Client { name, total, seen, .. } = state else {
            drop(data);
            return self.answer(conn);
        };
        let mut n = 0;
        for slice in data {
            for (i, &got) in slice.iter().enumerate() {
                assert_eq!(got, byte(*name, *seen + n + i), "position {}", *seen + n + i);
            }
            n += slice.len();
        }
        *seen += n;
        let done = *seen == *total;
        conn.consume(n);
        if done {
            self.finished += 1;
            conn.close();
        }
    }

    fn on_eof(&mut self, conn: &mut Conn<'_, Role>) {
        assert!(matches!(conn.state(), Role::Server), "the server closed first");
        assert_eq!(conn.received_bytes(), 0);
        conn.close();
    }

    fn on_dead(&mut self, _: &mut Conn<'_, Role>, why: Dead) {
        self.dead.push(why);
    }
}

fn client(name: u64, total: usize, piece: usize) -> Role {
    Role::Client { name, total, piece, sent: 0, seen: 0 }
}

/// Turns both loops until nothing is left.
fn settle<A: Handler, B: Handler>(model: &Loopback, a: &mut EventLoop<A>, b: &mut EventLoop<B>) {
    for _ in 0..100_000 {
        a.turn(Wait::Poll).unwrap();
        b.turn(Wait::Poll).unwrap();
        if model.flows() == 0 && a.io().connections() + b.io().connections() == 0 {
            // The last buffers go back at the cycle after the end.
            a.turn(Wait::Poll).unwrap();
            b.turn(Wait::Poll).unwrap();
            assert_eq!(model.held_buffers(), 0);
            return;
        }
    }
    panic!("{} flows never ended", model.flows());
}

fn echo_pair(config: Config, how: How) -> (Loopback, EventLoop<Echo>, EventLoop<Echo>) {
    let model = Loopback::new(2, config);
    let mut server = EventLoop::new(model.enter(0).unwrap(), Echo::new(how));
    let client = EventLoop::new(model.enter(1).unwrap(), Echo::new(how));
    server.listen(at(7), 0).unwrap();
    (model, server, client)
}

fn how() -> impl Strategy<Value = How> {
    prop_oneof![Just(How::Lend), Just(How::Copy), Just(How::ZeroCopy), Just(How::Shared)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_byte_comes_back(
        seed in 1..u64::MAX,
        how in how(),
        window_bytes in 1..40_000u64,
        step_bytes in 200..20_000u64,
        refuse_one_in in prop_oneof![Just(0u64), 2..5u64],
        send_limit in 100..50_000u64,
        sizes in prop::collection::vec((1..30_000usize, 1..5_000usize), 1..12),
    ) {
        let longest = sizes.iter().map(|size| size.0 as u64).max().unwrap();
        let window_bytes = window_bytes.max(longest / 8);
        let config = Config { seed, window_bytes, step_bytes, refuse_one_in, ..Config::default() };
        let config = Config { tx_steps: 2, ..config };
        let (model, mut server, mut clients) = echo_pair(config, how);
        server.io().set_send_limit(send_limit);
        clients.io().set_send_limit(send_limit);
        for (name, &(total, piece)) in sizes.iter().enumerate() {
            clients.io().connect(at(7), client(name as u64, total, piece));
        }
        settle(&model, &mut server, &mut clients);
        prop_assert_eq!(clients.handler().finished, sizes.len());
        prop_assert!(clients.handler().dead.is_empty() && server.handler().dead.is_empty());
    }
}

/// Sends as much as it may, and notes the most that was on its way.
struct Flood {
    most_unacked: u64,
}

impl Handler for Flood {
    type State = ();

    fn on_connected(&mut self, conn: &mut Conn<'_, ()>) {
        self.on_writable(conn);
    }

    fn on_writable(&mut self, conn: &mut Conn<'_, ()>) {
        let data = [0; 64 << 10];
        while conn.send(&data) == data.len() {}
    }

    fn on_readable(&mut self, _: &mut Conn<'_, ()>) {}

    fn on_sent(&mut self, conn: &mut Conn<'_, ()>, _: u32) {
        self.most_unacked = self.most_unacked.max(conn.unacked_bytes());
    }
}

/// Reads all.
struct Drain;

impl Handler for Drain {
    type State = ();

    fn on_accept(&mut self, _: &mut Io<()>, _: u64, _: SocketAddr) -> Option<()> {
        Some(())
    }

    fn on_readable(&mut self, conn: &mut Conn<'_, ()>) {
        conn.consume(usize::MAX);
    }
}

/// The most that is on its way after many cycles, if the peer's window is 6 MiB.
fn flood(set: Option<u64>) -> u64 {
    let window_bytes = 6 << 20;
    let config = Config { window_bytes, step_bytes: 128 << 10, ..Config::default() };
    let model = Loopback::new(2, config);
    let mut server = EventLoop::new(model.enter(0).unwrap(), Drain);
    let mut client = EventLoop::new(model.enter(1).unwrap(), Flood { most_unacked: 0 });
    server.listen(at(7), 0).unwrap();
    if let Some(bytes) = set {
        client.io().set_send_limit(bytes);
    }
    client.io().connect(at(7), ());
    for _ in 0..1_000 {
        server.turn(Wait::Poll).unwrap();
        client.turn(Wait::Poll).unwrap();
    }
    client.io().abort_all();
    client.handler().most_unacked
}

#[test]
fn the_send_limit_grows_with_the_path_until_it_is_set() {
    assert!(flood(None) > 5 << 20, "{}", flood(None));
    assert!(flood(Some(1 << 20)) <= 1 << 20);
}

#[test]
fn writes_of_one_cycle_are_one_sendv() {
    let (model, mut server, mut clients) = echo_pair(Config::default(), How::Copy);
    clients.io().connect(at(7), client(1, 5000, 100));
    for _ in 0..3 {
        clients.turn(Wait::Poll).unwrap();
    }
    assert_eq!(model.sendv_calls(), 1, "fifty sends");
    settle(&model, &mut server, &mut clients);
}

#[test]
fn a_batch_larger_than_the_call_array() {
    let config = Config { rx_buffers: 20_000, ..Config::default() };
    let (model, mut server, mut clients) = echo_pair(config, How::Lend);
    for name in 0..5000 {
        clients.io().connect(at(7), client(name, 64, 64));
    }
    settle(&model, &mut server, &mut clients);
    assert_eq!(clients.handler().finished, 5000);
}

#[test]
fn starving_for_transmit_memory_ends() {
    // One step a thread, and far more to send than that.
    let config = Config { tx_steps: 2, window_bytes: 1 << 20, ..Config::default() };
    for how in [How::Copy, How::ZeroCopy] {
        let (model, mut server, mut clients) = echo_pair(config, how);
        for name in 0..20 {
            clients.io().connect(at(7), client(name, 300_000, 100_000));
        }
        settle(&model, &mut server, &mut clients);
        assert_eq!(clients.handler().finished, 20);
        clients.io().abort_all();
    }
}

#[test]
fn refused_and_reset() {
    let (model, mut server, mut clients) = echo_pair(Config::default(), How::Copy);
    clients.io().connect(at(8), client(0, 1, 1));
    settle(&model, &mut server, &mut clients);
    assert_eq!(clients.handler().dead, [Dead::NotConnected(Error::Refused)]);

    clients.handler().dead.clear();
    for name in 0..10 {
        clients.io().connect(at(7), client(name, 1 << 20, 1000));
    }
    for _ in 0..5 {
        clients.turn(Wait::Poll).unwrap();
        server.turn(Wait::Poll).unwrap();
    }
    model.reset_all();
    settle(&model, &mut server, &mut clients);
    assert_eq!(clients.handler().dead, [Dead::Reset; 10]);
    assert_eq!(server.handler().dead.len(), 10);

    // One side alone: the other hears of it.
    server.handler().dead.clear();
    let id = clients.io().connect(at(7), client(1, 1 << 20, 1000));
    for _ in 0..5 {
        clients.turn(Wait::Poll).unwrap();
        server.turn(Wait::Poll).unwrap();
    }
    clients.io().conn(id).unwrap().abort();
    assert!(clients.io().conn(id).is_none());
    settle(&model, &mut server, &mut clients);
    assert_eq!(server.handler().dead, [Dead::Reset]);
}

#[test]
fn abort_before_the_dataplane_has_answered() {
    let (model, mut server, mut clients) = echo_pair(Config::default(), How::Copy);
    let id = clients.io().connect(at(7), client(1, 100, 100));
    clients.io().conn(id).unwrap().abort();
    settle(&model, &mut server, &mut clients);
    let id = clients.io().connect(at(7), client(1, 100, 100));
    clients.io().conn(id).unwrap().close();
    settle(&model, &mut server, &mut clients);
    assert_eq!(clients.handler().finished, 0);
}

#[test]
fn ports_are_taken_once_a_thread() {
    let (_model, mut server, mut other) = echo_pair(Config::default(), How::Copy);
    assert_eq!(server.listen(at(7), 0).err(), Some(Error::InUse));
    let listener = other.listen(at(7), 0).unwrap();
    other.io().unlisten(listener);
    other.listen(at(7), 0).unwrap();
}

/// Collects what it reads; returns its length at the end of the stream.
struct Sum {
    heard: Vec<Vec<u8>>,
    question: &'static [u8],
}

impl Handler for Sum {
    type State = ();

    fn on_accept(&mut self, _: &mut Io<()>, _: u64, _: SocketAddr) -> Option<()> {
        Some(())
    }

    fn on_connected(&mut self, conn: &mut Conn<'_, ()>) {
        if !self.question.is_empty() {
            conn.send(self.question);
            conn.shutdown();
            assert_eq!(conn.send(b"too late"), 0);
        }
    }

    fn on_readable(&mut self, _: &mut Conn<'_, ()>) {}

    fn on_eof(&mut self, conn: &mut Conn<'_, ()>) {
        let mut data = vec![0; conn.received_bytes()];
        assert_eq!(conn.read(&mut data), data.len());
        if self.question.is_empty() {
            conn.send(data.len().to_string().as_bytes());
        }
        self.heard.push(data);
        conn.close();
    }
}

#[test]
fn half_close_and_bytes_left_for_later() {
    let model = Loopback::new(2, Config { step_bytes: 7, ..Config::default() });
    let sum = |question| Sum { heard: Vec::new(), question };
    let mut server = EventLoop::new(model.enter(0).unwrap(), sum(b""));
    let mut asker = EventLoop::new(model.enter(1).unwrap(), sum(b"how long is this?"));
    server.listen("0.0.0.0:9".parse().unwrap(), 0).unwrap();
    asker.io().connect(at(9), ());
    settle(&model, &mut server, &mut asker);
    assert_eq!(server.handler().heard, [b"how long is this?"]);
    assert_eq!(asker.handler().heard, [b"17"]);
}

struct Clock {
    fired: Vec<(u64, u64)>,
}

impl Handler for Clock {
    type State = ();
    fn on_readable(&mut self, _: &mut Conn<'_, ()>) {}
    fn on_timer(&mut self, io: &mut Io<()>, token: u64) {
        self.fired.push((io.now_us(), token));
        if token == 3 {
            io.stop();
        }
    }
}

#[test]
fn timers() {
    let model = Loopback::new(1, Config { refuse_one_in: 2, ..Config::default() });
    let mut clock = EventLoop::new(model.enter(0).unwrap(), Clock { fired: Vec::new() });
    let io = clock.io();
    let start_us = io.now_us();
    io.set_timer(50_000, 2);
    io.set_timer(1000, 1);
    io.set_timer(90_000, 3);
    // Cancelled before and after the dataplane has named it.
    let unnamed = io.set_timer(2000, 99);
    assert!(io.cancel_timer(unnamed) && !io.cancel_timer(unnamed));
    let named = io.set_timer(60_000, 98);
    clock.turn(Wait::Poll).unwrap();
    clock.turn(Wait::Poll).unwrap();
    assert!(clock.io().cancel_timer(named));
    clock.run().unwrap();
    let fired = &clock.handler().fired;
    assert_eq!(fired.iter().map(|fired| fired.1).collect::<Vec<_>>(), [1, 2, 3]);
    for (&(now_us, _), delay_us) in fired.iter().zip([1000, 50_000, 90_000]) {
        assert!(now_us >= start_us + delay_us);
    }
}

#[test]
fn an_elastic_thread_is_entered_once() {
    let model = Loopback::new(1, Config::default());
    let first = model.enter(0).unwrap();
    assert!(model.enter(0).is_err());
    drop(first);
    model.enter(0).unwrap();
    assert!(model.enter(1).is_err());
}

#[test]
fn a_full_window_is_waited_for() {
    let config = Config { step_bytes: 0, window_bytes: 100, ..Config::default() };
    let (model, _server, mut clients) = echo_pair(config, How::Copy);
    clients.io().connect(at(7), client(1, 5000, 1000));
    for _ in 0..50 {
        clients.turn(Wait::Poll).unwrap();
    }
    assert_eq!(model.sendv_calls(), 1, "nothing was acknowledged, nothing is to be tried");
}

#[test]
fn a_cycle_does_not_sleep_on_unfinished_batches() {
    let model = Loopback::new(1, Config::default());
    let mut clock = EventLoop::new(model.enter(0).unwrap(), Clock { fired: Vec::new() });
    let start_us = clock.io().now_us();
    for _ in 0..3000 {
        clock.io().set_timer(1_000_000, 1);
    }
    clock.turn(Wait::Forever).unwrap();
    assert!(clock.io().now_us() < start_us + 1000, "slept with calls in hand");
    clock.turn(Wait::Forever).unwrap();
    assert!(clock.io().now_us() >= start_us + 1_000_000);
}

#[test]
fn fin_does_not_wait_for_an_acknowledgement() {
    let config = Config { step_bytes: 0, ..Config::default() };
    let (model, _server, mut clients) = echo_pair(config, How::Copy);
    let id = clients.io().connect(at(7), Role::Server);
    for _ in 0..5 {
        clients.turn(Wait::Poll).unwrap();
    }
    let mut conn = clients.io().conn(id).expect("connected");
    assert_eq!(conn.send(b"the end"), 7);
    conn.close();
    assert_eq!((model.sendv_calls(), model.fins()), (0, 0));
    clients.turn(Wait::Poll).unwrap();
    assert_eq!((model.sendv_calls(), model.fins()), (1, 1), "FIN goes with the last bytes");
}

/// The dataplane bounds what its users have closed. It hears of it once, of those that still have
/// something to send.
#[test]
fn the_dataplane_hears_of_what_is_closed_and_unsent() {
    let config = Config { step_bytes: 0, window_bytes: 100, ..Config::default() };
    let (model, _server, mut clients) = echo_pair(config, How::Copy);
    for (bytes, told) in [(0, 0), (500, 1)] {
        let before = model.closed();
        let id = clients.io().connect(at(7), Role::Server);
        for _ in 0..5 {
            clients.turn(Wait::Poll).unwrap();
        }
        let mut conn = clients.io().conn(id).expect("connected");
        conn.send(&[7; 500][..bytes]);
        conn.close();
        for _ in 0..5 {
            clients.turn(Wait::Poll).unwrap();
        }
        assert_eq!(model.closed() - before, told);
    }
}

/// Counts the leases that ended, by token.
#[derive(Default)]
struct Owner(std::sync::atomic::AtomicU64);

impl libix::event::Release for Owner {
    fn release(&self, token: u64) {
        self.0.fetch_add(token, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Sends the same lent memory several times to each client that connects.
struct Lender {
    data: Lent,
    owner: &'static Owner,
}

impl Handler for Lender {
    type State = ();

    fn on_accept(&mut self, _: &mut Io<()>, _: u64, _: SocketAddr) -> Option<()> {
        Some(())
    }

    fn on_connected(&mut self, conn: &mut Conn<'_, ()>) {
        for token in [1, 10, 100] {
            conn.send(b"<");
            let lease = libix::event::Lease::new(self.owner, token);
            assert!(conn.send_lent(self.data, lease));
        }
        conn.shutdown();
    }

    fn on_readable(&mut self, _: &mut Conn<'_, ()>) {}
}

#[test]
fn lent_memory_is_held_until_acknowledged_or_the_connection_is_gone() {
    use std::sync::atomic::Ordering::Relaxed;
    let model = Loopback::new(2, Config::default());
    let mut thread = model.enter(0).unwrap();
    let words = thread.shared_memory(4 << 20).unwrap();
    for (at, word) in words.iter().enumerate() {
        let bytes = std::array::from_fn(|i| byte(5, 8 * at + i));
        word.store(u64::from_le_bytes(bytes), Relaxed);
    }
    let data = Lent::of(words, 0, 100_000).unwrap();
    let owner: &'static Owner = Box::leak(Box::default());
    let mut lender = EventLoop::new(thread, Lender { data, owner });
    lender.listen(at(7), 0).unwrap();
    let sum = Sum { heard: Vec::new(), question: b"?" };
    let mut asker = EventLoop::new(model.enter(1).unwrap(), sum);
    asker.io().connect(at(7), ());
    settle(&model, &mut lender, &mut asker);
    assert_eq!(owner.0.load(Relaxed), 111);
    let whole: Vec<u8> = (0..100_000).map(|i| byte(5, i)).collect();
    let heard = asker.handler().heard.concat();
    assert_eq!(heard.len(), 3 * 100_001);
    assert!(heard.chunks(100_001).all(|part| part[0] == b'<' && part[1..] == whole[..]));

    asker.io().connect(at(7), ());
    while lender.io().connections() == 0 {
        asker.turn(Wait::Poll).unwrap();
        lender.turn(Wait::Poll).unwrap();
    }
    assert!(owner.0.load(Relaxed) < 222);
    model.reset_all();
    settle(&model, &mut lender, &mut asker);
    assert_eq!(owner.0.load(Relaxed), 222);
}
