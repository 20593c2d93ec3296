//! Packet sockets: whole frames of an interface (packet(7)).
use super::{open, set};
use crate::check;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A packet socket of an interface by its number: all frames that come in, and what is sent goes
/// out as it is.
pub fn open_packets(ifindex: u32) -> io::Result<OwnedFd> {
    // A socket that is not bound yet hears nothing.
    let fd = open(libc::AF_PACKET, libc::SOCK_RAW)?;
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as libc::sa_family_t,
        sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
        sll_ifindex: ifindex as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let (at, len) = ((&raw const address).cast(), size_of_val(&address) as libc::socklen_t);
    // SAFETY: `address` is `len` readable bytes for the length of the call.
    check(unsafe { libc::bind(fd.as_raw_fd(), at, len) })?;
    Ok(fd)
}

/// A packet socket that hears nothing. While it is open, the interface's card takes frames for
/// these Ethernet groups (PACKET_MR_MULTICAST).
pub fn hear_groups(ifindex: u32, groups: &[[u8; 6]]) -> io::Result<OwnedFd> {
    let fd = open(libc::AF_PACKET, libc::SOCK_RAW)?;
    for group in groups {
        hear(fd.as_fd(), ifindex, libc::PACKET_MR_MULTICAST, *group)?;
    }
    Ok(fd)
}

/// The same for all groups (PACKET_MR_ALLMULTI).
pub fn hear_all_groups(ifindex: u32) -> io::Result<OwnedFd> {
    let fd = open(libc::AF_PACKET, libc::SOCK_RAW)?;
    hear(fd.as_fd(), ifindex, libc::PACKET_MR_ALLMULTI, [0; 6])?;
    Ok(fd)
}

/// Adds what the interface's card takes for a packet socket.
fn hear(fd: BorrowedFd<'_>, ifindex: u32, kind: i32, group: [u8; 6]) -> io::Result<()> {
    let mut address = [0; 8];
    address[..6].copy_from_slice(&group);
    let request = libc::packet_mreq {
        mr_ifindex: ifindex as i32,
        mr_type: kind as u16,
        mr_alen: 6,
        mr_address: address,
    };
    // SAFETY: the option takes this type, in which the address is by value.
    unsafe { set(fd, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request) }
}
