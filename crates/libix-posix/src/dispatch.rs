//! After a cycle: its event conditions, told to the sockets that they are about.
use crate::emit::errno_of;
use crate::epoll::Set;
use crate::slab::{Id, Slab};
use crate::socket::{ERRORS_MAX, Kind, Listener, Refused, Socket, Waiting};
use crate::state::{Core, cookie};
use crate::stream::{Ending, Phase, Stream};
use libc::{EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLLRDNORM, EPOLLWRNORM};
use libix::Dead;
use libix::raw::{Event, Received, Thread};
use std::net::SocketAddr;

const IN: i32 = EPOLLIN | EPOLLRDNORM;
const OUT: i32 = EPOLLOUT | EPOLLWRNORM;

impl Core {
    /// Tells the first `events` event conditions of the cycle.
    pub fn dispatch(&mut self, lane: usize, thread: &Thread, events: usize) {
        for index in 0..events {
            match thread.event(index) {
                Event::Recv { cookie, data, .. } => self.received(cookie, data),
                Event::Sent { cookie, bytes, .. } => self.sent(cookie, bytes),
                Event::Eof { cookie } => self.ended(cookie),
                Event::Dead { cookie, reason } => {
                    self.died(cookie, dead_errno(reason));
                }
                Event::Knock { listener, handle, peer } => {
                    crate::real::has_connection();
                    self.knocked(lane, listener, handle, peer);
                }
                Event::Connected { cookie, handle, outcome } => {
                    crate::real::has_connection();
                    self.connected(cookie, handle, outcome.err().map(errno_of));
                }
                Event::UdpRecv { cookie, data, peer, local } => {
                    self.udp_received(cookie, Waiting { data, from: peer, local, lane });
                }
                Event::UdpError { cookie, peer, why, mtu } => {
                    self.udp_failed(cookie, Refused { to: peer, errno: errno_of(why), mtu });
                }
                Event::UdpSent { cookie } => self.datagram_left(cookie, 0),
                _ => {}
            }
        }
    }

    fn received(&mut self, id: Id, data: Received) {
        let Some(stream) = self.sockets.get_mut(id).and_then(Socket::stream) else { return };
        if stream.ending != Ending::No {
            // Nobody will read it: the peer must hear that.
            stream.ending = Ending::Abort;
            return self.touch(id);
        }
        stream.inbox.push(data);
        self.tell(id, IN);
    }

    fn sent(&mut self, id: Id, bytes: u32) {
        let Some(socket) = self.sockets.get_mut(id) else { return };
        let limit = socket.options.send_buffer;
        let Some(stream) = socket.stream() else { return };
        let was_writable = stream.is_writable(limit);
        stream.outbox.acked(bytes.into());
        stream.blocked = false;
        let ends = stream.ending != Ending::No;
        let becomes_writable = !was_writable && stream.is_writable(limit);
        if stream.outbox.unsent() > 0 || (ends && stream.outbox.len() == 0) {
            self.touch(id);
        }
        if becomes_writable {
            self.tell(id, OUT);
        }
    }

    fn ended(&mut self, id: Id) {
        let Some(stream) = self.sockets.get_mut(id).and_then(Socket::stream) else { return };
        stream.eof = true;
        self.tell(id, IN | EPOLLRDHUP | EPOLLHUP);
    }

    /// The flow of a socket is gone; `errno` 0: in order.
    pub fn died(&mut self, id: Id, errno: i32) {
        let Some(socket) = self.sockets.get_mut(id) else { return };
        let Some(stream) = socket.stream() else { return };
        if stream.phase == Phase::Dead {
            return;
        }
        let connecting = stream.is_connecting();
        // As Linux has it: whoever was told of the end is told that the pipe is broken.
        let errno = match errno {
            libc::ECONNRESET if connecting => libc::ECONNREFUSED,
            libc::ECONNRESET if stream.eof && !stream.fin => libc::EPIPE,
            libc::ECONNRESET if stream.eof => 0,
            errno => errno,
        };
        stream.phase = Phase::Dead;
        stream.handle = 0;
        stream.inbox.save();
        stream.outbox = Default::default();
        let orphan = stream.ending != Ending::No;
        socket.error = errno;
        if orphan {
            self.sockets.remove(id);
            return;
        }
        self.tell(id, IN | OUT | EPOLLRDHUP | EPOLLHUP | EPOLLERR);
    }

    fn connected(&mut self, id: Id, handle: u64, errno: Option<i32>) {
        if let Some(errno) = errno {
            return self.died(id, errno);
        }
        let Some(stream) = self.sockets.get_mut(id).and_then(Socket::stream) else { return };
        stream.handle = handle;
        stream.phase = Phase::Open;
        stream.was_open = true;
        self.touch(id);
        self.tell(id, OUT);
    }

    fn knocked(&mut self, lane: usize, port: u64, handle: u64, peer: SocketAddr) {
        let Some(listener) = self.choose_listener(lane, port & !cookie::PORT) else {
            // The last listener was closed in this cycle: `UNLISTEN` refuses whoever waits.
            return;
        };
        let Some(socket) = self.sockets.get_mut(listener) else { return };
        let (ipv6, options) = (socket.ipv6, socket.options.clone());
        let single = self.routes.single().map(std::net::IpAddr::V4);
        let local = socket.bound.map(|at| match single {
            Some(ip) if at.ip().is_unspecified() => SocketAddr::new(ip, at.port()),
            _ => at,
        });
        let local = local.filter(|at| !at.ip().is_unspecified());
        let mut stream = Stream::new(Phase::ToAccept, handle, peer, local);
        stream.queued_at = Some(listener);
        stream.options_changed = options.of_flow() != stream.told;
        let mut accepted = Socket::new(Kind::Stream(Box::new(stream)), ipv6, false);
        (accepted.options, accepted.lane) = (options, lane);
        let id = self.sockets.insert(accepted);
        if let Some(listener) = self.sockets.get_mut(listener).and_then(Socket::listener) {
            listener.queue.push_back(id);
        }
        self.touch(id);
        self.tell(listener, IN);
    }

