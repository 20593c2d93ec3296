//! The control socket: sequenced packets with descriptors, never blocking.
use super::message::MESSAGE_BYTES;
use ix_sys::socket::{self, Message};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

const KIND: i32 = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK;

/// Result of a read.
pub enum Received {
    /// Nothing is there.
    Nothing,
    /// The peer has closed the connection.
    Closed,
    /// Some bytes, at most one more than a message has, and descriptors.
    Packet(Vec<u8>, Vec<OwnedFd>),
}

/// Listens at `path`. An existing file is an error ([`io::ErrorKind::AddrInUse`]).
pub fn listen(path: &str) -> io::Result<OwnedFd> {
    socket::listen_unix(KIND, path)
}

/// Connects to the server that listens at `path`.
pub fn connect(path: &str) -> io::Result<OwnedFd> {
    socket::connect_unix(KIND, path)
}

/// Accepts the next client.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    socket::accept(listener)
}

/// Sends a message, with at most one descriptor.
pub fn send(
    to: BorrowedFd<'_>,
    message: &[u8; MESSAGE_BYTES],
    fd: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    socket::send_with_fds(to, message, fd.as_slice(), libc::MSG_DONTWAIT).map(drop)
}

/// Reads the next message.
pub fn receive(from: BorrowedFd<'_>) -> io::Result<Received> {
    let mut bytes = vec![0u8; MESSAGE_BYTES + 1];
    match socket::receive_with_fds(from, &mut bytes, libc::MSG_DONTWAIT) {
        Ok(Message { bytes: 0, fds, .. }) if fds.is_empty() => Ok(Received::Closed),
        Ok(message) => {
            bytes.truncate(message.bytes);
            Ok(Received::Packet(bytes, message.fds))
        }
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(Received::Nothing),
        Err(e) if e.kind() == io::ErrorKind::ConnectionReset => Ok(Received::Closed),
        Err(e) => Err(e),
    }
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
