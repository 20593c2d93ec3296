//! Sockets that are IX's or may become so, and whether they are ready.
use crate::error_queue::ErrorEntry;
use crate::options::{Options, SendOptions};
use crate::slab::Id;
use crate::stream::{Phase, Stream};
use crate::waiter::Waiter;
use crate::{family, holders, mem};
use libix::raw::{Received, TxBuf};
use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::time::Duration;

/// A listening socket.
pub struct Listener {
    /// Its port.
    pub port: Id,
    /// Most connections in the queue.
    pub backlog: usize,
    /// Connections that wait to be accepted, oldest first.
    pub queue: VecDeque<Id>,
    /// How many more connections wait for their first bytes (`TCP_DEFER_ACCEPT`).
    pub deferred: usize,
    /// The Linux socket under the descriptor listens as well.
    pub both: bool,
    /// `shutdown` was called.
    pub shut: bool,
    /// The elastic thread of the thread that last waited for this listener alone.
    pub elastic: Option<usize>,
    /// How many threads of this process wait for it now, if other processes have it.
    pub waiting: u32,
}

/// A received datagram.
pub struct Incoming {
    /// Its bytes.
    pub data: Received,
    /// The others, if it is longer than a buffer.
    pub rest: Vec<Received>,
    /// A copy of the bytes, in place of buffers: another socket has these.
    pub copy: Option<Box<[u8]>>,
    /// Its sender.
    pub from: SocketAddr,
    /// The local address that it was sent to.
    pub local: IpAddr,
    /// Its time to live, or hop limit.
    pub hops: u8,
    /// Its type of service, or traffic class.
    pub tos: u8,
    /// Its flow label; 0: none.
    pub label: u32,
    /// When it came, since the epoch; `None`: its socket did not ask.
    pub came: Option<Duration>,
    /// The elastic thread that it came in on.
    pub elastic: usize,
}

/// A datagram to be sent.
pub struct Outgoing {
    /// Its bytes.
    pub memory: TxBuf,
    /// Its destination.
    pub to: SocketAddr,
    /// How it is sent.
    pub send_options: SendOptions,
}

/// A UDP socket.
#[derive(Default)]
pub struct Datagrams {
    /// The port that it is bound to.
    pub port: Id,
    /// The only peer, after `connect`.
    pub peer: Option<SocketAddr>,
    /// The peer is reached through Linux.
    pub peer_of_linux: bool,
    /// The Linux socket under the descriptor is bound as well, and the program hears both.
    pub both: bool,
    /// What [`crate::linux_side::LinuxSide`] counted when Linux last had nothing.
    pub linux_seen: u64,
    /// When that was, µs.
    pub linux_looked_us: u64,
    /// Datagrams of IX that the program has received since.
    pub since_linux: u32,
    /// Received datagrams that the program has not read.
    pub inbox: VecDeque<Incoming>,
    /// Bytes in `inbox`, as [`charged`] counts them.
    pub inbox_bytes: usize,
    /// Datagrams to be sent.
    pub outbox: VecDeque<Outgoing>,
    /// With `IP_RECVERR`: datagrams that did not arrive, and their bytes as far as they are known.
    pub errors: VecDeque<(ErrorEntry, Vec<u8>)>,
    /// Bytes of datagrams in `outbox` or given to `UDP_SENDV`.
    pub in_flight_bytes: usize,
    /// `shutdown(SHUT_RD)`.
    pub read_shut: bool,
    /// `shutdown(SHUT_WR)`.
    pub write_shut: bool,
    /// The program has closed it.
    pub closing: bool,
}

/// What a socket is at the moment.
pub enum Kind {
    /// Linux's for good.
    Linux,
    /// Undecided, and Linux's until `bind`, `connect` or `sendto` decides.
    Idle {
        /// TCP, else UDP.
        stream: bool,
        /// `bind` has made it IX's.
        ix: bool,
        /// It is also bound on Linux.
        both: bool,
    },
    /// TCP, listening.
    Listener(Listener),
    /// TCP, with a peer.
    Stream(Box<Stream>),
    /// UDP.
    Datagrams(Box<Datagrams>),
    /// A connection of the parent process, which this forked child cannot use.
    Lost,
}

/// The Linux file under the descriptor of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Under {
    /// Any file, which only keeps the number.
    Number,
    /// A socket of the right kind, without the options that the program has set.
    Untouched,
    /// A socket with all options that the program has set. Calls may go to it.
    Used,
}

/// An open file: what descriptors name, and what a set reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    /// A socket.
    Socket(Id),
    /// Another set.
    Set(Id),
}

