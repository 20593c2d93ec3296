//! A process that has the XDP program's link a moment longer than ours.
//!
//! The kernel takes a program off its interface when the last descriptor of its link is closed, and waits
//! there for grace periods: 5 to 20 ms while AF_XDP sockets are at work. In a process that is killed that
//! comes before anybody hears of its end, so whoever waits for it, such as the one who gives its traffic
//! to somebody else, would wait as well. With the link in another process our end costs a millisecond;
//! that process has nothing else, and ends with ours.
use crate::sys::check;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

/// The process; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Keeper(libc::pid_t);

impl Keeper {
    /// Keeps a copy of `link`.
    pub fn new(link: BorrowedFd<'_>) -> io::Result<Keeper> {
        // SAFETY: no arguments.
        let parent = unsafe { libc::getpid() };
        // SAFETY: the child makes system calls only, whatever threads we have.
        match check(unsafe { libc::fork() })? {
            0 => keep(link.as_raw_fd(), parent),
            pid => Ok(Keeper(pid)),
        }
    }
}

/// The child: closes all but the link, and waits for our end.
fn keep(link: RawFd, parent: libc::pid_t) -> ! {
    let link = link as libc::c_uint;
    // SAFETY: system calls without memory, but for a name that is a constant. Descriptors are closed
    // behind the back of those that own them, none of whom runs in this process.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::prctl(libc::PR_SET_NAME, c"ix-keeper".as_ptr());
        if link > 0 {
            libc::syscall(libc::SYS_close_range, 0, link - 1, 0);
        }
        libc::syscall(libc::SYS_close_range, link + 1, libc::c_uint::MAX, 0);
        // Who has ended before the first line sends no signal any more.
        while libc::getppid() == parent {
            libc::pause();
        }
        libc::_exit(0)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // SAFETY: no pointers but a null status; our child, that nobody else waits for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}
