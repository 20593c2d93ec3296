//! The functions of the interface: C's arguments in, a call of the stack, `errno` out.
use crate::info::{BYTES, tcp_info};
use crate::plug::Plug;
use ix_scripts::sockets::{Answer, End, Sockets};
use libc::{c_int, c_ulong, c_void, iovec, msghdr, pollfd, size_t, sockaddr, socklen_t, ssize_t};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering;

/// A function that takes a message.
type Message<T> = unsafe extern "C" fn(*mut c_void, c_int, T, c_int) -> ssize_t;
type Address = unsafe extern "C" fn(*mut c_void, c_int, *const sockaddr, socklen_t) -> c_int;
type Pieces = unsafe extern "C" fn(*mut c_void, c_int, *const iovec, c_int) -> ssize_t;

macro_rules! interface {
    ($($(#[doc = $doc:literal])+ $field:ident: $kind:ty = $function:expr,)*) => {
        /// packetdrill's table of functions, in its order. The first argument of each is the first
        /// entry.
        #[repr(C)]
        pub struct Interface {
            /// Given to each function.
            pub userdata: *mut c_void,
            $($(#[doc = $doc])+ pub $field: $kind,)*
        }

        /// The table, for a [`Plug`] that was leaked to this pointer.
        pub fn interface(userdata: *mut c_void) -> Interface {
            Interface { userdata, $($field: $function,)* }
        }
    };
}

interface! {
    /// Ends the stack.
    free: unsafe extern "C" fn(*mut c_void) = free,
    /// `socket`
    socket: unsafe extern "C" fn(*mut c_void, c_int, c_int, c_int) -> c_int = socket,
    /// `bind`
    bind: Address = bind,
    /// `listen`
    listen: unsafe extern "C" fn(*mut c_void, c_int, c_int) -> c_int = listen,
    /// `accept`
    accept: unsafe extern "C" fn(*mut c_void, c_int, *mut sockaddr, *mut socklen_t) -> c_int = accept,
    /// `connect`
    connect: Address = connect,
    /// `read`
    read: unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, size_t) -> ssize_t = read,
    /// `readv`
    readv: Pieces = readv,
    /// `recv`
    recv: unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, size_t, c_int) -> ssize_t = recv,
    /// `recvfrom`
    recvfrom: unsafe extern "C" fn(
        *mut c_void, c_int, *mut c_void, size_t, c_int, *mut sockaddr, *mut socklen_t,
    ) -> ssize_t = recvfrom,
    /// `recvmsg`
    recvmsg: Message<*mut msghdr> = recvmsg,
    /// `write`
    write: unsafe extern "C" fn(*mut c_void, c_int, *const c_void, size_t) -> ssize_t = write,
    /// `writev`
    writev: Pieces = writev,
    /// `send`
    send: unsafe extern "C" fn(*mut c_void, c_int, *const c_void, size_t, c_int) -> ssize_t = send,
    /// `sendto`
    sendto: unsafe extern "C" fn(
        *mut c_void, c_int, *const c_void, size_t, c_int, *const sockaddr, socklen_t,
    ) -> ssize_t = sendto,
    /// `sendmsg`
    sendmsg: Message<*const msghdr> = sendmsg,
    /// `fcntl`. packetdrill calls it with `...`, which on x86-64 passes an argument like any other.
    fcntl: unsafe extern "C" fn(*mut c_void, c_int, c_int, c_ulong) -> c_int = fcntl,
    /// `ioctl`, as `fcntl`.
    ioctl: unsafe extern "C" fn(*mut c_void, c_int, c_ulong, *mut c_int) -> c_int = ioctl,
    /// `close`
    close: unsafe extern "C" fn(*mut c_void, c_int) -> c_int = close,
    /// `shutdown`
    shutdown: unsafe extern "C" fn(*mut c_void, c_int, c_int) -> c_int = shutdown,
    /// `getsockopt`
    getsockopt: unsafe extern "C" fn(
        *mut c_void, c_int, c_int, c_int, *mut c_void, *mut socklen_t,
    ) -> c_int = getsockopt,
    /// `setsockopt`
    setsockopt: unsafe extern "C" fn(
        *mut c_void, c_int, c_int, c_int, *const c_void, socklen_t,
    ) -> c_int = setsockopt,
    /// `poll`
    poll: unsafe extern "C" fn(*mut c_void, *mut pollfd, libc::nfds_t, c_int) -> c_int = poll,
    /// An IP packet arrives at the stack.
    netdev_send: unsafe extern "C" fn(*mut c_void, *const c_void, size_t) -> c_int = netdev_send,
    /// The next IP packet that the stack sends, and when.
    netdev_receive: unsafe extern "C" fn(*mut c_void, *mut c_void, *mut size_t, *mut i64) -> c_int
        = netdev_receive,
    /// `usleep`
    usleep: unsafe extern "C" fn(*mut c_void, u32) -> c_int = usleep,
    /// `gettimeofday`
    gettimeofday: unsafe extern "C" fn(*mut c_void, *mut libc::timeval, *mut c_void) -> c_int
        = gettimeofday,
    /// `epoll_create`
    epoll_create: unsafe extern "C" fn(*mut c_void, c_int) -> c_int = epoll_create,
    /// `epoll_ctl`
    epoll_ctl: unsafe extern "C" fn(
        *mut c_void, c_int, c_int, c_int, *mut libc::epoll_event,
    ) -> c_int = epoll_ctl,
    /// `epoll_wait`
    epoll_wait: unsafe extern "C" fn(
        *mut c_void, c_int, *mut libc::epoll_event, c_int, c_int,
    ) -> c_int = epoll_wait,
    /// `pipe`: not built.
    pipe: unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int = pipe,
    /// `splice`: not built.
    splice: unsafe extern "C" fn(
        *mut c_void, c_int, *mut i64, c_int, *mut i64, size_t, u32,
    ) -> ssize_t = splice,
}

/// The object behind the first argument of every function.
///
/// # Safety
/// `userdata` is what [`interface`] was given, and was not given to [`free`].
unsafe fn plug<'a>(userdata: *mut c_void) -> &'a Plug {
    // SAFETY: as above.
    unsafe { &*userdata.cast::<Plug>() }
}

fn answer(answer: Answer) -> c_int {
    answer.map_or_else(failed, |value| value as c_int)
}

fn long(answer: Answer) -> ssize_t {
    answer.map_or_else(|errno| failed(errno) as ssize_t, |value| value as ssize_t)
}

fn failed(errno: c_int) -> c_int {
    // SAFETY: the place of this thread.
    unsafe { *libc::__errno_location() = errno };
    -1
}

unsafe extern "C" fn free(userdata: *mut c_void) {
    crate::LOADED.store(std::ptr::null_mut(), Ordering::Release);
    // SAFETY: leaked by `packetdrill_interface_init`, given back once, as the last call.
    drop(unsafe { Box::from_raw(userdata.cast::<Plug>()) });
}

unsafe extern "C" fn socket(userdata: *mut c_void, domain: c_int, kind: c_int, _: c_int) -> c_int {
    // SAFETY: `plug`'s, here and in all functions below: packetdrill passes back what it was given.
    answer(unsafe { plug(userdata) }.now(|sockets| {
        let family = if sockets.at.local.is_ipv6() { libc::AF_INET6 } else { libc::AF_INET };
        if domain == family { sockets.socket(kind) } else { Err(libc::EAFNOSUPPORT) }
    }))
}

/// The port of an address; 0 if it has none.
///
/// # Safety
/// `addr` is null or points to `len` octets.
unsafe fn port_of(addr: *const sockaddr, len: socklen_t) -> u16 {
    if addr.is_null() || (len as usize) < size_of::<libc::sockaddr_in>() {
        return 0;
    }
    // SAFETY: long enough, as was checked; read without alignment.
    u16::from_be(unsafe { addr.cast::<libc::sockaddr_in>().read_unaligned() }.sin_port)
}

/// Whether an address has no family: for `connect` that means the end of a connection.
///
/// # Safety
/// `addr` is null or points to `len` octets.
unsafe fn is_unspecified(addr: *const sockaddr, len: socklen_t) -> bool {
    let long = !addr.is_null() && len as usize >= size_of::<libc::sa_family_t>();
    // SAFETY: long enough for its first field; read without alignment.
    long && unsafe { (&raw const (*addr).sa_family).read_unaligned() } == libc::AF_UNSPEC as u16
}

unsafe extern "C" fn bind(
    userdata: *mut c_void,
    fd: c_int,
    addr: *const sockaddr,
    len: socklen_t,
) -> c_int {
    // SAFETY: C's promise about `bind`'s arguments.
    let port = unsafe { port_of(addr, len) };
    // SAFETY: see `socket`.
    answer(unsafe { plug(userdata) }.now(|sockets| sockets.bind(fd, port)))
}

unsafe extern "C" fn listen(userdata: *mut c_void, fd: c_int, backlog: c_int) -> c_int {
    // SAFETY: see `socket`.
    answer(unsafe { plug(userdata) }.now(|sockets| sockets.listen(fd, backlog)))
}

/// Carries out a call, which blocks if its socket does.
fn blocking(
    plug: &Plug,
    fd: c_int,
    dont_wait: bool,
    mut call: impl FnMut(&mut Sockets) -> Answer,
) -> Answer {
    let again = |sockets: &mut Sockets, answer: Answer| {
        let waits = !dont_wait && sockets.get(fd).is_ok_and(|socket| !socket.nonblocking);
        (answer != Err(libc::EAGAIN) || !waits).then_some(answer)
    };
    let call = |sockets: &mut Sockets| {
        let answer = call(sockets);
        again(sockets, answer)
    };
    plug.until_done(None, call, || Err(libc::EAGAIN))
}

unsafe extern "C" fn accept(
    userdata: *mut c_void,
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: see `socket`.
    let plug = unsafe { plug(userdata) };
    let accepted = blocking(plug, fd, false, |sockets| sockets.accept(fd));
    if let Ok(new) = accepted {
        let peer = plug.lock().sockets.get(new as c_int).ok().and_then(|socket| socket.peer);
        // SAFETY: C's promise about `accept`'s arguments.
        unsafe { put_address(peer, addr, len) };
    }
    answer(accepted)
}

/// Writes an address as far as there is room.
///
/// # Safety
/// `len` is null, or points to the octets of room at `addr`.
unsafe fn put_address(from: Option<SocketAddr>, addr: *mut sockaddr, len: *mut socklen_t) {
    if addr.is_null() || len.is_null() {
        return;
    }
    let port = from.map_or(0, |from| from.port()).to_be();
    match from.map(|from| from.ip().to_canonical()) {
        Some(IpAddr::V6(ip)) => {
            let whole = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: port,
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: ip.octets() },
                sin6_scope_id: 0,
            };
            // SAFETY: as the caller promises.
            unsafe { put(&whole, addr, len) };
        }
        of_v4 => {
            let ip = match of_v4 {
                Some(IpAddr::V4(ip)) => ip,
                _ => Ipv4Addr::UNSPECIFIED,
            };
            let whole = libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: port,
                sin_addr: libc::in_addr { s_addr: u32::from(ip).to_be() },
                sin_zero: [0; 8],
            };
            // SAFETY: as the caller promises.
            unsafe { put(&whole, addr, len) };
        }
    }
}

