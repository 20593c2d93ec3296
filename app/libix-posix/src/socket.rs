//! Sockets that are IX's or may become so, and whether they are ready.
use crate::lane::Waiter;
use crate::slab::Id;
use crate::stream::{Phase, Stream};
use ix_abi::{Congestion, FlowOption};
use libix::raw::{Received, Said, TxBuf};
use std::collections::VecDeque;
use std::ffi::CString;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::time::Duration;

/// Bytes that a connection holds for the program until the peer has acknowledged them.
pub const SEND_BUFFER: usize = 256 << 10;
/// Bytes of datagrams that wait for the program.
pub const RECEIVE_BUFFER: usize = 212_992;
/// Longest idle time before keepalive that the dataplane knows.
const KEEP_IDLE_MAX_S: u32 = 0x7fff;
/// Errors of datagrams that wait for the program, each with no more bytes than a packet has.
pub const ERRORS_MAX: usize = 64;

/// Options that something depends on. The rest lives in the Linux socket under the descriptor.
#[derive(Clone, Debug)]
pub struct Options {
    /// `SO_RCVTIMEO`.
    pub receive_timeout: Option<Duration>,
    /// `SO_SNDTIMEO`.
    pub send_timeout: Option<Duration>,
    /// `SO_LINGER`.
    pub linger: Option<Duration>,
    /// `SO_REUSEADDR`.
    pub reuse_address: bool,
    /// `SO_REUSEPORT`.
    pub reuse_port: bool,
    /// `SO_KEEPALIVE`.
    pub keepalive: bool,
    /// `TCP_KEEPIDLE`, seconds.
    pub keep_idle_s: u32,
    /// `TCP_KEEPINTVL`, seconds.
    pub keep_interval_s: u32,
    /// `TCP_KEEPCNT`.
    pub keep_count: u32,
    /// `TCP_USER_TIMEOUT`, ms; 0: as configured.
    pub user_timeout_ms: u32,
    /// `TCP_CONGESTION`, once the program has chosen.
    pub congestion: Option<Congestion>,
    /// `TCP_NODELAY`.
    pub no_delay: bool,
    /// `TCP_CORK`.
    pub cork: bool,
    /// `SO_SNDBUF` in force.
    pub send_buffer: usize,
    /// `SO_RCVBUF` in force.
    pub receive_buffer: usize,
    /// The program has chosen it.
    pub receive_buffer_set: bool,
    /// `SO_RCVLOWAT`.
    pub receive_low: usize,
    /// `IPV6_V6ONLY`.
    pub v6_only: bool,
    /// `IP_TTL` and `IP_TOS`.
    pub marks: Marks,
    /// `IP_PKTINFO`.
    pub packet_info: bool,
    /// `IPV6_RECVPKTINFO`.
    pub packet_info_v6: bool,
    /// `IP_RECVERR`.
    pub receive_errors: bool,
    /// `IP_MTU_DISCOVER`.
    pub discovery: Discovery,
    /// `TCP_DEFER_ACCEPT`, seconds.
    pub defer_accept_s: u32,
    /// `TCP_SYNCNT`; 0: as configured.
    pub syn_count: u8,
    /// `TCP_MAXSEG`; 0: as long as the path takes.
    pub segment_bytes: u16,
    /// `TCP_WINDOW_CLAMP`; 0: none.
    pub window_clamp: u32,
    /// `TCP_NOTSENT_LOWAT`; 0: none.
    pub unsent_low: u32,
    /// `SO_BINDTODEVICE`: one of the dataplane's.
    pub device: Option<CString>,
}

/// What the program chooses of the IP headers of its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// Time to live.
    pub ttl: u8,
    /// Type of service. The lower two bits are the dataplane's own (RFC 3168).
    pub tos: u8,
}

impl Default for Marks {
    fn default() -> Self {
        Marks { ttl: 64, tos: 0 }
    }
}

