//! Making connections, from `bind` to `close`. An error is an errno.
//!
//! Each socket has a real Linux socket under its descriptor, made before anybody can know whose it
//! is. `bind`, `connect` or `sendto` decide; until then, and for all that is Linux's, calls go there.
use crate::drive::{self, How, Interest, Stop};
use crate::fds::{self, Entry};
use crate::real;
use crate::route::Whose;
use crate::signals;
use crate::slab::Id;
use crate::socket::{Kind, Listener, Socket};
use crate::state::{Core, Port};
use crate::stream::{Phase, Stream};
use crate::sync::{Guard, lock};
use libc::{AF_INET, AF_INET6, SOCK_CLOEXEC, SOCK_DGRAM, SOCK_NONBLOCK, SOCK_STREAM, socklen_t};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// What an intercepted call does: it was done here, or the C library has to do it.
pub type Outcome<T> = Result<T, Instead>;

/// Why it was not done here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instead {
    /// It fails with this errno.
    Errno(i32),
    /// The socket is Linux's.
    Linux,
}

impl From<i32> for Instead {
    fn from(errno: i32) -> Instead {
        Instead::Errno(errno)
    }
}

/// Ports that the program is given when it does not say one (RFC 6056 asks for a wide range).
const EPHEMERAL: std::ops::Range<u16> = 32768..60999;
/// Most connections that wait at a listener, as Linux's `net.core.somaxconn`.
const BACKLOG_MAX: i32 = 4096;

/// The socket behind a descriptor.
pub fn socket_of(core: &Core, fd: RawFd) -> Outcome<Id> {
    match fds::get(fd) {
        Entry::Socket(index) => {
            let id = core.sockets.id_at(index).ok_or(Instead::Errno(libc::EBADF))?;
            match core.sockets.get(id).map(|socket| &socket.kind) {
                Some(Kind::Lost) => Err(crate::process::in_child().into()),
                _ => Ok(id),
            }
        }
        _ => Err(Instead::Linux),
    }
}

/// A new socket of the program: Linux's under its descriptor, and noted here.
pub fn made(fd: RawFd, domain: i32, kind: i32) {
    let stream = kind & 0xf == SOCK_STREAM;
    let nonblocking = kind & SOCK_NONBLOCK != 0;
    if fd as usize >= fds::FDS_MAX {
        let text = format!("descriptor {fd} stays Linux's: numbers above {} do", fds::FDS_MAX);
        return crate::log::once(crate::log::Once::Descriptors, &text);
    }
    let mut core = lock();
    let idle = Kind::Idle { stream, ix: false, both: false };
    put(&mut core, fd, Socket::new(idle, domain == AF_INET6, nonblocking));
}

/// Whether `socket` makes one that may become IX's.
pub fn may_be_ours(domain: i32, kind: i32, protocol: i32) -> bool {
    let plain = match kind & !(SOCK_NONBLOCK | SOCK_CLOEXEC) {
        SOCK_STREAM => protocol == 0 || protocol == libc::IPPROTO_TCP,
        SOCK_DGRAM => protocol == 0 || protocol == libc::IPPROTO_UDP,
        _ => false,
    };
    crate::seat::is_offered() && plain && (domain == AF_INET || domain == AF_INET6)
}

fn put(core: &mut Core, fd: RawFd, mut socket: Socket) -> Id {
    socket.fds = 1;
    let id = core.sockets.insert(socket);
    // A number that comes anew from Linux while we still have it was closed behind our back.
    drop_entry(core, fds::replace(fd, Entry::Socket(fds::index_of(id))));
    id
}

