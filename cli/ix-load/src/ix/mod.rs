//! The generator on a dataplane: one elastic thread, directly on batched calls and event
//! conditions.
mod back_ends;
mod emit;
mod observer;

use crate::clock::Clock;
use crate::engine::{End, Engine};
use crate::protocol::Protocol;
use crate::worker::Backend;
use anyhow::Result;
use back_ends::{BackEnds, Served};
use ix_httpd::site::Site;
use libix::engine::Ending;
use libix::raw::{Thread, Wait};
use observer::LoadObserver;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Longest sleep, so that the thread notices the end of a run.
const SLEEP_US: u64 = 10_000;
/// Most connections that are reset in a cycle at the end, so that a peer can take the resets.
const RESETS_AT_ONCE: usize = 256;
const RESETS_US: u64 = 100;
/// A sleeping dataplane wakes later than asked: the rest of the time is spent polling.
const WAKE_US: u64 = 500;

/// What is attached to connections ([`libix::engine::User`]).
pub(super) struct Attached;

/// The connections of the elastic thread.
type Net = libix::engine::Engine<Attached>;

/// The owner of a connection.
pub(super) enum Peer {
    /// The load.
    Load {
        /// Its number in the measuring engine.
        index: u32,
        /// Request bytes for which transmit memory was missing.
        spilled: Vec<u8>,
    },
    /// The back ends.
    Served(Box<Served>),
}

/// State of a number of the measuring engine.
#[derive(Clone, Copy, Default)]
struct Flow {
    /// Cookie of the connection, or id of the UDP socket; 0: none.
    name: u64,
    up: bool,
    /// It is in the list of sockets that may have datagrams to send.
    ready: bool,
}

/// An engine on an elastic thread.
pub struct OnIx<P> {
    engine: Engine<P>,
    local: IpAddr,
    flows: Vec<Flow>,
    targets: Vec<SocketAddr>,
    ready_sockets: VecDeque<u32>,
    /// UDP sockets that are being opened.
    binding: Vec<(u32, u64)>,
    out: Vec<u8>,
    spin: bool,
    back_ends: Option<BackEnds>,
    net: Net,
}

impl<P: Protocol> OnIx<P> {
    /// Connection i goes to target i modulo their number. `local`: the dataplane's address.
    pub fn new(
        engine: Engine<P>,
        thread: Thread,
        local: IpAddr,
        targets: Vec<SocketAddr>,
        spin: bool,
    ) -> OnIx<P> {
        let flows = (0..engine.connections()).map(|_| Flow::default()).collect();
        OnIx {
            engine,
            local,
            flows,
            targets,
            ready_sockets: VecDeque::new(),
            binding: Vec::new(),
            out: Vec::with_capacity(64 << 10),
            spin,
            back_ends: None,
            net: Net::new(thread),
        }
    }

    /// Serves these pages at these ports beside the load, which begins when they are served.
    pub fn serve(&mut self, site: Arc<Site>, ports: &[u16]) {
        let at = ports.iter().map(|port| SocketAddr::new(self.local, *port)).collect();
        self.back_ends = Some(BackEnds::new(*self.net.tx(), site, at));
    }

    /// Whether the back ends listen, or there are none. Otherwise they begin as soon as they can.
    fn run_back_ends(&mut self, now_ns: u64) -> Result<bool> {
        let Some(back_ends) = &mut self.back_ends else { return Ok(true) };
        back_ends.set_time(self.net.now_us());
        if !back_ends.is_listening() {
            back_ends.begin(&mut self.net, now_ns)?;
            return Ok(false);
        }
        Ok(true)
    }

    /// Gives the elastic thread back. Its connections are reset.
    pub fn into_thread(self) -> Thread {
        self.net.into_thread()
    }

    /// Notes that a connection may have requests to send.
    #[inline]
    fn mark(&mut self, index: u32) {
        let flow = &mut self.flows[index as usize];
        if !self.engine.is_udp() {
            self.net.visit(flow.name);
        } else if !flow.ready {
            flow.ready = true;
            self.ready_sockets.push_back(index);
        }
    }

