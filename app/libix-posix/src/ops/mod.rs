//! The calls that make and end connections, from `bind` to `close`. Errors are errnos.
//!
//! `bind`, `connect` or `sendto` decide whether a new socket is IX's or Linux's. Until then, and
//! for all sockets of Linux, calls go to a real Linux socket under the descriptor (`under`).
// As in `lib.rs`: tests leave the C names out, so most of these have no caller there.
#![cfg_attr(test, allow(unused_imports))]

mod beside_ix;
mod bind;
mod blocking;
mod close;
mod connect;
mod datagrams_of_linux;
mod listen;
mod names;
mod passed;
mod replay;
mod under;

use crate::fds::{self, Entry};
use crate::lock::{Guard, lock};
use crate::log::{self, Once};
use crate::slab::Id;
use crate::socket::{File, Kind, Socket, Under, Watch};
use crate::state::Core;
use crate::wait::{self, Interest, Stop, WaitSpec};
use crate::{family, kept_numbers, mem, real, serving, signals};
pub use bind::{become_datagrams, bind};
pub use blocking::{block, is_nonblocking, set_nonblocking};
pub use close::{linger, shutdown};
pub use connect::{connect, disconnect};
use libc::{AF_INET, AF_INET6, SOCK_CLOEXEC, SOCK_DGRAM, SOCK_NONBLOCK, SOCK_STREAM, socklen_t};
pub use listen::{accept, listen, listens};
pub use names::{info, own_name, peer_name};
pub use passed::{adopt, adopt_inherited, leaves_word, name, name_inherited};
pub use replay::set_congestion;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};
pub use under::{
    before_exec, before_fork, before_linux, close_all_but_own, close_number, give_number,
    needs_number_only, use_linux,
};

/// The outcome of an intercepted call: done here, or why not.
pub type Outcome<T> = Result<T, Instead>;

/// Why a call was not done here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instead {
    /// It failed with this errno.
    Errno(i32),
    /// The socket is Linux's: the C library has to make the call.
    Linux,
    /// Linux has made it, with this result.
    Made(isize),
}

impl From<i32> for Instead {
    fn from(errno: i32) -> Instead {
        Instead::Errno(errno)
    }
}

/// The socket behind a descriptor.
pub fn socket_of(core: &mut Core, fd: RawFd) -> Outcome<Id> {
    match fds::get(fd) {
        Entry::Socket(index) => {
            let id = core.sockets.id_at(index).ok_or(Instead::Errno(libc::EBADF))?;
            let Some(socket) = core.sockets.get(id) else { return Ok(id) };
            if matches!(socket.kind, Kind::Lost) {
                return Err(lost_in_fork().into());
            }
            socket.is_used();
            if matches!(socket.kind, Kind::Idle { .. }) {
                core.sees_what_it_is(id);
            }
            Ok(id)
        }
        Entry::Kept => Err(libc::EBADF.into()),
        _ => Err(Instead::Linux),
    }
}

/// An operation on a connection of the parent process: reports it once and returns the errno.
fn lost_in_fork() -> i32 {
    let text = "a forked child uses a connection of its parent: connections of IX do not go to \
                children, and return EBADF there; let the child accept it itself, or use threads";
    log::once(Once::ChildUses, text);
    libc::EBADF
}

/// Makes a socket that may become IX's.
pub fn socket(domain: i32, kind: i32) -> Result<RawFd, i32> {
    let stream = kind & 0xf == SOCK_STREAM;
    let idle = Kind::Idle { stream, ix: false, both: false };
    let mut core = lock();
    let id = core.sockets.insert(Socket::new(idle, domain == AF_INET6, false));
    give_number(&mut core, id, kind).inspect_err(|_| drop(core.sockets.remove(id)))
}

