//! A process that executes another program loses its part of the dataplane, and with it what it
//! owns there. So before that, it forks a custodian: a child that the next program never hears of,
//! and that takes over the connections and the listeners which this program inherits. The custodian
//! gives each of them to the program when the program uses it, and ends when it has given all.
use crate::fds;
use crate::lock::lock;
use crate::ops::close_all_but_own;
use crate::slab::Id;
use crate::socket::{Kind, Socket};
use crate::state::Core;
use crate::stream::Phase;
use crate::{holders, real, serving};
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// How long the process waits until the child has everything.
const BEGINS: Duration = Duration::from_secs(5);
/// How long connections may take that wait at its listeners. The custodian answers within this even
/// on a machine that has much else to do.
const LEAVES: Duration = Duration::from_secs(2);
/// How long the next program may leave what it has inherited alone.
const KEEPS: Duration = Duration::from_secs(24 * 3600);
/// Time between looks.
const LOOKS: Duration = Duration::from_millis(1);

/// What a custodian is for: sockets that are noted at these places, and that this process owns.
fn needing(core: &mut Core, kept: &[u32]) -> Vec<Id> {
    if !core.has_begun() {
        return Vec::new();
    }
    let needs = |socket: &Socket| {
        let is_owned = match &socket.kind {
            Kind::Stream(stream) => matches!(stream.phase, Phase::ToAccept | Phase::Open),
            Kind::Listener(_) => true,
            _ => false,
        };
        is_owned && socket.fds > 0 && socket.noted_at().is_some_and(|at| kept.contains(&at))
    };
    let ids = core.sockets.ids().into_iter();
    ids.filter(|id| core.sockets.get(*id).is_some_and(needs)).collect()
}

/// Before this process executes a program that inherits the sockets at these places: what it owns
/// of them is another process's when this returns.
pub fn takes_over(kept: &[u32]) {
    let needing = needing(&mut lock(), kept);
    if needing.is_empty() {
        return;
    }
    let mut ends: [RawFd; 2] = [-1; 2];
    // SAFETY: fills the array.
    if unsafe { libc::syscall(libc::SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC) } < 0 {
        return;
    }
    // SAFETY: no arguments. The first child ends at once, so that the next program is not the
    // parent of the second one, and never hears of its end.
    let first = unsafe { real::fork() };
    if first == 0 {
        // SAFETY: as above.
        if unsafe { real::fork() } == 0 {
            keep(kept, ends[1]);
        }
        leave();
    }
    real::close_held(ends[1]);
    // SAFETY: no status is wanted; then one struct.
    unsafe {
        libc::syscall(libc::SYS_wait4, first, 0, 0, 0);
        let mut ready = libc::pollfd { fd: ends[0], events: libc::POLLIN, revents: 0 };
        libc::syscall(libc::SYS_poll, &raw mut ready, 1, BEGINS.as_millis() as i64);
    }
    real::close_held(ends[0]);
    let mut core = lock();
    for id in needing {
        if core.sockets.get_mut(id).and_then(Socket::listener).is_some() {
            core.end_listener(id);
        }
    }
    drop(core);
    until(LEAVES, |core| {
        let leaves = |socket: &Socket| match &socket.kind {
            Kind::Stream(stream) => stream.gift.is_some(),
            _ => false,
        };
        let ids = core.sockets.ids();
        !ids.into_iter().any(|id| core.sockets.get(id).is_some_and(leaves))
    });
}

/// Looks at the sockets until something holds, which a helper brings about.
fn until(limit: Duration, mut holds: impl FnMut(&mut Core) -> bool) {
    let end = Instant::now() + limit;
    while !holds(&mut lock()) && Instant::now() < end {
        std::thread::sleep(LOOKS);
    }
}

fn leave() -> ! {
    // SAFETY: ends the process, without the program's handlers.
    unsafe { libc::syscall(libc::SYS_exit_group, 0) };
    std::process::abort()
}

/// The custodian.
fn keep(kept: &[u32], ready: RawFd) -> ! {
    // SAFETY: a set of ours; a string that ends with zero.
    unsafe {
        let mut all: libc::sigset_t = core::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, core::ptr::null_mut());
        libc::prctl(libc::PR_SET_NAME, c"ix-custodian".as_ptr());
    }
    let ready = fds::copy_out_of_the_way(ready);
    // Readers of the program's pipes hear of its end, although this process lives on.
    close_all_but_own();
    let mut core = lock();
    if !serving::start(&mut core) {
        leave();
    }
    for id in core.sockets.ids() {
        let at = core.sockets.get(id).and_then(Socket::noted_at);
        if let Some(at) = at.filter(|at| kept.contains(at))
            && core.sockets.get_mut(id).and_then(Socket::stream).is_some()
        {
            holders::want(at);
            core.is_handed(id);
        }
    }
    drop(core);
    until(BEGINS, |core| {
        let is_away = |socket: &Socket| match &socket.kind {
            Kind::Stream(stream) => stream.phase == Phase::Away,
            _ => false,
        };
        // Connections that wait at a listener go to a process that listens already.
        let opens = core.ports.ids().into_iter().any(|port| {
            let port = core.ports.get(port).filter(|port| !port.members.is_empty());
            port.is_some_and(|port| port.handles.outcome().is_none())
        });
        let ids = core.sockets.ids();
        let mut noted = ids.into_iter().filter_map(|id| core.sockets.get(id));
        !opens
            && !noted.any(|socket| {
                is_away(socket) && socket.noted_at().is_some_and(|at| kept.contains(&at))
            })
    });
    if let Some(ready) = ready {
        fds::close_private(ready);
    }
    let mut core = lock();
    for id in core.sockets.ids() {
        if let Some(socket) = core.sockets.get_mut(id).filter(|socket| socket.fds > 0) {
            socket.fds = 0;
            core.close(id);
        }
    }
    drop(core);
    until(KEEPS, |core| !core.has_unsent(serving::is_shared()));
    leave()
}
