//! Elastic threads whose program is in other processes: each has a Linux thread of its own here,
//! which carries out the requests that the program's processes write.
//!
//! Where a process and the elastic thread have a hardware thread each, the one that waits looks at
//! memory for a bounded time and then sleeps. Where they share one, the one that waits gives it
//! away at once (`sched_yield`), so they take turns as if one had called the other.
//!
//! Where all processes compute on hardware threads of their own, the elastic thread works ahead
//! ([`Ahead`]): it receives the next batch, and sends what the last calls have asked for after the
//! callers have their events.
//!
//! A process is present from the request that runs cycles until the reply to it. One that never
//! asks, or asks nonsense, or closes its bell, keeps nobody else waiting.
use crate::calls::CallArray;
use crate::clock::{monotonic_ns, ticks};
use crate::events::EventWriter;
use crate::run::boot::Dataplane;
use crate::run::guard::{only, run_on};
use crate::run::roster::{Entry, Life, Shares};
use crate::run::runner::{Callers, Runner};
use crate::run::turns::Turns;
use crate::shared::Waker;
use crate::sync::let_others_run;
use ix_abi::{CALLS_MAX, error, gate_op};
use ix_proto::crossing::{AttachmentId, Direction, Reply, Request, replies, requests};
use std::cell::Cell;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Number of looks at a request between two readings of the clock.
const LOOKS_PER_CLOCK: u32 = 16;

/// Time between looks at whether an elastic thread can be left whose last process has ended, ms.
const LINGER_MS: i32 = 100;

/// A cycle is run with the processes present at least once in so many requests: their timers and
/// the packets that wait for them come then.
const REPLIES_AHEAD_MAX: u32 = 8;

/// How long flow groups that a process has not sent away may delay its leaving, µs.
const LEAVE_US: u64 = 50_000;

/// A request of a process, read once.
#[derive(Clone, Copy, Debug)]
struct Asked {
    serial: u64,
    op: u64,
    calls: u64,
    wait_us: u64,
}

/// A process that waits for events.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    serial: u64,
    /// When the wait ends, ns of the monotonic clock; `None`: never.
    end_ns: Option<u64>,
    /// It does not wait: one cycle.
    polls: bool,
}

/// What has happened since the last replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Since {
    /// Cycles have run.
    Cycles,
    /// Calls were carried out, and none has run. `ahead`: the rest of the cycle may come after the
    /// reply.
    Calls { ahead: bool },
}

impl Waiting {
    /// Whether the process gets its reply now. `events` is the number of its events. If it is not
    /// `present`, these tell of moved flow groups only, and it returns once more before it hears of
    /// anything else. A poll is a cycle, so it is not over before one has run. `is_called`: the
    /// wait is to end early.
    fn is_over(&self, since: Since, (events, present): (usize, bool), is_called: bool) -> bool {
        let is_late = || self.end_ns.is_some_and(|end| monotonic_ns() >= end);
        match since {
            Since::Cycles => events > 0 || is_called || self.polls || is_late(),
            Since::Calls { ahead } => events > 0 && (!present || ahead && !self.polls),
        }
    }
}

/// One process of the program, as the Linux thread of one elastic thread sees it.
struct Peer {
    number: AttachmentId,
    life: Life,
    /// Keeps what the program shares mapped.
    shares: Arc<Shares>,
    thread: usize,
    /// Number of the request that was carried out last.
    done: u64,
    /// Number of batches that have come.
    batches: u64,
    /// Number of kicks that have ended a wait.
    kicks: u64,
    /// The caller of the last request sleeps, or runs on this hardware thread.
    caller_is_here: bool,
    waiting: Option<Waiting>,
    /// Its bell may have rung.
    rang: Cell<bool>,
    /// Nobody has the other end of its bell any more.
    is_closed: Cell<bool>,
    /// That was said.
    is_reported: Cell<bool>,
}

