//! `bind`.
use super::{
    Instead, Outcome, beside_ix, leave_to_linux, linux_name, move_watches, socket_of, use_linux,
    wait_for_answer,
};
use crate::lock::{Guard, lock};
use crate::route::Whose;
use crate::slab::Id;
use crate::socket::{Datagrams, Kind};
use crate::wait::Interest;
use crate::{errno, family, in_reserve, real};
use std::net::SocketAddr;
use std::os::fd::RawFd;

/// `bind`.
pub fn bind(fd: RawFd, at: SocketAddr, on_linux: impl Fn() -> i32) -> Outcome<()> {
    let mut core = lock();
    let id = socket_of(&mut core, fd)?;
    let Some(socket) = core.sockets.get(id) else { return Err(libc::EBADF.into()) };
    let Kind::Idle { stream, ix: false, both: false } = socket.kind else {
        // It is bound already.
        let linux = matches!(socket.kind, Kind::Linux);
        return Err(if linux { Instead::Linux } else { libc::EINVAL.into() });
    };
    let at = match socket.means(at) {
        // `bind` takes no address of the other family.
        Some(meant) if at.is_ipv6() == socket.ipv6 => meant,
        // Linux returns the errno.
        _ => return Err(Instead::Linux),
    };
    let is_any = at.ip() == family::EVERY && socket.options.v6_only;
    let at = if is_any { SocketAddr::new(socket.any(), at.port()) } else { at };
    let whose = core.whose_bound(at.ip());
    let Some(socket) = core.sockets.get(id) else { return Err(libc::EBADF.into()) };
    // All addresses of one device of the dataplane.
    let is_shared = core.routes.is_shared();
    let device = socket.options.device.as_deref();
    let device = device.filter(|_| whose == Whose::Both && !is_shared);
    if let Some(device) = device.filter(|device| core.interfaces.has(device)) {
        let own = |is_v6| core.interfaces.address_of(device, is_v6);
        let ip = match core.interfaces.is_only(device) {
            true => at.ip(),
            // One listener or UDP socket has one of them.
            false => own(at.is_ipv6()).or(own(false)).unwrap_or(at.ip()),
        };
        return on_ix_alone(core, id, SocketAddr::new(ip, at.port()), stream);
    }
    match whose {
        Whose::Ix => on_ix_alone(core, id, at, stream),
        Whose::Both => {
            // Before Linux binds its socket, which would stay so.
            let options = socket.options.clone();
            if at.port() != 0 && core.is_in_use(id, at, stream, &options) {
                return Err(libc::EADDRINUSE.into());
            }
            use_linux(&mut core, fd)?;
            if is_shared {
                beside_ix::decides(fd, (at, options.reuse_port), on_linux)?;
            } else if on_linux() < 0 {
                let errno = real::errno();
                // Low ports need root on Linux, and the program is not root behind the wall. On IX
                // it may have them, at an address of IX's own.
                let low = errno == libc::EACCES && at.port() != 0;
                return if low { on_ix_alone(core, id, at, stream) } else { Err(errno.into()) };
            }
            let at = SocketAddr::new(at.ip(), linux_name(fd)?.port());
            if core.is_in_use(id, at, stream, &options) {
                return Err(libc::EADDRINUSE.into());
            }
            // A port that Linux has chosen is a client's.
            let given = !stream && at.port() != 0 && !core.ephemeral.has(at.port());
            if let Some(socket) = core.sockets.get_mut(id) {
                socket.bound = Some(at);
                socket.kind = Kind::Idle { stream, ix: stream, both: true };
            }
            // A UDP server's socket is IX's now; a client's is decided by its first destination.
            if given {
                if !is_shared {
                    beside_ix::hears_its_own(fd, at.is_ipv6());
                }
                return become_datagrams(core, id);
            }
            Ok(())
        }
        Whose::Linux => {
            use_linux(&mut core, fd)?;
            // If `bind` fails, the socket stays undecided: the next address may be IX's.
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
        0 => core.free_port(id, at.ip(), stream)?,
        port => port,
    };
    let at = SocketAddr::new(at.ip(), port);
    if core.is_in_use(id, at, stream, &options) {
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

/// Makes a socket a UDP socket of IX.
pub fn become_datagrams(mut core: Guard, id: Id) -> Outcome<()> {
    let Some(socket) = core.sockets.get(id) else { return Err(libc::EBADF.into()) };
    let any = socket.any();
    if socket.bound.is_none() {
        let port = core.free_port(id, any, false)?;
        if let Some(socket) = core.sockets.get_mut(id) {
            socket.bound = Some(SocketAddr::new(any, port));
        }
    }
    let any = SocketAddr::new(any, 0);
    let home = core.home();
    let Some(socket) = core.sockets.get_mut(id) else { return Err(libc::EBADF.into()) };
    let both = matches!(socket.kind, Kind::Idle { both: true, .. });
    socket.kind = Kind::Datagrams(Box::new(Datagrams { both, ..Datagrams::default() }));
    socket.elastic = home;
    let at = socket.bound.unwrap_or(any);
    core.join_udp_port(id, at);
    if both {
        core.watches_become_both(id);
        core.notify(id, !0);
    } else {
        move_watches(&mut core, id);
    }
    core.mark_dirty(id);
    if !core.has_begun() {
        // Noted: the dataplane starts in the process that waits or sends. Where Linux has the
        // address too, it keeps what comes until then.
        if !both {
            in_reserve::watch();
        }
        return Ok(());
    }
    let (_core, result) = wait_for_answer(core, Interest::Socket(id), |core| {
        let socket = core.sockets.get_mut(id)?;
        match socket.take_error() {
            0 => {
                let port = socket.datagrams()?.port;
                core.udp_ports
                    .get(port)?
                    .handles
                    .outcome()
                    .map(|answer| answer.map_err(errno::of_error))
            }
            errno => Some(Err(errno)),
        }
    });
    Ok(result?)
}
