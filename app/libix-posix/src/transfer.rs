//! The calls that read and write: `read`, `write`, and all that come down to them. Errors are
//! errnos.
use crate::elastic_thread::ElasticThread;
use crate::error_queue::{ERRORS_MAX, ErrorEntry};
use crate::lock::{Guard, lock};
use crate::mem::{self, Gather, Scatter};
use crate::ops::{self, Instead, Outcome, socket_of};
use crate::options::{IpFields, Options, SendOptions};
use crate::route::Whose;
use crate::slab::Id;
use crate::socket::{Kind, Outgoing, Socket, charged};
use crate::state::Core;
use crate::stream::Phase;
use crate::wait::{self, Interest, Stop, WaitSpec};
use crate::{log, signals};
use libc::{MSG_DONTWAIT, MSG_ERRQUEUE, MSG_PEEK, MSG_TRUNC, MSG_WAITALL};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// Longest IP packet, bytes. A datagram that is longer even without headers cannot be sent.
const DATAGRAM_MAX: usize = 65_535;
/// Length of the IPv4 and UDP headers.
const HEADERS_BYTES: usize = 28;

/// The result of a call that receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// The number of bytes that the call returns.
    pub bytes: usize,
    /// The sender of a datagram.
    pub from: Option<SocketAddr>,
    /// The program expects IPv6 addresses.
    pub ipv6: bool,
    /// `MSG_*` bits for `msg_flags`.
    pub flags: i32,
    /// Its control messages.
    pub receive_control: ReceiveControl,
}

/// The control messages of a call that receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveControl {
    /// `IP_PKTINFO`: where the datagram arrived.
    pub local: Option<Arrival>,
    /// The same for `IPV6_RECVPKTINFO`.
    pub local_v6: Option<Arrival>,
    /// `IP_RECVERR`.
    pub error_entry: Option<ErrorEntry>,
}

/// Where a datagram arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The local address that it was sent to.
    pub address: IpAddr,
    /// Linux's number of the interface; 0 if Linux does not have it.
    pub interface: u32,
}

/// The control messages of a call that sends a datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendControl {
    /// `IP_TTL`.
    pub ttl: Option<u8>,
    /// `IP_TOS`.
    pub tos: Option<u8>,
    /// `IP_PKTINFO`: the source address.
    pub from: Option<Ipv4Addr>,
    /// `IP_PKTINFO`: Linux's number of the interface; 0: any.
    pub interface: u32,
}

/// Waits as a blocking call on a socket does, until `attempt` returns something.
fn block<T>(
    mut core: Guard,
    id: Id,
    timeout: Option<Duration>,
    mut attempt: impl FnMut(&mut Core) -> Option<Result<T, i32>>,
) -> Result<T, i32> {
    let until = timeout.map(|timeout| Instant::now() + timeout);
    let how = WaitSpec { interest: Interest::Socket(id), until, linux: None, drives: true };
    loop {
        let (back, result) = wait::wait(core, how, &mut attempt);
        match result {
            Ok(result) => return result,
            Err(Stop::TimedOut) => return Err(libc::EAGAIN),
            Err(Stop::Linux) => {}
            // A call with a timeout is never restarted (signal(7)).
            Err(Stop::Interrupted) if signals::interrupted() == 1 && timeout.is_none() => {
                signals::reset();
            }
            Err(Stop::Interrupted) => return Err(libc::EINTR),
        }
        core = back;
    }
}

