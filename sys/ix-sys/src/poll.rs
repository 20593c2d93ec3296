//! Waits for descriptors: poll(2).
use crate::check;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

/// A descriptor and the events to wait for.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct PollFd(libc::pollfd);

impl PollFd {
    /// Waits for `events` (`POLLIN` and others); 0 waits only until the other end is closed.
    pub fn new(fd: &impl AsRawFd, events: i16) -> PollFd {
        PollFd::raw(fd.as_raw_fd(), events)
    }

    /// As [`PollFd::new`], by number. A negative number is ignored.
    pub fn raw(fd: RawFd, events: i16) -> PollFd {
        PollFd(libc::pollfd { fd, events, revents: 0 })
    }

    /// Waits until there is something to read, or the other end is closed.
    pub fn readable(fd: &impl AsRawFd) -> PollFd {
        PollFd::new(fd, libc::POLLIN)
    }

    /// The events of the last [`poll`]; may include `POLLHUP`, `POLLERR` and `POLLNVAL`.
    pub fn happened(&self) -> i16 {
        self.0.revents
    }

    /// True if there was an event.
    pub fn is_ready(&self) -> bool {
        self.0.revents != 0
    }
}

/// Waits for an event on a descriptor, at most `timeout`. Returns the number of descriptors with
/// events. A signal ends the wait with [`io::ErrorKind::Interrupted`].
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

/// True if no process has the other end of a socket or pipe any more. Returns at once.
pub fn has_hung_up(fd: &impl AsRawFd) -> bool {
    happens_now(fd, libc::POLLHUP)
}

/// True if nothing can come from the other end of a socket any more: it is closed, or shut down for
/// writing. What was sent before may still be there. Returns at once.
pub fn is_mute(fd: &impl AsRawFd) -> bool {
    happens_now(fd, libc::POLLHUP | libc::POLLRDHUP)
}

/// Whether one of these events is there. (The kernel reports POLLHUP whether it is asked for or
/// not.)
fn happens_now(fd: &impl AsRawFd, events: i16) -> bool {
    let mut ends = [PollFd::new(fd, events)];
    poll(&mut ends, Some(Duration::ZERO)).is_ok() && ends[0].happened() & events != 0
}

/// True if there is something to read, or the other end is closed, within `timeout`.
pub fn is_readable(fd: &impl AsRawFd, timeout: Duration) -> io::Result<bool> {
    poll(&mut [PollFd::readable(fd)], Some(timeout)).map(|n| n > 0)
}
