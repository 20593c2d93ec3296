//! User namespaces (user_namespaces(7)): root's rights over own network namespaces, for any user;
//! and a root that lacks some users of this namespace, for a program that must be root.
use crate::{Error, check, fd, process, retry, socket};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Signal, getgid, getuid, set_parent_process_death_signal};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// Moves the process into a new user and network namespace, where it is root over what it makes:
/// namespaces, veth, tap, but no XDP and no steering programs. Must be called before the process
/// has a second thread.
pub fn enter() -> Result<(), Error> {
    let (uid, gid) = (getuid().as_raw(), getgid().as_raw());
    // SAFETY: plain system call; it refuses when there are other threads.
    if unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET) } < 0 {
        return Err(Error::last("cannot make a user namespace"));
    }
    // Without setgroups turned off, an unprivileged process may not map its group.
    for (file, text) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("0 {uid} 1")),
        ("gid_map", format!("0 {gid} 1")),
    ] {
        let path = format!("/proc/self/{file}");
        fs::write(&path, text).map_err(|e| Error::new(format!("cannot write {path}"), e))?;
    }
    Ok(())
}

/// Users, or groups, that have the same number inside of a namespace and outside: the first one,
/// and how many.
pub type Extent = (u32, u32);

/// The numbers of a map of this process's namespace (the text of `uid_map` or `gid_map`), without
/// those of `without`.
pub fn extents(map: &str, without: &RangeInclusive<u32>) -> Vec<Extent> {
    let mut extents = Vec::new();
    for line in map.lines() {
        let mut numbers = line.split_whitespace().filter_map(|word| word.parse::<u64>().ok());
        let (Some(first), Some(_), Some(count)) = (numbers.next(), numbers.next(), numbers.next())
        else {
            continue;
        };
        let (from, to) = (u64::from(*without.start()), u64::from(*without.end()) + 1);
        let end = first + count;
        for (first, end) in [(first, end.min(from)), (first.max(to), end)] {
            if first < end {
                extents.push((first as u32, (end - first) as u32));
            }
        }
    }
    extents
}

/// A user namespace that no process need be in.
#[derive(Debug)]
pub struct UserNamespace {
    fd: OwnedFd,
    inode: u64,
}

impl UserNamespace {
    /// Makes one, below this process's own, in which users and groups have the numbers that they
    /// have here, and in which `without` do not exist. Its root has root's rights over what these
    /// users own, and none over the system, over namespaces that were made outside, or over
    /// processes of other users. Nobody makes namespaces of control groups in it, which show
    /// control groups to be written. Takes root's rights.
    pub fn without(without: &RangeInclusive<u32>) -> Result<UserNamespace, Error> {
        let (ours, theirs) =
            socket::pair(libc::SOCK_STREAM).map_err(|e| Error::new("cannot make a socket", e))?;
        // SAFETY: the child makes system calls only, whatever threads we have, until it is killed.
        let pid = check(unsafe { libc::fork() }).map_err(|e| Error::new("cannot fork", e))?;
        if pid == 0 {
            // With its copy the read below would not end with the parent.
            drop(ours);
            be_first_in(theirs.as_fd());
        }
        drop(theirs);
        let made = UserNamespace::of_first(ours.as_fd(), pid, without);
        // Errors mean that it has ended.
        let _ = process::kill(pid, libc::SIGKILL);
        let _ = process::wait(pid, true);
        made
    }

    fn of_first(
        child: BorrowedFd<'_>,
        pid: i32,
        without: &RangeInclusive<u32>,
    ) -> Result<UserNamespace, Error> {
        const WHAT: &str = "cannot make a user namespace";
        let answer = || -> io::Result<i32> {
            let mut errno = [0; 4];
            match fd::read(child, &mut errno)? {
                4 => Ok(i32::from_ne_bytes(errno)),
                _ => Err(io::ErrorKind::UnexpectedEof.into()),
            }
        };
        let done = || match answer() {
            Ok(0) => Ok(()),
            Ok(errno) => Err(io::Error::from_raw_os_error(errno)),
            Err(e) => Err(e),
        };
        done().map_err(|e| Error::new(WHAT, e))?;
        done().map_err(|e| {
            Error::new(format!("cannot write {}", GROUP_NAMESPACES.to_string_lossy()), e)
        })?;
        for file in ["uid_map", "gid_map"] {
            let own = format!("/proc/self/{file}");
            let own = fs::read_to_string(&own).map_err(|e| Error::new(own, e))?;
            let lines = extents(&own, without);
            let lines = lines.iter().map(|(first, count)| format!("{first} {first} {count}"));
            let path = format!("/proc/{pid}/{file}");
            // In one write, as the kernel wants it.
            fs::write(&path, lines.collect::<Vec<_>>().join("\n"))
                .map_err(|e| Error::new(format!("cannot write {path}"), e))?;
        }
        let path = format!("/proc/{pid}/ns/user");
        let open = || {
            let file = File::open(&path)?;
            Ok((file.metadata()?.ino(), file))
        };
        let (inode, file) = open().map_err(|e: io::Error| Error::new(path.clone(), e))?;
        Ok(UserNamespace { fd: file.into(), inode })
    }

    /// Its inode, by which it is known as long as it lives.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Whether a process is in it, and not in one below it.
    pub fn has(&self, pid: u32) -> bool {
        fs::metadata(format!("/proc/{pid}/ns/user")).is_ok_and(|m| m.ino() == self.inode)
    }
}

