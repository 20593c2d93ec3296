//! `listen` and `accept`.
use super::{
    Instead, Outcome, beside_ix, give_number, linux_name, poll_if_repeated, socket_of, use_linux,
    wait_for_answer, watches_become_ours,
};
use crate::lock::{Guard, lock};
use crate::route::Whose;
use crate::slab::Id;
use crate::socket::{Kind, Listener, Socket};
use crate::state::Core;
use crate::wait::{self, Interest, Stop, WaitSpec};
use crate::{errno, in_reserve, kin, real, serving, signals};
use libc::{SOCK_CLOEXEC, SOCK_NONBLOCK};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::time::Instant;

/// Longest accept queue, as Linux's `net.core.somaxconn`.
const BACKLOG_MAX: i32 = 4096;

/// `listen`. `on_linux` makes the same call for the Linux socket under the descriptor.
pub fn listen(fd: RawFd, backlog: i32, on_linux: impl Fn() -> i32) -> Outcome<()> {
    let mut core = lock();
    let id = socket_of(&mut core, fd)?;
    let backlog = if backlog < 0 { BACKLOG_MAX } else { backlog.min(BACKLOG_MAX) };
    let Some(socket) = core.sockets.get(id) else { return Err(libc::EBADF.into()) };
    let (reuse_port, any) = (socket.options.reuse_port, socket.any());
    let is_any_ours = core.routes.bind(any) != Whose::Linux;
    let Some(socket) = core.sockets.get_mut(id) else { return Err(libc::EBADF.into()) };
    let (at, both) = match &mut socket.kind {
        Kind::Linux | Kind::Lost => return Err(Instead::Linux),
        Kind::Listener(listener) => {
            listener.backlog = backlog as usize;
            let port = listener.port;
            core.size_backlog(port);
            return Ok(());
        }
        Kind::Idle { stream: true, ix, both } if *ix => (socket.bound, *both),
        // Without `bind`, Linux chooses a port at all addresses.
        Kind::Idle { stream: true, .. } if is_any_ours => (None, true),
        Kind::Idle { .. } => return Err(Instead::Linux),
        Kind::Stream(_) => return Err(libc::EINVAL.into()),
        Kind::Datagrams(_) => return Err(libc::EOPNOTSUPP.into()),
    };
    if both {
        use_linux(&mut core, fd)?;
        // It must not block, because connections come from two sides.
        // SAFETY: no pointers.
        unsafe {
            let flags = real::fcntl(fd, libc::F_GETFL, 0);
            real::fcntl(fd, libc::F_SETFL, (flags | libc::O_NONBLOCK) as usize);
        }
        if core.routes.is_shared() {
            // It may be bound by this call. Two sockets that may share an address (`SO_REUSEADDR`)
            // can have one port until one of them listens.
            let at = at.unwrap_or(SocketAddr::new(any, 0));
            beside_ix::decides(fd, (at, reuse_port), on_linux)?;
        } else if on_linux() < 0 {
            return Err(real::errno().into());
        }
    }
    let at = match at {
        Some(at) => at,
        None => SocketAddr::new(any, linux_name(fd)?.port()),
    };
    let port = joins(&mut core, id, (at, reuse_port), backlog as usize, both)?;
    watches_follow(&mut core, id, both);
    // A forked or executed process: whoever has waited for it may connect at once.
    if kin::is_child() {
        serving::start(&mut core);
    }
    if !core.has_begun() {
        // Noted: the dataplane starts when a process waits for connections, or soon.
        core.says_it_comes();
        core.says_what_it_is(id);
        drop(core);
        in_reserve::watch();
        return Ok(());
    }
    let (mut core, result) = wait_for_answer(core, Interest::Socket(id), |core| {
        core.ports.get(port)?.handles.outcome().map(|answer| answer.map_err(errno::of_error))
    });
    if result.is_err() {
        if let Some(entry) = core.ports.get_mut(port) {
            entry.members.retain(|member| *member != id);
            core.close_port(port);
        }
        if let Some(socket) = core.sockets.get_mut(id) {
            socket.kind = Kind::Idle { stream: true, ix: true, both };
        }
    } else {
        core.says_what_it_is(id);
    }
    Ok(result?)
}

/// Makes a socket a listener at its port.
fn joins(
    core: &mut Core,
    id: Id,
    (at, reuse_port): (SocketAddr, bool),
    backlog: usize,
    both: bool,
) -> Result<Id, i32> {
    let port = core.join_port(id, at, reuse_port)?;
    if let Some(socket) = core.sockets.get_mut(id) {
        socket.bound = Some(at);
        let queue = VecDeque::new();
        socket.kind = Kind::Listener(Listener {
            port,
            backlog,
            queue,
            deferred: 0,
            both,
            shut: false,
            elastic: None,
            waiting: 0,
        });
    }
    core.size_backlog(port);
    core.say_waits();
    Ok(port)
}

