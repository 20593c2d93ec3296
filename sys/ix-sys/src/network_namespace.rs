//! Network namespaces of threads (network_namespaces(7)).
use crate::check;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// Moves the calling thread into a new network namespace (unshare(2)).
pub fn enter_new() -> io::Result<()> {
    // SAFETY: changes the network namespace of the calling thread only.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) }).map(drop)
}

/// Moves the calling thread into the namespace of a descriptor (setns(2)). Makes only a system
/// call, so it may be used between fork and exec.
pub fn enter(namespace: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) }).map(drop)
}

/// The calling thread's namespace.
pub fn of_thread() -> io::Result<OwnedFd> {
    File::open("/proc/thread-self/ns/net").map(OwnedFd::from)
}

/// The namespace of a process.
pub fn of_process(pid: u32) -> io::Result<OwnedFd> {
    File::open(format!("/proc/{pid}/ns/net")).map(OwnedFd::from)
}
