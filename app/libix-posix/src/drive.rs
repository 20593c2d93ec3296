//! Who runs the dataplane, and how everybody else waits.
//!
//! There is one role of driver. A thread of the program that has to wait takes it if it is free and
//! runs cycles until it has what it waits for; others that wait sleep on a bell meanwhile, and the
//! driver rings it when an event is for them. So a program with one busy thread never hands
//! anything over, and its cycles run on its own thread, to completion.
//!
//! When no thread of the program has run a cycle for a millisecond (it computes, or waits for
//! something else), our own thread, the helper, takes the role until one comes back: connections
//! are acknowledged and retransmitted meanwhile, as they would be by a kernel.
use crate::lane::{Role, Waiter};
use crate::log;
use crate::signals;
use crate::slab::Id;
use crate::state::Core;
use crate::stream::CORK_US;
use crate::sync::{ELASTIC, Guard, hush, lock, new_bell};
use ix_abi::gate_op;
use libix::raw::{Gate, Wait};
use std::cell::RefCell;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// How long no cycle may have run before the helper runs one.
const TICK: Duration = Duration::from_millis(1);

/// Longest wait of a driver while a sender found no transmit memory.
const STARVED_US: u64 = 1_000;
/// How late a connection whose peer says nothing may be accepted (`TCP_DEFER_ACCEPT`), µs.
const DEFERRED_US: u64 = 100_000;

/// What somebody waits for, to be told of changes.
#[derive(Clone, Copy)]
pub enum Interest<'a> {
    /// A socket.
    Socket(Id),
    /// Several, and epoll sets.
    Several(&'a [Id], &'a [Id]),
    /// An epoll set.
    Set(Id),
}

/// How to wait.
#[derive(Clone, Copy)]
pub struct How<'a> {
    /// For what.
    pub interest: Interest<'a>,
    /// Until when.
    pub until: Option<Instant>,
    /// Linux's descriptor that ends the wait when it is readable.
    pub linux: Option<RawFd>,
    /// Whether something of IX is waited for at all.
    pub drives: bool,
}

/// Why a wait ended without what was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It is late.
    TimedOut,
    /// A signal handler has run.
    Interrupted,
    /// Linux's descriptor may be readable.
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

/// Waits until `ready` answers something.
pub fn wait<T>(
    core: Guard,
    how: How<'_>,
    ready: impl FnMut(&mut Core) -> Option<T>,
) -> (Guard, Result<T, Stop>) {
    let lane = if how.drives { core.home() } else { 0 };
    let (mut core, result) = wait_at(core, lane, how, ready);
    core.pass_on(lane);
    (core, result)
}

fn wait_at<T>(
    mut core: Guard,
    lane: usize,
    how: How<'_>,
    mut ready: impl FnMut(&mut Core) -> Option<T>,
) -> (Guard, Result<T, Stop>) {
    let mut turned = false;
    // Others have something to do: whoever of them waits next runs the dataplane.
    let mut aside = false;
    loop {
        if let Some(value) = ready(&mut core) {
            return (core, Ok(value));
        }
        if signals::interrupted() != 0 {
            return (core, Err(Stop::Interrupted));
        }
        let left = how.until.map(|until| until.saturating_duration_since(Instant::now()));
        let late = left.is_some_and(|left| left.is_zero());
        let may_drive = how.drives && crate::seat::take(&mut core);
        let is_free = core.lanes[lane].role == Role::Free && core.stay_out == 0;
        let can_drive = may_drive && is_free && !aside;
        if late && (turned || !can_drive) {
            return (core, Err(Stop::TimedOut));
        }
        if can_drive {
            // What it waits for may come by way of another elastic thread.
            let elsewhere = core.lane_count > 1;
            if elsewhere {
                how.interest.each(&mut core, |waiters| waiters.push(Waiter::Driver(lane)));
            }
            let (back, reason) = turn(core, lane, patience(left), how.linux, Role::Program);
            core = back;
            if elsewhere {
                let own = Waiter::Driver(lane);
                how.interest.each(&mut core, |waiters| waiters.retain(|other| *other != own));
            }
            turned = true;
            aside = reason == Back::ForOthers;
            if how.linux.is_some() && reason == Back::Otherwise {
                if let Some(value) = ready(&mut core) {
                    return (core, Ok(value));
                }
                return (core, Err(Stop::Linux));
            }
            continue;
        }
        let bell = own_bell();
        let waiter = Waiter::Bell(bell, lane);
        how.interest.each(&mut core, |waiters| waiters.push(waiter));
        if how.drives && (core.lanes[lane].role == Role::Helper || !core.has_begun()) {
            core.lanes[lane].wants_role.push(bell);
        }
        drop(core);
        let linux = sleep(bell, how.linux, left);
        core = lock();
        aside = false;
        core.lanes.iter_mut().for_each(|lane| lane.wants_role.retain(|other| *other != bell));
        how.interest.each(&mut core, |waiters| waiters.retain(|other| *other != waiter));
        if linux {
            return (core, Err(Stop::Linux));
        }
    }
}