/// Whether a socket with these arguments may become IX's.
pub fn may_be_ours(domain: i32, kind: i32, protocol: i32) -> bool {
    let plain = match kind & !(SOCK_NONBLOCK | SOCK_CLOEXEC) {
        SOCK_STREAM => protocol == 0 || protocol == libc::IPPROTO_TCP,
        SOCK_DGRAM => protocol == 0 || protocol == libc::IPPROTO_UDP,
        _ => false,
    };
    plain && (domain == AF_INET || domain == AF_INET6) && serving::takes_sockets()
}

/// An entry of the descriptor table is gone: closes the socket or epoll set if it was the last.
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
                        outer.forget(watch.key);
                    }
                }
                let keys = core.sets.remove(id).map_or(Vec::new(), |set| set.keys());
                for key in keys {
                    let watch = Watch { set: id, key };
                    let watches = match key.file {
                        File::Socket(id) => core.sockets.get_mut(id).map(|at| &mut at.watches),
                        File::Set(id) => core.sets.get_mut(id).map(|at| &mut at.watches),
                    };
                    if let Some(watches) = watches {
                        watches.retain(|other| *other != watch);
                    }
                }
            }
        }
    }
}

/// `dup2` and `dup3`: `dup` makes `to` name the file of `from` on Linux. Under the lock, so that no
/// thread takes `to` for the socket that it named, and changes the file that it names now.
pub fn duplicate_over(from: RawFd, to: RawFd, dup: impl FnOnce() -> RawFd) -> Result<RawFd, i32> {
    let mut core = lock();
    match fds::get(from) {
        Entry::Socket(_) => use_linux(&mut core, from)?,
        Entry::Kept => return Err(libc::EBADF),
        _ => {}
    }
    let was_kept = kept_numbers::taken_over(&mut core, to);
    let new = dup();
    if new < 0 {
        let errno = real::errno();
        if was_kept {
            kept_numbers::close(to);
        }
        return Err(errno);
    }
    if from != to {
        follow(&mut core, from, to);
    }
    Ok(new)
}

/// `to` names the same as `from` now.
pub fn duplicated(from: RawFd, to: RawFd) {
    follow(&mut lock(), from, to);
}

fn follow(core: &mut Core, from: RawFd, to: RawFd) {
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
    drop_entry(core, before);
}

/// Makes a socket Linux's for good.
pub fn leave_to_linux(core: &mut Core, fd: RawFd, id: Id) -> Result<(), i32> {
    use_linux(core, fd)?;
    if let Some(socket) = core.sockets.get_mut(id) {
        socket.kind = Kind::Linux;
    }
    Ok(())
}

