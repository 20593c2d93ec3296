//! Entries of a socket's error queue, which a program reads with `MSG_ERRQUEUE`.
use libix::raw::Said;
use std::net::SocketAddr;

/// Most entries of one socket. Each quotes no more bytes than a packet has.
pub const ERRORS_MAX: usize = 64;

/// Why a packet did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorEntry {
    /// The destination.
    pub to: SocketAddr,
    /// The error.
    pub errno: i32,
    /// The ICMP message; `None` if the datagram was already too long for this machine's device.
    pub said: Option<Said>,
    /// With `EMSGSIZE` the MTU of the path, bytes; with `EPROTO` the octet at fault.
    pub info: u16,
}
