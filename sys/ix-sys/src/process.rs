//! Processes: identities, signals, and waiting for their end.
use crate::{check, fd};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// The effective user (geteuid(2)); 0 is root.
pub fn user_id() -> u32 {
    // SAFETY: no arguments, and it cannot fail.
    unsafe { libc::geteuid() }
}

/// The user that started the process (getuid(2)).
pub fn real_user_id() -> u32 {
    // SAFETY: no arguments, and it cannot fail.
    unsafe { libc::getuid() }
}

/// The effective group (getegid(2)).
pub fn group_id() -> u32 {
    // SAFETY: no arguments, and it cannot fail.
    unsafe { libc::getegid() }
}

/// True if the process runs as root.
pub fn is_root() -> bool {
    user_id() == 0
}

/// The calling thread's number (gettid(2)).
pub fn thread_id() -> i32 {
    // SAFETY: no arguments, and it cannot fail.
    unsafe { libc::gettid() }
}

/// Sends a signal to a process (kill(2)); 0 only tests whether the process exists. After a process
/// was waited for, its number may belong to another one.
pub fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: takes numbers.
    check(unsafe { libc::kill(pid, signal) }).map(drop)
}

/// Waits for the end of one child, or of any with -1 (waitpid(2)); without `block` it does not
/// wait. `None`: no child has ended.
pub fn wait(pid: i32, block: bool) -> io::Result<Option<(i32, ExitStatus)>> {
    let mut status = 0;
    let flags = if block { 0 } else { libc::WNOHANG };
    // SAFETY: fills a local.
    let ended = check(unsafe { libc::waitpid(pid, &raw mut status, flags) })?;
    Ok((ended != 0).then(|| (ended, ExitStatus::from_raw(status))))
}

/// A descriptor of a process, readable when it has ended (pidfd_open(2)).
pub fn open_pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers.
    let new = check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) })?;
    // SAFETY: a new descriptor (close-on-exec) that no other value owns.
    Ok(unsafe { fd::own(new as RawFd) })
}

/// Sends a signal to the process of a descriptor, which cannot be another one
/// (pidfd_send_signal(2)).
pub fn signal_pidfd(process: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    let (fd, information, flags) = (process.as_raw_fd(), std::ptr::null::<libc::siginfo_t>(), 0);
    // SAFETY: takes numbers, and no information.
    check(unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, signal, information, flags) })
        .map(drop)
}

/// Ticks per second of the times in `/proc` (sysconf(3)).
pub fn ticks_per_s() -> u64 {
    // SAFETY: a plain query.
    unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as u64
}
