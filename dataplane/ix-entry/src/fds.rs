//! The dataplane's descriptors keep away from the program's: they are at the top of the numbers
//! that its limit allows, where neither "lowest free number" nor a fixed number is.
use ix_sys::fd::copy_from;
use ix_sys::limits::{self, Limit, Resource};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

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
        Ok(ReservedFds::for_limit(limits::get(Resource::Descriptors)?.soft))
    }

    /// The first reserved number.
    pub fn base(self) -> RawFd {
        self.base
    }

    /// The number behind the last reserved one.
    fn end(self) -> u64 {
        (self.base + RESERVED_FDS) as u64
    }

    /// Copies a descriptor into the range, close-on-exec.
    pub fn copy(self, fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        copy_from(fd, self.base)
    }

    /// Copies a descriptor of the program near the end of its own numbers, close-on-exec.
    pub fn copy_below(self, fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        const ROOM: RawFd = 16;
        copy_from(fd, (self.base - ROOM).max(3))
    }

    /// Ends the program's own range below ours: with the lowered limit neither `open` nor `dup2`
    /// nor a loop that closes "all" descriptors reaches our range. Afterwards no descriptor can be
    /// moved into the range.
    pub fn fence(self) -> io::Result<()> {
        let limit = limits::get(Resource::Descriptors)?;
        if limit.soft == self.end() {
            limits::set(Resource::Descriptors, Limit { soft: self.base as u64, ..limit })?;
        }
        Ok(())
    }

    /// Runs a function for which descriptors must be moved into the range after
    /// [`ReservedFds::fence`].
    pub fn unfenced<T>(self, work: impl FnOnce() -> T) -> T {
        let limit = match limits::get(Resource::Descriptors) {
            Ok(limit) if limit.soft < self.end() => limit,
            _ => return work(),
        };
        let lifted = Limit { soft: self.end().min(limit.hard), ..limit };
        // If it fails, the function does what it can.
        let _ = limits::set(Resource::Descriptors, lifted);
        let result = work();
        // A lower limit is always allowed.
        let _ = limits::set(Resource::Descriptors, limit);
        result
    }

    /// Moves a descriptor into the range; its old number is free again.
    pub fn take(self, fd: OwnedFd) -> io::Result<OwnedFd> {
        self.copy(fd.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn the_range_follows_the_limit_within_reason() {
        assert_eq!(ReservedFds::for_limit(1024).base(), 960);
        assert_eq!(ReservedFds::for_limit(20_000).base(), 16_320);
        assert_eq!(ReservedFds::for_limit(limits::INFINITE).base(), 16_320);
        assert_eq!(ReservedFds::for_limit(10).base(), 3);
    }

    #[test]
    fn descriptors_move_up() {
        let range = ReservedFds::of_this_process().unwrap();
        let moved = range.take(std::io::stdin().as_fd().try_clone_to_owned().unwrap()).unwrap();
        assert!(moved.as_raw_fd() >= range.base());
        let about = format!("/proc/self/fdinfo/{}", moved.as_raw_fd());
        let about = std::fs::read_to_string(about).unwrap();
        let flags = about.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
        let flags = i32::from_str_radix(flags.trim(), 8).unwrap();
        assert!(flags & libc::O_CLOEXEC != 0, "{about}");
    }
}
