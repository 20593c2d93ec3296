//! The calls that read: `read`, `recvmsg`, and all that come down to them. Errors are errnos.
use crate::clock;
use crate::elastic_thread::ElasticThread;
use crate::error_queue::ErrorEntry;
use crate::lock::{Guard, lock};
use crate::mem::{self, Scatter};
use crate::ops::{self, Instead, Outcome, socket_of};
use crate::options::Stamps;
use crate::route::Whose;
use crate::slab::Id;
use crate::socket::{Datagrams, Incoming, Kind, Socket, charged};
use crate::state::Core;
use crate::stream::Phase;
use crate::wait::{self, Interest, Stop, WaitSpec};
use crate::{real, signals};
use libc::{MSG_DONTWAIT, MSG_ERRQUEUE, MSG_PEEK, MSG_TRUNC, MSG_WAITALL};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

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
    /// `IP_RECVTTL`, or of an IPv6 datagram `IPV6_RECVHOPLIMIT`.
    pub hops: Option<u8>,
    /// `IP_RECVTOS`, or of an IPv6 datagram `IPV6_RECVTCLASS`.
    pub tos: Option<u8>,
    /// `IPV6_FLOWINFO`: traffic class and flow label.
    pub flow_info: Option<u32>,
    /// These are of an IPv6 datagram.
    pub is_v6: bool,
    /// `IP_RECVERR`.
    pub error_entry: Option<ErrorEntry>,
    /// When the datagram came, since the epoch, and which control messages say so.
    pub came: Option<(Duration, Stamps)>,
    /// `UDP_GRO`: the length of each of several datagrams, but for the last.
    pub datagram_bytes: Option<u16>,
    /// `TCP_INQ`: bytes that are still unread, and one for the end of the stream.
    pub unread: Option<u32>,
}

/// Most datagrams that are received together, and their bytes.
const TOGETHER_MAX: usize = 64;
const TOGETHER_BYTES_MAX: usize = 65_507;

/// Where a datagram arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The address that it was sent to.
    pub address: IpAddr,
    /// The same, or where that names several hosts, an address of this one.
    pub own: IpAddr,
    /// Linux's number of the interface; 0 if Linux does not have it.
    pub interface: u32,
}

/// `recvmsg` and all simpler calls.
///
/// `on_linux` makes the same call for the Linux socket under the descriptor, with these flags
/// beside its own; it is no cancellation point, for the lock is held.
pub fn receive(
    fd: RawFd,
    mut to: Scatter<'_>,
    flags: i32,
    on_linux: impl Fn(i32) -> isize,
) -> Outcome<Received> {
    signals::reset();
    let mut core = lock();
    let id = socket_of(&mut core, fd)?;
    core.sees_file_flags(id);
    let Some(socket) = core.sockets.get_mut(id) else { return Err(libc::EBADF.into()) };
    let (ipv6, timeout) = (socket.ipv6, socket.options.receive_timeout);
    let tells_unread = socket.options.tells_unread;
    let nonblocking = socket.nonblocking || flags & MSG_DONTWAIT != 0;
    let is_stream = match &socket.kind {
        Kind::Linux | Kind::Lost => return Err(Instead::Linux),
        Kind::Idle { stream: false, both: true, .. } => {
            // A bound UDP socket that waits also waits for datagrams of IX.
            ops::become_datagrams(core, id)?;
            return receive(fd, to, flags, on_linux);
        }
        Kind::Idle { .. } => return Err(Instead::Linux),
        Kind::Listener(_) => return Err(libc::ENOTCONN.into()),
        Kind::Stream(_) => true,
        Kind::Datagrams(_) => false,
    };
    if flags & MSG_ERRQUEUE != 0 {
        let taken = take_error(socket, &mut to);
        return match taken {
            Err(libc::EAGAIN) if core.hears_linux(id) => match on_linux(MSG_DONTWAIT) {
                done if done >= 0 => Err(Instead::Made(done)),
                _ => Err(real::errno().into()),
            },
            taken => Ok(Received { ipv6, ..taken? }),
        };
    }
    if !is_stream && core.hears_linux(id) {
        let what = (fd, to, flags, on_linux);
        return receive_of_both(core, id, what, nonblocking).map(|one| Received { ipv6, ..one });
    }
    if !is_stream {
        let mut attempt = |core: &mut Core| take_datagram(core, id, &mut to, flags);
        if let Some(received) = attempt(&mut core) {
            return Ok(Received { ipv6, ..received? });
        }
        if nonblocking {
            core.takes_datagrams(Interest::Socket(id));
            core = ops::poll_if_repeated(core, id);
            let received = attempt(&mut core).unwrap_or(Err(libc::EAGAIN))?;
            return Ok(Received { ipv6, ..received });
        }
        return Ok(Received { ipv6, ..ops::block(core, id, timeout, attempt)? });
    }
    if flags & libc::MSG_OOB != 0 {
        // Urgent data is received in line.
        return Err(libc::EINVAL.into());
    }
    let mut total = 0;
    let whole = flags & MSG_WAITALL != 0 && flags & MSG_PEEK == 0;
    let mut receive_control = ReceiveControl::default();
    let mut attempt = |core: &mut Core| {
        let done = take_bytes(core, id, &mut to, flags, &mut total, whole);
        if tells_unread && let Some(stream) = core.sockets.get_mut(id).and_then(Socket::stream) {
            receive_control.unread = Some(stream.unread() as u32 + u32::from(stream.has_ended()));
        }
        done
    };
    let done = match attempt(&mut core) {
        Some(done) => done,
        None if nonblocking => {
            core = ops::poll_if_repeated(core, id);
            attempt(&mut core).unwrap_or(Err(libc::EAGAIN))
        }
        None => ops::block(core, id, timeout, attempt),
    };
    match done {
        Err(_) if total > 0 => {}
        Err(errno) => return Err(errno.into()),
        Ok(()) => {}
    }
    Ok(Received { bytes: total, ipv6, receive_control, ..Received::default() })
}