/// `recvmsg` and all simpler calls.
pub fn receive(fd: RawFd, mut to: Scatter<'_>, flags: i32) -> Outcome<Received> {
    signals::reset();
    let mut core = lock();
    let id = socket_of(&core, fd)?;
    let Some(socket) = core.sockets.get_mut(id) else { return Err(libc::EBADF.into()) };
    let (ipv6, timeout) = (socket.ipv6, socket.options.receive_timeout);
    let nonblocking = socket.nonblocking || flags & MSG_DONTWAIT != 0;
    let is_stream = match &socket.kind {
        Kind::Linux | Kind::Lost => return Err(Instead::Linux),
        Kind::Idle { stream: false, both: true, .. } => {
            // A bound UDP socket that waits also waits for datagrams of IX.
            ops::become_datagrams(core, id)?;
            return receive(fd, to, flags);
        }
        Kind::Idle { .. } => return Err(Instead::Linux),
        Kind::Listener(_) => return Err(libc::ENOTCONN.into()),
        Kind::Stream(_) => true,
        Kind::Datagrams(_) => false,
    };
    if flags & MSG_ERRQUEUE != 0 {
        return Ok(Received { ipv6, ..take_error(socket, &mut to)? });
    }
    if !is_stream {
        let mut attempt = |core: &mut Core| take_datagram(core, id, &mut to, flags);
        if let Some(received) = attempt(&mut core) {
            return Ok(Received { ipv6, ..received? });
        }
        if nonblocking {
            core = ops::poll_if_repeated(core, id);
            let received = attempt(&mut core).unwrap_or(Err(libc::EAGAIN))?;
            return Ok(Received { ipv6, ..received });
        }
        return Ok(Received { ipv6, ..block(core, id, timeout, attempt)? });
    }
    if flags & libc::MSG_OOB != 0 {
        // Urgent data is received in line.
        return Err(libc::EINVAL.into());
    }
    let mut total = 0;
    let whole = flags & MSG_WAITALL != 0 && flags & MSG_PEEK == 0;
    let mut attempt = |core: &mut Core| take_bytes(core, id, &mut to, flags, &mut total, whole);
    let done = match attempt(&mut core) {
        Some(done) => done,
        None if nonblocking => {
            core = ops::poll_if_repeated(core, id);
            attempt(&mut core).unwrap_or(Err(libc::EAGAIN))
        }
        None => block(core, id, timeout, attempt),
    };
    match done {
        Err(_) if total > 0 => {}
        Err(errno) => return Err(errno.into()),
        Ok(()) => {}
    }
    Ok(Received { bytes: total, ipv6, ..Received::default() })
}

/// Takes the oldest entry of the error queue.
fn take_error(socket: &mut Socket, to: &mut Scatter<'_>) -> Result<Received, i32> {
    if let Some(error_entry) = socket.stream().and_then(|stream| stream.connect_error.take()) {
        let receive_control =
            ReceiveControl { error_entry: Some(error_entry), ..ReceiveControl::default() };
        let (from, flags) = (Some(error_entry.to), MSG_ERRQUEUE);
        return Ok(Received { from, flags, receive_control, ..Received::default() });
    }
    let udp = socket.datagrams().ok_or(libc::EAGAIN)?;
    let (error_entry, quoted) = udp.errors.pop_front().ok_or(libc::EAGAIN)?;
    let next = udp.errors.front().filter(|(next, _)| next.said.is_some());
    let next = next.map_or(0, |(next, _)| next.errno);
    // An error that was found here, not reported by ICMP, is no error of the socket.
    if error_entry.said.is_some() || next != 0 {
        socket.error = next;
    }
    if to.is_wrong() && !quoted.is_empty() {
        return Err(libc::EFAULT);
    }
    let bytes = to.put(&quoted);
    let truncated = if bytes < quoted.len() { MSG_TRUNC } else { 0 };
    let receive_control =
        ReceiveControl { error_entry: Some(error_entry), ..ReceiveControl::default() };
    let (from, flags) = (Some(error_entry.to), MSG_ERRQUEUE | truncated);
    Ok(Received { bytes, from, flags, receive_control, ..Received::default() })
}

