//! A program's sockets on top of the dataplane's batched calls: what a script, or packetdrill through
//! its plug-in interface, calls. No call waits here: one that would answers `EAGAIN`, and its caller
//! lets time pass.
use crate::settings::Settings;
use crate::stack::{Addresses, Stack, Told};
use libc::c_int;
use libix::raw::{Event, TxBuf, call};
use libix::{Dead, Error};
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

/// What a call answers: a number, or an errno.
pub type Answer = Result<i64, c_int>;

/// What a socket is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Neither connected nor listening.
    Fresh,
    /// Listening.
    Listener,
    /// A connection attempt is under way.
    Connecting,
    /// A connection, perhaps one that has ended.
    Connection,
    /// A UDP socket with its id.
    Datagrams(u64),
}

/// One socket.
pub struct Socket {
    /// What it is.
    pub role: Role,
    /// `O_NONBLOCK`.
    pub nonblocking: bool,
    datagrams: bool,
    /// The dataplane's name of the flow.
    pub handle: u64,
    listener: u64,
    port: u16,
    knocking: VecDeque<(u64, SocketAddr)>,
    received: VecDeque<u8>,
    datagrams_in: VecDeque<(Vec<u8>, SocketAddr)>,
    unsent: VecDeque<u8>,
    in_flight: VecDeque<(TxBuf, usize)>,
    in_flight_bytes: usize,
    /// Octets of the stream written so far: the place of the next one.
    pub written: u64,
    /// Octets of the stream read so far.
    pub read: u64,
    send_buffer: usize,
    eof: bool,
    dead: Option<Dead>,
    error: c_int,
    shut_write: bool,
    shut_read: bool,
    fin_given: bool,
    closing: bool,
    linger: Option<u32>,
    nodelay: bool,
    keepalive: bool,
    keepalive_idle_s: u16,
    /// Counts what edge-triggered waiting has to notice.
    news: u64,
}

/// The payload octet at a place of a stream.
pub fn octet(place: u64) -> u8 {
    ((place as u32).wrapping_mul(2_654_435_761) >> 24) as u8
}

/// So many octets from a place on.
pub fn octets(place: u64, len: usize) -> Vec<u8> {
    (place..place + len as u64).map(octet).collect()
}

/// The sockets of one program.
pub struct Sockets {
    /// Parameters; changes count until the stack starts.
    pub settings: Settings,
    /// The two ends.
    pub at: Addresses,
    start_us: u64,
    sockets: BTreeMap<c_int, Socket>,
    epolls: BTreeMap<c_int, Vec<Watch>>,
    /// Transmit memory of flows that end without a socket.
    buried: Vec<TxBuf>,
    next: c_int,
    /// After everything that holds memory of it: fields are dropped in order.
    stack: Option<Stack>,
}

struct Watch {
    fd: c_int,
    events: u32,
    data: u64,
    seen: Option<(u32, u64)>,
    spent: bool,
}

impl Sockets {
    /// No sockets yet; the stack starts when it is first needed.
    pub fn new(settings: Settings, at: Addresses, start_us: u64) -> Sockets {
        let (sockets, epolls) = (BTreeMap::new(), BTreeMap::new());
        let buried = Vec::new();
        Sockets { settings, at, start_us, sockets, epolls, buried, next: 3, stack: None }
    }

    /// Whether settings are fixed.
    pub fn started(&self) -> bool {
        self.stack.is_some()
    }

    /// The stack, started now if it was not.
    pub fn stack(&mut self) -> &mut Stack {
        let Sockets { settings, at, start_us, stack, .. } = self;
        stack.get_or_insert_with(|| {
            Stack::new(settings.tcp.clone(), 128, *at, settings.mtu.into(), *start_us)
        })
    }

    /// Virtual time, µs.
    pub fn now_us(&self) -> u64 {
        self.stack.as_ref().map_or(self.start_us, Stack::now_us)
    }

    /// Lets time pass: timers fire, each at its time.
    pub fn advance(&mut self, until_us: u64) {
        if self.stack.is_none() {
            self.start_us = self.start_us.max(until_us);
            return;
        }
        self.settle();
        while let Some(due_us) = self.stack().next_deadline_us()
            && due_us <= until_us
        {
            let after_us = self.now_us() + 1;
            self.stack().set_now(due_us.max(after_us));
            self.settle();
        }
        self.stack().set_now(until_us);
        self.settle();
    }

