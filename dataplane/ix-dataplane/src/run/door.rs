//! The door of an elastic thread: either its owner or the guard is inside.
//!
//! They agree through two words. The owner stores that it is inside and then reads whether the
//! guard holds the door. The guard stores that it holds the door and then reads whether the owner
//! is inside. At least one of them must see the other, which needs a full barrier on both sides.
//! The owner passes in each cycle and has no barrier: the guard makes the kernel execute one on
//! every processor (`membarrier`).
use crate::sync::{AtomicBool, Ordering, heavy_barrier, let_others_run, light_barrier};

/// The door of one elastic thread.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct Door {
    inside: AtomicBool,
    held: AtomicBool,
}

impl Door {
    /// The owner enters. Waits for a short time if the guard is inside.
    #[inline]
    pub fn enter(&self) {
        self.inside.store(true, Ordering::Relaxed);
        // The processor may read before it stores; the guard's `membarrier` prevents that.
        light_barrier();
        if self.held.load(Ordering::Acquire) {
            self.wait();
        }
    }

    /// The owner leaves.
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

    /// The guard enters; false if the owner is inside.
    pub fn hold(&self) -> bool {
        self.held.store(true, Ordering::SeqCst);
        if heavy_barrier() && !self.inside.load(Ordering::Acquire) {
            return true;
        }
        self.release();
        false
    }

    /// Whether the guard is inside, or about to look whether it may.
    pub fn is_held(&self) -> bool {
        self.held.load(Ordering::SeqCst)
    }

    /// The guard leaves.
    pub fn release(&self) {
        self.held.store(false, Ordering::Release);
    }
}
