//! `run_io` on Linux: turns of the cycle until there are events for the application, with bounded
//! spinning and then sleep on the doorbells.
use crate::clock::{Clock, ticks};
use crate::cycle::ElasticThread;
use crate::observe::metrics::{Place, Stage, ThreadState};
use crate::observe::survey::SLICE;
use ix_abi::{WillEntry, WillState};
use ix_proto::crossing::AttachmentId;
use std::os::fd::RawFd;

/// The result of `run_io`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunOutcome {
    /// Events in the array.
    pub events: usize,
    /// Time of the last cycle, µs.
    pub now_us: u64,
    /// A signal is pending for the application.
    pub signal: bool,
}

/// Processes of the program that are not present, as the wait of the others sees them.
pub trait Callers {
    /// Whether one of them calls, or one that waits is to be woken.
    fn call(&self) -> bool;
    /// Whether one of them computes on the hardware thread of this elastic thread.
    fn share_cpu(&self) -> bool;
    /// Whether one that waits gets the hardware thread of this elastic thread when it has events.
    fn take_turns(&self) -> bool;
    /// A caller must ring, or need not any more. What was said before is seen by
    /// [`Callers::call`].
    fn ring_from_now_on(&self, yes: bool);
    /// Gives `add` the descriptors by which they ring.
    fn bells(&self, add: &mut dyn FnMut(RawFd));
    /// This descriptor was readable; whether it is a bell of theirs, which is silent again.
    fn rung(&self, fd: RawFd) -> bool;
}

/// There are none: the program is in this process.
pub struct Alone;

impl Callers for Alone {
    #[inline(always)]
    fn call(&self) -> bool {
        false
    }

    #[inline(always)]
    fn share_cpu(&self) -> bool {
        false
    }

    #[inline(always)]
    fn take_turns(&self) -> bool {
        false
    }

    fn ring_from_now_on(&self, _: bool) {}

    fn bells(&self, _: &mut dyn FnMut(RawFd)) {}

    fn rung(&self, _: RawFd) -> bool {
        false
    }
}

/// An elastic thread with a clock and a way to sleep.
pub struct Runner {
    /// The elastic thread.
    pub thread: ElasticThread,
    clock: Clock,
    /// Readable while a blocked signal is pending for this Linux thread.
    signal_fd: Option<RawFd>,
    /// A descriptor of the application that ends a wait when it is readable.
    watched_fd: Option<RawFd>,
    /// When to check for signals and updates of devices again.
    check_us: u64,
    polls: Vec<libc::pollfd>,
    /// The sleep that has just ended would have noticed signals and updates, so the first events
    /// after it need no further check.
    heard: bool,
    /// The last turn has done something, or there was none since the last sleep.
    pub(crate) busy: bool,
    /// Number of turns for which an update of a device has waited.
    put_off: u32,
    /// Number of times that a process of the program has returned.
    run: u64,
    /// When the last one did, µs; `None` once this was used.
    begun_us: Option<u64>,
    /// The application runs this thread.
    entered: bool,
    /// Another elastic thread is pinned to the same hardware thread.
    shares_cpu: bool,
    /// The thread owns no flow group and must leave its hardware thread to others.
    parked: bool,
}

/// Time between checks for signals and the broker's messages while there is always work, µs.
const CHECK_US: u64 = 1_000;
/// Number of checks for work between two readings of the clock.
const LOOKS_PER_CLOCK: u32 = 16;
/// One in this number of looks for packets is a look for all other work too.
const PACKETS_PER_LOOK: u32 = 4;
/// Most turns that an update may wait: enough to empty the longest receive ring with small batches.
const PUT_OFF_MAX: u32 = 256;
/// A nearer deadline is waited for without sleep, because sleeping and waking take about as long.
const NAP_MIN_US: u64 = 60;
/// An application of a parked thread that only polls waits this long.
const PARKED_WAIT_US: u64 = 100_000;
/// Longest sleep while a thread waits for another to do its part of a command, or has more to look
/// at of processes that have ended.
const NAP_UNSETTLED_US: u64 = 2_000;
/// Longest sleep while something for the broker waits for room in its channel.
const NAP_UNSENT_US: u64 = 10_000;
/// How often a thread receives once more before it gives its hardware thread away.
const RECEIVED_MORE_MAX: u32 = 4;
/// Longest sleep with a device that has no doorbell.
const NAP_WITHOUT_DOORBELL_US: u64 = 50;

