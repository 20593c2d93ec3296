//! The connection engine by itself, used as the load generator does: bytes are asked for when they
//! can go out.
use ix_abi::FlowOption;
use libix::Dead;
use libix::engine::{Ending, Engine, Observer, User, tell};
use libix::loopback::{Config, Loopback};
use libix::raw::{Event, Wait, call};
use proptest::prelude::*;
use std::net::{IpAddr, SocketAddr};

fn at(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

/// Byte `position` of every stream.
fn byte(position: usize) -> u8 {
    (position.wrapping_mul(31) ^ (position >> 8)) as u8
}

struct Attached;

impl User for Attached {
    type Connection = Transfer;
    type Socket = ();
    type Call = u32;
}

/// What a connection has to do.
struct Transfer {
    /// Bytes to send in all, and how many were given.
    total: usize,
    given: usize,
    seen: usize,
}

/// One end, which accepts all and sends `total` bytes on each connection.
struct End {
    engine: Engine<Attached>,
    total: usize,
    finished: usize,
    answered: Vec<u32>,
    dead: Vec<Dead>,
    /// Cookies of connections that are gone.
    gone: Vec<u64>,
}

impl End {
    fn new(model: &Loopback, thread: u32, total: usize) -> End {
        let engine = Engine::new(model.enter(thread).unwrap());
        End { engine, total, finished: 0, answered: vec![], dead: vec![], gone: vec![] }
    }

    fn transfer(&self) -> Transfer {
        Transfer { total: self.total, given: 0, seen: 0 }
    }

    fn turn(&mut self) {
        self.engine.refill();
        self.engine.emit(|_, connection, tx| {
            let Transfer { total, given, .. } = connection.state;
            if !connection.is_established() || !connection.can_send() {
                return false;
            }
            if connection.unsent_bytes() > 0 || given == total {
                return false;
            }
            let piece: Vec<u8> = (given..total.min(given + 3000)).map(byte).collect();
            let taken = connection.write(tx, &piece);
            connection.state.given += taken;
            if connection.state.given == total {
                connection.shutdown();
            }
            taken < piece.len()
        });
        self.engine.run_io(Wait::Poll).unwrap();
        while let Some((_, tag, _)) = self.engine.next_answer() {
            self.answered.push(tag);
        }
        tell(self);
        assert!(self.gone.iter().all(|cookie| self.engine.get(*cookie).is_none()));
    }
}

impl Observer for End {
    type User = Attached;

    fn engine(&mut self) -> &mut Engine<Attached> {
        &mut self.engine
    }

    fn received(&mut self, cookie: u64) {
        let Some(connection) = self.engine.get_mut(cookie) else { return };
        let (transfer, pieces) = connection.state_and_received();
        for piece in pieces {
            assert!(piece.iter().zip(transfer.seen..).all(|(value, place)| *value == byte(place)));
            transfer.seen += piece.len();
        }
        connection.consume(usize::MAX);
        self.engine.touch(cookie);
    }

    fn sent(&mut self, cookie: u64, _: u32) {
        self.engine.visit(cookie);
    }

    fn connected(&mut self, cookie: u64) {
        self.engine.visit(cookie);
    }

    fn ended(&mut self, cookie: u64) {
        self.engine.visit(cookie);
    }

    fn dead(&mut self, cookie: u64, why: Dead) {
        let transfer = &self.engine.get(cookie).unwrap().state;
        self.finished += usize::from(transfer.given == transfer.total);
        self.dead.push(why);
        self.gone.push(cookie);
    }

    fn knocked(&mut self, _: u64, handle: u64, peer: SocketAddr) {
        let transfer = self.transfer();
        let cookie = self.engine.accept(handle, peer, transfer);
        self.engine.visit(cookie);
    }

    fn datagram(&mut self, _: u64, _: SocketAddr, _: IpAddr, _: &[u8]) {}

    fn other(&mut self, _: Event) {}
}

fn listening(model: &Loopback, total: usize) -> End {
    let mut server = End::new(model, 0, total);
    let listener = server.engine.listen(at(7), 0);
    server.turn();
    assert_eq!(server.engine.listener_outcome(listener), Some(Ok(())));
    server
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    /// Both ends send and end in order, whatever the window takes and the dataplane refuses.
    #[test]
    fn both_streams_arrive_whole(
        seed in 1..u64::MAX,
        window_bytes in 500..40_000u64,
        refuse_one_in in prop_oneof![Just(0u64), 2..5u64],
        there in 1..30_000usize,
        back in 1..30_000usize,
        connections in 1..8usize,
    ) {
        let config = Config { seed, window_bytes, refuse_one_in, tx_steps: 2, ..Config::default() };
        let model = Loopback::new(2, config);
        let mut server = listening(&model, back);
        let mut client = End::new(&model, 1, there);
        for _ in 0..connections {
            let transfer = client.transfer();
            client.engine.connect(at(7), 0, transfer);
        }
        for _ in 0..20_000 {
            client.turn();
            server.turn();
            if model.flows() == 0 && client.engine.is_empty() && server.engine.is_empty() {
                break;
            }
        }
        // The last buffers go back at the cycle after the end.
        client.turn();
        server.turn();
        prop_assert_eq!((client.finished, server.finished), (connections, connections));
        prop_assert!(client.dead.iter().chain(&server.dead).all(|why| *why == Dead::Closed));
        prop_assert_eq!(model.held_buffers(), 0);
    }
}

#[test]
fn a_reset_ends_both_ends_and_their_cookies() {
    let model = Loopback::new(2, Config::default());
    let mut server = listening(&model, 100_000);
    let mut client = End::new(&model, 1, 10);
    let transfer = client.transfer();
    let cookie = client.engine.connect(at(7), 0, transfer);
    for _ in 0..3 {
        client.turn();
        server.turn();
    }
    client.engine.end(cookie, Ending::Abort);
    for _ in 0..3 {
        client.turn();
        server.turn();
    }
    assert!(client.engine.get(cookie).is_none() && client.engine.is_empty());
    assert_eq!((&server.dead[..], server.engine.len()), (&[Dead::Reset][..], 0));
    assert_eq!((model.flows(), model.held_buffers()), (0, 0));
}

#[test]
fn a_listener_that_is_ended_before_it_has_a_name_ends() {
    let model = Loopback::new(2, Config::default());
    let mut server = End::new(&model, 0, 1);
    let listener = server.engine.listen(at(7), 0);
    server.engine.unlisten(listener);
    server.turn();
    server.turn();
    let mut client = End::new(&model, 1, 1);
    let transfer = client.transfer();
    client.engine.connect(at(7), 0, transfer);
    for _ in 0..3 {
        client.turn();
        server.turn();
    }
    assert_eq!(client.dead, [Dead::NotConnected(libix::Error::Refused)]);
}

#[test]
fn the_user_hears_the_answers_of_its_own_calls_only() {
    let model = Loopback::new(1, Config::default());
    let mut end = listening(&model, 1);
    end.engine.push(call::timer_set(1, 1000), 5);
    end.engine.push(call::set_opt(77, FlowOption::Nagle(true)), 6);
    end.turn();
    assert_eq!(end.answered, [5, 6]);
}

#[test]
#[should_panic = "a call that the engine makes itself"]
fn calls_that_give_memory_back_are_the_engines() {
    let model = Loopback::new(1, Config::default());
    let mut end = listening(&model, 1);
    end.engine.push(call::recv_done(1, 1), 0);
}