/// What an entry of a set is found by, as on Linux (epoll(7), questions 0 and 6): the descriptor
/// that was added and the open file that it named then. So the entry lives on while another
/// descriptor names the file, and the number can be added again when it names another file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// The descriptor.
    pub fd: RawFd,
    /// The open file.
    pub file: File,
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        // Two files of one number are rare.
        hasher.write_i32(self.fd);
    }
}

/// An entry in an epoll set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    /// The set.
    pub set: Id,
    /// What the entry is found by there.
    pub key: Key,
}

/// A socket.
pub struct Socket {
    /// How many descriptors name it.
    pub fds: u32,
    /// What it is.
    pub kind: Kind,
    /// The Linux file under its descriptor.
    pub under: Under,
    /// Its descriptor. It has no other as long as `under` is not `Used`.
    pub number: RawFd,
    /// Close-on-exec. Once `under` is `Used`, Linux has this flag.
    pub close_on_exec: bool,
    /// No other process shares the Linux file under its descriptor.
    pub alone: bool,
    /// Where it is noted which processes have it, if it is no connection.
    pub named: Option<u32>,
    /// Its descriptor was given to a process that is not known.
    pub passed: bool,
    /// Of family `AF_INET6`.
    pub ipv6: bool,
    /// `O_NONBLOCK`.
    pub nonblocking: bool,
    /// Options.
    pub options: Options,
    /// The address that the program has bound.
    pub bound: Option<SocketAddr>,
    /// `SO_ERROR`: an errno; 0: none.
    pub error: i32,
    /// Its entries in epoll sets.
    pub watches: Vec<Watch>,
    /// Threads that wait for it.
    pub waiters: Vec<Waiter>,
    /// The elastic thread that has its flow, or sends its datagrams.
    pub elastic: usize,
    /// It waits for transmit memory, and is not writable.
    pub starving: bool,
    /// It is in the `dirty` list of its elastic thread: it has calls to make.
    pub dirty: bool,
    /// The cycle in which a call last found nothing to read or to write.
    pub idle_cycle: u64,
}

impl Socket {
    /// A new socket.
    pub fn new(kind: Kind, ipv6: bool, nonblocking: bool) -> Socket {
        Socket {
            fds: 0,
            kind,
            under: Under::Used,
            number: -1,
            close_on_exec: false,
            alone: true,
            named: None,
            passed: false,
            ipv6,
            nonblocking,
            options: Options::default(),
            bound: None,
            error: 0,
            watches: Vec::new(),
            waiters: Vec::new(),
            elastic: 0,
            starving: false,
            dirty: false,
            idle_cycle: u64::MAX,
        }
    }

    /// How many bytes may be unacknowledged. A connection's grow with its path, unless the program
    /// has set them.
    pub fn send_buffer(&self) -> usize {
        let set = self.options.send_buffer;
        match &self.kind {
            Kind::Stream(stream) if !self.options.send_buffer_set => set.max(stream.path_bytes),
            _ => set,
        }
    }

    /// The wildcard address of its family.
    pub fn any(&self) -> IpAddr {
        match self.ipv6 {
            true if self.options.v6_only => family::EVERY_V6,
            true => family::EVERY,
            false => family::EVERY_V4,
        }
    }

    /// The address that the program means by one of `connect` or `sendto`, with mapped ones as
    /// IPv4 addresses. `None`: it does not suit the family of the socket, and Linux has the errno.
    pub fn means(&self, to: SocketAddr) -> Option<SocketAddr> {
        let suits = match family::canonical(to) {
            SocketAddr::V6(_) => self.ipv6,
            SocketAddr::V4(_) if self.ipv6 => {
                !self.options.v6_only && (to.is_ipv6() || !self.is_tcp())
            }
            SocketAddr::V4(_) => to.is_ipv4(),
        };
        suits.then(|| family::canonical(to))
    }

    /// The program connects it to an address with this flow information. As on Linux, the two bits
    /// of ECN are none of it for a connection.
    pub fn has_peer_flow_info(&mut self, flow_info: u32) {
        const ECN_BITS: u32 = 3 << 20;
        let heeded = if self.options.v6.heeds_flow_info { flow_info } else { 0 };
        let kept = if self.is_tcp() { heeded & !ECN_BITS } else { heeded };
        self.options.v6.peer_flow_info = kept;
    }

    /// The peer's address as `getpeername` tells it: with its flow information if the program
    /// heeds it (`IPV6_FLOWINFO_SEND`).
    pub fn told_peer(&self, peer: SocketAddr) -> SocketAddr {
        let own = self.options.towards(peer.ip());
        let flow_info = if own.heeds_flow_info { own.peer_flow_info } else { 0 };
        family::with_flow_info(peer, flow_info)
    }

    /// Whether it is a TCP socket.
    pub fn is_tcp(&self) -> bool {
        !matches!(self.kind, Kind::Idle { stream: false, .. } | Kind::Datagrams(_))
    }

