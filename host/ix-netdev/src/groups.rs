//! The groups that neighbours ask for IPv6 addresses (RFC 4291 section 2.7.1), and those that
//! sockets listen to, which a card and Linux have to hear for those to whom packets are passed.
use ix_sys::socket;
use ix_wire::membership::group_mac;
use ix_wire::{IpAddr, ipv6};
use std::fs;
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

/// The groups that others than IX listen to on the interface of this number, by sockets of Linux in
/// the calling thread's network namespace, in order. `own`: those that IX has a socket in.
pub(crate) fn of_linux(ifindex: u32, own: &[IpAddr]) -> Vec<IpAddr> {
    let read = |name| fs::read_to_string(format!("/proc/thread-self/net/{name}"));
    let v4 = listened_v4(&read("igmp").unwrap_or_default(), ifindex);
    let v6 = listened_v6(&read("igmp6").unwrap_or_default(), ifindex);
    let all = v4.into_iter().chain(v6);
    // Linux counts sockets.
    let others = all.filter(|(group, users)| *users > u32::from(own.contains(group)));
    let mut groups: Vec<IpAddr> = others.map(|(group, _)| group).collect();
    groups.sort_unstable();
    groups
}

/// Groups and numbers of their users in `/proc/net/igmp`: a line for an interface begins with its
/// number; those of its groups follow, indented.
fn listened_v4(text: &str, ifindex: u32) -> Vec<(IpAddr, u32)> {
    let mut is_it = false;
    let group = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        if !line.starts_with(['\t', ' ']) {
            is_it = words.next().and_then(|index| index.parse().ok()) == Some(ifindex);
            return None;
        }
        let group = u32::from_str_radix(words.next()?, 16).ok()?.to_ne_bytes();
        let users = words.next()?.parse().ok()?;
        is_it.then_some((IpAddr::v4(group), users))
    };
    text.lines().filter_map(group).collect()
}

/// The same in `/proc/net/igmp6`: a line for each group, with the interface's number.
fn listened_v6(text: &str, ifindex: u32) -> Vec<(IpAddr, u32)> {
    let group = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let index: u32 = words.next()?.parse().ok()?;
        let group = u128::from_str_radix(words.nth(1)?, 16).ok()?.to_be_bytes();
        let users = words.next()?.parse().ok()?;
        (index == ifindex).then_some((IpAddr(group), users))
    };
    text.lines().filter_map(group).collect()
}

/// Lets the card take all groups: for networks, each address of which has another one. Linux joins
/// none, so a switch that learns groups has to be told otherwise.
pub(crate) fn hear_all(ifindex: u32) -> io::Result<Groups> {
    Ok(Groups { _card: socket::hear_all_groups(ifindex)?, _linux: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linux_says_who_listens_where() {
        let v4 = "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n\
             1\tlo        :     1      V3\n\
             \t\t\t\t010000E0     1 0:00000000\t\t0\n\
             4\teth0      :     2      V3\n\
             \t\t\t\tFB0000E0     3 0:00000000\t\t0\n\
             \t\t\t\t010000E0     1 0:00000000\t\t0\n";
        let [dns, all] = [[224, 0, 0, 251], [224, 0, 0, 1]].map(IpAddr::v4);
        assert_eq!(listened_v4(v4, 4), [(dns, 3), (all, 1)]);
        assert_eq!((listened_v4(v4, 1), listened_v4(v4, 2)), (vec![(all, 1)], vec![]));
        let v6 = "1    lo              ff020000000000000000000000000001     1 0000000C 0\n\
             4    eth0            ff0200000000000000000000000000fb     2 00000004 0\n";
        let dns = IpAddr([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xfb]);
        assert_eq!(listened_v6(v6, 4), [(dns, 2)]);
        assert_eq!(listened_v6("", 4), []);
    }
}