impl Marks {
    /// Differentiated services code point (RFC 2474).
    pub fn dscp(self) -> u8 {
        self.tos >> 2
    }
}

/// How a datagram goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Manner {
    /// What its headers say.
    pub marks: Marks,
    /// 0: with DF. Else without, in fragments if it is longer than this, bytes with the IP header.
    pub fragment_bytes: u16,
}

/// `IP_MTU_DISCOVER`: whether datagrams may be cut into fragments, here and under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Discovery {
    /// Here and under way.
    Dont,
    /// Those that are too long for the path here; no others.
    #[default]
    Want,
    /// Never: too long for the path is an error.
    Do,
    /// Never: too long for the device is an error.
    Probe,
    /// Under way: too long for the device is an error. Nobody may say what the path takes.
    Interface,
    /// Here, for the device, and under way. Nobody may say what the path takes.
    Omit,
}

impl Discovery {
    /// Linux's number of it.
    pub fn numbered(number: i32) -> Discovery {
        use Discovery::*;
        let all = [Dont, Want, Do, Probe, Interface, Omit];
        usize::try_from(number).ok().and_then(|n| all.get(n)).copied().unwrap_or_default()
    }

    /// Whether it believes what routers say of the path's MTU.
    pub fn believes(self) -> bool {
        !matches!(self, Discovery::Interface | Discovery::Omit)
    }

    /// Whether what the path takes matters, beside what the device does.
    fn asks_path(self) -> bool {
        matches!(self, Discovery::Dont | Discovery::Want | Discovery::Do)
    }

    /// How a datagram of so many bytes with its headers goes, the path and the device taking so many;
    /// else the MTU that it is too long for.
    pub fn cut(self, bytes: usize, path: u16, device: u16) -> Result<u16, u16> {
        let fits = |mtu: u16, then| if bytes <= mtu.into() { Ok(then) } else { Err(mtu) };
        match self {
            // No datagram is longer.
            _ if bytes > usize::from(u16::MAX) => Err(if self.asks_path() { path } else { device }),
            Discovery::Dont => Ok(path),
            Discovery::Want => Ok(if bytes <= path.into() { 0 } else { path }),
            Discovery::Do => fits(path, 0),
            Discovery::Probe => fits(device, 0),
            Discovery::Interface => fits(device, device),
            Discovery::Omit => Ok(device),
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            receive_timeout: None,
            send_timeout: None,
            linger: None,
            reuse_address: false,
            reuse_port: false,
            keepalive: false,
            keep_idle_s: 7200,
            keep_interval_s: 75,
            keep_count: 9,
            user_timeout_ms: 0,
            congestion: None,
            no_delay: false,
            cork: false,
            send_buffer: SEND_BUFFER,
            receive_buffer: RECEIVE_BUFFER,
            receive_buffer_set: false,
            receive_low: 1,
            v6_only: false,
            marks: Marks::default(),
            packet_info: false,
            packet_info_v6: false,
            receive_errors: false,
            discovery: Discovery::default(),
            defer_accept_s: 0,
            syn_count: 0,
            segment_bytes: 0,
            window_clamp: 0,
            unsent_low: 0,
            device: None,
        }
    }
}

impl Options {
    /// What a flow is told of them while it connects.
    pub fn of_attempt(&self) -> FlowOptions {
        let mut told = FlowOptions { segment_bytes: 0, ..self.of_flow() };
        if self.syn_count > 0 {
            // The first retransmission is after a second, and each waits twice as long as the one before.
            let span_ms = (2u64 << self.syn_count.min(31)).saturating_sub(1) * 1000;
            let span_ms = u32::try_from(span_ms).unwrap_or(u32::MAX);
            let limit_ms = told.user_timeout_ms;
            told.user_timeout_ms = if limit_ms == 0 { span_ms } else { limit_ms.min(span_ms) };
        }
        told
    }

