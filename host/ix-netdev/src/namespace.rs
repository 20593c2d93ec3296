//! Network namespaces without names.
use crate::netlink::Netlink;
use ix_sys::command::{Step, before_exec};
use ix_sys::interface::{Channels, Offload};
use ix_sys::{Error, Interface, network_namespace, socket, tun};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A network namespace, held by a descriptor.
///
/// Methods work from any thread and leave the caller's own namespace unchanged: a socket keeps the
/// namespace in which it was opened, so the two sockets that are needed are opened once, inside.
pub struct Namespace {
    fd: Arc<OwnedFd>,
    netlink: Mutex<Netlink>,
    /// Any socket of the namespace, for ioctl.
    socket: OwnedFd,
}

impl Namespace {
    /// Makes a new namespace with its loopback interface up and without IPv6, so that only programs
    /// send on its links. Needs CAP_SYS_ADMIN, which a user namespace provides if the system allows
    /// one.
    pub fn new() -> Result<Namespace, Error> {
        let made = on_thread(|| {
            network_namespace::enter_new()
                .map_err(|e| Error::new("cannot make a network namespace", e))?;
            Namespace::current()
        })?;
        made.set_up("lo", true)?;
        if std::path::Path::new("/proc/sys/net/ipv6").exists() {
            made.set_sysctl("net/ipv6/conf/all/disable_ipv6", "1")?;
            made.set_sysctl("net/ipv6/conf/default/disable_ipv6", "1")?;
        }
        Ok(made)
    }

    /// The namespace of a process.
    pub fn of_process(pid: u32) -> Result<Namespace, Error> {
        let fd = network_namespace::of_process(pid)
            .map_err(|e| Error::new(format!("cannot open /proc/{pid}/ns/net"), e))?;
        on_thread(|| {
            let what = || format!("cannot enter the network namespace of process {pid}");
            network_namespace::enter(fd.as_fd()).map_err(|e| Error::new(what(), e))?;
            Namespace::current()
        })
    }

    /// The calling thread's namespace.
    pub fn current() -> Result<Namespace, Error> {
        let fd = network_namespace::of_thread()
            .map_err(|e| Error::new("cannot open /proc/thread-self/ns/net", e))?;
        let socket = socket::open(libc::AF_INET, libc::SOCK_DGRAM)
            .map_err(|e| Error::new("cannot open a socket", e))?;
        Ok(Namespace { fd: Arc::new(fd), netlink: Mutex::new(Netlink::open()?), socket })
    }

    /// Its descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn netlink(&self) -> MutexGuard<'_, Netlink> {
        self.netlink.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One of its interfaces, by name, for ethtool requests.
    pub fn interface(&self, name: &str) -> io::Result<Interface> {
        Ok(Interface::on(self.socket.try_clone()?, name))
    }

    /// Switches all checksum and segmentation offloads of an interface on or off. An offload that
    /// the device lacks is skipped.
    pub fn set_offloads(&self, name: &str, on: bool) -> Result<(), Error> {
        let mut order = Offload::ALL;
        if !on {
            order.reverse();
        }
        for offload in order {
            match self.interface(name).and_then(|interface| interface.set_offload(offload, on)) {
                Err(e) if e.raw_os_error() != Some(libc::EOPNOTSUPP) => {
                    let what = format!("cannot switch {} of {name}", offload.name());
                    return Err(Error::new(what, e));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether an interface accepts packets whose checksum is not finished.
    pub fn tx_checksum_offload(&self, name: &str) -> Result<bool, Error> {
        self.interface(name)
            .and_then(|interface| interface.leaves_checksums())
            .map_err(|e| Error::new(format!("cannot ask {name} for its offloads"), e))
    }

    /// Number of queues of an interface.
    pub fn channels(&self, name: &str) -> Result<Channels, Error> {
        self.interface(name)
            .and_then(|interface| interface.channels())
            .map_err(|e| Error::new(format!("cannot ask {name} for its queues"), e))
    }

    /// Sets the number of receive and transmit queues (for a device without combined ones, such as
    /// veth).
    pub fn set_channels(&self, name: &str, rx: u32, tx: u32) -> Result<(), Error> {
        self.interface(name)
            .and_then(|interface| interface.set_channels(rx, tx))
            .map_err(|e| Error::new(format!("cannot set the queues of {name}"), e))
    }

    /// Name of an interface's driver.
    pub fn driver(&self, name: &str) -> Result<String, Error> {
        self.interface(name)
            .and_then(|interface| interface.driver())
            .map_err(|e| Error::new(format!("cannot ask {name} for its driver"), e))
    }

    /// Makes a tap interface, or adds a queue to an existing one, without a header before frames
    /// and without blocking. The interface is removed with its last queue.
    pub fn open_tap(&self, name: &str) -> Result<File, Error> {
        let cannot = |e| Error::new(format!("cannot make the tap {name}"), e);
        self.run(|| open_tap(name)).map_err(cannot)
    }

    /// Makes a tap interface that stays until it is deleted and belongs to the calling user.
    pub fn add_tap(&self, name: &str) -> Result<(), Error> {
        let queue = self.open_tap(name)?;
        tun::own(&queue)
            .and_then(|()| tun::keep(&queue))
            .map_err(|e| Error::new(format!("cannot keep the tap {name}"), e))
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

    /// Runs `work` on a thread inside the namespace and returns its result. Descriptors and
    /// threads that it opens stay inside.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        on_thread(|| {
            // To enter takes a right (CAP_SYS_ADMIN) that a service lacks; it is there already.
            if !network_namespace::is_here(self.fd.as_fd())
                && let Err(e) = network_namespace::enter(self.fd.as_fd())
            {
                panic!("cannot enter a network namespace that we hold: {e}");
            }
            work()
        })
    }

    /// A command that will run in the namespace, optionally on one CPU. The kernel kills it when
    /// the calling thread ends (so that nothing is left even after SIGKILL): spawn it from a thread
    /// that lives long enough.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>, cpu: Option<usize>) -> Command {
        let mut command = Command::new(program);
        let mut steps = vec![Step::EnterNetwork(Arc::clone(&self.fd))];
        steps.extend(cpu.map(Step::Pin));
        steps.push(Step::DieWithParent);
        before_exec(&mut command, steps);
        command
    }
}

fn open_tap(name: &str) -> io::Result<File> {
    if name.len() >= libc::IFNAMSIZ || name.contains('\0') {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let queue = tun::open()?;
    tun::attach(&queue, name, false)?;
    Ok(queue)
}

/// Runs `work` on a new thread; a panic there is a panic here.
fn on_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| match scope.spawn(work).join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}
