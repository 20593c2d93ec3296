//! After a cycle: its event conditions, told to the sockets that they are about.
use crate::emit::errno_of;
use crate::epoll::Set;
use crate::icmp;
use crate::slab::{Id, Slab};
use crate::socket::{Discovery, ERRORS_MAX, Kind, Listener, Options, Refused, Socket, Waiting};
use crate::state::{Core, Pending, cookie};
use crate::stream::{Phase, Stream};
use libc::{EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLLRDNORM, EPOLLWRNORM};
use libix::Dead;
use libix::engine::Ending;
use libix::raw::{Event, Received, Said, Thread, call};
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
                Event::UdpError { cookie, peer, said, data, .. } => {
                    self.udp_failed(cookie, peer, said, data);
                    if let Some(data) = data {
                        self.lanes[lane].give_back(data);
                    }
                }
                Event::FlowError { cookie, said, .. } => self.flow_failed(lane, cookie, said),
                Event::UdpSent { cookie } => self.datagram_left(cookie, 0),
                _ => {}
            }
        }
    }

    fn received(&mut self, id: Id, data: Received) {
        let Some(stream) = self.live_stream(id) else { return };
        if stream.flow.ending != Ending::No {
            // Nobody will read it: the peer must hear that.
            stream.flow.ending = Ending::Abort;
            return self.touch(id);
        }
        // SAFETY: events come in order, and `Flow::emit` alone gives bytes of a flow back. `died`
        // copies what is unread when the flow ends, for whatever reason, and a stream that is dead
        // takes no more in.
        unsafe { stream.flow.receive.take_in(data) };
        let deferred = stream.deferred_until_us.is_some();
        self.tell(id, IN);
        if deferred {
            self.enters_queue(id);
        }
    }

    fn sent(&mut self, id: Id, bytes: u32) {
        let Some(socket) = self.sockets.get_mut(id) else { return };
        let limit = socket.options.send_buffer;
        let Some(stream) = socket.stream().filter(|stream| stream.phase != Phase::Dead) else {
            return;
        };
        let was_writable = stream.is_writable(limit);
        stream.flow.acked(bytes.into());
        if bytes > 0 {
            stream.soft_error = 0;
        }
        let ends = stream.flow.ending != Ending::No;
        let becomes_writable = !was_writable && stream.is_writable(limit);
        if stream.flow.send.unsent() > 0 || (ends && stream.flow.send.len() == 0) {
            self.touch(id);
        }
        if becomes_writable {
            self.tell(id, OUT);
        }
    }

    /// A stream whose flow has not ended. Events of the same cycle may follow its end; they are
    /// ignored.
    fn live_stream(&mut self, id: Id) -> Option<&mut Stream> {
        let stream = self.sockets.get_mut(id).and_then(Socket::stream)?;
        (stream.phase != Phase::Dead).then_some(stream)
    }

    fn ended(&mut self, id: Id) {
        let Some(stream) = self.live_stream(id) else { return };
        stream.eof = true;
        self.tell(id, IN | EPOLLRDHUP | EPOLLHUP);
        self.ends_deferral(id);
    }

    /// The flow of a socket is gone; `errno` 0: in order.
    pub fn died(&mut self, id: Id, errno: i32) {
        let Some(socket) = self.sockets.get_mut(id) else { return };
        let Some(stream) = socket.stream() else { return };
        if stream.phase == Phase::Dead {
            return;
        }
        let connecting = stream.is_connecting();
        let soft = core::mem::take(&mut stream.soft_error);
        // As Linux has it: whoever was told of the end is told that the pipe is broken.
        let errno = match errno {
            libc::ECONNRESET if connecting => libc::ECONNREFUSED,
            libc::ECONNRESET if stream.eof && !stream.flow.has_sent_fin() => libc::EPIPE,
            libc::ECONNRESET if stream.eof => 0,
            // What was said and heard of already is not said again.
            libc::EHOSTUNREACH if soft == 0 && stream.was_open => libc::ETIMEDOUT,
            libc::EHOSTUNREACH if soft != 0 => soft,
            errno => errno,
        };
        stream.phase = Phase::Dead;
        stream.flow_is_gone();
        // Nobody has heard of one that is deferred.
        let deferred_at = stream.deferred_until_us.and(stream.queued_at);
        let orphan = stream.flow.ending != Ending::No || deferred_at.is_some();
        socket.error = errno;
        let listener = deferred_at.and_then(|at| self.sockets.get_mut(at)?.listener());
        if let Some(listener) = listener {
            listener.deferred = listener.deferred.saturating_sub(1);
        }
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
        let Some(stream) = self.live_stream(id) else { return };
        (stream.flow.handle, stream.flow.established) = (handle, true);
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
        stream.unsent_low = unsent_low(&options);
        let defer_us = u64::from(options.defer_accept_s) * 1_000_000;
        if defer_us > 0 {
            stream.deferred_until_us = Some(crate::drive::now_us() + defer_us);
        }
        stream.options_changed = options.of_flow() != stream.told;
        let mut accepted = Socket::new(Kind::Stream(Box::new(stream)), ipv6, false);
        (accepted.options, accepted.lane) = (options, lane);
        let id = self.sockets.insert(accepted);
        self.touch(id);
        if defer_us == 0 {
            return self.enters_queue(id);
        }
        self.lanes[lane].deferred.push(id);
        if let Some(listener) = self.sockets.get_mut(listener).and_then(Socket::listener) {
            listener.deferred += 1;
        }
    }

    /// A connection can be accepted from now on.
    pub fn enters_queue(&mut self, id: Id) {
        let Some(stream) = self.sockets.get_mut(id).and_then(Socket::stream) else { return };
        let Some(listener_id) = stream.queued_at else { return };
        let was_deferred = stream.deferred_until_us.take().is_some();
        let listener = self.sockets.get_mut(listener_id).and_then(Socket::listener);
        let Some(listener) = listener else { return };
        listener.deferred -= usize::from(was_deferred).min(listener.deferred);
        listener.queue.push_back(id);
        self.tell(listener_id, IN);
    }

    /// One that is not in its listener's queue yet comes into it: something was received.
    fn ends_deferral(&mut self, id: Id) {
        let stream = self.sockets.get_mut(id).and_then(Socket::stream);
        if stream.is_some_and(|stream| stream.deferred_until_us.is_some()) {
            self.enters_queue(id);
        }
    }

    /// Returns the listener whose turn it is: among those of threads at home on this elastic thread,
    /// else among those that a thread waits for, else among all. Listeners with a full queue are
    /// passed over. A listener that no thread ever waited for may belong to another process, which
    /// does not serve.
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
                let has_room = |listener: &mut Listener| {
                    listener.queue.len() + listener.deferred <= listener.backlog
                };
                socket.listener().is_some_and(has_room) && suits(socket)
            })
        };
        let here =
            if lanes > 1 { choose(&|socket| waits_at(socket, sets) == Some(lane)) } else { None };
        let chosen = here.or_else(|| choose(&is_heard)).or_else(|| choose(&|_| true));
        port.next = (chosen.unwrap_or(port.next) + 1) % count.max(1);
        chosen.map(|chosen| port.members[chosen]).or_else(|| port.members.first().copied())
    }

    /// Returns the socket that a datagram belongs to: the one that is connected to its sender, else
    /// the latest one that is not connected, else the latest one, which gives its memory back.
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

    /// As on Linux a connected socket hears of it, by the error of its next call, if it is for
    /// good; and one that asks for all errors (`IP_RECVERR`), which gets them in a queue as well.
    fn udp_failed(&mut self, port: Id, to: SocketAddr, said: Said, quoted: Option<Received>) {
        let Some((errno, for_good)) = icmp::errno(said.kind, said.code) else { return };
        let Core { udp_ports, sockets, paths, .. } = self;
        let Some(port) = udp_ports.get(port) else { return };
        let mut peer = |id: Id| Some(sockets.get_mut(id)?.datagrams()?.peer);
        let members = || port.members.iter().copied();
        let connected = members().find(|id| peer(*id) == Some(Some(to)));
        let Some(id) = connected.or_else(|| members().rev().find(|id| peer(*id) == Some(None)))
        else {
            return;
        };
        let Some(socket) = sockets.get_mut(id) else { return };
        if socket.options.discovery.believes() {
            paths.said(to.ip(), said, std::time::Instant::now());
        }
        let wants_all = socket.options.receive_errors;
        let hears = connected.is_some() && for_good;
        let minds = errno != libc::EMSGSIZE || socket.options.discovery != Discovery::Dont;
        if !(wants_all || hears) || !minds {
            return;
        }
        socket.error = errno;
        if let Some(udp) = socket.datagrams()
            && wants_all
            && udp.errors.len() < ERRORS_MAX
        {
            // SAFETY: not given back: the caller does so afterwards.
            let bytes = quoted.map_or(&[][..], |data| unsafe { crate::mem::received(data, 0) });
            let refused = Refused { to, errno, said: Some(said), info: said.detail };
            udp.errors.push_back((refused, bytes.to_vec()));
        }
        self.tell(id, IN | EPOLLERR);
    }

    /// What somebody says of a connection ends an attempt to connect, as on Linux. An open one goes
    /// on, and ends with this errno if it ends unanswered; one that asks for all errors hears of it
    /// at once.
    fn flow_failed(&mut self, lane: usize, id: Id, said: Said) {
        let Some((errno, _)) = icmp::errno(said.kind, said.code) else { return };
        let Some(socket) = self.sockets.get_mut(id) else { return };
        let wants_all = socket.options.receive_errors;
        let Some(stream) = socket.stream().filter(|stream| stream.phase != Phase::Dead) else {
            return;
        };
        let to = stream.peer.ip();
        if errno == libc::EMSGSIZE {
            return self.paths.said(to, said, std::time::Instant::now());
        }
        if stream.is_connecting() {
            // For whoever asks, whether it asked for all or not.
            let to = stream.peer;
            stream.complaint = Some(Refused { to, errno, said: Some(said), info: said.detail });
            if stream.flow.handle != 0 {
                let abort = call::abort(stream.flow.handle);
                self.lanes[lane].batch.put_off(abort, Pending::Nothing);
            }
            return self.died(id, errno);
        }
        if wants_all {
            socket.error = errno;
            self.tell(id, IN | EPOLLERR);
        } else {
            stream.soft_error = errno;
        }
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
            return self.lanes[lane].give_back(data);
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

/// How much may be unsent of a connection that the program writes to.
pub fn unsent_low(options: &Options) -> u64 {
    if options.unsent_low == 0 { u64::MAX } else { options.unsent_low.into() }
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
