//! The sockets of Linux that hear a port.
use crate::netlink::{Message, Netlink, attributes};
use crate::transport::Transport;
use ix_sys::Error;
use std::net::IpAddr;

/// linux/sock_diag.h, linux/inet_diag.h; `libc` lacks them.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `struct inet_diag_req_v2`: family, protocol, extensions, states, and the socket.
const REQUEST: usize = 56;
const REQUEST_STATES: usize = 4;
const REQUEST_PORT: usize = 8;
/// `struct inet_diag_msg`: its source address, interface and file number are there.
const SOURCE: usize = 8;
const INODE: usize = 68;
const ANSWER: usize = 72;
/// Of a socket of IPv6: whether it hears no IPv4.
const INET_DIAG_SKV6ONLY: u16 = 11;
/// `TCP_LISTEN`, as a bit.
const LISTENS: u32 = 1 << 10;
/// States of sockets of UDP, as bits: without a peer they are `TCP_CLOSE`, else `TCP_ESTABLISHED`.
const BOUND: u32 = 1 << 7 | 1 << 1;

/// The file numbers of sockets that hear a port of these addresses or of all of a family that they
/// have: those of TCP that listen, and those of UDP that are bound.
pub(crate) fn at(transport: Transport, port: u16, addresses: &[IpAddr]) -> Result<Vec<u64>, Error> {
    let all = sockets(transport, port)?;
    let there = all.iter().filter(|body| hears(body, port, addresses).unwrap_or(false));
    Ok(there.filter_map(|body| inode(body)).collect())
}

/// The file numbers of all sockets that hear any port.
pub(crate) fn all() -> Result<Vec<u64>, Error> {
    let mut all = Vec::new();
    for transport in Transport::ALL {
        all.extend(sockets(transport, 0)?.iter().filter_map(|body| inode(body)));
    }
    Ok(all)
}

/// What Linux says of each socket that hears a port of any address; 0: any port.
fn sockets(transport: Transport, port: u16) -> Result<Vec<Vec<u8>>, Error> {
    let (protocol, states) = match transport {
        Transport::Tcp => (libc::IPPROTO_TCP, LISTENS),
        Transport::Udp => (libc::IPPROTO_UDP, BOUND),
    };
    let mut asks = Netlink::open_diagnosis()?;
    let mut found = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut request = [0; REQUEST];
        (request[0], request[1]) = (family as u8, protocol as u8);
        request[REQUEST_STATES..][..4].copy_from_slice(&states.to_ne_bytes());
        request[REQUEST_PORT..][..2].copy_from_slice(&port.to_be_bytes());
        let message = Message::new(SOCK_DIAG_BY_FAMILY, libc::NLM_F_DUMP).put(&request);
        let what = || format!("cannot ask which sockets hear {transport} port {port}");
        found.extend(asks.request(message, what)?.into_iter().map(|answer| answer.body));
    }
    Ok(found)
}

fn inode(body: &[u8]) -> Option<u64> {
    let four = body.get(INODE..INODE + 4)?.try_into().ok()?;
    Some(u32::from_ne_bytes(four).into())
}

/// Whether a socket is at this port, at one of these addresses or at all of a family that they
/// have.
fn hears(body: &[u8], port: u16, addresses: &[IpAddr]) -> Option<bool> {
    let its = u16::from_be_bytes(body.get(4..6)?.try_into().ok()?);
    let source: [u8; 16] = body.get(SOURCE..SOURCE + 16)?.try_into().ok()?;
    let source = match i32::from(body[0]) {
        libc::AF_INET => IpAddr::from([source[0], source[1], source[2], source[3]]),
        _ => IpAddr::from(source).to_canonical(),
    };
    let said = || attributes(body.get(ANSWER..).unwrap_or_default());
    let v6_only = || said().any(|(kind, only)| kind == INET_DIAG_SKV6ONLY && only != [0]);
    let hears = match source {
        IpAddr::V4(own) if own.is_unspecified() => addresses.iter().any(IpAddr::is_ipv4),
        IpAddr::V4(_) => addresses.contains(&source),
        IpAddr::V6(own) if own.is_unspecified() => {
            addresses.iter().any(|shared| shared.is_ipv6() || !v6_only())
        }
        IpAddr::V6(_) => addresses.contains(&source),
    };
    Some(its == port && hears)
}
