//! `connect`.
use super::{
    Instead, Outcome, become_datagrams, leave_to_linux, move_watches, needs_number_only, socket_of,
};
use crate::lock::lock;
use crate::route::Whose;
use crate::slab::Id;
use crate::socket::{Kind, Socket};
use crate::state::Core;
use crate::stream::{Phase, Stream};
use crate::wait::{self, Interest, Stop, WaitSpec};
use crate::{family, signals};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::time::Instant;

/// Most turns of a connection to an own address: SYN, SYN-ACK and ACK take one each.
const NEAR_TURNS: usize = 4;

/// `connect`. `flow_info` is the address's, in host byte order.
pub fn connect(fd: RawFd, to: SocketAddr, flow_info: u32) -> Outcome<()> {
    signals::reset();
    let mut core = lock();
    let id = socket_of(&mut core, fd)?;
    let Some(socket) = core.sockets.get(id) else { return Err(libc::EBADF.into()) };
    let is_undecided = matches!(socket.kind, Kind::Idle { .. } | Kind::Datagrams(_));
    let to = match socket.means(to) {
        Some(to) => to,
        None if is_undecided => return Err(Instead::Linux),
        None => to,
    };
    let whose = match core.hears_linux(id) && core.leaves_by_linux(id, Some(to))? {
        true => Whose::Linux,
        false => core.whose(id, to.ip())?,
    };
    let is_broadcast = core.routes.is_broadcast(to.ip());
    let is_shared = core.routes.is_shared();
    let Some(socket) = core.sockets.get_mut(id) else { return Err(libc::EBADF.into()) };
    let nonblocking = socket.nonblocking;
    let timeout = socket.options.send_timeout;
    if is_broadcast && !socket.is_tcp() && !socket.options.broadcast {
        return Err(libc::EACCES.into());
    }
    if is_undecided && socket.ipv6 {
        socket.has_peer_flow_info(flow_info);
    }
    match &mut socket.kind {
        Kind::Linux | Kind::Lost => return Err(Instead::Linux),
        Kind::Listener(_) => return Err(libc::EISCONN.into()),
        Kind::Datagrams(udp) => {
            udp.peer_of_linux = udp.both && whose == Whose::Linux;
            if udp.peer_of_linux {
                udp.peer = Some(to);
                return Err(Instead::Linux);
            }
            family::reaches(socket.bound.map(|at| at.ip()), to.ip())?;
            udp.peer = Some(to);
            core.datagrams_have_peer(fd, id, to);
            return Ok(());
        }
        Kind::Idle { stream, ix, .. } => {
            let (stream, ix) = (*stream, *ix);
            let bound_elsewhere =
                ix && socket.bound.is_some_and(|at| family::is_wildcard(at.ip()) || is_shared);
            if whose == Whose::Linux && (!ix || bound_elsewhere) {
                leave_to_linux(&mut core, fd, id)?;
                return Err(Instead::Linux);
            }
            family::reaches(socket.bound.map(|at| at.ip()), to.ip())?;
            if !stream {
                become_datagrams(core, id)?;
                core = lock();
                if let Some(udp) = core.sockets.get_mut(id).and_then(Socket::datagrams) {
                    udp.peer = Some(to);
                }
                core.datagrams_have_peer(fd, id, to);
                return Ok(());
            }
            if core.is_pair_of_here(id, to) {
                core.connect_here(id, to)?;
                move_watches(&mut core, id);
                needs_number_only(&mut core, fd, id);
                if nonblocking {
                    return Err(libc::EINPROGRESS.into());
                }
                return Ok(connected(&mut core, id).unwrap_or(Ok(()))?);
            }
            wait::enter(&mut core)?;
            let home = core.home();
            if let Some(socket) = core.sockets.get_mut(id) {
                let stream = Stream::new(Phase::ToConnect, 0, to, None);
                socket.kind = Kind::Stream(Box::new(stream));
                socket.elastic = home;
                let unsent_low = socket.options.unsent_limit();
                if let Some(stream) = socket.stream() {
                    stream.options_changed = true;
                    stream.unsent_low = unsent_low;
                }
            }
            move_watches(&mut core, id);
            needs_number_only(&mut core, fd, id);
            core.mark_dirty(id);
            if nonblocking {
                // Sends the SYN now, or finds that there is no port for it.
                let elastic = core.home();
                core = wait::instead_of_helper(core, elastic);
                // Every elastic thread may be asked, and the first one once more. A connection to
                // an own address is open, or refused, when the call returns, as on Linux.
                let is_near = core.routes.is_ours(to.ip());
                let turns = 2 * core.elastic_count + if is_near { NEAR_TURNS } else { 0 };
                for _ in 0..turns {
                    core = wait::poll(core, elastic);
                    let stream = core.sockets.get_mut(id).and_then(Socket::stream);
                    let is_under_way = |stream: &mut Stream| match stream.phase {
                        Phase::ToConnect => true,
                        Phase::Connecting => is_near,
                        _ => false,
                    };
                    if !stream.is_some_and(is_under_way) {
                        break;
                    }
                }
                let socket = core.sockets.get_mut(id).ok_or(libc::EBADF)?;
                // Without a port nothing was sent. Other errors are reported later.
                let no_port = socket.error == libc::EADDRNOTAVAIL;
                let errno = if no_port { failed_to_connect(socket) } else { libc::EINPROGRESS };
                return Err(errno.into());
            }
        }
        Kind::Stream(stream) => match stream.phase {
            Phase::ToAccept => return Err(libc::EISCONN.into()),
            Phase::Open | Phase::Away if stream.announced => return Err(libc::EISCONN.into()),
            Phase::Open | Phase::Dead if stream.was_open => {
                let first = !core::mem::replace(&mut stream.announced, true);
                return if first { Ok(()) } else { Err(libc::EISCONN.into()) };
            }
            // The attempt failed: this is reported once, then a new one may begin.
            Phase::Dead | Phase::Open | Phase::Away => return Err(failed_to_connect(socket).into()),
            Phase::ToConnect | Phase::Connecting if nonblocking => {
                return Err(libc::EALREADY.into());
            }
            Phase::ToConnect | Phase::Connecting => {}
        },
    }
    let until = timeout.map(|timeout| Instant::now() + timeout);
    let how = WaitSpec { interest: Interest::Socket(id), until, linux: None, drives: true };
    loop {
        let (back, result) = wait::wait(core, how, |core| connected(core, id));
        match result {
            Ok(outcome) => return Ok(outcome?),
            Err(Stop::TimedOut) => return Err(libc::EINPROGRESS.into()),
            Err(Stop::Linux) => {}
            Err(Stop::Interrupted) if signals::interrupted() == 1 && timeout.is_none() => {
                signals::reset();
            }
            Err(Stop::Interrupted) => {
                signals::ends_call(timeout);
                return Err(libc::EINTR.into());
            }
        }
        core = back;
    }
}

