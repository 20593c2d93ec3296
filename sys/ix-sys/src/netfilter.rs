//! Linux's packet filter: a socket that asks nftables, and the tables of the older iptables.
use crate::{check, socket};
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, OwnedFd};

/// A netlink socket that asks nftables, in the calling thread's network namespace.
pub fn open() -> io::Result<OwnedFd> {
    socket::open_netfilter()
}

/// A netlink socket that hears of each change of nftables' rules, in the calling thread's network
/// namespace. Needs root's rights over it.
pub fn watch() -> io::Result<OwnedFd> {
    socket::watch_netfilter()
}

/// What a table of iptables has (`struct ipt_getinfo`).
#[repr(C)]
struct TableInfo {
    name: [u8; 32],
    valid_hooks: u32,
    hook_entry: [u32; 5],
    underflow: [u32; 5],
    num_entries: u32,
    size: u32,
}

/// Number of rules in a table of iptables, or with `is_v6` of ip6tables. Needs root's rights over
/// the network namespace. Asks for a table that is not loaded load it: ask for those in
/// `/proc/net/ip_tables_names` (`ip6_tables_names`) only.
pub fn iptables_rules(table: &str, is_v6: bool) -> io::Result<u32> {
    // The same number and structure for both (linux/netfilter_ipv6/ip6_tables.h).
    const IPT_SO_GET_INFO: i32 = 64;
    let (family, level) = match is_v6 {
        false => (libc::AF_INET, libc::IPPROTO_IP),
        true => (libc::AF_INET6, libc::IPPROTO_IPV6),
    };
    let socket = socket::open(family, libc::SOCK_DGRAM)?;
    // SAFETY: all-zero bytes are a value.
    let mut info: TableInfo = unsafe { zeroed() };
    let name = table.as_bytes();
    let room = info.name.get_mut(..name.len()).filter(|_| name.len() < 32);
    room.ok_or(io::ErrorKind::InvalidInput)?.copy_from_slice(name);
    let mut len = size_of::<TableInfo>() as libc::socklen_t;
    let (to, len) = ((&raw mut info).cast(), &raw mut len);
    // SAFETY: `info` is of that length and writable, and any bytes make its numbers.
    let ret = unsafe { libc::getsockopt(socket.as_raw_fd(), level, IPT_SO_GET_INFO, to, len) };
    check(ret)?;
    // Each chain ends with its policy, and the table with an error entry.
    Ok(info.num_entries.saturating_sub(info.valid_hooks.count_ones() + 1))
}
