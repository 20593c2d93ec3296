//! Eventfds that wake elastic threads.
use std::os::fd::RawFd;

/// Resets an eventfd.
pub(crate) fn drain(fd: RawFd) {
    let mut count = 0u64;
    // SAFETY: reads eight bytes into a local; the descriptor is non-blocking.
    unsafe { libc::read(fd, (&raw mut count).cast(), 8) };
}

/// Rings an eventfd.
pub(crate) fn ring(fd: RawFd) {
    let one = 1u64;
    // SAFETY: writes eight bytes from a local. A full counter is a ring that was heard already.
    unsafe { libc::write(fd, (&raw const one).cast(), 8) };
}
