//! Where a socket is bound.
use super::{
    Instead, Outcome, leave_to_linux, linux_name, move_watches, socket_of, soon, use_linux,
};
use crate::drive::Interest;
use crate::emit::errno_of;
use crate::real;
use crate::route::Whose;
use crate::slab::Id;
use crate::socket::Kind;
use crate::state::Core;
use crate::sync::{Guard, lock};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::RawFd;

/// Where Linux says which ports a program is given that does not say one.
const EPHEMERAL_FILE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// Linux's default.
const EPHEMERAL: (u16, u16) = (32768, 60999);

/// The first and the last of the ports that a program is given which does not say one: Linux's, so
/// that they can be set in one place.
pub fn ephemeral_ports() -> (u16, u16) {
    let text = std::fs::read_to_string(EPHEMERAL_FILE).unwrap_or_default();
    let mut ports = text.split_whitespace().map_while(|port| port.parse().ok());
    match (ports.next(), ports.next()) {
        (Some(first), Some(last)) if 0 < first && first <= last => (first, last),
        _ => EPHEMERAL,
    }
}

/// `bind`.
pub fn bind(fd: RawFd, at: SocketAddr, on_linux: impl FnOnce() -> i32) -> Outcome<()> {
    let mut core = lock();
    let id = socket_of(&core, fd)?;
    let whose = core.routes.bind(at.ip());
    let Some(socket) = core.sockets.get(id) else { return Err(libc::EBADF.into()) };
    let Kind::Idle { stream, ix: false, both: false } = socket.kind else {
        // It has a name already.
        let linux = matches!(socket.kind, Kind::Linux);
        return Err(if linux { Instead::Linux } else { libc::EINVAL.into() });
    };
    let v6_only = socket.ipv6 && socket.options.v6_only;
    // All addresses of one device of the dataplane: that is one.
    let device = socket.options.device.as_deref().filter(|_| whose == Whose::Both && !v6_only);
    if let Some(own) = device.and_then(|device| core.interfaces.address_of(device)) {
        let ip = if core.routes.single().is_some() { at.ip() } else { own.into() };
        return on_ix_alone(core, id, SocketAddr::new(ip, at.port()), stream);
    }
    match whose {
        Whose::Ix if !v6_only => on_ix_alone(core, id, at, stream),
        Whose::Both if !v6_only => {
            use_linux(&mut core, fd)?;
            if on_linux() < 0 {
                let errno = real::errno();
                // A low port is root's on Linux, as whom nothing runs behind the wall; on IX it is
                // the program's.
                let low = errno == libc::EACCES && at.port() != 0;
                return if low { on_ix_alone(core, id, at, stream) } else { Err(errno.into()) };
            }
            let at = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), linux_name(fd)?.port());
            let options = core.sockets.get(id).map(|socket| socket.options.clone());
            if in_use(&core, id, at, stream, &options.unwrap_or_default()) {
                return Err(libc::EADDRINUSE.into());
            }
            // One that Linux has chosen is a client's.
            let (first, last) = core.ephemeral;
            let given = !stream && at.port() != 0 && !(first..=last).contains(&at.port());
            if let Some(socket) = core.sockets.get_mut(id) {
                socket.bound = Some(at);
                socket.kind = Kind::Idle { stream, ix: stream, both: true };
            }
            // A UDP server; a client's socket waits for its first destination.
            if given {
                return become_datagrams(core, id);
            }
            Ok(())
        }
        _ => {
            use_linux(&mut core, fd)?;
            // Until it has a name it is nobody's: the next one that is tried may be ours.
            if on_linux() < 0 {
                return Err(real::errno().into());
            }
            leave_to_linux(&mut core, fd, id)?;
            Ok(())
        }
    }
}

fn on_ix_alone(mut core: Guard, id: Id, at: SocketAddr, stream: bool) -> Outcome<()> {
    let Some(socket) = core.sockets.get(id) else { return Err(libc::EBADF.into()) };
    let options = socket.options.clone();
    let port = match at.port() {
        0 => free_port(&core, id, at.ip(), stream)?,
        port => port,
    };
    let at = SocketAddr::new(at.ip(), port);
    if in_use(&core, id, at, stream, &options) {
        return Err(libc::EADDRINUSE.into());
    }
    if let Some(socket) = core.sockets.get_mut(id) {
        socket.bound = Some(at);
        socket.kind = Kind::Idle { stream, ix: true, both: false };
    }
    if !stream {
        return become_datagrams(core, id);
    }
    Ok(())
}

/// Whether another socket of this process is bound there in a way that excludes this one.
fn in_use(
    core: &Core,
    id: Id,
    at: SocketAddr,
    stream: bool,
    options: &crate::socket::Options,
) -> bool {
    core.sockets.ids().into_iter().filter(|other| *other != id).any(|other| {
        let Some(other) = core.sockets.get(other) else { return false };
        let Some(theirs) = other.bound else { return false };
        let overlaps = theirs.port() == at.port()
            && (theirs.ip() == at.ip() || theirs.ip().is_unspecified() || at.ip().is_unspecified());
        let other_stream = match other.kind {
            Kind::Idle { stream, .. } => stream,
            Kind::Datagrams(_) => false,
            Kind::Linux | Kind::Lost => return false,
            _ => true,
        };
        let listens = matches!(other.kind, Kind::Listener(_));
        let share_address =
            options.reuse_address && other.options.reuse_address && !(stream && listens);
        let share_port = options.reuse_port && other.options.reuse_port;
        overlaps && other_stream == stream && other.fds > 0 && !share_address && !share_port
    })
}

/// A port for a socket that says none.
pub fn free_port(core: &Core, id: Id, ip: IpAddr, stream: bool) -> Result<u16, i32> {
    let (first, last) = core.ephemeral;
    let span = u32::from(last - first) + 1;
    let mut random = 0u16;
    // SAFETY: two bytes of ours.
    unsafe { libc::getrandom((&raw mut random).cast(), 2, libc::GRND_NONBLOCK) };
    let strict = crate::socket::Options::default();
    let mut ports = (0..span).map(|n| first + ((u32::from(random) + n) % span) as u16);
    let free = |port: &u16| !in_use(core, id, SocketAddr::new(ip, *port), stream, &strict);
    ports.find(free).ok_or(libc::EADDRINUSE)
}

/// From now on it is a UDP socket of IX.
pub fn become_datagrams(mut core: Guard, id: Id) -> Outcome<()> {
    let Some(socket) = core.sockets.get(id) else { return Err(libc::EBADF.into()) };
    if socket.bound.is_none() {
        let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let port = free_port(&core, id, any, false)?;
        if let Some(socket) = core.sockets.get_mut(id) {
            socket.bound = Some(SocketAddr::new(any, port));
        }
    }
    let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
    let home = core.home();
    let Some(socket) = core.sockets.get_mut(id) else { return Err(libc::EBADF.into()) };
    socket.kind = Kind::Datagrams(Box::default());
    socket.lane = home;
    let at = socket.bound.unwrap_or(any);
    core.join_udp_port(id, at);
    move_watches(&mut core, id);
    core.touch(id);
    if !core.has_begun() {
        // Noted: it begins in the process that waits or sends.
        return Ok(());
    }
    let (_core, result) = soon(core, Interest::Socket(id), |core| {
        let socket = core.sockets.get_mut(id)?;
        match socket.take_error() {
            0 => {
                let port = socket.datagrams()?.port;
                core.udp_ports.get(port)?.names.outcome().map(|answer| answer.map_err(errno_of))
            }
            errno => Some(Err(errno)),
        }
    });
    Ok(result?)
}