    /// A packet arrives.
    pub fn deliver(&mut self, packet: &[u8]) {
        self.stack().deliver(packet);
        self.settle();
    }

    /// Runs cycles, and does in between what a program would, until nothing is left to do now.
    fn settle(&mut self) {
        for _ in 0..100_000 {
            self.stack().cycle();
            self.digest();
            if self.stack().is_at_rest() {
                return;
            }
        }
        panic!("the elastic thread does not come to rest");
    }

    /// The socket of a descriptor.
    pub fn get(&self, fd: c_int) -> Result<&Socket, c_int> {
        self.sockets.get(&fd).ok_or(libc::EBADF)
    }

    fn get_mut(&mut self, fd: c_int) -> Result<&mut Socket, c_int> {
        self.sockets.get_mut(&fd).filter(|socket| !socket.closing).ok_or(libc::EBADF)
    }

    fn insert(&mut self, datagrams: bool) -> c_int {
        let fd = self.next;
        self.next += 1;
        let socket = Socket {
            role: Role::Fresh,
            nonblocking: false,
            datagrams,
            handle: 0,
            listener: 0,
            port: 0,
            knocking: VecDeque::new(),
            received: VecDeque::new(),
            datagrams_in: VecDeque::new(),
            unsent: VecDeque::new(),
            in_flight: VecDeque::new(),
            in_flight_bytes: 0,
            written: 0,
            read: 0,
            send_buffer: self.settings.send_buffer_bytes,
            eof: false,
            dead: None,
            error: 0,
            shut_write: false,
            shut_read: false,
            fin_given: false,
            closing: false,
            linger: None,
            nodelay: !self.settings.tcp.nagle,
            keepalive: false,
            keepalive_idle_s: 7200,
            news: 0,
        };
        self.sockets.insert(fd, socket);
        fd
    }

    /// `socket`
    pub fn socket(&mut self, kind: c_int) -> Answer {
        let datagrams = match kind & 0xf {
            libc::SOCK_STREAM => false,
            libc::SOCK_DGRAM => true,
            _ => return Err(libc::EPROTONOSUPPORT),
        };
        let fd = self.insert(datagrams);
        if let Ok(socket) = self.get_mut(fd) {
            socket.nonblocking = kind & libc::SOCK_NONBLOCK != 0;
        }
        Ok(fd.into())
    }

    /// `bind`
    pub fn bind(&mut self, fd: c_int, port: u16) -> Answer {
        let socket = self.get_mut(fd)?;
        if socket.port != 0 || socket.role != Role::Fresh {
            return Err(libc::EINVAL);
        }
        socket.port = port;
        if socket.datagrams {
            let at = SocketAddr::new(IpAddr::V4(self.at.local), port);
            let id = self.stack().call(call::udp_bind(at, cookie(fd))).map_err(errno_of)?;
            self.get_mut(fd)?.role = Role::Datagrams(id);
        }
        Ok(0)
    }

    /// `listen`
    pub fn listen(&mut self, fd: c_int, backlog: i32) -> Answer {
        let socket = self.get_mut(fd)?;
        match socket.role {
            Role::Fresh if !socket.datagrams => {}
            Role::Listener => return Ok(0),
            _ => return Err(libc::EINVAL),
        }
        let port = if socket.port == 0 { 8080 } else { socket.port };
        let at = SocketAddr::new(IpAddr::V4(self.at.local), port);
        let backlog = backlog.clamp(1, 4096) as u32;
        let id = self.stack().call(call::listen(at, backlog, cookie(fd))).map_err(errno_of)?;
        let socket = self.get_mut(fd)?;
        (socket.role, socket.listener) = (Role::Listener, id);
        Ok(0)
    }

    /// `accept`: the new descriptor.
    pub fn accept(&mut self, fd: c_int) -> Answer {
        let socket = self.get_mut(fd)?;
        if socket.role != Role::Listener {
            return Err(libc::EINVAL);
        }
        let nodelay = socket.nodelay;
        let (keepalive, idle_s) = (socket.keepalive, socket.keepalive_idle_s);
        loop {
            let (handle, _) = self.get_mut(fd)?.knocking.pop_front().ok_or(libc::EAGAIN)?;
            let new = self.insert(false);
            if self.stack().call(call::accept(handle, cookie(new))).is_err() {
                // It died while it waited.
                self.sockets.remove(&new);
                self.next -= 1;
                continue;
            }
            let socket = self.get_mut(new)?;
            (socket.role, socket.handle) = (Role::Connection, handle);
            if nodelay != socket.nodelay {
                self.set_nodelay(new, nodelay)?;
            }
            if keepalive {
                self.set_keepalive(new, true, idle_s)?;
            }
            self.settle();
            return Ok(new.into());
        }
    }

