//! Events and the loop.
//!
//! A base is a lock around plain state. The program's functions are called without the lock, so
//! they, and other threads, may add, delete and free events. A wake descriptor (an eventfd) ends
//! the wait of a loop.
use crate::event::{Ev, NEVER, list, what};
use crate::poll::{self, Poll, Ready};
use crate::signal;
use core::ffi::{c_int, c_short, c_void};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Flags of a loop (`EVLOOP_*`).
pub mod flag {
    /// Until a callback has run.
    pub const ONCE: i32 = 1;
    /// Without waiting.
    pub const NONBLOCK: i32 = 2;
    /// Even when no event is added.
    pub const NO_EXIT_ON_EMPTY: i32 = 4;
}

/// A base: programs hold a pointer to this.
pub struct event_base {
    registry: Mutex<Registry>,
    /// epoll descriptor, for waits without the lock.
    set: AtomicI32,
    wake_fd: c_int,
    /// The thread in the loop; 0: none.
    looper: AtomicU64,
    /// The loop may be waiting.
    waits: AtomicBool,
}

/// All state of events.
struct Registry {
    poll: Poll,
    timers: BTreeMap<(u64, u64), Ev>,
    timers_made: u64,
    signals: BTreeMap<c_int, Signal>,
    active: Vec<VecDeque<Ev>>,
    /// Number of added events, without those of the library.
    waited_for: usize,
    ends: Ends,
    /// The event whose function runs, and its thread: deleting the event from another thread waits
    /// for its end.
    running: Option<Ev>,
}

struct Signal {
    events: Vec<Ev>,
    before: signal::Before,
}

/// How the loop was asked to end.
#[derive(Clone, Copy, Default)]
struct Ends {
    exit: bool,
    at_once: bool,
    again: bool,
}

/// Monotonic time, µs.
pub fn now_us() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills a local.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

fn this_thread() -> u64 {
    // SAFETY: a plain query.
    unsafe { libc::pthread_self() as u64 }
}