/// The outcome of an attempt to connect, once it is known.
fn connected(core: &mut Core, id: Id) -> Option<Result<(), i32>> {
    let socket = core.sockets.get_mut(id)?;
    match socket.stream()?.phase {
        Phase::ToConnect | Phase::Connecting => None,
        Phase::Dead => Some(Err(failed_to_connect(socket))),
        _ => {
            socket.stream()?.announced = true;
            Some(Ok(()))
        }
    }
}

/// An attempt to connect has failed: returns the errno and makes the socket undecided again.
fn failed_to_connect(socket: &mut Socket) -> i32 {
    socket.kind = Kind::Idle { stream: true, ix: true, both: false };
    match socket.take_error() {
        0 => libc::ECONNABORTED,
        errno => errno,
    }
}

/// `connect` with `AF_UNSPEC`: a UDP socket has no peer any more.
pub fn disconnect(fd: RawFd) -> Outcome<()> {
    let mut core = lock();
    let id = socket_of(&mut core, fd)?;
    let Some(socket) = core.sockets.get_mut(id) else { return Err(libc::EBADF.into()) };
    match &mut socket.kind {
        Kind::Linux | Kind::Idle { .. } | Kind::Lost => Err(Instead::Linux),
        Kind::Datagrams(udp) => {
            udp.peer = None;
            let by_linux = core::mem::take(&mut udp.peer_of_linux);
            if by_linux { Err(Instead::Linux) } else { Ok(()) }
        }
        // As Linux, where a protocol cannot disconnect.
        Kind::Listener(_) | Kind::Stream(_) => Err(libc::EOPNOTSUPP.into()),
    }
}
