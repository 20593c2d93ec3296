//! Options that sockets of IX do not have. Programs get the errno of a kernel without them, rather
//! than a success that means nothing.
use crate::socket::Kind;
use libc::{IPPROTO_IP, IPPROTO_TCP, SOL_SOCKET};

/// Linux's numbers, which the `libc` crate lacks.
const SO_ZEROCOPY: i32 = 60;
const IP_LOCAL_PORT_RANGE: i32 = 51;
const TCP_MD5SIG_EXT: i32 = 32;
const TCP_AO_ADD_KEY: i32 = 38;
const TCP_AO_DEL_KEY: i32 = 39;
const TCP_AO_INFO: i32 = 40;

/// Level, number, and the name in the message.
const ALL: [(i32, i32, &str); 12] = [
    (SOL_SOCKET, SO_ZEROCOPY, "SO_ZEROCOPY"),
    (SOL_SOCKET, libc::SO_ATTACH_FILTER, "SO_ATTACH_FILTER"),
    (SOL_SOCKET, libc::SO_ATTACH_BPF, "SO_ATTACH_BPF"),
    (IPPROTO_IP, IP_LOCAL_PORT_RANGE, "IP_LOCAL_PORT_RANGE"),
    (IPPROTO_TCP, libc::TCP_LINGER2, "TCP_LINGER2"),
    (IPPROTO_TCP, libc::TCP_MD5SIG, "TCP_MD5SIG"),
    (IPPROTO_TCP, TCP_MD5SIG_EXT, "TCP_MD5SIG_EXT"),
    (IPPROTO_TCP, libc::TCP_REPAIR, "TCP_REPAIR"),
    (IPPROTO_TCP, libc::TCP_ULP, "TCP_ULP"),
    (IPPROTO_TCP, TCP_AO_ADD_KEY, "TCP_AO_ADD_KEY"),
    (IPPROTO_TCP, TCP_AO_DEL_KEY, "TCP_AO_DEL_KEY"),
    (IPPROTO_TCP, TCP_AO_INFO, "TCP_AO_INFO"),
];

/// Whether a socket of this kind lacks an option. Reports each option once.
pub fn refuses(kind: &Kind, level: i32, name: i32) -> bool {
    let found = ALL.iter().position(|(of, number, _)| (*of, *number) == (level, name));
    let Some(index) = found else { return false };
    let text = ALL[index].2;
    let has = matches!(kind, Kind::Linux);
    if !has {
        crate::log::unsupported(index, text);
    }
    !has
}
