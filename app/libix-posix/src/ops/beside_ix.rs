//! A socket of Linux beside one of IX at an address that both have: through it the program hears
//! the host itself, and other interfaces.
use crate::{low_ports, real};
use libc::{c_int, sock_filter, sock_fprog, socklen_t};
use std::net::SocketAddr;
use std::os::fd::RawFd;

/// Has Linux bind the socket to this address, or has it listen there, which `on_linux` does. A
/// connection that comes in by the interface of IX is not this one's: before the dataplane begins
/// its SYN is dropped, and the peer sends it again. One that Linux had accepted would break when IX
/// has the port. A datagram waits here for the program, as on Linux.
///
/// `reuse_port`: the program's own option. With that alone Linux says whether the port is free, as
/// it would without IX, and of two programs that want it one has it. Where this run holds the port
/// already, which Linux does not know, the broker lets the socket share it. Afterwards the broker
/// may hold the port by a socket of the same user, with which this one shares it.
///
/// An error is an errno: that of Linux, or another program of IX has the port, or a service of the
/// same user that shares ports.
pub fn decides(
    fd: RawFd,
    (at, reuse_port): (SocketAddr, bool),
    on_linux: impl Fn() -> i32,
) -> Result<(), c_int> {
    // Once more if the broker has come to hold the port after it was asked.
    for _ in 0..2 {
        set_shares(fd, reuse_port);
        low_ports::keep_from_network(fd, at)?;
        let shares = reuse_port || has_shares(fd);
        if on_linux() >= 0 {
            set_shares(fd, true);
            return Ok(());
        }
        if shares || real::errno() != libc::EADDRINUSE {
            break;
        }
    }
    Err(real::errno())
}

/// `SO_REUSEPORT`. On an error the claim of the port is refused.
fn set_shares(fd: RawFd, shares: bool) {
    set(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, &c_int::from(shares));
}

/// Whether the broker has set the option.
fn has_shares(fd: RawFd) -> bool {
    let mut shares: c_int = 0;
    let mut len = size_of_val(&shares) as socklen_t;
    let (to, bytes) = (&raw mut shares, &raw mut len);
    let (level, name) = (libc::SOL_SOCKET, libc::SO_REUSEPORT);
    // SAFETY: fills a local, whose length it gets.
    unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, to, bytes) };
    shares != 0
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

/// Sets an option of the socket of Linux. Without those of a UDP socket the program hears more.
fn set<T>(fd: RawFd, level: c_int, name: c_int, value: &T) {
    let (at, len) = (core::ptr::from_ref(value), size_of::<T>());
    // SAFETY: reads a value of the caller's, and what that points to.
    unsafe { libc::syscall(libc::SYS_setsockopt, fd, level, name, at, len) };
}
