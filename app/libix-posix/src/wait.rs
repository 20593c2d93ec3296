//! How threads of the program wait, and which of them drives the dataplane.
//!
//! Each elastic thread has at most one *driver*. A thread of the program that has to wait becomes
//! the driver if there is none, and runs cycles until it has what it waits for. Other threads that
//! wait sleep meanwhile; the driver wakes them when an event is for them. So a program with one
//! busy thread never hands anything over, and its cycles run to completion on its own thread.
//!
//! When no thread of the program has run a cycle for a millisecond, because it computes or waits
//! for something else, the helper ([`crate::helper`]) drives until one comes back. So connections
//! are acknowledged and retransmitted meanwhile, as a kernel would do it.
use crate::cycle::{self, CycleEnd};
use crate::elastic_thread::{Role, TICK};
use crate::lock::{Guard, lock};
use crate::slab::Id;
use crate::state::Core;
use crate::waiter::Waiter;
use crate::{cancel, filtered, holders, kick, serving, signals, wake};
use libix::raw::Wait;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// What a thread waits for: it is told of changes there.
#[derive(Clone, Copy)]
pub enum Interest<'a> {
    /// A socket.
    Socket(Id),
    /// Several sockets and epoll sets.
    Several(&'a [Id], &'a [Id]),
    /// An epoll set.
    Set(Id),
}

/// What to wait for, and how long.
#[derive(Clone, Copy)]
pub struct WaitSpec<'a> {
    /// What to wait for.
    pub interest: Interest<'a>,
    /// When the wait ends; `None`: never.
    pub until: Option<Instant>,
    /// A Linux descriptor that ends the wait when it is readable.
    pub linux: Option<RawFd>,
    /// Whether the thread waits for something of IX, so that it may drive.
    pub drives: bool,
}

/// Why a wait ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The time is over.
    TimedOut,
    /// A signal handler has run, or the thread was cancelled.
    Interrupted,
    /// The Linux descriptor may be readable.
    Linux,
}

impl Interest<'_> {
    fn each(self, core: &mut Core, mut visit: impl FnMut(&mut Vec<Waiter>)) {
        match self {
            Interest::Socket(id) => {
                if let Some(socket) = core.sockets.get_mut(id) {
                    visit(&mut socket.waiters);
                }
            }
            Interest::Several(sockets, sets) => {
                for id in sockets {
                    if let Some(socket) = core.sockets.get_mut(*id) {
                        visit(&mut socket.waiters);
                    }
                }
                for id in sets {
                    if let Some(set) = core.sets.get_mut(*id) {
                        visit(&mut set.waiters);
                    }
                }
            }
            Interest::Set(id) => {
                if let Some(set) = core.sets.get_mut(id) {
                    visit(&mut set.waiters);
                }
            }
        }
    }
}

/// Waits until `ready` returns something.
pub fn wait<T>(
    core: Guard,
    how: WaitSpec<'_>,
    ready: impl FnMut(&mut Core) -> Option<T>,
) -> (Guard, Result<T, Stop>) {
    let elastic = if how.drives { core.home() } else { 0 };
    let mut core = core;
    let listeners = core.waits_for_listeners(how.interest);
    core.watches_handed(how.interest, true);
    core.takes_datagrams(how.interest);
    let (mut core, result) = wait_at(core, elastic, how, ready);
    core.waits_no_more(&listeners);
    core.watches_handed(how.interest, false);
    core.pass_on(elastic);
    (core, result)
}

