//! Whole Ethernet frames in and out of an interface, for tests that send what no stack would.
use crate::{Error, Namespace};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Room for frames of a link that is busy while its listener has no core for half a second.
const RECEIVE_BYTES: i32 = 16 << 20;

/// A packet socket on one interface. Sees a copy of all that comes in, and injects frames.
pub struct PacketSocket {
    fd: OwnedFd,
}

impl AsRawFd for PacketSocket {
    fn as_raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
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
        let every = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: plain system call; a descriptor that it answers is nobody else's.
        let fd = unsafe {
            libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, i32::from(every))
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: fresh descriptor from above.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: all zeroes is a valid sockaddr_ll.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = every;
        address.sll_ifindex = index as i32;
        let len = size_of_val(&address) as u32;
        // SAFETY: the address lives across the call and its size is given.
        if unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // Do not hear what goes out.
        let one: libc::c_int = 1;
        // SAFETY: the value lives across the call. A kernel without the option is filtered below.
        unsafe {
            libc::setsockopt(
                fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_IGNORE_OUTGOING,
                (&raw const one).cast(),
                4,
            )
        };
        let socket = PacketSocket { fd };
        socket.set_receive_buffer(RECEIVE_BYTES);
        Ok(socket)
    }

    /// Sends one frame, Ethernet header first, without its check sequence.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        // SAFETY: the buffer is valid for its length.
        let n = unsafe { libc::send(self.fd.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        if n < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Asks for this much room for frames that were not received yet.
    pub(crate) fn set_receive_buffer(&self, bytes: i32) {
        // SAFETY: the value lives across the call; a refusal leaves the default.
        unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVBUFFORCE,
                (&raw const bytes).cast(),
                4,
            )
        };
    }

    /// The next frame, if one has come; answers its length.
    pub(crate) fn try_receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let (at, len) = (buffer.as_mut_ptr().cast(), buffer.len());
        // SAFETY: the buffer is valid for its length.
        let n = unsafe { libc::recv(self.fd.as_raw_fd(), at, len, libc::MSG_DONTWAIT) };
        match n {
            0.. => Ok(Some(n as usize)),
            _ => match io::Error::last_os_error() {
                e if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
                e => Err(e),
            },
        }
    }

    /// The next frame that came in; `None` when none came in time.
    pub fn receive(&self, timeout: Duration) -> io::Result<Option<Vec<u8>>> {
        let mut poll = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd that lives across the call.
        match unsafe { libc::poll(&mut poll, 1, timeout.as_millis() as i32) } {
            0 => return Ok(None),
            n if n < 0 => return Err(io::Error::last_os_error()),
            _ => {}
        }
        let mut frame = vec![0u8; 65_600];
        // SAFETY: the buffer is valid for its length.
        let n =
            unsafe { libc::recv(self.fd.as_raw_fd(), frame.as_mut_ptr().cast(), frame.len(), 0) };
        if n < 0 {
            return Err(io::Error::last_os_error());
        }
        frame.truncate(n as usize);
        Ok(Some(frame))
    }
}
