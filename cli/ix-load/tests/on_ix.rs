//! The dataplane's back end on the model of a dataplane within the process.
use ix_httpd::site::Site;
use ix_load::clock::Clock;
use ix_load::engine::{ClassSetup, Engine, Interval, Setup, Times};
use ix_load::ix::OnIx;
use ix_load::protocol::{Echo, Http, Protocol};
use ix_load::worker::Backend;
use ix_programs::{End, Service};
use libix::loopback::{Config, Loopback};
use libix::raw::Wait;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// Echoes streams.
struct EchoServer;

#[derive(Default)]
struct Stream(VecDeque<u8>);

impl Service for EchoServer {
    type Conn = Stream;

    fn open(&mut self) -> Option<Stream> {
        Some(Stream::default())
    }

    fn input(&mut self, conn: &mut Stream, data: &[u8], _: u64) {
        conn.0.extend(data);
        conn.0.make_contiguous();
    }

    fn output<'a>(&'a self, conn: &'a Stream) -> &'a [u8] {
        conn.0.as_slices().0
    }

    fn advance(&mut self, conn: &mut Stream, bytes: usize) {
        conn.0.drain(..bytes);
    }

    fn closed(&mut self, _: Stream, _: End) -> bool {
        false
    }
}

fn setup(connections: u32, depth: u32) -> Setup {
    Setup {
        classes: [ClassSetup { connections, depth }, ClassSetup::default()],
        open: [None, None],
        messages_per_connection: u64::MAX,
        timeout_ns: 10_000_000_000,
        drain_ns: 0,
        overdue_most: 0,
        seed: 1,
        noise_seed: 1,
        udp: false,
    }
}

/// Plays until so many messages were answered.
fn play(config: Config, setup: Setup, size: u32, messages: u64) -> Interval {
    let world = Loopback::new(2, config);
    let at: SocketAddr = "10.0.0.1:7".parse().expect("address");
    let server = ix_programs::ix::server(world.enter(0).expect("enter"), EchoServer, at);
    let mut server = server.expect("listen");
    let clock = Clock::calibrated();
    let total = setup.classes[0].connections as usize;
    let engine = Engine::new(Echo::new(size, 1, true), setup, clock.now_ns());
    let local = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
    let thread = world.enter(1).expect("enter");
    let client = OnIx::new(engine, thread, local, vec![at], true);
    answered(client, &clock, total, messages, || {
        server.turn(Wait::Poll).expect("turn");
    })
}

/// Runs a load until so many messages of its connections were answered; `turn` does the server's
/// part.
fn answered<P: Protocol>(
    mut client: OnIx<P>,
    clock: &Clock,
    connections: usize,
    messages: u64,
    mut turn: impl FnMut(),
) -> Interval {
    while client.engine().up() < connections {
        client.turn(clock).expect("turn");
        turn();
    }
    let start_ns = clock.now_ns();
    client.engine().start(Times { start_ns, from_ns: start_ns, to_ns: u64::MAX / 2 });
    let mut sum = Interval::default();
    while sum.classes[0].answers + client.engine().answers() < messages {
        sum.merge(client.engine().tick(clock.now_ns()).map(|i| *i).unwrap_or_default());
        client.turn(clock).expect("turn");
        turn();
        assert!(clock.now_ns() < start_ns + 60_000_000_000, "it hangs");
    }
    sum.merge(*client.engine().conclude(clock.now_ns()));
    client.finish().expect("finish");
    sum
}

fn without_errors(sum: &Interval) {
    let faults: Vec<_> = sum.counts.faults.kinds().collect();
    assert!(faults.is_empty(), "{faults:?}");
}

#[test]
fn echoes_of_all_sizes() {
    for (size, depth, messages) in [(1, 1, 500), (64, 4, 2000), (1500, 3, 500), (300_000, 2, 20)] {
        without_errors(&play(Config::default(), setup(7, depth), size, messages));
    }
}