/// The entries of a new listener in epoll sets are reported by IX from now on, or by both sides.
fn watches_follow(core: &mut Core, id: Id, both: bool) {
    if !both {
        return watches_become_ours(core, id);
    }
    for watch in core.sockets.get(id).map_or(Vec::new(), |socket| socket.watches.clone()) {
        if let Some(set) = core.sets.get_mut(watch.set) {
            set.becomes_both(watch.key);
        }
    }
}

/// A listener has come from another process, or an undecided socket has become one there.
pub fn listens(core: &mut Core, id: Id, backlog: usize, both: bool) {
    let Some(at) = core.sockets.get(id).and_then(|socket| socket.bound) else { return };
    // Where this process has a listener there, both serve, as with `SO_REUSEPORT`.
    if joins(core, id, (at, true), backlog, both).is_ok() {
        watches_follow(core, id, both);
        core.notify(id, !0);
    }
}

/// `accept4`. `on_linux` makes the call for the Linux socket under the descriptor, which does not
/// block. Returns the new descriptor, and the peer if the connection is IX's. `waits`: unless the
/// listener is one that does not.
pub fn accept(
    fd: RawFd,
    (flags, waits): (i32, bool),
    on_linux: impl Fn() -> i32,
) -> Outcome<(RawFd, Option<(SocketAddr, bool)>)> {
    if flags & !(SOCK_NONBLOCK | SOCK_CLOEXEC) != 0 {
        return Err(libc::EINVAL.into());
    }
    signals::reset();
    let mut core = lock();
    let id = socket_of(&mut core, fd)?;
    core.sees_file_flags(id);
    let Some(socket) = core.sockets.get_mut(id) else { return Err(libc::EBADF.into()) };
    let (nonblocking, timeout) = (socket.nonblocking || !waits, socket.options.receive_timeout);
    let both = match &socket.kind {
        Kind::Linux | Kind::Idle { .. } | Kind::Lost => return Err(Instead::Linux),
        Kind::Listener(listener) => listener.both,
        Kind::Stream(_) => return Err(libc::EINVAL.into()),
        Kind::Datagrams(_) => return Err(libc::EOPNOTSUPP.into()),
    };
    let until = timeout.map(|timeout| Instant::now() + timeout);
    let linux = both.then_some(fd);
    let how = WaitSpec { interest: Interest::Socket(id), until, linux, drives: true };
    loop {
        if let Some(accepted) = take_connection(&mut core, id, flags)? {
            return Ok(accepted);
        }
        if both {
            let accepted = on_linux();
            if accepted >= 0 {
                return Ok((accepted, None));
            }
            match real::errno() {
                errno if real::found_nothing(errno) => {}
                errno => return Err(errno.into()),
            }
        }
        if nonblocking {
            core = poll_if_repeated(core, id);
            return match take_connection(&mut core, id, flags)? {
                Some(accepted) => Ok(accepted),
                None => Err(libc::EAGAIN.into()),
            };
        }
        let home = core.home();
        if let Some(listener) = core.sockets.get_mut(id).and_then(Socket::listener) {
            listener.elastic = Some(home);
        }
        let (back, result) = wait::wait(core, how, |core| {
            let socket = core.sockets.get_mut(id)?;
            let ready = socket.listener().is_none_or(|l| l.shut || !l.queue.is_empty());
            ready.then_some(())
        });
        core = back;
        match result {
            Ok(()) | Err(Stop::Linux) => {}
            Err(Stop::TimedOut) => return Err(libc::EAGAIN.into()),
            Err(Stop::Interrupted) if signals::interrupted() == 1 && timeout.is_none() => {
                signals::reset();
            }
            Err(Stop::Interrupted) => {
                signals::ends_call(timeout);
                return Err(libc::EINTR.into());
            }
        }
    }
}

type Accepted = (RawFd, Option<(SocketAddr, bool)>);

fn take_connection(core: &mut Guard, id: Id, flags: i32) -> Outcome<Option<Accepted>> {
    let Some(socket) = core.sockets.get_mut(id) else { return Err(libc::EBADF.into()) };
    let ipv6 = socket.ipv6;
    let Some(listener) = socket.listener() else { return Err(libc::EINVAL.into()) };
    if listener.shut {
        return Err(libc::EINVAL.into());
    }
    let Some(accepted) = listener.queue.front().copied() else { return Ok(None) };
    // Under the lock, so that no other thread takes the number meanwhile.
    let fd = give_number(core, accepted, flags)?;
    if let Some(listener) = core.sockets.get_mut(id).and_then(Socket::listener) {
        listener.queue.pop_front();
    }
    let Some(socket) = core.sockets.get_mut(accepted) else { return Err(libc::EBADF.into()) };
    let Some(stream) = socket.stream() else { return Err(libc::EBADF.into()) };
    stream.queued_at = None;
    let peer = stream.peer;
    if core::mem::take(&mut stream.legacy) != 0 {
        core.mark_dirty(accepted);
    }
    core.leaves_queue(accepted);
    core.notes_accepted(accepted);
    Ok(Some((fd, Some((peer, ipv6)))))
}
