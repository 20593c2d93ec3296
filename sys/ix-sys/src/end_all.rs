//! Ends all processes of somebody at once: the kernel goes through all processes under the lock
//! that a fork takes too (kill(2) with -1), so that none escapes, however fast they fork.
use crate::process::{self, Process};
use crate::{check, user_namespace};
use rustix::process::Uid;
use rustix::thread::{set_keep_capabilities, set_thread_res_uid};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Longest wait for the child that ends them: they may slow it down while it has their user.
const PATIENCE: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_micros(100);

/// Whose processes.
#[derive(Debug)]
pub enum Of {
    /// This user's, who is not root.
    User(u32),
    /// Those in this user namespace and in all below it.
    Namespace(OwnedFd),
}

/// Ends all processes `of` somebody, by a child process that may end no others. Takes root's
/// rights, and a user whom no process has: it is the child's real one, so that those it ends cannot
/// end it before.
pub fn end_all(of: &Of, nobody: u32) -> io::Result<()> {
    if nobody == 0 || matches!(of, Of::User(0)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the child makes system calls only, whatever threads we have, and ends.
    let pid = check(unsafe { libc::fork() })?;
    if pid == 0 {
        let done = match of {
            Of::User(user) => become_powerless(*user, nobody),
            Of::Namespace(namespace) => enter(namespace.as_fd(), nobody),
        };
        let done = done.and_then(|()| process::kill(-1, libc::SIGKILL));
        let errno = done.err().map_or(0, |e| e.raw_os_error().unwrap_or(libc::EINVAL));
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(if errno == libc::ESRCH { 0 } else { errno }) }
    }
    let child = Process::open(pid as u32)?;
    let end = Instant::now() + PATIENCE;
    while !child.has_ended() {
        if Instant::now() >= end {
            child.signal(libc::SIGKILL)?;
            break;
        }
        std::thread::sleep(PAUSE);
    }
    match child.wait(true)?.and_then(|status| status.code()) {
        Some(0) => Ok(()),
        Some(errno) => Err(io::Error::from_raw_os_error(errno)),
        None => Err(io::ErrorKind::Interrupted.into()),
    }
}

/// The child may do what this user may, and nothing more. Its real and its saved user is nobody, so
/// that it may signal the user's processes, and they may not signal it.
fn become_powerless(user: u32, nobody: u32) -> io::Result<()> {
    set_users(nobody, user)?;
    process::set_rights(process::Rights::None)?;
    // A process that still has root's rights here would end all processes of the machine.
    if process::user_id() != user || process::has_rights()? {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    Ok(())
}

/// The child has all rights over the namespace, and none over what is outside.
fn enter(namespace: BorrowedFd<'_>, nobody: u32) -> io::Result<()> {
    set_keep_capabilities(true)?;
    set_users(nobody, nobody)?;
    process::set_rights(process::Rights::AllPermitted)?;
    // Rights in a namespace that is not this one's are none here (user_namespaces(7)); to enter
    // one's own is refused.
    user_namespace::join(namespace)
}

/// Of the calling thread, which is the only one.
fn set_users(real: u32, effective: u32) -> io::Result<()> {
    let [real, effective] = [real, effective].map(Uid::from_raw);
    Ok(set_thread_res_uid(real, effective, real)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::RangeInclusive;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command};

    const NOBODY: u32 = 65501;
    const THEIRS: u32 = 65502;
    const WITHOUT: RangeInclusive<u32> = 61184..=65519;

    /// A shell that forks and ends, forks and ends, so that no list of processes has the last one.
    const FLEES: &str = "f() { f & }; f";

    fn start(user: u32, script: &str) -> Child {
        Command::new("sh").args(["-c", script]).uid(user).gid(user).spawn().expect("a shell")
    }

    /// Waits until no process that has not ended is one of these.
    fn none_is_left(is_theirs: impl Fn(u32) -> bool) {
        let living = || {
            let all = std::fs::read_dir("/proc").expect("/proc").flatten();
            let all = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
            let theirs = all.filter(|pid| is_theirs(*pid));
            theirs.filter(|pid| Process::open(*pid).is_ok_and(|p| !p.has_ended())).count()
        };
        // Those that were ended may not have run since.
        let end = Instant::now() + Duration::from_secs(2);
        while living() > 0 {
            assert!(Instant::now() < end, "{} are left", living());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn all_of_a_user_end_and_nobody_else() {
        if !process::is_root() {
            let name = "all_of_a_user_end_and_nobody_else";
            return ix_skip::skip(name, ix_skip::Need::Root, "only root becomes another user");
        }
        let mut other = start(65503, "exec sleep 60");
        let mut fleeing = start(THEIRS, FLEES);
        fleeing.wait().expect("the first one has ended");
        let mut stays = start(THEIRS, "exec sleep 60");
        end_all(&Of::User(THEIRS), NOBODY).expect("ended");
        assert!(!stays.wait().expect("ended").success());
        none_is_left(|pid| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
            status.is_ok_and(|status| status.contains(&format!("\nUid:\t{THEIRS}\t")))
        });
        assert!(matches!(other.try_wait(), Ok(None)));
        other.kill().and_then(|()| other.wait()).expect("ended");
        for (user, nobody) in [(0, NOBODY), (THEIRS, 0)] {
            end_all(&Of::User(user), nobody).expect_err("root is nobody's");
        }
    }

    #[test]
    fn all_of_a_namespace_end_and_nobody_else() {
        if !process::is_root() {
            let name = "all_of_a_namespace_end_and_nobody_else";
            return ix_skip::skip(name, ix_skip::Need::Root, "only root maps users");
        }
        let namespace = user_namespace::UserNamespace::without(&WITHOUT).expect("made");
        let inside = |script: &str| {
            let fd = namespace.as_fd().try_clone_to_owned().expect("a copy");
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            // SAFETY: makes a system call only.
            unsafe { command.pre_exec(move || user_namespace::join(fd.as_fd())) };
            command.spawn().expect("a shell")
        };
        let mut other = start(0, "exec sleep 60");
        let mut fleeing = inside(FLEES);
        fleeing.wait().expect("the first one has ended");
        let mut stays = inside("exec unshare -U sleep 60");
        std::thread::sleep(Duration::from_millis(50));
        let copy = || namespace.as_fd().try_clone_to_owned().expect("a copy");
        end_all(&Of::Namespace(copy()), NOBODY).expect("ended");
        assert!(!stays.wait().expect("ended").success());
        none_is_left(|pid| namespace.has(pid));
        assert!(matches!(other.try_wait(), Ok(None)));
        other.kill().and_then(|()| other.wait()).expect("ended");
    }
}
