//! Datagrams with the times at which Linux received or sent them: software time stamps of the wall
//! clock (SO_TIMESTAMPING and SO_TIMESTAMPNS).
use crate::socket::set_option;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Room for a time stamp and what else the error queue holds.
const CONTROL_WORDS: usize = 32;

/// A received datagram.
#[derive(Clone, Copy, Debug)]
pub struct Came {
    /// Bytes that were stored.
    pub bytes: usize,
    /// Its sender.
    pub from: SocketAddrV4,
    /// When the device delivered it to Linux, ns.
    pub at_ns: u64,
}

/// Turns on time stamps of received and sent datagrams.
pub fn enable(socket: &UdpSocket) -> io::Result<()> {
    let flags = libc::SOF_TIMESTAMPING_RX_SOFTWARE
        | libc::SOF_TIMESTAMPING_TX_SOFTWARE
        | libc::SOF_TIMESTAMPING_SOFTWARE
        | libc::SOF_TIMESTAMPING_OPT_TSONLY;
    set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPING, flags.cast_signed())
}

/// Turns on time stamps of received packets, on a socket of any kind.
pub fn enable_receive(socket: BorrowedFd<'_>) -> io::Result<()> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)
}

/// Receives a packet of a socket of any kind, as much of it as fits. Returns its length, with the
/// bytes that did not fit, and its arrival time, ns; `None` if there is none or none arrived in
/// time.
pub fn receive_packet(
    socket: BorrowedFd<'_>,
    room: &mut [u8],
) -> io::Result<Option<(usize, Option<u64>)>> {
    let came = receive_message(socket, room, libc::MSG_TRUNC)?;
    Ok(came.map(|(bytes, _, at_ns)| (bytes, at_ns)))
}

/// Receives an IPv4 datagram, as much of it as fits; `None` if there is none and the socket does
/// not block, or if it has no time stamp.
pub fn receive(socket: &UdpSocket, room: &mut [u8]) -> io::Result<Option<Came>> {
    let Some((bytes, name, at_ns)) = receive_message(socket.as_fd(), room, 0)? else {
        return Ok(None);
    };
    let ip = Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr));
    let from = SocketAddrV4::new(ip, u16::from_be(name.sin_port));
    Ok(at_ns.map(|at_ns| Came { bytes, from, at_ns }))
}

/// When the oldest sent datagram that was not asked about yet was given to the device, ns; `None`
/// if there is none.
pub fn sent_ns(socket: &UdpSocket) -> io::Result<Option<u64>> {
    let came = receive_message(socket.as_fd(), &mut [], libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT)?;
    Ok(came.and_then(|(_, _, at_ns)| at_ns))
}

fn receive_message(
    socket: BorrowedFd<'_>,
    room: &mut [u8],
    flags: libc::c_int,
) -> io::Result<Option<(usize, libc::sockaddr_in, Option<u64>)>> {
    let mut control = [0u64; CONTROL_WORDS];
    // SAFETY: all-zero is a valid address and a valid message header.
    let (mut name, mut header): (libc::sockaddr_in, libc::msghdr) =
        unsafe { (core::mem::zeroed(), core::mem::zeroed()) };
    let mut vector = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
    header.msg_name = (&raw mut name).cast();
    header.msg_namelen = size_of_val(&name) as libc::socklen_t;
    (header.msg_iov, header.msg_iovlen) = (&raw mut vector, 1);
    header.msg_control = (&raw mut control).cast();
    header.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the header names locals and a slice, each as long as it says.
    let n = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut header, flags) };
    if n < 0 {
        let error = io::Error::last_os_error();
        return match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
            _ => Err(error),
        };
    }
    Ok(Some((n as usize, name, stamp_in(&header))))
}

/// The software time stamp in a message's control data.
fn stamp_in(header: &libc::msghdr) -> Option<u64> {
    // SAFETY: the kernel has filled what the header names, and it lives as long as the header.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !at.is_null() {
        // SAFETY: not null, so a whole header of the kernel's lies there, its data behind it: one
        // time, or three, of which the software's is the first.
        unsafe {
            let is_stamp =
                matches!((*at).cmsg_type, libc::SCM_TIMESTAMPING | libc::SCM_TIMESTAMPNS);
            if (*at).cmsg_level == libc::SOL_SOCKET && is_stamp {
                let time = libc::CMSG_DATA(at).cast::<libc::timespec>().read_unaligned();
                let ns = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
                return (ns > 0).then_some(ns);
            }
            at = libc::CMSG_NXTHDR(header, at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn now_ns() -> u64 {
        crate::clock::since_1970().as_nanos() as u64
    }

    #[test]
    fn datagrams_come_with_their_times() {
        let here = UdpSocket::bind("127.0.0.1:0").unwrap();
        let there = UdpSocket::bind("127.0.0.1:0").unwrap();
        enable(&here).unwrap();
        let before = now_ns();
        there.send_to(b"hello", here.local_addr().unwrap()).unwrap();
        // The time stamp may be missing at first: Linux switches time stamps on a little later.
        let mut room = [0; 3];
        let end = Instant::now() + Duration::from_secs(20);
        let came = loop {
            assert!(Instant::now() < end, "no time stamps");
            if let Some(came) = receive(&here, &mut room).unwrap() {
                break came;
            }
            there.send_to(b"hello", here.local_addr().unwrap()).unwrap();
        };
        assert_eq!((came.bytes, &room), (3, b"hel"));
        assert_eq!(
            came.from,
            match there.local_addr().unwrap() {
                std::net::SocketAddr::V4(at) => at,
                other => panic!("{other}"),
            }
        );
        assert!((before..=now_ns()).contains(&came.at_ns));
        here.set_nonblocking(true).unwrap();
        while receive(&here, &mut room).unwrap().is_some() {}
        here.send_to(b"back", came.from).unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        let left = loop {
            assert!(Instant::now() < end, "no time of leaving");
            if let Some(left) = sent_ns(&here).unwrap() {
                break left;
            }
        };
        assert!((came.at_ns..=now_ns()).contains(&left));
        assert_eq!(sent_ns(&here).unwrap(), None, "told once");
    }
}