    /// `connect`. `EINPROGRESS` when it begins, `EALREADY` while it lasts.
    pub fn connect(&mut self, fd: c_int, port: u16) -> Answer {
        let socket = self.get_mut(fd)?;
        match socket.role {
            Role::Fresh if socket.error != 0 => return Err(std::mem::take(&mut socket.error)),
            Role::Fresh if !socket.datagrams => {}
            Role::Connecting => return Err(libc::EALREADY),
            Role::Connection => return Err(libc::EISCONN),
            _ => return Err(libc::EOPNOTSUPP),
        }
        let local_port = socket.port;
        let to = SocketAddr::new(IpAddr::V4(self.at.remote), port);
        let connect = call::connect(cookie(fd), to, local_port);
        let handle = self.stack().call(connect).map_err(errno_of)?;
        let socket = self.get_mut(fd)?;
        (socket.role, socket.handle) = (Role::Connecting, handle);
        let (nodelay, keepalive, idle_s) =
            (socket.nodelay, socket.keepalive, socket.keepalive_idle_s);
        if nodelay == self.settings.tcp.nagle {
            self.set_nodelay(fd, nodelay)?;
        }
        if keepalive {
            self.set_keepalive(fd, true, idle_s)?;
        }
        self.settle();
        Err(libc::EINPROGRESS)
    }

    /// How a connection attempt stands: `EALREADY`, 0, or why it failed.
    pub fn connected(&mut self, fd: c_int) -> Answer {
        let socket = self.get_mut(fd)?;
        match (socket.role, socket.error) {
            (Role::Connecting, _) => Err(libc::EALREADY),
            (Role::Connection, 0) => Ok(0),
            _ => Err(std::mem::take(&mut socket.error)),
        }
    }

    /// `write` of the next `len` octets of the stream; answers how many were taken.
    pub fn write(&mut self, fd: c_int, len: usize) -> Answer {
        let socket = self.get_mut(fd)?;
        if socket.error != 0 {
            return Err(std::mem::take(&mut socket.error));
        }
        match socket.role {
            _ if socket.shut_write || socket.dead.is_some() => return Err(libc::EPIPE),
            Role::Connection => {}
            Role::Connecting => return Err(libc::EAGAIN),
            _ => return Err(libc::ENOTCONN),
        }
        let buffered = socket.unsent.len() + socket.in_flight_bytes;
        let taken = len.min(socket.send_buffer.saturating_sub(buffered));
        if taken == 0 && len > 0 {
            return Err(libc::EAGAIN);
        }
        socket.unsent.extend(octets(socket.written, taken));
        socket.written += taken as u64;
        self.push(fd);
        self.settle();
        Ok(taken as i64)
    }

    /// `recv`: takes (or looks at) up to `len` octets.
    pub fn receive(&mut self, fd: c_int, len: usize, peek: bool) -> Result<Vec<u8>, c_int> {
        let socket = self.get_mut(fd)?;
        match socket.role {
            Role::Connection => {}
            Role::Connecting => return Err(libc::EAGAIN),
            _ if socket.error != 0 => return Err(std::mem::take(&mut socket.error)),
            _ => return Err(libc::ENOTCONN),
        }
        if !socket.received.is_empty() {
            let n = len.min(socket.received.len());
            if peek {
                return Ok(socket.received.iter().take(n).copied().collect());
            }
            let bytes: Vec<u8> = socket.received.drain(..n).collect();
            let handle = socket.handle;
            socket.read += n as u64;
            if socket.dead.is_none() {
                self.stack().call(call::recv_done(handle, n as u64)).ok();
                self.settle();
            }
            return Ok(bytes);
        }
        if socket.error != 0 {
            return Err(std::mem::take(&mut socket.error));
        }
        if socket.eof || socket.shut_read || socket.dead.is_some() {
            return Ok(Vec::new());
        }
        Err(libc::EAGAIN)
    }

