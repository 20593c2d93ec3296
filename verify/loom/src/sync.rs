//! What `crate::sync` is in the crates, of loom's parts.
pub use loom::sync::Arc;
pub use loom::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

use core::mem::MaybeUninit;
use loom::cell::UnsafeCell;

/// `membarrier` makes the cheap side's fence a full one.
pub fn heavy_barrier() -> bool {
    fence(Ordering::SeqCst);
    true
}

/// See [`heavy_barrier`].
pub fn light_barrier() {
    fence(Ordering::SeqCst);
}

pub fn let_others_run() {
    loom::thread::yield_now();
}

/// A value whose use loom watches: two threads at once are an error.
pub struct Slot<T>(UnsafeCell<MaybeUninit<T>>);

impl<T> Slot<T> {
    pub fn empty() -> Slot<T> {
        Slot(UnsafeCell::new(MaybeUninit::uninit()))
    }

    /// # Safety
    /// As in `ix-mem`.
    pub unsafe fn fill(&self, value: T) {
        // SAFETY: loom fails the model where somebody else uses it.
        self.0.with_mut(|slot| unsafe { _ = (*slot).write(value) });
    }

    /// # Safety
    /// As in `ix-mem`.
    pub unsafe fn take(&self) -> T {
        // SAFETY: as above; that it is full is what the ring's model shows.
        self.0.with_mut(|slot| unsafe { (*slot).assume_init_read() })
    }
}
