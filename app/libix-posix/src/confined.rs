//! Values that only one thread may use at a time, by a rule that the compiler cannot check: the
//! holder of the lock, or the driver of an elastic thread.
use core::cell::UnsafeCell;
use libix::raw::Thread;

/// Most elastic threads that an unmodified program uses.
pub const ELASTIC_THREADS_MAX: usize = 64;

/// A value that only the holder of the lock uses, on whichever thread that is.
pub struct Locked<T>(pub T);

// SAFETY: it is a field of `Core`, behind the mutex. It is used for transmit memory only, whose
// arena may be used by any thread (`TxArena`), by one at a time: the lock is held.
unsafe impl<T> Send for Locked<T> {}

/// The contract's handle of an elastic thread, which only its driver uses.
pub struct DriverOnly(UnsafeCell<Option<Thread>>);

// SAFETY: `get` demands that the caller is the driver, of which there is one.
unsafe impl Sync for DriverOnly {}

/// The elastic threads of this process that unmodified programs use.
pub static THREADS: [DriverOnly; ELASTIC_THREADS_MAX] =
    [const { DriverOnly(UnsafeCell::new(None)) }; ELASTIC_THREADS_MAX];

impl DriverOnly {
    /// Puts the handle in.
    ///
    /// # Safety
    /// The caller holds the lock, and the elastic thread has no driver.
    pub unsafe fn set(&self, thread: Thread) {
        // SAFETY: the caller's promise.
        unsafe { *self.0.get() = Some(thread) };
    }

    /// Forgets the handle without releasing anything, in a forked child.
    ///
    /// # Safety
    /// As `set`.
    pub unsafe fn forget(&self) {
        // SAFETY: the caller's promise.
        core::mem::forget(unsafe { (*self.0.get()).take() });
    }

    /// The handle; `None` before the dataplane runs.
    ///
    /// # Safety
    /// The caller is the driver of this elastic thread.
    #[allow(clippy::mut_from_ref)] // One driver at a time.
    pub unsafe fn get(&self) -> Option<&mut Thread> {
        // SAFETY: the caller's promise.
        unsafe { (*self.0.get()).as_mut() }
    }
}
