//! Elastic threads whose application is in another process: each has a Linux thread of its own
//! here, which carries out the requests that the application writes.
//!
//! Where application and elastic thread have a hardware thread each, the one that waits looks at
//! memory for a bounded time and then sleeps. Where they share one, the one that waits gives it
//! away at once (`sched_yield`), so they take turns as if one had called the other.
use crate::clock::{monotonic_ns, ticks};
use crate::run::boot::Dataplane;
use crate::run::crossing::CrossingPages;
use crate::run::guard::{only, run_on};
use crate::shared::Waker;
use crate::sync::let_others_run;
use ix_abi::{CALLS_MAX, error, gate_op};
use ix_proto::crossing::{Direction, Reply, Request, replies, requests};
use std::cell::Cell;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Number of looks at a request between two readings of the clock.
const LOOKS_PER_CLOCK: u32 = 16;

/// A request of the application, read once.
#[derive(Clone, Copy, Debug)]
struct Asked {
    serial: u64,
    op: u64,
    calls: u64,
    wait_us: u64,
}

/// One elastic thread's end of the crossing.
struct Crossing<'a> {
    request: &'a Request,
    reply: &'a Reply,
    /// Readable when the application has rung; closed when the last process with the other end has
    /// ended or executed another program.
    bell: BorrowedFd<'a>,
    waker: &'a Waker,
    cpu: u32,
    spin_ticks: u64,
    /// Number of the request that was carried out last.
    done: u64,
    /// Number of kicks that were passed on.
    kicks: Cell<u64>,
    /// The caller of the last request sleeps, or runs on this hardware thread.
    caller_is_here: bool,
    /// Set when the thread is to end.
    ends: &'a AtomicBool,
}

impl Dataplane {
    /// Carries out the requests of the application for this elastic thread. Called on a Linux
    /// thread that does nothing else. Returns when nobody has the other end of `bell` any more, or
    /// after [`Dataplane::end_requests`].
    ///
    /// # Panics
    /// Without [`crate::Reach::pages`].
    pub fn serve_requests(&self, thread: usize, bell: BorrowedFd<'_>, ends: &AtomicBool) {
        let pages: &CrossingPages = self.pages.as_ref().expect("a program in another process");
        run_on(&only(self.cpu(thread)));
        let per_us = self.page.ticks_per_us().max(1);
        let mut crossing = Crossing {
            request: pages.request(thread),
            reply: pages.reply(thread),
            bell,
            waker: &self.shared.wakers[thread],
            cpu: self.cpu(thread),
            spin_ticks: self.shared.config.idle_spin_us.saturating_mul(per_us),
            done: 0,
            kicks: Cell::new(0),
            caller_is_here: false,
            ends,
        };
        // SAFETY: this thread alone runs the elastic thread.
        unsafe { self.watch(thread, Some(bell.as_raw_fd())) };
        while let Some(asked) = crossing.next() {
            let (result, now_us) = self.carry_out(thread, &asked, &crossing);
            crossing.answer(&asked, result, now_us);
        }
    }

    /// Makes [`Dataplane::serve_requests`] of every thread return, once its `ends` is set.
    pub fn end_requests(&self) {
        for waker in &self.shared.wakers {
            waker.kick();
            // It may sleep for a request, where it looks at nothing but the eventfd.
            crate::doorbell::ring(waker.fd());
        }
    }

    /// Returns the result, and the time of the last cycle.
    fn carry_out(&self, thread: usize, asked: &Asked, crossing: &Crossing<'_>) -> (i64, u64) {
        let now_us = monotonic_ns() / 1000;
        match asked.op {
            gate_op::RUN_IO if asked.calls > CALLS_MAX as u64 => (-error::INVALID, now_us),
            gate_op::RUN_IO => self.run_until_told(thread, asked, crossing),
            gate_op::SHARE => {
                self.share(thread);
                (0, now_us)
            }
            gate_op::LEAVE => {
                // SAFETY: the calling thread alone runs the elastic thread.
                unsafe { self.leave(thread) };
                (0, now_us)
            }
            _ => (-error::NO_SYS, now_us),
        }
    }

