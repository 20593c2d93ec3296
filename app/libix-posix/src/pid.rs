//! The number of this process, without a system call.
use core::sync::atomic::{AtomicI32, Ordering};

/// The process that runs this library; 0 before [`note`].
static PID: AtomicI32 = AtomicI32::new(0);

/// Asks Linux for the number and keeps it: at the start, and in a forked child.
pub fn note() {
    PID.store(ask(), Ordering::Relaxed);
}

/// The number of this process, as noted.
pub fn own() -> i32 {
    PID.load(Ordering::Relaxed)
}

/// Whether the process is still the one that was noted.
pub fn is_noted() -> bool {
    own() == ask()
}

fn ask() -> i32 {
    // SAFETY: no arguments. The system call itself: the C library may return a remembered number.
    unsafe { libc::syscall(libc::SYS_getpid) as i32 }
}