/// All of them.
struct Peers<'a> {
    all: Vec<Peer>,
    dataplane: &'a Dataplane,
    thread: usize,
    /// Version of the roster that these are from.
    version: u64,
    waker: &'a Waker,
    cpu: u32,
    spin_ticks: u64,
    /// Set when the thread is to end.
    ends: &'a AtomicBool,
    /// Gets the processes whose bell is closed.
    closed: &'a dyn Fn(Life),
    /// The last process that has run this thread. It has ended, and its connections have not.
    lingers: Option<AttachmentId>,
    ahead: Ahead,
    turns: Turns,
}

/// What was done while all processes compute.
#[derive(Clone, Copy, Debug, Default)]
struct Ahead {
    /// Number of packets received since the last request. What they cause is not sent before the
    /// processes' calls are carried out, so that acknowledgements ride on replies.
    packets: usize,
    /// Number of requests in a row that got their reply before a cycle was run.
    replies: u32,
}

impl Dataplane {
    /// Carries out the requests of the program's processes for this elastic thread. Called on a
    /// Linux thread that does nothing else. Returns after [`Dataplane::end_requests`]. `closed`
    /// gets the process that has closed its bell: it has ended, or executed another program.
    pub fn serve_requests(&self, thread: usize, ends: &AtomicBool, closed: &dyn Fn(Life)) {
        run_on(&only(self.cpu(thread)));
        let per_us = self.page.ticks_per_us().max(1);
        let mut peers = Peers {
            all: Vec::new(),
            dataplane: self,
            thread,
            version: u64::MAX,
            waker: &self.shared.wakers[thread],
            cpu: self.cpu(thread),
            spin_ticks: self.shared.config.idle_spin_us.saturating_mul(per_us),
            ends,
            closed,
            lingers: None,
            ahead: Ahead::default(),
            turns: Turns::default(),
        };
        while peers.serve() {}
        // The program has ended.
        peers.carry_out_wills();
    }

    /// Makes [`Dataplane::serve_requests`] of every thread return, once its `ends` is set.
    pub fn end_requests(&self) {
        self.call_all();
    }
}

impl Peer {
    fn request(&self) -> &Request {
        self.shares.pages.request(self.thread)
    }

    fn reply(&self) -> &Reply {
        self.shares.pages.reply(self.thread)
    }

    fn requests(&self) -> Direction<'_> {
        requests(self.request(), self.reply())
    }

    fn bell(&self) -> RawFd {
        self.shares.bell(self.thread)
    }

    /// Whether there is a request that was not carried out.
    #[inline]
    fn asks(&self) -> bool {
        self.requests().newest() != self.done
    }

    /// Whether its wait is to end early.
    #[inline]
    fn is_kicked(&self) -> bool {
        self.waiting.is_some() && self.request().kick.load(Ordering::SeqCst) != self.kicks
    }

    /// The next request, if it is there.
    fn take_request(&mut self, cpu: u32) -> Option<Asked> {
        let serial = self.requests().newest();
        if serial == self.done {
            return None;
        }
        let request = self.request();
        let is_here = request.cpu.load(Ordering::Relaxed) == cpu;
        let asked = Asked {
            serial,
            op: request.op.load(Ordering::Relaxed),
            calls: request.calls.load(Ordering::Relaxed),
            wait_us: request.wait_us.load(Ordering::Relaxed),
        };
        (self.done, self.caller_is_here) = (serial, is_here);
        self.batches += u64::from(asked.op == gate_op::RUN_IO);
        Some(asked)
    }

    /// Publishes the reply, and wakes the caller if it sleeps.
    fn answer(&self, serial: u64, result: i64, now_us: u64) {
        let reply = self.reply();
        reply.now_us.store(now_us, Ordering::Relaxed);
        reply.result.store(result as u64, Ordering::Relaxed);
        if replies(self.request(), reply).publish(serial) {
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // SAFETY: one byte of a constant. A socket that is full was rung; one that is closed
            // is noticed by who waits.
            unsafe { libc::send(self.bell(), b"r".as_ptr().cast(), 1, flags) };
        }
    }

    /// Takes what was rung, if anything was.
    fn silence(&self) {
        if !self.rang.take() {
            return;
        }
        let mut rung = [0u8; 256];
        let (to, len) = (rung.as_mut_ptr().cast(), rung.len());
        // SAFETY: a local of that length.
        let n = unsafe { libc::recv(self.bell(), to, len, libc::MSG_DONTWAIT) };
        self.is_closed.set(n == 0);
    }
}

