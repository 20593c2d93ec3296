//! Doorbells through Linux.
use std::os::fd::RawFd;

/// Adds one to an eventfd. A full eventfd wakes its reader anyway.
pub(crate) fn ring_eventfd(fd: RawFd) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: writes eight bytes of a local; on whatever descriptor the program has given.
    unsafe { libc::write(fd, one.as_ptr().cast(), one.len()) };
}

/// Sends a signal to this process. An invalid number does nothing.
pub(crate) fn signal_process(number: i32) {
    // SAFETY: plain system calls.
    unsafe { libc::kill(libc::getpid(), number) };
}
