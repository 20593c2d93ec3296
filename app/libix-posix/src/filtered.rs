//! Threads of the program that may not make every system call (seccomp), and the helpers that make
//! them in their place ([`crate::limited`]).
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::os::fd::RawFd;

/// Threads of the program may not call what they like.
static IS_FILTERED: AtomicBool = AtomicBool::new(false);
/// Makes a helper come out of the dataplane when it is written.
static COME_OUT: AtomicI32 = AtomicI32::new(-1);

thread_local! {
    /// The thread is a helper.
    static HELPS: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread is a helper.
pub fn helps() {
    HELPS.set(true);
}

/// From now on the program's threads make no unusual system call, or all again.
pub fn set(is_filtered: bool) {
    IS_FILTERED.store(is_filtered, Ordering::Relaxed);
}

/// Whether the calling thread is one of the program's, and must make no unusual system call.
#[inline]
pub fn is_filtered() -> bool {
    IS_FILTERED.load(Ordering::Relaxed) && HELPS.try_with(Cell::get) != Ok(true)
}

/// The descriptor by which such threads make a helper come out; `None`: there are none.
pub fn come_out() -> Option<RawFd> {
    let fd = COME_OUT.load(Ordering::Relaxed);
    (fd >= 0 && IS_FILTERED.load(Ordering::Relaxed)).then_some(fd)
}

/// Whether there is such a descriptor.
pub fn has_come_out() -> bool {
    COME_OUT.load(Ordering::Relaxed) >= 0
}

/// Replaces the descriptor; returns the one before, or a negative number.
pub fn replace_come_out(fd: RawFd) -> RawFd {
    COME_OUT.swap(fd, Ordering::Relaxed)
}