impl Peers<'_> {
    #[cold]
    fn carry_out_wills(&mut self) {
        self.inside(|peers, runner| {
            let (cpu, now_us) = (peers.cpu, monotonic_ns() / 1000);
            peers.all.drain(..).for_each(|peer| peer.carry_out_will(runner, cpu, now_us));
        });
    }

    /// Waits for requests and carries them out. False: the thread is to end.
    fn serve(&mut self) -> bool {
        self.renew();
        if self.ends.load(Ordering::Relaxed) {
            return false;
        }
        if self.all.iter().any(Peer::asks) {
            self.inside(Peers::carry_out);
        } else {
            if self.lingers.is_some() {
                self.leave_if_finished();
            }
            self.wait_for_requests();
        }
        true
    }

    /// Leaves the elastic thread for its last process, which has ended, unless that is too early.
    #[cold]
    fn leave_if_finished(&mut self) {
        self.inside(|peers, runner| {
            // Another process may have entered the thread since, or may have this number now.
            let begins_again = |number| peers.all.iter().any(|peer| peer.number == number);
            let left =
                |number| begins_again(number) || !runner.is_entered() || runner.leave_ended(number);
            if peers.lingers.is_some_and(left) {
                peers.lingers = None;
            }
            if runner.is_entered() {
                runner.goes_outside(monotonic_ns() / 1000);
            }
        });
    }

    /// Does something with the elastic thread, which is entered while a process of the program runs
    /// it.
    fn inside(&mut self, act: impl FnOnce(&mut Self, &mut Runner)) {
        let (dataplane, thread) = (self.dataplane, self.thread);
        let act = |runner: &mut Runner| {
            act(self, runner);
            if !runner.is_entered() {
                dataplane.claims.leave(thread);
            }
        };
        // SAFETY: this thread alone runs the elastic thread.
        unsafe { dataplane.inside(thread, act) };
    }

    /// Carries out requests as long as a process waits for events.
    fn carry_out(&mut self, runner: &mut Runner) {
        loop {
            self.take_requests(runner);
            let Some(wait_us) = self.longest_wait_us() else { return };
            let ahead = self.may_reply_ahead(runner);
            if ahead || self.is_any_told(runner) {
                let now_us = monotonic_ns() / 1000;
                self.answer_all(runner, Since::Calls { ahead }, now_us);
                if self.all.iter().all(|peer| peer.waiting.is_none()) {
                    if ahead {
                        runner.send_behind();
                        self.ahead.replies += 1;
                    }
                    runner.goes_outside(now_us);
                }
                continue;
            }
            self.ahead.replies = 0;
            let dataplane = self.dataplane;
            let look_after = |now_us| dataplane.claims.look_after(&dataplane.runners, now_us);
            let outcome = runner.wait(wait_us, &look_after, &*self);
            self.answer_all(runner, Since::Cycles, outcome.now_us);
            self.renew_inside(runner);
            if self.ends.load(Ordering::Relaxed) {
                return;
            }
        }
    }

    /// Carries out what was asked since the last time.
    fn take_requests(&mut self, runner: &mut Runner) {
        for index in 0..self.all.len() {
            let Some(asked) = self.all[index].take_request(self.cpu) else { continue };
            self.ahead.packets = 0;
            let now_us = monotonic_ns() / 1000;
            let peer = &mut self.all[index];
            let result = match asked.op {
                gate_op::RUN_IO if asked.calls > CALLS_MAX as u64 => -error::INVALID,
                gate_op::RUN_IO => {
                    let wait_ns = asked.wait_us.saturating_mul(1000);
                    let forever = asked.wait_us == gate_op::WAIT_FOREVER;
                    peer.waiting = Some(Waiting {
                        serial: asked.serial,
                        end_ns: (!forever).then(|| monotonic_ns().saturating_add(wait_ns)),
                        polls: asked.wait_us == 0,
                    });
                    runner.begin_for(peer.number, asked.calls as usize);
                    continue;
                }
                gate_op::SHARE => {
                    self.dataplane.share(self.thread);
                    0
                }
                gate_op::LEAVE => {
                    if runner.is_entered() {
                        runner.leave(self.all[index].number, LEAVE_US);
                    }
                    0
                }
                _ => -error::NO_SYS,
            };
            self.all[index].answer(asked.serial, result, now_us);
        }
    }

    /// Whether the only process of the program gets its events now, and what its calls have asked
    /// for is sent meanwhile: it has events already, computes on another hardware thread, and
    /// nothing waits that only a cycle with it brings.
    fn may_reply_ahead(&self, runner: &Runner) -> bool {
        let [peer] = &self.all[..] else { return false };
        let waits = peer.waiting.is_some_and(|waiting| !waiting.polls);
        let attached = &runner.thread.io.cx.attached;
        waits
            && !peer.caller_is_here
            && self.ahead.replies < REPLIES_AHEAD_MAX
            && attached.is_present(peer.number)
            && attached[peer.number].events.count() > 0
            && !runner.owes_a_cycle()
    }

    /// Receives packets while all processes compute, at most a batch in all.
    fn receive_ahead(&mut self) {
        self.inside(|peers, runner| {
            if runner.is_entered() && peers.ahead.packets < runner.batch() {
                peers.ahead.packets += runner.receive_ahead();
            }
        });
    }

    /// Whether a process waits that was told something and is not present yet.
    fn is_any_told(&self, runner: &Runner) -> bool {
        let attached = &runner.thread.io.cx.attached;
        let is_told =
            |one: AttachmentId| !attached.is_present(one) && attached[one].events.count() > 0;
        self.all.iter().any(|peer| peer.waiting.is_some() && is_told(peer.number))
    }

    /// How long cycles may run at most, µs; `None` if nobody waits.
    fn longest_wait_us(&self) -> Option<u64> {
        let mut waiting = self.all.iter().filter_map(|peer| peer.waiting).peekable();
        waiting.peek()?;
        let end_ns = waiting.filter_map(|waiting| waiting.end_ns).min();
        let left_us = |end_ns: u64| end_ns.saturating_sub(monotonic_ns()).div_ceil(1000);
        Some(end_ns.map_or(gate_op::WAIT_FOREVER, left_us))
    }

    /// Replies to all that have events or whose wait is over.
    fn answer_all(&mut self, runner: &mut Runner, since: Since, now_us: u64) {
        for peer in &mut self.all {
            peer.silence();
            let Some(waiting) = peer.waiting else { continue };
            let attached = &mut runner.thread.io.cx.attached;
            let events = attached[peer.number].events.count();
            let kicks = peer.request().kick.load(Ordering::SeqCst);
            let is_called = kicks != peer.kicks || peer.is_closed.get();
            let heard = (events, attached.is_present(peer.number));
            if !waiting.is_over(since, heard, is_called) {
                continue;
            }
            if events == 0 {
                peer.kicks = kicks;
            }
            peer.waiting = None;
            attached.set_present(peer.number, false);
            peer.answer(waiting.serial, events as i64, now_us);
        }
        self.report_closed();
    }

    /// Looks for the next request for a bounded time, then sleeps until one or the waker rings.
    fn wait_for_requests(&mut self) {
        let (mut looks, mut yields) = (0, 0u32);
        let since = ticks();
        let is_here = self.share_cpu();
        if !is_here {
            self.turns.are_over();
        }
        loop {
            if self.call() {
                if is_here {
                    self.turns.had_one(yields.saturating_sub(1));
                }
                return;
            }
            if is_here {
                yields += 1;
                let_others_run();
            } else {
                self.receive_ahead();
                core::hint::spin_loop();
                looks += 1;
                if looks % LOOKS_PER_CLOCK != 0 {
                    continue;
                }
            }
            if ticks().wrapping_sub(since) >= self.spin_ticks {
                return self.sleep();
            }
        }
    }

    fn sleep(&mut self) {
        self.ring_from_now_on(true);
        if !self.call() {
            let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let bells = self.all.iter().filter(|peer| !peer.is_closed.get());
            let mut polls: Vec<_> = bells.map(|peer| poll(peer.bell())).collect();
            polls.push(poll(self.waker.fd()));
            let limit_ms = if self.lingers.is_some() { LINGER_MS } else { -1 };
            // SAFETY: an array with its length.
            unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, limit_ms) };
            crate::doorbell::drain(self.waker.fd());
            for poll in polls.iter().filter(|poll| poll.revents != 0) {
                self.rung(poll.fd);
            }
        }
        self.ring_from_now_on(false);
        self.all.iter().for_each(Peer::silence);
        self.report_closed();
    }

    /// Says whose bells are closed. Nothing is asked of these any more.
    fn report_closed(&self) {
        for peer in self.all.iter().filter(|peer| peer.is_closed.get()) {
            if !peer.is_reported.replace(true) {
                (self.closed)(peer.life);
            }
        }
    }

    /// Does this thread's part of what has changed in the roster.
    fn renew(&mut self) {
        if self.version != self.dataplane.roster.version() {
            self.inside(Peers::renew_inside);
        }
    }

    fn renew_inside(&mut self, runner: &mut Runner) {
        let version = self.dataplane.roster.version();
        if version == self.version {
            return;
        }
        self.version = version;
        // It was kicked for this.
        self.waker.take_kick();
        self.compare(runner);
        if runner.is_entered() {
            runner.goes_outside(monotonic_ns() / 1000);
        }
    }

    /// Compares the processes that are served with the roster.
    #[cold]
    fn compare(&mut self, runner: &mut Runner) {
        let now_us = monotonic_ns() / 1000;
        let mut roster = self.dataplane.roster.lock();
        let goes_on = roster.iter().any(|entry| !entry.has_ended);
        for entry in roster.iter_mut() {
            let known = self.all.iter().position(|peer| Arc::ptr_eq(&peer.shares, &entry.shares));
            match known {
                None if !entry.has_ended => {
                    match entry.number {
                        0 => runner.thread.set_present(0, false),
                        number => {
                            let pages = &entry.shares.pages;
                            // SAFETY: the peer below holds `shares` until the process has ended
                            // here, and only this writer and this call array are made for them.
                            let (calls, events) = unsafe {
                                let calls = CallArray::new(pages.calls(self.thread));
                                (calls, EventWriter::new(pages.events(self.thread)))
                            };
                            let place = (entry.shift, entry.life);
                            runner.thread.begin_attachment(number, calls, events, place);
                        }
                    }
                    entry.begun_by[self.thread] = true;
                    self.all.push(Peer::new(entry, self.thread));
                }
                Some(index) if entry.has_ended => {
                    self.all.remove(index).carry_out_will(runner, self.cpu, now_us);
                    if runner.end_process(entry.number, goes_on, now_us) {
                        self.lingers = Some(entry.number);
                    }
                }
                // It has ended before this thread knew it.
                None if !entry.begun_by[self.thread] => {
                    entry.begun_by[self.thread] = true;
                    match entry.number {
                        0 => _ = runner.end_process(0, goes_on, now_us),
                        number => self.dataplane.shared.mourning.close(number),
                    }
                }
                None | Some(_) => {}
            }
        }
        drop(roster);
        self.dataplane.roster.has_looked();
    }
}

