//! The stack that all calls share, its clock, and blocking calls.
//!
//! packetdrill makes calls that may block on a second thread and advances time on the first. A
//! blocked call tries again whenever time has advanced or a packet has arrived; time advances
//! further only after that. So the outcome does not depend on how the kernel schedules the two
//! threads. A blocking call on the first thread, which the script did not announce, advances time
//! itself, because no other thread would.
use ix_scripts::settings::Settings;
use ix_scripts::sockets::Sockets;
use ix_scripts::stack::Addresses;
use libc::c_int;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// Virtual time at the start.
const START_US: u64 = 1_000_000_000;
/// An expected packet arrives within three hours, or never: keepalives begin after two (RFC 9293
/// section 3.8.4).
const PATIENCE_US: u64 = 3 * 3_600_000_000;
/// Longest wait for a thread that must try its blocked call again.
const THREAD_PATIENCE: Duration = Duration::from_secs(5);
/// Time for packetdrill to read its clock after a call has returned.
const SETTLE: Duration = Duration::from_millis(2);

/// State of the interface's functions.
pub struct Plug {
    /// The thread that advances time.
    first: ThreadId,
    state: Mutex<State>,
    /// An event happened: blocked calls try again.
    moved: Condvar,
    /// A blocked call has tried, or has ended.
    tried: Condvar,
}

/// The state behind the lock.
pub struct State {
    /// Sockets of the script's program.
    pub sockets: Sockets,
    /// Sent packets that were not read, each with its time.
    sent: VecDeque<(u64, Vec<u8>)>,
    /// Number of blocked calls, and how many of them have not tried since `epoch` changed.
    blocked: usize,
    untried: usize,
    epoch: u64,
    /// A blocked call has returned since time advanced.
    came_back: bool,
}

// SAFETY: the stack's parts refer to each other by `Rc` and to nothing outside. They are all in
// here, no reference to them outlives the lock, and only the holder of the lock accesses them.
unsafe impl Send for State {}

