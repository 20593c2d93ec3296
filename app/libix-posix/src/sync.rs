//! The one lock, and what is only touched under it or by the thread that runs the dataplane.
//!
//! Everything of this library that is shared lies in [`Core`], behind one mutex: an uncontended one
//! costs two atomic instructions a call, and no order of locks can be wrong. Elastic threads are
//! not in it: whoever has the role of driver ([`crate::drive`]) uses one without the lock, for it
//! may sleep in there.
use crate::lane::LANES_MAX;
use crate::signals::{self, Hold};
use crate::state::Core;
use core::cell::UnsafeCell;
use libix::raw::Thread;
use std::ops::{Deref, DerefMut};
use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

static CORE: Mutex<Core> = Mutex::new(Core::new());

/// The lock, held. Signal handlers of the program wait until it is released; then bells are rung.
pub struct Guard {
    core: Option<MutexGuard<'static, Core>>,
    _hold: Hold,
}

/// Takes the lock.
#[inline]
pub fn lock() -> Guard {
    let hold = signals::hold();
    let core = CORE.lock().unwrap_or_else(PoisonError::into_inner);
    Guard { core: Some(core), _hold: hold }
}

impl Deref for Guard {
    type Target = Core;
    #[inline]
    fn deref(&self) -> &Core {
        // Only `drop` takes it out.
        self.core.as_ref().unwrap_or_else(|| unreachable!())
    }
}

impl DerefMut for Guard {
    #[inline]
    fn deref_mut(&mut self) -> &mut Core {
        self.core.as_mut().unwrap_or_else(|| unreachable!())
    }
}

impl Drop for Guard {
    #[inline]
    fn drop(&mut self) {
        let Some(mut core) = self.core.take() else { return };
        let mut drivers = core.take_kicks();
        let bells = core.called.take_bells();
        drop(core);
        while drivers != 0 {
            crate::drive::kick(drivers.trailing_zeros() as usize);
            drivers &= drivers - 1;
        }
        bells.into_iter().for_each(ring);
        // Then the hold goes.
    }
}

/// Rings a bell (an eventfd).
#[cold]
pub fn ring(bell: RawFd) {
    let one = 1u64;
    crate::real::own_call();
    // SAFETY: writes eight bytes from a local, by the bare call: `write` is ours. A full counter is
    // a ring that was heard already.
    unsafe { libc::syscall(libc::SYS_write, bell, &raw const one, 8) };
}

/// Silences a bell.
pub fn hush(bell: RawFd) {
    let mut count = 0u64;
    crate::real::own_call();
    // SAFETY: reads eight bytes into a local; the descriptor is non-blocking.
    unsafe { libc::syscall(libc::SYS_read, bell, &raw mut count, 8) };
}

/// A new bell, at a number out of the program's way.
pub fn new_bell() -> RawFd {
    // SAFETY: no pointers.
    let fd =
        unsafe { libc::syscall(libc::SYS_eventfd2, 0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
    if fd < 0 {
        crate::log::fatal("no descriptor for a thread to be woken by: raise `ulimit -n`");
    }
    let fd = fd as RawFd;
    match out_of_the_way(fd) {
        Some(placed) => {
            // SAFETY: ours alone.
            unsafe { libc::syscall(libc::SYS_close, fd) };
            placed
        }
        None => fd,
    }
}

/// Starts a thread of ours, with all signals blocked: the program's handlers run on its own
/// threads.
pub fn spawn(name: &str, life: impl FnOnce() + Send + 'static) {
    // SAFETY: sets of ours; the call cannot fail with these arguments.
    unsafe {
        let (mut all, mut before) = core::mem::zeroed::<(libc::sigset_t, libc::sigset_t)>();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let started = std::thread::Builder::new().name(name.to_owned()).spawn(life);
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, core::ptr::null_mut());
        if let Err(error) = started {
            crate::log::line(&format!(
                "no thread {name} ({error}): connections stall while you compute"
            ));
        }
    }
}

/// A copy of a descriptor at a high number, where the program's next one will not be.
pub fn out_of_the_way(fd: RawFd) -> Option<RawFd> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills a local; the second call has no pointers.
    let placed = unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        let from = limit.rlim_cur.min(16384).saturating_sub(256).max(3);
        libc::syscall(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, from) as RawFd
    };
    if placed < 0 {
        return None;
    }
    crate::fds::replace(placed, crate::fds::Entry::Private);
    Some(placed)
}

/// Closes a descriptor of ours.
pub fn close_private(fd: RawFd) {
    crate::fds::replace(fd, crate::fds::Entry::Linux);
    // SAFETY: ours alone.
    unsafe { libc::syscall(libc::SYS_close, fd) };
    crate::ops::freed(fd);
}

/// An elastic thread, used by its driver only.
pub struct Elastic(UnsafeCell<Option<Thread>>);

// SAFETY: `get` demands the role of driver, of which there is one.
unsafe impl Sync for Elastic {}

/// The elastic threads of this process that unmodified programs use.
pub static ELASTIC: [Elastic; LANES_MAX] = [const { Elastic(UnsafeCell::new(None)) }; LANES_MAX];

impl Elastic {
    /// Puts it in.
    ///
    /// # Safety
    /// The caller has the lock, and nobody the role of driver.
    pub unsafe fn set(&self, thread: Thread) {
        // SAFETY: the caller's promise.
        unsafe { *self.0.get() = Some(thread) };
    }

    /// Forgets it, in a forked child.
    ///
    /// # Safety
    /// As `set`.
    pub unsafe fn forget(&self) {
        // SAFETY: the caller's promise.
        core::mem::forget(unsafe { (*self.0.get()).take() });
    }

    /// Uses it.
    ///
    /// # Safety
    /// The caller has the role of driver.
    #[allow(clippy::mut_from_ref)] // One driver at a time.
    pub unsafe fn get(&self) -> Option<&mut Thread> {
        // SAFETY: the caller's promise.
        unsafe { (*self.0.get()).as_mut() }
    }
}

/// A value that is touched under the lock only, whichever thread has it.
pub struct Locked<T>(pub T);

// SAFETY: it lies in `Core`, behind the mutex. Its only use is transmit memory, whose arena follows
// whoever uses it (`TxArena`); nobody else uses it meanwhile, for the lock is held.
unsafe impl<T> Send for Locked<T> {}
