//! Events and the loop.
//!
//! A base is a lock around plain books. Programs' functions are called without the lock, so they,
//! and other threads, may add, delete and free whatever they like; a bell wakes a loop that waits.
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
    /// Until something was told.
    pub const ONCE: i32 = 1;
    /// Without a wait.
    pub const NONBLOCK: i32 = 2;
    /// Even when nothing is waited for.
    pub const NO_EXIT_ON_EMPTY: i32 = 4;
}

/// A base: what programs hold a pointer to.
pub struct event_base {
    books: Mutex<Books>,
    /// For waits without the lock.
    set: AtomicI32,
    bell: c_int,
    /// The thread in the loop; 0: none.
    looper: AtomicU64,
    /// It may be waiting.
    waits: AtomicBool,
}

/// All that is written down about events.
struct Books {
    poll: Poll,
    timers: BTreeMap<(u64, u64), Ev>,
    timers_made: u64,
    signals: BTreeMap<c_int, Signal>,
    active: Vec<VecDeque<Ev>>,
    /// Events in lists, those of the library not counted.
    waited_for: usize,
    ends: Ends,
    /// The event whose function runs, and on which thread: who deletes it elsewhere waits for that.
    running: Option<Ev>,
}

struct Signal {
    events: Vec<Ev>,
    before: signal::Before,
}

/// How a loop was asked to end.
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
    /// Without events.
    pub fn new() -> io::Result<event_base> {
        let (poll, bell) = (Poll::new()?, signal::new_bell()?);
        let set = AtomicI32::new(poll.set());
        poll.watch(bell)?;
        let books = Books {
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
        Ok(event_base { books: Mutex::new(books), set, bell, looper, waits })
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the loop if another thread waits in it.
    fn wake(&self) {
        let looper = self.looper.load(Ordering::SeqCst);
        if looper != 0 && looper != this_thread() && self.waits.load(Ordering::SeqCst) {
            signal::ring(self.bell);
        }
    }

    /// Waits for what the event wants, and for a time if there is one.
    pub fn add(&self, ev: Ev, timeout_us: Option<u64>) -> io::Result<()> {
        let added = self.books().add(ev, timeout_us, self.bell);
        self.wake();
        added
    }

    /// Waits no more, and does not tell what was to be told. When this comes back the event's
    /// function does not run on another thread.
    pub fn remove(&self, ev: Ev) {
        self.books().remove(ev);
        self.wake();
        let looper = self.looper.load(Ordering::SeqCst);
        if looper != 0 && looper != this_thread() {
            while self.books().running == Some(ev) {
                std::thread::yield_now();
            }
        }
    }

    /// The same, whether its function runs elsewhere or not.
    pub fn remove_at_once(&self, ev: Ev) {
        self.books().remove(ev);
        self.wake();
    }

    /// A forked child's own epoll set, with the same descriptors.
    pub fn renew(&self) -> io::Result<()> {
        let mut books = self.books();
        let mut poll = Poll::new()?;
        poll.watch(self.bell)?;
        for ev in books.poll.all() {
            poll.add(ev)?;
        }
        self.set.store(poll.set(), Ordering::SeqCst);
        books.poll = poll;
        Ok(())
    }

    /// Takes the time away from an event.
    pub fn remove_time(&self, ev: Ev) {
        self.books().stop_timer(ev);
        ev.interval_us.set(NEVER);
    }

    /// Tells an event although nothing has happened.
    pub fn activate(&self, ev: Ev, result: i16) {
        self.books().activate(ev, result, 1);
        self.wake();
    }

    /// Events for which the loop waits.
    pub fn events(&self) -> usize {
        self.books().waited_for
    }

    /// How many priorities there are; `false`: events are to be told already.
    pub fn set_priorities(&self, count: usize) -> bool {
        let mut books = self.books();
        let idle = books.active.iter().all(VecDeque::is_empty);
        if idle && count > 0 {
            books.active.resize_with(count, VecDeque::new);
        }
        idle && count > 0
    }

    /// How many priorities there are.
    pub fn priorities(&self) -> usize {
        self.books().active.len()
    }

    /// Ends the loop: after what is to be told now, or at once.
    pub fn end(&self, at_once: bool) {
        let mut books = self.books();
        if at_once {
            books.ends.at_once = true;
        } else {
            books.ends.exit = true;
        }
        drop(books);
        self.wake();
    }

    /// Looks for new events before it tells others.
    pub fn again(&self) {
        self.books().ends.again = true;
    }

    /// Whether the loop was asked to end so.
    pub fn was_ended(&self, at_once: bool) -> bool {
        let ends = self.books().ends;
        if at_once { ends.at_once } else { ends.exit }
    }

    /// All events, for a base that is freed.
    pub fn forget_all(&self) {
        let mut books = self.books();
        let mut all: Vec<Ev> = books.timers.values().copied().collect();
        all.extend(books.poll.all());
        all.extend(books.signals.values().flat_map(|signal| signal.events.iter().copied()));
        all.extend(books.active.iter().flatten().copied());
        for ev in all {
            books.remove(ev);
        }
    }

    /// Runs; answers 0, 1 (nothing to wait for) or -1.
    pub fn run(&self, flags: c_int) -> c_int {
        let free =
            self.looper.compare_exchange(0, this_thread(), Ordering::SeqCst, Ordering::SeqCst);
        if free.is_err() {
            crate::log::warn("event_base_loop: it runs already, and only one can run on a base");
            return -1;
        }
        self.books().ends = Ends::default();
        let answer = self.cycles(flags);
        self.looper.store(0, Ordering::SeqCst);
        answer
    }

    fn cycles(&self, flags: c_int) -> c_int {
        let mut ready = Ready::new();
        loop {
            let mut books = self.books();
            books.ends.again = false;
            if books.ends.exit || books.ends.at_once {
                return 0;
            }
            let something = books.waited_for > 0 || books.has_active();
            if !something && flags & flag::NO_EXIT_ON_EMPTY == 0 {
                return 1;
            }
            let poll = books.has_active() || flags & flag::NONBLOCK != 0;
            let wait_us = if poll { 0 } else { books.patience() };
            self.waits.store(wait_us > 0, Ordering::SeqCst);
            drop(books);
            let waited = poll::wait(self.set.load(Ordering::SeqCst), wait_us, &mut ready);
            self.waits.store(false, Ordering::SeqCst);
            if let Err(error) = waited {
                crate::log::warn(&format!("epoll_wait: {error}"));
                return -1;
            }
            self.books().collect(&ready, self.bell);
            if self.books().has_active() {
                self.tell();
                if flags & flag::ONCE != 0 && !self.books().has_active() {
                    return 0;
                }
            } else if flags & flag::NONBLOCK != 0 {
                return 0;
            }
        }
    }

    /// Tells the events of the first priority that has any.
    fn tell(&self) {
        let Some(level) = self.books().active.iter().position(|queue| !queue.is_empty()) else {
            return;
        };
        loop {
            let mut books = self.books();
            let Some(ev) = books.active[level].pop_front() else { return };
            let call = books.begin(ev);
            books.running = Some(ev);
            drop(books);
            call.call(self);
            let mut books = self.books();
            books.running = None;
            if books.ends.at_once || books.ends.again {
                return;
            }
        }
    }
}

impl Drop for event_base {
    fn drop(&mut self) {
        // SAFETY: ours alone.
        unsafe { libc::close(self.bell) };
    }
}

/// A program's function, ready to be called when the event itself may be gone.
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
            // SAFETY: the program's own function for this event, with the argument it gave.
            unsafe { callback(self.fd, self.result, self.arg) };
            if self.times > 1 && base.was_ended(true) {
                break;
            }
        }
    }
}

