//! Root's rights over own network namespaces, for any user (user_namespaces(7)).
use crate::Error;
use std::fs;

/// Moves the process into a new user and network namespace, where it is root over what it makes:
/// namespaces, veth, tap, but no XDP and no steering programs. Must be called before the process
/// has a second thread.
pub fn enter() -> Result<(), Error> {
    // SAFETY: getuid and getgid cannot fail and touch no memory.
    let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
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

/// Tests in a child process whether [`enter`] would work.
pub fn try_enter() -> Result<(), Error> {
    // SAFETY: the child makes system calls and leaves by _exit. Between fork and exit it allocates
    // only after a failure or for three short paths; glibc makes its heap usable after fork.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(Error::last("cannot fork"));
    }
    if pid == 0 {
        let errno = enter().err().map_or(0, |e| e.errno().max(1));
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(errno) }
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    while unsafe { libc::waitpid(pid, &mut status, 0) } < 0 {
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(Error::new("cannot wait for a child", error));
        }
    }
    match libc::WEXITSTATUS(status) {
        0 => Ok(()),
        errno => Err(Error::new(
            "cannot make a user namespace",
            std::io::Error::from_raw_os_error(errno),
        )),
    }
}
