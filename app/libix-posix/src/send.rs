//! The calls that write: `write`, `sendmsg`, and all that come down to them. Errors are errnos.
use crate::cmsg::Family;
use crate::lock::{Guard, lock};
use crate::mem::Gather;
use crate::ops::{self, Instead, Outcome, socket_of};
use crate::route::Whose;
use crate::send_datagram::{Datagram, SendControl, send_datagram};
use crate::slab::Id;
use crate::socket::Kind;
use crate::state::Core;
use crate::stream::Phase;
use crate::{family, signals};
use libc::MSG_DONTWAIT;
use std::net::SocketAddr;
use std::os::fd::RawFd;

/// Where a datagram goes; `None`: to the socket's peer. `Err`: the errno of an address that names
/// no place. As on Linux, connections look at neither. With flow information in host byte order.
pub type Destination = Result<Option<SocketAddr>, i32>;

/// `send`, `write` and all simpler calls.
pub fn send(fd: RawFd, from: Gather<'_>, flags: i32, to: Destination) -> Outcome<usize> {
    send_as(fd, from, flags, to, |_| Ok(SendControl::default()))
}

/// `sendmsg`. `send_control` reads the control messages, which only datagrams use, for a packet of
/// that family; or it returns their errno.
pub fn send_as(
    fd: RawFd,
    mut from: Gather<'_>,
    flags: i32,
    to: Destination,
    send_control: impl FnOnce(Family) -> Result<SendControl, i32>,
) -> Outcome<usize> {
    signals::reset();
    let mut core = lock();
    let id = socket_of(&mut core, fd)?;
    core.sees_file_flags(id);
    let Some(socket) = core.sockets.get(id) else { return Err(libc::EBADF.into()) };
    let is_stream = matches!(socket.kind, Kind::Stream(_));
    let given = to;
    let flow_info = to.ok().flatten().map_or(0, family::flow_info);
    let to = match to {
        // A connection has its peer, whatever the program names.
        Ok(Some(to)) if !is_stream => {
            let to = family::without_flow_info(to);
            Ok(Some(socket.means(to).ok_or(Instead::Linux)?))
        }
        to => to,
    };
    // TCP Fast Open: data with the SYN.
    let to_ix = flags & libc::MSG_FASTOPEN != 0 && is_ours(&core, to.unwrap_or_default());
    let Some(socket) = core.sockets.get_mut(id) else { return Err(libc::EBADF.into()) };
    if let Some(stream) = socket.stream() {
        stream.writes_more = flags & libc::MSG_MORE != 0;
    }
    let timeout = socket.options.send_timeout;
    let nonblocking = socket.nonblocking || flags & MSG_DONTWAIT != 0;
    match &socket.kind {
        Kind::Linux | Kind::Lost => return Err(Instead::Linux),
        Kind::Idle { stream: false, .. } => {
            become_ours(core, fd, id, to?)?;
            return send_as(fd, from, flags, given, send_control);
        }
        Kind::Idle { .. } if to_ix => return Err(libc::EOPNOTSUPP.into()),
        Kind::Idle { .. } => return Err(Instead::Linux),
        Kind::Listener(_) => return Err(libc::EPIPE.into()),
        Kind::Datagrams(_) => {
            let to = to?;
            if core.leaves_by_linux(id, to)? {
                return Err(Instead::Linux);
            }
            let Some(socket) = core.sockets.get(id) else { return Err(libc::EBADF.into()) };
            let family = match to.or(socket.peer()) {
                Some(SocketAddr::V6(_)) => Family::V6,
                Some(SocketAddr::V4(_)) if socket.ipv6 => Family::Mapped,
                Some(SocketAddr::V4(_)) => Family::V4,
                None => return Err(libc::EDESTADDRREQ.into()),
            };
            if flags & libc::MSG_OOB != 0 && family != Family::V6 {
                return Err(libc::EOPNOTSUPP.into());
            }
            let send_control = send_control(family)?;
            let datagram = Datagram {
                to,
                flow_info,
                send_control,
                len: from.left(),
                fragment_bytes: 0,
                datagram_bytes: 0,
            };
            return send_datagram(core, id, &mut from, datagram, nonblocking, timeout);
        }
        Kind::Stream(_) => {}
    }
    let (mut total, eor) = (0, flags & libc::MSG_EOR != 0);
    let mut attempt = |core: &mut Core| give_bytes(core, id, &mut from, eor, &mut total);
    let done = match attempt(&mut core) {
        Some(done) => done,
        None if nonblocking => {
            core = ops::poll_if_repeated(core, id);
            attempt(&mut core).unwrap_or(Err(libc::EAGAIN))
        }
        None => ops::block(core, id, timeout, attempt),
    };
    match done {
        Err(errno) if total == 0 => Err(errno.into()),
        _ => Ok(total),
    }
}

