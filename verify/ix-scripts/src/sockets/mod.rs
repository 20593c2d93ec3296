//! A program's sockets on top of the dataplane's batched calls: what a script, or packetdrill
//! through its plug-in interface, calls. No call waits here: one that would answers `EAGAIN`, and
//! its caller lets time pass.
mod data;
mod events;
mod options;
mod ready;

pub use data::End;

use crate::settings::Settings;
use crate::stack::{Addresses, Stack};
use ix_abi::FlowOption;
use libc::c_int;
use libix::engine::{Flow, SendQueue};
use libix::raw::call;
use libix::{Dead, Error};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

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
    /// Its flow: what it sends and how it ends. Received octets are copied when they come.
    pub flow: Flow,
    /// The peer of a connection that was accepted, or that `connect` gave a UDP socket.
    pub peer: Option<SocketAddr>,
    listener: u64,
    port: u16,
    knocking: VecDeque<(u64, SocketAddr)>,
    received: VecDeque<u8>,
    datagrams_in: VecDeque<(Vec<u8>, SocketAddr)>,
    /// Octets of the stream written so far: the place of the next one.
    pub written: u64,
    /// Octets of the stream read so far.
    pub read: u64,
    /// `SO_SNDBUF`; `None`: as the host has it.
    send_buffer: Option<usize>,
    /// `TCP_CORK`, or `MSG_MORE` of the last octets: short segments wait.
    corked: bool,
    more: bool,
    /// When a short segment that waits for more goes all the same.
    held_until_us: Option<u64>,
    eof: bool,
    dead: Option<Dead>,
    error: c_int,
    shut_read: bool,
    /// `TCP_MAXSEG`; 0: as the host has it.
    mss: u16,
    /// `TCP_NOTSENT_LOWAT`; 0: as the host has it.
    unsent_low: u32,
    /// `TCP_INQ`
    tells_unread: bool,
    closing: bool,
    linger: Option<u32>,
    nodelay: bool,
    dscp: u8,
    ttl: u8,
    keepalive: bool,
    keepalive_idle_s: u16,
    /// Counts what edge-triggered waiting has to notice.
    news: u64,
}