impl Runner {
    /// The wait loop of `thread`.
    pub fn new(mut thread: ElasticThread, clock: Clock) -> Runner {
        thread.run_on_linux();
        let polls = Vec::with_capacity(8);
        let cpus = &thread.shared.config.cpus;
        let same = |cpu: &&u32| cpus.get(thread.io.cx.index) == Some(*cpu);
        let shares_cpu = cpus.iter().filter(same).count() > 1;
        Runner {
            shares_cpu,
            thread,
            clock,
            signal_fd: None,
            watched_fd: None,
            check_us: 0,
            polls,
            heard: false,
            busy: true,
            put_off: 0,
            run: 0,
            begun_us: None,
            entered: false,
            parked: false,
        }
    }

    /// A wait also ends when this descriptor becomes readable.
    pub fn watch(&mut self, fd: Option<RawFd>) {
        self.watched_fd = fd;
    }

    /// Checks this descriptor (a signalfd) for signals from now on.
    pub fn set_signal_fd(&mut self, fd: Option<RawFd>) {
        self.signal_fd = fd;
    }

    /// A process of the program has returned: carries out its calls. It is present from now on.
    pub fn begin_for(&mut self, caller: AttachmentId, calls: usize) {
        self.thread.io.cx.metrics.whereabouts.set(Place::Dataplane);
        self.run += 1;
        let (now_us, ticks) = self.clock.read();
        self.thread.io.cx.metrics.enter_at(Stage::Calls, ticks);
        if !self.entered {
            self.entered = true;
            self.thread.io.enter(now_us);
            self.ring_guard();
        }
        self.thread.begin_for(caller, calls, now_us);
        self.begun_us = Some(now_us);
    }

    /// To be called when nobody is present any more: all processes compute.
    pub(crate) fn goes_outside(&mut self, now_us: u64) {
        self.thread.io.cx.metrics.whereabouts.set(Place::Application { since_us: now_us });
    }

    /// Runs cycles until there are events, or for `wait_us`, or until a process calls that is not
    /// present. Calls `look_after` with the time about every millisecond, between two cycles.
    pub fn wait<C: Callers>(
        &mut self,
        wait_us: u64,
        look_after: &dyn Fn(u64),
        callers: &C,
    ) -> RunOutcome {
        // Also where others wait on, after one of them has got its events.
        self.thread.io.cx.metrics.whereabouts.set(Place::Dataplane);
        let outcome = self.cycle(wait_us, look_after, callers);
        self.goes_outside(outcome.now_us);
        outcome
    }

    /// To be called when a process of the program has left this thread. With the last one the flow
    /// groups that are still here go to the other threads, for at most `patience_us`.
    pub fn leave(&mut self, who: AttachmentId, patience_us: u64) {
        let start_us = self.clock.now_us();
        self.thread.clear_app_timers(who);
        self.thread.io.cx.attached[who].has_entered = false;
        if !self.thread.io.cx.attached.is_alone(who) {
            self.thread.owes_no_return(who);
            return;
        }
        (self.entered, self.parked) = (false, false);
        // No cycle may come that would go on with it.
        self.thread.end_all_listeners();
        self.thread.io.leave();
        let mut now_us = start_us;
        while now_us < start_us + patience_us {
            let gone = self.thread.groups_here().is_empty() && self.thread.at_rest();
            // The last thread keeps its groups, and the packets for them stay in its devices.
            if gone || !self.thread.shared.lives.is_unsettled() {
                break;
            }
            self.turn_alone(now_us);
            if !self.busy {
                // SAFETY: a plain system call without arguments.
                unsafe { libc::sched_yield() };
            }
            now_us = self.clock.now_us();
        }
        self.thread.run_housekeeping(now_us, true);
        self.thread.publish_groups();
        self.thread.io.cx.metrics.whereabouts.set(Place::Dataplane);
    }

    /// Whether a process of the program runs this thread.
    pub(crate) fn is_entered(&self) -> bool {
        self.entered
    }

    /// A process of the program has ended: does what it has left to be done, before
    /// [`Self::end_process`]. `asked`: the calls of a request that was not taken.
    pub(crate) fn carry_out_will(
        &mut self,
        number: AttachmentId,
        asked: usize,
        will: (WillState, Vec<WillEntry>),
        now_us: u64,
    ) {
        if self.entered {
            self.thread.carry_out_will(number, asked, will, now_us);
        }
    }