/// Gets the descriptor flags, or with `set` sets them. Returns `Linux` if Linux has them.
pub fn descriptor_flags(fd: RawFd, set: Option<i32>) -> Outcome<i32> {
    let mut core = lock();
    let id = socket_of(&mut core, fd)?;
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

/// The same for the file status flags. Only `O_NONBLOCK` has a meaning for sockets.
pub fn file_flags(fd: RawFd, set: Option<i32>) -> Outcome<i32> {
    const OTHERS: i32 = libc::O_APPEND | libc::O_ASYNC | libc::O_DIRECT | libc::O_NOATIME;
    let mut core = lock();
    let id = socket_of(&mut core, fd)?;
    let Some(socket) = core.sockets.get_mut(id) else { return Err(libc::EBADF.into()) };
    if socket.under == Under::Used || set.is_some_and(|flags| flags & OTHERS != 0) {
        return Err(Instead::Linux);
    }
    if let Some(flags) = set {
        core.change_file_flags(id, |core| {
            let socket = core.sockets.get_mut(id);
            let on = flags & libc::O_NONBLOCK != 0;
            socket.into_iter().for_each(|socket| socket.nonblocking = on);
        });
        return Ok(0);
    }
    socket.sees_file_flags();
    Ok(libc::O_RDWR | if socket.nonblocking { libc::O_NONBLOCK } else { 0 })
}

/// The address to which Linux has bound the socket under a descriptor.
pub fn linux_name(fd: RawFd) -> Result<SocketAddr, i32> {
    let mut room = [0u64; 16];
    let mut len = size_of_val(&room) as socklen_t;
    // SAFETY: room of ours with its length.
    unsafe {
        if real::getsockname(fd, room.as_mut_ptr().cast(), &mut len) < 0 {
            return Err(real::errno());
        }
        mem::read_address(room.as_ptr().cast(), len).map(family::canonical)
    }
}

/// A socket has become IX's: so do its entries in epoll sets.
pub fn move_watches(core: &mut Core, id: Id) {
    watches_become_ours(core, id);
    core.notify(id, !0);
}

/// The entries of a socket in epoll sets are IX's from now on, and no longer in the real sets.
fn watches_become_ours(core: &mut Core, id: Id) {
    let Some(socket) = core.sockets.get(id) else { return };
    let mut all_deleted = true;
    for watch in socket.watches.clone() {
        if let Some(set) = core.sets.get_mut(watch.set) {
            let is_named = fds::get(watch.key.fd) == Entry::Socket(fds::index_of(id));
            all_deleted &= set.becomes_ours(watch.key, is_named);
        }
    }
    if !all_deleted {
        under::replace_linux(core, id);
    }
}

/// Waits for a result of the dataplane that comes with the next cycle.
pub fn wait_for_answer<T>(
    core: Guard,
    interest: Interest<'_>,
    mut ready: impl FnMut(&mut Core) -> Option<Result<T, i32>>,
) -> (Guard, Result<T, i32>) {
    let until = Some(Instant::now() + Duration::from_secs(5));
    let how = WaitSpec { interest, until, linux: None, drives: true };
    let mut core = core;
    let (core, result) = loop {
        let (back, result) = wait::wait(core, how, &mut ready);
        match result {
            Ok(value) => break (back, value),
            // It does not take long, so the call goes on after the handler.
            Err(Stop::Interrupted | Stop::Linux) => signals::go_on(),
            Err(Stop::TimedOut) => break (back, Err(libc::ENETDOWN)),
        }
        core = back;
    };
    // What was passed over ends the next wait.
    signals::after_going_on();
    (core, result)
}

/// A non-blocking call has found nothing to do. If this was so before in the same cycle, runs a
/// cycle: the program may never wait.
pub fn poll_if_repeated(core: Guard, id: Id) -> Guard {
    let mut core = core;
    let Core { sockets, elastic_threads, .. } = &mut *core;
    let Some(socket) = sockets.get_mut(id) else { return core };
    let cycle = elastic_threads[socket.elastic].cycle;
    if socket.idle_cycle == cycle {
        let elastic = socket.elastic;
        return wait::poll(core, elastic);
    }
    socket.idle_cycle = cycle;
    core
}

/// Keeps the Linux socket of a listener of both sides non-blocking, whatever the program sets.
pub fn keep_nonblocking(fd: RawFd) {
    let mut core = lock();
    let Ok(id) = socket_of(&mut core, fd) else { return };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epoll_set::{ReportedBy, Set};
    use crate::socket::Key;

    #[test]
    fn a_set_that_ends_leaves_nothing_in_what_it_watched() {
        let mut core = Core::new();
        let idle = Kind::Idle { stream: true, ix: false, both: false };
        let socket = core.sockets.insert(Socket::new(idle, false, false));
        let [outer, inner] = [0; 2].map(|_| core.sets.insert(Set::new(-1)));
        for file in [File::Socket(socket), File::Set(inner)] {
            let watch = Watch { set: outer, key: Key { fd: 5, file } };
            core.sets.get_mut(outer).unwrap().add(watch.key, ReportedBy::Ours, 0, 0);
            match file {
                File::Socket(id) => core.sockets.get_mut(id).unwrap().watches.push(watch),
                File::Set(id) => core.sets.get_mut(id).unwrap().watches.push(watch),
            }
        }
        drop_entry(&mut core, Entry::Epoll(fds::index_of(outer)));
        assert_eq!(core.sockets.get(socket).unwrap().watches, []);
        assert_eq!(core.sets.get(inner).unwrap().watches, []);
    }
}
