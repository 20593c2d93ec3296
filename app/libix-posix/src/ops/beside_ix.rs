//! A socket of Linux beside one of IX at an address that both have: through it the program hears
//! the host itself, and other interfaces.
use crate::{low_ports, real};
use libc::{c_int, socklen_t};
use std::os::fd::RawFd;

/// Prepares the socket before Linux binds it. The broker holds the port for IX by a socket of the
/// same user, with which this one shares it. And what comes in by the interface of IX is not this
/// one's: before the dataplane begins it is dropped, and the peer sends it again. A connection that
/// Linux had accepted would break when IX has the port.
///
/// An error is an errno: another program of IX has the port, with which Linux would let this one
/// share it, or a service of the same user that shares ports.
pub fn prepare(fd: RawFd, port: u16) -> Result<(), c_int> {
    let on: c_int = 1;
    let len = size_of_val(&on) as socklen_t;
    // SAFETY: a number of ours with its length. On an error the claim of the port is refused.
    unsafe {
        real::setsockopt(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, (&raw const on).cast(), len);
    }
    low_ports::keep_from_network(fd, port)
}