impl Core {
    /// A thread that was called to run an elastic thread goes without having done so: the next one
    /// that wants to is called.
    fn pass_on(&mut self, lane: usize) {
        let lane = &self.lanes[lane];
        if lane.role == Role::Free
            && let Some(bell) = lane.wants_role.first().copied()
        {
            self.ring(bell);
        }
    }
}

fn patience(left: Option<Duration>) -> Wait {
    match left {
        None => Wait::Forever,
        Some(left) if left.is_zero() => Wait::Poll,
        // Not less than asked for.
        Some(left) => Wait::Us(left.as_nanos().div_ceil(1000).min(u64::MAX as u128 - 1) as u64),
    }
}

/// One cycle, or more until there are events: the calls of all threads, then everybody's events.
/// The role must be free.
pub fn turn(
    mut core: Guard,
    index: usize,
    wait: Wait,
    linux: Option<RawFd>,
    role: Role,
) -> (Guard, Back) {
    debug_assert!(core.lanes[index].role == Role::Free);
    // SAFETY: the role is ours from here to where it is given back.
    let Some(thread) = (unsafe { ELASTIC[index].get() }) else { return (core, Back::Otherwise) };
    core.lanes[index].role = role;
    let left = core.emit(index, thread);
    let lane = &mut core.lanes[index];
    // Memory comes back with acknowledgements, or from the dataplane without an event.
    let starved = core::mem::take(&mut lane.starved);
    let wait = if starved { at_most(wait, STARVED_US) } else { wait };
    let wait = if lane.corked.is_empty() { wait } else { at_most(wait, CORK_US) };
    let wait = if lane.deferred.is_empty() { wait } else { at_most(wait, DEFERRED_US) };
    let rewatch = lane.watched != linux;
    lane.watched = linux;
    drop(core);
    let events = signals::inside(index, |may_wait| {
        if rewatch {
            let _ = thread.watch(linux);
        }
        thread.run_io(if left || !may_wait { Wait::Poll } else { wait })
    });
    let mut core = lock();
    let events = events.unwrap_or_else(|error| log::fatal(&format!("the dataplane: {error}")));
    let kicked = core.came_out(index);
    core.lanes[index].cycle += 1;
    core.settle(index, thread);
    core.dispatch(index, thread, events);
    core.called.came_out(index);
    let for_others = core.called.is_at_home(index);
    core.lanes[index].role = Role::Free;
    if let Some(bell) = core.lanes[index].wants_role.first().copied() {
        core.ring(bell);
    }
    if role == Role::Program
        && let Some(bell) = core.lanes[index].helper_sleeps.take()
    {
        core.ring(bell);
    }
    let reason = match events {
        0 if kicked => Back::Kicked,
        0 => Back::Otherwise,
        _ if for_others => Back::ForOthers,
        _ => Back::Events,
    };
    (core, reason)
}

/// Why a thread has come back from the dataplane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Back {
    /// There were events.
    Events,
    /// There were, and another thread has heard of them that runs cycles when it waits next.
    ForOthers,
    /// There were none, and another thread wanted it to come out.
    Kicked,
    /// There were none: it is late, or Linux's descriptor is readable.
    Otherwise,
}

fn at_most(wait: Wait, limit_us: u64) -> Wait {
    match wait {
        Wait::Forever => Wait::Us(limit_us),
        Wait::Us(us) => Wait::Us(us.min(limit_us)),
        Wait::Poll => Wait::Poll,
    }
}

/// One cycle without waiting, if nobody else runs one.
pub fn poll(mut core: Guard, lane: usize) -> Guard {
    if core.lanes[lane].role == Role::Free && crate::seat::take(&mut core) {
        turn(core, lane, Wait::Poll, None, Role::Program).0
    } else {
        core
    }
}

/// If the helper runs cycles, it stops: the caller is about to run one.
pub fn instead_of_helper(mut core: Guard, lane: usize) -> Guard {
    while core.lanes[lane].role == Role::Helper {
        let bell = own_bell();
        core.lanes[lane].wants_role.push(bell);
        drop(core);
        sleep(bell, None, Some(TICK));
        core = lock();
        core.lanes[lane].wants_role.retain(|other| *other != bell);
    }
    core
}

/// Makes the driver of an elastic thread come out. Signal handlers call it, even inside.
pub fn kick(lane: usize) {
    if let Some(process) = crate::seat::process() {
        process.gate().call(gate_op::KICK, lane as u64, 0, 0);
    }
}