    /// `recvfrom` on a UDP socket.
    pub fn receive_datagram(&mut self, fd: c_int) -> Result<Vec<u8>, c_int> {
        let socket = self.get_mut(fd)?;
        socket.datagrams_in.pop_front().map(|(bytes, _)| bytes).ok_or(libc::EAGAIN)
    }

    /// `sendto` on a UDP socket.
    pub fn send_datagram(&mut self, fd: c_int, len: usize, port: u16) -> Answer {
        let socket = self.get_mut(fd)?;
        let Role::Datagrams(id) = socket.role else { return Err(libc::ENOTCONN) };
        let to = SocketAddr::new(IpAddr::V4(self.at.remote), port);
        let buffer = self.stack().buffer(&octets(0, len)).ok_or(libc::ENOBUFS)?;
        let sent = self.stack().send_datagram((id, port), to, &buffer, 0).map_err(errno_of);
        self.settle();
        sent.map(|n| n as i64)
    }

    /// Whether a descriptor is a UDP socket.
    pub fn is_datagrams(&self, fd: c_int) -> bool {
        self.get(fd).is_ok_and(|socket| socket.datagrams)
    }

    /// `shutdown`
    pub fn shutdown(&mut self, fd: c_int, how: c_int) -> Answer {
        let socket = self.get_mut(fd)?;
        if socket.role == Role::Connecting && how != libc::SHUT_RD {
            // Before the handshake is done this gives up (Linux does so too).
            let handle = socket.handle;
            socket.role = Role::Fresh;
            self.stack().call(call::abort(handle)).ok();
            return Ok(0);
        }
        if socket.role != Role::Connection || socket.dead.is_some() {
            return Err(libc::ENOTCONN);
        }
        socket.shut_read |= how != libc::SHUT_WR;
        if how != libc::SHUT_RD && !socket.shut_write {
            socket.shut_write = true;
            self.push(fd);
        }
        self.settle();
        Ok(0)
    }

    /// `close`. With received octets that nobody has read, or without lingering, by a reset
    /// (RFC 2525 section 2.17).
    pub fn close(&mut self, fd: c_int) -> Answer {
        if self.epolls.remove(&fd).is_some() {
            return Ok(0);
        }
        let socket = self.get_mut(fd)?;
        let handle = socket.handle;
        let abort = !socket.received.is_empty() || socket.linger == Some(0);
        match socket.role {
            Role::Connection if socket.dead.is_none() => {
                if abort {
                    self.stack().call(call::abort(handle)).ok();
                } else {
                    socket.closing = true;
                    socket.shut_write = true;
                    self.push(fd);
                    self.finish_close(fd);
                }
            }
            Role::Connecting => drop(self.stack().call(call::close(handle))),
            Role::Listener => self.close_listener(fd),
            Role::Datagrams(id) => drop(self.stack().call(call::udp_unbind(id))),
            Role::Fresh | Role::Connection => {}
        }
        if self.get(fd).is_ok_and(|socket| !socket.closing) {
            self.sockets.remove(&fd);
        }
        for watches in self.epolls.values_mut() {
            watches.retain(|watch| watch.fd != fd);
        }
        if self.started() {
            self.settle();
        }
        Ok(0)
    }

    fn close_listener(&mut self, fd: c_int) {
        let knocking = self.sockets.get_mut(&fd).map(|s| std::mem::take(&mut s.knocking));
        for (handle, _) in knocking.unwrap_or_default() {
            self.stack().call(call::reject(handle)).ok();
        }
        if let Some(id) = self.sockets.get(&fd).map(|socket| socket.listener) {
            self.stack().call(call::unlisten(id)).ok();
        }
    }

    /// `O_NONBLOCK`
    pub fn set_nonblocking(&mut self, fd: c_int, on: bool) -> Answer {
        self.get_mut(fd)?.nonblocking = on;
        Ok(0)
    }

    fn set_nodelay(&mut self, fd: c_int, on: bool) -> Answer {
        let socket = self.get_mut(fd)?;
        socket.nodelay = on;
        let handle = socket.handle;
        if matches!(socket.role, Role::Connection | Role::Connecting) && socket.dead.is_none() {
            let nagle = u64::from(!on);
            self.stack().call(call::set_opt(handle, ix_abi::flow_opt::NAGLE, nagle)).ok();
            self.push(fd);
            self.settle();
        }
        Ok(0)
    }

