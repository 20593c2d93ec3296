//! `shutdown`, and `close` with `SO_LINGER`.
use super::{Instead, Outcome, socket_of};
use crate::lock::lock;
use crate::slab::Id;
use crate::socket::{Kind, Socket};
use crate::state::Core;
use crate::stream::Phase;
use crate::wait::{self, Interest, WaitSpec};
use crate::{real, signals};
use std::os::fd::RawFd;
use std::time::Instant;

/// `shutdown`.
pub fn shutdown(fd: RawFd, how: i32) -> Outcome<()> {
    let (read, write) = match how {
        libc::SHUT_RD => (true, false),
        libc::SHUT_WR => (false, true),
        libc::SHUT_RDWR => (true, true),
        _ => return Err(libc::EINVAL.into()),
    };
    let mut core = lock();
    let id = socket_of(&mut core, fd)?;
    core.change_file_flags(id, |core| shuts(core, (fd, id), how, (read, write)))
}

fn shuts(
    core: &mut Core,
    (fd, id): (RawFd, Id),
    how: i32,
    (read, write): (bool, bool),
) -> Outcome<()> {
    let Some(socket) = core.sockets.get_mut(id) else { return Err(libc::EBADF.into()) };
    match &mut socket.kind {
        Kind::Linux | Kind::Idle { .. } | Kind::Lost => return Err(Instead::Linux),
        Kind::Listener(listener) => {
            listener.shut |= read;
            if listener.both && read {
                // SAFETY: no pointers. It ends the Linux side.
                unsafe { real::shutdown(fd, how) };
            }
            if read {
                core.end_listener(id);
            }
        }
        Kind::Datagrams(udp) => {
            if udp.peer.is_none() {
                return Err(libc::ENOTCONN.into());
            }
            udp.read_shut |= read;
            udp.write_shut |= write;
        }
        Kind::Stream(stream) => {
            if stream.phase == Phase::Dead || stream.is_connecting() {
                return Err(libc::ENOTCONN.into());
            }
            stream.read_shut |= read;
            if write {
                stream.flow.shutdown();
            }
            if let Some(local_peer) = stream.local_peer.filter(|_| write) {
                core.end_of_local_stream(local_peer);
            }
        }
    }
    core.mark_dirty(id);
    core.notify(id, !0);
    Ok(())
}

/// Before `close` of a connection with `SO_LINGER`: waits until everything is acknowledged, for at
/// most that time.
pub fn linger(fd: RawFd) {
    let mut core = lock();
    let Ok(id) = socket_of(&mut core, fd) else { return };
    let Some(socket) = core.sockets.get_mut(id) else { return };
    let Some(time) = socket.options.linger.filter(|time| !time.is_zero()) else { return };
    if socket.fds > 1 {
        return;
    }
    let Some(stream) = socket.stream() else { return };
    if stream.phase != Phase::Open || stream.unread() > 0 || stream.local_peer.is_some() {
        return;
    }
    stream.flow.shutdown();
    stream.lingers = true;
    core.mark_dirty(id);
    signals::reset();
    let until = Some(Instant::now() + time);
    let how = WaitSpec { interest: Interest::Socket(id), until, linux: None, drives: true };
    let _ = wait::wait(core, how, |core| {
        let stream = core.sockets.get_mut(id).and_then(Socket::stream);
        stream.is_none_or(|stream| stream.is_delivered()).then_some(())
    });
}