/// Reads from a connection. `None`: nothing yet, or with `whole` not all yet.
fn take_bytes(
    core: &mut Core,
    id: Id,
    to: &mut Scatter<'_>,
    flags: i32,
    total: &mut usize,
    whole: bool,
) -> Option<Result<(), i32>> {
    let Some(socket) = core.sockets.get_mut(id) else { return Some(Err(libc::EBADF)) };
    let error = socket.error;
    let Some(stream) = socket.stream() else { return Some(Err(libc::ENOTCONN)) };
    let peek = flags & MSG_PEEK != 0;
    if to.is_wrong() && flags & MSG_TRUNC == 0 && stream.unread() > 0 {
        return Some(Err(libc::EFAULT));
    }
    let n = match flags & MSG_TRUNC {
        0 => stream.read(to, peek),
        _ if peek => to.skip(stream.unread()),
        _ => {
            let n = stream.discard(to.left());
            to.skip(n)
        }
    };
    *total += n;
    // Buffers are returned in large steps, which open the window.
    let touch = stream.flow.receive.has_done();
    let local_peer = stream.local_peer.filter(|_| n > 0 && !peek);
    let eof = stream.eof;
    let ended = eof || stream.read_shut || stream.phase == Phase::Dead;
    let connecting = stream.is_connecting();
    if touch {
        core.mark_dirty(id);
    }
    if let Some(local_peer) = local_peer {
        core.read_from_local_peer(local_peer, n);
    }
    if to.left() == 0 || (*total > 0 && !whole) {
        return Some(Ok(()));
    }
    // After the end of the stream a read returns the end again, also after a later error.
    if error != 0 && !eof {
        if *total == 0
            && let Some(socket) = core.sockets.get_mut(id)
        {
            socket.take_error();
        }
        return Some(Err(error));
    }
    if ended {
        return Some(Ok(()));
    }
    if connecting {
        return None;
    }
    None
}

/// Reads the first datagram.
fn take_datagram(
    core: &mut Core,
    id: Id,
    to: &mut Scatter<'_>,
    flags: i32,
) -> Option<Result<Received, i32>> {
    let Core { sockets, elastic_threads, interfaces, .. } = core;
    let Some(socket) = sockets.get_mut(id) else { return Some(Err(libc::EBADF)) };
    match socket.take_error() {
        0 => {}
        errno => return Some(Err(errno)),
    }
    let (v4, v6) = (socket.options.packet_info, socket.options.packet_info_v6);
    let Some(udp) = socket.datagrams() else { return Some(Err(libc::EBADF)) };
    let Some(first) = udp.inbox.front() else {
        return udp.read_shut.then(|| Ok(Received::default()));
    };
    if to.is_wrong() {
        // As on Linux, the datagram is lost.
        let (data, elastic) = (first.data, first.elastic);
        udp.inbox.pop_front();
        udp.inbox_bytes -= charged(data).min(udp.inbox_bytes);
        elastic_threads[elastic].give_back(data);
        return Some(Err(libc::EFAULT));
    }
    // SAFETY: the buffer was not returned: it is queued, and the lock is held.
    let bytes = unsafe { mem::received(first.data, 0) };
    let copied = to.put(bytes);
    let truncated = copied < bytes.len();
    let address = first.local;
    let interface = if v4 || v6 { interfaces.index_of(address) } else { 0 };
    let arrival = Arrival { address, interface };
    let received = Received {
        bytes: if flags & MSG_TRUNC != 0 { bytes.len() } else { copied },
        from: Some(first.from),
        ipv6: false,
        flags: if truncated { MSG_TRUNC } else { 0 },
        receive_control: ReceiveControl {
            local: v4.then_some(arrival),
            local_v6: v6.then_some(arrival),
            error_entry: None,
        },
    };
    if flags & MSG_PEEK == 0 {
        let (data, elastic) = (first.data, first.elastic);
        udp.inbox.pop_front();
        udp.inbox_bytes -= charged(data).min(udp.inbox_bytes);
        elastic_threads[elastic].give_back(data);
    }
    Some(Ok(received))
}

/// `send`, `write` and all simpler calls.
pub fn send(fd: RawFd, from: Gather<'_>, flags: i32, to: Option<SocketAddr>) -> Outcome<usize> {
    send_as(fd, from, flags, to, Ok(SendControl::default()))
}