fn wait_at<T>(
    mut core: Guard,
    elastic: usize,
    how: WaitSpec<'_>,
    mut ready: impl FnMut(&mut Core) -> Option<T>,
) -> (Guard, Result<T, Stop>) {
    let mut has_driven = false;
    // Steps aside: another thread has something to do, and drives when it waits next.
    let mut aside = false;
    loop {
        if let Some(value) = ready(&mut core) {
            return (core, Ok(value));
        }
        if signals::interrupted() != 0 || cancel::ends_caller(&mut core) {
            return (core, Err(Stop::Interrupted));
        }
        let left = how.until.map(|until| until.saturating_duration_since(Instant::now()));
        let late = left.is_some_and(|left| left.is_zero());
        let had_begun = core.has_begun();
        let may_drive = how.drives && serving::start(&mut core);
        if core.has_begun() && !had_begun {
            // The first batch may have brought what this thread waits for.
            continue;
        }
        let is_free = core.elastic_threads[elastic].role == Role::Free && core.stay_out == 0;
        let can_drive = may_drive && is_free && !aside && !filtered::is_filtered();
        if late && (has_driven || !can_drive) {
            return (core, Err(Stop::TimedOut));
        }
        if can_drive {
            // The driver of another elastic thread may receive what this thread waits for.
            let several = core.elastic_count > 1;
            if several {
                how.interest.each(&mut core, |waiters| waiters.push(Waiter::Driver(elastic)));
            }
            let limit = time_limit(left);
            let (back, end) = cycle::run(core, elastic, limit, how.linux, Role::Program);
            core = back;
            if several {
                let own = Waiter::Driver(elastic);
                how.interest.each(&mut core, |waiters| waiters.retain(|other| *other != own));
            }
            has_driven = true;
            aside = end == CycleEnd::ForOthers;
            if how.linux.is_some() && end == CycleEnd::Otherwise {
                if let Some(value) = ready(&mut core) {
                    return (core, Ok(value));
                }
                return (core, Err(Stop::Linux));
            }
            continue;
        }
        if holders::has_nudges() && core.elastic_threads[elastic].role != Role::Free {
            // Its driver takes them along.
            kick::kick(elastic);
        }
        let wake_fd = wake::own_fd();
        let waiter = Waiter::Sleeper(wake_fd, elastic);
        how.interest.each(&mut core, |waiters| waiters.push(waiter));
        let has_begun = core.has_begun();
        let own = &mut core.elastic_threads[elastic];
        let helped = own.role == Role::Helper && !filtered::is_filtered();
        if how.drives && (helped || !has_begun) {
            own.wants_role.push(wake_fd);
        }
        let again = core.asks_again.filter(|_| how.drives);
        let again = again.map(|again| again.saturating_duration_since(Instant::now()));
        drop(core);
        let left = left.into_iter().chain(again).min();
        let linux = signals::sleep(wake_fd, how.linux, left);
        core = lock();
        aside = false;
        for thread in &mut core.elastic_threads {
            thread.wants_role.retain(|other| *other != wake_fd);
        }
        how.interest.each(&mut core, |waiters| waiters.retain(|other| *other != waiter));
        if linux {
            return (core, Err(Stop::Linux));
        }
    }
}

impl Core {
    /// A thread that was woken to drive an elastic thread returns instead: wakes the next one that
    /// wants to drive it.
    fn pass_on(&mut self, elastic: usize) {
        let thread = &self.elastic_threads[elastic];
        if thread.role == Role::Free
            && let Some(wake_fd) = thread.wants_role.first().copied()
        {
            self.wake(wake_fd);
        }
    }
}

/// How long a driver may sleep.
fn time_limit(left: Option<Duration>) -> Wait {
    match left {
        None => Wait::Forever,
        Some(left) if left.is_zero() => Wait::Poll,
        // Rounded up: a wait must not end early.
        Some(left) => Wait::Us(left.as_nanos().div_ceil(1000).min(u64::MAX as u128 - 1) as u64),
    }
}

/// Runs one cycle without waiting, unless another thread drives.
pub fn poll(mut core: Guard, elastic: usize) -> Guard {
    let is_free = core.elastic_threads[elastic].role == Role::Free && !filtered::is_filtered();
    if is_free && serving::start(&mut core) {
        cycle::run(core, elastic, Wait::Poll, None, Role::Program).0
    } else {
        core
    }
}

/// If the helper drives, waits until it has stopped: the caller is about to run a cycle.
pub fn instead_of_helper(mut core: Guard, elastic: usize) -> Guard {
    while core.elastic_threads[elastic].role == Role::Helper && !filtered::is_filtered() {
        let wake_fd = wake::own_fd();
        core.elastic_threads[elastic].wants_role.push(wake_fd);
        drop(core);
        signals::sleep(wake_fd, None, Some(TICK));
        core = lock();
        core.elastic_threads[elastic].wants_role.retain(|other| *other != wake_fd);
    }
    core
}

/// Starts the dataplane if it does not run. Returns an errno if another process serves.
pub fn enter(core: &mut Core) -> Result<(), i32> {
    if serving::start(core) { Ok(()) } else { Err(libc::ENETDOWN) }
}