    /// A process of the program has ended: closes its connections. `goes_on`: there are others.
    /// Returns whether [`Self::leave_ended`] must be called for it, from time to time.
    pub(crate) fn end_process(&mut self, number: AttachmentId, goes_on: bool, now_us: u64) -> bool {
        // The guard, and operators, see that nobody computes now.
        self.thread.io.cx.metrics.whereabouts.set(Place::Dataplane);
        self.thread.end_process(number, now_us);
        // What it has left is sent, whether somebody is present or not.
        self.thread.turn(now_us);
        goes_on && self.entered && !self.leave_ended(number)
    }

    /// Leaves this thread for a process that has ended. Returns false if it is too early: it was
    /// the last one here, its connections have not ended, and no other thread gets them that would
    /// finish them. The guard finishes them; it serves entered threads only.
    pub(crate) fn leave_ended(&mut self, number: AttachmentId) -> bool {
        let (shared, index) = (&self.thread.shared, self.thread.io.cx.index);
        let is_active = |other| shared.lives.state(other) == ThreadState::Active;
        let goes_on = !shared.lives.is_any_shared()
            && (0..shared.threads()).any(|other| other != index && is_active(other));
        let is_last = self.thread.io.cx.attached.is_alone(number);
        if is_last && !goes_on && self.thread.flows.count > 0 {
            return false;
        }
        if is_last {
            // Nobody is here who would wait for it.
            self.thread.close_all_ended();
        }
        self.leave(number, 0);
        true
    }

    /// Wakes the guard, which sleeps while all threads do. There is no hurry until an application
    /// can have stayed away for too long: a packet that has woken this thread does not wait for the
    /// guard.
    fn ring_guard(&self) {
        let guard = &self.thread.shared.guard;
        if guard.must_ring() {
            start_timer(guard.fd(), self.thread.shared.config.nonresponsive_us / 2);
        }
    }

    /// Most packets in a batch.
    pub(crate) fn batch(&self) -> usize {
        self.thread.shared.config.batch
    }

    /// Whether something waits that only a cycle with the program's processes present brings them.
    pub(crate) fn owes_a_cycle(&self) -> bool {
        let index = self.thread.io.cx.index;
        self.thread.owes_a_cycle() || self.thread.shared.updates.waits(index) || self.parked
    }

    /// Sends what calls have asked for whose process has its events already, and computes.
    pub(crate) fn send_behind(&mut self) {
        let now_us = self.clock.now_us();
        self.thread.send_behind(now_us);
    }

    /// Receives a batch while all processes compute, if packets have come; returns their number.
    pub(crate) fn receive_ahead(&mut self) -> usize {
        if !self.thread.has_work() {
            return 0;
        }
        let now_us = self.clock.now_us();
        self.thread.receive_ahead(now_us)
    }

    /// Serves the network while the application is non-responsive.
    pub(crate) fn serve_non_responsive(&mut self) {
        let now_us = self.clock.now_us();
        self.thread.turn_non_responsive(now_us);
    }

    /// Runs a cycle without an application: all its events count as processed.
    pub(crate) fn turn_alone(&mut self, now_us: u64) {
        self.run += 1;
        self.thread.begin_alone(now_us);
        self.thread.attend(self.run, now_us);
        self.busy = self.thread.turn(now_us).busy;
    }

