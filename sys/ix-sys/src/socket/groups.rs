//! Groups of IP in which Linux is for us.
use super::open;
use rustix::net::sockopt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

/// A socket that hears nothing. While it is open, Linux is in these IPv6 groups on the interface:
/// it tells routers and switches so (RFC 3810), and its card takes their frames.
pub fn join_groups(ifindex: u32, groups: &[[u8; 16]]) -> io::Result<OwnedFd> {
    let fd = open(libc::AF_INET6, libc::SOCK_DGRAM)?;
    for group in groups {
        sockopt::set_ipv6_add_membership(&fd, &Ipv6Addr::from(*group), ifindex)?;
    }
    Ok(fd)
}

/// The same for groups of IPv4. A socket may be in few groups (`net.ipv4.igmp_max_memberships`).
pub fn join_groups_v4(ifindex: u32, groups: &[[u8; 4]]) -> io::Result<OwnedFd> {
    let (fd, any) = (open(libc::AF_INET, libc::SOCK_DGRAM)?, Ipv4Addr::UNSPECIFIED);
    for group in groups {
        let group = Ipv4Addr::from(*group);
        sockopt::set_ip_add_membership_with_ifindex(&fd, &group, &any, ifindex)?;
    }
    Ok(fd)
}
