//! The dataplane's descriptors keep away from the program's: they are at the top of the numbers
//! that its limit allows, where neither "lowest free number" nor a fixed number is.
use ix_sys::fd::copy_from;
use ix_sys::limits::{self, Limit, Resource};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

/// Least and most reserved numbers.
const LEAST: RawFd = 64;
const MOST: RawFd = 1024;
/// One in so many numbers is reserved.
const PART: RawFd = 16;

/// No number beyond this is reserved, however high the limit: the kernel's table is as long as the
/// highest number in use, and each fork copies it.
const HIGHEST: RawFd = 16384;

/// What a dataplane has beside what its broker sends and what each elastic thread has: the channel
/// twice, the guard's timer, three of the survivor.
const OWN: usize = 6;
/// What each elastic thread has: a doorbell and a signalfd.
const OF_THREAD: usize = 2;

/// The range of reserved numbers of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservedFds {
    base: RawFd,
    count: RawFd,
}

impl ReservedFds {
    /// The lowest limit that leaves the program as many numbers as the dataplane has.
    pub const LIMIT_MIN: u64 = 2 * LEAST as u64;

    /// The range for a soft limit of open files.
    pub fn for_limit(soft: u64) -> ReservedFds {
        let top = RawFd::try_from(soft).unwrap_or(HIGHEST).min(HIGHEST);
        let count = (top / PART).clamp(LEAST, MOST);
        ReservedFds { base: (top - count).max(3), count }
    }

    /// How many numbers a dataplane needs that its broker sends so many descriptors.
    pub fn needed(sent: usize, threads: usize) -> usize {
        sent + OF_THREAD * threads + OWN
    }

    /// The limit of open files that has a range of so many numbers, if any has.
    pub fn limit_for(count: usize) -> Option<u64> {
        (count <= MOST as usize).then_some((count as u64 * PART as u64).max(Self::LIMIT_MIN))
    }

    /// The range of this process and its children.
    pub fn of_this_process() -> io::Result<ReservedFds> {
        Ok(ReservedFds::for_limit(limits::get(Resource::Descriptors)?.soft))
    }

    /// The first reserved number.
    pub fn base(self) -> RawFd {
        self.base
    }

    /// How many numbers are reserved.
    pub fn count(self) -> usize {
        self.count as usize
    }

    /// The number behind the last reserved one.
    pub fn end(self) -> RawFd {
        self.base + self.count
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
        if limit.soft == self.end() as u64 {
            limits::set(Resource::Descriptors, Limit { soft: self.base as u64, ..limit })?;
        }
        Ok(())
    }

    /// Runs a function for which descriptors must be moved into the range after
    /// [`ReservedFds::fence`].
    pub fn unfenced<T>(self, work: impl FnOnce() -> T) -> T {
        let limit = match limits::get(Resource::Descriptors) {
            Ok(limit) if limit.soft < self.end() as u64 => limit,
            _ => return work(),
        };
        let lifted = Limit { soft: limit.hard.min(self.end() as u64), ..limit };
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
        for (limit, base, end) in [
            (10, 3, 67),
            (1024, 960, 1024),
            (4096, 3840, 4096),
            (20_000, 15_360, 16_384),
            (limits::INFINITE, 15_360, 16_384),
        ] {
            let range = ReservedFds::for_limit(limit);
            assert_eq!((range.base(), range.end()), (base, end), "{limit}");
        }
        for count in [1, 64, 65, 400, 1024] {
            let limit = ReservedFds::limit_for(count).expect("a limit");
            assert!(ReservedFds::for_limit(limit).count() >= count, "{count}");
        }
        assert_eq!(ReservedFds::limit_for(1025), None);
    }

    /// 18 elastic threads with one device were possible when the range had 64 numbers whatever the
    /// limit was, and the queues that one message carries are possible with a higher limit.
    #[test]
    fn the_usual_limit_has_room_for_a_usual_dataplane() {
        let usual = ReservedFds::for_limit(1024).count();
        assert!(ReservedFds::needed(1 + 18, 18) <= usual);
        assert!(ReservedFds::needed(253, 128) <= ReservedFds::for_limit(16384).count());
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