/// One descriptor less for what stood there.
pub fn drop_entry(core: &mut Core, entry: Entry) {
    match entry {
        Entry::Linux | Entry::Private => {}
        Entry::Socket(index) => {
            let Some(id) = core.sockets.id_at(index) else { return };
            let Some(socket) = core.sockets.get_mut(id) else { return };
            socket.fds = socket.fds.saturating_sub(1);
            if socket.fds == 0 {
                core.close(id);
            }
        }
        Entry::Epoll(index) => {
            let Some(id) = core.sets.id_at(index) else { return };
            let Some(set) = core.sets.get_mut(id) else { return };
            set.fds = set.fds.saturating_sub(1);
            if set.fds == 0 {
                core.sets.remove(id);
            }
        }
    }
}

/// One more descriptor for what `from` names.
pub fn duplicated(from: RawFd, to: RawFd) {
    let mut core = lock();
    let entry = fds::get(from);
    match entry {
        Entry::Linux | Entry::Private => {}
        Entry::Socket(index) => {
            if let Some(id) = core.sockets.id_at(index)
                && let Some(socket) = core.sockets.get_mut(id)
            {
                socket.fds += 1;
            }
        }
        Entry::Epoll(index) => {
            if let Some(id) = core.sets.id_at(index)
                && let Some(set) = core.sets.get_mut(id)
            {
                set.fds += 1;
            }
        }
    }
    let before = fds::replace(to, entry);
    drop_entry(&mut core, before);
}

/// The socket is Linux's for good.
fn leave_to_linux(core: &mut Core, id: Id) {
    if let Some(socket) = core.sockets.get_mut(id) {
        socket.kind = Kind::Linux;
    }
}

/// Where Linux has bound the socket under a descriptor.
fn linux_name(fd: RawFd) -> Result<SocketAddr, i32> {
    let mut room = [0u64; 16];
    let mut len = size_of_val(&room) as socklen_t;
    // SAFETY: room of ours with its length.
    unsafe {
        if real::getsockname(fd, room.as_mut_ptr().cast(), &mut len) < 0 {
            return Err(real::errno());
        }
        crate::mem::read_address(room.as_ptr().cast(), len)
    }
}

/// `bind`.
pub fn bind(fd: RawFd, at: SocketAddr, on_linux: impl FnOnce() -> i32) -> Outcome<()> {
    let mut core = lock();
    let id = socket_of(&core, fd)?;
    let whose = core.routes.bind(at.ip());
    let Some(socket) = core.sockets.get_mut(id) else { return Err(libc::EBADF.into()) };
    let Kind::Idle { stream, ix: false, both: false } = socket.kind else {
        return Err(if socket.is_linux() { Instead::Linux } else { libc::EINVAL.into() });
    };
    let v6_only = socket.ipv6 && socket.options.v6_only;
    match whose {
        Whose::Linux => leave_to_linux(&mut core, id),
        _ if v6_only => leave_to_linux(&mut core, id),
        Whose::Both => {
            if on_linux() < 0 {
                return Err(real::errno().into());
            }
            let at = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), linux_name(fd)?.port());
            let options = socket.options.clone();
            if in_use(&core, id, at, stream, &options) {
                return Err(libc::EADDRINUSE.into());
            }
            let given = !stream && at.port() != 0 && !is_ephemeral(fd, at);
            if let Some(socket) = core.sockets.get_mut(id) {
                socket.bound = Some(at);
                socket.kind = Kind::Idle { stream, ix: stream, both: true };
            }
            // A UDP server; a client's socket waits for its first destination.
            if given {
                return become_datagrams(core, id);
            }
            return Ok(());
        }
        Whose::Ix => {
            let options = socket.options.clone();
            let port = match at.port() {
                0 => free_port(&core, id, at.ip(), stream)?,
                port => port,
            };
            let at = SocketAddr::new(at.ip(), port);
            if in_use(&core, id, at, stream, &options) {
                return Err(libc::EADDRINUSE.into());
            }
            if let Some(socket) = core.sockets.get_mut(id) {
                socket.bound = Some(at);
                socket.kind = Kind::Idle { stream, ix: true, both: false };
            }
            if !stream {
                return become_datagrams(core, id);
            }
            return Ok(());
        }
    }
    Err(Instead::Linux)
}