impl Plug {
    /// A stack with these settings.
    pub fn new(flags: &str) -> Result<Plug, String> {
        let mut settings = Settings::default();
        let mut at = Addresses::V4;
        for word in flags.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let (name, value) =
                word.split_once('=').ok_or(format!("`{word}` is not NAME=VALUE"))?;
            let address = || value.parse().map_err(|_| format!("`{word}` is no IP address"));
            match name {
                "local" => at.local = address()?,
                "remote" => at.remote = address()?,
                "mtu" => match value.parse() {
                    Ok(mtu @ 68..=1900) => settings.set_mtu(mtu),
                    _ => return Err(format!("`{word}`: an MTU is 68 to 1900")),
                },
                name => settings.set(name, value)?,
            }
        }
        if !at.suit() {
            return Err("`local=` and `remote=` are of two families: name both of one".into());
        }
        let mut sockets = Sockets::new(settings, at, START_US);
        sockets.numbers = Some(reserve);
        let (blocked, untried, epoch, came_back) = (0, 0, 0, false);
        let sent = VecDeque::new();
        let state = State { sockets, sent, blocked, untried, epoch, came_back };
        let first = std::thread::current().id();
        let (moved, tried) = (Condvar::new(), Condvar::new());
        Ok(Plug { first, state: Mutex::new(state), moved, tried })
    }

    /// The stack. A panic in another call does not make this one fail.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out a call that does not block.
    pub fn now<T>(&self, call: impl FnOnce(&mut Sockets) -> T) -> T {
        let mut state = self.lock();
        let answer = call(&mut state.sockets);
        drop(self.let_try(state));
        answer
    }

    /// Tries a call until its result is not `again`, or `timeout_us` of virtual time are over; then
    /// it returns `late`.
    pub fn until_done<T>(
        &self,
        timeout_us: Option<u64>,
        mut call: impl FnMut(&mut Sockets) -> Option<T>,
        late: impl FnOnce() -> T,
    ) -> T {
        let mut state = self.lock();
        if let Some(answer) = call(&mut state.sockets) {
            drop(self.let_try(state));
            return answer;
        }
        let end_us = timeout_us.map(|us| state.sockets.now_us().saturating_add(us));
        if std::thread::current().id() == self.first {
            return self.wait_alone(state, end_us, call).unwrap_or_else(late);
        }
        state.blocked += 1;
        let mut seen = state.epoch;
        let answer = loop {
            state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
            if state.epoch == seen {
                continue;
            }
            seen = state.epoch;
            state.untried = state.untried.saturating_sub(1);
            let answer = call(&mut state.sockets);
            let over = end_us.is_some_and(|end| state.sockets.now_us() >= end);
            if answer.is_some() || over {
                break answer;
            }
            self.tried.notify_all();
        };
        state.blocked -= 1;
        state.came_back = true;
        self.tried.notify_all();
        drop(state);
        answer.unwrap_or_else(late)
    }

    /// Advances time until a call succeeds; `None`: it did not by its end. The script cannot act
    /// meanwhile, so a call without an end that outlasts all timers ends the process.
    fn wait_alone<'a, T>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        end_us: Option<u64>,
        mut call: impl FnMut(&mut Sockets) -> Option<T>,
    ) -> Option<T> {
        let limit_us = end_us.unwrap_or(state.sockets.now_us() + PATIENCE_US);
        loop {
            let goes_on = state.step(limit_us);
            if !goes_on && end_us.is_some() {
                state.sockets.advance(limit_us);
                state.collect();
            }
            state = self.let_try(state);
            let answer = call(&mut state.sockets);
            if answer.is_some() || !goes_on && end_us.is_some() {
                return answer;
            }
            if !goes_on {
                eprintln!(
                    "libix_packetdrill: a call blocks that the script waits for: nothing ends it; \
                     give it an end (`+0...1 read(…)`), or its socket SOCK_NONBLOCK"
                );
                std::process::exit(1);
            }
        }
    }

    /// Carries out a command line of a script: a setting, before all other calls.
    pub fn command(&self, line: &str) -> Result<(), String> {
        let sockets = &mut self.lock().sockets;
        let mut settings = sockets.settings.clone();
        settings.command(line)?;
        if sockets.started() && settings.tcp != sockets.settings.tcp {
            return Err("settings come before the first listen, connect or packet".into());
        }
        sockets.settings = settings;
        Ok(())
    }

    /// Lets every blocked call try again, and waits until it has.
    fn let_try<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        if state.blocked == 0 {
            return state;
        }
        state.epoch += 1;
        state.untried = state.blocked;
        self.moved.notify_all();
        let patience_ends = Instant::now() + THREAD_PATIENCE;
        while state.untried > 0 && Instant::now() < patience_ends {
            let waited = self.tried.wait_timeout(state, THREAD_PATIENCE);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if std::mem::take(&mut state.came_back) {
            // Its thread reads the time before anything else advances it.
            drop(state);
            std::thread::sleep(SETTLE);
            state = self.lock();
        }
        state
    }

    /// A packet arrives.
    pub fn inject(&self, packet: &[u8]) {
        let mut state = self.lock();
        state.sockets.deliver(packet);
        state.collect();
        drop(self.let_try(state));
    }

    /// The next sent packet, with its time.
    pub fn sniff(&self) -> Option<(u64, Vec<u8>)> {
        let mut state = self.lock();
        let end_us = state.sockets.now_us() + PATIENCE_US;
        loop {
            state.collect();
            if let Some(sent) = state.sent.pop_front() {
                return Some(sent);
            }
            if !state.step(end_us) {
                return None;
            }
            state = self.let_try(state);
        }
    }

    /// Advances time by this much.
    pub fn sleep(&self, us: u64) {
        let mut state = self.lock();
        let end_us = state.sockets.now_us() + us;
        while state.step(end_us) {
            state = self.let_try(state);
        }
        state.sockets.advance(end_us);
        state.collect();
        drop(self.let_try(state));
    }

    /// The time, a microsecond later at each call: packetdrill spins on it.
    pub fn tick(&self) -> u64 {
        let mut state = self.lock();
        let now_us = state.sockets.now_us() + 1;
        state.sockets.advance(now_us);
        state.collect();
        drop(self.let_try(state));
        now_us
    }
}

/// A kernel descriptor whose number stands for one of ours: packetdrill closes descriptors that a
/// script leaves open by the kernel's call. It is not a socket, so that the kernel does not act for
/// one of ours.
fn reserve() -> c_int {
    // SAFETY: no memory is involved.
    unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) }
}

impl State {
    fn collect(&mut self) {
        if self.sockets.started() {
            let sent = std::mem::take(&mut self.sockets.stack().sent);
            self.sent.extend(sent);
        }
    }

    /// Advances to the next event, if it comes before `end_us`.
    fn step(&mut self, end_us: u64) -> bool {
        let due_us = self.sockets.next_deadline_us();
        let Some(due_us) = due_us.filter(|due_us| *due_us < end_us) else { return false };
        let next_us = due_us.max(self.sockets.now_us() + 1);
        self.sockets.advance(next_us);
        self.collect();
        next_us < end_us
    }
}