impl Socket {
    /// While fewer octets than this are unsent the program may write.
    fn unsent_limit(&self, of_host: u32) -> u64 {
        match (self.unsent_low, of_host) {
            (0, 0) | (u32::MAX, _) | (0, u32::MAX) => u64::MAX,
            (0, low) | (low, _) => low.into(),
        }
    }
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
    /// What flows that end without a socket have sent: its memory stays.
    buried: Vec<SendQueue>,
    next: c_int,
    /// Gives each new descriptor its number, where these are not just counted.
    pub numbers: Option<fn() -> c_int>,
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
        Sockets {
            settings,
            at,
            start_us,
            sockets,
            epolls,
            buried,
            next: 3,
            numbers: None,
            stack: None,
        }
    }

    /// Whether settings are fixed.
    pub fn started(&self) -> bool {
        self.stack.is_some()
    }

    /// The stack, started now if it was not.
    pub fn stack(&mut self) -> &mut Stack {
        let Sockets { settings, at, start_us, stack, .. } = self;
        stack.get_or_insert_with(|| Stack::new(settings, 128, *at, *start_us))
    }

    /// Virtual time, µs.
    pub fn now_us(&self) -> u64 {
        self.stack.as_ref().map_or(self.start_us, Stack::now_us)
    }

    /// When something happens next by itself.
    pub fn next_deadline_us(&self) -> Option<u64> {
        let held = self.sockets.values().filter_map(|socket| socket.held_until_us).min();
        let due = self.stack.as_ref().and_then(Stack::next_deadline_us);
        held.into_iter().chain(due).min()
    }

    /// Lets time pass: timers fire, each at its time.
    pub fn advance(&mut self, until_us: u64) {
        if self.stack.is_none() {
            self.start_us = self.start_us.max(until_us);
            return;
        }
        self.settle();
        while let Some(due_us) = self.next_deadline_us()
            && due_us <= until_us
        {
            let after_us = self.now_us() + 1;
            self.stack().set_now(due_us.max(after_us));
            self.release_held();
            self.settle();
        }
        self.stack().set_now(until_us);
        self.settle();
    }

    /// A packet arrives.
    pub fn deliver(&mut self, packet: &[u8]) {
        self.arrive(packet);
        self.settle();
    }

    /// A packet reaches the device; [`Sockets::take_in`] handles it, and those before it.
    pub fn arrive(&mut self, packet: &[u8]) {
        self.stack().deliver(packet);
    }

    /// What has reached the device is handled.
    pub fn take_in(&mut self) {
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

    /// The number of the next descriptor.
    fn number(&mut self) -> c_int {
        if let Some(give) = self.numbers {
            return give();
        }
        self.next += 1;
        self.next - 1
    }

    fn insert(&mut self, datagrams: bool) -> c_int {
        let fd = self.number();
        let socket = Socket {
            role: Role::Fresh,
            nonblocking: false,
            datagrams,
            flow: Flow::default(),
            peer: None,
            listener: 0,
            port: 0,
            knocking: VecDeque::new(),
            received: VecDeque::new(),
            datagrams_in: VecDeque::new(),
            written: 0,
            read: 0,
            send_buffer: None,
            corked: false,
            more: false,
            held_until_us: None,
            eof: false,
            dead: None,
            error: 0,
            shut_read: false,
            mss: 0,
            unsent_low: 0,
            tells_unread: false,
            closing: false,
            linger: None,
            nodelay: !self.settings.tcp.nagle,
            dscp: 0,
            ttl: self.settings.ttl,
            keepalive: false,
            keepalive_idle_s: self.settings.keepalive_idle_s,
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
            let at = SocketAddr::new(self.at.local, port);
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
        let at = SocketAddr::new(self.at.local, port);
        let backlog = backlog.clamp(1, 4096) as u32;
        let id = self.stack().call(call::listen(at, backlog, cookie(fd))).map_err(errno_of)?;
        let socket = self.get_mut(fd)?;
        (socket.role, socket.listener) = (Role::Listener, id);
        self.mark_packets(fd)
    }

    /// `accept`: the new descriptor.
    pub fn accept(&mut self, fd: c_int) -> Answer {
        let socket = self.get_mut(fd)?;
        if socket.role != Role::Listener {
            return Err(libc::EINVAL);
        }
        let (nodelay, dscp, ttl) = (socket.nodelay, socket.dscp, socket.ttl);
        let (keepalive, idle_s) = (socket.keepalive, socket.keepalive_idle_s);
        let unsent_low = socket.unsent_low;
        loop {
            let (handle, peer) = self.get_mut(fd)?.knocking.pop_front().ok_or(libc::EAGAIN)?;
            let new = self.insert(false);
            if self.stack().call(call::accept(handle, cookie(new))).is_err() {
                // It died while it waited.
                self.sockets.remove(&new);
                self.next -= i32::from(self.numbers.is_none());
                continue;
            }
            let socket = self.get_mut(new)?;
            (socket.role, socket.flow) = (Role::Connection, Flow::new(handle, true));
            socket.peer = Some(peer);
            (socket.dscp, socket.ttl) = (dscp, ttl);
            socket.unsent_low = unsent_low;
            let same = nodelay == socket.nodelay;
            self.mark_packets(new)?;
            if !same {
                self.set_nodelay(new, nodelay)?;
            }
            if keepalive {
                self.set_keepalive(new, true, idle_s)?;
            }
            self.settle();
            return Ok(new.into());
        }
    }

    /// `connect`. `EINPROGRESS` when it begins, `EALREADY` while it lasts; at once for a UDP
    /// socket.
    pub fn connect(&mut self, fd: c_int, port: u16) -> Answer {
        if self.is_datagrams(fd) {
            return self.connect_datagrams(fd, Some(port));
        }
        let socket = self.get_mut(fd)?;
        match socket.role {
            Role::Fresh if socket.error != 0 => return Err(std::mem::take(&mut socket.error)),
            Role::Fresh => {}
            Role::Connecting => return Err(libc::EALREADY),
            Role::Connection => return Err(libc::EISCONN),
            _ => return Err(libc::EOPNOTSUPP),
        }
        let local_port = socket.port;
        let options = [
            FlowOption::Dscp(socket.dscp),
            FlowOption::HopLimit(socket.ttl),
            FlowOption::SegmentBytes(socket.mss),
        ];
        let to = SocketAddr::new(self.at.remote, port);
        let connect = call::connect(cookie(fd), to, local_port);
        let handle = self.stack().connect(connect, options).map_err(errno_of)?;
        let socket = self.get_mut(fd)?;
        (socket.role, socket.flow) = (Role::Connecting, Flow::new(handle, false));
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

    /// Whether a descriptor is a UDP socket.
    pub fn is_datagrams(&self, fd: c_int) -> bool {
        self.get(fd).is_ok_and(|socket| socket.datagrams)
    }

    /// `shutdown`
    pub fn shutdown(&mut self, fd: c_int, how: c_int) -> Answer {
        let socket = self.get_mut(fd)?;
        if socket.role == Role::Connecting && how != libc::SHUT_RD {
            // Before the handshake is done this gives up (Linux does so too).
            let handle = socket.flow.handle;
            socket.role = Role::Fresh;
            self.stack().call(call::abort(handle)).ok();
            return Ok(0);
        }
        if socket.role != Role::Connection || socket.dead.is_some() {
            return Err(libc::ENOTCONN);
        }
        socket.shut_read |= how != libc::SHUT_WR;
        if how != libc::SHUT_RD && !socket.flow.is_shut() {
            socket.flow.shutdown();
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
        let handle = socket.flow.handle;
        let abort = !socket.received.is_empty() || socket.linger == Some(0);
        match socket.role {
            Role::Connection if socket.dead.is_none() => {
                if abort {
                    self.stack().call(call::abort(handle)).ok();
                } else {
                    socket.closing = true;
                    socket.flow.shutdown();
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
