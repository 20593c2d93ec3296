//! Linux sockets with the options that a fair comparison needs and `std` lacks.
use ix_sys::limits::{self, Resource};
use ix_sys::socket;
pub use ix_sys::socket::reset_on_close;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};

fn stream_socket(addr: SocketAddr) -> io::Result<OwnedFd> {
    new_socket(addr, libc::SOCK_STREAM | libc::SOCK_NONBLOCK)
}

fn new_socket(addr: SocketAddr, kind: libc::c_int) -> io::Result<OwnedFd> {
    let family = if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    socket::open(family, kind)
}

fn switch_on(fd: &impl AsFd, level: libc::c_int, option: libc::c_int) -> io::Result<()> {
    socket::set_option(fd.as_fd(), level, option, 1)
}

/// Makes a nonblocking listener whose port other threads may share; accepted connections inherit
/// `TCP_NODELAY`.
pub fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    let fd = stream_socket(addr)?;
    switch_on(&fd, libc::SOL_SOCKET, libc::SO_REUSEADDR)?;
    switch_on(&fd, libc::SOL_SOCKET, libc::SO_REUSEPORT)?;
    switch_on(&fd, libc::IPPROTO_TCP, libc::TCP_NODELAY)?;
    socket::bind_inet(fd.as_fd(), addr)?;
    socket::listen(fd.as_fd(), 65_535)?;
    Ok(TcpListener::from(fd))
}

/// Makes a blocking UDP socket whose port other threads may share, with room for bursts.
pub fn bind_udp(addr: SocketAddr) -> io::Result<UdpSocket> {
    const ROOM_BYTES: libc::c_int = 4 << 20;
    let fd = new_socket(addr, libc::SOCK_DGRAM)?;
    switch_on(&fd, libc::SOL_SOCKET, libc::SO_REUSEPORT)?;
    // The kernel reduces this to its limit (net.core.rmem_max).
    socket::set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, ROOM_BYTES)?;
    socket::bind_inet(fd.as_fd(), addr)?;
    Ok(UdpSocket::from(fd))
}

/// Accepts a connection, nonblocking; `None`: there is none.
pub fn accept(listener: &TcpListener) -> io::Result<Option<TcpStream>> {
    match socket::accept(listener.as_fd()) {
        Ok(fd) => Ok(Some(TcpStream::from(fd))),
        Err(error) => match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ECONNABORTED | libc::EINTR) => Ok(None),
            _ => Err(error),
        },
    }
}

/// Begins a connection, nonblocking.
pub fn connect(addr: SocketAddr) -> io::Result<TcpStream> {
    connect_from(None, addr)
}

/// Begins a connection from the given local address: each address has its own local ports.
pub fn connect_from(source: Option<IpAddr>, addr: SocketAddr) -> io::Result<TcpStream> {
    let fd = stream_socket(addr)?;
    switch_on(&fd, libc::IPPROTO_TCP, libc::TCP_NODELAY)?;
    if let Some(source) = source {
        // `connect` chooses the port, so that it may serve for several peers.
        switch_on(&fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT)?;
        socket::bind_inet(fd.as_fd(), SocketAddr::new(source, 0))?;
    }
    socket::connect_inet(fd.as_fd(), addr)?;
    Ok(TcpStream::from(fd))
}

/// Whether an error only means that there is nothing to do now.
pub fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Writes as much as a nonblocking socket takes; returns the number of bytes.
pub fn write_some(mut stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    let mut sent = 0;
    while sent < bytes.len() {
        match stream.write(&bytes[sent..]) {
            Ok(n) => sent += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if is_passing(&error) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(sent)
}

/// Most descriptors of a process that the kernel allows by default (fs.nr_open).
const DESCRIPTORS_MAX: u64 = 1 << 20;

/// Raises the limit of descriptors to the hard limit, or beyond it if that is allowed: many
/// connections need more than the usual 1024.
pub fn raise_descriptor_limit() -> io::Result<()> {
    limits::raise(Resource::Descriptors, DESCRIPTORS_MAX).map(drop)
}