/// Sleeps until the bell rings or `linux` is readable; returns whether that may be.
fn sleep(bell: RawFd, linux: Option<RawFd>, left: Option<Duration>) -> bool {
    let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut polls = [poll(bell), poll(linux.unwrap_or(-1))];
    let time = left.map(|left| libc::timespec {
        tv_sec: left.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: left.subsec_nanos().into(),
    });
    let time = time.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    crate::real::own_call();
    signals::asleep(bell, || {
        // SAFETY: an array with its length, a time or null, no mask.
        unsafe { libc::syscall(libc::SYS_ppoll, polls.as_mut_ptr(), 2, time, 0, 8) };
    });
    if polls[0].revents != 0 {
        hush(bell);
    }
    polls[1].revents != 0
}

struct Bell(RawFd);

impl Drop for Bell {
    fn drop(&mut self) {
        crate::sync::close_private(self.0);
    }
}

/// The calling thread's bell. A forked child's threads need others than their parent's.
fn own_bell() -> RawFd {
    thread_local! { static BELL: RefCell<Option<(i32, Bell)>> = const { RefCell::new(None) }; }
    let pid = crate::process::own_pid();
    BELL.with_borrow_mut(|bell| match bell {
        Some((owner, bell)) if *owner == pid => bell.0,
        _ => bell.insert((pid, Bell(new_bell()))).1.0,
    })
}

/// The dataplane, begun if need be. `Err`: another process has it.
pub fn enter(core: &mut Core) -> Result<(), i32> {
    if crate::seat::take(core) { Ok(()) } else { Err(libc::ENETDOWN) }
}

/// Starts a helper for each elastic thread.
pub fn start_helpers(core: &mut Core) {
    crate::ops::limit_kept(core);
    // SAFETY: no pointers.
    let fd = unsafe { libc::syscall(libc::SYS_epoll_create1, libc::EPOLL_CLOEXEC) } as RawFd;
    core.quiet_sets = crate::sync::out_of_the_way(fd);
    // SAFETY: ours alone.
    unsafe { libc::syscall(libc::SYS_close, fd) };
    for lane in 0..core.lane_count {
        crate::sync::spawn("ix-helper", move || help(lane));
    }
}

/// A helper's life. The first one also hears of quiet sets.
fn help(lane: usize) {
    let bell = new_bell();
    let mut seen = u64::MAX;
    let mut numbers = QuietNumbers { changes: 0, since: Instant::now() };
    loop {
        let mut core = lock();
        let rest = numbers.rest(&mut core);
        let stays_out = core.stay_out > 0;
        let own = &mut core.lanes[lane];
        let unchanged = own.cycle == seen;
        seen = own.cycle;
        let is_free = own.role == Role::Free && own.wants_role.is_empty() && !stays_out;
        if is_free && unchanged {
            let wait = rest.map_or(Wait::Forever, |rest| Wait::Us(rest.as_micros() as u64));
            (core, _) = turn(core, lane, wait, None, Role::Helper);
            seen = core.lanes[lane].cycle;
            continue;
        }
        let idle = own.role == Role::Program && unchanged;
        if idle {
            own.helper_sleeps = Some(bell);
        }
        let quiet_sets = core.quiet_sets.filter(|_| lane == 0);
        drop(core);
        if sleep(bell, quiet_sets, if idle { rest } else { Some(TICK) }) {
            crate::ready::hear_of_sets(&mut lock());
        }
    }
}

/// A program that opens and closes no sockets for a while has its kept numbers given back.
struct QuietNumbers {
    changes: u64,
    since: Instant,
}

impl QuietNumbers {
    /// How long that is.
    const QUIET: Duration = Duration::from_millis(100);
    /// So many go back at once: the lock is held meanwhile.
    const AT_ONCE: usize = 16;

    /// Gives some back if it is time. Returns when to come again; `None`: none is kept.
    fn rest(&mut self, core: &mut Core) -> Option<Duration> {
        if core.numbers.changes != self.changes {
            (self.changes, self.since) = (core.numbers.changes, Instant::now());
        }
        if core.numbers.len() == 0 {
            return None;
        }
        let left = Self::QUIET.saturating_sub(self.since.elapsed());
        if !left.is_zero() {
            return Some(left);
        }
        crate::ops::give_back(core, Self::AT_ONCE, 0);
        Some(TICK)
    }
}

/// The lock, with no thread inside the dataplane as long as it is held.
pub fn everyone_outside() -> Guard {
    let mut core = lock();
    // Whoever wants to go on waits meanwhile; helpers see to it that somebody does.
    core.stay_out += 1;
    while let Some(busy) = core.all_lanes().iter().position(|lane| lane.role != Role::Free) {
        let bell = own_bell();
        core.lanes[busy].wants_role.push(bell);
        drop(core);
        sleep(bell, None, Some(TICK));
        core = lock();
        core.lanes[busy].wants_role.retain(|other| *other != bell);
    }
    core.stay_out -= 1;
    core
}

/// Time for deciding whether something is due, µs.
pub fn now_us() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills a local.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}
