//! `ix share`: several dataplanes and Linux on one interface.
//!
//! The control plane of one interface: it keeps the registry of who holds which part of the header
//! space, makes a link for each vNIC, and puts the filters into the kernel
//! ([`ix_netdev::Exchange`]). No packet passes through this process. When it ends, Linux has the
//! whole interface again.
mod desk;
mod link;

use crate::control::{Access, Server, folder};
use desk::Desk;
use ix_netdev::Exchange;
use ix_netdev::{LinkChange, LinkWatch, Namespace};
use ix_problem::{Problem, Result};
use ix_vnic::{Policy, Rate};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::time::Instant;

/// What is to be shared, and how.
pub struct Shared {
    /// The interface.
    pub interface: String,
    /// Where to listen for `ix ctl`; none: IFNAME.share where dataplanes' sockets are.
    pub control: Option<PathBuf>,
    /// What the interface carries; none: what it says itself, if it does.
    pub speed: Option<Rate>,
    /// How many vNICs, queues and filters there may be.
    pub policy: Policy,
}

/// Runs it, until a signal asks for the end.
pub fn run(args: &Shared) -> Result<()> {
    let mut name = args.interface.clone();
    let what = || format!("cannot share {}", args.interface);
    let here = Namespace::current().map_err(|e| Problem::new(what(), e))?;
    let mut exchange = Exchange::open(&name).map_err(|e| Problem::new(what(), e))?;
    if let Some(speed) = args.speed {
        exchange.set_link_rate(speed.bits_per_s).map_err(|e| Problem::new(what(), e))?;
    }
    let links = here.links().map_err(|e| Problem::new(what(), e))?;
    let mut watch = LinkWatch::new(&links).map_err(|e| Problem::new(what(), e))?;
    let signals = signal_fd().map_err(|e| Problem::new(what(), e))?;
    let path = match &args.control {
        Some(path) => path.clone(),
        None => folder()?.join(format!("{name}.share")),
    };
    let mut server = Server::listen(Some(&path), 0, &Access::default())?;
    let mut desk = Desk::new(here, exchange, args.policy);
    eprintln!("ix: sharing {name}; ask with `ix ctl vnic --control {}`", path.display());
    loop {
        let mut fds = vec![signals.as_raw_fd(), watch.fd().as_raw_fd(), server.fd().as_raw_fd()];
        fds.extend(desk.owner_fds());
        let ready = poll(&fds, server.due().into_iter().chain(desk.due()).min());
        if ready[0] {
            return Ok(());
        }
        // First of all: somebody waits for what was theirs, and each change of a link takes the
        // kernel long.
        say(desk.bury_orphans());
        if ready[1] {
            for change in watch.changes() {
                follow(&change, &mut name, &mut desk)?;
            }
        }
        say(desk.share_out(Instant::now()));
        server.serve(&mut desk, Instant::now());
    }
}

/// A link of the host has changed: the shared interface, one of the vNICs', or another.
fn follow(change: &LinkChange, name: &mut String, desk: &mut Desk) -> Result<()> {
    match change {
        LinkChange::Removed(gone) | LinkChange::Moved(gone) if gone == name => {
            let what = format!("the interface {name} is gone");
            let why = "it was removed or moved, and all vNICs are gone with it";
            return Err(Problem::new(what, why).mend("start `ix share` anew when it is back"));
        }
        LinkChange::Removed(gone) | LinkChange::Moved(gone) => say(desk.link_gone(gone)),
        // Programs hang on the interface, whatever its name.
        LinkChange::Renamed { from, to } if from == name => {
            say(vec![format!("the interface {from} is called {to} now; all goes on")]);
            name.clone_from(to);
        }
        LinkChange::Renamed { from, to } => desk.link_renamed(from, to),
        LinkChange::Down(down) if down == name => {
            say(vec![format!("the interface {name} is down: nothing passes until it is up again")]);
        }
        LinkChange::Up(up) if up == name => say(vec![format!("the interface {name} is up again")]),
        LinkChange::Down(_) | LinkChange::Up(_) | LinkChange::Alias { .. } => {}
    }
    Ok(())
}

fn say(lines: Vec<String>) {
    lines.iter().for_each(|line| eprintln!("ix: {line}"));
}

/// Which of these descriptors are readable; waits until one is, or `due` has come.
fn poll(fds: &[RawFd], due: Option<Instant>) -> Vec<bool> {
    let mut polls: Vec<_> =
        fds.iter().map(|fd| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 }).collect();
    let left = due.map(|due| due.saturating_duration_since(Instant::now()).as_millis() as i32 + 1);
    // SAFETY: an exclusive slice and its length. An error is an interruption: nothing is readable.
    unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as u64, left.unwrap_or(-1)) };
    polls.iter().map(|poll| poll.revents != 0).collect()
}

/// Polls readable when SIGINT or SIGTERM has come, which do nothing else from now on.
fn signal_fd() -> io::Result<OwnedFd> {
    // SAFETY: fills and reads a local set; the descriptor is new and nobody else's.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGINT);
        libc::sigaddset(&mut set, libc::SIGTERM);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        let fd = libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// A descriptor that polls readable when the process has ended.
fn process_fd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers; the descriptor is new and nobody else's.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd as RawFd)) }
    }
}

/// Whether it has.
fn has_ended(process: &OwnedFd) -> bool {
    poll(&[process.as_fd().as_raw_fd()], Some(Instant::now()))[0]
}