/// Copies a structure as far as there is room, and says how long it is.
///
/// # Safety
/// `len` points to the octets of room at `addr`.
unsafe fn put<T>(whole: &T, addr: *mut sockaddr, len: *mut socklen_t) {
    let size = size_of::<T>();
    // SAFETY: no more than `*len` octets are written; the structure has `size` of them.
    unsafe {
        let room = (*len as usize).min(size);
        let octets = (&raw const *whole).cast::<u8>();
        std::ptr::copy_nonoverlapping(octets, addr.cast::<u8>(), room);
        *len = size as socklen_t;
    }
}

unsafe extern "C" fn connect(
    userdata: *mut c_void,
    fd: c_int,
    addr: *const sockaddr,
    len: socklen_t,
) -> c_int {
    // SAFETY: C's promise about `connect`'s arguments.
    let port = unsafe { port_of(addr, len) };
    // SAFETY: see `socket`.
    let plug = unsafe { plug(userdata) };
    // SAFETY: as above.
    if unsafe { is_unspecified(addr, len) } {
        return answer(plug.now(|sockets| match sockets.is_datagrams(fd) {
            true => sockets.connect_datagrams(fd, None),
            false => Err(libc::EAFNOSUPPORT),
        }));
    }
    let mut begun = false;
    answer(plug.until_done(
        None,
        |sockets| {
            let waits = sockets.get(fd).is_ok_and(|socket| !socket.nonblocking);
            let answer = if begun { sockets.connected(fd) } else { sockets.connect(fd, port) };
            begun = true;
            let under_way = matches!(answer, Err(libc::EINPROGRESS | libc::EALREADY));
            (!under_way || !waits).then_some(answer)
        },
        || Err(libc::ETIMEDOUT),
    ))
}

