//! Waits for events of many descriptors: epoll(7).
use crate::{check, fd};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// An epoll instance.
pub struct Epoll {
    fd: OwnedFd,
    events: Vec<libc::epoll_event>,
}

impl Epoll {
    /// An instance that reports at most `events` events at a time.
    pub fn new(events: usize) -> io::Result<Epoll> {
        // SAFETY: takes a number.
        let new = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: a new descriptor that no other value owns.
        let fd = unsafe { fd::own(new) };
        Ok(Epoll { fd, events: vec![libc::epoll_event { events: 0, u64: 0 }; events] })
    }

    /// Adds a descriptor, to be watched for `interest` (`EPOLLIN` and others), level-triggered
    /// unless that says otherwise.
    pub fn add(&self, fd: &impl AsRawFd, interest: i32, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, interest, token)
    }

    /// Changes what a descriptor is watched for.
    pub fn change(&self, fd: &impl AsRawFd, interest: i32, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, interest, token)
    }

    /// Removes a descriptor.
    pub fn remove(&self, fd: &impl AsRawFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, 0, 0)
    }

    fn control(&self, op: i32, fd: &impl AsRawFd, interest: i32, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: interest as u32, u64: token };
        let epoll = self.fd.as_raw_fd();
        // SAFETY: the event is valid during the call.
        check(unsafe { libc::epoll_ctl(epoll, op, fd.as_raw_fd(), &raw mut event) }).map(drop)
    }

    /// Waits for events, at most `timeout_ms`, without a limit if negative. Returns the number of
    /// events; 0 if a signal interrupts it.
    pub fn wait(&mut self, timeout_ms: i32) -> io::Result<usize> {
        let (events, max) = (self.events.as_mut_ptr(), self.events.len() as i32);
        // SAFETY: the vector has room for `max` events.
        let n = unsafe { libc::epoll_wait(self.fd.as_raw_fd(), events, max, timeout_ms) };
        came(n)
    }

    /// As [`Epoll::wait`], with a timeout in nanoseconds, as exact as the kernel's timers
    /// (epoll_pwait2(2)).
    pub fn wait_ns(&mut self, timeout_ns: u64) -> io::Result<usize> {
        let (events, max) = (self.events.as_mut_ptr(), self.events.len() as i32);
        let timeout = libc::timespec {
            tv_sec: (timeout_ns / 1_000_000_000) as libc::time_t,
            tv_nsec: (timeout_ns % 1_000_000_000) as libc::c_long,
        };
        let (fd, mask) = (self.fd.as_raw_fd(), std::ptr::null());
        // SAFETY: the vector has room for `max` events; a local timeout; no signal mask.
        let n = unsafe { libc::epoll_pwait2(fd, events, max, &raw const timeout, mask) };
        came(n)
    }

    /// Event `index` of the last wait: what happened, and the token.
    pub fn event(&self, index: usize) -> (i32, u64) {
        (self.events[index].events as i32, self.events[index].u64)
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn came(n: i32) -> io::Result<usize> {
    match check(n) {
        Ok(n) => Ok(n as usize),
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(0),
        Err(e) => Err(e),
    }
}
