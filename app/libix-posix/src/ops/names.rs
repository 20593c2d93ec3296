//! `getsockname`, `getpeername`, and information about a connection.
use super::{Instead, Outcome, socket_of, wait_for_answer};
use crate::family;
use crate::lock::{Guard, lock};
use crate::slab::Id;
use crate::socket::Kind;
use crate::stream::Phase;
use crate::wait::Interest;
use std::net::SocketAddr;
use std::os::fd::RawFd;

/// `getsockname`: the address, and whether the program expects an IPv6 address.
pub fn own_name(fd: RawFd) -> Outcome<(SocketAddr, bool)> {
    let mut core = lock();
    let id = socket_of(&mut core, fd)?;
    let Some(socket) = core.sockets.get_mut(id) else { return Err(libc::EBADF.into()) };
    let (ipv6, bound) = (socket.ipv6, socket.bound);
    let any = SocketAddr::new(socket.any(), 0);
    match &mut socket.kind {
        Kind::Linux | Kind::Lost => return Err(Instead::Linux),
        Kind::Idle { both: false, ix: true, .. } => return Ok((bound.unwrap_or(any), ipv6)),
        Kind::Idle { .. } => return Err(Instead::Linux),
        Kind::Listener(_) => return Ok((bound.unwrap_or(any), ipv6)),
        Kind::Datagrams(udp) => {
            if udp.peer_of_linux {
                return Err(Instead::Linux);
            }
            let (peer, bound) = (udp.peer, bound.unwrap_or(any));
            let peer = peer.filter(|_| family::is_wildcard(bound.ip()));
            let own = peer.and_then(|peer| core.routes.own_towards(peer.ip()));
            return Ok((SocketAddr::new(own.unwrap_or(bound.ip()), bound.port()), ipv6));
        }
        Kind::Stream(stream) => {
            if let Some(local) = stream.local {
                return Ok((local, ipv6));
            }
            if stream.phase == Phase::Dead {
                return Ok((bound.unwrap_or(any), ipv6));
            }
            stream.wants_info = true;
        }
    }
    core.mark_dirty(id);
    let (_core, local) = wait_for_answer(core, Interest::Socket(id), |core| {
        let stream = core.sockets.get_mut(id)?.stream()?;
        match stream.local {
            None if stream.phase == Phase::Dead => Some(Err(libc::ENOTCONN)),
            local => local.map(Ok),
        }
    });
    Ok((local?, ipv6))
}

/// `getpeername`, with the same result.
pub fn peer_name(fd: RawFd) -> Outcome<(SocketAddr, bool)> {
    let mut core = lock();
    let id = socket_of(&mut core, fd)?;
    let Some(socket) = core.sockets.get_mut(id) else { return Err(libc::EBADF.into()) };
    let ipv6 = socket.ipv6;
    match &mut socket.kind {
        Kind::Linux | Kind::Idle { .. } | Kind::Lost => Err(Instead::Linux),
        Kind::Listener(_) => Err(libc::ENOTCONN.into()),
        Kind::Datagrams(udp) => {
            let peer = udp.peer.ok_or(libc::ENOTCONN)?;
            Ok((socket.told_peer(peer), ipv6))
        }
        Kind::Stream(stream) => {
            let gone = stream.phase == Phase::Dead || stream.is_connecting();
            let peer = stream.peer;
            if gone { Err(libc::ENOTCONN.into()) } else { Ok((socket.told_peer(peer), ipv6)) }
        }
    }
}

/// The current `GET_INFO` of a connection.
pub fn info(core: Guard, id: Id) -> Option<ix_abi::FlowInfo> {
    let mut core = core;
    let stream = core.sockets.get_mut(id)?.stream()?;
    if stream.phase == Phase::Dead {
        return None;
    }
    if stream.local_peer.is_some() {
        /// The number of state ESTABLISHED.
        const OPEN: u16 = 4;
        let mss_bytes = core.mss as u32;
        return Some(ix_abi::FlowInfo { state: OPEN, mss_bytes, ..Default::default() });
    }
    stream.wants_info = true;
    stream.info = None;
    core.mark_dirty(id);
    let (_core, info) = wait_for_answer(core, Interest::Socket(id), |core| {
        let stream = core.sockets.get_mut(id)?.stream()?;
        match &stream.info {
            None if stream.phase == Phase::Dead => Some(Err(libc::ENOTCONN)),
            info => info.as_deref().copied().map(Ok),
        }
    });
    info.ok()
}