/// Number of octets of pieces; `None` if one cannot be memory, which scripts try.
fn len_of(pieces: &[iovec]) -> Option<usize> {
    const MOST: usize = 1 << 30;
    let sane =
        |piece: &iovec| piece.iov_len == 0 || !piece.iov_base.is_null() && piece.iov_len <= MOST;
    pieces.iter().all(sane).then(|| pieces.iter().map(|piece| piece.iov_len).sum())
}

/// Receives into pieces of memory; writes the sender of a datagram to `from`.
///
/// # Safety
/// Each of `pieces` is memory that may be written.
unsafe fn receive(
    userdata: *mut c_void,
    fd: c_int,
    pieces: &[iovec],
    flags: c_int,
    from: &mut Option<SocketAddr>,
) -> ssize_t {
    // SAFETY: see `socket`.
    let plug = unsafe { plug(userdata) };
    let Some(len) = len_of(pieces) else { return failed(libc::EFAULT) as ssize_t };
    let mut bytes = Vec::new();
    let got = blocking(plug, fd, flags & libc::MSG_DONTWAIT != 0, |sockets| {
        let peek = flags & libc::MSG_PEEK != 0;
        if sockets.is_datagrams(fd) {
            let (datagram, sender) = sockets.receive_datagram(fd, peek)?;
            (bytes, *from) = (datagram, Some(sender));
        } else {
            bytes = sockets.receive(fd, len, peek)?;
        }
        Ok(bytes.len().min(len) as i64)
    });
    let mut rest = &bytes[..];
    for piece in pieces {
        let (now, later) = rest.split_at(rest.len().min(piece.iov_len));
        if !now.is_empty() {
            // SAFETY: `now` is no longer than the piece.
            unsafe {
                std::ptr::copy_nonoverlapping(now.as_ptr(), piece.iov_base.cast(), now.len())
            };
        }
        rest = later;
    }
    long(got)
}

