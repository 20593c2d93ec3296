//! Wakes an elastic thread that sleeps. A thread with work for it publishes the work and then reads
//! whether it sleeps. The elastic thread stores that it sleeps and then looks for work. At least
//! one of them sees the other.
use crate::sync::{AtomicBool, AtomicI32, Ordering, fence};

/// Wakes one elastic thread that sleeps on its doorbells.
#[derive(Default)]
pub struct Waker {
    sleeping: AtomicBool,
    /// The application wants a waiting `run_io` to return.
    kicked: AtomicBool,
    /// An eventfd (for the guard a timer), where there is an operating system.
    fd: AtomicI32,
}

impl Waker {
    /// A waker that rings this eventfd; -1: none (virtual time).
    pub fn new(fd: i32) -> Waker {
        Waker {
            sleeping: AtomicBool::new(false),
            kicked: AtomicBool::new(false),
            fd: AtomicI32::new(fd),
        }
    }

    /// Uses this eventfd from now on.
    pub(crate) fn set_fd(&self, fd: i32) {
        self.fd.store(fd, Ordering::Relaxed);
    }

    /// Makes the thread's `run_io` return; returns the eventfd that the caller must ring. Uses no
    /// thread-local storage, because signal handlers call it.
    pub fn kick(&self) -> Option<i32> {
        self.kicked.store(true, Ordering::SeqCst);
        self.must_ring().then(|| self.fd())
    }

    /// Whether [`Self::kick`] was called.
    pub fn is_kicked(&self) -> bool {
        self.kicked.load(Ordering::Relaxed)
    }

    /// Whether [`Self::kick`] was called; resets that.
    pub fn take_kick(&self) -> bool {
        self.is_kicked() && self.kicked.swap(false, Ordering::SeqCst)
    }

    /// The eventfd.
    pub fn fd(&self) -> i32 {
        self.fd.load(Ordering::Relaxed)
    }

    /// Sets whether the thread is about to sleep (it then looks for work once more) or is awake.
    pub fn set_sleeping(&self, sleeping: bool) {
        self.sleeping.store(sleeping, Ordering::Relaxed);
        // The check for work that follows must not be reordered before this.
        fence(Ordering::SeqCst);
    }

    /// Whether it must be rung. The work must have been published before.
    pub fn must_ring(&self) -> bool {
        fence(Ordering::SeqCst);
        self.sleeping.load(Ordering::Relaxed)
    }
}
