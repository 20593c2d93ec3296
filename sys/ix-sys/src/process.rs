//! Processes: identities, signals, and waiting for their end.
use crate::poll::{PollFd, poll};
use crate::{check, fd, retry};
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

/// The effective user (geteuid(2)); 0 is root.
pub fn user_id() -> u32 {
    // SAFETY: no arguments, and it cannot fail.
    unsafe { libc::geteuid() }
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

/// Users that systemd gives out for a time (DynamicUser), of which IX takes some for its dataplanes
/// and programs; no file belongs to one.
pub const USERS_FOR_A_TIME: RangeInclusive<u32> = 61184..=65519;

/// The one behind [`USERS_FOR_A_TIME`], which systemd gives to nobody. IX gives it to no program
/// and no dataplane: it owns what no process should.
pub const USER_OF_NO_PROCESS: u32 = *USERS_FOR_A_TIME.end() + 1;

/// Both: no program is given one of these by its number, and none that is root has them.
pub const USERS_OF_IX: RangeInclusive<u32> = *USERS_FOR_A_TIME.start()..=USER_OF_NO_PROCESS;

/// From now on no other process of the same user can trace this one, read its memory or take its
/// descriptors, and it dumps no core (prctl(2), PR_SET_DUMPABLE).
pub fn forbid_tracing() -> io::Result<()> {
    // SAFETY: takes numbers.
    check(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) }).map(drop)
}

/// From now on a process that has root's number, but not root's rights, can neither signal this
/// process of root nor change its limits: Linux compares numbers with the real and the saved user
/// (kill(2), prlimit(2)), and no process has the one that they are now. Root's rights come with the
/// effective user, which stays. A child that executes a program calls [`reveal_user`] first.
/// Nothing changes for others than root, and in a user namespace that lacks the number.
pub fn hide_user() -> io::Result<()> {
    if !is_root() {
        return Ok(());
    }
    // SAFETY: takes numbers.
    let hidden = check(unsafe { libc::setresuid(USER_OF_NO_PROCESS, 0, USER_OF_NO_PROCESS) });
    match hidden {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        hidden => hidden.map(drop),
    }
}

/// Takes [`hide_user`] back. Makes only system calls, for the calling thread, so it may be used
/// between fork and exec.
pub fn reveal_user() -> io::Result<()> {
    // SAFETY: no arguments, and it cannot fail.
    let user = i64::from(unsafe { libc::geteuid() });
    // SAFETY: takes numbers. Not libc's function, which asks all threads of the process.
    let made = unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) };
    if made < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes files and sockets as this user, in the calling thread alone (setfsuid(2)). Who may not do
/// that makes them as itself.
pub fn with_file_user<T>(user: u32, make: impl FnOnce() -> T) -> T {
    // SAFETY: takes a number. It answers with the user before, whether it has changed or not.
    let before = unsafe { libc::setfsuid(user) };
    let made = make();
    // SAFETY: as above.
    unsafe { libc::setfsuid(before as u32) };
    made
}

/// For a process of root with one thread: it keeps root's rights, and is a user whom no other
/// process has. So a process that has root's number, but not root's rights, can change neither its
/// priority nor its hardware threads (sched_setaffinity(2) compares effective users). Nothing
/// changes for others than root, and in a user namespace that lacks the number.
pub fn leave_roots_number() -> io::Result<()> {
    if !is_root() {
        return Ok(());
    }
    // SAFETY: takes numbers.
    unsafe {
        check(libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0))?;
        let user = USER_OF_NO_PROCESS;
        match check(libc::setresuid(user, user, user)) {
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => return Ok(()),
            left => left?,
        };
    }
    set_rights(Rights::AllPermitted)
}

/// What [`set_rights`] makes of a thread's rights (capabilities(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rights {
    /// None, and none can come back.
    None,
    /// All that it may have.
    AllPermitted,
}

/// For each half of the rights: effective, permitted, inheritable.
type RightsWords = [[u32; 3]; 2];
const RIGHTS_VERSION_3: u32 = 0x2008_0522;

fn rights() -> io::Result<RightsWords> {
    let (header, mut rights) = ([RIGHTS_VERSION_3, 0], [[0u32; 3]; 2]);
    // SAFETY: takes arrays of the sizes that this version has.
    let read = unsafe { libc::syscall(libc::SYS_capget, header.as_ptr(), rights.as_mut_ptr()) };
    check(read).map(|_| rights)
}

/// Changes the rights of the calling thread (capset(2)). Makes only system calls.
pub(crate) fn set_rights(to: Rights) -> io::Result<()> {
    let (header, mut rights) = ([RIGHTS_VERSION_3, 0], rights()?);
    rights.iter_mut().for_each(|half| match to {
        Rights::None => *half = [0; 3],
        Rights::AllPermitted => half[0] = half[1],
    });
    // SAFETY: takes arrays of the sizes that this version has.
    check(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), rights.as_ptr()) }).map(drop)
}

/// Whether the calling thread has any right of root, or could take one.
pub(crate) fn has_rights() -> io::Result<bool> {
    Ok(rights()?.iter().any(|[effective, permitted, _]| effective | permitted != 0))
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

/// Ticks per second of the times in `/proc` (sysconf(3)).
pub fn ticks_per_s() -> u64 {
    // SAFETY: a plain query.
    unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as u64
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