/// Whether the program left the choice of the port to Linux: then it is a client's.
fn is_ephemeral(_fd: RawFd, at: SocketAddr) -> bool {
    EPHEMERAL.contains(&at.port())
}

/// Whether another socket of this process is bound there in a way that excludes this one.
fn in_use(
    core: &Core,
    id: Id,
    at: SocketAddr,
    stream: bool,
    options: &crate::socket::Options,
) -> bool {
    core.sockets.ids().into_iter().filter(|other| *other != id).any(|other| {
        let Some(other) = core.sockets.get(other) else { return false };
        let Some(theirs) = other.bound else { return false };
        let overlaps = theirs.port() == at.port()
            && (theirs.ip() == at.ip() || theirs.ip().is_unspecified() || at.ip().is_unspecified());
        let other_stream = match other.kind {
            Kind::Idle { stream, .. } => stream,
            Kind::Datagrams(_) => false,
            Kind::Linux | Kind::Lost => return false,
            _ => true,
        };
        let listens = matches!(other.kind, Kind::Listener(_));
        let share_address =
            options.reuse_address && other.options.reuse_address && !(stream && listens);
        let share_port = options.reuse_port && other.options.reuse_port;
        overlaps && other_stream == stream && other.fds > 0 && !share_address && !share_port
    })
}

fn free_port(core: &Core, id: Id, ip: IpAddr, stream: bool) -> Result<u16, i32> {
    let span = EPHEMERAL.end - EPHEMERAL.start;
    let mut random = 0u16;
    // SAFETY: two bytes of ours.
    unsafe { libc::getrandom((&raw mut random).cast(), 2, libc::GRND_NONBLOCK) };
    let strict = crate::socket::Options::default();
    let mut ports = (0..span).map(|n| EPHEMERAL.start + (random % span + n) % span);
    let free = |port: &u16| !in_use(core, id, SocketAddr::new(ip, *port), stream, &strict);
    ports.find(free).ok_or(libc::EADDRINUSE)
}

/// From now on it is a UDP socket of IX.
pub fn become_datagrams(mut core: Guard, id: Id) -> Outcome<()> {
    let Some(socket) = core.sockets.get(id) else { return Err(libc::EBADF.into()) };
    if socket.bound.is_none() {
        let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let port = free_port(&core, id, any, false)?;
        if let Some(socket) = core.sockets.get_mut(id) {
            socket.bound = Some(SocketAddr::new(any, port));
        }
    }
    if let Some(socket) = core.sockets.get_mut(id) {
        socket.kind = Kind::Datagrams(Box::default());
    }
    move_watches(&mut core, id);
    core.touch(id);
    if core.tx.is_none() {
        // Noted: it begins in the process that waits or sends.
        return Ok(());
    }
    let (_core, result) = soon(core, Interest::Socket(id), |core| {
        let socket = core.sockets.get_mut(id)?;
        match socket.take_error() {
            0 => socket.datagrams()?.id.map(|_| Ok(())),
            errno => Some(Err(errno)),
        }
    });
    Ok(result?)
}

/// What was put into epoll sets as Linux's is IX's now.
fn move_watches(core: &mut Core, id: Id) {
    let Some(socket) = core.sockets.get(id) else { return };
    for watch in socket.watches.clone() {
        if let Some(set) = core.sets.get_mut(watch.set) {
            set.becomes_ours(watch.fd);
        }
    }
    core.tell(id, !0);
}

/// Waits for an answer of the dataplane that comes with the next cycle.
fn soon<T>(
    core: Guard,
    interest: Interest<'_>,
    mut ready: impl FnMut(&mut Core) -> Option<Result<T, i32>>,
) -> (Guard, Result<T, i32>) {
    let until = Some(Instant::now() + Duration::from_secs(5));
    let how = How { interest, until, linux: None, drives: true };
    let mut core = core;
    loop {
        let (back, result) = drive::wait(core, how, &mut ready);
        match result {
            Ok(value) => return (back, value),
            // It does not take long: the handler has run, the call goes on.
            Err(Stop::Interrupted | Stop::Linux) => signals::reset(),
            Err(Stop::TimedOut) => return (back, Err(libc::ENETDOWN)),
        }
        core = back;
    }
}

