//! A socket of Linux beside one of IX at an address that both have: through it the program hears
//! the host itself, and other interfaces.
use crate::{low_ports, real};
use libc::{c_int, sock_filter, sock_fprog, socklen_t};
use std::net::SocketAddr;
use std::os::fd::RawFd;

/// Prepares the socket before Linux binds it to this address. The broker holds the port for IX by a
/// socket of the same user, with which this one shares it. And what comes in by the interface of IX
/// is not this one's: before the dataplane begins it is dropped, and the peer sends it again. A
/// connection that Linux had accepted would break when IX has the port.
///
/// An error is an errno: another program of IX has the port, with which Linux would let this one
/// share it, or a service of the same user that shares ports.
pub fn prepare(fd: RawFd, at: SocketAddr) -> Result<(), c_int> {
    let on: c_int = 1;
    let len = size_of_val(&on) as socklen_t;
    // SAFETY: a number of ours with its length. On an error the claim of the port is refused.
    unsafe {
        real::setsockopt(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, (&raw const on).cast(), len);
    }
    low_ports::keep_from_network(fd, at)
}

/// The Linux socket under a UDP socket gets no broadcasts, and multicast only of groups that it has
/// joined. Where IX has an address of its own, Linux is another host on the link, and what that
/// hears beside is not the program's.
pub fn hears_its_own(fd: RawFd, ipv6: bool) {
    /// Of linux/in6.h.
    const IPV6_MULTICAST_ALL: c_int = 29;
    /// `SKF_AD_OFF + SKF_AD_PKTTYPE`, and `PACKET_BROADCAST`.
    const KIND_OF_PACKET: u32 = (-0x1000i32 + 4) as u32;
    const BROADCAST: u32 = 1;
    let step = |code: u32, jt, jf, k| sock_filter { code: code as u16, jt, jf, k };
    let mut filter = [
        step(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, 0, KIND_OF_PACKET),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, BROADCAST),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
    ];
    let program = sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    let off: c_int = 0;
    set(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program);
    set(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, &off);
    if ipv6 {
        set(fd, libc::IPPROTO_IPV6, IPV6_MULTICAST_ALL, &off);
    }
}

/// Sets an option of the socket of Linux. Without it the program hears more.
fn set<T>(fd: RawFd, level: c_int, name: c_int, value: &T) {
    let (at, len) = (core::ptr::from_ref(value), size_of::<T>());
    // SAFETY: reads a value of the caller's, and what that points to.
    unsafe { libc::syscall(libc::SYS_setsockopt, fd, level, name, at, len) };
}
