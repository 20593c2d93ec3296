//! Making connections, from `bind` to `close`. An error is an errno.
//!
//! `bind`, `connect` or `sendto` decide whether a new socket is IX's or Linux's. Until then, and for
//! all sockets of Linux, calls go to a real Linux socket under the descriptor (`under`).
// As in `lib.rs`: without the C names nobody calls most of it.
#![cfg_attr(test, allow(unused_imports))]

mod bind;
mod close;
mod connect;
mod listen;
mod names;
mod under;

use crate::drive::{self, How, Interest, Stop};
use crate::fds::{self, Entry};
use crate::real;
use crate::signals;
use crate::slab::Id;
use crate::socket::{Kind, Socket, Under};
use crate::state::Core;
use crate::sync::{Guard, lock};
pub use bind::{become_datagrams, bind, ephemeral_ports, free_port};
pub use close::{linger, shutdown};
pub use connect::{connect, disconnect};
use libc::{AF_INET, AF_INET6, SOCK_CLOEXEC, SOCK_DGRAM, SOCK_NONBLOCK, SOCK_STREAM, socklen_t};
pub use listen::{accept, listen};
pub use names::{info, own_name, peer_name};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};
pub use under::{
    before_exec, before_fork, before_linux, close_number, freed, give_back, limit_kept, lowest,
    make_room, not_taken_over, place, taken_over, use_linux,
};

/// What an intercepted call does: it was done here, or the C library has to do it.
pub type Outcome<T> = Result<T, Instead>;

/// Why it was not done here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instead {
    /// It fails with this errno.
    Errno(i32),
    /// The socket is Linux's.
    Linux,
}

impl From<i32> for Instead {
    fn from(errno: i32) -> Instead {
        Instead::Errno(errno)
    }
}

/// The socket behind a descriptor.
pub fn socket_of(core: &Core, fd: RawFd) -> Outcome<Id> {
    match fds::get(fd) {
        Entry::Socket(index) => {
            let id = core.sockets.id_at(index).ok_or(Instead::Errno(libc::EBADF))?;
            match core.sockets.get(id).map(|socket| &socket.kind) {
                Some(Kind::Lost) => Err(crate::process::in_child().into()),
                _ => Ok(id),
            }
        }
        Entry::Kept => Err(libc::EBADF.into()),
        _ => Err(Instead::Linux),
    }
}

/// A new socket of the program.
pub fn socket(domain: i32, kind: i32) -> Result<RawFd, i32> {
    let stream = kind & 0xf == SOCK_STREAM;
    let idle = Kind::Idle { stream, ix: false, both: false };
    let mut core = lock();
    let id = core.sockets.insert(Socket::new(idle, domain == AF_INET6, false));
    place(&mut core, id, kind).inspect_err(|_| drop(core.sockets.remove(id)))
}

/// Whether `socket` makes one that may become IX's.
pub fn may_be_ours(domain: i32, kind: i32, protocol: i32) -> bool {
    let plain = match kind & !(SOCK_NONBLOCK | SOCK_CLOEXEC) {
        SOCK_STREAM => protocol == 0 || protocol == libc::IPPROTO_TCP,
        SOCK_DGRAM => protocol == 0 || protocol == libc::IPPROTO_UDP,
        _ => false,
    };
    plain && (domain == AF_INET || domain == AF_INET6) && crate::seat::takes_sockets()
}

/// One descriptor less for what stood there.
pub fn drop_entry(core: &mut Core, entry: Entry) {
    match entry {
        Entry::Linux | Entry::Private | Entry::Kept => {}
        Entry::Socket(index) => {
            let Some(id) = core.sockets.id_at(index) else { return };
            let Some(socket) = core.sockets.get_mut(id) else { return };
            socket.fds = socket.fds.saturating_sub(1);
            if socket.fds == 0 {
                core.close(id);
            }
        }
        Entry::Epoll(index) => {
            let Some(id) = core.sets.id_at(index) else { return };
            let Some(set) = core.sets.get_mut(id) else { return };
            set.fds = set.fds.saturating_sub(1);
            if set.fds == 0 {
                for watch in core::mem::take(&mut set.watches) {
                    if let Some(outer) = core.sets.get_mut(watch.set) {
                        outer.forget(watch.fd);
                    }
                }
                core.sets.remove(id);
            }
        }
    }
}

/// One more descriptor for what `from` names.
pub fn duplicated(from: RawFd, to: RawFd) {
    let mut core = lock();
    let entry = fds::get(from);
    match entry {
        Entry::Linux | Entry::Private | Entry::Kept => {}
        Entry::Socket(index) => {
            if let Some(id) = core.sockets.id_at(index)
                && let Some(socket) = core.sockets.get_mut(id)
            {
                socket.fds += 1;
            }
        }
        Entry::Epoll(index) => {
            if let Some(id) = core.sets.id_at(index)
                && let Some(set) = core.sets.get_mut(id)
            {
                set.fds += 1;
            }
        }
    }
    let before = fds::replace(to, entry);
    drop_entry(&mut core, before);
}

