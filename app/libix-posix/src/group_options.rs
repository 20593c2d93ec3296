//! Options of UDP sockets of IX about groups: what they change, and what Linux and the dataplane
//! are told.
use crate::groups::{self, At};
use crate::lock::lock;
use crate::ops::{self, Instead, Outcome};
use crate::slab::Id;
use crate::socket::{Kind, Under};
use crate::state::Core;
use crate::wait::Interest;
use crate::{log, real};
use libc::{IPPROTO_IPV6, c_void, socklen_t};
use std::os::fd::RawFd;

/// Whether an interface is a device of the dataplane's; `None`: the program has named none.
fn is_ours(core: &mut Core, at: At) -> Option<bool> {
    match at {
        At::Any => None,
        At::Address(address) => Some(core.routes.is_ours(address)),
        At::Number(number) => Some(core.interfaces.has_number(number)),
    }
}

/// An option about groups that a socket listens to.
pub fn set(fd: RawFd, id: Id, level: i32, name: i32, value: &[u8]) -> Outcome<()> {
    let mut core = lock();
    let Some(socket) = core.sockets.get(id) else { return Err(libc::EBADF.into()) };
    if socket.is_tcp() || matches!(socket.kind, Kind::Linux) {
        return Err(Instead::Linux);
    }
    if level == IPPROTO_IPV6 && !socket.ipv6 {
        return Err(Instead::Linux);
    }
    let request = groups::read(level, name, value)?;
    let is_idle = matches!(socket.kind, Kind::Idle { .. });
    let (is_v6, at) = (request.group.is_ipv6(), request.at);
    let has_family = core.routes.has_family(is_v6);
    let is_shared = core.routes.is_shared();
    match is_ours(&mut core, at) {
        Some(true) => {}
        None if has_family => {}
        _ if is_idle => return Err(Instead::Linux),
        _ => {
            let text = "a UDP socket of IX cannot listen to groups on interfaces of Linux's: use a \
                        socket for each side";
            log::once(log::Once::Datagram, text);
            return Err(libc::ENODEV.into());
        }
    }
    if is_shared || is_idle && at == At::Any {
        // On Linux as well: there the interface's groups are Linux's, which reports them; or the
        // socket may still become Linux's.
        ops::use_linux(&mut core, fd)?;
        // SAFETY: the program's value, with its length.
        let done = unsafe {
            let len = value.len() as socklen_t;
            real::setsockopt(fd, level, name, value.as_ptr().cast::<c_void>(), len)
        };
        if done < 0 && is_shared {
            return Err(real::errno().into());
        }
    }
    let Some(socket) = core.sockets.get_mut(id) else { return Err(libc::EBADF.into()) };
    groups::apply(&mut socket.options.groups, request)?;
    let Some(port) = socket.datagrams().map(|udp| udp.port) else { return Ok(()) };
    if core.tell_groups(port) && core.has_begun() {
        let (core, told) = ops::wait_for_answer(core, Interest::Socket(id), move |core| {
            (!core.elastic_threads[0].group_ports.contains(&port)).then_some(Ok(()))
        });
        drop(core);
        told?;
    }
    Ok(())
}

/// `IP_MULTICAST_IF` and `IPV6_MULTICAST_IF`: Linux gets what is none of ours.
pub fn set_interface(id: Id, level: i32, value: &[u8]) -> Outcome<()> {
    let mut core = lock();
    let at = groups::interface(level, value)?;
    let ours = is_ours(&mut core, at);
    let Core { sockets, interfaces, .. } = &mut *core;
    let Some(socket) = sockets.get_mut(id) else { return Err(libc::EBADF.into()) };
    let is_v6 = level == IPPROTO_IPV6;
    let linuxs = match ours {
        None => {
            socket.options.of_mut(is_v6).sends_from = None;
            return if socket.under == Under::Used { Err(Instead::Linux) } else { Ok(()) };
        }
        Some(ours) => !ours,
    };
    if linuxs {
        socket.options.of_mut(is_v6).sends_from = None;
        socket.options.of_mut(is_v6).sends_by_linux = matches!(socket.kind, Kind::Idle { .. });
        return Err(Instead::Linux);
    }
    let from = match at {
        At::Address(address) => Some(address),
        At::Number(number) => interfaces.address_numbered(number, is_v6),
        At::Any => None,
    };
    let its = socket.options.of_mut(is_v6);
    (its.sends_from, its.sends_by_linux) = (from, false);
    Ok(())
}