/// `sendmsg`. `send_control` has the control messages, which only datagrams use, or their errno.
pub fn send_as(
    fd: RawFd,
    mut from: Gather<'_>,
    flags: i32,
    to: Option<SocketAddr>,
    send_control: Result<SendControl, i32>,
) -> Outcome<usize> {
    signals::reset();
    let mut core = lock();
    let id = socket_of(&core, fd)?;
    // TCP Fast Open: data with the SYN.
    let to_ix = flags & libc::MSG_FASTOPEN != 0 && is_ours(&core, to);
    let Some(socket) = core.sockets.get_mut(id) else { return Err(libc::EBADF.into()) };
    let timeout = socket.options.send_timeout;
    let nonblocking = socket.nonblocking || flags & MSG_DONTWAIT != 0;
    match &socket.kind {
        Kind::Linux | Kind::Lost => return Err(Instead::Linux),
        Kind::Idle { stream: false, .. } => {
            become_ours(core, fd, id, to)?;
            return send_as(fd, from, flags, to, send_control);
        }
        Kind::Idle { .. } if to_ix => return Err(libc::EOPNOTSUPP.into()),
        Kind::Idle { .. } => return Err(Instead::Linux),
        Kind::Listener(_) => return Err(libc::EPIPE.into()),
        Kind::Datagrams(_) => {
            let datagram =
                Datagram { to, send_control: send_control?, len: from.left(), fragment_bytes: 0 };
            return send_datagram(core, id, &mut from, datagram, nonblocking, timeout);
        }
        Kind::Stream(_) => {}
    }
    let mut total = 0;
    let mut attempt = |core: &mut Core| give_bytes(core, id, &mut from, &mut total);
    let done = match attempt(&mut core) {
        Some(done) => done,
        None if nonblocking => {
            core = ops::poll_if_repeated(core, id);
            attempt(&mut core).unwrap_or(Err(libc::EAGAIN))
        }
        None => block(core, id, timeout, attempt),
    };
    match done {
        Err(errno) if total == 0 => Err(errno.into()),
        _ => Ok(total),
    }
}

/// Whether a destination is IX's.
fn is_ours(core: &Core, to: Option<SocketAddr>) -> bool {
    to.is_some_and(|to| core.routes.connect(to.ip()) == Whose::Ix)
}

/// Copies as many bytes as there is room for. `None`: not all of them.
fn give_bytes(
    core: &mut Core,
    id: Id,
    from: &mut Gather<'_>,
    total: &mut usize,
) -> Option<Result<(), i32>> {
    let Core { sockets, elastic_threads, .. } = core;
    let Some(socket) = sockets.get_mut(id) else { return Some(Err(libc::EBADF)) };
    let limit = socket.options.send_buffer;
    let ElasticThread { tx, starved, .. } = &mut elastic_threads[socket.elastic];
    if socket.error != 0 {
        let errno = socket.error;
        if *total == 0 {
            socket.take_error();
        }
        return Some(Err(errno));
    }
    let Some(stream) = socket.stream() else { return Some(Err(libc::ENOTCONN)) };
    if stream.phase == Phase::Dead || stream.flow.is_shut() {
        return Some(Err(libc::EPIPE));
    }
    if stream.is_connecting() {
        return None;
    }
    if from.left() == 0 {
        return Some(Ok(()));
    }
    if from.is_wrong() {
        return Some(Err(libc::EFAULT));
    }
    if let Some(local_peer) = stream.local_peer {
        *total += core.send_to_local_peer(id, local_peer, from);
        return (from.left() == 0).then_some(Ok(()));
    }
    let Some(tx) = tx else { return Some(Err(libc::ENOBUFS)) };
    let room = stream.space(limit);
    let n = stream.write(&tx.0, from, room);
    *starved |= n < room.min(from.left() + n);
    *total += n;
    if n > 0 {
        core.mark_dirty(id);
    }
    (from.left() == 0).then_some(Ok(()))
}

/// The destination of the first datagram decides whose an undecided socket is.
fn become_ours(mut core: Guard, fd: RawFd, id: Id, to: Option<SocketAddr>) -> Outcome<()> {
    let Some(to) = to else { return Err(Instead::Linux) };
    if core.whose(id, to.ip())? == Whose::Linux {
        // A bound socket stays undecided until it sends to IX.
        let bound = core.sockets.get(id).is_some_and(|socket| socket.bound.is_some());
        if !bound {
            ops::leave_to_linux(&mut core, fd, id)?;
        }
        return Err(Instead::Linux);
    }
    ops::become_datagrams(core, id)
}