impl event_base {
    /// A base without events.
    pub fn new() -> io::Result<event_base> {
        let (poll, wake_fd) = (Poll::new()?, signal::new_wake_fd()?);
        let set = AtomicI32::new(poll.set());
        poll.watch(wake_fd)?;
        let registry = Registry {
            poll,
            timers: BTreeMap::new(),
            timers_made: 0,
            signals: BTreeMap::new(),
            active: vec![VecDeque::new()],
            waited_for: 0,
            ends: Ends::default(),
            running: None,
        };
        let (looper, waits) = (AtomicU64::new(0), AtomicBool::new(false));
        Ok(event_base { registry: Mutex::new(registry), set, wake_fd, looper, waits })
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the loop if another thread waits in it.
    fn wake(&self) {
        let looper = self.looper.load(Ordering::SeqCst);
        if looper != 0 && looper != this_thread() && self.waits.load(Ordering::SeqCst) {
            signal::wake_up(self.wake_fd);
        }
    }

    /// Adds an event, with a time if it has one.
    pub fn add(&self, ev: Ev, timeout_us: Option<u64>) -> io::Result<()> {
        let added = self.registry().add(ev, timeout_us, self.wake_fd);
        self.wake();
        added
    }

    /// Removes an event and cancels its pending callback. Afterwards the event's function does not
    /// run on another thread.
    pub fn remove(&self, ev: Ev) {
        self.registry().remove(ev);
        self.wake();
        let looper = self.looper.load(Ordering::SeqCst);
        if looper != 0 && looper != this_thread() {
            while self.registry().running == Some(ev) {
                std::thread::yield_now();
            }
        }
    }

    /// Removes an event without waiting for its function.
    pub fn remove_at_once(&self, ev: Ev) {
        self.registry().remove(ev);
        self.wake();
    }

    /// Gives a forked child its own epoll set, with the same descriptors.
    pub fn renew(&self) -> io::Result<()> {
        let mut registry = self.registry();
        let mut poll = Poll::new()?;
        poll.watch(self.wake_fd)?;
        for ev in registry.poll.all() {
            poll.add(ev)?;
        }
        self.set.store(poll.set(), Ordering::SeqCst);
        registry.poll = poll;
        Ok(())
    }

    /// Removes the time of an event.
    pub fn remove_time(&self, ev: Ev) {
        self.registry().stop_timer(ev);
        ev.interval_us.set(NEVER);
    }

    /// Activates an event although nothing has happened.
    pub fn activate(&self, ev: Ev, result: i16) {
        self.registry().activate(ev, result, 1);
        self.wake();
    }

    /// Number of events for which the loop waits.
    pub fn events(&self) -> usize {
        self.registry().waited_for
    }

    /// Sets the number of priorities. Returns false if events are already active.
    pub fn set_priorities(&self, count: usize) -> bool {
        let mut registry = self.registry();
        let idle = registry.active.iter().all(VecDeque::is_empty);
        if idle && count > 0 {
            registry.active.resize_with(count, VecDeque::new);
        }
        idle && count > 0
    }

    /// Number of priorities.
    pub fn priorities(&self) -> usize {
        self.registry().active.len()
    }

    /// Ends the loop: after the active events, or at once.
    pub fn end(&self, at_once: bool) {
        let mut registry = self.registry();
        if at_once {
            registry.ends.at_once = true;
        } else {
            registry.ends.exit = true;
        }
        drop(registry);
        self.wake();
    }

    /// Makes the loop look for new events before it calls further functions.
    pub fn again(&self) {
        self.registry().ends.again = true;
    }

    /// Whether the loop was asked to end in this way.
    pub fn was_ended(&self, at_once: bool) -> bool {
        let ends = self.registry().ends;
        if at_once { ends.at_once } else { ends.exit }
    }

    /// All events, for a base that is freed.
    pub fn forget_all(&self) {
        let mut registry = self.registry();
        let mut all: Vec<Ev> = registry.timers.values().copied().collect();
        all.extend(registry.poll.all());
        all.extend(registry.signals.values().flat_map(|signal| signal.events.iter().copied()));
        all.extend(registry.active.iter().flatten().copied());
        for ev in all {
            registry.remove(ev);
        }
    }

    /// Runs the loop. Returns 0, 1 if there are no events, or -1.
    pub fn run(&self, flags: c_int) -> c_int {
        let free =
            self.looper.compare_exchange(0, this_thread(), Ordering::SeqCst, Ordering::SeqCst);
        if free.is_err() {
            crate::log::warn("event_base_loop: a loop already runs on this base; only one can");
            return -1;
        }
        self.registry().ends = Ends::default();
        let answer = self.cycles(flags);
        self.looper.store(0, Ordering::SeqCst);
        answer
    }

    fn cycles(&self, flags: c_int) -> c_int {
        let mut ready = Ready::new();
        loop {
            let mut registry = self.registry();
            registry.ends.again = false;
            if registry.ends.exit || registry.ends.at_once {
                return 0;
            }
            let something = registry.waited_for > 0 || registry.has_active();
            if !something && flags & flag::NO_EXIT_ON_EMPTY == 0 {
                return 1;
            }
            let poll = registry.has_active() || flags & flag::NONBLOCK != 0;
            let wait_us = if poll { 0 } else { registry.patience() };
            self.waits.store(wait_us > 0, Ordering::SeqCst);
            drop(registry);
            let waited = poll::wait(self.set.load(Ordering::SeqCst), wait_us, &mut ready);
            self.waits.store(false, Ordering::SeqCst);
            if let Err(error) = waited {
                crate::log::warn(&format!("epoll_wait: {error}"));
                return -1;
            }
            self.registry().collect(&ready, self.wake_fd);
            if self.registry().has_active() {
                self.tell();
                if flags & flag::ONCE != 0 && !self.registry().has_active() {
                    return 0;
                }
            } else if flags & flag::NONBLOCK != 0 {
                return 0;
            }
        }
    }

    /// Calls the functions of the first priority with active events.
    fn tell(&self) {
        let Some(level) = self.registry().active.iter().position(|queue| !queue.is_empty()) else {
            return;
        };
        loop {
            let mut registry = self.registry();
            let Some(ev) = registry.active[level].pop_front() else { return };
            let call = registry.begin(ev);
            registry.running = Some(ev);
            drop(registry);
            call.call(self);
            let mut registry = self.registry();
            registry.running = None;
            if registry.ends.at_once || registry.ends.again {
                return;
            }
        }
    }
}

impl Drop for event_base {
    fn drop(&mut self) {
        // SAFETY: ours alone.
        unsafe { libc::close(self.wake_fd) };
    }
}

/// A program's function, which can be called even if the event has been freed.
struct Call {
    callback: Option<crate::event::Callback>,
    fd: c_int,
    result: c_short,
    arg: *mut c_void,
    times: usize,
}

impl Call {
    fn call(&self, base: &event_base) {
        let Some(callback) = self.callback else { return };
        for _ in 0..self.times {
            // SAFETY: the program's own function for this event, with its argument.
            unsafe { callback(self.fd, self.result, self.arg) };
            if self.times > 1 && base.was_ended(true) {
                break;
            }
        }
    }
}

impl Registry {
    fn has_active(&self) -> bool {
        self.active.iter().any(|queue| !queue.is_empty())
    }

