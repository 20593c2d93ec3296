//! Doorbells between threads and processes: eventfd(2).
use crate::{check, fd};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// Makes an eventfd that never blocks.
pub fn open() -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let new = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
    // SAFETY: a new descriptor that no other value owns.
    Ok(unsafe { fd::own(new) })
}

/// Makes an eventfd on which [`wait`] blocks.
pub fn open_blocking() -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let new = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) })?;
    // SAFETY: a new descriptor that no other value owns.
    Ok(unsafe { fd::own(new) })
}

/// Waits until it is rung, and resets it. One that never blocks is only reset.
pub fn wait(event: BorrowedFd<'_>) {
    let mut bytes = [0u8; 8];
    // SAFETY: eight writable bytes for the length of the call.
    unsafe { libc::read(event.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len()) };
}

/// Rings it: it becomes readable. No error matters, because an eventfd that is full is readable.
pub fn ring(event: BorrowedFd<'_>) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: eight readable bytes for the length of the call.
    unsafe { libc::write(event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
}

/// Resets it: it is not readable until it is rung again. Never blocks, whatever the process at the
/// other end has done with it.
pub fn silence(event: BorrowedFd<'_>) {
    let mut bytes = [0u8; 8];
    let part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: `part` names eight writable bytes that live across the call.
    unsafe { libc::preadv2(event.as_raw_fd(), &raw const part, 1, -1, libc::RWF_NOWAIT) };
}
