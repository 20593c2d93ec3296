//! Two hosts on one wire: elastic threads with libix event loops, in virtual time.
//!
//! Nothing here depends on a clock, a kernel or another thread, so the same run executes the same
//! instructions every time.
use crate::wire::{WireEnd, wire};
use ix_dataplane::Config;
use ix_dataplane::config::AddressCheck;
use ix_rig::{Core, Rig, RigOptions, VirtualClock};
use ix_wire::IpAddr;
use libix::event::{EventLoop, Handler};
use libix::raw::{Thread, Wait};
use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const ADDRS: [[u8; 4]; 2] = [[10, 0, 0, 1], [10, 0, 0, 2]];
/// Time of a turn of both hosts: about a full batch at the intended speed.
const TURN_US: u64 = 20;
/// TIME-WAIT, short enough that connections end as fast as they begin.
const TIME_WAIT_US: u32 = 1000;

/// Address of the server.
pub fn server_addr() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::from(ADDRS[1]), 7))
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
    pub fn new(client: C, server: S) -> Pair<C, S> {
        let clock = VirtualClock::new(1);
        let [a, b] = wire(MACS);
        let client = EventLoop::new(host(0, a, &clock), client);
        let mut server = EventLoop::new(host(1, b, &clock), server);
        let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, server_addr().port()));
        server.listen(any, 0).expect("a fresh host has no listeners");
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

fn config(index: usize) -> Config {
    let other = 1 - index;
    let mut config = Config {
        host_addrs: vec![(IpAddr::v4(ADDRS[index]), 24)],
        arp: vec![(IpAddr::v4(ADDRS[other]), MACS[other])],
        address_check: AddressCheck::Off,
        secret: [index as u8; 16],
        isn_secret: [index as u8; 16],
        ..Config::default()
    };
    config.tcp.time_wait_us = TIME_WAIT_US;
    config
}

/// One host with one elastic thread.
fn host(index: usize, nic: WireEnd, clock: &VirtualClock) -> Thread {
    let options = RigOptions { config: config(index), sizes: None, clock: clock.clone() };
    let elastic = Rig::new(options, vec![Box::new(nic)]).threads.remove(0);
    ix_rig::enter(&Rc::new(RefCell::new(Core::new(elastic, clock, ()))), 0)
}
