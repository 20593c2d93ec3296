//! Setting the program's options on the Linux socket under a descriptor, once there is one.
use crate::options::{Options, TCP_INQ};
use crate::real;
use crate::socket::Socket;
use ix_abi::Congestion;
use libc::{
    IP_TOS, IP_TTL, IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, IPV6_TCLASS, IPV6_UNICAST_HOPS,
    IPV6_V6ONLY, SO_KEEPALIVE, SO_LINGER, SO_RCVBUF, SO_RCVLOWAT, SO_RCVTIMEO, SO_REUSEADDR,
    SO_REUSEPORT, SO_SNDBUF, SO_SNDTIMEO, SOL_SOCKET, TCP_CONGESTION, TCP_CORK, TCP_KEEPCNT,
    TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_NODELAY, TCP_USER_TIMEOUT, c_void, socklen_t,
};
use std::os::fd::RawFd;

/// Sets the congestion control of a Linux socket. Linux need not have it.
pub fn set_congestion(fd: RawFd, congestion: Congestion) {
    let (name, len) = (congestion.name().as_ptr().cast::<c_void>(), congestion.name().len());
    // SAFETY: a string with its length.
    unsafe { real::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, len as socklen_t) };
}

/// Sets all options that the program has set so far.
pub fn replay(socket: &Socket) {
    let (options, default) = (&socket.options, Options::default());
    let put = |level: i32, name: i32, value: &[i32]| {
        let (at, len) = (value.as_ptr().cast::<c_void>(), size_of_val(value) as socklen_t);
        // SAFETY: a slice with its length.
        unsafe { real::setsockopt(socket.number, level, name, at, len) };
    };
    let flag = |level, name, on: bool| {
        if on {
            put(level, name, &[1]);
        }
    };
    flag(SOL_SOCKET, SO_REUSEADDR, options.reuse_address);
    flag(SOL_SOCKET, SO_REUSEPORT, options.reuse_port);
    flag(SOL_SOCKET, SO_KEEPALIVE, options.keepalive);
    if let Some(time) = options.linger {
        put(SOL_SOCKET, SO_LINGER, &[1, time.as_secs().min(i32::MAX as u64) as i32]);
    }
    for (name, bytes, default) in [
        (SO_SNDBUF, options.send_buffer, default.send_buffer),
        (SO_RCVBUF, options.receive_buffer, default.receive_buffer),
    ] {
        if bytes != default {
            // Linux doubles the value.
            put(SOL_SOCKET, name, &[(bytes / 2) as i32]);
        }
    }
    for (name, time) in
        [(SO_RCVTIMEO, options.receive_timeout), (SO_SNDTIMEO, options.send_timeout)]
    {
        if let Some(time) = time {
            let (seconds, rest) = (time.as_secs() as i64, i64::from(time.subsec_micros()));
            let halves = |value: i64| [value as i32, (value >> 32) as i32];
            put(SOL_SOCKET, name, &[halves(seconds), halves(rest)].concat());
        }
    }
    if options.receive_low != default.receive_low {
        put(SOL_SOCKET, SO_RCVLOWAT, &[options.receive_low as i32]);
    }
    if socket.is_tcp() {
        flag(IPPROTO_TCP, TCP_NODELAY, options.no_delay);
        flag(IPPROTO_TCP, TCP_CORK, options.cork);
        flag(IPPROTO_TCP, TCP_INQ, options.tells_unread);
        for (name, value, default) in [
            (TCP_KEEPIDLE, options.keep_idle_s, default.keep_idle_s),
            (TCP_KEEPINTVL, options.keep_interval_s, default.keep_interval_s),
            (TCP_KEEPCNT, options.keep_count, default.keep_count),
            (TCP_USER_TIMEOUT, options.user_timeout_ms, default.user_timeout_ms),
        ] {
            if value != default {
                put(IPPROTO_TCP, name, &[value as i32]);
            }
        }
        if let Some(congestion) = options.congestion {
            set_congestion(socket.number, congestion);
        }
    }
    flag(IPPROTO_IPV6, IPV6_V6ONLY, socket.ipv6 && options.v6_only);
    if options.v4.fields != default.v4.fields {
        put(IPPROTO_IP, IP_TTL, &[options.v4.fields.ttl.into()]);
        put(IPPROTO_IP, IP_TOS, &[options.v4.fields.tos.into()]);
    }
    if socket.ipv6 && options.v6.fields != default.v6.fields {
        put(IPPROTO_IPV6, IPV6_UNICAST_HOPS, &[options.v6.fields.ttl.into()]);
        put(IPPROTO_IPV6, IPV6_TCLASS, &[options.v6.fields.tos.into()]);
    }
    // SAFETY: no pointers.
    unsafe {
        if socket.nonblocking {
            real::fcntl(socket.number, libc::F_SETFL, libc::O_NONBLOCK as usize);
        }
        if !socket.close_on_exec {
            real::fcntl(socket.number, libc::F_SETFD, 0);
        }
    }
}
