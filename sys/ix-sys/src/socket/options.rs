//! Options and states of sockets for which the data path has no use (socket(7), tcp(7)).
use rustix::net::sockopt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// A read waits no longer than this for something to come, for ever if it is zero (SO_RCVTIMEO).
pub fn set_receive_timeout(fd: BorrowedFd<'_>, timeout: Duration) -> io::Result<()> {
    let timeout = (!timeout.is_zero()).then_some(timeout);
    Ok(sockopt::set_socket_timeout(fd, sockopt::Timeout::Recv, timeout)?)
}

/// The congestion control of a connection, or of those that a listener takes (TCP_CONGESTION).
pub fn set_congestion_control(fd: &impl AsFd, name: &str) -> io::Result<()> {
    Ok(sockopt::set_tcp_congestion(fd, name)?)
}

/// Bytes that came in and were not read yet (FIONREAD).
pub fn unread_bytes(fd: &impl AsFd) -> io::Result<usize> {
    Ok(rustix::io::ioctl_fionread(fd)? as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::{pair, receive};

    #[test]
    fn a_read_waits_no_longer_than_it_may() {
        let (one, _other) = pair(libc::SOCK_STREAM).unwrap();
        let patience = Duration::from_millis(20);
        set_receive_timeout(one.as_fd(), patience).unwrap();
        let began = std::time::Instant::now();
        let nothing = receive(one.as_fd(), &mut [0; 8], 0).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        assert!(began.elapsed() >= patience);
    }
}
