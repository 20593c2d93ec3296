//! The process that closes the program's connections when that has ended (the image's `survivor`),
//! as its broker sees it: when somebody kills it before, there is to be another.
use ix_launch::Channel;
use ix_proto::{Codec, ToImage};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The newest one.
#[derive(Default)]
pub struct Survivor(Option<(u32, OwnedFd)>);

impl Survivor {
    /// It has this number now.
    pub fn is(&mut self, pid: u32) {
        self.reap();
        // SAFETY: no pointers.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as RawFd;
        // SAFETY: a new descriptor that belongs to nobody else.
        self.0 = (fd >= 0).then(|| (pid, unsafe { OwnedFd::from_raw_fd(fd) }));
    }

    /// Readable when it has ended.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(|(_, fd)| fd.as_fd())
    }

    /// It has: tells the dataplane, which starts another, unless there is none any more.
    pub fn ended(&mut self, channel: Option<&Channel>) {
        self.reap();
        let Some((pid, _)) = self.0.take() else { return };
        // A channel that is full for long has a program that never enters: nothing to close.
        let told = channel.map(|c| c.try_send(&ToImage::SurvivorEnded { pid }.encode(), &[]));
        if matches!(told, Some(Err(_))) {
            eprintln!("ix: nobody will close the program's connections: process {pid} was killed");
        }
    }

    /// It is our child, or was made by a fork of the program, which has its own parent.
    fn reap(&self) {
        if let Some((pid, _)) = &self.0 {
            // SAFETY: no pointers; only that child, if it has ended.
            unsafe { libc::waitpid(*pid as i32, std::ptr::null_mut(), libc::WNOHANG) };
        }
    }
}
