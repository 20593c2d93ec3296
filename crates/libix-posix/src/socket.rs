//! Sockets that are IX's or may become so, and whether they are ready.
use crate::lane::Waiter;
use crate::slab::Id;
use crate::stream::{Phase, Stream};
use libix::raw::{Received, TxBuf};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::time::Duration;

/// Bytes that a connection holds for the program until the peer has acknowledged them.
pub const SEND_BUFFER: usize = 256 << 10;
/// Bytes of datagrams that wait for the program.
pub const RECEIVE_BUFFER: usize = 212_992;
/// Longest idle time before keepalive that the dataplane knows.
const KEEP_IDLE_MAX_S: u32 = 0x7fff;
/// Errors of datagrams that wait for the program.
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
}

/// Congestion controls that IX has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Congestion {
    /// RFC 9438.
    Cubic,
    /// RFC 5681.
    Reno,
    /// RFC 8257.
    Dctcp,
}

impl Congestion {
    const ALL: [Congestion; 3] = [Congestion::Cubic, Congestion::Reno, Congestion::Dctcp];

    /// The one of this name.
    pub fn named(name: &[u8]) -> Option<Congestion> {
        Self::ALL.into_iter().find(|kind| kind.name().as_bytes() == name)
    }

    /// Its name, which is Linux's.
    pub fn name(self) -> &'static str {
        match self {
            Congestion::Cubic => "cubic",
            Congestion::Reno => "reno",
            Congestion::Dctcp => "dctcp",
        }
    }

    /// The dataplane's number of it.
    pub fn number(self) -> u64 {
        match self {
            Congestion::Cubic => ix_abi::flow_opt::CUBIC,
            Congestion::Reno => ix_abi::flow_opt::RENO,
            Congestion::Dctcp => ix_abi::flow_opt::DCTCP,
        }
    }
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
        }
    }
}

impl Options {
    /// What a flow is told of them.
    pub fn of_flow(&self) -> FlowOptions {
        let idle_s = self.keep_idle_s.min(KEEP_IDLE_MAX_S);
        // Linux has doubled what it was told, for its own overhead.
        let receive_bytes = self.receive_buffer as u64 / 2;
        FlowOptions {
            keepalive_s: if self.keepalive { idle_s } else { 0 },
            keep_interval_s: self.keep_interval_s,
            keep_count: self.keep_count,
            user_timeout_ms: self.user_timeout_ms,
            congestion: self.congestion,
            marks: self.marks,
            receive_bytes: if self.receive_buffer_set { receive_bytes } else { 0 },
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
    pub marks: Marks,
}

/// What became of a datagram, as `MSG_ERRQUEUE` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Where it went to.
    pub to: SocketAddr,
    /// Why.
    pub errno: i32,
    /// With `EMSGSIZE`: MTU of the path, bytes.
    pub mtu: u16,
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
    /// What became of those that did not arrive, with `IP_RECVERR`.
    pub errors: VecDeque<Refused>,
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

    /// Whether it goes to one peer only.
    pub fn has_peer(&self) -> bool {
        match &self.kind {
            Kind::Stream(stream) => stream.phase != Phase::Dead,
            Kind::Datagrams(datagrams) => datagrams.peer.is_some(),
            _ => false,
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
                let no_more = stream.eof || stream.read_shut || dead;
                bits |= when(dead || (no_more && stream.write_shut), EPOLLHUP);
                bits |= when(no_more, IN | EPOLLRDHUP);
                if stream.is_connecting() {
                    return bits as u32;
                }
                bits |= when(stream.inbox.len() >= self.options.receive_low.max(1), IN);
                let room = stream.is_writable(self.options.send_buffer);
                bits |= when(dead || stream.write_shut || room, OUT);
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