/// Windows that take a part of a request, and calls that find no resources.
#[test]
fn narrow_windows_and_refused_calls() {
    for seed in 1..6 {
        let narrow = Config { seed, window_bytes: 700, step_bytes: 500, ..Config::default() };
        without_errors(&play(narrow, setup(5, 3), 1000, 200));
        let refusing = Config { seed, refuse_one_in: 3, ..Config::default() };
        without_errors(&play(refusing, setup(5, 3), 5000, 200));
    }
}

/// More requests than transmit memory: 2 MB for 30 connections of 8 messages of 100 KB.
#[test]
fn transmit_memory_runs_out() {
    let small = Config { tx_steps: 2, ..Config::default() };
    without_errors(&play(small, setup(30, 8), 100_000, 600));
}

#[test]
fn connections_are_reset_and_made_again() {
    let short = Setup { messages_per_connection: 2, ..setup(6, 2) };
    let sum = play(Config::default(), short, 64, 600);
    without_errors(&sum);
    assert!(sum.counts.opened >= 300 - 6, "{} connections", sum.counts.opened);
}

/// Gets a page from the back ends of another load, which has no connections of its own.
fn get(config: Config, setup: Setup, page_bytes: u64, messages: u64) -> Interval {
    let world = Loopback::new(2, config);
    let clock = Clock::calibrated();
    let http = || Http::new("10.0.0.1", &format!("/{page_bytes}"), true);
    let mut site = Site::new(1 << 20);
    site.add_synthetic(page_bytes).expect("a page");
    let (at, local) = ("10.0.0.1:8002".parse().expect("address"), Ipv4Addr::new(10, 0, 0, 2));
    let nobody = Setup { classes: [ClassSetup::default(); 2], ..setup.clone() };
    let engine = Engine::new(http(), nobody, clock.now_ns());
    let thread = world.enter(0).expect("enter");
    let mut back_ends = OnIx::new(engine, thread, Ipv4Addr::new(10, 0, 0, 1).into(), vec![], true);
    back_ends.serve(Arc::new(site), &[8001, 8002]);
    let connections = setup.classes[0].connections as usize;
    let engine = Engine::new(http(), setup, clock.now_ns());
    let thread = world.enter(1).expect("enter");
    for _ in 0..10 {
        back_ends.turn(&clock).expect("turn");
    }
    let client = OnIx::new(engine, thread, local.into(), vec![at], true);
    answered(client, &clock, connections, messages, || back_ends.turn(&clock).expect("turn"))
}

#[test]
fn pages_are_served_beside_the_load() {
    for (page_bytes, messages) in [(1, 2000), (1024, 2000), (300_000, 40)] {
        without_errors(&get(Config::default(), setup(7, 1), page_bytes, messages));
    }
    let narrow = Config { window_bytes: 700, step_bytes: 500, ..Config::default() };
    without_errors(&get(narrow, setup(5, 1), 5000, 200));
    let refusing = Config { refuse_one_in: 3, ..Config::default() };
    without_errors(&get(refusing, setup(5, 1), 1000, 200));
    let short = Setup { messages_per_connection: 1, ..setup(6, 1) };
    let sum = get(Config::default(), short, 1024, 600);
    without_errors(&sum);
    assert!(sum.counts.opened >= 600 - 6, "{} connections", sum.counts.opened);
}

#[test]
fn pages_beyond_the_transmit_memory_are_refused() {
    let world = Loopback::new(1, Config { tx_steps: 1, ..Config::default() });
    let (clock, mut site) = (Clock::calibrated(), Site::new(64 << 20));
    site.add_synthetic(32 << 20).expect("a page");
    let engine = Engine::new(Http::new("10.0.0.1", "/", true), setup(0, 1), clock.now_ns());
    let local = Ipv4Addr::new(10, 0, 0, 1).into();
    let mut load = OnIx::new(engine, world.enter(0).expect("enter"), local, vec![], true);
    load.serve(Arc::new(site), &[8001]);
    let refusal = loop {
        if let Err(refusal) = load.turn(&clock) {
            break refusal.to_string();
        }
    };
    assert!(refusal.contains("transmit memory"), "{refusal}");
}
