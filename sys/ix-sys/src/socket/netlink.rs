//! Sockets on which Linux answers questions about its network (netlink(7)).
use super::set_option;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, bind, socket_with};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// A routing socket of the calling thread's network namespace that hears these groups (`RTMGRP_…`);
/// its errors come with the kernel's explanation.
pub fn open_routing(groups: u32) -> io::Result<OwnedFd> {
    // NETLINK_ROUTE is 0.
    explained(open(None)?, groups)
}

/// A socket for the families of generic netlink, which each have a name.
pub fn open_generic_netlink() -> io::Result<OwnedFd> {
    explained(open(Some(netlink::GENERIC))?, 0)
}

/// A socket that tells of the sockets of the calling thread's network namespace (sock_diag(7)).
pub fn open_sock_diag() -> io::Result<OwnedFd> {
    explained(open(Some(netlink::SOCK_DIAG))?, 0)
}

/// A socket that asks nftables, in the calling thread's network namespace. It is not bound.
pub(crate) fn open_netfilter() -> io::Result<OwnedFd> {
    open(Some(netlink::NETFILTER))
}

/// A socket that hears of each change of nftables' rules, in the calling thread's network
/// namespace.
pub(crate) fn watch_netfilter() -> io::Result<OwnedFd> {
    // NFNLGRP_NFTABLES of linux/netfilter/nfnetlink.h, as a bit.
    const NFTABLES: u32 = 1 << (7 - 1);
    explained(open(Some(netlink::NETFILTER))?, NFTABLES)
}

fn open(protocol: Option<Protocol>) -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
    Ok(socket_with(family, kind, SocketFlags::CLOEXEC, protocol)?)
}

fn explained(fd: OwnedFd, groups: u32) -> io::Result<OwnedFd> {
    const NETLINK_CAP_ACK: i32 = 10;
    const NETLINK_EXT_ACK: i32 = 11;
    bind(&fd, &SocketAddrNetlink::new(0, groups))?;
    for option in [NETLINK_EXT_ACK, NETLINK_CAP_ACK] {
        // A kernel without it gives no explanations, and that is all.
        let _ = set_option(fd.as_fd(), libc::SOL_NETLINK, option, 1);
    }
    Ok(fd)
}
