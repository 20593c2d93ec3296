//! Kept numbers of closed sockets ([`crate::numbers`]): how they go back to Linux, and what other
//! calls do with them.
use crate::fds::{self, Entry};
use crate::lock::lock;
use crate::numbers::freed;
use crate::real;
use crate::state::Core;
use core::sync::atomic::{AtomicUsize, Ordering};
use libc::SOCK_CLOEXEC;
use std::os::fd::RawFd;

/// How many numbers are kept, for a look without the lock.
static KEPT: AtomicUsize = AtomicUsize::new(0);

/// The kept numbers have changed.
pub fn changed(core: &Core) {
    KEPT.store(core.numbers.len(), Ordering::Release);
}

/// Sets how many numbers may be kept, from the limit of descriptors.
pub fn limit(core: &mut Core) {
    give_back(core, usize::MAX, 0);
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills a local.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    core.numbers.limit(limit.rlim_cur);
}

/// Closes the lowest `count` kept numbers from `least` on, on Linux.
pub fn give_back(core: &mut Core, count: usize, least: RawFd) {
    for _ in 0..count {
        let Some(fd) = core.numbers.give_back(least) else { break };
        close(fd);
    }
    changed(core);
}

/// Closes a number on Linux that is not kept any more.
pub fn close(fd: RawFd) {
    // From here on a new descriptor with this number is Linux's.
    fds::replace(fd, Entry::Linux);
    real::close_held(fd);
    freed(fd);
}

/// Whether any number is kept.
pub fn are_any() -> bool {
    KEPT.load(Ordering::Relaxed) > 0
}

/// A call is about to take `count` numbers from Linux, from `least` on: makes it find the lowest.
#[inline]
pub fn make_room(count: usize, least: RawFd) {
    if KEPT.load(Ordering::Relaxed) > 0 {
        give_back(&mut lock(), count, least);
    }
}

/// Moves a descriptor that Linux has just made to the lowest number that is free for the program.
/// The caller does not hold the lock. A negative `fd` is returned as it is.
pub fn lowest(fd: RawFd, flags: i32) -> RawFd {
    if fd < 0 || KEPT.load(Ordering::Relaxed) == 0 {
        return fd;
    }
    let mut core = lock();
    let Some(to) = core.numbers.lowest().filter(|lowest| *lowest < fd) else { return fd };
    core.numbers.remove(to);
    changed(&core);
    let flags = if flags & SOCK_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
    fds::replace(to, Entry::Linux);
    // SAFETY: no pointers; only this function knows of `fd`.
    unsafe {
        real::dup3(fd, to, flags);
        real::close_held(fd);
    }
    freed(fd);
    to
}

/// A `dup2` is about to replace this number. Returns whether it was kept; it is not any more.
pub fn taken_over(core: &mut Core, to: RawFd) -> bool {
    if fds::get(to) != Entry::Kept {
        return false;
    }
    let was_kept = core.numbers.remove(to);
    changed(core);
    was_kept
}
