//! Network namespaces without names.
use crate::netlink::Netlink;
use crate::{Error, cpu};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A network namespace, held by a descriptor.
///
/// Methods work from any thread and leave the caller's own namespace as it is: a socket keeps the
/// namespace it was opened in, so the two that are needed are opened once, inside.
pub struct Namespace {
    fd: Arc<OwnedFd>,
    netlink: Mutex<Netlink>,
    /// Any socket of the namespace, for ioctl.
    socket: OwnedFd,
}

impl Namespace {
    /// A fresh namespace with its loopback interface up and without IPv6, so that nothing moves on
    /// its links that nobody sent. Needs CAP_SYS_ADMIN ([`crate::enter_user_namespace`] gives it
    /// to anybody, where the system allows it).
    pub fn new() -> Result<Namespace, Error> {
        let made = on_thread(|| {
            // SAFETY: changes the network namespace of this short-lived thread only.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } < 0 {
                return Err(Error::last("cannot make a network namespace"));
            }
            Namespace::current()
        })?;
        made.set_up("lo", true)?;
        if std::path::Path::new("/proc/sys/net/ipv6").exists() {
            made.set_sysctl("net/ipv6/conf/all/disable_ipv6", "1")?;
            made.set_sysctl("net/ipv6/conf/default/disable_ipv6", "1")?;
        }
        Ok(made)
    }

    /// The namespace that a process is in.
    pub fn of_process(pid: u32) -> Result<Namespace, Error> {
        let path = format!("/proc/{pid}/ns/net");
        let file = File::open(&path).map_err(|e| Error::new(format!("cannot open {path}"), e))?;
        on_thread(|| {
            let what = || format!("cannot enter the network namespace of process {pid}");
            enter(file.as_raw_fd()).map_err(|e| Error::new(what(), e))?;
            Namespace::current()
        })
    }

    /// The calling thread's namespace.
    pub fn current() -> Result<Namespace, Error> {
        let path = "/proc/thread-self/ns/net";
        let file = File::open(path).map_err(|e| Error::new(format!("cannot open {path}"), e))?;
        // SAFETY: plain system call; a descriptor that it answers is nobody else's.
        let socket =
            unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if socket < 0 {
            return Err(Error::last("cannot open a socket"));
        }
        Ok(Namespace {
            fd: Arc::new(file.into()),
            netlink: Mutex::new(Netlink::open()?),
            // SAFETY: fresh descriptor from above.
            socket: unsafe { OwnedFd::from_raw_fd(socket) },
        })
    }

    /// Its descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.fd.as_fd()
    }

    pub(crate) fn netlink(&self) -> MutexGuard<'_, Netlink> {
        self.netlink.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Sets one of the namespace's own settings: `net/ipv4/tcp_congestion_control`.
    pub fn set_sysctl(&self, path: &str, value: &str) -> Result<(), Error> {
        let path = format!("/proc/sys/{path}");
        self.run(|| std::fs::write(&path, value))
            .map_err(|e| Error::new(format!("cannot write {path}"), e))
    }

    /// Reads one of the namespace's own settings.
    pub fn sysctl(&self, path: &str) -> Result<String, Error> {
        let path = format!("/proc/sys/{path}");
        self.run(|| std::fs::read_to_string(&path))
            .map(|text| text.trim_end().to_owned())
            .map_err(|e| Error::new(format!("cannot read {path}"), e))
    }

    /// Runs `work` on a thread inside the namespace and answers its result. Descriptors and
    /// threads that it opens stay inside.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        on_thread(|| {
            if let Err(e) = enter(self.fd.as_raw_fd()) {
                panic!("cannot enter a network namespace that we hold: {e}");
            }
            work()
        })
    }

    /// A command that will run in the namespace, optionally on one CPU, and that the kernel kills
    /// when the calling thread ends (so that nothing is left even after SIGKILL): spawn it from a
    /// thread that lives as long as it shall.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>, cpu: Option<usize>) -> Command {
        let mut command = Command::new(program);
        let fd = Arc::clone(&self.fd);
        let parent = std::process::id() as i32;
        // SAFETY: the closure makes only system calls, which is all that is allowed between fork
        // and exec; it owns its share of the descriptor.
        unsafe {
            command.pre_exec(move || {
                enter(fd.as_raw_fd())?;
                if let Some(cpu) = cpu {
                    cpu::pin(cpu)?;
                }
                die_with_parent(parent)
            });
        }
        command
    }
}

/// Runs `work` on a fresh thread; a panic there is a panic here.
fn on_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| match scope.spawn(work).join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// Moves the calling thread into the namespace of a descriptor.
fn enter(fd: i32) -> io::Result<()> {
    // SAFETY: plain system call on a number.
    if unsafe { libc::setns(fd, libc::CLONE_NEWNET) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Asks for SIGKILL when the parent's thread ends. `parent` is who it was before the fork.
fn die_with_parent(parent: i32) -> io::Result<()> {
    // SAFETY: plain system calls.
    unsafe {
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) < 0 {
            return Err(io::Error::last_os_error());
        }
        if libc::getppid() != parent {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
    }
    Ok(())
}
