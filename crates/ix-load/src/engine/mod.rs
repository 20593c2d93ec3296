//! The generator without input and output: which request goes out when and on which connection,
//! and what its answer is worth. Time comes in as an argument, so whole runs can be played in
//! virtual time.
//!
//! * **Closed loop**: a connection keeps `depth` requests under way, and the next one starts when
//!   an answer is there. It measures what a server can do, and hides how long clients would wait.
//! * **Open loop**: requests are due at times drawn from a law and a seed, whatever the server
//!   does. One that cannot be sent because its connection is full waits in a bounded queue; its
//!   latency counts from when it was due. What has no answer at the end counts with its age.
mod conn;
mod overdue;
mod setup;
mod slots;
mod stats;
#[cfg(test)]
mod tests;
mod udp;

use crate::arrivals::Arrivals;
use crate::fault::Fault;
use crate::protocol::{Outcome, Protocol, Step};
use conn::{Conn, Life};
use overdue::Overdue;
use slots::Slots;
use std::collections::VecDeque;

pub use setup::{ClassSetup, INTERVAL_NS, Open, Setup, Times};
pub use stats::{Class, Counts, DRAIN, Interval, Portable, Sample, histogram};

/// Due requests handed out in one go, so that input is looked at in between.
const ARRIVALS_PER_TICK: usize = 1024;
/// Connections that are being made at a time.
const DIALS: usize = 512;
/// Before a failed connection is made again.
const REDIAL_NS: u64 = 100_000_000;
/// Without any connection for so long, the run is over.
const GIVE_UP_NS: u64 = 3_000_000_000;
/// Longest piece of an answer that is kept until more of it comes.
const KEPT_MOST: usize = 64 << 10;
/// How often connections are looked at for answers that are missing: all once in this time.
const SCAN_NS: u64 = 100_000_000;

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It never came to be.
    NotConnected(String),
    /// The server reset it, or it was lost.
    Reset(String),
    /// The server closed it.
    Closed,
}

/// What is to become of a connection after input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// It goes on; ask [`Engine::output`].
    Open,
    /// Reset it now; it is forgotten already, and dialled again later.
    Reset,
}

/// Part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Connecting,
    Running,
    /// No more requests; answers are still awaited.
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
    /// Connections that have something to send since a tick.
    ready: Vec<u32>,
    /// Connections to be made, and those again after a while.
    dials: VecDeque<u32>,
    redials: VecDeque<(u64, u32)>,
    dialing: usize,
    up: usize,
    /// When there was a connection last, or the first attempt.
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
    /// Connections given up because of a missing answer.
    stuck: Vec<u32>,
    rng: crate::random::Rng,
    random_id: u32,
}

