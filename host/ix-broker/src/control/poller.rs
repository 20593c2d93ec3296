//! What the control socket watches: its listeners and its clients.
use ix_sys::Epoll;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// Descriptors that may be ready, each with a number.
pub struct Poller(Epoll);

/// At most this many ready descriptors per call.
const READY_MAX: usize = 64;

impl Poller {
    /// A poller without descriptors.
    pub fn new() -> io::Result<Poller> {
        Epoll::new(READY_MAX).map(Poller)
    }

    /// Watches a descriptor for something to read, until it is closed.
    pub fn add(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        self.0.add(&fd, libc::EPOLLIN, token)
    }

    /// Changes what a descriptor is watched for.
    pub fn change(
        &self,
        fd: BorrowedFd<'_>,
        token: u64,
        read: bool,
        write: bool,
    ) -> io::Result<()> {
        let interest =
            if read { libc::EPOLLIN } else { 0 } | if write { libc::EPOLLOUT } else { 0 };
        self.0.change(&fd, interest, token)
    }

    /// Returns the descriptors that are ready now, and whether the other end has closed.
    pub fn ready(&mut self) -> Vec<(u64, bool)> {
        // After an error nothing is ready: the caller polls again.
        let count = self.0.wait(0).unwrap_or(0);
        let ready = (0..count).map(|index| self.0.event(index));
        ready.map(|(what, token)| (token, what & (libc::EPOLLHUP | libc::EPOLLERR) != 0)).collect()
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