    fn cycle<C: Callers>(
        &mut self,
        wait_us: u64,
        look_after: &dyn Fn(u64),
        callers: &C,
    ) -> RunOutcome {
        let start_us = self.begun_us.take().unwrap_or_else(|| self.clock.now_us());
        let until_us = start_us.saturating_add(wait_us);
        let parked_until_us = start_us.saturating_add(PARKED_WAIT_US);
        let spin_us = self.thread.shared.config.idle_spin_us;
        let mut busy_us = start_us;
        let mut now_us = start_us;
        let mut packets_wait = false;
        let index = self.thread.io.cx.index;
        let shares_cpu = self.shares_cpu;
        loop {
            if self.thread.shared.updates.waits(index) {
                self.attend(now_us);
            }
            let until_us = if self.parked { until_us.max(parked_until_us) } else { until_us };
            let looked = std::mem::take(&mut packets_wait);
            let mut report = match looked {
                true => self.thread.turn_to_receive(now_us),
                false => self.thread.turn(now_us),
            };
            if report.events > 0 && callers.take_turns() {
                report.events = self.receive_more(report.events);
            }
            self.busy = report.busy;
            let heard = std::mem::take(&mut self.heard);
            if report.events > 0 {
                let signal =
                    !heard && now_us >= self.check_us && self.look_outside(now_us, look_after);
                return self.come_back(now_us, signal);
            }
            // Before the end of the wait, so that a program that only polls learns of these as
            // well.
            if now_us >= self.check_us && self.look_outside(now_us, look_after) {
                return self.come_back(now_us, true);
            }
            let called = self.thread.shared.wakers[index].take_kick() || callers.call();
            if now_us >= until_us || called {
                return self.come_back(now_us, false);
            }
            self.thread.io.cx.metrics.waits();
            if report.busy {
                busy_us = now_us;
            } else if looked {
                // It was not a packet: a whole turn processes it.
            } else if self.parked || now_us - busy_us >= spin_us {
                if self.sleep(now_us, until_us, callers) {
                    now_us = self.clock.now_us();
                    return self.come_back(now_us, false);
                }
                self.busy = true;
                // The packet that has woken the thread comes before all else that is due.
                packets_wait = self.thread.has_work();
                now_us = self.clock.now_us();
                self.check_us = 0;
                // One more round of polling before the next sleep, not the whole spinning time.
                busy_us = now_us.saturating_sub(spin_us / 2);
                continue;
            } else if shares_cpu || callers.share_cpu() || self.thread.is_transmitting() {
                // Another elastic thread on this processor may have work, or a process of the
                // program. Or the kernel has packets
                // of this thread, and may need the processor to send them (a softirq that was
                // deferred to a kernel thread).
                // SAFETY: a plain system call without arguments.
                unsafe { libc::sched_yield() };
            } else {
                let check_us = until_us.min(self.check_us).min(busy_us + spin_us);
                (now_us, packets_wait) = self.look_for_work(check_us, callers);
                continue;
            }
            now_us = self.clock.now_us();
        }
    }

    /// Receives what has come while these events were made, up to a batch of events, before the
    /// hardware thread is given away: it would cost the program another turn. Returns the number of
    /// events.
    fn receive_more(&mut self, mut events: usize) -> usize {
        for _ in 0..RECEIVED_MORE_MAX {
            if events >= self.batch() || !self.thread.has_work() {
                break;
            }
            let now_us = self.clock.now_us();
            events = self.thread.turn_to_receive(now_us).events;
        }
        events
    }

    /// The outcome now. The check for signals and updates may have added events.
    fn come_back(&mut self, now_us: u64, signal: bool) -> RunOutcome {
        let events = self.thread.io.cx.attached.events();
        self.thread.io.cx.metrics.counters.events.add(events as u64);
        RunOutcome { events, now_us, signal }
    }

    /// Looks at memory only, until there may be something to do or until `until_us`. A whole turn
    /// costs as much as half a message, and would delay a packet that arrives just then by as much.
    /// Returns the time, and whether there is something to do.
    fn look_for_work<C: Callers>(&mut self, until_us: u64, callers: &C) -> (u64, bool) {
        let until_us = until_us.min(self.thread.next_deadline_us().unwrap_or(u64::MAX));
        loop {
            for look in 0..LOOKS_PER_CLOCK {
                let is_all = look % PACKETS_PER_LOOK == 0;
                if self.thread.has_packets() || is_all && self.thread.has_rare_work() {
                    let (now_us, ticks) = self.clock.read();
                    self.thread.io.cx.metrics.enter_at(Stage::Poll, ticks);
                    return (now_us, true);
                }
            }
            let now_us = self.clock.now_us();
            if now_us >= until_us || callers.call() {
                return (now_us, false);
            }
        }
    }

    /// Does what the control plane and other threads want of this thread.
    #[cold]
    fn attend(&mut self, now_us: u64) {
        self.take_updates(now_us);
        let index = self.thread.io.cx.index;
        if self.thread.shared.updates.is_capture(index) {
            self.thread.look_at_capture();
        }
        if self.thread.shared.updates.is_ordered(index) {
            self.attend_life(now_us);
        }
        if self.thread.shared.updates.is_surveyed(index) {
            self.thread.attend_survey(SLICE, now_us);
        }
    }