/// Sends pieces of memory, all of them if the socket blocks.
///
/// # Safety
/// Each of `pieces` is memory that may be read.
unsafe fn transmit(
    userdata: *mut c_void,
    fd: c_int,
    pieces: &[iovec],
    flags: c_int,
    to: u16,
) -> ssize_t {
    // SAFETY: see `socket`.
    let plug = unsafe { plug(userdata) };
    if len_of(pieces).is_none() {
        return failed(libc::EFAULT) as ssize_t;
    }
    let mut bytes = Vec::new();
    for piece in pieces.iter().filter(|piece| piece.iov_len > 0) {
        // SAFETY: memory that may be read, as the caller promises.
        let octets = unsafe { std::slice::from_raw_parts(piece.iov_base.cast(), piece.iov_len) };
        bytes.extend_from_slice(octets);
    }
    let mut taken = 0;
    let (dont_wait, end) = (flags & libc::MSG_DONTWAIT != 0, End::of(flags));
    let done = blocking(plug, fd, dont_wait, |sockets| {
        if sockets.is_datagrams(fd) {
            return sockets.send_datagram(fd, &bytes, (to != 0).then_some(to));
        }
        taken += sockets.write_bytes(fd, &bytes[taken..], end)? as usize;
        let waits = !dont_wait && sockets.get(fd).is_ok_and(|socket| !socket.nonblocking);
        if taken < bytes.len() && waits { Err(libc::EAGAIN) } else { Ok(taken as i64) }
    });
    long(if taken > 0 { Ok(taken as i64) } else { done })
}

fn piece(base: *const c_void, len: size_t) -> [iovec; 1] {
    [iovec { iov_base: base.cast_mut(), iov_len: len }]
}

/// # Safety
/// `iov` points to `count` entries.
unsafe fn pieces<'a>(iov: *const iovec, count: usize) -> &'a [iovec] {
    // SAFETY: as above.
    if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(iov, count) } }
}