    fn set_keepalive(&mut self, fd: c_int, on: bool, idle_s: u16) -> Answer {
        let socket = self.get_mut(fd)?;
        (socket.keepalive, socket.keepalive_idle_s) = (on, idle_s);
        let handle = socket.handle;
        if matches!(socket.role, Role::Connection | Role::Connecting) && socket.dead.is_none() {
            let seconds = if on { u64::from(idle_s) } else { 0 };
            self.stack().call(call::set_opt(handle, ix_abi::flow_opt::KEEPALIVE_S, seconds)).ok();
        }
        Ok(0)
    }

    /// `setsockopt` with one number, or two (`SO_LINGER`).
    pub fn set_option(&mut self, fd: c_int, level: c_int, name: c_int, value: &[i64]) -> Answer {
        let first = value.first().copied().unwrap_or(0);
        let started = self.started();
        let socket = self.get_mut(fd)?;
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let seconds = value.get(1).copied().unwrap_or(0).max(0) as u32;
                socket.linger = (first != 0).then_some(seconds);
            }
            (libc::SOL_SOCKET, libc::SO_SNDBUF | libc::SO_SNDBUFFORCE) => {
                socket.send_buffer = first.clamp(2048, 1 << 30) as usize;
            }
            (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_RCVBUFFORCE) => {
                if started {
                    return Err(libc::EOPNOTSUPP);
                }
                self.settings.tcp.rcv_buf_bytes = first.clamp(256, 1 << 28) as u32;
            }
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => {
                let idle_s = socket.keepalive_idle_s;
                return self.set_keepalive(fd, first != 0, idle_s);
            }
            (libc::SOL_SOCKET, libc::SO_REUSEADDR | libc::SO_REUSEPORT | libc::SO_DEBUG) => {}
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => return self.set_nodelay(fd, first != 0),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => {
                let on = socket.keepalive;
                let idle_s = u16::try_from(first).map_err(|_| libc::EINVAL)?;
                return self.set_keepalive(fd, on, idle_s);
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) if !started => {
                self.settings.tcp.keepalive_interval_us = (first * 1_000_000) as u32;
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) if !started => {
                self.settings.tcp.keepalive_probes = first as u8;
            }
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) if !started => {
                self.settings.tcp.mss = self.settings.tcp.mss.min(first as u16);
            }
            (libc::IPPROTO_TCP, libc::TCP_SYNCNT) if !started => {
                self.settings.tcp.syn_retries = first as u8;
            }
            (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER) => {}
            _ => return Err(libc::ENOPROTOOPT),
        }
        Ok(0)
    }

    /// `getsockopt` of a number.
    pub fn option(&mut self, fd: c_int, level: c_int, name: c_int) -> Answer {
        let handle = self.get(fd)?.handle;
        let mss = self.stack.as_ref().and_then(|stack| stack.inspect(handle));
        let default_mss = self.settings.tcp.mss;
        let receive_buffer = i64::from(self.settings.tcp.rcv_buf_bytes);
        let socket = self.get_mut(fd)?;
        Ok(match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ERROR) => std::mem::take(&mut socket.error).into(),
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => receive_buffer,
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => socket.send_buffer as i64,
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => socket.keepalive.into(),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => socket.nodelay.into(),
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => {
                mss.map_or(default_mss.into(), |(info, _)| info.mss_bytes.into())
            }
            _ => return Err(libc::ENOPROTOOPT),
        })
    }

    /// Octets received and not read, and written and not acknowledged.
    pub fn queued(&self, fd: c_int) -> Result<(i64, i64), c_int> {
        let socket = self.get(fd)?;
        let unacknowledged = socket.unsent.len() + socket.in_flight_bytes;
        Ok((socket.received.len() as i64, unacknowledged as i64))
    }

    /// Octets written and not given to the stack.
    pub fn unsent(&self, fd: c_int) -> Result<i64, c_int> {
        Ok(self.get(fd)?.unsent.len() as i64)
    }

    /// What `poll` says of a descriptor.
    pub fn ready(&self, fd: c_int) -> u32 {
        let Ok(socket) = self.get(fd) else { return libc::POLLNVAL as u32 };
        let (input, output) = (libc::EPOLLIN as u32, libc::EPOLLOUT as u32);
        let (hang_up, error) = (libc::EPOLLHUP as u32, libc::EPOLLERR as u32);
        let read_end = libc::EPOLLRDHUP as u32;
        let mut ready = 0;
        match socket.role {
            Role::Listener if !socket.knocking.is_empty() => ready |= input,
            Role::Listener => {}
            Role::Datagrams(_) => {
                ready |= output | if socket.datagrams_in.is_empty() { 0 } else { input };
            }
            Role::Fresh => {
                ready |= output | hang_up | if socket.error != 0 { error | input } else { 0 }
            }
            Role::Connecting => {}
            Role::Connection => {
                let ended = socket.eof || socket.dead.is_some() || socket.shut_read;
                if ended || !socket.received.is_empty() {
                    ready |= input;
                }
                if ended {
                    ready |= read_end;
                }
                let buffered = socket.unsent.len() + socket.in_flight_bytes;
                let room = socket.send_buffer.saturating_sub(buffered);
                if room >= socket.send_buffer / 3 || socket.shut_write || socket.dead.is_some() {
                    ready |= output;
                }
                if socket.dead.is_some() || socket.eof && socket.shut_write {
                    ready |= hang_up;
                }
                if socket.error != 0 {
                    ready |= error;
                }
            }
        }
        ready
    }

    /// `epoll_create`
    pub fn epoll_create(&mut self) -> Answer {
        let fd = self.next;
        self.next += 1;
        self.epolls.insert(fd, Vec::new());
        Ok(fd.into())
    }

    /// `epoll_ctl`
    pub fn epoll_ctl(&mut self, ep: c_int, op: c_int, fd: c_int, events: u32, data: u64) -> Answer {
        self.get(fd)?;
        let watches = self.epolls.get_mut(&ep).ok_or(libc::EBADF)?;
        let place = watches.iter().position(|watch| watch.fd == fd);
        let watch = Watch { fd, events, data, seen: None, spent: false };
        match (op, place) {
            (libc::EPOLL_CTL_ADD, None) => watches.push(watch),
            (libc::EPOLL_CTL_ADD, Some(_)) => return Err(libc::EEXIST),
            (libc::EPOLL_CTL_MOD, Some(place)) => watches[place] = watch,
            (libc::EPOLL_CTL_DEL, Some(place)) => drop(watches.remove(place)),
            (_, None) => return Err(libc::ENOENT),
            _ => return Err(libc::EINVAL),
        }
        Ok(0)
    }

    /// `epoll_wait` without waiting: events and data.
    pub fn epoll_wait(&mut self, ep: c_int, max: usize) -> Result<Vec<(u32, u64)>, c_int> {
        let mut watches = self.epolls.remove(&ep).ok_or(libc::EBADF)?;
        let mut told = Vec::new();
        for watch in watches.iter_mut().filter(|watch| !watch.spent) {
            let always = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
            let ready = self.ready(watch.fd) & (watch.events | always);
            let news = self.get(watch.fd).map_or(0, |socket| socket.news);
            let edge = watch.events & libc::EPOLLET as u32 != 0;
            let seen = edge && watch.seen == Some((ready, news));
            if ready == 0 || seen || told.len() >= max {
                continue;
            }
            watch.seen = Some((ready, news));
            watch.spent = watch.events & libc::EPOLLONESHOT as u32 != 0;
            told.push((ready, watch.data));
        }
        self.epolls.insert(ep, watches);
        Ok(told)
    }

    /// Gives the stack what a socket still has to send, and the end of its stream after it.
    fn push(&mut self, fd: c_int) {
        loop {
            let Some(socket) = self.sockets.get_mut(&fd) else { return };
            if socket.role != Role::Connection || socket.dead.is_some() {
                return;
            }
            let handle = socket.handle;
            if socket.unsent.is_empty() {
                if socket.shut_write && !socket.closing && !socket.fin_given {
                    socket.fin_given = true;
                    self.stack().call(call::shutdown(handle)).ok();
                }
                break;
            }
            let piece: Vec<u8> = socket.unsent.iter().take(PIECE_BYTES).copied().collect();
            let Some(buffer) = self.stack().buffer(&piece) else { break };
            let offered = buffer.len();
            let taken = self.stack().send(handle, &buffer).unwrap_or(0) as usize;
            let Some(socket) = self.sockets.get_mut(&fd) else { return };
            if taken > 0 {
                socket.unsent.drain(..taken);
                socket.in_flight.push_back((buffer, taken));
                socket.in_flight_bytes += taken;
            }
            if taken < offered {
                break;
            }
        }
        self.finish_close(fd);
    }

    /// The last word on a socket that was closed: all is given to the stack.
    fn finish_close(&mut self, fd: c_int) {
        let Some(socket) = self.sockets.get_mut(&fd) else { return };
        if socket.closing && socket.unsent.is_empty() && socket.dead.is_none() && !socket.fin_given
        {
            socket.fin_given = true;
            let handle = socket.handle;
            self.stack().call(call::close(handle)).ok();
            // Its memory stays with the process until the flow is gone; nobody hears when.
            if let Some(socket) = self.sockets.remove(&fd) {
                self.buried.extend(socket.in_flight.into_iter().map(|(buffer, _)| buffer));
            }
        }
    }

    /// Takes in what the dataplane has told.
    pub fn digest(&mut self) {
        while let Some(told) = self.stack.as_mut().and_then(|stack| stack.told.pop_front()) {
            match told {
                Told::Knock(listener, handle, peer) => {
                    if let Some(socket) = self.sockets.get_mut(&(listener as c_int)) {
                        socket.knocking.push_back((handle, peer));
                        socket.news += 1;
                    }
                }
                Told::Received(cookie, bytes) => self.received(cookie as c_int, bytes),
                Told::Datagram(cookie, bytes, peer) => {
                    if let Some(socket) = self.sockets.get_mut(&(cookie as c_int)) {
                        socket.datagrams_in.push_back((bytes, peer));
                        socket.news += 1;
                    }
                }
                Told::Other(event) => self.event(event),
            }
        }
    }

    fn received(&mut self, fd: c_int, bytes: Vec<u8>) {
        let Some(socket) = self.sockets.get_mut(&fd) else { return };
        let handle = socket.handle;
        socket.news += 1;
        if socket.shut_read {
            self.stack().call(call::recv_done(handle, bytes.len() as u64)).ok();
        } else {
            socket.received.extend(bytes);
        }
    }

    fn event(&mut self, event: Event) {
        let (Event::Connected { cookie, .. }
        | Event::Eof { cookie }
        | Event::Sent { cookie, .. }
        | Event::Dead { cookie, .. }) = event
        else {
            return;
        };
        let fd = cookie as c_int;
        let Some(socket) = self.sockets.get_mut(&fd) else { return };
        socket.news += 1;
        match event {
            Event::Connected { outcome: Ok(()), .. } => socket.role = Role::Connection,
            Event::Connected { outcome: Err(error), .. } => {
                socket.role = Role::Fresh;
                socket.error = errno_of(error);
            }
            Event::Eof { .. } => socket.eof = true,
            Event::Sent { bytes, .. } => {
                socket.acknowledged(bytes as usize);
                self.push(fd);
            }
            Event::Dead { reason, .. } => {
                socket.dead = Some(reason);
                socket.error = match reason {
                    Dead::Closed => 0,
                    Dead::Reset if socket.eof => libc::EPIPE,
                    Dead::Reset | Dead::Failed(_) => libc::ECONNRESET,
                    Dead::TimedOut => libc::ETIMEDOUT,
                    Dead::Unreachable => libc::EHOSTUNREACH,
                    Dead::NotConnected(error) => errno_of(error),
                };
                socket.unsent.clear();
            }
            _ => {}
        }
    }
}

/// Bytes given to the stack at once.
const PIECE_BYTES: usize = 16 << 10;

impl Socket {
    fn acknowledged(&mut self, mut bytes: usize) {
        self.in_flight_bytes -= bytes.min(self.in_flight_bytes);
        while bytes > 0
            && let Some((_, left)) = self.in_flight.front_mut()
        {
            let n = bytes.min(*left);
            (*left, bytes) = (*left - n, bytes - n);
            if *left == 0 {
                self.in_flight.pop_front();
            }
        }
    }
}

fn cookie(fd: c_int) -> u64 {
    fd as u64
}

fn errno_of(error: Error) -> c_int {
    match error {
        Error::Refused => libc::ECONNREFUSED,
        Error::TimedOut => libc::ETIMEDOUT,
        Error::Unreachable => libc::EHOSTUNREACH,
        Error::Reset => libc::ECONNRESET,
        Error::InUse => libc::EADDRINUSE,
        Error::NotLocal => libc::EADDRNOTAVAIL,
        Error::TooLong => libc::EMSGSIZE,
        Error::NoResource => libc::ENOBUFS,
        _ => libc::EINVAL,
    }
}