impl Peer {
    /// The process has ended: does what it has left to be done.
    fn carry_out_will(mut self, runner: &mut Runner, cpu: u32, now_us: u64) {
        let asked = self.take_request(cpu).filter(|asked| asked.op == gate_op::RUN_IO);
        let (state, entries, batch) = self.shares.pages.will(self.thread);
        // It was killed before it could ask for this batch.
        let unasked = if batch > self.batches { state.calls } else { 0 };
        let calls = asked.map_or(unasked, |asked| asked.calls as usize);
        runner.carry_out_will(self.number, calls, (state, entries), now_us);
    }

    fn new(entry: &Entry, thread: usize) -> Peer {
        Peer {
            number: entry.number,
            life: Life { number: entry.number.into(), which: entry.life },
            shares: entry.shares.clone(),
            thread,
            done: 0,
            batches: 0,
            kicks: 0,
            caller_is_here: false,
            waiting: None,
            rang: Cell::new(false),
            is_closed: Cell::new(false),
            is_reported: Cell::new(false),
        }
    }
}

impl Callers for Peers<'_> {
    #[inline]
    fn call(&self) -> bool {
        let calls = |peer: &Peer| peer.asks() || peer.is_kicked() || peer.rang.get();
        self.all.iter().any(calls)
            || self.version != self.dataplane.roster.version()
            || self.ends.load(Ordering::Relaxed)
    }

    #[inline]
    fn share_cpu(&self) -> bool {
        self.all.iter().any(|peer| peer.caller_is_here && peer.waiting.is_none())
    }

    #[inline]
    fn take_turns(&self) -> bool {
        self.all.iter().any(|peer| peer.caller_is_here && peer.waiting.is_some())
    }

    fn ring_from_now_on(&self, yes: bool) {
        for peer in &self.all {
            match yes {
                // Whether there is a newer one is looked at afterwards.
                true => _ = peer.requests().going_to_sleep(),
                false => peer.requests().awake(),
            }
        }
    }

    fn bells(&self, add: &mut dyn FnMut(RawFd)) {
        let open = self.all.iter().filter(|peer| !peer.is_closed.get());
        open.for_each(|peer| add(peer.bell()));
    }

    fn rung(&self, fd: RawFd) -> bool {
        let of = self.all.iter().find(|peer| peer.bell() == fd);
        of.inspect(|peer| peer.rang.set(true)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poll_is_answered_after_a_cycle_and_news_of_moved_groups_at_once() {
        let poll = Waiting { serial: 1, end_ns: Some(0), polls: true };
        let wait = Waiting { serial: 2, end_ns: None, polls: false };
        // Another process was told of moved groups.
        assert!(!poll.is_over(Since::Calls { ahead: false }, (0, true), false));
        assert!(
            !poll.is_over(Since::Calls { ahead: false }, (2, true), true),
            "its calls were not sent yet"
        );
        assert!(
            poll.is_over(Since::Calls { ahead: false }, (2, false), false),
            "it was told itself"
        );
        assert!(wait.is_over(Since::Calls { ahead: false }, (2, false), false));
        let ahead = Since::Calls { ahead: true };
        assert!(wait.is_over(ahead, (1, true), false) && !wait.is_over(ahead, (0, true), false));
        assert!(!poll.is_over(ahead, (1, true), false), "a poll is a cycle");
        assert!(poll.is_over(Since::Cycles, (0, true), false));
        assert!(!wait.is_over(Since::Cycles, (0, true), false));
        assert!(wait.is_over(Since::Cycles, (0, true), true));
        assert!(wait.is_over(Since::Cycles, (1, true), false));
    }
}
