//! Waiting for descriptors: poll(2).
use crate::check;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

/// A descriptor and what is waited for on it.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct PollFd(libc::pollfd);

impl PollFd {
    /// Waits for `events` (`POLLIN` and its like); 0 waits for the other end's going only.
    pub fn new(fd: &impl AsRawFd, events: i16) -> PollFd {
        PollFd::raw(fd.as_raw_fd(), events)
    }

    /// The same by number; a negative one is passed over.
    pub fn raw(fd: RawFd, events: i16) -> PollFd {
        PollFd(libc::pollfd { fd, events, revents: 0 })
    }

    /// Waits until there is something to read, or the end.
    pub fn readable(fd: &impl AsRawFd) -> PollFd {
        PollFd::new(fd, libc::POLLIN)
    }

    /// What happened, as of the last [`poll`]: also `POLLHUP`, `POLLERR` and `POLLNVAL`.
    pub fn happened(&self) -> i16 {
        self.0.revents
    }

    /// Whether anything happened.
    pub fn is_ready(&self) -> bool {
        self.0.revents != 0
    }
}

/// Waits until something happens on a descriptor, at most for `timeout`, and returns on how many it
/// did. A signal ends it with [`io::ErrorKind::Interrupted`].
pub fn poll(fds: &mut [PollFd], timeout: Option<Duration>) -> io::Result<usize> {
    let limit = timeout.map(|limit| libc::timespec {
        tv_sec: limit.as_secs().min(i64::MAX as u64) as libc::time_t,
        tv_nsec: libc::c_long::from(limit.subsec_nanos() as i32),
    });
    let limit = limit.as_ref().map_or(std::ptr::null(), |limit| &raw const *limit);
    let (entries, count) = (fds.as_mut_ptr().cast(), fds.len() as libc::nfds_t);
    // SAFETY: `PollFd` is a `pollfd`, so `count` of them may be read and written; the limit, if
    // there is one, lives across the call, and there is no signal mask.
    check(unsafe { libc::ppoll(entries, count, limit, std::ptr::null()) }).map(|n| n as usize)
}

/// Whether there is something to read, or the end, within `timeout`.
pub fn is_readable(fd: &impl AsRawFd, timeout: Duration) -> io::Result<bool> {
    poll(&mut [PollFd::readable(fd)], Some(timeout)).map(|n| n > 0)
}
