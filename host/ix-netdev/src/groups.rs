//! The groups that neighbours ask for IPv6 addresses (RFC 4291 section 2.7.1), and those that
//! sockets listen to, which a card and Linux have to hear for those to whom packets are passed.
use ix_sys::socket;
use ix_wire::membership::group_mac;
use ix_wire::{IpAddr, ipv6};
use std::io;
use std::os::fd::OwnedFd;

/// The sockets that keep a card, and Linux, in groups.
#[derive(Debug)]
pub(crate) struct Groups {
    _card: OwnedFd,
    /// None of IPv6: Linux has no IPv6 on the interface.
    _linux: Vec<OwnedFd>,
}

/// Groups of one socket of Linux's: fewer than `net.ipv4.igmp_max_memberships`, 20.
const GROUPS_A_SOCKET: usize = 16;

/// Lets the card take what neighbours send to find these addresses.
pub(crate) fn hear_neighbours(ifindex: u32, addresses: &[IpAddr]) -> io::Result<Option<Groups>> {
    hear(ifindex, addresses, &[])
}

/// Lets the card take what neighbours send to find these addresses, of which those of IPv4 are left
/// out, and what is sent to groups; broadcasts it always
/// takes. Linux is in these groups as well: questions of routers and
/// switches go to all hosts, so Linux gets and answers them.
pub(crate) fn hear(
    ifindex: u32,
    addresses: &[IpAddr],
    groups: &[IpAddr],
) -> io::Result<Option<Groups>> {
    let own = addresses.iter().filter(|address| address.is_v6());
    let own = own.map(|address| ipv6::solicited_node(*address));
    let groups = groups.iter().copied().filter(|group| group.is_multicast());
    let mut groups: Vec<IpAddr> = own.chain(groups).collect();
    groups.sort_unstable();
    groups.dedup();
    if groups.is_empty() {
        return Ok(None);
    }
    let macs: Vec<_> = groups.iter().map(|group| group_mac(*group)).collect();
    let v6: Vec<_> = groups.iter().filter(|group| group.is_v6()).map(|group| group.0).collect();
    let v4: Vec<_> = groups.iter().filter_map(|group| group.as_v4()).collect();
    let mut _linux = Vec::new();
    if !v6.is_empty() {
        _linux.extend(socket::join_groups(ifindex, &v6).ok());
    }
    for some in v4.chunks(GROUPS_A_SOCKET) {
        _linux.push(socket::join_groups_v4(ifindex, some)?);
    }
    Ok(Some(Groups { _card: socket::hear_groups(ifindex, &macs)?, _linux }))
}

/// Lets the card take all groups: for networks, each address of which has another one. Linux joins
/// none, so a switch that learns groups has to be told otherwise.
pub(crate) fn hear_all(ifindex: u32) -> io::Result<Groups> {
    Ok(Groups { _card: socket::hear_all_groups(ifindex)?, _linux: Vec::new() })
}