    #[cold]
    fn attend_life(&mut self, now_us: u64) {
        self.thread.attend(self.run, now_us);
        let state = self.thread.shared.lives.state(self.thread.io.cx.index);
        self.parked = state == ThreadState::Parked;
    }

    /// Applies updates of devices once the old links are empty, because what a peer has sent before
    /// it ended counts. A device that is never empty delays them for a bounded time.
    #[cold]
    fn take_updates(&mut self, now_us: u64) {
        if !self.thread.shared.updates.has_parts(self.thread.io.cx.index) {
            return;
        }
        if self.busy && self.put_off < PUT_OFF_MAX {
            self.put_off += 1;
            return;
        }
        self.put_off = 0;
        let ElasticThread { io, tcp, flows, .. } = &mut self.thread;
        io.take_updates(now_us);
        if let Some(mtu) = io.ports.iter().map(|port| port.info.mtu).min() {
            tcp.fit_to_devices(io, flows, mtu);
        }
    }

    /// Sleeps until a doorbell rings, another thread or a signal wakes it, or something is due.
    /// Returns whether the watched descriptor is readable.
    fn sleep<C: Callers>(&mut self, now_us: u64, until_us: u64, callers: &C) -> bool {
        let thread = &mut self.thread;
        let mut wake_us = thread.next_deadline_us().unwrap_or(u64::MAX).min(until_us);
        if wake_us < now_us + NAP_MIN_US {
            return false;
        }
        let mut watched = false;
        let index = thread.io.cx.index;
        let waker = &thread.shared.wakers[index];
        waker.set_sleeping(true);
        // From here on an update rings the waker, and so does a kick.
        callers.ring_from_now_on(true);
        let called = waker.is_kicked() || callers.call() || thread.shared.updates.waits(index);
        if !called && thread.may_sleep() {
            thread.run_housekeeping(now_us, true);
            wake_us = wake_us.min(thread.thrift_deadline_us().unwrap_or(u64::MAX));
            thread.publish_groups();
            if thread.shared.lives.needs_look() || thread.mourns() {
                wake_us = wake_us.min(now_us + NAP_UNSETTLED_US);
            }
            if thread.shared.updates.has_unsent() {
                wake_us = wake_us.min(now_us + NAP_UNSENT_US);
            }
            self.polls.clear();
            let mut add = |fd: RawFd| {
                self.polls.push(libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
            };
            for port in &thread.io.ports {
                match port.nic.doorbell() {
                    Some(fd) => add(fd),
                    None => wake_us = wake_us.min(now_us + NAP_WITHOUT_DOORBELL_US),
                }
                port.nic.more_doorbells(&mut add);
            }
            let waker_fd = thread.shared.wakers[index].fd();
            add(waker_fd);
            let source_fd = thread.shared.updates.source_fd();
            add(source_fd);
            if let Some(fd) = self.signal_fd {
                add(fd);
            }
            if let Some(fd) = self.watched_fd {
                add(fd);
            }
            callers.bells(&mut add);
            let since = ticks();
            thread.io.cx.metrics.sleeps(now_us);
            let wait_us = (wake_us < u64::MAX).then(|| wake_us.saturating_sub(now_us));
            let polled = poll(&mut self.polls, wait_us);
            thread.io.cx.metrics.slept(since);
            if thread.shared.updates.is_ordered(index) {
                let called = thread.shared.updates.ordered_at(index).max(since);
                thread.io.cx.metrics.wake_ticks.set(ticks().saturating_sub(called));
            }
            // A wake-up delays a packet: no system call is made that is not needed.
            let calls = |fd| self.polls.iter().any(|poll| poll.fd == fd && poll.revents != 0);
            if !polled || calls(waker_fd) {
                crate::doorbell::drain(waker_fd);
            }
            self.heard = polled && !calls(source_fd) && !self.signal_fd.is_some_and(calls);
            watched = self.watched_fd.is_some_and(calls);
            if polled {
                let rung = self.polls.iter().filter(|poll| poll.revents != 0);
                rung.for_each(|poll| watched |= callers.rung(poll.fd));
            }
        }
        callers.ring_from_now_on(false);
        thread.shared.wakers[index].set_sleeping(false);
        self.ring_guard();
        watched
    }

    /// Reads updates of devices, if there are any; returns whether a signal is pending.
    fn look_outside(&mut self, now_us: u64, look_after: &dyn Fn(u64)) -> bool {
        self.check_us = now_us + CHECK_US;
        self.thread.io.cx.metrics.look_at_window();
        // `poll` ignores a negative descriptor.
        let fds = [self.signal_fd.unwrap_or(-1), self.thread.shared.updates.source_fd()];
        let mut both = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        if fds != [-1, -1] {
            poll(&mut both, Some(0));
        }
        if both[1].revents != 0 || self.thread.shared.updates.has_unsent() {
            self.thread.io.read_updates(now_us);
        }
        if self.thread.shared.lives.is_unsettled() {
            self.attend_life(now_us);
        }
        self.thread.publish_groups();
        self.thread.io.take_over(now_us);
        look_after(now_us);
        both[0].revents & libc::POLLIN != 0
    }
}

/// Waits; returns whether it found out what is readable. `None`: without a limit, so that the
/// kernel need not start a timer and stop it when the thread wakes.
fn poll(polls: &mut [libc::pollfd], wait_us: Option<u64>) -> bool {
    let time = wait_us.map(|wait_us| libc::timespec {
        tv_sec: (wait_us / 1_000_000).min(i32::MAX as u64) as i64,
        tv_nsec: (wait_us % 1_000_000 * 1000) as i64,
    });
    let time = time.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: an exclusive slice and its length; a local or null; no signal mask. An error (EINTR)
    // is a wake-up.
    unsafe { libc::ppoll(polls.as_mut_ptr(), polls.len() as u64, time, core::ptr::null()) >= 0 }
}

/// Makes a timer's descriptor readable after this time, once.
fn start_timer(fd: RawFd, after_us: u64) {
    let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let us = after_us.clamp(1, 1_000_000_000);
    let after =
        libc::timespec { tv_sec: (us / 1_000_000) as i64, tv_nsec: (us % 1_000_000 * 1000) as i64 };
    let once = libc::itimerspec { it_interval: zero, it_value: after };
    // SAFETY: reads a local; the old value is not asked for. It fails for nothing but a wrong
    // descriptor.
    unsafe { libc::timerfd_settime(fd, 0, &once, core::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::raw::tests::{MAC, OURS, host_of, link};
    use crate::test_rig::TestThread;
    use ix_abi::{Call, Endpoint};
    use ix_wire::{Checksum, IpAddr};

    /// A process that waits.
    struct Waits {
        is_here: bool,
    }

    impl Callers for Waits {
        fn call(&self) -> bool {
            false
        }

        fn share_cpu(&self) -> bool {
            false
        }

        fn take_turns(&self) -> bool {
            self.is_here
        }

        fn ring_from_now_on(&self, _: bool) {}

        fn bells(&self, _: &mut dyn FnMut(RawFd)) {}

        fn rung(&self, _: RawFd) -> bool {
            false
        }
    }

    #[test]
    fn who_takes_turns_gets_what_has_come_meanwhile_up_to_a_batch() {
        const PORTS: [u16; 2] = [4001, 4000];
        const BATCH: usize = PORTS.len();
        let events = |is_here| {
            let config = Config::with_address(IpAddr::v4(OURS), 24);
            let mut host = host_of(1, Config { batch: BATCH, ..config });
            // Each batch is one event: no socket has the other port.
            for port in [PORTS; 4].as_flattened() {
                let mut frame = vec![0; 60];
                link(MAC).emit_udp(&mut frame, 9, *port, 18, Checksum::of(&[0; 18]));
                host.device.deliver(frame);
            }
            let TestThread { elastic, arrays: _arrays } = host.threads.remove(0);
            let mut runner = Runner::new(elastic, Clock::new());
            runner.begin_for(0, 0);
            let at = Endpoint { addr: [0; 16], port: PORTS[1] };
            let bound = runner.thread.run_call(Call::UdpBind { at, cookie: 5 });
            assert!(bound.is_ok(), "{bound:?}");
            runner.wait(0, &|_| {}, &Waits { is_here }).events
        };
        assert_eq!([events(false), events(true)], [1, BATCH]);
    }
}
