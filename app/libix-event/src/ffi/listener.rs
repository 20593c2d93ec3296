//! Listeners.
use super::at;
use crate::core::event_base;
use crate::listener::{Accepted, Failed, evconnlistener, option};
use crate::util;
use core::ffi::{c_int, c_uint, c_void};
use core::ptr::null_mut;
use libc::{sockaddr, socklen_t};

/// Default backlog.
const BACKLOG: c_int = 128;

#[unsafe(no_mangle)]
unsafe extern "C" fn evconnlistener_new(
    base: *mut event_base,
    accepted: Option<Accepted>,
    arg: *mut c_void,
    flags: c_uint,
    backlog: c_int,
    fd: c_int,
) -> *mut evconnlistener {
    let backlog = if backlog < 0 { BACKLOG } else { backlog };
    // SAFETY: a plain call.
    if base.is_null() || (backlog > 0 && unsafe { libc::listen(fd, backlog) } < 0) {
        return null_mut();
    }
    evconnlistener::new(base, accepted, arg, flags, fd)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evconnlistener_new_bind(
    base: *mut event_base,
    accepted: Option<Accepted>,
    arg: *mut c_void,
    flags: c_uint,
    backlog: c_int,
    address: *const sockaddr,
    bytes: c_int,
) -> *mut evconnlistener {
    let Some(family) = at!(address).map(|address| address.sa_family) else { return null_mut() };
    if backlog == 0 {
        return null_mut();
    }
    let close_on_exec = if flags & option::CLOSE_ON_EXEC != 0 { libc::SOCK_CLOEXEC } else { 0 };
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | close_on_exec;
    // SAFETY: a plain call.
    let fd = unsafe { libc::socket(family.into(), kind, 0) };
    if fd < 0 {
        return null_mut();
    }
    let set = |level, name| util::set_option(fd, level, name, 1);
    set(libc::SOL_SOCKET, libc::SO_KEEPALIVE);
    for (flag, level, name) in [
        (option::REUSEABLE, libc::SOL_SOCKET, libc::SO_REUSEADDR),
        (option::REUSEABLE_PORT, libc::SOL_SOCKET, libc::SO_REUSEPORT),
        (option::DEFERRED, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT),
        (option::IPV6_ONLY, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
    ] {
        if flags & flag != 0 {
            set(level, name);
        }
    }
    // SAFETY: an address of this many bytes, as libevent asks.
    let bound = unsafe { libc::bind(fd, address, bytes as socklen_t) } == 0;
    let made = if bound {
        // SAFETY: this function's own arguments.
        unsafe { evconnlistener_new(base, accepted, arg, flags, backlog, fd) }
    } else {
        null_mut()
    };
    if made.is_null() {
        let errno = util::errno();
        util::close(fd);
        util::set_errno(errno);
    }
    made
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evconnlistener_free(listener: *mut evconnlistener) {
    if !listener.is_null() {
        evconnlistener::free(listener);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evconnlistener_enable(listener: *mut evconnlistener) -> c_int {
    if at!(listener).is_some_and(evconnlistener::enable) { 0 } else { -1 }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evconnlistener_disable(listener: *mut evconnlistener) -> c_int {
    at!(listener).map_or(-1, |listener| {
        listener.disable();
        0
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evconnlistener_get_base(listener: *mut evconnlistener) -> *mut event_base {
    at!(listener).map_or(null_mut(), evconnlistener::base)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evconnlistener_get_fd(listener: *mut evconnlistener) -> c_int {
    at!(listener).map_or(-1, evconnlistener::fd)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evconnlistener_set_cb(
    listener: *mut evconnlistener,
    accepted: Option<Accepted>,
    arg: *mut c_void,
) {
    if let Some(listener) = at!(listener) {
        listener.set_accepted(accepted, arg);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evconnlistener_set_error_cb(
    listener: *mut evconnlistener,
    failed: Option<Failed>,
) {
    if let Some(listener) = at!(listener) {
        listener.failed.set(failed);
    }
}