/// `listen`. `on_linux` does the same to the Linux socket under the descriptor.
pub fn listen(fd: RawFd, backlog: i32, on_linux: impl FnOnce() -> i32) -> Outcome<()> {
    let mut core = lock();
    let id = socket_of(&core, fd)?;
    let backlog = if backlog < 0 { BACKLOG_MAX } else { backlog.min(BACKLOG_MAX) };
    let Some(socket) = core.sockets.get_mut(id) else { return Err(libc::EBADF.into()) };
    let reuse_port = socket.options.reuse_port;
    let (at, both) = match &mut socket.kind {
        Kind::Linux | Kind::Lost => return Err(Instead::Linux),
        Kind::Listener(listener) => {
            listener.backlog = backlog as usize;
            return Ok(());
        }
        Kind::Idle { stream: true, ix, both } if *ix => (socket.bound, *both),
        // Without `bind`, Linux chooses a port; so for all addresses.
        Kind::Idle { stream: true, .. } if !(socket.ipv6 && socket.options.v6_only) => (None, true),
        Kind::Idle { .. } => return Err(Instead::Linux),
        Kind::Stream(_) => return Err(libc::EINVAL.into()),
        Kind::Datagrams(_) => return Err(libc::EOPNOTSUPP.into()),
    };
    if both {
        // It must not block: connections come from two sides.
        // SAFETY: no pointers.
        unsafe {
            let flags = real::fcntl(fd, libc::F_GETFL, 0);
            real::fcntl(fd, libc::F_SETFL, (flags | libc::O_NONBLOCK) as usize);
        }
        if on_linux() < 0 {
            return Err(real::errno().into());
        }
    }
    let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let at = match at {
        Some(at) => at,
        None => SocketAddr::new(any, linux_name(fd)?.port()),
    };
    let port = join_port(&mut core, id, at, backlog, reuse_port)?;
    if let Some(socket) = core.sockets.get_mut(id) {
        socket.bound = Some(at);
        let (queue, backlog) = (VecDeque::new(), backlog as usize);
        socket.kind = Kind::Listener(Listener { port, backlog, queue, both, shut: false });
    }
    for watch in core.sockets.get(id).map_or(Vec::new(), |socket| socket.watches.clone()) {
        if let Some(set) = core.sets.get_mut(watch.set) {
            if both { set.becomes_both(watch.fd) } else { set.becomes_ours(watch.fd) }
        }
    }
    if core.tx.is_none() {
        // Noted: it begins in the process that waits for connections.
        return Ok(());
    }
    let (mut core, result) = soon(core, Interest::Socket(id), |core| {
        core.ports.get(port)?.listener.map(|answer| answer.map(drop).map_err(crate::emit::errno_of))
    });
    if result.is_err() {
        core.ports.remove(port);
        if let Some(socket) = core.sockets.get_mut(id) {
            socket.kind = Kind::Idle { stream: true, ix: true, both };
        }
    }
    Ok(result?)
}

fn join_port(
    core: &mut Core,
    id: Id,
    at: SocketAddr,
    backlog: i32,
    reuse_port: bool,
) -> Result<Id, i32> {
    let same = core.ports.ids().into_iter().find(|port| {
        core.ports.get(*port).is_some_and(|port| port.at == at && !port.members.is_empty())
    });
    let Some(port) = same else {
        let backlog = backlog.max(1) as u32;
        let (members, next) = (vec![id], 0);
        let port = core.ports.insert(Port { listener: None, members, next, at, backlog });
        core.new_ports.push(port);
        return Ok(port);
    };
    let Some(entry) = core.ports.get_mut(port).filter(|_| reuse_port) else {
        return Err(libc::EADDRINUSE);
    };
    entry.members.push(id);
    Ok(port)
}

