//! Child processes that do not execute another program.
use crate::command::die_with;
use crate::{check, event, process};
use rustix::process::{Signal, set_parent_process_death_signal};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

/// A process that only holds a descriptor open, a moment longer than its parent lives. It ends when
/// this is dropped, and when its parent ends.
#[derive(Debug)]
pub struct Holder(libc::pid_t);

impl Holder {
    /// Holds a copy of `fd`, under the process name `name`.
    pub fn new(fd: BorrowedFd<'_>, name: &CStr) -> io::Result<Holder> {
        let parent = std::process::id().cast_signed();
        // SAFETY: the child makes system calls only, whatever threads we have.
        match check(unsafe { libc::fork() })? {
            0 => hold(fd.as_raw_fd(), name, parent),
            pid => Ok(Holder(pid)),
        }
    }
}

/// The child closes all descriptors but this one, and waits for its parent's end.
fn hold(fd: RawFd, name: &CStr, parent: libc::pid_t) -> ! {
    let fd = fd as libc::c_uint;
    // It holds the descriptor without them, too.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let _ = rustix::thread::set_name(name);
    // SAFETY: system calls without memory. Descriptors are closed behind the back of their owners,
    // none of which runs in this process.
    unsafe {
        if fd > 0 {
            libc::syscall(libc::SYS_close_range, 0, fd - 1, 0);
        }
        libc::syscall(libc::SYS_close_range, fd + 1, libc::c_uint::MAX, 0);
        // A parent that has ended before the first line sends no signal.
        while libc::getppid() == parent {
            libc::pause();
        }
        libc::_exit(0)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        end(self.0);
    }
}

/// A process that rings one eventfd whenever another one rings. It ends when this is dropped, and
/// with the thread that started it.
#[derive(Debug)]
pub struct Responder(libc::pid_t);

impl Responder {
    /// Starts it: it waits for `there`, which blocks, and rings `back`.
    pub fn new(there: BorrowedFd<'_>, back: BorrowedFd<'_>) -> io::Result<Responder> {
        let parent = std::process::id().cast_signed();
        // SAFETY: the child makes system calls only, whatever threads we have, until it is killed.
        match check(unsafe { libc::fork() })? {
            0 => {
                if die_with(parent).is_err() {
                    // SAFETY: ends the child without running the parent's exit handlers.
                    unsafe { libc::_exit(0) }
                }
                loop {
                    event::wait(there);
                    event::ring(back);
                }
            }
            pid => Ok(Responder(pid)),
        }
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        end(self.0);
    }
}

/// Kills a child of this file and waits for it.
fn end(pid: libc::pid_t) {
    // Our child, for which no other thread waits. Errors mean that it has ended.
    let _ = process::kill(pid, libc::SIGKILL);
    let _ = process::wait(pid, true);
}