/// Receives a datagram that has come by IX or by Linux.
fn receive_of_both(
    mut core: Guard,
    id: Id,
    (fd, mut to, flags, on_linux): (RawFd, Scatter<'_>, i32, impl Fn(i32) -> isize),
    nonblocking: bool,
) -> Outcome<Received> {
    let timeout = core.sockets.get(id).and_then(|socket| socket.options.receive_timeout);
    let until = timeout.map(|timeout| Instant::now() + timeout);
    let how = WaitSpec { interest: Interest::Socket(id), until, linux: Some(fd), drives: true };
    let mut attempt = |core: &mut Core| take_datagram(core, id, &mut to, flags);
    if core.is_turn_of_linux(id)
        && let Some(instead) = core.take_from_linux(id, fd, &on_linux)
    {
        return Err(instead);
    }
    let mut looks = false;
    loop {
        if let Some(received) = attempt(&mut core) {
            return Ok(received?);
        }
        if (looks || core.linux_may_have(id))
            && let Some(instead) = core.take_from_linux(id, fd, &on_linux)
        {
            return Err(instead);
        }
        if nonblocking {
            core.takes_datagrams(Interest::Socket(id));
            core = ops::poll_if_repeated(core, id);
            return Ok(attempt(&mut core).unwrap_or(Err(libc::EAGAIN))?);
        }
        let (back, result) = wait::wait(core, how, &mut attempt);
        core = back;
        match result {
            Ok(received) => return Ok(received?),
            Err(Stop::TimedOut) => return Err(libc::EAGAIN.into()),
            Err(Stop::Linux) => looks = true,
            Err(Stop::Interrupted) if signals::interrupted() == 1 && timeout.is_none() => {
                signals::reset();
            }
            Err(Stop::Interrupted) => {
                signals::ends_call(timeout);
                return Err(libc::EINTR.into());
            }
        }
    }
}

/// Takes the oldest entry of the error queue.
fn take_error(socket: &mut Socket, to: &mut Scatter<'_>) -> Result<Received, i32> {
    if let Some(error_entry) =
        socket.stream().and_then(|stream| stream.connect_error.take()).map(|entry| *entry)
    {
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
    let eof = stream.has_ended();
    let ended = eof || stream.read_shut || stream.phase == Phase::Dead;
    let connecting = stream.is_connecting();
    if touch {
        core.mark_dirty(id);
        core.notes_read(id, n);
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
            && socket.take_error() == 0
        {
            // Another process has got it.
            return Some(Ok(()));
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
    let Core { sockets, elastic_threads, interfaces, routes, linux_side, .. } = core;
    let Some(socket) = sockets.get_mut(id) else { return Some(Err(libc::EBADF)) };
    match socket.take_error() {
        0 => {}
        errno => return Some(Err(errno)),
    }
    let (v4, v6) = (socket.options.v4.packet_info, socket.options.v6.packet_info);
    let (stamps, socket_gathers) = (socket.options.stamps, socket.options.gathers);
    let of = [socket.options.v4, socket.options.v6];
    let Some(udp) = socket.datagrams() else { return Some(Err(libc::EBADF)) };
    if udp.inbox.is_empty() {
        return udp.read_shut.then(|| Ok(Received::default()));
    }
    if to.is_wrong() {
        // As on Linux, the datagram is lost.
        drop_first(udp, elastic_threads);
        return Some(Err(libc::EFAULT));
    }
    let together = if socket_gathers { gathered(udp, to.left()) } else { 1 };
    let first = &udp.inbox[0];
    let (mut copied, mut len) = (0, 0);
    for incoming in udp.inbox.iter().take(together) {
        len += incoming.len();
        if let Some(bytes) = &incoming.copy {
            copied += to.put(bytes);
        }
        for data in incoming.buffers() {
            // SAFETY: the buffer was not returned: it is queued, and the lock is held.
            copied += to.put(unsafe { mem::received(data, 0) });
        }
    }
    let truncated = copied < len;
    // A sender that claims an address of another interface's network is no way there.
    if udp.both && routes.connect(first.from.ip()) == Whose::Ix {
        linux_side.has_way(first.from.ip(), false);
    }
    let (address, is_v6) = (first.local, first.local.is_ipv6());
    let own = of[usize::from(is_v6)];
    let mut arrival = Arrival { address, own: address, interface: 0 };
    if v4 || v6 {
        if routes.is_group(address) {
            arrival.own = routes.own_towards(address).unwrap_or(address);
        }
        arrival.interface = interfaces.index_of(arrival.own);
    }
    let received = Received {
        bytes: if flags & MSG_TRUNC != 0 { len } else { copied },
        from: Some(first.from),
        ipv6: false,
        flags: if truncated { MSG_TRUNC } else { 0 },
        receive_control: ReceiveControl {
            local: v4.then_some(arrival),
            local_v6: v6.then_some(arrival),
            hops: own.tells_hops.then_some(first.hops),
            tos: own.tells_tos.then_some(first.tos),
            // As on Linux, nothing is told of none.
            flow_info: own
                .tells_flow_info
                .then_some(u32::from(first.tos) << 20 | first.label)
                .filter(|flow_info| *flow_info != 0),
            is_v6,
            datagram_bytes: (together > 1).then_some(first.len() as u16),
            // As on Linux, one that came before the program asked has the time when it is read.
            came: stamps.any().then(|| (first.came.unwrap_or_else(clock::time_of_day), stamps)),
            ..ReceiveControl::default()
        },
    };
    if flags & MSG_PEEK == 0 {
        (0..together).for_each(|_| drop_first(udp, elastic_threads));
    }
    Some(Ok(received))
}

/// How many datagrams of the inbox are received together (`UDP_GRO`), where there is so much room:
/// those of one sender and one length, and a shorter one at the end. As on Linux at most 64, and
/// together no longer than a packet.
fn gathered(udp: &Datagrams, room: usize) -> usize {
    let Some(first) = udp.inbox.front() else { return 1 };
    let about = |one: &Incoming| (one.from, one.local, one.hops, one.tos, one.label);
    let (each, mut total, mut count) = (first.len(), first.len(), 1);
    for next in udp.inbox.iter().skip(1).take(TOGETHER_MAX - 1) {
        let len = next.len();
        let fits = total + len <= room.min(TOGETHER_BYTES_MAX);
        if each == 0 || len == 0 || len > each || !fits || about(next) != about(first) {
            break;
        }
        (total, count) = (total + len, count + 1);
        if len < each {
            break;
        }
    }
    count
}

/// Returns the buffers of the first datagram.
fn drop_first(udp: &mut Datagrams, elastic_threads: &mut [ElasticThread]) {
    let Some(first) = udp.inbox.pop_front() else { return };
    udp.inbox_bytes -= charged(&first).min(udp.inbox_bytes);
    let elastic = &mut elastic_threads[first.elastic];
    first.buffers().for_each(|data| elastic.give_back(data));
}

/// The values of `FIONREAD` and `TIOCOUTQ`: unread bytes, and bytes not acknowledged.
pub fn queued(fd: RawFd) -> Outcome<(usize, usize)> {
    let mut core = lock();
    let id = socket_of(&mut core, fd)?;
    match &core.sockets.get_mut(id).ok_or(libc::EBADF)?.kind {
        Kind::Linux | Kind::Idle { .. } | Kind::Lost => Err(Instead::Linux),
        Kind::Listener(_) => Err(libc::EINVAL.into()),
        Kind::Stream(stream) if stream.local_peer.is_some() => Ok((stream.unread(), 0)),
        Kind::Stream(stream) => Ok((stream.unread(), stream.held() as usize)),
        Kind::Datagrams(udp) if udp.both && udp.inbox.is_empty() => Err(Instead::Linux),
        Kind::Datagrams(udp) => {
            Ok((udp.inbox.front().map_or(0, Incoming::len), udp.in_flight_bytes))
        }
    }
}

/// The value of `SIOCOUTQNSD`: bytes of a connection that are not sent.
pub fn unsent(fd: RawFd) -> Outcome<usize> {
    let mut core = lock();
    let id = socket_of(&mut core, fd)?;
    match core.sockets.get_mut(id).ok_or(libc::EBADF)?.kind {
        Kind::Stream(_) => {}
        Kind::Listener(_) => return Err(libc::EINVAL.into()),
        // UDP has no such number, and Linux says so.
        _ => return Err(Instead::Linux),
    }
    // What was sent in a cycle that still waits for events is known when that has ended.
    let _ = ops::info(core, id);
    let mut core = lock();
    let stream = core.sockets.get_mut(id).and_then(Socket::stream).ok_or(libc::EBADF)?;
    Ok(stream.flow.send.unsent() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(port: u16, bytes: usize) -> Incoming {
        Incoming {
            data: ix_abi::RxData { addr: 0, len: 0 }.into(),
            rest: Vec::new(),
            copy: Some(vec![7; bytes].into()),
            from: ([10, 0, 0, 1], port).into(),
            local: IpAddr::from([10, 0, 0, 2]),
            hops: 64,
            tos: 0,
            label: 0,
            came: None,
            elastic: 0,
        }
    }

    fn together(inbox: &[(u16, usize)], room: usize) -> usize {
        let inbox = inbox.iter().map(|(port, bytes)| one(*port, *bytes)).collect();
        gathered(&Datagrams { inbox, ..Datagrams::default() }, room)
    }

    /// What Linux joins: one sender, one length, and a shorter one at the end.
    #[test]
    fn datagrams_of_one_sender_and_length_are_received_together() {
        for (inbox, room, expected) in [
            (&[(9, 100)][..], 1000, 1),
            (&[(9, 100), (9, 100), (9, 100)], 1000, 3),
            (&[(9, 100), (9, 100), (9, 30), (9, 30)], 1000, 3),
            (&[(9, 100), (9, 101)], 1000, 1),
            (&[(9, 100), (8, 100)], 1000, 1),
            (&[(9, 100), (9, 0), (9, 100)], 1000, 1),
            (&[(9, 0), (9, 0)], 1000, 1),
            // No more than there is room for: nothing is cut off for it.
            (&[(9, 100), (9, 100), (9, 100)], 299, 2),
            (&[(9, 100), (9, 100)], 50, 1),
            (&[(9, 100); 70], 70_000, 64),
            (&[(9, 1400); 60], 70_000, 46),
        ] {
            assert_eq!(together(inbox, room), expected, "{inbox:?} {room}");
        }
    }
}
