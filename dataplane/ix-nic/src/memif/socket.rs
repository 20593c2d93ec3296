//! The control socket: sequenced packets with descriptors, never blocking.
use super::message::MESSAGE_BYTES;
use crate::sys::{check, socket};
use std::io;
use std::mem::{offset_of, size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Descriptors that a message may bring; the protocol has one at most.
const FDS_MAX: usize = 4;

/// A control buffer, aligned for its header.
#[repr(C, align(8))]
struct ControlBuffer([u8; 64]);

/// What came in.
pub enum Received {
    /// Nothing now.
    Nothing,
    /// The peer is gone.
    Closed,
    /// Some bytes, at most one more than a message has, and descriptors.
    Packet(Vec<u8>, Vec<OwnedFd>),
}

/// Listens at `path`. An existing file is an error ([`io::ErrorKind::AddrInUse`]).
pub fn listen(path: &str) -> io::Result<OwnedFd> {
    let fd = socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK)?;
    let (address, len) = address(path)?;
    // SAFETY: `address` is `len` readable bytes for the length of the call.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) })?;
    // SAFETY: no memory is passed.
    check(unsafe { libc::listen(fd.as_raw_fd(), 16) })?;
    Ok(fd)
}

/// Connects to whoever listens at `path`.
pub fn connect(path: &str) -> io::Result<OwnedFd> {
    let fd = socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK)?;
    let (address, len) = address(path)?;
    // SAFETY: `address` is `len` readable bytes for the length of the call.
    check(unsafe { libc::connect(fd.as_raw_fd(), (&raw const address).cast(), len) })?;
    Ok(fd)
}

/// The next who wants to connect.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let none = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: no address is asked for.
    let fd = check(unsafe { libc::accept4(listener.as_raw_fd(), none.0, none.1, flags) })?;
    // SAFETY: a new descriptor that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sends a message, with at most one descriptor.
pub fn send(
    to: BorrowedFd<'_>,
    message: &[u8; MESSAGE_BYTES],
    fd: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut control = ControlBuffer([0; 64]);
    let mut part =
        libc::iovec { iov_base: message.as_ptr().cast_mut().cast(), iov_len: MESSAGE_BYTES };
    // SAFETY: all-zero bytes are a valid message header.
    let mut header: libc::msghdr = unsafe { zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
    if let Some(fd) = fd {
        header.msg_control = (&raw mut control).cast();
        // SAFETY: computes sizes only.
        let (space, len) = unsafe { (libc::CMSG_SPACE(4), libc::CMSG_LEN(4)) };
        header.msg_controllen = space as usize;
        // SAFETY: the control buffer has room for one header and one descriptor.
        unsafe {
            let first = libc::CMSG_FIRSTHDR(&raw const header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = len as usize;
            libc::CMSG_DATA(first).cast::<i32>().write_unaligned(fd.as_raw_fd());
        }
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the header points to buffers that live across the call.
    check(unsafe { libc::sendmsg(to.as_raw_fd(), &raw const header, flags) }).map(drop)
}

/// Takes the next message.
pub fn receive(from: BorrowedFd<'_>) -> io::Result<Received> {
    let mut bytes = vec![0u8; MESSAGE_BYTES + 1];
    let mut control = ControlBuffer([0; 64]);
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all-zero bytes are a valid message header.
    let mut header: libc::msghdr = unsafe { zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
    header.msg_control = (&raw mut control).cast();
    // SAFETY: computes a size only.
    header.msg_controllen = unsafe { libc::CMSG_SPACE(4 * FDS_MAX as u32) } as usize;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header points to buffers that live across the call.
    let ret = check(unsafe { libc::recvmsg(from.as_raw_fd(), &raw mut header, flags) });
    let n = match ret {
        Ok(n) => n as usize,
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(Received::Nothing),
        Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return Ok(Received::Closed),
        Err(e) => return Err(e),
    };
    // SAFETY: the kernel filled the header and the control buffer just now.
    let fds = unsafe { descriptors(&header) };
    if n == 0 && fds.is_empty() {
        return Ok(Received::Closed);
    }
    bytes.truncate(n);
    Ok(Received::Packet(bytes, fds))
}

/// The descriptors in a received control buffer.
///
/// # Safety
/// `header` was filled by `recvmsg`, and its descriptors belong to nobody yet.
unsafe fn descriptors(header: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: the caller's promise; the macros walk within `msg_controllen`.
    unsafe {
        let mut entry = libc::CMSG_FIRSTHDR(header);
        while let Some(cmsg) = entry.as_ref() {
            if (cmsg.cmsg_level, cmsg.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let bytes = cmsg.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                let data = libc::CMSG_DATA(entry).cast::<i32>();
                for i in 0..bytes / size_of::<i32>() {
                    fds.push(OwnedFd::from_raw_fd(data.add(i).read_unaligned()));
                }
            }
            entry = libc::CMSG_NXTHDR(header, entry);
        }
    }
    fds
}

/// The address of a path; `@NAME` is an abstract one.
fn address(path: &str) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: all-zero bytes are a valid address.
    let mut address: libc::sockaddr_un = unsafe { zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    if path.is_empty() || path.len() >= address.sun_path.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in address.sun_path.iter_mut().zip(path.bytes()) {
        *to = from as libc::c_char;
    }
    let mut len = offset_of!(libc::sockaddr_un, sun_path) + path.len();
    if path.starts_with('@') {
        address.sun_path[0] = 0;
    } else {
        len += 1; // the terminating zero
    }
    Ok((address, len as libc::socklen_t))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn messages_and_descriptors_arrive_whole() {
        let path = format!("@ix-nic-test-socket-{}", std::process::id());
        assert!(connect(&path).is_err());
        let listener = listen(&path).unwrap();
        assert_eq!(listen(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let client = connect(&path).unwrap();
        let server = accept(listener.as_fd()).unwrap();
        assert!(matches!(receive(server.as_fd()), Ok(Received::Nothing)));
        send(client.as_fd(), &[7; MESSAGE_BYTES], Some(listener.as_fd())).unwrap();
        send(client.as_fd(), &[8; MESSAGE_BYTES], None).unwrap();
        drop(client);
        for (byte, count) in [(7, 1), (8, 0)] {
            let Ok(Received::Packet(bytes, fds)) = receive(server.as_fd()) else { panic!() };
            assert_eq!((bytes, fds.len()), (vec![byte; MESSAGE_BYTES], count));
        }
        assert!(matches!(receive(server.as_fd()), Ok(Received::Closed)));
    }
}
