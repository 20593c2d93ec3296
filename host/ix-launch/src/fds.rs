//! The dataplane's descriptors keep away from the program's: they are at the top of the numbers
//! that its limit allows, where neither "lowest free number" nor a fixed number is.
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Number of reserved numbers.
pub const RESERVED_FDS: RawFd = 64;

/// No number beyond this is reserved, however high the limit: the kernel's table is as long as the
/// highest number in use, and each fork copies it.
const HIGHEST: RawFd = 16384;

/// The range of reserved numbers of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservedFds {
    base: RawFd,
}

impl ReservedFds {
    /// The range for a soft limit of open files.
    pub fn for_limit(soft: u64) -> ReservedFds {
        let top = RawFd::try_from(soft).unwrap_or(HIGHEST).min(HIGHEST);
        ReservedFds { base: (top - RESERVED_FDS).max(3) }
    }

    /// The range of this process and its children.
    pub fn of_this_process() -> io::Result<ReservedFds> {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: fills the struct we own.
        if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(ReservedFds::for_limit(limit.rlim_cur))
    }

    /// The first reserved number.
    pub fn base(self) -> RawFd {
        self.base
    }

    /// Copies a descriptor into the range, close-on-exec.
    pub fn copy(self, fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        ReservedFds::copy_from(self.base, fd)
    }

    /// Copies a descriptor of the program near the end of its own numbers, close-on-exec.
    pub fn copy_below(self, fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        const ROOM: RawFd = 16;
        ReservedFds::copy_from((self.base - ROOM).max(3), fd)
    }

    fn copy_from(lowest: RawFd, fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        // SAFETY: no pointers; the descriptor is borrowed.
        let copy = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, lowest) };
        if copy < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor without another owner.
        Ok(unsafe { OwnedFd::from_raw_fd(copy) })
    }

    /// Ends the program's own range below ours: with the lowered limit neither `open` nor `dup2`
    /// nor a loop that closes "all" descriptors reaches our range. Afterwards no descriptor can be
    /// moved into the range.
    pub fn fence(self) -> io::Result<()> {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: fills the struct we own.
        if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } < 0 {
            return Err(io::Error::last_os_error());
        }
        if limit.rlim_cur == (self.base + RESERVED_FDS) as u64 {
            limit.rlim_cur = self.base as u64;
            // SAFETY: reads the struct we own.
            if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }

    /// Runs a function for which descriptors must be moved into the range after
    /// [`ReservedFds::fence`].
    pub fn unfenced<T>(self, work: impl FnOnce() -> T) -> T {
        let needed = (self.base + RESERVED_FDS) as u64;
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: fills the struct we own.
        let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } == 0;
        if !known || limit.rlim_cur >= needed {
            return work();
        }
        let lifted = libc::rlimit { rlim_cur: needed.min(limit.rlim_max), ..limit };
        // SAFETY: reads the struct we own. If it fails, the function does what it can.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &lifted) };
        let result = work();
        // SAFETY: reads the struct we own; a lower limit is always allowed.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
        result
    }

    /// Moves a descriptor into the range; its old number is free again.
    pub fn take(self, fd: OwnedFd) -> io::Result<OwnedFd> {
        use std::os::fd::AsFd;
        self.copy(fd.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn the_range_follows_the_limit_within_reason() {
        assert_eq!(ReservedFds::for_limit(1024).base(), 960);
        assert_eq!(ReservedFds::for_limit(20_000).base(), 16_320);
        assert_eq!(ReservedFds::for_limit(libc::RLIM_INFINITY).base(), 16_320);
        assert_eq!(ReservedFds::for_limit(10).base(), 3);
    }

    #[test]
    fn descriptors_move_up() {
        let range = ReservedFds::of_this_process().unwrap();
        let moved = range.take(std::io::stdin().as_fd().try_clone_to_owned().unwrap()).unwrap();
        assert!(moved.as_raw_fd() >= range.base());
        // SAFETY: no pointers.
        let flags = unsafe { libc::fcntl(moved.as_raw_fd(), libc::F_GETFD) };
        assert_eq!(flags, libc::FD_CLOEXEC);
    }
}
