//! evutil: helpers that programs use besides events.
use super::{at, put};
use crate::util::{add_flag, set_option};
use core::ffi::{CStr, c_char, c_int, c_void};
use libc::{addrinfo, sockaddr, sockaddr_in, sockaddr_in6, socklen_t, timeval};

#[unsafe(no_mangle)]
extern "C" fn evutil_make_socket_nonblocking(fd: c_int) -> c_int {
    add_flag(fd, libc::F_GETFL, libc::F_SETFL, libc::O_NONBLOCK)
}

#[unsafe(no_mangle)]
extern "C" fn evutil_make_socket_closeonexec(fd: c_int) -> c_int {
    add_flag(fd, libc::F_GETFD, libc::F_SETFD, libc::FD_CLOEXEC)
}

#[unsafe(no_mangle)]
extern "C" fn evutil_make_listen_socket_reuseable(fd: c_int) -> c_int {
    set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)
}

#[unsafe(no_mangle)]
extern "C" fn evutil_make_listen_socket_reuseable_port(fd: c_int) -> c_int {
    set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)
}

#[unsafe(no_mangle)]
extern "C" fn evutil_make_tcp_listen_socket_deferred(fd: c_int) -> c_int {
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, 1)
}

#[unsafe(no_mangle)]
extern "C" fn evutil_make_listen_socket_ipv6only(fd: c_int) -> c_int {
    set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)
}