    /// What an open flow is told of them.
    pub fn of_flow(&self) -> FlowOptions {
        let idle_s = self.keep_idle_s.min(KEEP_IDLE_MAX_S);
        // Linux has doubled what it was told, for its own overhead.
        let receive_bytes = self.receive_buffer as u64 / 2;
        let receive_bytes = if self.receive_buffer_set { receive_bytes } else { 0 };
        let receive_bytes = match u64::from(self.window_clamp) {
            0 => receive_bytes,
            clamp if receive_bytes == 0 => clamp,
            clamp => receive_bytes.min(clamp),
        };
        FlowOptions {
            keepalive_s: if self.keepalive { idle_s } else { 0 },
            keep_interval_s: self.keep_interval_s,
            keep_count: self.keep_count,
            user_timeout_ms: self.user_timeout_ms,
            congestion: self.congestion,
            marks: self.marks,
            receive_bytes,
            segment_bytes: self.segment_bytes,
        }
    }
}

/// Options of a connection that the dataplane knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowOptions {
    /// Idle time before keepalive, 0: none.
    pub keepalive_s: u32,
    /// Seconds between its probes.
    pub keep_interval_s: u32,
    /// So many of them.
    pub keep_count: u32,
    /// How long data may stay unacknowledged, ms; 0: as configured.
    pub user_timeout_ms: u32,
    /// Congestion control, if it is not the one that is configured.
    pub congestion: Option<Congestion>,
    /// Of all its packets but the first.
    pub marks: Marks,
    /// Received bytes that the program may leave unread, 0: as many as the dataplane allows.
    pub receive_bytes: u64,
    /// Longest segment, options not counted; 0: as long as the path takes.
    pub segment_bytes: u16,
}

impl FlowOptions {
    /// Each of them, but for the congestion control, which may not be chosen. What no option can
    /// say is too large for the dataplane as well, which refuses it.
    pub fn each(self) -> [FlowOption; 8] {
        let short = |number: u32| u16::try_from(number).unwrap_or(u16::MAX);
        [
            FlowOption::KeepaliveS(short(self.keepalive_s)),
            FlowOption::KeepaliveIntervalS(short(self.keep_interval_s)),
            FlowOption::KeepaliveProbes(self.keep_count.try_into().unwrap_or(u8::MAX)),
            FlowOption::UserTimeoutMs(self.user_timeout_ms),
            FlowOption::HopLimit(self.marks.ttl),
            FlowOption::Dscp(self.marks.dscp()),
            FlowOption::ReceiveBytes(self.receive_bytes.try_into().unwrap_or(u32::MAX)),
            FlowOption::SegmentBytes(self.segment_bytes),
        ]
    }
}

impl Default for FlowOptions {
    /// Those of a flow that has been told nothing.
    fn default() -> Self {
        Options::default().of_flow()
    }
}

/// A listening socket.
pub struct Listener {
    /// The port that it serves.
    pub port: Id,
    /// Most connections that wait.
    pub backlog: usize,
    /// Connections that wait to be accepted, oldest first.
    pub queue: VecDeque<Id>,
    /// So many more that wait for their first bytes (`TCP_DEFER_ACCEPT`).
    pub deferred: usize,
    /// The Linux socket under the descriptor listens as well.
    pub both: bool,
    /// `shutdown` has ended it.
    pub shut: bool,
    /// The elastic thread of whoever last waited for it alone.
    pub lane: Option<usize>,
}

/// A datagram that waits.
pub struct Waiting {
    /// Its bytes.
    pub data: Received,
    /// Its sender.
    pub from: SocketAddr,
    /// The address of ours that it was sent to.
    pub local: IpAddr,
    /// The elastic thread that it came in on.
    pub lane: usize,
}

/// A datagram that is to be sent.
pub struct Outgoing {
    /// Its bytes.
    pub memory: TxBuf,
    /// Where to.
    pub to: SocketAddr,
    /// How.
    pub manner: Manner,
}