    /// `RUN_IO`. A bell that rings wakes the thread, but only a kick ends the wait.
    fn run_until_told(&self, thread: usize, asked: &Asked, crossing: &Crossing<'_>) -> (i64, u64) {
        let forever = asked.wait_us == gate_op::WAIT_FOREVER;
        let end_ns = monotonic_ns().saturating_add(asked.wait_us.saturating_mul(1000));
        let (mut calls, mut wait_us) = (asked.calls as usize, asked.wait_us);
        let kicked = Cell::new(false);
        let look = || kicked.set(kicked.get() | crossing.pass_kick_on());
        loop {
            look();
            // SAFETY: the calling thread alone runs the elastic thread.
            let outcome = unsafe { self.run_io_and(thread, calls, wait_us, &look) };
            if outcome.events > 0 || wait_us == 0 {
                return (outcome.events as i64, outcome.now_us);
            }
            look();
            if !forever {
                wait_us = end_ns.saturating_sub(monotonic_ns()) / 1000;
            }
            if kicked.get() || wait_us == 0 || !crossing.silence() {
                crossing.waker.take_kick();
                return (0, outcome.now_us);
            }
            calls = 0;
        }
    }
}

impl Crossing<'_> {
    /// Waits for the next request; `None`: there will be none.
    fn next(&mut self) -> Option<Asked> {
        let mut looks = 0;
        let mut since = ticks();
        loop {
            if let Some(asked) = self.look() {
                return Some(asked);
            }
            if self.caller_is_here {
                let_others_run();
            } else {
                core::hint::spin_loop();
                looks += 1;
                if looks % LOOKS_PER_CLOCK != 0 {
                    continue;
                }
            }
            if ticks().wrapping_sub(since) >= self.spin_ticks {
                if !self.sleep() {
                    return None;
                }
                since = ticks();
            }
        }
    }

    fn requests(&self) -> Direction<'_> {
        requests(self.request, self.reply)
    }

    /// The next request, if it is there.
    fn look(&mut self) -> Option<Asked> {
        let request = self.request;
        let serial = self.requests().newest();
        if serial == self.done {
            return None;
        }
        self.done = serial;
        self.caller_is_here = request.cpu.load(Ordering::Relaxed) == self.cpu;
        Some(Asked {
            serial,
            op: request.op.load(Ordering::Relaxed),
            calls: request.calls.load(Ordering::Relaxed),
            wait_us: request.wait_us.load(Ordering::Relaxed),
        })
    }

    /// Publishes the reply, and wakes the caller if it sleeps.
    fn answer(&self, asked: &Asked, result: i64, now_us: u64) {
        let reply = self.reply;
        reply.now_us.store(now_us, Ordering::Relaxed);
        reply.result.store(result as u64, Ordering::Relaxed);
        if replies(self.request, reply).publish(asked.serial) {
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // SAFETY: one byte of a constant. A socket that is full was rung; one that is closed
            // is noticed by who waits.
            unsafe { libc::send(self.bell.as_raw_fd(), b"r".as_ptr().cast(), 1, flags) };
        }
    }

    /// Sleeps until the application or the waker rings. False: there will be no request.
    fn sleep(&self) -> bool {
        let waits = self.requests().going_to_sleep() != self.done;
        if !waits && !self.ends.load(Ordering::Relaxed) {
            let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut polls = [poll(self.bell.as_raw_fd()), poll(self.waker.fd())];
            // SAFETY: an array of two, without a limit of time.
            unsafe { libc::poll(polls.as_mut_ptr(), 2, -1) };
            crate::doorbell::drain(self.waker.fd());
        }
        self.requests().awake();
        self.silence()
    }

    /// Takes what was rung. False: nobody has the other end any more, or the thread is to end.
    fn silence(&self) -> bool {
        let mut rung = [0u8; 256];
        let (to, len) = (rung.as_mut_ptr().cast(), rung.len());
        // SAFETY: a local of that length.
        let n = unsafe { libc::recv(self.bell.as_raw_fd(), to, len, libc::MSG_DONTWAIT) };
        n != 0 && !self.ends.load(Ordering::Relaxed)
    }

    /// Whether the application has kicked since the last time. Its `RUN_IO` then returns.
    fn pass_kick_on(&self) -> bool {
        let kicks = self.request.kick.load(Ordering::SeqCst);
        let is_new = self.kicks.replace(kicks) != kicks;
        if is_new {
            self.waker.kick();
        }
        is_new
    }
}
