//! Hosts on one wire: elastic threads with libix event loops, in virtual time.
//!
//! Nothing here depends on a clock, a kernel or another thread, so the same run executes the same
//! instructions every time.
use crate::wire::{WireEnd, wire};
use ix_dataplane::Config;
use ix_dataplane::config::AddressCheck;
use ix_random::Rng;
use ix_rig::{Core, Rig, RigOptions, RigThread, SimDevice, SimOptions, Spread, VirtualClock};
use ix_wire::IpAddr;
use libix::event::{EventLoop, Handler};
use libix::raw::{Thread, Wait};
use std::cell::RefCell;
use std::net::{IpAddr as IpAddress, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;

const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const ADDRS: [[u8; 4]; 2] = [[10, 0, 0, 1], [10, 0, 0, 2]];
const ADDRS_V6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2),
];
/// Time of a turn of both hosts: about a full batch at the intended speed.
const TURN_US: u64 = 20;
/// TIME-WAIT, short enough that connections end as fast as they begin.
const TIME_WAIT_US: u32 = 1000;

/// Ports at which the server of a [`Pair`] listens, from that of [`server_addr`] on: an address has
/// only so many connections to one port.
pub const PORTS: u16 = 16;

/// Address of the server, in one of the families.
pub fn server_addr(is_v6: bool) -> SocketAddr {
    match is_v6 {
        true => SocketAddr::from((ADDRS_V6[1], 7)),
        false => SocketAddr::from((Ipv4Addr::from(ADDRS[1]), 7)),
    }
}

/// A client and a server.
pub struct Pair<C: Handler, S: Handler> {
    /// The first host.
    pub client: EventLoop<C>,
    /// The second host, which listens at [`server_addr`].
    pub server: EventLoop<S>,
    clock: VirtualClock,
}

impl<C: Handler, S: Handler> Pair<C, S> {
    /// Both hosts, the server listening.
    pub fn new(client: C, server: S, is_v6: bool) -> Pair<C, S> {
        let clock = VirtualClock::new(1);
        let [a, b] = wire(MACS);
        let client = EventLoop::new(host((0, is_v6), a, &clock), client);
        let mut server = EventLoop::new(host((1, is_v6), b, &clock), server);
        let any: IpAddress = match is_v6 {
            true => Ipv6Addr::UNSPECIFIED.into(),
            false => Ipv4Addr::UNSPECIFIED.into(),
        };
        for port in (server_addr(is_v6).port()..).take(PORTS.into()) {
            server.listen(SocketAddr::from((any, port)), 0).expect("a fresh host has no listeners");
        }
        Pair { client, server, clock }
    }

    /// One cycle of each.
    pub fn turn(&mut self) {
        self.clock.advance(TURN_US);
        client_turn(&mut self.client);
        server_turn(&mut self.server);
    }
}

// Separate functions, so that a profile distinguishes the two sides.

#[inline(never)]
fn client_turn<H: Handler>(host: &mut EventLoop<H>) {
    host.turn(Wait::Poll).expect("the dataplane runs its threads");
}

#[inline(never)]
fn server_turn<H: Handler>(host: &mut EventLoop<H>) {
    host.turn(Wait::Poll).expect("the dataplane runs its threads");
}

fn config((index, is_v6): (usize, bool)) -> Config {
    let other = 1 - index;
    let mut config = Config {
        host_addrs: vec![(IpAddr::v4(ADDRS[index]), 24)],
        arp: vec![(IpAddr::v4(ADDRS[other]), MACS[other])],
        address_check: AddressCheck::Off,
        secret: [index as u8; 16],
        isn_secret: [index as u8; 16],
        ..Config::default()
    };
    if is_v6 {
        config.host_addrs = vec![(IpAddr(ADDRS_V6[index].octets()), 64)];
    }
    config.tcp.time_wait_us = TIME_WAIT_US;
    config
}

/// A client with one elastic thread, and a server with two, each behind its queue of one device.
pub struct Trio<C: Handler, S: Handler> {
    /// The first host.
    pub client: EventLoop<C>,
    servers: [EventLoop<S>; 2],
    devices: [SimDevice; 2],
    clock: VirtualClock,
}

impl<C: Handler, S: Handler> Trio<C, S> {
    /// Both hosts, both threads of the server listening. With `astray` the server's device puts
    /// packets on any queue, and the threads have to hand them over.
    pub fn new(client: C, servers: [S; 2], astray: bool) -> Trio<C, S> {
        let clock = VirtualClock::new(1);
        let device = |mac, queues, spread| {
            SimDevice::new(SimOptions { mac, queues, spread, ..SimOptions::default() }, &clock)
        };
        let spread = if astray { Spread::Random(Rng::new(1)) } else { Spread::Rss(RSS_KEY) };
        let devices = [device(MACS[0], 1, Spread::First), device(MACS[1], 2, spread)];
        let rig = |index: usize| {
            let cpus = (0..devices[index].options().queues as u32).collect();
            let config = Config { cpus, ..config((index, false)) };
            let options = RigOptions { config, sizes: None, clock: clock.clone() };
            Rig::new(options, devices[index].nics()).threads
        };
        let thread = |elastic: RigThread, index: usize| {
            ix_rig::enter(&Rc::new(RefCell::new(Core::new(elastic, &clock, ()))), index)
        };
        let client = EventLoop::new(thread(rig(0).remove(0), 0), client);
        let mut threads = rig(1).into_iter();
        let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, server_addr(false).port()));
        let mut index = 0;
        let servers = servers.map(|server| {
            let elastic = threads.next().expect("a thread for each queue");
            let mut server = EventLoop::new(thread(elastic, index), server);
            index += 1;
            server.listen(any, 0).expect("a fresh host has no listeners");
            server
        });
        Trio { client, servers, devices, clock }
    }

    /// One cycle of each thread.
    pub fn turn(&mut self) {
        self.clock.advance(TURN_US);
        client_turn(&mut self.client);
        self.carry(0, 1);
        let [first, second] = &mut self.servers;
        thread_turn::<S, 0>(first);
        thread_turn::<S, 1>(second);
        self.carry(1, 0);
    }

    fn carry(&self, from: usize, to: usize) {
        for (_, frame) in self.devices[from].take_sent() {
            self.devices[to].deliver(frame);
        }
    }

    /// Where the code of the turns of client, first and second thread begins.
    pub fn marks() -> [usize; 3] {
        let client: fn(&mut EventLoop<C>) = client_turn::<C>;
        let threads: [fn(&mut EventLoop<S>); 2] = [thread_turn::<S, 0>, thread_turn::<S, 1>];
        [client as usize, threads[0] as usize, threads[1] as usize]
    }
}

/// A key of receive-side scaling that spreads well.
const RSS_KEY: [u8; 40] = {
    let mut key = [0; 40];
    let mut at = 0;
    while at < key.len() {
        key[at] = (at * 167 + 109) as u8;
        at += 1;
    }
    key
};

#[inline(never)]
fn thread_turn<H: Handler, const THREAD: usize>(host: &mut EventLoop<H>) {
    // Equal functions could become one.
    std::hint::black_box(THREAD);
    host.turn(Wait::Poll).expect("the dataplane runs its threads");
}

/// One host with one elastic thread.
fn host(which: (usize, bool), nic: WireEnd, clock: &VirtualClock) -> Thread {
    let options = RigOptions { config: config(which), sizes: None, clock: clock.clone() };
    let elastic = Rig::new(options, vec![Box::new(nic)]).threads.remove(0);
    ix_rig::enter(&Rc::new(RefCell::new(Core::new(elastic, clock, ()))), 0)
}
