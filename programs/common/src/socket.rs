//! Linux sockets with the options that a fair comparison needs and `std` lacks.
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// An address as the kernel takes it.
fn sockaddr(addr: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: all-zero is a valid address structure.
    let mut storage: libc::sockaddr_storage = unsafe { core::mem::zeroed() };
    let target = &raw mut storage;
    let len = match addr {
        SocketAddr::V4(v4) => {
            let sin = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is large and aligned enough for every address.
            unsafe { target.cast::<libc::sockaddr_in>().write(sin) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let sin6 = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { target.cast::<libc::sockaddr_in6>().write(sin6) };
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, len as libc::socklen_t)
}

fn stream_socket(addr: SocketAddr) -> io::Result<OwnedFd> {
    new_socket(addr, libc::SOCK_STREAM | libc::SOCK_NONBLOCK)
}

fn new_socket(addr: SocketAddr, kind: libc::c_int) -> io::Result<OwnedFd> {
    let family = if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = kind | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers.
    let fd = check(unsafe { libc::socket(family, kind, 0) })?;
    // SAFETY: a fresh descriptor that is ours.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets an option of a socket to a value of the type that it takes.
pub(crate) fn set_option<T>(
    fd: &impl AsRawFd,
    level: libc::c_int,
    name: libc::c_int,
    value: T,
) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value is readable and of the size given.
    let result =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), len) };
    check(result).map(|_| ())
}

/// A nonblocking listener that other threads may share the port with; accepted connections inherit
/// `TCP_NODELAY`.
pub fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    let fd = stream_socket(addr)?;
    set_option(&fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1 as libc::c_int)?;
    set_option(&fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1 as libc::c_int)?;
    set_option(&fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1 as libc::c_int)?;
    let (address, len) = sockaddr(addr);
    // SAFETY: an address of the length given.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) })?;
    // SAFETY: no pointers.
    check(unsafe { libc::listen(fd.as_raw_fd(), 65_535) })?;
    Ok(TcpListener::from(fd))
}

/// A blocking UDP socket that other threads may share the port with; room for bursts.
pub fn bind_udp(addr: SocketAddr) -> io::Result<UdpSocket> {
    const ROOM_BYTES: libc::c_int = 4 << 20;
    let fd = new_socket(addr, libc::SOCK_DGRAM)?;
    set_option(&fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1 as libc::c_int)?;
    // What the kernel's limit (net.core.rmem_max) does not allow it leaves away by itself.
    set_option(&fd, libc::SOL_SOCKET, libc::SO_RCVBUF, ROOM_BYTES)?;
    let (address, len) = sockaddr(addr);
    // SAFETY: an address of the length given.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) })?;
    Ok(UdpSocket::from(fd))
}

/// Takes a connection, nonblocking; `None`: none waits.
pub fn accept(listener: &TcpListener) -> io::Result<Option<TcpStream>> {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let null = core::ptr::null_mut();
    // SAFETY: null pointers ask for no address.
    match check(unsafe { libc::accept4(listener.as_raw_fd(), null, null.cast(), flags) }) {
        // SAFETY: a fresh descriptor that is ours.
        Ok(fd) => Ok(Some(TcpStream::from(unsafe { OwnedFd::from_raw_fd(fd) }))),
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

/// The same from a certain local address: each has local ports of its own.
pub fn connect_from(source: Option<IpAddr>, addr: SocketAddr) -> io::Result<TcpStream> {
    let fd = stream_socket(addr)?;
    set_option(&fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1 as libc::c_int)?;
    if let Some(source) = source {
        // The port is chosen by `connect`, so that it may serve for several peers.
        set_option(&fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1 as libc::c_int)?;
        let (address, len) = sockaddr(SocketAddr::new(source, 0));
        // SAFETY: an address of the length given.
        check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) })?;
    }
    let (address, len) = sockaddr(addr);
    // SAFETY: an address of the length given.
    match check(unsafe { libc::connect(fd.as_raw_fd(), (&raw const address).cast(), len) }) {
        Ok(_) => {}
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        Err(error) => return Err(error),
    }
    Ok(TcpStream::from(fd))
}

/// Makes closing reset the connection, which leaves no TIME-WAIT behind.
pub fn reset_on_close(stream: &TcpStream) -> io::Result<()> {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    set_option(stream, libc::SOL_SOCKET, libc::SO_LINGER, linger)
}

/// Whether an error only says that there is nothing to do now.
pub fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Writes as much as a nonblocking socket takes, and answers how many bytes that was.
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
const DESCRIPTORS_MAX: libc::rlim_t = 1 << 20;

/// Allows as many descriptors as the hard limit does, or more where we may: many connections need
/// more than the usual 1024.
pub fn raise_descriptor_limit() -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is valid during the call.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) })?;
    let most = limit.rlim_max.max(DESCRIPTORS_MAX);
    let wish = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: as above. A refusal is no error: only root may raise the hard limit.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &wish) } == 0 {
        return Ok(());
    }
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: as above.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }).map(|_| ())
}

/// An epoll instance.
pub struct Epoll {
    fd: OwnedFd,
    events: Vec<libc::epoll_event>,
}

impl Epoll {
    /// One that reports so many events at a time.
    pub fn new(events: usize) -> io::Result<Epoll> {
        // SAFETY: no pointers.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: a fresh descriptor that is ours.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Epoll { fd, events: vec![libc::epoll_event { events: 0, u64: 0 }; events] })
    }

    /// Watches a socket, level-triggered.
    pub fn add(&self, fd: &impl AsRawFd, interest: libc::c_int, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, interest, token)
    }

    /// Watches it for something else.
    pub fn change(&self, fd: &impl AsRawFd, interest: libc::c_int, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, interest, token)
    }

    fn control(
        &self,
        op: libc::c_int,
        fd: &impl AsRawFd,
        interest: libc::c_int,
        token: u64,
    ) -> io::Result<()> {
        let mut event = libc::epoll_event { events: interest as u32, u64: token };
        let epoll = self.fd.as_raw_fd();
        // SAFETY: the event is valid during the call.
        check(unsafe { libc::epoll_ctl(epoll, op, fd.as_raw_fd(), &mut event) }).map(|_| ())
    }

    /// Waits `timeout_ms` for events, and answers how many came.
    pub fn wait(&mut self, timeout_ms: i32) -> io::Result<usize> {
        let (events, max) = (self.events.as_mut_ptr(), self.events.len() as libc::c_int);
        // SAFETY: the vector has room for `max` events.
        match check(unsafe { libc::epoll_wait(self.fd.as_raw_fd(), events, max, timeout_ms) }) {
            Ok(n) => Ok(n as usize),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// The same, to the nanosecond: as exactly as the kernel's timers are.
    pub fn wait_ns(&mut self, timeout_ns: u64) -> io::Result<usize> {
        let (events, max) = (self.events.as_mut_ptr(), self.events.len() as libc::c_int);
        let timeout = libc::timespec {
            tv_sec: (timeout_ns / 1_000_000_000) as libc::time_t,
            tv_nsec: (timeout_ns % 1_000_000_000) as libc::c_long,
        };
        let mask = std::ptr::null();
        // SAFETY: the vector has room for `max` events; a local timeout; no signal mask.
        let n = unsafe { libc::epoll_pwait2(self.fd.as_raw_fd(), events, max, &timeout, mask) };
        match check(n) {
            Ok(n) => Ok(n as usize),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Event `index` of the last wait: what happened, and the token.
    pub fn event(&self, index: usize) -> (libc::c_int, u64) {
        (self.events[index].events as libc::c_int, self.events[index].u64)
    }
}