/// A datagram that a program wants to send.
#[derive(Clone, Copy)]
struct Datagram {
    to: Option<SocketAddr>,
    send_control: SendControl,
    len: usize,
    /// As [`SendOptions::fragment_bytes`].
    fragment_bytes: u16,
}

/// Whether a datagram can leave by the interface that the program names.
fn by_interface(core: &mut Core, id: Id, datagram: &Datagram) -> Result<(), i32> {
    let wanted = datagram.send_control.interface;
    if wanted == 0 {
        return Ok(());
    }
    let own = own_address(core, id, datagram.to);
    if own.is_some_and(|own| core.interfaces.index_of(own) == wanted) {
        return Ok(());
    }
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: room of ours, as long as names can be.
    let is_there = unsafe { !libc::if_indextoname(wanted, name.as_mut_ptr()).is_null() };
    Err(if is_there { libc::ENETUNREACH } else { libc::ENODEV })
}

fn send_datagram(
    mut core: Guard,
    id: Id,
    from: &mut Gather<'_>,
    datagram: Datagram,
    nonblocking: bool,
    timeout: Option<Duration>,
) -> Outcome<usize> {
    if datagram.len > DATAGRAM_MAX {
        return Err(libc::EMSGSIZE.into());
    }
    let whose = datagram.to.map(|to| core.whose(id, to.ip())).transpose()?;
    if whose == Some(Whose::Linux) {
        let text =
            "a UDP socket of IX cannot send to an address of Linux's: use a socket for each side";
        log::once(log::Once::Datagram, text);
        return Err(libc::ENETUNREACH.into());
    }
    if let Some(from) = datagram.send_control.from
        && own_address(&mut core, id, datagram.to) != Some(from.into())
    {
        return Err(libc::ENETUNREACH.into());
    }
    by_interface(&mut core, id, &datagram)?;
    wait::enter(&mut core)?;
    let fragment_bytes = fragment_bytes_of(&mut core, id, &datagram)?;
    let datagram = Datagram { fragment_bytes, ..datagram };
    let mut attempt = |core: &mut Core| give_datagram(core, id, from, datagram);
    if let Some(done) = attempt(&mut core) {
        return Ok(done?);
    }
    if nonblocking {
        core = ops::poll_if_repeated(core, id);
        return Ok(attempt(&mut core).unwrap_or(Err(libc::EAGAIN))?);
    }
    Ok(block(core, id, timeout, attempt)?)
}

/// The source address of a datagram: the bound address, else the local address of the route to the
/// peer.
fn own_address(core: &mut Core, id: Id, to: Option<SocketAddr>) -> Option<IpAddr> {
    let socket = core.sockets.get_mut(id)?;
    let bound = socket.bound.map(|at| at.ip()).filter(|ip| !ip.is_unspecified());
    let to = to.or(socket.datagrams()?.peer)?;
    bound.or_else(|| core.routes.own_towards(to.ip()).map(IpAddr::V4))
}

/// The [`SendOptions::fragment_bytes`] of a datagram, or an errno if it is too long and the program
/// wants no fragments. The error also goes into the error queue.
fn fragment_bytes_of(core: &mut Core, id: Id, datagram: &Datagram) -> Result<u16, i32> {
    let device = u16::try_from(core.device_mtu()).unwrap_or(u16::MAX);
    let Some(socket) = core.sockets.get_mut(id) else { return Err(libc::EBADF) };
    let Options { mtu_discovery, receive_errors, .. } = socket.options;
    let Some(udp) = socket.datagrams() else { return Err(libc::EBADF) };
    let peer = udp.peer;
    let Some(to) = datagram.to.or(peer) else { return Ok(0) };
    let known = core.paths.mtu(to.ip(), Instant::now()).filter(|_| mtu_discovery.heeds_icmp());
    let path = known.map_or(device, |path| path.min(device));
    let info = match mtu_discovery.fragment_bytes(datagram.len + HEADERS_BYTES, path, device) {
        Ok(fragment_bytes) => return Ok(fragment_bytes),
        Err(mtu) => mtu,
    };
    let to = SocketAddr::new(to.ip(), peer.map_or(0, |peer| peer.port()));
    let error_entry = ErrorEntry { to, errno: libc::EMSGSIZE, said: None, info };
    if receive_errors && udp.errors.len() < ERRORS_MAX {
        udp.errors.push_back((error_entry, Vec::new()));
        core.notify(id, libc::EPOLLERR);
    }
    Err(libc::EMSGSIZE)
}