#[unsafe(no_mangle)]
extern "C" fn evutil_closesocket(fd: c_int) -> c_int {
    // SAFETY: a plain call.
    unsafe { libc::close(fd) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evutil_socketpair(
    family: c_int,
    kind: c_int,
    protocol: c_int,
    pair: *mut c_int,
) -> c_int {
    // SAFETY: room for two, as libevent asks.
    unsafe { libc::socketpair(family, kind, protocol, pair) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evutil_inet_ntop(
    family: c_int,
    from: *const c_void,
    to: *mut c_char,
    bytes: usize,
) -> *const c_char {
    // SAFETY: this function's own arguments.
    unsafe { libc_inet_ntop(family, from, to, bytes as socklen_t) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evutil_inet_pton(
    family: c_int,
    from: *const c_char,
    to: *mut c_void,
) -> c_int {
    // SAFETY: this function's own arguments.
    unsafe { libc_inet_pton(family, from, to) }
}

unsafe extern "C" {
    #[link_name = "inet_ntop"]
    fn libc_inet_ntop(
        family: c_int,
        from: *const c_void,
        to: *mut c_char,
        bytes: socklen_t,
    ) -> *const c_char;
    #[link_name = "inet_pton"]
    fn libc_inet_pton(family: c_int, from: *const c_char, to: *mut c_void) -> c_int;
}

/// `1.2.3.4:5`, `[::1]:5`, or either without a port.
#[unsafe(no_mangle)]
unsafe extern "C" fn evutil_parse_sockaddr_port(
    text: *const c_char,
    to: *mut sockaddr,
    bytes: *mut c_int,
) -> c_int {
    if text.is_null() || to.is_null() || bytes.is_null() {
        return -1;
    }
    // SAFETY: a C string, as libevent asks.
    let Ok(text) = unsafe { CStr::from_ptr(text) }.to_str() else { return -1 };
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    let at: Option<std::net::SocketAddr> = text
        .parse()
        .ok()
        // libevent takes port 0 for an error.
        .filter(|at: &std::net::SocketAddr| at.port() != 0)
        .or_else(|| bare.parse::<std::net::IpAddr>().ok().map(|ip| (ip, 0).into()));
    // SAFETY: all zero is a valid address; there is room for `bytes` bytes.
    unsafe {
        match at {
            Some(std::net::SocketAddr::V4(at)) => {
                let mut v4: sockaddr_in = core::mem::zeroed();
                v4.sin_family = libc::AF_INET as u16;
                v4.sin_port = at.port().to_be();
                v4.sin_addr.s_addr = u32::from_ne_bytes(at.ip().octets());
                write(&v4, to, bytes)
            }
            Some(std::net::SocketAddr::V6(at)) => {
                let mut v6: sockaddr_in6 = core::mem::zeroed();
                v6.sin6_family = libc::AF_INET6 as u16;
                v6.sin6_port = at.port().to_be();
                v6.sin6_addr.s6_addr = at.ip().octets();
                write(&v6, to, bytes)
            }
            None => -1,
        }
    }
}

/// Writes an address, if there is room for it.
///
/// # Safety
/// `to` has room for `bytes` bytes.
unsafe fn write<T>(from: &T, to: *mut sockaddr, bytes: *mut c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if (*bytes).max(0) as usize >= size_of::<T>() {
            to.cast::<u8>().copy_from_nonoverlapping((from as *const T).cast(), size_of::<T>());
            *bytes = size_of::<T>() as c_int;
            return 0;
        }
    }
    -1
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evutil_gettimeofday(time: *mut timeval, _: *mut c_void) -> c_int {
    put!(time, super::timeval_of(super::base::wall_us()));
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evutil_ascii_strcasecmp(one: *const c_char, other: *const c_char) -> c_int {
    // SAFETY: C strings, as libevent asks.
    unsafe { libc::strcasecmp(one, other) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evutil_ascii_strncasecmp(
    one: *const c_char,
    other: *const c_char,
    most: usize,
) -> c_int {
    // SAFETY: C strings, as libevent asks.
    unsafe { libc::strncasecmp(one, other, most) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evutil_strtoll(
    text: *const c_char,
    end: *mut *mut c_char,
    base: c_int,
) -> i64 {
    // SAFETY: this function's own arguments.
    unsafe { libc::strtoll(text, end, base) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evutil_vsnprintf(
    to: *mut c_char,
    bytes: usize,
    format: *const c_char,
    args: *mut crate::variadic::VaList,
) -> c_int {
    // SAFETY: this function's own arguments.
    unsafe { crate::variadic::vsnprintf(to, bytes, format, args) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evutil_getaddrinfo(
    name: *const c_char,
    service: *const c_char,
    hints: *const addrinfo,
    found: *mut *mut addrinfo,
) -> c_int {
    // SAFETY: this function's own arguments.
    unsafe { libc::getaddrinfo(name, service, hints, found) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evutil_freeaddrinfo(found: *mut addrinfo) {
    if !found.is_null() {
        // SAFETY: of `evutil_getaddrinfo`.
        unsafe { libc::freeaddrinfo(found) };
    }
}

#[unsafe(no_mangle)]
extern "C" fn evutil_gai_strerror(error: c_int) -> *const c_char {
    // SAFETY: returns constants.
    unsafe { libc::gai_strerror(error) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evutil_sockaddr_cmp(
    one: *const sockaddr,
    other: *const sockaddr,
    with_port: c_int,
) -> c_int {
    let (Some(a), Some(b)) = (at!(one), at!(other)) else { return -1 };
    if a.sa_family != b.sa_family {
        return i32::from(a.sa_family) - i32::from(b.sa_family);
    }
    let order = match a.sa_family.into() {
        libc::AF_INET => {
            let (Some(a), Some(b)) =
                (at!(one.cast::<sockaddr_in>()), at!(other.cast::<sockaddr_in>()))
            else {
                return -1;
            };
            let key =
                |s: &sockaddr_in| (u32::from_be(s.sin_addr.s_addr), port(s.sin_port, with_port));
            key(a).cmp(&key(b))
        }
        libc::AF_INET6 => {
            let (Some(a), Some(b)) =
                (at!(one.cast::<sockaddr_in6>()), at!(other.cast::<sockaddr_in6>()))
            else {
                return -1;
            };
            let key = |s: &sockaddr_in6| (s.sin6_addr.s6_addr, port(s.sin6_port, with_port));
            key(a).cmp(&key(b))
        }
        _ => return 1,
    };
    order as c_int
}

fn port(port: u16, wanted: c_int) -> u16 {
    if wanted != 0 { u16::from_be(port) } else { 0 }
}

#[unsafe(no_mangle)]
extern "C" fn evutil_secure_rng_init() -> c_int {
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evutil_secure_rng_get_bytes(to: *mut c_void, bytes: usize) {
    let mut done = 0;
    while done < bytes {
        // SAFETY: room for this many bytes, as libevent asks.
        let n = unsafe { libc::getrandom(to.cast::<u8>().add(done).cast(), bytes - done, 0) };
        done += n.max(0) as usize;
    }
}

#[unsafe(no_mangle)]
extern "C" fn evutil_secure_rng_add_bytes(_: *const c_char, _: usize) {}
