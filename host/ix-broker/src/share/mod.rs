//! `ix share`: several dataplanes and Linux on one interface.
//!
//! The control plane of one interface. It keeps the registry of the vNICs and their parts of the
//! header space, makes a link for each vNIC, and puts the filters into the kernel
//! ([`ix_netdev::Exchange`]). No packet passes through this process. When it ends, Linux has the
//! whole interface again.
mod interface;
mod link;

use crate::control::{Access, Server, folder};
use interface::InterfaceShare;
use ix_netdev::Exchange;
use ix_netdev::{LinkChange, LinkWatch, Namespace};
use ix_problem::{Problem, Result};
use ix_sys::poll::{PollFd, is_readable};
use ix_sys::process::{self, Process};
use ix_sys::say;
use ix_sys::signal;
use ix_vnic::{Policy, Rate};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How the names of the links begin that dataplanes use.
pub const LINK_PREFIX: &str = "ixv-";

/// What is to be shared, and how.
pub struct Shared {
    /// The interface.
    pub interface: String,
    /// Path of its control socket for `ix ctl`; none: IFNAME.share in the folder of the dataplanes'
    /// sockets.
    pub control: Option<PathBuf>,
    /// Speed of the interface; none: the speed that the interface reports, if it does.
    pub speed: Option<Rate>,
    /// How many vNICs, queues and filters there may be.
    pub policy: Policy,
}

/// Shares the interface until a signal ends it.
pub fn run(args: &Shared) -> Result<()> {
    let mut name = args.interface.clone();
    let what = || format!("cannot share {}", args.interface);
    // A tenant's program may be of the same user.
    process::hide_user().map_err(|e| Problem::new(what(), e))?;
    let here = Namespace::current().map_err(|e| Problem::new(what(), e))?;
    let mut exchange = Exchange::open(&name).map_err(|e| Problem::new(what(), e))?;
    if let Some(speed) = args.speed {
        exchange.set_link_rate(speed.bits_per_s).map_err(|e| Problem::new(what(), e))?;
    }
    let links = here.links().map_err(|e| Problem::new(what(), e))?;
    let mut watch = LinkWatch::new(&links).map_err(|e| Problem::new(what(), e))?;
    let signals =
        signal::into_fd(&[libc::SIGINT, libc::SIGTERM]).map_err(|e| Problem::new(what(), e))?;
    let path = match &args.control {
        Some(path) => path.clone(),
        None => folder()?.join(format!("{name}.share")),
    };
    let mut server = Server::listen(Some(&path), 0, &Access::default())?;
    let mut share = InterfaceShare::new(here, exchange, args.policy);
    say!("sharing {name}; ask with `ix ctl vnic --control {}`", path.display());
    loop {
        let mut fds = vec![signals.as_fd(), watch.fd(), server.fd()];
        fds.extend(share.owner_fds());
        let ready = poll(&fds, server.due().into_iter().chain(share.due()).min());
        if ready[0] {
            return Ok(());
        }
        // This comes first: others wait for what belonged to vNICs that have gone, and the kernel
        // takes long for each change of a link.
        say(share.bury_orphans());
        if ready[1] {
            for change in watch.changes() {
                follow(&change, &mut name, &mut share)?;
            }
        }
        say(share.share_out(Instant::now()));
        server.serve(&mut share, Instant::now());
    }
}

/// Handles a change of a link of the host: the shared interface, a vNIC's link, or another one.
fn follow(change: &LinkChange, name: &mut String, share: &mut InterfaceShare) -> Result<()> {
    match change {
        LinkChange::Removed(gone) | LinkChange::Moved(gone) if gone == name => {
            let what = format!("the interface {name} is gone");
            let why = "it was removed or moved, and with it all vNICs";
            return Err(Problem::new(what, why).mend("start `ix share` anew when it is back"));
        }
        LinkChange::Removed(gone) | LinkChange::Moved(gone) => say(share.link_gone(gone)),
        // The kernel programs stay on the interface when its name changes.
        LinkChange::Renamed { from, to } if from == name => {
            say(vec![format!("the interface {from} is called {to} now; it is shared as before")]);
            name.clone_from(to);
        }
        LinkChange::Renamed { from, to } => share.link_renamed(from, to),
        LinkChange::Down(down) if down == name => {
            say(vec![format!(
                "the interface {name} is down: no packet passes until it is up again"
            )]);
        }
        LinkChange::Up(up) if up == name => say(vec![format!("the interface {name} is up again")]),
        LinkChange::Altered(altered) if altered == name => say(share.interface_altered()),
        LinkChange::Down(_)
        | LinkChange::Up(_)
        | LinkChange::Altered(_)
        | LinkChange::Alias { .. } => {}
    }
    Ok(())
}

fn say(lines: Vec<String>) {
    lines.iter().for_each(|line| say!("{line}"));
}

/// Returns which of these descriptors are readable. Waits until one is, or until `due`.
fn poll(fds: &[BorrowedFd<'_>], due: Option<Instant>) -> Vec<bool> {
    let mut polls: Vec<_> = fds.iter().map(PollFd::readable).collect();
    let left = due.map(|due| due.saturating_duration_since(Instant::now()));
    // After an error, which is an interruption, none is readable.
    let _ = ix_sys::poll::poll(&mut polls, left);
    polls.iter().map(PollFd::is_ready).collect()
}

/// Whether the process of this descriptor has ended.
fn has_ended(process: &Process) -> bool {
    is_readable(&process.as_fd(), Duration::ZERO).unwrap_or(false)
}