/// The socket is Linux's for good.
pub fn leave_to_linux(core: &mut Core, fd: RawFd, id: Id) -> Result<(), i32> {
    use_linux(core, fd)?;
    if let Some(socket) = core.sockets.get_mut(id) {
        socket.kind = Kind::Linux;
    }
    Ok(())
}

/// The descriptor flags of a socket that Linux does not know of; `None`: ask Linux.
pub fn descriptor_flags(fd: RawFd, set: Option<i32>) -> Outcome<i32> {
    let mut core = lock();
    let id = socket_of(&core, fd)?;
    let Some(socket) = core.sockets.get_mut(id) else { return Err(libc::EBADF.into()) };
    if socket.under == Under::Used {
        return Err(Instead::Linux);
    }
    if let Some(flags) = set {
        socket.close_on_exec = flags & libc::FD_CLOEXEC != 0;
        return Ok(0);
    }
    Ok(if socket.close_on_exec { libc::FD_CLOEXEC } else { 0 })
}

/// The same for the flags of the open file, of which sockets have one that means something.
pub fn file_flags(fd: RawFd, set: Option<i32>) -> Outcome<i32> {
    const OTHERS: i32 = libc::O_APPEND | libc::O_ASYNC | libc::O_DIRECT | libc::O_NOATIME;
    let mut core = lock();
    let id = socket_of(&core, fd)?;
    let Some(socket) = core.sockets.get_mut(id) else { return Err(libc::EBADF.into()) };
    if socket.under == Under::Used || set.is_some_and(|flags| flags & OTHERS != 0) {
        return Err(Instead::Linux);
    }
    if let Some(flags) = set {
        socket.nonblocking = flags & libc::O_NONBLOCK != 0;
        return Ok(0);
    }
    Ok(libc::O_RDWR | if socket.nonblocking { libc::O_NONBLOCK } else { 0 })
}

/// Where Linux has bound the socket under a descriptor.
fn linux_name(fd: RawFd) -> Result<SocketAddr, i32> {
    let mut room = [0u64; 16];
    let mut len = size_of_val(&room) as socklen_t;
    // SAFETY: room of ours with its length.
    unsafe {
        if real::getsockname(fd, room.as_mut_ptr().cast(), &mut len) < 0 {
            return Err(real::errno());
        }
        crate::mem::read_address(room.as_ptr().cast(), len)
    }
}

/// What was put into epoll sets as Linux's is IX's now.
fn move_watches(core: &mut Core, id: Id) {
    let Some(socket) = core.sockets.get(id) else { return };
    for watch in socket.watches.clone() {
        if let Some(set) = core.sets.get_mut(watch.set) {
            set.becomes_ours(watch.fd);
        }
    }
    core.tell(id, !0);
}

/// Waits for an answer of the dataplane that comes with the next cycle.
fn soon<T>(
    core: Guard,
    interest: Interest<'_>,
    mut ready: impl FnMut(&mut Core) -> Option<Result<T, i32>>,
) -> (Guard, Result<T, i32>) {
    let until = Some(Instant::now() + Duration::from_secs(5));
    let how = How { interest, until, linux: None, drives: true };
    let mut core = core;
    loop {
        let (back, result) = drive::wait(core, how, &mut ready);
        match result {
            Ok(value) => return (back, value),
            // It does not take long: the handler has run, the call goes on.
            Err(Stop::Interrupted | Stop::Linux) => signals::reset(),
            Err(Stop::TimedOut) => return (back, Err(libc::ENETDOWN)),
        }
        core = back;
    }
}

/// A call has found nothing to do. One that asks a second time within a cycle gets a cycle: it may
/// be a program that only asks, and never waits.
pub fn again(core: Guard, id: Id) -> Guard {
    let mut core = core;
    let Core { sockets, lanes, .. } = &mut *core;
    let Some(socket) = sockets.get_mut(id) else { return core };
    let cycle = lanes[socket.lane].cycle;
    if socket.idle_cycle == cycle {
        let lane = socket.lane;
        return drive::poll(core, lane);
    }
    socket.idle_cycle = cycle;
    core
}

/// A listener that serves both sides never blocks on Linux's, whatever the program has asked for.
pub fn keep_nonblocking(fd: RawFd) {
    let core = lock();
    let Ok(id) = socket_of(&core, fd) else { return };
    let both = core.sockets.get(id).map(|s| matches!(&s.kind, Kind::Listener(l) if l.both));
    drop(core);
    if both == Some(true) {
        // SAFETY: no pointers.
        unsafe {
            let flags = real::fcntl(fd, libc::F_GETFL, 0);
            real::fcntl(fd, libc::F_SETFL, (flags | libc::O_NONBLOCK) as usize);
        }
    }
}