unsafe extern "C" fn read(u: *mut c_void, fd: c_int, to: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: C's promise about `read`, here and below about each call's arguments.
    unsafe { receive(u, fd, &piece(to, len), 0, &mut None) }
}

unsafe extern "C" fn readv(u: *mut c_void, fd: c_int, iov: *const iovec, n: c_int) -> ssize_t {
    // SAFETY: see `read`.
    unsafe { receive(u, fd, pieces(iov, n.max(0) as usize), 0, &mut None) }
}

unsafe extern "C" fn recv(
    u: *mut c_void,
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: see `read`.
    unsafe { receive(u, fd, &piece(to, len), flags, &mut None) }
}

unsafe extern "C" fn recvfrom(
    u: *mut c_void,
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> ssize_t {
    // SAFETY: see `read`.
    unsafe {
        let mut from = None;
        let got = receive(u, fd, &piece(to, len), flags, &mut from);
        put_address(from, addr, addr_len);
        got
    }
}

unsafe extern "C" fn recvmsg(u: *mut c_void, fd: c_int, msg: *mut msghdr, f: c_int) -> ssize_t {
    // SAFETY: see `read`.
    unsafe {
        (*msg).msg_flags = 0;
        (*msg).msg_controllen = 0;
        let mut from = None;
        let got = receive(u, fd, pieces((*msg).msg_iov, (*msg).msg_iovlen), f, &mut from);
        put_address(from, (*msg).msg_name.cast(), &raw mut (*msg).msg_namelen);
        got
    }
}

unsafe extern "C" fn write(u: *mut c_void, fd: c_int, from: *const c_void, n: size_t) -> ssize_t {
    // SAFETY: see `read`.
    unsafe { transmit(u, fd, &piece(from, n), 0, 0) }
}

unsafe extern "C" fn writev(u: *mut c_void, fd: c_int, iov: *const iovec, n: c_int) -> ssize_t {
    // SAFETY: see `read`.
    unsafe { transmit(u, fd, pieces(iov, n.max(0) as usize), 0, 0) }
}

unsafe extern "C" fn send(
    u: *mut c_void,
    fd: c_int,
    from: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: see `read`.
    unsafe { transmit(u, fd, &piece(from, len), flags, 0) }
}

unsafe extern "C" fn sendto(
    u: *mut c_void,
    fd: c_int,
    from: *const c_void,
    len: size_t,
    flags: c_int,
    addr: *const sockaddr,
    addr_len: socklen_t,
) -> ssize_t {
    // SAFETY: see `read`.
    unsafe { transmit(u, fd, &piece(from, len), flags, port_of(addr, addr_len)) }
}

unsafe extern "C" fn sendmsg(u: *mut c_void, fd: c_int, msg: *const msghdr, f: c_int) -> ssize_t {
    // SAFETY: see `read`.
    unsafe {
        let to = port_of((*msg).msg_name.cast(), (*msg).msg_namelen);
        transmit(u, fd, pieces((*msg).msg_iov, (*msg).msg_iovlen), f, to)
    }
}

unsafe extern "C" fn fcntl(
    userdata: *mut c_void,
    fd: c_int,
    command: c_int,
    arg: c_ulong,
) -> c_int {
    // SAFETY: see `socket`.
    answer(unsafe { plug(userdata) }.now(|sockets| match command {
        libc::F_GETFL => {
            let nonblocking = sockets.get(fd)?.nonblocking;
            Ok((libc::O_RDWR | if nonblocking { libc::O_NONBLOCK } else { 0 }).into())
        }
        libc::F_SETFL => sockets.set_nonblocking(fd, arg as c_int & libc::O_NONBLOCK != 0),
        _ => Err(libc::EINVAL),
    }))
}

unsafe extern "C" fn ioctl(
    userdata: *mut c_void,
    fd: c_int,
    request: c_ulong,
    to: *mut c_int,
) -> c_int {
    const SIOCOUTQNSD: c_ulong = 0x894b;
    // SAFETY: see `socket`.
    let value = unsafe { plug(userdata) }.now(|sockets| match request {
        libc::FIONREAD => sockets.queued(fd).map(|(received, _)| received),
        libc::TIOCOUTQ => sockets.queued(fd).map(|(_, unacknowledged)| unacknowledged),
        SIOCOUTQNSD => sockets.unsent(fd),
        _ => Err(libc::EINVAL),
    });
    answer(value.map(|value| {
        // SAFETY: these requests have room for a number, as C promises.
        unsafe { to.write(value as c_int) };
        0
    }))
}

unsafe extern "C" fn close(userdata: *mut c_void, fd: c_int) -> c_int {
    // SAFETY: see `socket`.
    let closed = unsafe { plug(userdata) }.now(|sockets| sockets.close(fd));
    if closed.is_ok() {
        // SAFETY: the descriptor that `plug::reserve` gave for this one.
        unsafe { libc::close(fd) };
    }
    answer(closed)
}

unsafe extern "C" fn shutdown(userdata: *mut c_void, fd: c_int, how: c_int) -> c_int {
    // SAFETY: see `socket`.
    answer(unsafe { plug(userdata) }.now(|sockets| sockets.shutdown(fd, how)))
}

unsafe extern "C" fn getsockopt(
    userdata: *mut c_void,
    fd: c_int,
    level: c_int,
    name: c_int,
    to: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: see `socket`.
    let plug = unsafe { plug(userdata) };
    // SAFETY: C's promise about `getsockopt`.
    unsafe { option_of(plug, fd, level, name, to, len) }
}

/// `getsockopt`
///
/// # Safety
/// `len` points to a number, and `to` to as many octets.
pub unsafe fn option_of(
    plug: &Plug,
    fd: c_int,
    level: c_int,
    name: c_int,
    to: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    let value: Result<Vec<u8>, c_int> = plug.now(|sockets| {
        if (level, name) == (libc::IPPROTO_TCP, libc::TCP_INFO) {
            let handle = sockets.get(fd)?.flow.handle;
            let told = sockets.stack().inspect(handle);
            return Ok(told.map_or([0; BYTES], |(info, loss)| tcp_info(&info, &loss)).to_vec());
        }
        // Requested before each assertion, without effect here.
        const TCP_CC_INFO: c_int = 26;
        const SO_MEMINFO: c_int = 55;
        if [(libc::IPPROTO_TCP, TCP_CC_INFO), (libc::SOL_SOCKET, SO_MEMINFO)]
            .contains(&(level, name))
        {
            return sockets.get(fd).map(|_| vec![0; 36]);
        }
        sockets.option(fd, level, name).map(|value| (value as c_int).to_ne_bytes().to_vec())
    });
    answer(value.map(|value| {
        // SAFETY: `*len` octets of room, as the caller promises. The rest is cleared.
        unsafe {
            let n = value.len().min(*len as usize);
            std::ptr::write_bytes(to.cast::<u8>(), 0, *len as usize);
            std::ptr::copy_nonoverlapping(value.as_ptr(), to.cast(), n);
        }
        0
    }))
}

unsafe extern "C" fn setsockopt(
    userdata: *mut c_void,
    fd: c_int,
    level: c_int,
    name: c_int,
    from: *const c_void,
    len: socklen_t,
) -> c_int {
    let count = (len as usize / size_of::<c_int>()).min(2);
    // SAFETY: C's promise: `len` octets, of which whole numbers are read.
    let value: Vec<i64> = (0..count)
        .map(|n| unsafe { from.cast::<c_int>().add(n).read_unaligned() }.into())
        .collect();
    // SAFETY: see `socket`.
    answer(unsafe { plug(userdata) }.now(|sockets| sockets.set_option(fd, level, name, &value)))
}

/// A timeout in milliseconds as virtual time; `None`: no timeout.
fn timeout(ms: c_int) -> Option<u64> {
    u64::try_from(ms).ok().map(|ms| ms * 1000)
}

unsafe extern "C" fn poll(
    userdata: *mut c_void,
    fds: *mut pollfd,
    count: libc::nfds_t,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: see `socket`.
    let plug = unsafe { plug(userdata) };
    let look = |sockets: &mut Sockets| {
        let mut ready = 0;
        for n in 0..count as usize {
            // SAFETY: `count` entries, as C promises.
            let entry = unsafe { &mut *fds.add(n) };
            let always = libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;
            entry.revents = sockets.ready(entry.fd) as i16 & (entry.events | always);
            ready += c_int::from(entry.revents != 0);
        }
        (ready > 0 || timeout_ms == 0).then_some(ready)
    };
    plug.until_done(timeout(timeout_ms), look, || 0)
}

unsafe extern "C" fn netdev_send(userdata: *mut c_void, from: *const c_void, len: size_t) -> c_int {
    // SAFETY: `len` octets, as packetdrill promises.
    let packet: &[u8] = unsafe { std::slice::from_raw_parts(from.cast(), len) };
    if packet.get(16..20) == Some(&[0; 4]) {
        eprintln!(
            "libix_packetdrill: a datagram comes to a socket that has neither sent nor connected, \
             so packetdrill knows no address for it: call packetdrill with --is_anyip"
        );
        std::process::exit(1);
    }
    // SAFETY: see `socket`.
    unsafe { plug(userdata) }.inject(packet);
    0
}

/// packetdrill repeats this call until it succeeds, so it must not fail if nothing will ever be
/// sent: that ends the process, with one line as the reason.
unsafe extern "C" fn netdev_receive(
    userdata: *mut c_void,
    to: *mut c_void,
    len: *mut size_t,
    time_us: *mut i64,
) -> c_int {
    // SAFETY: see `socket`.
    let Some((at_us, packet)) = unsafe { plug(userdata) }.sniff() else {
        eprintln!("libix_packetdrill: nothing is sent for hours, though the script expects it");
        std::process::exit(1)
    };
    // SAFETY: room for `*len` octets, as packetdrill promises.
    unsafe {
        let n = packet.len().min(*len);
        std::ptr::copy_nonoverlapping(packet.as_ptr(), to.cast(), n);
        *len = n;
        *time_us = at_us as i64;
    }
    0
}

unsafe extern "C" fn usleep(userdata: *mut c_void, us: u32) -> c_int {
    // SAFETY: see `socket`.
    unsafe { plug(userdata) }.sleep(us.into());
    0
}

unsafe extern "C" fn gettimeofday(
    userdata: *mut c_void,
    to: *mut libc::timeval,
    _: *mut c_void,
) -> c_int {
    // SAFETY: see `socket`.
    let now_us = unsafe { plug(userdata) }.tick() as i64;
    let time = libc::timeval { tv_sec: now_us / 1_000_000, tv_usec: now_us % 1_000_000 };
    // SAFETY: C's promise about `gettimeofday`.
    unsafe { to.write(time) };
    0
}

unsafe extern "C" fn epoll_create(userdata: *mut c_void, _: c_int) -> c_int {
    // SAFETY: see `socket`.
    answer(unsafe { plug(userdata) }.now(|sockets| sockets.epoll_create()))
}

unsafe extern "C" fn epoll_ctl(
    userdata: *mut c_void,
    ep: c_int,
    op: c_int,
    fd: c_int,
    event: *mut libc::epoll_event,
) -> c_int {
    let (events, data) = match event.is_null() {
        true => (0, 0),
        // SAFETY: an event, as C promises; packed.
        false => unsafe { ((*event).events, (*event).u64) },
    };
    // SAFETY: see `socket`.
    answer(unsafe { plug(userdata) }.now(|sockets| sockets.epoll_ctl(ep, op, fd, events, data)))
}

unsafe extern "C" fn epoll_wait(
    userdata: *mut c_void,
    ep: c_int,
    to: *mut libc::epoll_event,
    max: c_int,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: see `socket`.
    let plug = unsafe { plug(userdata) };
    let look = |sockets: &mut Sockets| match sockets.epoll_wait(ep, max.max(0) as usize) {
        Ok(told) if told.is_empty() && timeout_ms != 0 => None,
        told => Some(told),
    };
    let told = plug.until_done(timeout(timeout_ms), look, || Ok(Vec::new()));
    answer(told.map(|told| {
        for (n, (events, data)) in told.iter().enumerate() {
            let event = libc::epoll_event { events: *events, u64: *data };
            // SAFETY: at most `max` events, for which there is room.
            unsafe { to.add(n).write(event) };
        }
        told.len() as i64
    }))
}

unsafe extern "C" fn pipe(_: *mut c_void, _: *mut c_int) -> c_int {
    failed(libc::ENOSYS)
}

unsafe extern "C" fn splice(
    _: *mut c_void,
    _: c_int,
    _: *mut i64,
    _: c_int,
    _: *mut i64,
    _: size_t,
    _: u32,
) -> ssize_t {
    failed(libc::ENOSYS) as ssize_t
}