    /// The connection, if it is a connection.
    #[inline]
    pub fn stream(&mut self) -> Option<&mut Stream> {
        match &mut self.kind {
            Kind::Stream(stream) => Some(stream),
            _ => None,
        }
    }

    /// The same, to look at.
    pub fn as_stream(&self) -> Option<&Stream> {
        match &self.kind {
            Kind::Stream(stream) => Some(stream),
            _ => None,
        }
    }

    /// The datagrams, if it is a UDP socket of IX.
    pub fn datagrams(&mut self) -> Option<&mut Datagrams> {
        match &mut self.kind {
            Kind::Datagrams(datagrams) => Some(datagrams),
            _ => None,
        }
    }

    /// The peer that it is connected to.
    pub fn peer(&self) -> Option<SocketAddr> {
        match &self.kind {
            Kind::Stream(stream) => Some(stream.peer).filter(|_| stream.phase != Phase::Dead),
            Kind::Datagrams(datagrams) => datagrams.peer,
            _ => None,
        }
    }

    /// The listener, if it is a listener.
    pub fn listener(&mut self) -> Option<&mut Listener> {
        match &mut self.kind {
            Kind::Listener(listener) => Some(listener),
            _ => None,
        }
    }

    /// The program uses it: if another process owns the connection, it gives it to this one.
    #[inline]
    pub fn is_used(&self) {
        if let Kind::Stream(stream) = &self.kind
            && stream.is_away()
        {
            stream.shared.into_iter().for_each(holders::want);
        }
    }

    /// Whether calls go to the Linux socket under the descriptor.
    pub fn is_linux(&self) -> bool {
        matches!(self.kind, Kind::Linux | Kind::Idle { .. })
    }

    /// Returns `SO_ERROR` and clears it.
    pub fn take_error(&mut self) -> i32 {
        let errno = core::mem::take(&mut self.error);
        match &self.kind {
            // As one file has it, one process gets it.
            Kind::Stream(stream) if errno != 0 && stream.phase == Phase::Dead => {
                stream.shared.map_or(errno, |at| holders::take_end(at, errno))
            }
            _ => errno,
        }
    }

    /// What `poll` would return: `EPOLL*` bits, which have the values of `POLL*`.
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
                bits |= when(stream.connect_error.is_some(), EPOLLERR);
                let no_more = stream.has_ended() || stream.read_shut || dead;
                bits |= when(dead || (no_more && stream.flow.is_shut()), EPOLLHUP);
                bits |= when(no_more, IN | EPOLLRDHUP);
                if stream.is_connecting() {
                    return bits as u32;
                }
                bits |= when(stream.unread() >= self.options.receive_low.max(1), IN);
                // What nobody has read comes along from another process once it is accepted, and a
                // program hears of both at a time.
                let arrives = stream.phase == Phase::ToAccept && stream.shared.is_some();
                let room = !self.starving && !arrives && stream.is_writable(self.send_buffer());
                bits |= when(dead || stream.flow.is_shut() || room, OUT);
            }
            Kind::Datagrams(datagrams) => {
                let (read_shut, write_shut) = (datagrams.read_shut, datagrams.write_shut);
                bits |= when(!datagrams.errors.is_empty(), EPOLLERR);
                bits |= when(!datagrams.inbox.is_empty() || read_shut, IN);
                bits |= when(read_shut, EPOLLRDHUP) | when(read_shut && write_shut, EPOLLHUP);
                let room = datagrams.in_flight_bytes < self.options.send_buffer;
                bits |= when(room && !self.starving, OUT);
            }
        }
        bits as u32
    }
}

/// What a datagram counts against the receive buffer. A buffer is held whole, however short the
/// datagram in it.
pub fn charged(incoming: &Incoming) -> usize {
    incoming.len().max(512)
}

impl Incoming {
    /// Bytes of the datagram.
    pub fn len(&self) -> usize {
        match &self.copy {
            Some(bytes) => bytes.len(),
            None => self.buffers().map(|data| data.len() as usize).sum(),
        }
    }

    /// Its buffers, in order.
    pub fn buffers(&self) -> impl Iterator<Item = Received> + '_ {
        let all = std::iter::once(self.data).chain(self.rest.iter().copied());
        all.take(if self.copy.is_some() { 0 } else { usize::MAX })
    }

    /// The same for another socket.
    pub fn copied(&self) -> Incoming {
        let mut bytes = Vec::with_capacity(self.len());
        match &self.copy {
            Some(copy) => bytes.extend_from_slice(copy),
            None => self.buffers().for_each(|data| {
                // SAFETY: the buffer was not returned: it waits in this datagram.
                bytes.extend_from_slice(unsafe { mem::received(data, 0) });
            }),
        }
        Incoming { rest: Vec::new(), copy: Some(bytes.into()), ..*self }
    }
}