    fn dial(&mut self, now_ns: u64) {
        while self.net.has_room()
            && let Some(index) = self.engine.dial(now_ns)
        {
            let name = if self.engine.is_udp() {
                let socket = self.net.udp_bind(SocketAddr::new(self.local, 0), index);
                self.binding.push((index, socket));
                socket
            } else {
                let to = self.targets[index as usize % self.targets.len()];
                self.net.connect(to, 0, Peer::Load { index, spilled: Vec::new() })
            };
            self.flows[index as usize].name = name;
        }
    }

    /// Handles results of opened UDP sockets.
    fn check_sockets(&mut self, now_ns: u64) {
        for (index, socket) in core::mem::take(&mut self.binding) {
            if self.flows[index as usize].name != socket {
                continue;
            }
            match self.net.udp_outcome(socket) {
                Some(Ok(())) => self.up(index, now_ns),
                Some(Err(error)) => {
                    self.forget(index);
                    let end = End::NotConnected(error.to_string());
                    self.engine.closed(index, end, now_ns);
                }
                None => self.binding.push((index, socket)),
            }
        }
    }

    /// Handles a new connection.
    fn up(&mut self, index: u32, now_ns: u64) {
        self.flows[index as usize].up = true;
        self.engine.connected(index, now_ns);
        self.mark(index);
    }

    /// Resets a connection.
    fn abort(&mut self, index: u32) {
        let name = self.flows[index as usize].name;
        if self.engine.is_udp() {
            self.net.udp_unbind(name);
        } else {
            self.net.end(name, Ending::Abort);
        }
        self.forget(index);
    }

    /// Forgets a connection: it no longer belongs to the load.
    fn forget(&mut self, index: u32) {
        let flow = &mut self.flows[index as usize];
        (flow.name, flow.up) = (0, false);
    }

    /// Runs one cycle without new requests.
    fn last_cycle(&mut self, wait: Wait) -> Result<()> {
        self.net.refill();
        self.net.emit(|_, _, _| false);
        self.net.run_io(wait)?;
        while self.net.next_answer().is_some() {}
        Ok(())
    }

    fn wait(&self, now_ns: u64) -> Wait {
        let loads = self.back_ends.as_ref().is_some_and(|back_ends| !back_ends.is_listening());
        let busy = self.spin || loads || !self.ready_sockets.is_empty();
        let idle_us = self.engine.next_ns().saturating_sub(now_ns) / 1000;
        if busy || idle_us <= 2 * WAKE_US {
            return Wait::Poll;
        }
        Wait::Us((idle_us - WAKE_US).min(SLEEP_US))
    }
}

impl<P: Protocol> Backend<P> for OnIx<P> {
    fn engine(&mut self) -> &mut Engine<P> {
        &mut self.engine
    }

    fn turn(&mut self, clock: &Clock) -> Result<()> {
        let now_ns = clock.now_ns();
        self.net.refill();
        if self.run_back_ends(now_ns)? {
            self.dial(now_ns);
        }
        while let Some(index) = self.engine.take_ready() {
            self.mark(index);
        }
        while let Some(index) = self.engine.take_stuck() {
            self.abort(index);
        }
        self.emit(now_ns);
        let wait = self.wait(now_ns);
        self.net.run_io(wait)?;
        let now_ns = clock.now_ns();
        while self.net.next_answer().is_some() {}
        if let Some(back_ends) = &mut self.back_ends {
            back_ends.check(&mut self.net)?;
        }
        self.check_sockets(now_ns);
        libix::engine::tell(&mut LoadObserver { on: self, now_ns });
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        if let Some(mut back_ends) = self.back_ends.take() {
            back_ends.end(&mut self.net);
        }
        if self.engine.is_udp() {
            self.flows.iter().for_each(|flow| self.net.udp_unbind(flow.name));
        }
        // A few at a time: a device takes only so many packets at once, and packets that wait for
        // it are lost when the program ends.
        for some in self.net.doom_all().chunks(RESETS_AT_ONCE) {
            some.iter().for_each(|cookie| self.net.touch(*cookie));
            self.last_cycle(Wait::Us(RESETS_US))?;
        }
        // Each cycle carries out what the array has room for.
        while self.net.has_calls() {
            self.last_cycle(Wait::Poll)?;
        }
        Ok(())
    }
}