/// Whether a destination is IX's.
fn is_ours(core: &Core, to: Option<SocketAddr>) -> bool {
    to.is_some_and(|to| core.routes.connect(to.ip()) == Whose::Ix)
}

/// Copies as many bytes as there is room for. `None`: not all of them. `eor`: a message ends with
/// the last one.
fn give_bytes(
    core: &mut Core,
    id: Id,
    from: &mut Gather<'_>,
    eor: bool,
    total: &mut usize,
) -> Option<Result<(), i32>> {
    let share = core.tx_share();
    let Core { sockets, elastic_threads, .. } = core;
    let Some(socket) = sockets.get_mut(id) else { return Some(Err(libc::EBADF)) };
    let send_buffer = socket.send_buffer();
    let elastic = &mut elastic_threads[socket.elastic];
    if socket.error != 0 {
        let errno = socket.error;
        if *total == 0 && socket.take_error() == 0 {
            // Another process has got it.
            return Some(Err(libc::EPIPE));
        }
        return Some(Err(errno));
    }
    let Some(stream) = socket.stream() else { return Some(Err(libc::ENOTCONN)) };
    if stream.phase == Phase::Dead || stream.flow.is_shut() {
        return Some(Err(libc::EPIPE));
    }
    if stream.is_connecting() {
        return None;
    }
    if stream.is_away() {
        // Once this process has it.
        return None;
    }
    if from.left() == 0 {
        return Some(Ok(()));
    }
    if from.is_wrong() {
        return Some(Err(libc::EFAULT));
    }
    if let Some(local_peer) = stream.local_peer {
        *total += core.send_to_local_peer(id, local_peer, from);
        return (from.left() == 0).then_some(Ok(()));
    }
    let limit = elastic.send_limit(share, send_buffer);
    let Some(tx) = &elastic.tx else { return Some(Err(libc::ENOBUFS)) };
    let room = stream.space(limit);
    let n = stream.write(&tx.0, from, room);
    if eor && from.left() == 0 {
        stream.flow.send.end_message();
    }
    let refused = n < room.min(from.left() + n);
    *total += n;
    elastic.starved |= refused;
    if (refused || limit < send_buffer && from.left() > 0) && !socket.starving {
        socket.starving = true;
        elastic.starves(share, id);
    }
    if n > 0 {
        core.mark_dirty(id);
        core.notes_written(id, n);
    }
    (from.left() == 0).then_some(Ok(()))
}

/// The destination of the first datagram decides whose an undecided socket is.
fn become_ours(mut core: Guard, fd: RawFd, id: Id, to: Option<SocketAddr>) -> Outcome<()> {
    let Some(to) = to else { return Err(Instead::Linux) };
    if core.whose(id, to.ip())? == Whose::Linux {
        // A bound socket stays undecided until it sends to IX.
        let bound = core.sockets.get(id).is_some_and(|socket| socket.bound.is_some());
        if !bound {
            ops::leave_to_linux(&mut core, fd, id)?;
        }
        return Err(Instead::Linux);
    }
    ops::become_datagrams(core, id)
}
