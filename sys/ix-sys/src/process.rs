//! Processes: users and rights, signals, and waiting for their end.
use crate::poll::{PollFd, poll};
use crate::{check, fd, retry};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

#[cfg(feature = "host")]
mod users;
#[cfg(feature = "host")]
pub use users::*;
#[cfg(feature = "host")]
pub(crate) use users::{Rights, has_rights, set_rights};

/// Sends a signal to a process (kill(2)); 0 only tests whether the process exists. After a process
/// was waited for, its number may belong to another one.
pub fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: takes numbers.
    check(unsafe { libc::kill(pid, signal) }).map(drop)
}

/// Waits for the end of a child (waitpid(2)); without `block` it does not wait. `None`: it has not
/// ended.
#[cfg(feature = "host")]
pub fn wait(pid: i32, block: bool) -> io::Result<Option<ExitStatus>> {
    use rustix::process::{Pid, WaitOptions, waitpid};
    let flags = if block { WaitOptions::empty() } else { WaitOptions::NOHANG };
    let ended = waitpid(Pid::from_raw(pid), flags)?;
    Ok(ended.map(|(_, status)| ExitStatus::from_raw(status.as_raw())))
}

/// Waits for the end of whichever child, without blocking. `None`: none has ended; an error
/// (`ECHILD`): there is none.
#[cfg(feature = "host")]
pub fn wait_for_any() -> io::Result<Option<ExitStatus>> {
    use rustix::process::{WaitOptions, wait};
    let ended = wait(WaitOptions::NOHANG)?;
    Ok(ended.map(|(_, status)| ExitStatus::from_raw(status.as_raw())))
}

/// The number of a child of the calling thread that has ended and was not waited for; it still is
/// not (waitid(2)).
pub fn ended_child() -> io::Result<Option<u32>> {
    // SAFETY: all-zero bytes are valid information.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WNOTHREAD;
    // SAFETY: fills a local.
    check(unsafe { libc::waitid(libc::P_ALL, 0, &raw mut info, flags) })?;
    // SAFETY: the kernel has filled what belongs to a child, or left all of it zero.
    let pid = unsafe { info.si_pid() };
    Ok((pid != 0).then_some(pid as u32))
}

/// A process, by a descriptor: it stays this one when another process gets its number.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    fd: OwnedFd,
}

impl Process {
    /// The process that has this number now (pidfd_open(2)).
    pub fn open(pid: u32) -> io::Result<Process> {
        // SAFETY: takes numbers.
        let new = check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) })?;
        // SAFETY: a new descriptor (close-on-exec) that no other value owns.
        Ok(Process { pid, fd: unsafe { fd::own(new as RawFd) } })
    }

    /// The process of a descriptor that the kernel gave for this number.
    pub(crate) fn of(pid: u32, fd: OwnedFd) -> Process {
        Process { pid, fd }
    }

    /// The number that it has, or had.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends it a signal; 0 only tests whether it still exists (pidfd_send_signal(2)).
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        signal_pidfd(self.fd.as_raw_fd(), signal)
    }

    /// Whether it has ended, child or not. A child that was not waited for has ended too.
    pub fn has_ended(&self) -> bool {
        let mut ends = [PollFd::new(&self.fd, libc::POLLIN)];
        poll(&mut ends, Some(Duration::ZERO)).is_ok_and(|ready| ready > 0)
    }

    /// Waits for its end, if it is a child; without `block` it does not wait. `None`: it has not
    /// ended (waitid(2)).
    pub fn wait(&self, block: bool) -> io::Result<Option<ExitStatus>> {
        // SAFETY: all-zero bytes are valid information.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let flags = libc::WEXITED | if block { 0 } else { libc::WNOHANG };
        let id = self.fd.as_raw_fd() as libc::id_t;
        retry(|| {
            // SAFETY: fills a local.
            check(unsafe { libc::waitid(libc::P_PIDFD, id, &raw mut info, flags) })
        })?;
        // SAFETY: the kernel has filled what belongs to a child, or left all of it zero.
        let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
        if pid == 0 {
            return Ok(None);
        }
        // As waitpid(2) has it.
        let status = match info.si_code {
            libc::CLD_EXITED => (status & 0xff) << 8,
            libc::CLD_DUMPED => status | 0x80,
            _ => status,
        };
        Ok(Some(ExitStatus::from_raw(status)))
    }
}

/// Readable when it has ended.
impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// As [`Process::signal`], by the number of the descriptor. For signal handlers: it only makes a
/// system call.
pub fn signal_pidfd(process: RawFd, signal: i32) -> io::Result<()> {
    let (information, flags) = (std::ptr::null::<libc::siginfo_t>(), 0);
    // SAFETY: takes numbers, and no information.
    let sent =
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process, signal, information, flags) };
    check(sent).map(drop)
}

/// Ticks per second of the times in `/proc`.
#[cfg(feature = "host")]
pub fn ticks_per_s() -> u64 {
    rustix::param::clock_ticks_per_second()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn start(program: &str, args: &[&str]) -> Process {
        #[allow(clippy::zombie_processes, reason = "waited for by its descriptor")]
        let child = Command::new(program).args(args).spawn().unwrap();
        Process::open(child.id()).unwrap()
    }

    #[test]
    fn a_process_is_no_other_one_when_it_has_ended() {
        for (script, signal, status) in [("exit 3", 0, 3 << 8), ("sleep 9", libc::SIGTERM, 15)] {
            let process = start("sh", &["-c", script]);
            process.signal(signal).unwrap();
            let ended = process.wait(true).unwrap().expect("it has ended");
            assert_eq!(ended.into_raw(), status);
            // Its number may be another's from here on.
            let gone = process.signal(libc::SIGKILL).unwrap_err();
            assert_eq!(gone.raw_os_error(), Some(libc::ESRCH));
            assert!(process.wait(false).is_err(), "it was waited for");
        }
        let process = start("sleep", &["9"]);
        assert!(process.wait(false).unwrap().is_none());
        assert!(!process.has_ended());
        process.signal(libc::SIGKILL).unwrap();
        assert!(process.wait(true).unwrap().is_some());
        assert!(process.has_ended());
    }
}