/// `connect`.
pub fn connect(fd: RawFd, to: SocketAddr) -> Outcome<()> {
    signals::reset();
    let mut core = lock();
    let id = socket_of(&core, fd)?;
    let whose = core.routes.connect(to.ip());
    let Some(socket) = core.sockets.get_mut(id) else { return Err(libc::EBADF.into()) };
    let nonblocking = socket.nonblocking;
    let timeout = socket.options.send_timeout;
    match &mut socket.kind {
        Kind::Linux | Kind::Lost => return Err(Instead::Linux),
        Kind::Listener(_) => return Err(libc::EISCONN.into()),
        Kind::Datagrams(udp) => {
            udp.peer = Some(to);
            return Ok(());
        }
        Kind::Idle { stream, ix, .. } => {
            let (stream, ix) = (*stream, *ix);
            let bound_elsewhere = ix && socket.bound.is_some_and(|at| at.ip().is_unspecified());
            if whose == Whose::Linux && (!ix || bound_elsewhere) {
                leave_to_linux(&mut core, id);
                return Err(Instead::Linux);
            }
            if !stream {
                become_datagrams(core, id)?;
                core = lock();
                if let Some(udp) = core.sockets.get_mut(id).and_then(Socket::datagrams) {
                    udp.peer = Some(to);
                }
                return Ok(());
            }
            drive::enter(&mut core)?;
            if let Some(socket) = core.sockets.get_mut(id) {
                let stream = Stream::new(Phase::ToConnect, 0, to, None);
                socket.kind = Kind::Stream(Box::new(stream));
                if let Some(stream) = socket.stream() {
                    stream.options_changed = true;
                }
            }
            move_watches(&mut core, id);
            core.touch(id);
            if nonblocking {
                // The SYN goes now.
                drop(drive::poll(core));
                return Err(libc::EINPROGRESS.into());
            }
        }
        Kind::Stream(stream) => match stream.phase {
            Phase::ToAccept => return Err(libc::EISCONN.into()),
            Phase::Open if stream.announced => return Err(libc::EISCONN.into()),
            Phase::Open | Phase::Dead if stream.was_open => {
                let first = !core::mem::replace(&mut stream.announced, true);
                return if first { Ok(()) } else { Err(libc::EISCONN.into()) };
            }
            // The attempt failed: that is said once, then a new one may begin.
            Phase::Dead | Phase::Open => return Err(failed_to_connect(socket).into()),
            Phase::ToConnect | Phase::Connecting if nonblocking => {
                return Err(libc::EALREADY.into());
            }
            Phase::ToConnect | Phase::Connecting => {}
        },
    }
    let until = timeout.map(|timeout| Instant::now() + timeout);
    let how = How { interest: Interest::Socket(id), until, linux: None, drives: true };
    loop {
        let (back, result) = drive::wait(core, how, |core| {
            let socket = core.sockets.get_mut(id)?;
            match socket.stream()?.phase {
                Phase::ToConnect | Phase::Connecting => None,
                Phase::Dead => Some(Err(failed_to_connect(socket))),
                _ => {
                    socket.stream()?.announced = true;
                    Some(Ok(()))
                }
            }
        });
        match result {
            Ok(outcome) => return Ok(outcome?),
            Err(Stop::TimedOut) => return Err(libc::EINPROGRESS.into()),
            Err(Stop::Linux) => {}
            Err(Stop::Interrupted) if signals::interrupted() == 1 && timeout.is_none() => {
                signals::reset();
            }
            Err(Stop::Interrupted) => return Err(libc::EINTR.into()),
        }
        core = back;
    }
}

/// A connection attempt has failed, and the program hears why: the socket is as good as new.
fn failed_to_connect(socket: &mut Socket) -> i32 {
    socket.kind = Kind::Idle { stream: true, ix: true, both: false };
    match socket.take_error() {
        0 => libc::ECONNABORTED,
        errno => errno,
    }
}

