//! Datagrams of the event loop, on the model of a dataplane.
use libix::Error;
use libix::event::{Conn, EventLoop, Handler, Io};
use libix::loopback::{Config, Loopback};
use libix::raw::Wait;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::net::SocketAddr;

fn at(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

/// Answers every datagram by itself, or keeps what it hears.
#[derive(Default)]
struct Peer {
    echo: bool,
    heard: Vec<(u64, SocketAddr, Vec<u8>)>,
}

impl Handler for Peer {
    type State = ();

    fn on_readable(&mut self, _: &mut Conn<'_, ()>) {}

    fn on_datagram(&mut self, io: &mut Io<()>, socket: u64, from: SocketAddr, data: &[u8]) {
        if self.echo {
            assert!(io.udp_send(socket, from, data));
        }
        self.heard.push((socket, from, data.to_vec()));
    }
}

fn pair(config: Config) -> (Loopback, EventLoop<Peer>, EventLoop<Peer>) {
    let model = Loopback::new(2, config);
    let server = Peer { echo: true, ..Peer::default() };
    let server = EventLoop::new(model.enter(0).unwrap(), server);
    let client = EventLoop::new(model.enter(1).unwrap(), Peer::default());
    (model, server, client)
}

fn turn(server: &mut EventLoop<Peer>, client: &mut EventLoop<Peer>, turns: usize) {
    for _ in 0..turns {
        client.turn(Wait::Poll).unwrap();
        server.turn(Wait::Poll).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn what_is_sent_comes_back_or_is_counted_as_lost(
        seed in 1..u64::MAX,
        refuse_one_in in prop_oneof![Just(0u64), 2..5u64],
        sizes in prop::collection::vec(0..1500usize, 1..300),
    ) {
        let config = Config { seed, refuse_one_in, ..Config::default() };
        let (model, mut server, mut client) = pair(config);
        server.udp_bind(at(11211)).unwrap();
        let ours = client.udp_bind(at(0)).unwrap();
        let mut sent = BTreeMap::new();
        let mut too_long = 0;
        for (name, &size) in sizes.iter().enumerate() {
            let data: Vec<u8> = (0..size).map(|i| (i * 31 + name) as u8).collect();
            prop_assert!(client.io().udp_send(ours, at(11211), &data));
            too_long += u64::from(size > 1472);
            if size <= 1472 {
                *sent.entry(data).or_insert(0u64) += 1;
            }
        }
        turn(&mut server, &mut client, 1000);
        let lost = client.io().udp_lost() + server.io().udp_lost();
        prop_assert!(refuse_one_in > 0 || lost == too_long);
        let heard = client.handler().heard.len() as u64;
        prop_assert_eq!(heard + lost, sizes.len() as u64);
        for (socket, from, data) in &client.handler().heard {
            prop_assert_eq!((*socket, *from), (ours, at(11211)));
            let left = sent.entry(data.clone()).or_insert(0);
            prop_assert!(*left > 0, "a datagram that was not sent, or twice");
            *left -= 1;
        }
        prop_assert_eq!(model.held_buffers(), 0);
    }
}

#[test]
fn more_datagrams_than_the_call_array_has_slots() {
    let (_model, mut server, mut client) = pair(Config { rx_buffers: 8192, ..Config::default() });
    server.udp_bind(at(9)).unwrap();
    let ours = client.udp_bind(at(0)).unwrap();
    let mut taken = 0u64;
    while client.io().udp_send(ours, at(9), &taken.to_be_bytes()) {
        taken += 1;
        assert!(taken < 1_000_000, "nothing bounds what waits");
    }
    assert!(taken > 2048);
    turn(&mut server, &mut client, 1000);
    let heard = client.handler().heard.iter().map(|heard| heard.2.clone());
    // The model keeps the order.
    assert!(heard.eq((0..taken).map(|name| name.to_be_bytes().to_vec())));
    assert!(client.io().udp_send(ours, at(9), b"again"));
}

#[test]
fn ports_are_taken_once_a_thread_and_free_after_unbind() {
    let (_model, mut server, mut client) = pair(Config::default());
    let first = server.udp_bind(at(53)).unwrap();
    assert_eq!(server.udp_bind(at(53)), Err(Error::InUse));
    client.udp_bind(at(53)).unwrap();
    server.io().udp_unbind(first);
    assert!(!server.io().udp_send(first, at(53), b"too late"));
    let second = server.udp_bind(at(53)).unwrap();
    assert_ne!(first, second);

    // Ended before the dataplane has named it.
    let unnamed = server.io().udp_bind(at(54));
    assert!(!server.io().udp_send(unnamed, at(53), b"too early"));
    server.io().udp_unbind(unnamed);
    turn(&mut server, &mut client, 3);
    server.udp_bind(at(54)).unwrap();
}

#[test]
fn buffers_go_back_although_nobody_listens_any_more() {
    let (model, mut server, mut client) = pair(Config::default());
    let theirs = server.udp_bind(at(9)).unwrap();
    let ours = client.udp_bind(at(0)).unwrap();
    for _ in 0..100 {
        assert!(client.io().udp_send(ours, at(9), b"knock"));
    }
    client.turn(Wait::Poll).unwrap();
    server.io().udp_unbind(theirs);
    turn(&mut server, &mut client, 200);
    assert_eq!(model.held_buffers(), 0);
}