/// What became of a datagram, as `MSG_ERRQUEUE` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Where it went to.
    pub to: SocketAddr,
    /// Why.
    pub errno: i32,
    /// What ICMP says; `None`: it was too long already here.
    pub said: Option<Said>,
    /// With `EMSGSIZE`: MTU of the path, bytes; with `EPROTO`: the octet at fault.
    pub info: u16,
}

/// A UDP socket.
#[derive(Default)]
pub struct Datagrams {
    /// The port that it is bound to.
    pub port: Id,
    /// The only peer, after `connect`.
    pub peer: Option<SocketAddr>,
    /// What waits for the program.
    pub inbox: VecDeque<Waiting>,
    /// Bytes in it.
    pub inbox_bytes: usize,
    /// To be sent.
    pub outbox: VecDeque<Outgoing>,
    /// What became of those that did not arrive, and what is known of their bytes, with `IP_RECVERR`.
    pub errors: VecDeque<(Refused, Vec<u8>)>,
    /// Bytes of datagrams that were given to `UDP_SENDV` or wait for it.
    pub flying: usize,
    /// `shutdown`.
    pub read_shut: bool,
    /// `shutdown`.
    pub write_shut: bool,
    /// The program is done with it.
    pub closing: bool,
}

/// What a socket is by now.
pub enum Kind {
    /// Linux's for good.
    Linux,
    /// Linux's until `bind`, `connect` or `sendto` say otherwise; with `ix`, bound to IX already.
    Idle {
        /// TCP, else UDP.
        stream: bool,
        /// `bind` has decided.
        ix: bool,
        /// It is bound on Linux, too.
        both: bool,
    },
    /// TCP, listening.
    Listener(Listener),
    /// TCP, with a peer.
    Stream(Box<Stream>),
    /// UDP.
    Datagrams(Box<Datagrams>),
    /// A connection of the process that has forked this one.
    Lost,
}

/// What of Linux is under the descriptor of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Under {
    /// Something that keeps the number, and nothing else.
    Number,
    /// A socket of the right kind that has heard nothing of what the program has set.
    Untouched,
    /// One that has heard all of it, and that calls go to. Some may have left traces there.
    Used,
}

/// A place in an epoll set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    /// The set.
    pub set: Id,
    /// The descriptor it was put in by.
    pub fd: RawFd,
}

/// A socket.
pub struct Socket {
    /// Descriptors that name it.
    pub fds: u32,
    /// What it is.
    pub kind: Kind,
    /// What is under its descriptor on Linux.
    pub under: Under,
    /// The descriptor; the only one as long as it is not `Used`.
    pub number: RawFd,
    /// Close-on-exec, as long as it is not `Used`; then Linux knows.
    pub close_on_exec: bool,
    /// What is under its descriptor is no other process's.
    pub alone: bool,
    /// Of family `AF_INET6`.
    pub ipv6: bool,
    /// `O_NONBLOCK`.
    pub nonblocking: bool,
    /// Options.
    pub options: Options,
    /// Where the program has bound it.
    pub bound: Option<SocketAddr>,
    /// `SO_ERROR`: an errno, 0: none.
    pub error: i32,
    /// Epoll sets that it is in.
    pub watches: Vec<Watch>,
    /// Threads that wait for it.
    pub waiters: Vec<Waiter>,
    /// The elastic thread that has its flow, or sends its datagrams.
    pub lane: usize,
    /// It stands in the list of those with calls to make.
    pub dirty: bool,
    /// The cycle in which a call last found nothing to do.
    pub idle_cycle: u64,
}

impl Socket {
    /// A new one.
    pub fn new(kind: Kind, ipv6: bool, nonblocking: bool) -> Socket {
        Socket {
            fds: 0,
            kind,
            under: Under::Used,
            number: -1,
            close_on_exec: false,
            alone: true,
            ipv6,
            nonblocking,
            options: Options::default(),
            bound: None,
            error: 0,
            watches: Vec::new(),
            waiters: Vec::new(),
            lane: 0,
            dirty: false,
            idle_cycle: u64::MAX,
        }
    }