    /// Time until something is due, µs.
    fn patience(&self) -> u64 {
        match self.timers.first_key_value() {
            Some(((due_us, _), _)) => due_us.saturating_sub(now_us()),
            None => u64::MAX,
        }
    }

    fn enter(&mut self, ev: Ev, list: i16) {
        if !ev.is_in(list) {
            ev.enter(list);
            self.waited_for += usize::from(!ev.is_in(list::INTERNAL));
        }
    }

    fn leave(&mut self, ev: Ev, list: i16) {
        if ev.is_in(list) {
            ev.leave(list);
            self.waited_for -= usize::from(!ev.is_in(list::INTERNAL));
        }
    }

    fn add(&mut self, ev: Ev, timeout_us: Option<u64>, wake_fd: c_int) -> io::Result<()> {
        if !ev.is_in(list::INSERTED | list::ACTIVE) {
            if ev.wants(what::IO) {
                self.poll.add(ev)?;
                self.enter(ev, list::INSERTED);
            } else if ev.wants(what::SIGNAL) {
                self.add_signal(ev, wake_fd)?;
                self.enter(ev, list::INSERTED);
            }
        }
        if let Some(timeout_us) = timeout_us {
            let again = ev.wants(what::PERSIST) && timeout_us > 0;
            ev.interval_us.set(if again { timeout_us } else { NEVER });
            if ev.is_in(list::ACTIVE) && ev.result.get() & what::TIMEOUT != 0 {
                // A callback for the replaced time is cancelled.
                self.deactivate(ev);
            }
            self.start_timer(ev, now_us().saturating_add(timeout_us));
        }
        Ok(())
    }

    fn add_signal(&mut self, ev: Ev, wake_fd: c_int) -> io::Result<()> {
        let number = ev.fd.get();
        match self.signals.get_mut(&number) {
            Some(signal) => signal.events.push(ev),
            None => {
                let before = signal::begin(number, wake_fd)?;
                self.signals.insert(number, Signal { events: vec![ev], before });
            }
        }
        Ok(())
    }

    fn remove(&mut self, ev: Ev) {
        self.stop_timer(ev);
        self.deactivate(ev);
        if !ev.is_in(list::INSERTED) {
            return;
        }
        self.leave(ev, list::INSERTED);
        if ev.wants(what::SIGNAL) {
            let number = ev.fd.get();
            if let Some(signal) = self.signals.get_mut(&number) {
                signal.events.retain(|other| *other != ev);
                if signal.events.is_empty() {
                    signal::end(number, &signal.before);
                    self.signals.remove(&number);
                }
            }
        } else {
            self.poll.remove(ev);
        }
    }

