//! Calls that make sockets and connections.
use super::direct::bare;
use super::{answer, fail};
use crate::ops::{self, Instead, Outcome};
use crate::{announce, cancel, fds, kept_numbers, low_ports, mem, own_calls, real, sockopt};
use libc::{AF_UNSPEC, c_int, c_long, c_void, sockaddr, socklen_t};
use std::net::SocketAddr;

/// Makes the call on Linux.
fn linux(fd: c_int, on_linux: impl FnOnce() -> c_int) -> c_int {
    answer(fd, Err::<isize, _>(Instead::Linux), || on_linux() as isize) as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if ops::may_be_ours(domain, kind, protocol) {
        return ops::socket(domain, kind).unwrap_or_else(|errno| fail(errno) as c_int);
    }
    kept_numbers::make_room(1, 0);
    // SAFETY: the C library's `socket` gets the program's own arguments.
    unsafe { real::socket(domain, kind, protocol) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the program's own arguments.
    let on_linux = || unsafe { low_ports::bind(fd, address, len) };
    if !fds::is_ours(fd) {
        return on_linux();
    }
    // If it is no Internet address, Linux returns the errno.
    // SAFETY: the program passes an address and its length, or null.
    let Ok(at) = (unsafe { mem::read_address(address, len) }) else {
        return linux(fd, on_linux);
    };
    let bound =
        answer(fd, ops::bind(fd, at, on_linux).map(|()| 0), || on_linux() as isize) as c_int;
    if at.port() != 0 {
        match bound {
            0 => {
                own_calls::bind_was_made();
                announce::binds(fd);
            }
            _ => is_refused(at),
        }
    }
    bound
}

/// The program was refused a port: says and notes why. Its errno stays.
#[cold]
fn is_refused(at: SocketAddr) {
    let errno = real::errno();
    if matches!(errno, libc::EACCES | libc::EADDRINUSE) {
        let told = announce::refused(at, errno);
        own_calls::bind_was_refused(errno, at.port(), told);
        real::set_errno(errno);
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    // SAFETY: the C library's `listen` gets the program's own arguments.
    let on_linux = || unsafe { real::listen(fd, backlog) };
    if !fds::is_ours(fd) {
        return on_linux();
    }
    let outcome = ops::listen(fd, backlog, on_linux).map(|()| 0);
    let listens = answer(fd, outcome, || on_linux() as isize) as c_int;
    if listens == 0 {
        announce::listens(fd);
    } else {
        let errno = real::errno();
        if let Ok((at, _)) = ops::own_name(fd) {
            real::set_errno(errno);
            is_refused(at);
        }
        real::set_errno(errno);
    }
    listens
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the C library's `connect` gets the program's own arguments.
    let on_linux = || unsafe { real::connect(fd, address, len) };
    if !fds::is_ours(fd) {
        return on_linux();
    }
    cancel::point(|| {
        // SAFETY: the program passes an address and its length, or null.
        if unsafe { mem::family(address, len) } == Some(AF_UNSPEC) {
            let outcome = ops::disconnect(fd).map(|()| 0);
            return answer(fd, outcome, || on_linux() as isize) as c_int;
        }
        // SAFETY: the program passes an address and its length, or null.
        let Ok(to) = (unsafe { mem::read_address(address, len) }) else {
            return linux(fd, on_linux);
        };
        // SAFETY: it was read just now.
        let flow_info = unsafe { mem::flow_info(address, len) };
        let outcome = ops::connect(fd, to, flow_info);
        announce::connects(fd, to, outcome);
        answer(fd, outcome.map(|()| 0), || on_linux() as isize) as c_int
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: `accept4` demands no more than this function does.
    unsafe { accept4(fd, address, len, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept4(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    // SAFETY: `accept_as` demands no more than this function does.
    unsafe { accept_as(fd, address, len, (flags, true)) }
}

/// `accept4` on a socket of IX, which does not wait.
///
/// # Safety
/// As `accept4`.
pub(super) unsafe fn accept_now(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    // SAFETY: `accept_as` demands no more than this function does.
    unsafe { accept_as(fd, address, len, (flags, false)) }
}

/// # Safety
/// As `accept4`.
unsafe fn accept_as(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
    (flags, waits): (c_int, bool),
) -> c_int {
    // SAFETY: the C library's `accept4` gets the program's own arguments.
    let on_linux =
        || kept_numbers::lowest(unsafe { real::accept4(fd, address, len, flags) }, flags);
    if !fds::is_ours(fd) {
        return on_linux();
    }
    // With the lock held: the C library's call is a cancellation point.
    // SAFETY: the program's own arguments, by the system call itself.
    let as_it_comes = || unsafe {
        real::own_call();
        let (address, len) = (address as usize as c_long, len as usize as c_long);
        let made = bare(libc::SYS_accept4, [fd.into(), address, len, flags.into(), 0, 0]) as c_int;
        if made < 0 {
            return fail(-made) as c_int;
        }
        made
    };
    cancel::point(|| {
        // `accept` holds the lock while it asks Linux; `lowest` takes it afterwards.
        match ops::accept(fd, (flags, waits), as_it_comes) {
            Ok((new, Some((peer, ipv6)))) => {
                // SAFETY: the program's own length, which waits for this call.
                let room = unsafe { mem::check_room(address, len) };
                if let Err(errno) = room
                    && !address.is_null()
                {
                    // SAFETY: `close` demands no more; the program does not know it yet.
                    unsafe { super::descriptors::close(new) };
                    return fail(errno) as c_int;
                }
                // SAFETY: the program has room for an address there, or passes null.
                unsafe { mem::write_address(peer, ipv6, address, len) };
                new
            }
            Ok((new, None)) => kept_numbers::lowest(new, flags),
            Err(Instead::Linux) => linux(fd, on_linux),
            Err(Instead::Made(new)) => new as c_int,
            Err(Instead::Errno(errno)) => fail(errno) as c_int,
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    // SAFETY: the C library's `shutdown` gets the program's own arguments.
    let on_linux = || unsafe { real::shutdown(fd, how) as isize };
    if !fds::is_ours(fd) {
        return on_linux() as c_int;
    }
    answer(fd, ops::shutdown(fd, how).map(|()| 0), on_linux) as c_int
}

/// # Safety
/// As `mem::write_address`, but for what `mem::check_room` refuses.
unsafe fn write_name(
    name: Outcome<(SocketAddr, bool)>,
    to: *mut sockaddr,
    len: *mut socklen_t,
) -> Outcome<isize> {
    let (at, ipv6) = name?;
    // SAFETY: the caller's promise.
    unsafe {
        mem::check_room(to, len)?;
        mem::write_address(at, ipv6, to, len);
    }
    Ok(0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockname(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: the C library's `getsockname` gets the program's own arguments.
    let on_linux = || unsafe { real::getsockname(fd, address, len) as isize };
    if !fds::is_ours(fd) {
        return on_linux() as c_int;
    }
    // SAFETY: the program has room for an address there.
    let outcome = unsafe { write_name(ops::own_name(fd), address, len) };
    answer(fd, outcome, on_linux) as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn getpeername(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: the C library's `getpeername` gets the program's own arguments.
    let on_linux = || unsafe { real::getpeername(fd, address, len) as isize };
    if !fds::is_ours(fd) {
        return on_linux() as c_int;
    }
    // SAFETY: the program has room for an address there.
    let outcome = unsafe { write_name(ops::peer_name(fd), address, len) };
    answer(fd, outcome, on_linux) as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    // SAFETY: the C library's `setsockopt` gets the program's own arguments.
    let on_linux = || unsafe { real::setsockopt(fd, level, name, value, len) };
    if !fds::is_ours(fd) {
        return on_linux();
    }
    let bytes = if len as c_int <= 0 || !mem::is_possible(value, len as usize) {
        // Linux returns the errno for it.
        &[]
    } else {
        // SAFETY: the program passes a value of this length.
        unsafe { core::slice::from_raw_parts(value.cast(), len as usize) }
    };
    let outcome = sockopt::set(fd, level, name, bytes).map(|()| 0);
    let forwarded = outcome == Err(Instead::Linux);
    let result = answer(fd, outcome, || on_linux() as isize) as c_int;
    if forwarded && result == 0 {
        sockopt::changed(fd, level, name);
    }
    result
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: the C library's `getsockopt` gets the program's own arguments.
    let on_linux = || unsafe { real::getsockopt(fd, level, name, value, len) };
    if !fds::is_ours(fd) {
        return on_linux();
    }
    let bytes = match sockopt::get(fd, level, name) {
        Ok(Some(bytes)) => bytes,
        Ok(None) | Err(Instead::Linux) => return linux(fd, on_linux),
        Err(Instead::Made(done)) => return done as c_int,
        Err(Instead::Errno(errno)) => return fail(errno) as c_int,
    };
    if !mem::is_possible(value, 1) || !mem::is_possible(len, size_of::<socklen_t>()) {
        return fail(libc::EFAULT) as c_int;
    }
    // SAFETY: the program's own length, which waits for this call.
    if unsafe { *len as c_int } < 0 {
        return fail(libc::EINVAL) as c_int;
    }
    // SAFETY: as above, and room of this length.
    unsafe {
        let n = (*len as usize).min(bytes.len());
        value.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), n);
        *len = n as socklen_t;
    }
    0
}
