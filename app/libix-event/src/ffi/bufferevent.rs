//! bufferevents.
use super::{at, put, span_us};
use crate::buffer::evbuffer;
use crate::bufferevent::{Callbacks, DataCallback, EventCallback, Watermark, bufferevent, told};
use crate::core::event_base;
use crate::util;
use core::ffi::{c_char, c_int, c_short, c_void};
use core::ptr::null_mut;
use libc::{addrinfo, sockaddr, timeval};

#[unsafe(no_mangle)]
unsafe extern "C" fn bufferevent_socket_new(
    base: *mut event_base,
    fd: c_int,
    options: c_int,
) -> *mut bufferevent {
    bufferevent::new(base, fd, options)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bufferevent_free(bev: *mut bufferevent) {
    if let Some(this) = at!(bev) {
        this.free();
        bufferevent::release(bev);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bufferevent_incref(bev: *mut bufferevent) {
    if !bev.is_null() {
        core::mem::forget(bufferevent::hold(bev));
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bufferevent_decref(bev: *mut bufferevent) -> c_int {
    if bev.is_null() {
        return 0;
    }
    let last = std::rc::Rc::strong_count(&bufferevent::hold(bev)) == 2;
    bufferevent::release(bev);
    last.into()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bufferevent_socket_connect(
    bev: *mut bufferevent,
    address: *const sockaddr,
    bytes: c_int,
) -> c_int {
    let Some(this) = at!(bev) else { return -1 };
    if address.is_null() {
        if this.fd() < 0 {
            return -1;
        }
        // The program has started to connect.
        this.begin_connecting(util::Connecting::Begun);
        return 0;
    }
    let mut fd = this.fd();
    let made = fd < 0;
    if made {
        let family = at!(address).map_or(0, |address| address.sa_family.into());
        // SAFETY: a plain call.
        fd = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0) };
        if fd < 0 {
            return -1;
        }
    }
    // SAFETY: an address of this many bytes, as libevent asks.
    match unsafe { util::connect(fd, address, bytes) } {
        Ok(outcome) => {
            if made {
                this.become_fd(fd);
            }
            this.begin_connecting(outcome);
            0
        }
        Err(error) => {
            if made {
                util::close(fd);
            }
            util::set_errno(error.raw_os_error().unwrap_or(libc::EINVAL));
            bufferevent::hold(bev).tell(told::ERROR);
            -1
        }
    }
}

/// Looks up the name at once: there is no evdns, and its argument must be null.
#[unsafe(no_mangle)]
unsafe extern "C" fn bufferevent_socket_connect_hostname(
    bev: *mut bufferevent,
    _: *mut c_void,
    family: c_int,
    name: *const c_char,
    port: c_int,
) -> c_int {
    let Some(this) = at!(bev) else { return -1 };
    let port = std::ffi::CString::new(port.to_string()).unwrap_or_default();
    // SAFETY: all zero is valid: hints without a demand.
    let mut hints: addrinfo = unsafe { core::mem::zeroed() };
    (hints.ai_family, hints.ai_socktype) = (family, libc::SOCK_STREAM);
    let mut found = null_mut();
    // SAFETY: C strings, hints, and a local for the result.
    let error = unsafe { libc::getaddrinfo(name, port.as_ptr(), &hints, &mut found) };
    this.dns_error.set(error);
    if error != 0 {
        bufferevent::hold(bev).tell(told::ERROR);
        return 0;
    }
    // SAFETY: a result has at least one address, and is freed once.
    unsafe {
        let first = &*found;
        let answer = bufferevent_socket_connect(bev, first.ai_addr, first.ai_addrlen as c_int);
        libc::freeaddrinfo(found);
        answer
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bufferevent_socket_get_dns_error(bev: *mut bufferevent) -> c_int {
    at!(bev).map_or(0, |bev| bev.dns_error.get())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bufferevent_setcb(
    bev: *mut bufferevent,
    read: Option<DataCallback>,
    write: Option<DataCallback>,
    event: Option<EventCallback>,
    arg: *mut c_void,
) {
    if let Some(bev) = at!(bev) {
        bev.callbacks.set(Callbacks { read, write, event, arg });
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bufferevent_getcb(
    bev: *mut bufferevent,
    read: *mut Option<DataCallback>,
    write: *mut Option<DataCallback>,
    event: *mut Option<EventCallback>,
    arg: *mut *mut c_void,
) {
    let Some(bev) = at!(bev) else { return };
    let callbacks = bev.callbacks.get();
    put!(read, callbacks.read);
    put!(write, callbacks.write);
    put!(event, callbacks.event);
    put!(arg, callbacks.arg);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bufferevent_enable(bev: *mut bufferevent, which: c_short) -> c_int {
    if at!(bev).is_some_and(|bev| bev.enable(which)) { 0 } else { -1 }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bufferevent_disable(bev: *mut bufferevent, which: c_short) -> c_int {
    at!(bev).map_or(-1, |bev| {
        bev.disable(which);
        0
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bufferevent_get_enabled(bev: *mut bufferevent) -> c_short {
    at!(bev).map_or(0, bufferevent::enabled)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bufferevent_getfd(bev: *mut bufferevent) -> c_int {
    at!(bev).map_or(-1, bufferevent::fd)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bufferevent_setfd(bev: *mut bufferevent, fd: c_int) -> c_int {
    at!(bev).map_or(-1, |bev| {
        bev.set_fd(fd);
        0
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bufferevent_get_base(bev: *mut bufferevent) -> *mut event_base {
    at!(bev).map_or(null_mut(), bufferevent::base)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bufferevent_base_set(base: *mut event_base, bev: *mut bufferevent) -> c_int {
    if at!(bev).is_some_and(|bev| bev.set_base(base)) { 0 } else { -1 }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bufferevent_priority_set(bev: *mut bufferevent, priority: c_int) -> c_int {
    let (Some(bev), Ok(priority)) = (at!(bev), u8::try_from(priority)) else { return -1 };
    bev.set_priority(priority);
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bufferevent_get_priority(bev: *const bufferevent) -> c_int {
    at!(bev).map_or(-1, |bev| bev.priority().into())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bufferevent_get_input(bev: *mut bufferevent) -> *mut evbuffer {
    at!(bev).map_or(null_mut(), |bev| (&raw const bev.input).cast_mut())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bufferevent_get_output(bev: *mut bufferevent) -> *mut evbuffer {
    at!(bev).map_or(null_mut(), |bev| (&raw const bev.output).cast_mut())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bufferevent_write(
    bev: *mut bufferevent,
    data: *const c_void,
    bytes: usize,
) -> c_int {
    let Some(bev) = at!(bev) else { return -1 };
    let data = super::buffer::bytes(data, bytes);
    bev.output.change(|chunks| (chunks.extend(data), Vec::new()));
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bufferevent_write_buffer(bev: *mut bufferevent, from: *mut evbuffer) -> c_int {
    let (Some(bev), Some(from)) = (at!(bev), at!(from)) else { return -1 };
    if super::buffer::move_all(from, &bev.output, usize::MAX).is_some() { 0 } else { -1 }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bufferevent_read(
    bev: *mut bufferevent,
    to: *mut c_void,
    bytes: usize,
) -> usize {
    at!(bev).map_or(0, |bev| super::buffer::take(&bev.input, to, bytes))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bufferevent_read_buffer(bev: *mut bufferevent, to: *mut evbuffer) -> c_int {
    let (Some(bev), Some(to)) = (at!(bev), at!(to)) else { return -1 };
    if super::buffer::move_all(&bev.input, to, usize::MAX).is_some() { 0 } else { -1 }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bufferevent_setwatermark(
    bev: *mut bufferevent,
    which: c_short,
    low: usize,
    high: usize,
) {
    if let Some(bev) = at!(bev) {
        bev.set_marks(which, Watermark { low, high });
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bufferevent_getwatermark(
    bev: *mut bufferevent,
    which: c_short,
    low: *mut usize,
    high: *mut usize,
) -> c_int {
    let Some(bev) = at!(bev) else { return -1 };
    let mark = match which {
        crate::event::what::READ => bev.marks[0].get(),
        crate::event::what::WRITE => bev.marks[1].get(),
        _ => return -1,
    };
    put!(low, mark.low);
    put!(high, mark.high);
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bufferevent_set_timeouts(
    bev: *mut bufferevent,
    read: *const timeval,
    write: *const timeval,
) -> c_int {
    at!(bev).map_or(-1, |bev| {
        bev.set_timeouts(span_us(read), span_us(write));
        0
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bufferevent_settimeout(bev: *mut bufferevent, read: c_int, write: c_int) {
    let us = |seconds: c_int| (seconds > 0).then(|| seconds as u64 * 1_000_000);
    if let Some(bev) = at!(bev) {
        bev.set_timeouts(us(read), us(write));
    }
}

/// Sockets flush by themselves, as libevent's do.
#[unsafe(no_mangle)]
unsafe extern "C" fn bufferevent_flush(_: *mut bufferevent, _: c_short, _: c_int) -> c_int {
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bufferevent_trigger(bev: *mut bufferevent, which: c_short, options: c_int) {
    if !bev.is_null() {
        bufferevent::hold(bev).trigger(which, options);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bufferevent_trigger_event(bev: *mut bufferevent, what: c_short, _: c_int) {
    if !bev.is_null() {
        bufferevent::hold(bev).tell(what);
    }
}

/// A bufferevent belongs to the thread of its base.
#[unsafe(no_mangle)]
extern "C" fn bufferevent_lock(_: *mut bufferevent) {}

#[unsafe(no_mangle)]
extern "C" fn bufferevent_unlock(_: *mut bufferevent) {}

#[unsafe(no_mangle)]
extern "C" fn bufferevent_get_underlying(_: *mut bufferevent) -> *mut bufferevent {
    null_mut()
}
