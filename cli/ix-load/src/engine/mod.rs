//! The generator without input and output: which request is sent when and on which connection, and
//! what its reply counts. Time is an argument, so whole runs can be played in virtual time.
//!
//! * **Closed loop**: a connection keeps `depth` requests in flight, and sends the next one after a
//!   reply. It measures the most that a server can do, and hides how long clients would wait.
//! * **Open loop**: requests are due at times drawn from a distribution and a seed, whatever the
//!   server does. A request that finds its connection full waits in a bounded queue; its latency
//!   counts from the time it was due. A request without a reply at the end counts with its age.
mod conn;
mod links;
mod overdue;
mod pace;
mod setup;
mod slots;
mod stats;
#[cfg(test)]
mod tests;
mod traffic;
mod udp;

use crate::protocol::Protocol;
use conn::{Conn, Life};
use ix_workload::arrivals::Arrivals;
use overdue::Overdue;
use slots::Slots;
use std::collections::VecDeque;

pub use setup::{ClassSetup, INTERVAL_NS, Open, Setup, Times};
pub use stats::{Class, Counts, DRAIN, Interval, Portable, Sample, histogram};

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It could not be opened.
    NotConnected(String),
    /// The server reset it, or the network lost it.
    Reset(String),
    /// The server closed it.
    Closed,
}

/// What the caller must do with a connection after input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// It stays open; call [`Engine::output`].
    Open,
    /// Reset it now; the engine has forgotten it, and opens it again later.
    Reset,
}

/// Part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Connecting,
    Running,
    /// No more requests are sent; replies are still awaited.
    Draining,
    Over,
}

struct ClassState {
    first: u32,
    setup: ClassSetup,
    arrivals: Option<Arrivals>,
}

/// The generator of one thread.
pub struct Engine<P> {
    protocol: P,
    setup: Setup,
    conns: Vec<Conn>,
    slots: Slots,
    classes: [ClassState; 2],
    overdue: Overdue,
    /// When the generator's last stall ended.
    stall_end_ns: u64,
    /// Connections that have had something to send since a tick.
    ready: Vec<u32>,
    /// Connections to open, and those to open again later.
    dials: VecDeque<u32>,
    redials: VecDeque<(u64, u32)>,
    dialing: usize,
    up: usize,
    /// When a connection was last open, or the first attempt.
    alive_ns: u64,
    phase: Phase,
    times: Times,
    exhausted: bool,
    interval: Interval,
    interval_end_ns: u64,
    second: i64,
    scan_at: usize,
    scan_ns: u64,
    gave_up: Option<String>,
    /// Connections given up because of a missing reply.
    stuck: Vec<u32>,
    rng: ix_random::Rng,
    random_id: u32,
}

impl<P: Protocol> Engine<P> {
    /// All connections still have to be opened.
    pub fn new(protocol: P, setup: Setup, now_ns: u64) -> Engine<P> {
        let [load, measure] = setup.classes;
        let total = load.connections + measure.connections;
        let mut slots = Slots::default();
        let mut conns = Vec::with_capacity(total as usize);
        for index in 0..total {
            let class = if index < load.connections { Class::Load } else { Class::Measure };
            let depth = setup.classes[class as usize].depth;
            conns.push(Conn::new(class, slots.add(depth), depth));
        }
        Engine {
            protocol,
            conns,
            slots,
            classes: [
                ClassState { first: 0, setup: load, arrivals: None },
                ClassState { first: load.connections, setup: measure, arrivals: None },
            ],
            overdue: Overdue::new(setup.overdue_most),
            stall_end_ns: 0,
            ready: Vec::new(),
            dials: (0..total).collect(),
            redials: VecDeque::new(),
            dialing: 0,
            up: 0,
            alive_ns: now_ns,
            phase: Phase::Connecting,
            times: Times::default(),
            exhausted: false,
            interval: Interval::default(),
            interval_end_ns: u64::MAX,
            second: 0,
            scan_at: 0,
            scan_ns: now_ns,
            gave_up: None,
            stuck: Vec::new(),
            rng: ix_random::Rng::new(setup.seed),
            random_id: setup.seed as u32,
            setup,
        }
    }

    /// Whether requests are datagrams.
    pub fn is_udp(&self) -> bool {
        self.setup.udp
    }

    /// Number of connections, open or not.
    pub fn connections(&self) -> usize {
        self.conns.len()
    }

    /// Number of open connections.
    pub fn up(&self) -> usize {
        self.up
    }

    /// Why the run cannot continue, if it cannot.
    pub fn gave_up(&self) -> Option<&str> {
        self.gave_up.as_deref()
    }

    /// The first error, if there was one.
    pub fn first_fault(&self) -> Option<String> {
        let (fault, _, what) = self.interval.counts.faults.kinds().next()?;
        Some(format!("{}: {what}", fault.name()))
    }

    /// Replies to the load in this interval so far.
    pub fn answers(&self) -> u64 {
        self.interval.classes[Class::Load as usize].answers
    }

    /// Ends the run, and returns what was measured since the last interval.
    pub fn conclude(&mut self, now_ns: u64) -> Box<Interval> {
        if self.phase != Phase::Over {
            self.finish(now_ns);
        }
        self.turn_interval()
    }

    /// Number of requests that wait for a reply.
    pub fn under_way(&self) -> usize {
        self.slots.used()
    }

    /// Whether there is nothing left to do.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over || self.gave_up.is_some()
    }

    /// Begins the requests.
    pub fn start(&mut self, times: Times) {
        self.times = times;
        self.phase = Phase::Running;
        self.interval_end_ns = times.first_interval_end_ns();
        self.second = times.first_second();
        for (index, class) in self.classes.iter_mut().enumerate() {
            let Some(open) = &self.setup.open[index] else { continue };
            if class.setup.connections > 0 {
                let seed = self.setup.seed ^ (index as u64 + 1) << 56;
                let rate = open.rate.clone();
                let (share, noise) = (open.share, self.setup.noise_seed);
                let start_ns = times.start_ns;
                let arrivals = Arrivals::new(open.arrival, rate, share, seed, noise, start_ns);
                class.arrivals = Some(arrivals);
            }
        }
        let up = |conn: &Conn| conn.life == Life::Up;
        self.ready.extend((0..).zip(&self.conns).filter(|(_, conn)| up(conn)).map(|(i, _)| i));
    }

    /// Ends the requests now.
    pub fn stop(&mut self, now_ns: u64) {
        self.times.to_ns = self.times.to_ns.min(now_ns);
        if self.interval_end_ns != u64::MAX {
            self.interval_end_ns = self.interval_end_ns.min(now_ns);
        }
    }
}