/// `accept4`. `on_linux` asks the Linux socket under the descriptor, which does not block; it answers
/// a descriptor, or an errno below 0. Answers the new descriptor, and its peer if it is IX's.
pub fn accept(
    fd: RawFd,
    flags: i32,
    on_linux: impl Fn() -> i32,
) -> Outcome<(RawFd, Option<(SocketAddr, bool)>)> {
    if flags & !(SOCK_NONBLOCK | SOCK_CLOEXEC) != 0 {
        return Err(libc::EINVAL.into());
    }
    signals::reset();
    let mut core = lock();
    let id = socket_of(&core, fd)?;
    let Some(socket) = core.sockets.get_mut(id) else { return Err(libc::EBADF.into()) };
    let (nonblocking, timeout) = (socket.nonblocking, socket.options.receive_timeout);
    let both = match &socket.kind {
        Kind::Linux | Kind::Idle { .. } | Kind::Lost => return Err(Instead::Linux),
        Kind::Listener(listener) => listener.both,
        Kind::Stream(_) => return Err(libc::EINVAL.into()),
        Kind::Datagrams(_) => return Err(libc::EOPNOTSUPP.into()),
    };
    let until = timeout.map(|timeout| Instant::now() + timeout);
    let linux = both.then_some(fd);
    let how = How { interest: Interest::Socket(id), until, linux, drives: true };
    loop {
        if let Some(accepted) = take_connection(&mut core, id, flags)? {
            return Ok(accepted);
        }
        if both {
            let accepted = on_linux();
            if accepted >= 0 {
                return Ok((accepted, None));
            }
            match real::errno() {
                libc::EAGAIN | libc::EINTR => {}
                errno => return Err(errno.into()),
            }
        }
        if nonblocking {
            core = again(core, id);
            return match take_connection(&mut core, id, flags)? {
                Some(accepted) => Ok(accepted),
                None => Err(libc::EAGAIN.into()),
            };
        }
        let (back, result) = drive::wait(core, how, |core| {
            let socket = core.sockets.get_mut(id)?;
            let ready = socket.listener().is_none_or(|l| l.shut || !l.queue.is_empty());
            ready.then_some(())
        });
        core = back;
        match result {
            Ok(()) | Err(Stop::Linux) => {}
            Err(Stop::TimedOut) => return Err(libc::EAGAIN.into()),
            Err(Stop::Interrupted) if signals::interrupted() == 1 && timeout.is_none() => {
                signals::reset();
            }
            Err(Stop::Interrupted) => return Err(libc::EINTR.into()),
        }
    }
}

/// A call has found nothing to do. One that asks a second time within a cycle gets a cycle: it may
/// be a program that only asks, and never waits.
pub fn again(core: Guard, id: Id) -> Guard {
    let mut core = core;
    let cycle = core.cycle;
    let Some(socket) = core.sockets.get_mut(id) else { return core };
    if socket.idle_cycle == cycle {
        return drive::poll(core);
    }
    socket.idle_cycle = cycle;
    core
}

type Accepted = (RawFd, Option<(SocketAddr, bool)>);

fn take_connection(core: &mut Guard, id: Id, flags: i32) -> Outcome<Option<Accepted>> {
    let Some(socket) = core.sockets.get_mut(id) else { return Err(libc::EBADF.into()) };
    let ipv6 = socket.ipv6;
    let Some(listener) = socket.listener() else { return Err(libc::EINVAL.into()) };
    if listener.shut {
        return Err(libc::EINVAL.into());
    }
    if listener.queue.is_empty() {
        return Ok(None);
    }
    let domain = if ipv6 { AF_INET6 } else { AF_INET };
    // The lock is held: the number must not be somebody else's in between.
    // SAFETY: no pointers.
    let fd = unsafe { real::socket(domain, SOCK_STREAM | flags, 0) };
    if fd < 0 {
        return Err(real::errno().into());
    }
    let listener = core.sockets.get_mut(id).and_then(Socket::listener);
    let Some(accepted) = listener.and_then(|listener| listener.queue.pop_front()) else {
        return Ok(None);
    };
    let Some(socket) = core.sockets.get_mut(accepted) else { return Err(libc::EBADF.into()) };
    socket.fds = 1;
    socket.nonblocking = flags & SOCK_NONBLOCK != 0;
    let Some(stream) = socket.stream() else { return Err(libc::EBADF.into()) };
    stream.queued_at = None;
    let peer = stream.peer;
    let before = fds::replace(fd, Entry::Socket(fds::index_of(accepted)));
    drop_entry(core, before);
    Ok(Some((fd, Some((peer, ipv6)))))
}

