//! The serving processes: those that use the dataplane. Behind the process wall every process of
//! the program may be one, from its first use of a socket of IX on. Elsewhere the dataplane is in
//! the one that serves: it is the first one that needs the dataplane; when it ends, the next one
//! that does.
//!
//! Programs fork before they serve: a daemon's parent ends, a master binds and its children accept.
//! So `bind` and `listen` are only noted until a thread waits or connects; then the dataplane
//! starts in that process. Without that wall the right to serve is a record lock on a file of ours.
//! Forked children do not inherit it, and Linux releases it however a process ends, and when it
//! executes another program.
use crate::confined::{Locked, THREADS};
use crate::lock::lock;
use crate::log::{self, Once};
use crate::state::Core;
use crate::{fds, helper, holders, kick, kin, lost, signals};
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use libix::Error;
use libix::raw::{EnterError, Process, Starter, Thread};
use std::os::fd::RawFd;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

static STARTER: OnceLock<Starter> = OnceLock::new();
/// The file that is locked; -1 if this process has no IX.
static FILE: AtomicI32 = AtomicI32::new(-1);
/// The dataplane is in this process, so packet memory is locked with this process's rights.
static LOCKS_MEMORY: AtomicBool = AtomicBool::new(false);
/// In place of the file: the dataplane stays with the parent of this process.
const NEVER: RawFd = -2;

/// From now on this process may serve. `locks_memory`: its dataplane will be in the process itself.
pub fn offer(starter: Starter, file: RawFd, locks_memory: bool) {
    LOCKS_MEMORY.store(locks_memory, Ordering::Relaxed);
    let _ = STARTER.set(starter);
    FILE.store(file, Ordering::Release);
}

/// Whether sockets of this process can be IX's at all.
#[inline]
pub fn is_offered() -> bool {
    FILE.load(Ordering::Acquire) >= 0
}

/// Makes this process serve. Returns false if it cannot now: where the dataplane is in the process
/// that serves, because another one does. A thread of ours then waits for its end, and `wants_role`
/// lists the threads to wake afterwards.
pub fn start(core: &mut Core) -> bool {
    if core.has_begun() {
        return true;
    }
    if !is_offered() || core.waits_to_serve {
        return false;
    }
    if is_shared() {
        return attach(core);
    }
    if lock_file(libc::F_SETLK) {
        start_dataplane(core);
        return true;
    }
    let text = "another process of this program has the dataplane; this one serves when that ends";
    log::once(Once::Waits, text);
    core.waits_to_serve = true;
    signals::spawn("ix-successor", wait_to_serve);
    false
}

/// Whether the dataplane is a process of its own, which all processes of the program share.
pub fn is_shared() -> bool {
    !LOCKS_MEMORY.load(Ordering::Relaxed)
}

/// Before a fork: behind the process wall the child will be another process that serves.
pub fn before_fork() {
    if is_offered() && is_shared() {
        kin::before_fork();
    }
}

/// Time between two attempts of a process that was refused.
const ASKS_AGAIN: Duration = Duration::from_millis(200);

/// Shares the dataplane with the program's other processes. The first one makes it begin.
fn attach(core: &mut Core) -> bool {
    if core.asks_again.is_some_and(|again| Instant::now() < again) {
        return false;
    }
    core.asks_again = None;
    if start_dataplane(core) {
        return true;
    }
    let text = "this process of the program cannot share the dataplane now, and asks again; at most \
                64 processes share one: let fewer use its sockets at a time";
    log::once(Once::Waits, text);
    core.asks_again = Some(Instant::now() + ASKS_AGAIN);
    false
}

/// The program is about to give up its rights. Where memory cannot be locked without them, because
/// `ix run` could not lift the limit, the dataplane starts now. Elsewhere it starts later: once it
/// runs here, a child of this process cannot start one.
pub fn before_rights_go(core: &mut Core) {
    if !LOCKS_MEMORY.load(Ordering::Relaxed) {
        return;
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills a local; no arguments.
    let privileged = unsafe {
        libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit);
        libc::geteuid() == 0
    };
    if privileged && limit.rlim_cur != libc::RLIM_INFINITY && is_offered() {
        start(core);
    }
}

