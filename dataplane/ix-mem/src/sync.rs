//! The types that the lock-free code of this crate is made of. `verify/loom/` compiles the same
//! code with loom's types, which try all orders that the memory model allows.
pub(crate) use core::sync::atomic::{AtomicUsize, Ordering};
pub(crate) use std::sync::Arc;

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;

/// Room for a value, full or empty. Its user knows which, and that no other thread uses it.
pub(crate) struct Slot<T>(UnsafeCell<MaybeUninit<T>>);

impl<T> Slot<T> {
    /// A slot without a value.
    pub fn empty() -> Slot<T> {
        Slot(UnsafeCell::new(MaybeUninit::uninit()))
    }

    /// Puts a value in.
    ///
    /// # Safety
    /// The slot is empty, and nobody else uses it now.
    #[inline]
    pub unsafe fn fill(&self, value: T) {
        // SAFETY: nobody else uses it, by the caller's promise.
        unsafe { (*self.0.get()).write(value) };
    }

    /// Takes the value out.
    ///
    /// # Safety
    /// The slot is full, and nobody else uses it now.
    #[inline]
    pub unsafe fn take(&self) -> T {
        // SAFETY: full, and nobody else uses it, by the caller's promise.
        unsafe { (*self.0.get()).assume_init_read() }
    }
}
