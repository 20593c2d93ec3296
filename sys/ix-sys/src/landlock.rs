//! Bounds that a process sets itself and its descendants (landlock(7)).
use crate::{check, fd};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// A process that has entered one signals processes that have entered it too, and no others:
/// neither by a system call nor as the owner of a descriptor (`F_SETOWN`). It traces no other ones
/// either.
#[derive(Debug)]
pub struct SignalScope(OwnedFd);

impl SignalScope {
    /// Makes one (Linux 6.12, with Landlock among the security modules).
    pub fn new() -> io::Result<SignalScope> {
        const SCOPE_SIGNAL: u64 = 1 << 1;
        // Accesses to files and to the network that are handled: none; then the scopes.
        let attributes = [0u64, 0, SCOPE_SIGNAL];
        let at = attributes.as_ptr();
        // SAFETY: reads a local of this size.
        let new = unsafe {
            libc::syscall(libc::SYS_landlock_create_ruleset, at, size_of_val(&attributes), 0)
        };
        // SAFETY: a new descriptor (close-on-exec) that no other value owns.
        Ok(SignalScope(unsafe { fd::own(check(new)? as RawFd) }))
    }

    /// Moves the calling thread, which must be the only one of its process, into it for ever. Takes
    /// root's rights in this user namespace. Makes only a system call, so it may be used between
    /// fork and exec.
    pub fn enter(&self) -> io::Result<()> {
        let flags = 0;
        // SAFETY: takes numbers.
        let entered =
            unsafe { libc::syscall(libc::SYS_landlock_restrict_self, self.0.as_raw_fd(), flags) };
        check(entered).map(drop)
    }
}
