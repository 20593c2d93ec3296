//! Waking an elastic thread that sleeps: whoever has work for it publishes the work and then looks
//! whether it sleeps; it says that it sleeps and then looks for work. One of them sees the other.
use crate::sync::{AtomicBool, AtomicI32, Ordering, fence};

/// Wakes one elastic thread that sleeps on its doorbells.
#[derive(Default)]
pub struct Waker {
    sleeping: AtomicBool,
    /// The application asks a `run_io` that waits to come back.
    kicked: AtomicBool,
    /// An eventfd (the guard's: a timer), where there is an operating system.
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

    /// Rings this eventfd from now on.
    pub(crate) fn set_fd(&self, fd: i32) {
        self.fd.store(fd, Ordering::Relaxed);
    }

    /// Asks for the thread's `run_io` to come back; answers the eventfd that must be rung for it.
    /// Nothing here uses thread-local storage: signal handlers call it.
    pub fn kick(&self) -> Option<i32> {
        self.kicked.store(true, Ordering::SeqCst);
        self.must_ring().then(|| self.fd())
    }

    /// Whether somebody has asked so.
    pub fn is_kicked(&self) -> bool {
        self.kicked.load(Ordering::Relaxed)
    }

    /// Whether somebody has asked so; that is answered now.
    pub fn take_kick(&self) -> bool {
        self.is_kicked() && self.kicked.swap(false, Ordering::SeqCst)
    }

    /// The eventfd.
    pub fn fd(&self) -> i32 {
        self.fd.load(Ordering::Relaxed)
    }

    /// The thread says that it is going to sleep (then looks for work once more) or is awake.
    pub fn set_sleeping(&self, sleeping: bool) {
        self.sleeping.store(sleeping, Ordering::Relaxed);
        // The look for work afterwards must not move in front of it.
        fence(Ordering::SeqCst);
    }

    /// Whether it must be rung. The work must have been published before.
    pub fn must_ring(&self) -> bool {
        fence(Ordering::SeqCst);
        self.sleeping.load(Ordering::Relaxed)
    }
}
