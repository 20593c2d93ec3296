//! Numbers of the names that calls use.
use crate::script::Value;

macro_rules! names {
    ($($name:ident)*) => { &[$((stringify!($name), libc::$name as i64),)*] };
}

const NAMES: &[(&str, i64)] = names! {
    SOCK_STREAM SOCK_DGRAM SOCK_NONBLOCK SOCK_CLOEXEC AF_INET AF_INET6 IPPROTO_TCP IPPROTO_UDP
    IPPROTO_IP IPPROTO_IPV6 IPV6_TCLASS IPV6_UNICAST_HOPS SOL_SOCKET SO_REUSEADDR SO_REUSEPORT SO_SNDBUF SO_RCVBUF SO_LINGER SO_KEEPALIVE
    SO_ERROR SO_DEBUG SO_MARK SO_RCVLOWAT SO_SNDBUFFORCE SO_RCVBUFFORCE SO_PRIORITY SO_BUSY_POLL
    TCP_NODELAY TCP_CORK TCP_MAXSEG TCP_KEEPIDLE TCP_KEEPINTVL TCP_KEEPCNT TCP_USER_TIMEOUT
    TCP_INFO TCP_CONGESTION TCP_QUICKACK TCP_LINGER2 TCP_SYNCNT TCP_DEFER_ACCEPT
    TCP_WINDOW_CLAMP IP_TOS IP_MTU_DISCOVER IP_PMTUDISC_DONT IP_PMTUDISC_DO
    IP_PMTUDISC_WANT IP_MTU IP_TTL IP_FREEBIND IP_RECVERR F_GETFL F_SETFL O_RDWR O_NONBLOCK
    MSG_PEEK MSG_DONTWAIT MSG_MORE MSG_NOSIGNAL MSG_WAITALL MSG_OOB MSG_TRUNC MSG_EOR SHUT_RD
    SHUT_WR SHUT_RDWR FIONREAD EPOLL_CTL_ADD EPOLL_CTL_MOD EPOLL_CTL_DEL EPOLLIN EPOLLOUT EPOLLERR
    EPOLLHUP EPOLLRDHUP EPOLLET EPOLLONESHOT EPOLLPRI EPOLLRDNORM EPOLLWRNORM POLLIN POLLOUT
    POLLERR POLLHUP POLLRDHUP POLLPRI POLLNVAL
};

const ERRORS: &[(&str, i64)] = names! {
    EAGAIN EWOULDBLOCK EINPROGRESS EALREADY EISCONN ENOTCONN ECONNREFUSED ECONNRESET ECONNABORTED
    ETIMEDOUT EHOSTUNREACH ENETUNREACH EPIPE EINVAL EBADF EADDRINUSE EADDRNOTAVAIL EOPNOTSUPP
    ENOPROTOOPT EDESTADDRREQ EMSGSIZE ENOBUFS ENOENT EEXIST EINTR EPROTO EFAULT ENOTSOCK
    EPROTONOSUPPORT EDOM EPERM EACCES ENOMEM
};

/// Linux's numbers of options that the `libc` crate lacks.
pub const TCP_NOTSENT_LOWAT: i32 = 25;
/// Of the control message, too.
pub const TCP_INQ: i32 = 36;

/// Linux's numbers of states, for assertions.
pub const STATES: &[(&str, i64)] = &[
    ("TCP_ESTABLISHED", 1),
    ("TCP_SYN_SENT", 2),
    ("TCP_SYN_RECV", 3),
    ("TCP_FIN_WAIT1", 4),
    ("TCP_FIN_WAIT2", 5),
    ("TCP_TIME_WAIT", 6),
    ("TCP_CLOSE", 7),
    ("TCP_CLOSE_WAIT", 8),
    ("TCP_LAST_ACK", 9),
    ("TCP_LISTEN", 10),
    ("TCP_CLOSING", 11),
];

fn look(table: &[(&str, i64)], name: &str) -> Option<i64> {
    table.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
}

/// The number of a name of a call's argument.
pub fn number_of(name: &str) -> Option<i64> {
    match name {
        "SOL_TCP" => Some(libc::IPPROTO_TCP.into()),
        "SOL_IP" => Some(libc::IPPROTO_IP.into()),
        "SIOCINQ" => Some(libc::FIONREAD as i64),
        "SIOCOUTQ" => Some(libc::TIOCOUTQ as i64),
        "SIOCOUTQNSD" => Some(0x894b),
        "TCP_NOTSENT_LOWAT" => Some(TCP_NOTSENT_LOWAT.into()),
        "TCP_INQ" | "TCP_CM_INQ" => Some(TCP_INQ.into()),
        _ => match name.strip_prefix("IPTOS_DSCP_CS").and_then(|n| n.parse::<i64>().ok()) {
            Some(class @ 0..=7) => Some(class << 5),
            _ => look(NAMES, name),
        },
    }
}

/// The number of an error's name.
pub fn error_of(name: &str) -> Option<i64> {
    look(ERRORS, name)
}

/// The name of an error's number.
pub fn error_name(number: i64) -> String {
    let known = ERRORS.iter().find(|(_, n)| *n == number);
    known.map_or_else(|| number.to_string(), |(name, _)| name.to_string())
}

/// An argument as a number.
pub fn number(value: &Value) -> Result<i64, String> {
    match value {
        Value::Number(n) => Ok(*n),
        Value::Name(name) => number_of(name).ok_or_else(|| format!("`{name}` is not understood")),
        Value::Any(all) => all.iter().try_fold(0, |sum, one| Ok(sum | number(one)?)),
        Value::List(list) if list.len() == 1 => number(&list[0]),
        other => Err(format!("a number was expected, not {other:?}")),
    }
}
