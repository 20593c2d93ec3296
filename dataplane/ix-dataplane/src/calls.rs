//! The call array: the application's batched system calls as they come, and what each returns.
//!
//! Each slot is read once and only the copy is used. Pointers and lengths in it are checked against
//! the memory that the call may use. The return value overwrites the slot's `ret`.
use ix_abi::{CallError, CallSlot};

/// The call array of one elastic thread, in memory that the application writes at any time.
#[derive(Clone, Copy)]
pub struct CallArray(*mut CallSlot);

// SAFETY: plain memory; the elastic thread that owns the array is the only one of ours to use it.
unsafe impl Send for CallArray {}

impl CallArray {
    /// # Safety
    /// `array` points to [`ix_abi::CALLS_MAX`] slots that outlive this.
    pub unsafe fn new(array: *mut CallSlot) -> CallArray {
        CallArray(array)
    }

    /// No array.
    pub(crate) fn none() -> CallArray {
        CallArray(core::ptr::null_mut())
    }

    /// Reads slot `index` (below `CALLS_MAX`). Each slot is read this way once.
    pub(crate) fn read(&self, index: usize) -> CallSlot {
        // SAFETY: within the array; volatile, because the application may write meanwhile: we get
        // some mixture of its values, which is checked as any value is.
        unsafe { self.0.add(index).read_volatile() }
    }

    /// The handle or address that slot `index` (below `CALLS_MAX`) seems to have, for prefetching.
    /// What counts is what [`Self::read`] returns later.
    pub(crate) fn glance(&self, index: usize) -> u64 {
        // SAFETY: as in `read`; every call that names a flow has it first.
        unsafe { (&raw const (*self.0.add(index)).args[0]).read_volatile() }
    }

    pub(crate) fn answer(&self, index: usize, answer: Answer) {
        let ret = CallError::encode(answer);
        // SAFETY: within the array; the field is plain memory.
        unsafe { (&raw mut (*self.0.add(index)).ret).write_volatile(ret) }
    }
}

/// What a call returns.
pub(crate) type Answer = Result<u64, CallError>;