fn wait_to_serve() {
    while !lock_file(libc::F_SETLKW) {}
    let mut core = lock();
    core.waits_to_serve = false;
    start_dataplane(&mut core);
    core.wake_would_be_drivers();
}

fn lock_file(how: i32) -> bool {
    // SAFETY: all zero is a valid value, and names the whole file.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    // SAFETY: reads a local. The system call itself: `fcntl` is ours.
    unsafe {
        libc::syscall(libc::SYS_fcntl, FILE.load(Ordering::Relaxed), how, &raw const lock) == 0
    }
}

/// Starts the dataplane. This process has the right to serve. False: there is no room for it among
/// those that share it.
fn start_dataplane(core: &mut Core) -> bool {
    let started = signals::inside(0, |_| {
        // SAFETY: the core is locked, this process serves, and handlers wait.
        unsafe { STARTER.get()?.start() }
    });
    let Some(process) = started else {
        if kin::is_child() && is_shared() {
            return false;
        }
        // `ix run` reports the reason.
        // SAFETY: ends the process, without its handlers.
        unsafe { libc::syscall(libc::SYS_exit_group, 1) };
        return false;
    };
    STARTER.get().into_iter().for_each(|starter| fds::reserve(starter.descriptors()));
    core.mss = process.mss_bytes().into();
    core.tx_bytes = process.tx_bytes();
    core.open_ports_on(process.threads() as usize);
    holders::attached(process.attachment() + 1);
    holders::arrived();
    kick::set_process(process);
    let Some(process) = kick::process() else { return false };
    for elastic in 0..core.elastic_count {
        while !share(core, process, elastic) {
            lost::start_over(core);
        }
    }
    // Others give it connections from now on.
    kin::attached(process.attachment());
    core.say_waits();
    // A port that another process has is tried again: the first driver must not sleep for ever.
    core.hand_out();
    helper::start(core);
    true
}

/// Shares one elastic thread between all threads of the program. Its first batch opens the ports
/// that were noted so far. False: the dataplane has ended already.
fn share(core: &mut Core, process: &Process, elastic: usize) -> bool {
    let index = elastic as u32;
    let shared = signals::inside(elastic, |_| {
        Thread::share(process, index, |thread| core.emit_first(elastic, thread))
    });
    let (mut thread, events) = match shared {
        Ok(shared) => shared,
        Err(EnterError::Refused(Error::Lost)) => return false,
        Err(error) => log::fatal(&format!("the program cannot use the dataplane: {error}")),
    };
    core.elastic_threads[elastic].tx = Some(Locked(*thread.tx()));
    core.elastic_threads[elastic].cycle += 1;
    core.settle(elastic, &mut thread);
    core.elastic_threads[elastic].will = thread.take_will();
    core.renews_will(elastic, (0, 0));
    core.dispatch(elastic, &thread, events);
    // SAFETY: the lock is held, and no thread could drive before the dataplane ran.
    unsafe { THREADS[elastic].set(thread) };
    true
}

/// In a forked child, which does not have its parent's dataplane.
pub fn forked() {
    kick::forked();
    kin::forked();
    for thread in &THREADS {
        // SAFETY: the only thread of this process. What the parent's elastic threads hold is
        // forgotten, not returned.
        unsafe { thread.forget() };
    }
    if let Some(starter) = STARTER.get() {
        fds::release(starter.descriptors());
        // SAFETY: `Core::forked` has run, so nothing of the parent's dataplane is used.
        let can_serve = unsafe { starter.forked() };
        if !can_serve {
            FILE.store(NEVER, Ordering::Release);
        }
        fds::reserve(starter.descriptors());
    }
}

/// Whether a new socket may become IX's. In a forked child behind the wall none does, which is
/// reported to the user once.
pub fn takes_sockets() -> bool {
    if FILE.load(Ordering::Acquire) == NEVER {
        let text = "a forked child behind the wall has Linux's sockets; run the program in the \
                    foreground, or say --domain none";
        log::once(Once::ChildBehindWall, text);
    }
    is_offered()
}
