//! Who is in the dataplane on behalf of an elastic thread: its owner, or the guard.
//!
//! They agree through two words. The owner says that it is inside and then looks whether the guard
//! holds the door; the guard says that it holds the door and then looks whether the owner is
//! inside. That one of them sees the other takes a full barrier on both sides; the owner, who comes
//! by in each cycle, has none: the guard makes the kernel execute one on every processor
//! (`membarrier`).
use crate::sync::{AtomicBool, Ordering, heavy_barrier, let_others_run, light_barrier};

/// The door of one elastic thread.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct Door {
    inside: AtomicBool,
    held: AtomicBool,
}

impl Door {
    /// The owner goes in. Waits while the guard is inside, which is soon over.
    #[inline]
    pub fn enter(&self) {
        self.inside.store(true, Ordering::Relaxed);
        // The processor may still look before it stores; the guard's `membarrier` is for that.
        light_barrier();
        if self.held.load(Ordering::Acquire) {
            self.wait();
        }
    }

    /// The owner goes out.
    #[inline]
    pub fn leave(&self) {
        self.inside.store(false, Ordering::Release);
    }

    #[cold]
    fn wait(&self) {
        loop {
            self.inside.store(false, Ordering::Release);
            while self.held.load(Ordering::Acquire) {
                let_others_run();
            }
            self.inside.store(true, Ordering::Relaxed);
            light_barrier();
            if !self.held.load(Ordering::Acquire) {
                return;
            }
        }
    }

    /// The guard goes in; answers false when the owner is inside.
    pub fn hold(&self) -> bool {
        self.held.store(true, Ordering::SeqCst);
        if heavy_barrier() && !self.inside.load(Ordering::Acquire) {
            return true;
        }
        self.release();
        false
    }

    /// The guard goes out.
    pub fn release(&self) {
        self.held.store(false, Ordering::Release);
    }
}
