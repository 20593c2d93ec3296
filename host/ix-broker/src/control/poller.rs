//! Linux's epoll, as far as the control socket needs it.
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Descriptors that may be ready, each with a number.
pub struct Poller(OwnedFd);

/// Most descriptors that one look answers.
const READY_MAX: usize = 64;
const GONE: u32 = (libc::EPOLLHUP | libc::EPOLLERR) as u32;

impl Poller {
    /// One without descriptors.
    pub fn new() -> io::Result<Poller> {
        // SAFETY: no pointers; a descriptor that the call answers is nobody else's.
        unsafe {
            let fd = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            if fd < 0 {
                Err(io::Error::last_os_error())
            } else {
                Ok(Poller(OwnedFd::from_raw_fd(fd)))
            }
        }
    }

    /// Watches a descriptor for something to read, until it is closed.
    pub fn add(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, libc::EPOLLIN)
    }

    /// From now on it is watched for this.
    pub fn change(
        &self,
        fd: BorrowedFd<'_>,
        token: u64,
        read: bool,
        write: bool,
    ) -> io::Result<()> {
        let interest =
            if read { libc::EPOLLIN } else { 0 } | if write { libc::EPOLLOUT } else { 0 };
        self.control(libc::EPOLL_CTL_MOD, fd, token, interest)
    }

    fn control(&self, op: i32, fd: BorrowedFd<'_>, token: u64, interest: i32) -> io::Result<()> {
        let mut event = libc::epoll_event { events: interest as u32, u64: token };
        // SAFETY: two open descriptors and a local.
        let ret = unsafe { libc::epoll_ctl(self.0.as_raw_fd(), op, fd.as_raw_fd(), &mut event) };
        if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Those that are ready now, and whether the other end is gone altogether.
    pub fn ready(&self) -> Vec<(u64, bool)> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; READY_MAX];
        // SAFETY: an array with its length.
        let n = unsafe {
            libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), READY_MAX as i32, 0)
        };
        // An error is an interruption: there will be another look.
        let ready = events.iter().take(usize::try_from(n).unwrap_or(0));
        ready.map(|event| (event.u64, event.events & GONE != 0)).collect()
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