impl<P: Protocol> Engine<P> {
    /// Connections that still have to be made.
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
            rng: crate::random::Rng::new(setup.seed),
            random_id: setup.seed as u32,
            setup,
        }
    }

    /// Whether requests are datagrams.
    pub fn is_udp(&self) -> bool {
        self.setup.udp
    }

    /// Connections, made or not.
    pub fn connections(&self) -> usize {
        self.conns.len()
    }

    /// Connections that are there.
    pub fn up(&self) -> usize {
        self.up
    }

    /// Why the run cannot go on, if it cannot.
    pub fn gave_up(&self) -> Option<&str> {
        self.gave_up.as_deref()
    }

    /// What the first error was, if there was one.
    pub fn first_fault(&self) -> Option<String> {
        let (fault, _, what) = self.interval.counts.faults.kinds().next()?;
        Some(format!("{}: {what}", fault.name()))
    }

    /// Answers of the load in this interval so far.
    pub fn answers(&self) -> u64 {
        self.interval.classes[Class::Load as usize].answers
    }

    /// Ends the run, and answers what was measured since the last interval.
    pub fn conclude(&mut self, now_ns: u64) -> Box<Interval> {
        if self.phase != Phase::Over {
            self.finish(now_ns);
        }
        self.turn_interval()
    }

    /// Requests whose answers are awaited.
    pub fn under_way(&self) -> usize {
        self.slots.used()
    }

    /// Whether there is nothing left to do.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over || self.gave_up.is_some()
    }

    /// The requests begin.
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

    /// The next connection to be made.
    pub fn dial(&mut self, now_ns: u64) -> Option<u32> {
        if let Some(&(at_ns, index)) = self.redials.front()
            && at_ns <= now_ns
        {
            self.redials.pop_front();
            self.dials.push_back(index);
        }
        if self.dialing >= DIALS || self.phase == Phase::Over {
            return None;
        }
        let index = self.dials.pop_front()?;
        self.conns[index as usize].life = Life::Dialing;
        self.conns[index as usize].progress_ns = now_ns;
        self.dialing += 1;
        Some(index)
    }

    /// A connection is there.
    pub fn connected(&mut self, index: u32, now_ns: u64) {
        let conn = &mut self.conns[index as usize];
        if conn.life == Life::Dialing {
            self.dialing -= 1;
        }
        conn.life = Life::Up;
        conn.progress_ns = now_ns;
        self.up += 1;
        self.alive_ns = now_ns;
        self.interval.counts.opened += 1;
    }

    /// Bytes came in on a connection.
    #[inline]
    pub fn input(&mut self, index: u32, data: &[u8], now_ns: u64) -> Verdict {
        let conn = &mut self.conns[index as usize];
        if let Some(kept) = conn.kept.take() {
            let mut kept = kept.into_vec();
            kept.extend_from_slice(data);
            return self.read(index, &kept, now_ns);
        }
        self.read(index, data, now_ns)
    }

    #[inline]
    fn read(&mut self, index: u32, mut data: &[u8], now_ns: u64) -> Verdict {
        let conn = &mut self.conns[index as usize];
        while !data.is_empty() {
            let Some(slot) = self.slots.front(conn.window) else {
                let what = format!("{} bytes that nobody asked for", data.len());
                return self.broken(index, Fault::BadReply, what, now_ns);
            };
            match self.protocol.decode(&slot.ask, &mut conn.partial, data) {
                Step::Done(used, outcome) => {
                    data = &data[used..];
                    conn.partial = Default::default();
                    conn.progress_ns = now_ns;
                    conn.answers += 1;
                    let (class, due_ns) = (conn.class, slot.due_ns);
                    self.slots.pop(&mut conn.window);
                    Self::count(&mut self.interval, &self.times, class, outcome, due_ns, now_ns);
                }
                Step::More(used) => {
                    conn.progress_ns = now_ns;
                    let rest = &data[used..];
                    if rest.len() > KEPT_MOST {
                        let what = "an answer without an end".to_string();
                        return self.broken(index, Fault::BadReply, what, now_ns);
                    }
                    if !rest.is_empty() {
                        conn.kept = Some(rest.into());
                    }
                    break;
                }
                Step::Wrong(fault, what) => return self.broken(index, fault, what, now_ns),
            }
        }
        let limit = self.setup.messages_per_connection;
        if conn.answers >= limit && conn.window.is_empty() && conn.partial.stage == 0 {
            self.drop_connection(index);
            self.dials.push_back(index);
            return Verdict::Reset;
        }
        Verdict::Open
    }

    #[inline]
    fn count(
        interval: &mut Interval,
        times: &Times,
        class: Class,
        outcome: Outcome,
        due_ns: u64,
        now_ns: u64,
    ) {
        let sample = &mut interval.classes[class as usize];
        sample.answers += 1;
        if times.counts(due_ns) {
            sample.latency_ns.saturating_record(now_ns.saturating_sub(due_ns).max(1));
        }
        match outcome {
            Outcome::Hit => interval.counts.hits += 1,
            Outcome::Miss => interval.counts.misses += 1,
            Outcome::Done => {}
        }
    }

    /// Appends the requests that may go out on a connection now.
    #[inline]
    pub fn output(&mut self, index: u32, now_ns: u64, out: &mut Vec<u8>) {
        while let Some(slot) = self.next_request(index, now_ns) {
            self.protocol.encode(&slot.ask, out);
        }
    }

    /// Takes the next request that may go out on a connection.
    #[inline]
    fn next_request(&mut self, index: u32, now_ns: u64) -> Option<slots::Slot> {
        let conn = &mut self.conns[index as usize];
        if conn.life != Life::Up || !self.slots.has_room(conn.window) {
            return None;
        }
        if conn.asked >= self.setup.messages_per_connection {
            return None;
        }
        let due_ns = match &self.setup.open[conn.class as usize] {
            None if self.phase == Phase::Running => now_ns,
            None => return None,
            Some(_) => self.overdue.pop(&mut conn.queue)?,
        };
        let Some(mut ask) = self.protocol.next() else {
            self.exhausted = true;
            return None;
        };
        if conn.window.is_empty() {
            // It could have gone out when it was due or when the last answer came.
            let could_ns = due_ns.max(conn.progress_ns);
            let lag_ns = now_ns.saturating_sub(could_ns);
            conn.progress_ns = now_ns;
            let most = &mut self.interval.counts.lag_most_ns;
            *most = lag_ns.max(*most);
        }
        self.random_id = self.random_id.wrapping_add(1);
        ask.id = self.random_id;
        conn.asked += 1;
        let slot = slots::Slot { due_ns, sent_ns: now_ns, ask };
        self.slots.push(&mut conn.window, slot);
        Some(slot)
    }

    /// A connection ended, not by us.
    pub fn closed(&mut self, index: u32, end: End, now_ns: u64) {
        if self.phase == Phase::Over {
            return;
        }
        let (fault, what) = match end {
            End::NotConnected(what) => (Fault::NotConnected, what),
            End::Reset(what) => (Fault::Reset, what),
            End::Closed => (Fault::Closed, "the server closed the connection".to_string()),
        };
        self.fail(index, fault, what, now_ns);
    }

    /// The connection cannot be used further.
    #[cold]
    fn broken(&mut self, index: u32, fault: Fault, what: String, now_ns: u64) -> Verdict {
        self.fail(index, fault, what, now_ns);
        Verdict::Reset
    }

    fn fail(&mut self, index: u32, fault: Fault, what: String, now_ns: u64) {
        // One error for each request that has no answer because of it, and at least one.
        let lost = self.conns[index as usize].window.len.max(1);
        self.interval.counts.faults.add_many(fault, lost.into(), || what.clone());
        let up = self.up;
        self.drop_connection(index);
        if up > 0 && self.up == 0 {
            self.alive_ns = now_ns;
        }
        if self.up == 0 && now_ns.saturating_sub(self.alive_ns) > GIVE_UP_NS {
            self.gave_up.get_or_insert(what);
        }
        self.redials.push_back((now_ns + REDIAL_NS, index));
    }

    /// Forgets what was under way on a connection.
    fn drop_connection(&mut self, index: u32) {
        let conn = &mut self.conns[index as usize];
        match conn.life {
            Life::Up => self.up -= 1,
            Life::Dialing => self.dialing -= 1,
            Life::Down => {}
        }
        self.slots.clear(&mut conn.window);
        conn.reset();
    }

    /// Lets time pass: due requests, missing answers, the end of an interval. Answers what was
    /// measured in an interval that ended.
    #[inline]
    pub fn tick(&mut self, now_ns: u64) -> Option<Box<Interval>> {
        if self.phase == Phase::Running {
            for class in 0..self.classes.len() {
                self.hand_out(class, now_ns);
            }
        }
        // The interval first: what comes after the end must not count into the last second.
        if now_ns >= self.interval_end_ns {
            return Some(self.turn_interval());
        }
        if now_ns >= self.scan_ns {
            self.scan(now_ns);
        }
        None
    }

    /// Gives requests that became due to connections, each as likely as the others.
    #[inline]
    fn hand_out(&mut self, class: usize, now_ns: u64) {
        let ClassState { first, setup, arrivals: Some(arrivals) } = &mut self.classes[class] else {
            return;
        };
        let last_ns = now_ns.min(self.times.to_ns - 1);
        for _ in 0..ARRIVALS_PER_TICK {
            let due_ns = arrivals.next_ns();
            if due_ns > last_ns {
                break;
            }
            arrivals.advance();
            let index = *first + self.rng.below(setup.connections.into()) as u32;
            let conn = &mut self.conns[index as usize];
            self.interval.classes[class].due += 1;
            if !self.overdue.push(&mut conn.queue, due_ns) {
                self.interval.counts.dropped += 1;
                continue;
            }
            if self.slots.has_room(conn.window) && conn.life == Life::Up {
                self.ready.push(index);
            }
        }
        let most = &mut self.interval.counts.overdue_most;
        *most = (*most).max(self.overdue.len() as u64);
    }

    /// Takes a connection that has something to send.
    #[inline]
    pub fn take_ready(&mut self) -> Option<u32> {
        self.ready.pop()
    }

    /// When [`Engine::tick`] has something to do at the latest.
    #[inline]
    pub fn next_ns(&self) -> u64 {
        let due = self.classes.iter().filter_map(|class| Some(class.arrivals.as_ref()?.next_ns()));
        let due = if self.phase == Phase::Running { due.min() } else { None };
        due.unwrap_or(u64::MAX).min(self.interval_end_ns).min(self.scan_ns)
    }

    /// Looks at some connections for missing answers, and at the end of the run.
    fn scan(&mut self, now_ns: u64) {
        const STEPS: u64 = 10;
        self.scan_ns = now_ns + SCAN_NS / STEPS;
        let some = self.conns.len().div_ceil(STEPS as usize);
        for _ in 0..some {
            self.scan_at = (self.scan_at + 1) % self.conns.len();
            self.check_answer(self.scan_at as u32, now_ns);
        }
        if self.phase == Phase::Connecting {
            return;
        }
        let idle = self.slots.used() == 0 && self.overdue.len() == 0;
        if self.exhausted && idle {
            self.finish(now_ns);
        }
        if self.phase == Phase::Running && now_ns >= self.times.to_ns {
            self.phase = Phase::Draining;
        }
        let closed = self.setup.open[0].is_none();
        let late = now_ns >= self.times.to_ns + self.setup.drain_ns;
        if self.phase == Phase::Draining && (idle || closed || late) {
            self.finish(now_ns);
        }
    }

    /// A connection whose answer is missing for too long is broken.
    fn check_answer(&mut self, index: u32, now_ns: u64) {
        let conn = &self.conns[index as usize];
        if self.setup.udp && conn.life == Life::Up {
            return self.give_up_datagrams(index, now_ns);
        }
        let waited_ns = now_ns.saturating_sub(conn.progress_ns);
        if waited_ns <= self.setup.timeout_ns || self.phase == Phase::Over {
            return;
        }
        let seconds = self.setup.timeout_ns as f64 / 1e9;
        match conn.life {
            Life::Up if !conn.window.is_empty() => {
                self.fail(index, Fault::NoAnswer, format!("none in {seconds} s"), now_ns);
                self.stuck.push(index);
            }
            Life::Dialing => {
                let what = format!("no answer to SYN in {seconds} s");
                self.fail(index, Fault::NotConnected, what, now_ns);
                self.stuck.push(index);
            }
            _ => {}
        }
    }

    /// Takes a connection that was given up because its answer is missing: to be reset.
    pub fn take_stuck(&mut self) -> Option<u32> {
        self.stuck.pop()
    }

    /// Everything that still waits counts with its age: it would have been at least as late.
    fn finish(&mut self, now_ns: u64) {
        self.phase = Phase::Over;
        self.interval_end_ns = 0;
        for conn in &mut self.conns {
            if self.setup.open[conn.class as usize].is_none() {
                continue;
            }
            let latency = &mut self.interval.classes[conn.class as usize].latency_ns;
            let mut unfinished = |due_ns: u64| {
                if self.times.counts(due_ns) {
                    self.interval.counts.unfinished += 1;
                    latency.saturating_record(now_ns.saturating_sub(due_ns).max(1));
                }
            };
            self.slots.iter(conn.window).for_each(|slot| unfinished(slot.due_ns));
            while let Some(due_ns) = self.overdue.pop(&mut conn.queue) {
                unfinished(due_ns);
            }
        }
    }

    fn turn_interval(&mut self) -> Box<Interval> {
        let mut ended = Box::new(core::mem::take(&mut self.interval));
        ended.second = self.second;
        self.interval_end_ns = match self.phase {
            Phase::Over => u64::MAX,
            _ => self.times.next_interval_end_ns(self.interval_end_ns),
        };
        self.second = if self.interval_end_ns == u64::MAX { DRAIN } else { self.second + 1 };
        ended
    }
}
