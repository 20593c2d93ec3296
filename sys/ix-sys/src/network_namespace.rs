//! Network namespaces of threads (network_namespaces(7)).
use crate::check;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// Moves the calling thread into a new network namespace (unshare(2)).
pub fn enter_new() -> io::Result<()> {
    // SAFETY: changes the network namespace of the calling thread only.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) }).map(drop)
}

/// Moves the calling thread into the namespace of a descriptor (setns(2)). Makes only a system
/// call, so it may be used between fork and exec.
pub fn enter(namespace: BorrowedFd<'_>) -> io::Result<()> {
    Ok(move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?)
}

/// Whether the calling thread is in the namespace of a descriptor.
pub fn is_here(namespace: BorrowedFd<'_>) -> bool {
    let of = |metadata: io::Result<Metadata>| metadata.map(|of| (of.dev(), of.ino())).ok();
    let that = namespace.try_clone_to_owned().and_then(|fd| File::from(fd).metadata());
    let that = of(that);
    that.is_some() && that == of(std::fs::metadata("/proc/thread-self/ns/net"))
}

/// The calling thread's namespace.
pub fn of_thread() -> io::Result<OwnedFd> {
    File::open("/proc/thread-self/ns/net").map(OwnedFd::from)
}

/// The namespace of a process.
pub fn of_process(pid: u32) -> io::Result<OwnedFd> {
    File::open(format!("/proc/{pid}/ns/net")).map(OwnedFd::from)
}