fn give_datagram(
    core: &mut Core,
    id: Id,
    from: &mut Gather<'_>,
    datagram: Datagram,
) -> Option<Result<usize, i32>> {
    let Core { sockets, elastic_threads, .. } = core;
    let Some(socket) = sockets.get_mut(id) else { return Some(Err(libc::EBADF)) };
    let limit = socket.options.send_buffer;
    let usual = socket.options.ip_fields;
    let ElasticThread { tx, starved, .. } = &mut elastic_threads[socket.elastic];
    match socket.take_error() {
        0 => {}
        errno => return Some(Err(errno)),
    }
    let Some(udp) = socket.datagrams() else { return Some(Err(libc::EBADF)) };
    let Some(to) = datagram.to.or(udp.peer) else { return Some(Err(libc::EDESTADDRREQ)) };
    if udp.write_shut {
        return Some(Err(libc::EPIPE));
    }
    if to.port() == 0 {
        return Some(Err(libc::EINVAL));
    }
    if from.is_wrong() {
        return Some(Err(libc::EFAULT));
    }
    if udp.in_flight_bytes >= limit {
        return None;
    }
    let len = datagram.len;
    let Some(mut memory) = tx.as_ref().and_then(|tx| tx.0.alloc(len)) else {
        *starved = true;
        return None;
    };
    while from.left() > 0 {
        let n = memory.extend(from.front());
        from.advance(n);
    }
    udp.in_flight_bytes += len.max(1);
    let SendControl { ttl, tos, .. } = datagram.send_control;
    let ip_fields = IpFields { ttl: ttl.unwrap_or(usual.ttl), tos: tos.unwrap_or(usual.tos) };
    let send_options = SendOptions { ip_fields, fragment_bytes: datagram.fragment_bytes };
    udp.outbox.push_back(Outgoing { memory, to, send_options });
    core.mark_dirty(id);
    Some(Ok(len))
}

/// The values of `FIONREAD` and `TIOCOUTQ`: unread bytes, and bytes not acknowledged.
pub fn queued(fd: RawFd) -> Outcome<(usize, usize)> {
    let mut core = lock();
    let id = socket_of(&core, fd)?;
    match &core.sockets.get_mut(id).ok_or(libc::EBADF)?.kind {
        Kind::Linux | Kind::Idle { .. } | Kind::Lost => Err(Instead::Linux),
        Kind::Listener(_) => Err(libc::EINVAL.into()),
        Kind::Stream(stream) if stream.local_peer.is_some() => Ok((stream.unread(), 0)),
        Kind::Stream(stream) => Ok((stream.unread(), stream.held() as usize)),
        Kind::Datagrams(udp) => Ok((
            udp.inbox.front().map_or(0, |first| first.data.len() as usize),
            udp.in_flight_bytes,
        )),
    }
}

/// Sets `O_NONBLOCK` of a socket, if it is ours.
pub fn set_nonblocking(fd: RawFd, on: bool) {
    let mut core = lock();
    if let Ok(id) = socket_of(&core, fd)
        && let Some(socket) = core.sockets.get_mut(id)
    {
        socket.nonblocking = on;
    }
}

/// Whether a socket has `O_NONBLOCK`; `Linux` if the Linux socket under the descriptor has the
/// flag.
pub fn is_nonblocking(fd: RawFd) -> Outcome<bool> {
    let core = lock();
    let id = socket_of(&core, fd)?;
    core.sockets.get(id).map(|socket: &Socket| socket.nonblocking).ok_or(Instead::Linux)
}