/// `shutdown`.
pub fn shutdown(fd: RawFd, how: i32) -> Outcome<()> {
    let (read, write) = match how {
        libc::SHUT_RD => (true, false),
        libc::SHUT_WR => (false, true),
        libc::SHUT_RDWR => (true, true),
        _ => return Err(libc::EINVAL.into()),
    };
    let mut core = lock();
    let id = socket_of(&core, fd)?;
    let Some(socket) = core.sockets.get_mut(id) else { return Err(libc::EBADF.into()) };
    match &mut socket.kind {
        Kind::Linux | Kind::Idle { .. } | Kind::Lost => return Err(Instead::Linux),
        Kind::Listener(listener) => {
            listener.shut |= read;
            if listener.both && read {
                // SAFETY: no pointers. It ends the Linux side.
                unsafe { real::shutdown(fd, how) };
            }
            if read {
                core.end_listener(id);
            }
        }
        Kind::Datagrams(udp) => {
            if udp.peer.is_none() {
                return Err(libc::ENOTCONN.into());
            }
            udp.read_shut |= read;
            udp.write_shut |= write;
        }
        Kind::Stream(stream) => {
            if stream.phase == Phase::Dead || stream.is_connecting() {
                return Err(libc::ENOTCONN.into());
            }
            stream.read_shut |= read;
            stream.write_shut |= write;
        }
    }
    core.touch(id);
    core.tell(id, !0);
    Ok(())
}

/// `getsockname`: the address, and whether the program wants it as one of IPv6.
pub fn own_name(fd: RawFd) -> Outcome<(SocketAddr, bool)> {
    let mut core = lock();
    let id = socket_of(&core, fd)?;
    let Some(socket) = core.sockets.get_mut(id) else { return Err(libc::EBADF.into()) };
    let (ipv6, bound) = (socket.ipv6, socket.bound);
    let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
    match &mut socket.kind {
        Kind::Linux | Kind::Lost => return Err(Instead::Linux),
        Kind::Idle { both: false, ix: true, .. } => return Ok((bound.unwrap_or(any), ipv6)),
        Kind::Idle { .. } => return Err(Instead::Linux),
        Kind::Listener(_) => return Ok((bound.unwrap_or(any), ipv6)),
        Kind::Datagrams(udp) => {
            let (peer, bound) = (udp.peer, bound.unwrap_or(any));
            let own = core.address.filter(|_| peer.is_some() && bound.ip().is_unspecified());
            return Ok((SocketAddr::new(own.unwrap_or(bound.ip()), bound.port()), ipv6));
        }
        Kind::Stream(stream) => {
            if let Some(local) = stream.local {
                return Ok((local, ipv6));
            }
            if stream.phase == Phase::Dead {
                return Ok((bound.unwrap_or(any), ipv6));
            }
            stream.wants_info = true;
        }
    }
    core.touch(id);
    let (_core, local) = soon(core, Interest::Socket(id), |core| {
        let stream = core.sockets.get_mut(id)?.stream()?;
        match stream.local {
            None if stream.phase == Phase::Dead => Some(Err(libc::ENOTCONN)),
            local => local.map(Ok),
        }
    });
    Ok((local?, ipv6))
}

