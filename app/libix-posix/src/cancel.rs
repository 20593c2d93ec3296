//! `pthread_cancel` of threads that wait here.
//!
//! The C library would unwind a thread at its next cancellation point, and so out of this library,
//! wherever it is. So while the library holds its lock or waits, it makes no call that is such a
//! point. A thread that waits is woken instead ([`cancelled`]), comes out as if a signal handler
//! had run, and is ended by the C library when nothing is held any more ([`point`]).
use crate::lock::lock;
use crate::signals;
use crate::state::Core;
use crate::waiter::Waiter;
use core::sync::atomic::{AtomicBool, Ordering};
use libc::{c_int, pthread_t};

/// A thread of the program was cancelled: from then on there is something to look for.
static ANY: AtomicBool = AtomicBool::new(false);
/// A thread of the program may be cancelled at any time (`PTHREAD_CANCEL_ASYNCHRONOUS`).
static ANY_ASYNCHRONOUS: AtomicBool = AtomicBool::new(false);

/// The C library's numbers, which the `libc` crate lacks.
const PTHREAD_CANCEL_DISABLE: c_int = 1;
const PTHREAD_CANCEL_DEFERRED: c_int = 0;
const PTHREAD_CANCEL_ASYNCHRONOUS: c_int = 1;

// As functions that do not unwind: the compiler then adds nothing to their callers that would stop
// the C library's way out, and there is nothing to be dropped in them.
unsafe extern "C" {
    fn pthread_testcancel();
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    fn pthread_getcpuclockid(thread: pthread_t, clock: *mut libc::clockid_t) -> c_int;
}

/// Makes a call that is a cancellation point (pthreads(7)).
#[inline]
pub fn point<R: Default + PartialOrd>(call: impl FnOnce() -> R) -> R {
    if ANY.load(Ordering::Relaxed) {
        signals::take_cancelled();
        if signals::is_new() {
            forget_predecessor();
        }
        // SAFETY: nothing is to be dropped in this function and in its callers, C's names.
        unsafe { pthread_testcancel() };
    }
    let result = if ANY_ASYNCHRONOUS.load(Ordering::Relaxed) { deferred(call) } else { call() };
    // What was read or accepted is not lost: then the next point ends the thread.
    if ANY.load(Ordering::Relaxed) && signals::take_cancelled() && result < R::default() {
        // SAFETY: as above.
        unsafe { pthread_testcancel() };
    }
    result
}

/// Makes a call that waits and is no cancellation point: a thread that is cancelled waits on.
pub fn no_point<R>(call: impl FnOnce() -> R) -> R {
    let before = signals::set_deaf(true);
    let result = if ANY_ASYNCHRONOUS.load(Ordering::Relaxed) { deferred(call) } else { call() };
    signals::set_deaf(before);
    result
}

/// Makes a call in which the thread is cancelled only where the library lets it.
#[cold]
fn deferred<R>(call: impl FnOnce() -> R) -> R {
    let mut before = PTHREAD_CANCEL_DEFERRED;
    // SAFETY: a local. To set it again may end the thread, and nothing is to be dropped.
    unsafe { crate::real::pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &mut before) };
    let result = call();
    // SAFETY: as above.
    unsafe { crate::real::pthread_setcanceltype(before, core::ptr::null_mut()) };
    result
}

/// Linux gives the id of a thread that has ended to a new one, which was not cancelled with it. If
/// the new one was cancelled itself, the C library knows, and is asked right after this.
#[cold]
fn forget_predecessor() {
    let mut core = lock();
    let tid = signals::tid();
    core.cancelled.retain(|other| *other != tid);
}

/// A thread has set when it may be cancelled.
pub fn type_set(kind: c_int) {
    if kind == PTHREAD_CANCEL_ASYNCHRONOUS {
        ANY_ASYNCHRONOUS.store(true, Ordering::Relaxed);
    }
}

/// Linux's id of a thread, which its processor clock has in it (bits 3 and up, inverted).
///
/// # Safety
/// As `pthread_cancel`: the thread was not joined.
pub unsafe fn tid_of(thread: pthread_t) -> Option<i32> {
    let mut clock = 0;
    // SAFETY: a local; the rest is the caller's promise.
    let found = unsafe { pthread_getcpuclockid(thread, &mut clock) };
    (found == 0).then_some(!(clock >> 3))
}

/// A thread was cancelled: wakes all threads that wait here, so that this one finds out.
pub fn cancelled(tid: i32) {
    ANY.store(true, Ordering::Relaxed);
    let mut core = lock();
    // SAFETY: no pointers; signal 0 only asks whether the thread is there.
    let lives = |tid: i32| unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, 0) == 0 };
    core.cancelled.retain(|other| *other != tid && lives(*other));
    core.cancelled.push(tid);
    core.wake_all();
}

/// Whether the calling thread was cancelled, and is to come out of its wait now. It is told once.
pub fn ends_caller(core: &mut Core) -> bool {
    if core.cancelled.is_empty() || signals::is_deaf() {
        return false;
    }
    let tid = signals::tid();
    let Some(at) = core.cancelled.iter().position(|other| *other == tid) else { return false };
    if !is_enabled() {
        return false;
    }
    core.cancelled.swap_remove(at);
    signals::note_cancelled();
    true
}

/// Whether the calling thread may be cancelled now.
fn is_enabled() -> bool {
    let mut before = PTHREAD_CANCEL_DISABLE;
    // SAFETY: a local. The type is deferred here, so that to enable it again ends nothing.
    unsafe {
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut before);
        pthread_setcancelstate(before, core::ptr::null_mut());
    }
    before != PTHREAD_CANCEL_DISABLE
}

impl Core {
    /// Wakes all threads of the program that wait.
    fn wake_all(&mut self) {
        let Core { sockets, sets, wakeups, elastic_threads, .. } = self;
        for id in sockets.ids() {
            let waiters = sockets.get_mut(id).map(|socket| &mut socket.waiters);
            waiters.into_iter().flat_map(|w| w.drain(..)).for_each(|waiter| wakeups.add(waiter));
        }
        for id in sets.ids() {
            let waiters = sets.get_mut(id).map(|set| &mut set.waiters);
            waiters.into_iter().flat_map(|w| w.drain(..)).for_each(|waiter| wakeups.add(waiter));
        }
        (0..elastic_threads.len()).for_each(|elastic| wakeups.add(Waiter::Driver(elastic)));
    }
}