impl Books {
    fn has_active(&self) -> bool {
        self.active.iter().any(|queue| !queue.is_empty())
    }

    /// How long nothing is due, µs.
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

    fn add(&mut self, ev: Ev, timeout_us: Option<u64>, bell: c_int) -> io::Result<()> {
        if !ev.is_in(list::INSERTED | list::ACTIVE) {
            if ev.wants(what::IO) {
                self.poll.add(ev)?;
                self.enter(ev, list::INSERTED);
            } else if ev.wants(what::SIGNAL) {
                self.add_signal(ev, bell)?;
                self.enter(ev, list::INSERTED);
            }
        }
        if let Some(timeout_us) = timeout_us {
            let again = ev.wants(what::PERSIST) && timeout_us > 0;
            ev.interval_us.set(if again { timeout_us } else { NEVER });
            if ev.is_in(list::ACTIVE) && ev.result.get() & what::TIMEOUT != 0 {
                // It was to be told of the time that is replaced.
                self.deactivate(ev);
            }
            self.start_timer(ev, now_us().saturating_add(timeout_us));
        }
        Ok(())
    }

    fn add_signal(&mut self, ev: Ev, bell: c_int) -> io::Result<()> {
        let number = ev.fd.get();
        match self.signals.get_mut(&number) {
            Some(signal) => signal.events.push(ev),
            None => {
                let before = signal::begin(number, bell)?;
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

    /// Takes in what a wait brought, and the timers that are due.
    fn collect(&mut self, ready: &Ready, bell: c_int) {
        for (fd, result) in ready {
            if *fd == bell {
                signal::hush(bell);
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

    /// The event is told next: what it does not persist in ends before.
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
            // A time that passed begins anew where it ended, so that it does not drift; one that
            // was not awaited begins now.
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
