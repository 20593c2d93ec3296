//! Which process of the program has the dataplane: the first that needs it, and when that has ended
//! the next one that does.
//!
//! Programs fork before they serve: a daemon's parent ends, a master binds and its children accept.
//! `bind` and `listen` are only noted, therefore, until somebody waits or connects; then the
//! dataplane begins in that process. The right to it, the seat, is a record lock on a file of ours:
//! forked children do not have it, and Linux gives it back however a process ends, and when it
//! executes another program.
use crate::drive;
use crate::log::{self, Once};
use crate::signals;
use crate::state::Core;
use crate::sync::{self, ELASTIC, Locked};
use core::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use libix::raw::{Process, Starter, Thread};
use std::os::fd::RawFd;
use std::sync::OnceLock;

static STARTER: OnceLock<Starter> = OnceLock::new();
/// The locked file; -1: there is no IX for this process.
static FILE: AtomicI32 = AtomicI32::new(-1);
/// In its place: the dataplane stays with the parent of this process.
const NEVER: RawFd = -2;
/// The dataplane, once it has begun in this process.
static PROCESS: AtomicPtr<Process> = AtomicPtr::new(core::ptr::null_mut());

/// From now on the process may take the seat.
pub fn offer(starter: Starter, file: RawFd) {
    let _ = STARTER.set(starter);
    FILE.store(file, Ordering::Release);
}

/// Whether sockets of this process can be IX's at all.
#[inline]
pub fn is_offered() -> bool {
    FILE.load(Ordering::Acquire) >= 0
}

/// The dataplane of this process, if it has begun. Signal handlers ask, too.
pub fn process() -> Option<&'static Process> {
    // SAFETY: null, or a value that is never freed.
    unsafe { PROCESS.load(Ordering::Acquire).as_ref() }
}

/// Makes the dataplane run in this process. Returns false where another process has it: a thread of
/// ours then waits for the end of that process, and `wants_role` lists the threads that wait.
pub fn take(core: &mut Core) -> bool {
    if core.has_begun() {
        return true;
    }
    if !is_offered() || core.waits_for_seat {
        return false;
    }
    if lock_file(libc::F_SETLK) {
        begin(core);
        return true;
    }
    let text = "another process of this program has the dataplane; this one serves when that ends";
    log::once(Once::Waits, text);
    core.waits_for_seat = true;
    sync::spawn("ix-heir", wait_for_it);
    false
}

/// The program is about to give its rights away. Where memory cannot be locked without them,
/// because `ix run` could not lift the limit, the dataplane begins now; a child of this process
/// could begin none any more, so elsewhere it begins later.
pub fn before_rights_go(core: &mut Core) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills a local; no arguments.
    let privileged = unsafe {
        libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit);
        libc::geteuid() == 0
    };
    if privileged && limit.rlim_cur != libc::RLIM_INFINITY && is_offered() {
        take(core);
    }
}

fn wait_for_it() {
    while !lock_file(libc::F_SETLKW) {}
    let mut core = sync::lock();
    core.waits_for_seat = false;
    begin(&mut core);
    core.everybody_looks();
}

fn lock_file(how: i32) -> bool {
    // SAFETY: all zero is a valid value, and names the whole file.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    // SAFETY: reads a local. The bare call: `fcntl` is ours.
    unsafe {
        libc::syscall(libc::SYS_fcntl, FILE.load(Ordering::Relaxed), how, &raw const lock) == 0
    }
}

/// The seat is ours: begins.
fn begin(core: &mut Core) {
    let begun = signals::inside(0, |_| {
        // SAFETY: the core is locked, the seat is ours, and handlers wait.
        unsafe { STARTER.get()?.start() }
    });
    let Some(process) = begun else {
        // `ix run` says why.
        // SAFETY: ends the process, without its handlers.
        unsafe { libc::syscall(libc::SYS_exit_group, 1) };
        return;
    };
    core.address = Some(process.local_addr());
    core.mss = process.mss_bytes().into();
    core.has_lanes(process.threads() as usize);
    for lane in 0..core.lane_count {
        enter(core, &process, lane);
    }
    PROCESS.store(Box::into_raw(Box::new(process)), Ordering::Release);
    drive::start_helpers(core);
}

/// Makes one elastic thread ours: listeners that were noted so far are in its first batch.
fn enter(core: &mut Core, process: &Process, lane: usize) {
    let index = lane as u32;
    let shared = signals::inside(lane, |_| {
        Thread::share(process, index, |thread| core.emit_first(lane, thread))
    });
    let (mut thread, events) = shared.unwrap_or_else(|error| {
        log::fatal(&format!("the program cannot use the dataplane: {error}"))
    });
    core.lanes[lane].tx = Some(Locked(*thread.tx()));
    core.lanes[lane].cycle += 1;
    core.settle(lane, &mut thread);
    core.dispatch(lane, &thread, events);
    // SAFETY: the lock is held, and nobody could drive before there was an elastic thread.
    unsafe { ELASTIC[lane].set(thread) };
}

/// In a forked child: its parent's dataplane is none of its.
pub fn forked() {
    PROCESS.store(core::ptr::null_mut(), Ordering::Release);
    for elastic in &ELASTIC {
        // SAFETY: the only thread; what the parent's elastic threads have is forgotten, not given
        // back.
        unsafe { elastic.forget() };
    }
    if let Some(starter) = STARTER.get() {
        // SAFETY: as `Core::forked` has left it, nothing of the parent's dataplane is used.
        let can_begin = unsafe { starter.forked() };
        if !can_begin {
            FILE.store(NEVER, Ordering::Release);
        }
    }
}

/// Whether a socket that is made now may become IX's. In a child of a program behind the wall none
/// does, which the user should hear: it is no daemon's place.
pub fn takes_sockets() -> bool {
    if FILE.load(Ordering::Acquire) == NEVER {
        let text = "a forked child behind the wall has Linux's sockets; run the program in the \
                    foreground, or say --domain none";
        log::once(Once::ChildBehindWall, text);
    }
    is_offered()
}