    /// Whose turn it is among the listeners of threads at home on this elastic thread, or among those that
    /// anybody waits for, or among all; the ones with a full queue are passed over. One that nobody ever
    /// waited for may be another process's, which does not serve.
    pub fn choose_listener(&mut self, lane: usize, port: Id) -> Option<Id> {
        let Core { ports, sockets, sets, lane_count, .. } = self;
        let port = ports.get_mut(port)?;
        if let [only] = port.members[..] {
            return Some(only);
        }
        let count = port.members.len();
        let lanes = *lane_count;
        let turn = (0..count).map(|n| (port.next + n) % count);
        let mut choose = |suits: &dyn Fn(&mut Socket) -> bool| {
            turn.clone().find(|member| {
                let Some(socket) = sockets.get_mut(port.members[*member]) else { return false };
                let has_room = |listener: &mut Listener| listener.queue.len() <= listener.backlog;
                socket.listener().is_some_and(has_room) && suits(socket)
            })
        };
        let here =
            if lanes > 1 { choose(&|socket| waits_at(socket, sets) == Some(lane)) } else { None };
        let chosen = here.or_else(|| choose(&is_heard)).or_else(|| choose(&|_| true));
        port.next = (chosen.unwrap_or(port.next) + 1) % count.max(1);
        chosen.map(|chosen| port.members[chosen]).or_else(|| port.members.first().copied())
    }

    /// Whose a datagram is: the socket's that is connected to its sender, else the latest one's that is
    /// not connected. One that nobody wants goes to the latest, which gives its memory back.
    fn choose_datagrams(&mut self, port: Id, from: SocketAddr) -> Option<Id> {
        let Core { udp_ports, sockets, .. } = self;
        let members = &udp_ports.get(port)?.members;
        if let [only] = members[..] {
            return Some(only);
        }
        let mut peer = |id: Id| Some(sockets.get_mut(id)?.datagrams()?.peer);
        let connected = members.iter().copied().find(|id| peer(*id) == Some(Some(from)));
        let open = || members.iter().rev().copied().find(|id| peer(*id) == Some(None));
        connected.or_else(open).or_else(|| members.last().copied())
    }

    /// As on Linux a connected socket hears of it, by the error of its next call, if it is for good; and
    /// one that asks for all errors (`IP_RECVERR`), which gets them in a queue as well.
    fn udp_failed(&mut self, port: Id, refused: Refused) {
        let Core { udp_ports, sockets, .. } = self;
        let Some(port) = udp_ports.get(port) else { return };
        let mut peer = |id: Id| Some(sockets.get_mut(id)?.datagrams()?.peer);
        let members = || port.members.iter().copied();
        let connected = members().find(|id| peer(*id) == Some(Some(refused.to)));
        let Some(id) = connected.or_else(|| members().rev().find(|id| peer(*id) == Some(None)))
        else {
            return;
        };
        let Some(socket) = sockets.get_mut(id) else { return };
        let wants_all = socket.options.receive_errors;
        let hears = connected.is_some() && refused.errno != libc::EHOSTUNREACH;
        if !wants_all && !hears {
            return;
        }
        socket.error = refused.errno;
        if let Some(udp) = socket.datagrams()
            && wants_all
            && udp.errors.len() < ERRORS_MAX
        {
            udp.errors.push_back(refused);
        }
        self.tell(id, IN | EPOLLERR);
    }

    fn udp_received(&mut self, port: Id, waiting: Waiting) {
        let Waiting { data, from, lane, .. } = waiting;
        let Some(id) = self.choose_datagrams(port, from) else { return };
        let Some(socket) = self.sockets.get_mut(id) else { return };
        let limit = socket.options.receive_buffer;
        let Some(udp) = socket.datagrams() else { return };
        let foreign = udp.peer.is_some_and(|peer| peer != from);
        // What does not fit is lost, as on Linux.
        if foreign || udp.closing || udp.read_shut || udp.inbox_bytes >= limit {
            return self.lanes[lane].read.push(data);
        }
        udp.inbox_bytes += charged(data);
        udp.inbox.push_back(waiting);
        self.tell(id, IN);
    }
}

/// Whether somebody waits for a listener, or has waited for it alone.
fn is_heard(socket: &mut Socket) -> bool {
    !socket.watches.is_empty() || socket.listener().is_some_and(|listener| listener.lane.is_some())
}

/// The elastic thread of whoever waits for a listener, in a set or by itself.
fn waits_at(socket: &mut Socket, sets: &Slab<Set>) -> Option<usize> {
    let alone = socket.listener().and_then(|listener| listener.lane);
    let in_set = || sets.get(socket.watches.first()?.set)?.lane;
    alone.or_else(in_set)
}

/// What a datagram counts against the receive buffer: buffers are held whole.
pub fn charged(data: Received) -> usize {
    data.len().max(512) as usize
}

fn dead_errno(reason: Dead) -> i32 {
    match reason {
        Dead::Closed => 0,
        Dead::TimedOut => libc::ETIMEDOUT,
        Dead::Unreachable => libc::EHOSTUNREACH,
        Dead::NotConnected(error) | Dead::Failed(error) => errno_of(error),
        Dead::Reset => libc::ECONNRESET,
    }
}
