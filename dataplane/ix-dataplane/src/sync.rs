//! The types that the lock-free code of this crate is made of. `verify/loom/` compiles the same
//! code with loom's types, which try all orders that the memory model allows.
pub(crate) use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering, fence};
pub(crate) use std::sync::Arc;

const PRIVATE_EXPEDITED: i32 = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;

fn membarrier(command: i32) -> bool {
    // SAFETY: a system call without pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Announces that [`heavy_barrier`] will be used; false if the system has none.
pub(crate) fn has_heavy_barrier() -> bool {
    membarrier(REGISTER_PRIVATE_EXPEDITED)
}

/// A full barrier on all processors that run this process; false if the system has none.
pub(crate) fn heavy_barrier() -> bool {
    membarrier(PRIVATE_EXPEDITED)
}

/// A full barrier towards threads that execute a [`heavy_barrier`]. Here it only affects the
/// compiler.
#[inline]
pub(crate) fn light_barrier() {
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
}

/// Lets another thread run, in a loop that waits for it.
pub(crate) fn let_others_run() {
    // SAFETY: a plain system call without arguments.
    unsafe { libc::sched_yield() };
}