/// `getpeername`, in the same way.
pub fn peer_name(fd: RawFd) -> Outcome<(SocketAddr, bool)> {
    let mut core = lock();
    let id = socket_of(&core, fd)?;
    let Some(socket) = core.sockets.get_mut(id) else { return Err(libc::EBADF.into()) };
    let ipv6 = socket.ipv6;
    match &mut socket.kind {
        Kind::Linux | Kind::Idle { .. } | Kind::Lost => Err(Instead::Linux),
        Kind::Listener(_) => Err(libc::ENOTCONN.into()),
        Kind::Datagrams(udp) => Ok((udp.peer.ok_or(libc::ENOTCONN)?, ipv6)),
        Kind::Stream(stream) => {
            let gone = stream.phase == Phase::Dead || stream.is_connecting();
            if gone { Err(libc::ENOTCONN.into()) } else { Ok((stream.peer, ipv6)) }
        }
    }
}

/// `GET_INFO` of a connection, as it is now.
pub fn info(core: Guard, id: Id) -> Option<ix_abi::FlowInfo> {
    let mut core = core;
    let stream = core.sockets.get_mut(id)?.stream()?;
    if stream.phase == Phase::Dead {
        return None;
    }
    stream.wants_info = true;
    stream.info = None;
    core.touch(id);
    let (_core, info) = soon(core, Interest::Socket(id), |core| {
        let stream = core.sockets.get_mut(id)?.stream()?;
        match &stream.info {
            None if stream.phase == Phase::Dead => Some(Err(libc::ENOTCONN)),
            info => info.as_deref().copied().map(Ok),
        }
    });
    info.ok()
}

/// `connect` to no address: a UDP socket has no peer any more.
pub fn disconnect(fd: RawFd) -> Outcome<()> {
    let mut core = lock();
    let id = socket_of(&core, fd)?;
    let Some(socket) = core.sockets.get_mut(id) else { return Err(libc::EBADF.into()) };
    match &mut socket.kind {
        Kind::Linux | Kind::Idle { .. } | Kind::Lost => Err(Instead::Linux),
        Kind::Datagrams(udp) => {
            udp.peer = None;
            Ok(())
        }
        // What Linux answers where a protocol cannot.
        Kind::Listener(_) | Kind::Stream(_) => Err(libc::EOPNOTSUPP.into()),
    }
}

/// A listener that serves both sides never blocks on Linux's, whatever the program has asked for.
pub fn keep_nonblocking(fd: RawFd) {
    let core = lock();
    let Ok(id) = socket_of(&core, fd) else { return };
    let both = core.sockets.get(id).map(|s| matches!(&s.kind, Kind::Listener(l) if l.both));
    drop(core);
    if both == Some(true) {
        // SAFETY: no pointers.
        unsafe {
            let flags = real::fcntl(fd, libc::F_GETFL, 0);
            real::fcntl(fd, libc::F_SETFL, (flags | libc::O_NONBLOCK) as usize);
        }
    }
}

/// `close` of a connection with `SO_LINGER` waits until all is acknowledged, for so long.
pub fn linger(fd: RawFd) {
    let mut core = lock();
    let Ok(id) = socket_of(&core, fd) else { return };
    let Some(socket) = core.sockets.get_mut(id) else { return };
    let Some(time) = socket.options.linger.filter(|time| !time.is_zero()) else { return };
    if socket.fds > 1 {
        return;
    }
    let Some(stream) = socket.stream() else { return };
    if stream.phase != Phase::Open || stream.inbox.len() > 0 {
        return;
    }
    stream.write_shut = true;
    core.touch(id);
    signals::reset();
    let until = Some(Instant::now() + time);
    let how = How { interest: Interest::Socket(id), until, linux: None, drives: true };
    let _ = drive::wait(core, how, |core| {
        let Some(stream) = core.sockets.get_mut(id).and_then(Socket::stream) else {
            return Some(());
        };
        (stream.phase == Phase::Dead || (stream.outbox.len() == 0 && stream.fin)).then_some(())
    });
}
