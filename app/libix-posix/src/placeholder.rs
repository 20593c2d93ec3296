//! The Linux file under connections of IX: one socket of Linux's for all of a family, which is
//! never bound or connected. Each connection's number is a copy of its descriptor. So the kernel
//! keeps a word of the descriptor table for a connection, and no socket.
//!
//! To Linux the number is a TCP socket of the right family (`fstat`, `SO_TYPE`, `SO_DOMAIN`). What
//! a shared file cannot do is to name its connection. So a connection gets a socket of its own as
//! soon as its descriptor goes to another process or is duplicated, or Linux is asked something
//! ([`crate::ops::use_linux`]).
use crate::fds;
use crate::numbers::Linux;
use crate::real;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use libc::{AF_INET, AF_INET6, SOCK_CLOEXEC, SOCK_STREAM};
use std::os::fd::RawFd;

/// A socket that is copied.
struct Original {
    /// A descriptor of this library's; negative: none yet.
    fd: AtomicI32,
    /// Its inode.
    inode: AtomicU64,
}

impl Original {
    const fn none() -> Original {
        Original { fd: AtomicI32::new(-1), inode: AtomicU64::new(0) }
    }
}

/// Of `AF_INET` and of `AF_INET6`. Used under the lock.
static ORIGINALS: [Original; 2] = [Original::none(), Original::none()];

/// Numbers of connections of this family.
pub struct Connections {
    /// `AF_INET6`, else `AF_INET`.
    pub ipv6: bool,
}

impl Connections {
    fn original(&self) -> &'static Original {
        &ORIGINALS[usize::from(self.ipv6)]
    }

    /// A copy of the original at the lowest free number, or with `over` at that number.
    fn copy(&self, over: Option<RawFd>) -> Result<RawFd, i32> {
        let from = match self.original().fd.load(Ordering::Relaxed) {
            fd if fd >= 0 && self.is_there(fd) => fd,
            _ => self.make()?,
        };
        // SAFETY: no pointers; `over` is the caller's.
        let copy = unsafe {
            match over {
                Some(to) => real::dup3(from, to, libc::O_CLOEXEC),
                None => real::fcntl(from, libc::F_DUPFD_CLOEXEC, 0),
            }
        };
        if copy < 0 { Err(real::errno()) } else { Ok(copy) }
    }

    /// Whether the original is still open at its number. A program may close all numbers by system
    /// calls of its own.
    fn is_there(&self, fd: RawFd) -> bool {
        fds::socket_inode(fd) == Some(self.original().inode.load(Ordering::Relaxed))
    }

    /// A socket of its own.
    #[cold]
    fn plain(&self) -> Result<RawFd, i32> {
        let domain = if self.ipv6 { AF_INET6 } else { AF_INET };
        // SAFETY: no pointers.
        let made = unsafe { real::socket(domain, SOCK_STREAM | SOCK_CLOEXEC, 0) };
        if made < 0 { Err(real::errno()) } else { Ok(made) }
    }

    #[cold]
    fn make(&self) -> Result<RawFd, i32> {
        let original = self.original();
        let before = original.fd.swap(-1, Ordering::Relaxed);
        if before >= 0 {
            // Whatever is open there is the program's.
            fds::replace(before, fds::Entry::Linux);
        }
        let made = self.plain()?;
        let fd = fds::copy_out_of_the_way(made);
        real::close_held(made);
        let fd = fd.ok_or(libc::EMFILE)?;
        original.inode.store(fds::socket_inode(fd).unwrap_or(0), Ordering::Relaxed);
        original.fd.store(fd, Ordering::Relaxed);
        Ok(fd)
    }

    /// Puts the placeholder at a number whose own file is not needed any more.
    pub fn replace(&self, fd: RawFd) -> Result<(), i32> {
        self.copy(Some(fd)).map(drop)
    }
}

impl Linux for Connections {
    fn open(&mut self) -> Result<RawFd, i32> {
        // Where there is no number for the original, a socket of Linux's serves as well; the errno
        // of that is the program's.
        self.copy(None).or_else(|_| self.plain())
    }

    fn close(&mut self, fd: RawFd) {
        real::close_held(fd);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::lock;

    #[test]
    fn copies_are_sockets_of_the_family_and_one_file() {
        let _core = lock();
        for (ipv6, domain) in [(false, AF_INET), (true, AF_INET6)] {
            let mut connections = Connections { ipv6 };
            let [a, b] = [0; 2].map(|_| connections.open().expect("a number"));
            assert_ne!(a, b);
            assert!(fds::socket_inode(a).is_some() && fds::closes_on_exec(a));
            assert_eq!(fds::socket_inode(a), fds::socket_inode(b));
            let (mut value, mut len) = (0i32, 4u32);
            // SAFETY: a local with its length.
            unsafe {
                libc::getsockopt(
                    a,
                    libc::SOL_SOCKET,
                    libc::SO_DOMAIN,
                    (&raw mut value).cast(),
                    &mut len,
                );
            }
            assert_eq!(value, domain);
            [a, b].into_iter().for_each(|fd| connections.close(fd));
        }
    }

    #[test]
    fn an_original_that_the_program_has_closed_is_made_again() {
        let _core = lock();
        let mut connections = Connections { ipv6: false };
        let first = connections.open().expect("a number");
        let original = connections.original().fd.load(Ordering::Relaxed);
        // SAFETY: no pointers; as a program closes all numbers without the C library. A pipe may
        // get the number.
        let ends = unsafe {
            libc::syscall(libc::SYS_close, original);
            std::io::pipe().expect("a pipe")
        };
        // SAFETY: no pointers.
        unsafe {
            use std::os::fd::AsRawFd;
            libc::syscall(libc::SYS_dup3, ends.0.as_raw_fd(), original, libc::O_CLOEXEC);
        }
        let second = connections.open().expect("a number");
        assert!(fds::socket_inode(second).is_some(), "no copy of the pipe");
        assert!(fds::socket_inode(original).is_none(), "the program's file is left alone");
        real::close_held(original);
        [first, second].into_iter().for_each(|fd| connections.close(fd));
    }
}