    /// Whether it is TCP's.
    pub fn is_tcp(&self) -> bool {
        !matches!(self.kind, Kind::Idle { stream: false, .. } | Kind::Datagrams(_))
    }

    /// The connection, if it is one.
    #[inline]
    pub fn stream(&mut self) -> Option<&mut Stream> {
        match &mut self.kind {
            Kind::Stream(stream) => Some(stream),
            _ => None,
        }
    }

    /// The UDP socket, if it is one.
    pub fn datagrams(&mut self) -> Option<&mut Datagrams> {
        match &mut self.kind {
            Kind::Datagrams(datagrams) => Some(datagrams),
            _ => None,
        }
    }

    /// The only peer that it goes to, if there is one.
    pub fn peer(&self) -> Option<SocketAddr> {
        match &self.kind {
            Kind::Stream(stream) => Some(stream.peer).filter(|_| stream.phase != Phase::Dead),
            Kind::Datagrams(datagrams) => datagrams.peer,
            _ => None,
        }
    }

    /// The listener, if it is one.
    pub fn listener(&mut self) -> Option<&mut Listener> {
        match &mut self.kind {
            Kind::Listener(listener) => Some(listener),
            _ => None,
        }
    }

    /// Whether calls on it go to the Linux socket under the descriptor.
    pub fn is_linux(&self) -> bool {
        matches!(self.kind, Kind::Linux | Kind::Idle { .. })
    }

    /// The `SO_ERROR` that a call reports now; it is forgotten thereby.
    pub fn take_error(&mut self) -> i32 {
        core::mem::take(&mut self.error)
    }

    /// What `poll` would say of it: `EPOLL*` bits, which are `POLL*`'s.
    pub fn readiness(&self) -> u32 {
        use libc::{EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLLRDNORM, EPOLLWRNORM};
        const IN: i32 = EPOLLIN | EPOLLRDNORM;
        const OUT: i32 = EPOLLOUT | EPOLLWRNORM;
        let when = |condition: bool, bits: i32| if condition { bits } else { 0 };
        let mut bits = when(self.error != 0, EPOLLERR);
        match &self.kind {
            Kind::Linux => {}
            Kind::Lost => bits |= EPOLLERR | EPOLLHUP,
            Kind::Idle { .. } => bits |= OUT | EPOLLHUP,
            Kind::Listener(listener) => {
                bits |= when(!listener.queue.is_empty(), IN);
                bits |= when(listener.shut, IN | OUT | EPOLLHUP | EPOLLRDHUP);
            }
            Kind::Stream(stream) => {
                let dead = stream.phase == Phase::Dead;
                bits |= when(stream.complaint.is_some(), EPOLLERR);
                let no_more = stream.eof || stream.read_shut || dead;
                bits |= when(dead || (no_more && stream.flow.is_shut()), EPOLLHUP);
                bits |= when(no_more, IN | EPOLLRDHUP);
                if stream.is_connecting() {
                    return bits as u32;
                }
                bits |= when(stream.unread() >= self.options.receive_low.max(1), IN);
                let room = stream.is_writable(self.options.send_buffer);
                bits |= when(dead || stream.flow.is_shut() || room, OUT);
            }
            Kind::Datagrams(datagrams) => {
                let (read_shut, write_shut) = (datagrams.read_shut, datagrams.write_shut);
                bits |= when(!datagrams.errors.is_empty(), EPOLLERR);
                bits |= when(!datagrams.inbox.is_empty() || read_shut, IN);
                bits |= when(read_shut, EPOLLRDHUP) | when(read_shut && write_shut, EPOLLHUP);
                bits |= when(datagrams.flying < self.options.send_buffer, OUT);
            }
        }
        bits as u32
    }
}
