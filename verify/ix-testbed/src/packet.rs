//! Whole Ethernet frames in and out of an interface, for tests that send what no stack would.
use crate::{Error, Namespace};
use ix_sys::poll::is_readable;
use ix_sys::socket;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Room for frames of a busy link whose listener gets no processor for half a second.
const RECEIVE_BYTES: i32 = 16 << 20;

/// A packet socket on one interface. It receives a copy of all incoming frames, and injects frames.
pub struct PacketSocket {
    fd: OwnedFd,
}

impl AsRawFd for PacketSocket {
    fn as_raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl PacketSocket {
    /// Opens one on an interface of `namespace`.
    pub fn open(namespace: &Namespace, name: &str) -> Result<PacketSocket, Error> {
        let link = namespace.link(name)?.ok_or_else(|| {
            Error::new(format!("no interface {name}"), io::Error::from_raw_os_error(libc::ENODEV))
        })?;
        namespace
            .run(|| PacketSocket::open_here(link.index))
            .map_err(|e| Error::new(format!("cannot open a packet socket on {name}"), e))
    }

    fn open_here(index: u32) -> io::Result<PacketSocket> {
        let fd = socket::open_packets(index)?;
        // Excludes outgoing frames. On a kernel without the option they are filtered below.
        let ignore = libc::PACKET_IGNORE_OUTGOING;
        let _ = socket::set_option(fd.as_fd(), libc::SOL_PACKET, ignore, 1);
        let socket = PacketSocket { fd };
        socket.set_receive_buffer(RECEIVE_BYTES);
        Ok(socket)
    }

    /// Sends one frame, Ethernet header first, without its check sequence.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        socket::send(self.fd.as_fd(), frame, 0).map(drop)
    }

    /// Asks for this much room for frames that were not received yet.
    pub(crate) fn set_receive_buffer(&self, bytes: i32) {
        // A refusal leaves the default.
        let option = libc::SO_RCVBUFFORCE;
        let _ = socket::set_option(self.fd.as_fd(), libc::SOL_SOCKET, option, bytes);
    }

    /// The next frame, if one has come; returns its length.
    pub(crate) fn try_receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match socket::receive(self.fd.as_fd(), buffer, libc::MSG_DONTWAIT) {
            Ok(n) => Ok(Some(n)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The next incoming frame; `None` if none came in time.
    pub fn receive(&self, timeout: Duration) -> io::Result<Option<Vec<u8>>> {
        if !is_readable(&self.fd, timeout)? {
            return Ok(None);
        }
        let mut frame = vec![0u8; 65_600];
        let n = socket::receive(self.fd.as_fd(), &mut frame, 0)?;
        frame.truncate(n);
        Ok(Some(frame))
    }
}