    fn start_timer(&mut self, ev: Ev, due_us: u64) {
        self.stop_timer(ev);
        self.timers_made += 1;
        ev.due[0].set(due_us);
        ev.due[1].set(self.timers_made);
        self.timers.insert((due_us, self.timers_made), ev);
        self.enter(ev, list::TIMEOUT);
    }

    fn stop_timer(&mut self, ev: Ev) {
        if ev.is_in(list::TIMEOUT) {
            self.timers.remove(&(ev.due[0].get(), ev.due[1].get()));
            self.leave(ev, list::TIMEOUT);
        }
    }

    fn activate(&mut self, ev: Ev, result: i16, calls: usize) {
        if ev.is_in(list::ACTIVE) {
            ev.result.set(ev.result.get() | result);
            return;
        }
        ev.result.set(result);
        ev.calls.set(calls);
        self.enter(ev, list::ACTIVE);
        let last = self.active.len() - 1;
        self.active[last.min(ev.priority.get().into())].push_back(ev);
    }

    fn deactivate(&mut self, ev: Ev) {
        if ev.is_in(list::ACTIVE) {
            self.leave(ev, list::ACTIVE);
            let last = self.active.len() - 1;
            self.active[last.min(ev.priority.get().into())].retain(|other| *other != ev);
        }
    }

    /// Handles the results of a wait, and the timers that are due.
    fn collect(&mut self, ready: &Ready, wake_fd: c_int) {
        for (fd, result) in ready {
            if *fd == wake_fd {
                signal::clear_wake_fd(wake_fd);
                self.collect_signals();
                continue;
            }
            for ev in self.poll.events(*fd).to_vec() {
                let told = result & ev.events.get();
                if told != 0 {
                    self.activate(ev, told | (ev.events.get() & what::ET), 1);
                }
            }
        }
        let now_us = now_us();
        while let Some((&(due_us, _), &ev)) = self.timers.first_key_value()
            && due_us <= now_us
        {
            self.stop_timer(ev);
            if !ev.wants(what::PERSIST) {
                self.remove_inserted(ev);
            }
            self.activate(ev, what::TIMEOUT, 1);
        }
    }

    fn remove_inserted(&mut self, ev: Ev) {
        if !ev.is_in(list::ACTIVE) {
            self.remove(ev);
        }
    }

    fn collect_signals(&mut self) {
        let numbers: Vec<c_int> = self.signals.keys().copied().collect();
        for number in numbers {
            let calls = signal::take(number) as usize;
            if calls > 0 {
                for ev in self.signals[&number].events.clone() {
                    self.activate(ev, what::SIGNAL, calls);
                }
            }
        }
    }

    /// The event's function will be called next. Unless the event is persistent, its wait ends
    /// first.
    fn begin(&mut self, ev: Ev) -> Call {
        self.leave(ev, list::ACTIVE);
        let call = Call {
            callback: ev.callback.get(),
            fd: ev.fd.get(),
            result: ev.result.get(),
            arg: ev.arg.get(),
            times: if ev.wants(what::SIGNAL) { ev.calls.get() } else { 1 },
        };
        if !ev.wants(what::PERSIST) {
            self.remove(ev);
        } else if ev.interval_us.get() != NEVER {
            // A timeout restarts from when it was due, so that it does not drift; any other event
            // restarts its time now.
            let now_us = now_us();
            let from_us = if call.result & what::TIMEOUT != 0 { ev.due[0].get() } else { now_us };
            let due_us = from_us.saturating_add(ev.interval_us.get());
            let late = due_us < now_us;
            let due_us = if late { now_us.saturating_add(ev.interval_us.get()) } else { due_us };
            self.start_timer(ev, due_us);
        }
        call
    }
}
