//! The groups that neighbours ask for IPv6 addresses (RFC 4291 section 2.7.1), which a card and
//! Linux have to hear for those to whom packets are passed.
use ix_sys::socket;
use ix_wire::{IpAddr, ipv6};
use std::io;
use std::os::fd::OwnedFd;

/// The sockets that keep a card, and Linux, in groups.
#[derive(Debug)]
pub(crate) struct Groups {
    _card: OwnedFd,
    /// `None`: Linux has no IPv6 on the interface.
    _linux: Option<OwnedFd>,
}

/// Lets the card take what neighbours send to find these addresses; those of IPv4 are left out.
/// Linux is in these groups as well: questions of routers and switches go to all hosts, so Linux
/// gets and answers them.
pub(crate) fn hear_neighbours(ifindex: u32, addresses: &[IpAddr]) -> io::Result<Option<Groups>> {
    let own = addresses.iter().filter(|address| address.is_v6());
    let mut groups: Vec<IpAddr> = own.map(|address| ipv6::solicited_node(*address)).collect();
    groups.sort_unstable();
    groups.dedup();
    if groups.is_empty() {
        return Ok(None);
    }
    let macs: Vec<_> = groups.iter().map(|group| ipv6::group_mac(*group)).collect();
    let groups: Vec<_> = groups.iter().map(|group| group.0).collect();
    let _linux = socket::join_groups(ifindex, &groups).ok();
    Ok(Some(Groups { _card: socket::hear_groups(ifindex, &macs)?, _linux }))
}

/// Lets the card take all groups: for networks, each address of which has another one. Linux joins
/// none, so a switch that learns groups has to be told otherwise.
pub(crate) fn hear_all(ifindex: u32) -> io::Result<Groups> {
    Ok(Groups { _card: socket::hear_all_groups(ifindex)?, _linux: None })
}