impl AsFd for UserNamespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The user namespace above one, if this process may see it (ioctl_ns(2)).
pub fn above(namespace: &File) -> Option<File> {
    const NS_GET_PARENT: libc::Ioctl = 0xb702;
    // SAFETY: takes no memory.
    let parent = check(unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_PARENT) }).ok()?;
    // SAFETY: a new descriptor that no other value owns.
    Some(unsafe { fd::own(parent) }.into())
}

/// Whether a process is in the user namespace of this one. A process that may not look at it in
/// detail compares the users, of which a namespace that lacks some has others.
pub fn is_own(process: &process::Process) -> io::Result<bool> {
    let pid = process.pid();
    let inode = |whose: &str| fs::metadata(format!("/proc/{whose}/ns/user")).map(|m| m.ino());
    let users = |whose: &str| fs::read(format!("/proc/{whose}/uid_map"));
    let pid = pid.to_string();
    let is_own = match inode(&pid) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => users(&pid)? == users("self")?,
        theirs => theirs? == inode("self")?,
    };
    // Another one may have got its number.
    Ok(is_own && !process.has_ended())
}

/// How many namespaces of control groups a user may make in a user namespace. It is the limit of
/// the one of the process that writes it.
const GROUP_NAMESPACES: &CStr = c"/proc/sys/user/max_cgroup_namespaces";

/// Refuses namespaces of control groups. A kernel that has none has no such file.
fn forbid_group_namespaces() -> io::Result<()> {
    let file = match rustix::fs::open(GROUP_NAMESPACES, OFlags::WRONLY, Mode::empty()) {
        Err(rustix::io::Errno::NOENT) => return Ok(()),
        file => file?,
    };
    rustix::io::write(file, b"0")?;
    Ok(())
}

/// In a child: makes the namespace, says so in two answers, and waits for its end.
fn be_first_in(parent: BorrowedFd<'_>) -> ! {
    let say = |done: io::Result<()>| {
        let errno = done.err().and_then(|e| e.raw_os_error()).unwrap_or(0);
        // If nobody reads it, the end comes all the same.
        let _ = fd::write_bare(parent, &errno.to_ne_bytes());
    };
    // Without it, it ends when it can read nothing more.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    // SAFETY: no memory is passed; the child has one thread.
    let made = check(unsafe { libc::unshare(libc::CLONE_NEWUSER) });
    let is_made = made.is_ok();
    say(made.map(drop));
    if is_made {
        say(forbid_group_namespaces());
    }
    let mut byte = [0];
    // Returns when the parent has ended.
    let _ = fd::read(parent, &mut byte);
    // SAFETY: ends the child without running the parent's exit handlers.
    unsafe { libc::_exit(0) }
}

/// Moves the process, which must have one thread, into the namespace of a descriptor (setns(2)).
/// Makes only a system call, so it may be used between fork and exec.
pub fn join(namespace: BorrowedFd<'_>) -> io::Result<()> {
    Ok(move_into_link_name_space(namespace, Some(LinkNameSpaceType::User))?)
}

/// Tests in a child process whether [`enter`] would work.
pub fn try_enter() -> Result<(), Error> {
    // SAFETY: the child makes system calls and leaves by _exit. Between fork and exit it allocates
    // only after a failure or for three short paths; glibc makes its heap usable after fork.
    let pid = check(unsafe { libc::fork() }).map_err(|e| Error::new("cannot fork", e))?;
    if pid == 0 {
        let errno = enter().err().map_or(0, |e| e.errno().max(1));
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(errno) }
    }
    let ended = retry(|| process::wait(pid, true));
    let ended = ended.map_err(|e| Error::new("cannot wait for a child", e))?;
    match ended.and_then(|status| status.code()) {
        Some(0) => Ok(()),
        errno => Err(Error::new(
            "cannot make a user namespace",
            io::Error::from_raw_os_error(errno.unwrap_or(libc::EINTR)),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHOUT: RangeInclusive<u32> = 61184..=65519;

    #[test]
    fn a_map_loses_numbers_wherever_they_are() {
        for (map, expected) in [
            ("         0          0 4294967295\n", &[(0, 61184), (65520, 4_294_901_775)][..]),
            ("0 1000 1\n1 100000 65536\n", &[(0, 1), (1, 61183), (65520, 17)]),
            ("0 0 61184\n", &[(0, 61184)]),
            ("61184 0 10\n70000 5 2\n", &[(70000, 2)]),
            ("0 x 7\n\n", &[]),
        ] {
            assert_eq!(extents(map, &WITHOUT), expected, "{map}");
        }
    }

    /// Root of the namespace becomes each user but those that it lacks.
    #[test]
    fn a_namespace_lacks_the_users_that_it_was_made_without() {
        if !process::is_root() {
            let name = "a_namespace_lacks_the_users_that_it_was_made_without";
            return ix_skip::skip(name, ix_skip::Need::Root, "only root maps users");
        }
        let namespace = UserNamespace::without(&WITHOUT).expect("made");
        assert!(!namespace.has(std::process::id()));
        let inside = |become_user: u32| {
            // SAFETY: the child makes system calls only.
            match check(unsafe { libc::fork() }).expect("a child") {
                0 => {
                    let joined = join(namespace.as_fd()).is_ok();
                    // SAFETY: numbers only.
                    let changed = unsafe { libc::setresuid(become_user, become_user, become_user) };
                    // SAFETY: as above.
                    unsafe { libc::_exit(i32::from(!joined) * 2 + i32::from(changed != 0)) }
                }
                pid => process::wait(pid, true).expect("waited").expect("ended").code(),
            }
        };
        for user in [0, 1000, 61183, 65520, 65534] {
            assert_eq!(inside(user), Some(0), "user {user}");
        }
        for user in [61184, 63000, 65519] {
            assert_eq!(inside(user), Some(1), "user {user}");
        }
    }
}
