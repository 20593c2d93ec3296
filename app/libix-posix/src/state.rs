//! All that the threads of the program share: sockets, epoll sets, calls to be made.
use crate::epoll::Set;
use crate::interface::Interfaces;
use crate::lane::{Called, LANES_MAX, Lane, Name, Names, Role};
use crate::numbers::Numbers;
use crate::paths::Paths;
use crate::route::{Routes, Whose};
use crate::slab::{Id, Slab};
use crate::socket::{Datagrams, Kind, Manner, Socket};
use crate::stream::Phase;
use ix_abi::Congestion;
use libix::engine::Ending;
use libix::raw::TxBuf;
use std::os::fd::RawFd;

/// Cookies say what they name by their upper bits; names of sockets leave these free.
pub mod cookie {
    /// A port that is listened at.
    pub const PORT: u64 = 1 << 63;
    /// Memory that a call names: of a datagram that is being sent, or for an answer.
    pub const MEMORY: u64 = 1 << 62;
}

/// A port that the dataplane listens at, for all sockets of this process that do.
pub struct Port {
    /// The dataplane's names.
    pub names: Names,
    /// Its listening sockets.
    pub members: Vec<Id>,
    /// Whose turn it is.
    pub next: usize,
    /// What `LISTEN` asks for.
    pub at: std::net::SocketAddr,
    /// What `LISTEN` asks for.
    pub backlog: u32,
}

/// A UDP port that is bound, for all sockets of this process that are bound there in the same way.
/// Linux lets them (`SO_REUSEADDR`): a server has one socket for new peers, and one connected to each.
pub struct UdpPort {
    /// The dataplane's names.
    pub names: Names,
    /// Its sockets, oldest first.
    pub members: Vec<Id>,
    /// What `UDP_BIND` asks for.
    pub at: std::net::SocketAddr,
    /// How it sends, as each elastic thread was told last.
    told: Vec<Manner>,
}

impl UdpPort {
    /// How an elastic thread was told to send from here.
    pub fn told(&mut self, lane: usize) -> &mut Manner {
        if self.told.len() <= lane {
            self.told.resize(lane + 1, Manner::default());
        }
        &mut self.told[lane]
    }
}

/// What has to be done with the answer of a call.
#[derive(Clone, Copy, Default)]
pub enum Pending {
    /// Nothing.
    #[default]
    Nothing,
    /// The window took so many of these.
    Sendv(Id, u64),
    /// The handle.
    Connect(Id),
    /// Refused: the connection is gone.
    Accept(Id),
    /// The listener's name.
    Listen(Id),
    /// The name of the port.
    UdpBind(Id),
    /// Refused: the memory under this cookie is free.
    UdpSendv(u64),
    /// Information of a flow, in the memory under this cookie.
    Info(u64),
    /// Transmit memory.
    Memory,
}

impl Pending {
    /// Whether somebody waits for the answer, and no event comes of it.
    pub fn is_urgent(&self) -> bool {
        let outcome =
            matches!(self, Pending::Connect(_) | Pending::Listen(_) | Pending::UdpBind(_));
        outcome || matches!(self, Pending::Info(_) | Pending::Memory)
    }
}

/// What the threads of the program share.
pub struct Core {
    /// Sockets.
    pub sockets: Slab<Socket>,
    /// Epoll sets.
    pub sets: Slab<Set>,
    /// Numbers of closed sockets that are kept.
    pub numbers: Numbers,
    /// Ports that are listened at.
    pub ports: Slab<Port>,
    /// UDP ports that are bound.
    pub udp_ports: Slab<UdpPort>,
    /// Memory that calls under way name, and the sockets that they are for.
    pub lent: Slab<(TxBuf, Id)>,
    /// What belongs to each elastic thread.
    pub lanes: [Lane; LANES_MAX],
    /// So many of them there are; before the dataplane begins, one.
    pub lane_count: usize,
    /// First and last port that a program is given which does not say one.
    pub ephemeral: (u16, u16),
    /// Which addresses are ours.
    pub routes: Routes,
    /// Linux's interfaces that they are reached by.
    pub interfaces: Interfaces,
    /// Congestion control of connections whose program has not chosen one.
    pub congestion: Congestion,
    /// What is known of paths.
    pub paths: Paths,
    /// The dataplane's address.
    pub address: Option<std::net::IpAddr>,
    /// Largest TCP payload of one packet, bytes.
    pub mss: u64,
    /// Threads that wait for nobody to be inside the dataplane.
    pub stay_out: u32,
    /// Threads to be told of something.
    pub called: Called,
    /// Our set of the program's real sets that are quiet, for the helper.
    pub quiet_sets: Option<RawFd>,
    /// The program ends.
    pub leaving: bool,
    /// A thread of ours waits until the process that has the dataplane ends.
    pub waits_for_seat: bool,
}

impl Core {
    /// Nothing yet.
    pub const fn new() -> Core {
        Core {
            sockets: Slab::new(),
            sets: Slab::new(),
            numbers: Numbers::new(),
            ports: Slab::new(),
            udp_ports: Slab::new(),
            lent: Slab::new(),
            lanes: [const { Lane::new() }; LANES_MAX],
            lane_count: 1,
            ephemeral: (32768, 60999),
            routes: Routes::none(),
            interfaces: Interfaces::none(),
            congestion: Congestion::Cubic,
            paths: Paths::new(),
            address: None,
            mss: 1,
            stay_out: 0,
            called: Called::nobody(),
            quiet_sets: None,
            leaving: false,
            waits_for_seat: false,
        }
    }

    /// Whether the dataplane has begun in this process.
    pub fn has_begun(&self) -> bool {
        self.lanes[0].tx.is_some()
    }

    /// Whose a socket is that goes to this address: with `SO_BINDTODEVICE` the dataplane's, if the way
    /// begins at that device.
    pub fn whose(&self, id: Id, to: std::net::IpAddr) -> Result<Whose, i32> {
        let device = self.sockets.get(id).and_then(|socket| socket.options.device.as_deref());
        let Some(device) = device else { return Ok(self.routes.connect(to)) };
        let own = self.routes.own_towards(to);
        let there = own.is_some() && own == self.interfaces.address_of(device);
        let leaves = !to.is_loopback() && !to.is_unspecified() && !to.is_multicast();
        if there && leaves { Ok(Whose::Ix) } else { Err(libc::ENETUNREACH) }
    }

    /// Longest packet that the device takes, bytes with the IP header.
    pub fn device_mtu(&self) -> u64 {
        /// IPv4's and TCP's headers.
        const HEADERS_BYTES: u64 = 40;
        self.mss + HEADERS_BYTES
    }

    /// The elastic threads.
    pub fn all_lanes(&self) -> &[Lane] {
        &self.lanes[..self.lane_count]
    }

    /// The elastic thread that the calling thread runs when it waits.
    pub fn home(&self) -> usize {
        crate::lane::home(self.lane_count)
    }

    /// The dataplane begins with so many elastic threads: each opens what was noted so far.
    pub fn has_lanes(&mut self, count: usize) {
        self.lane_count = count.clamp(1, LANES_MAX);
        for lane in &mut self.lanes[..self.lane_count] {
            (lane.new_ports, lane.new_udp_ports) = (self.ports.ids(), self.udp_ports.ids());
        }
        for id in self.ports.ids() {
            if let Some(port) = self.ports.get_mut(id) {
                port.names = Names::unasked(self.lane_count);
            }
        }
        for id in self.udp_ports.ids() {
            if let Some(port) = self.udp_ports.get_mut(id) {
                port.names = Names::unasked(self.lane_count);
                port.told.clear();
            }
        }
    }

    /// Elastic threads, a bit each, with a thread inside that should come out: for calls that wait, or
    /// because something is ready that it waits for.
    pub fn take_kicks(&mut self) -> u64 {
        let (called, mut drivers) = (self.called.take_drivers(), 0);
        for (index, lane) in self.lanes[..self.lane_count].iter_mut().enumerate() {
            if lane.role == Role::Free || lane.kicked {
                continue;
            }
            let is_called = called >> index & 1 != 0;
            if is_called || lane.has_calls() || !lane.wants_role.is_empty() {
                lane.kicked = true;
                drivers |= 1 << index;
            }
        }
        drivers
    }

    /// A thread has come out of the dataplane; returns whether somebody wanted it to.
    pub fn came_out(&mut self, lane: usize) -> bool {
        core::mem::take(&mut self.lanes[lane].kicked)
    }

    /// Has this bell rung once the lock is released.
    pub fn ring(&mut self, bell: RawFd) {
        self.called.ring(bell);
    }

    /// Notes that a socket has calls to make.
    pub fn touch(&mut self, id: Id) {
        if let Some(socket) = self.sockets.get_mut(id)
            && !socket.dirty
        {
            socket.dirty = true;
            self.lanes[socket.lane].dirty.push_back(id);
        }
    }

    /// Something about a socket has changed: tells those who wait for any of these `EPOLL*` bits.
    pub fn tell(&mut self, id: Id, bits: i32) {
        let Core { sockets, sets, called, .. } = self;
        let Some(socket) = sockets.get_mut(id) else { return };
        let mut ring = |waiter| called.add(waiter);
        socket.waiters.drain(..).for_each(&mut ring);
        for watch in &socket.watches {
            crate::epoll::tell(sets, *watch, bits as u32, &mut ring);
        }
    }

    /// The program has no descriptor of this socket any more.
    pub fn close(&mut self, id: Id) {
        self.unwatch(id);
        let Some(socket) = self.sockets.get_mut(id) else { return };
        let linger = socket.options.linger;
        match &mut socket.kind {
            Kind::Linux | Kind::Idle { .. } | Kind::Lost => drop(self.sockets.remove(id)),
            Kind::Listener(_) => {
                self.end_listener(id);
                self.sockets.remove(id);
            }
            // Nobody has heard of it yet.
            Kind::Datagrams(_) if self.lanes[0].tx.is_none() => {
                self.leave_udp_port(id);
                self.sockets.remove(id);
            }
            Kind::Datagrams(datagrams) => {
                datagrams.closing = true;
                self.touch(id);
            }
            Kind::Stream(stream) => {
                if stream.phase == Phase::Dead || stream.phase == Phase::ToConnect {
                    self.sockets.remove(id);
                    return;
                }
                if stream.mate.is_some() {
                    return self.close_pair(id);
                }
                // Unread data: the peer must hear that it was not read (RFC 2525, 2.17).
                let abort = stream.unread() > 0
                    || linger.is_some_and(|time| time.is_zero())
                    || stream.is_connecting();
                stream.flow.ending = if abort { Ending::Abort } else { Ending::Close };
                stream.queued_at = None;
                self.touch(id);
            }
        }
    }

    /// Nobody can connect to it any more, and who waits is reset, as Linux does.
    pub fn end_listener(&mut self, id: Id) {
        let listener = self.sockets.get_mut(id).and_then(Socket::listener);
        let Some(listener) = listener else { return };
        let (port_id, queue) = (listener.port, core::mem::take(&mut listener.queue));
        let deferred = core::mem::take(&mut listener.deferred) > 0;
        let deferred = if deferred { self.deferred_at(id) } else { Vec::new() };
        for waiting in queue.into_iter().chain(deferred) {
            if let Some(stream) = self.sockets.get_mut(waiting).and_then(Socket::stream) {
                stream.flow.ending = Ending::Abort;
                stream.queued_at = None;
            }
            self.close_dead_or_touch(waiting);
        }
        if let Some(port) = self.ports.get_mut(port_id) {
            port.members.retain(|member| *member != id);
            self.close_port(port_id);
        }
    }

    /// The connections that come into a listener's queue when something was received.
    fn deferred_at(&mut self, listener: Id) -> Vec<Id> {
        let Core { lanes, sockets, .. } = self;
        let mut all: Vec<Id> =
            lanes.iter().flat_map(|lane| lane.deferred.iter().copied()).collect();
        all.retain(|id| {
            let stream = sockets.get_mut(*id).and_then(Socket::stream);
            stream.is_some_and(|stream| {
                stream.queued_at == Some(listener) && stream.deferred_until_us.take().is_some()
            })
        });
        all
    }

    /// Ends a port that nobody is at any more. Where its name is awaited the answer ends it.
    pub fn close_port(&mut self, id: Id) {
        let Some(port) = self.ports.get(id).filter(|port| port.members.is_empty()) else { return };
        for lane in &mut self.lanes {
            lane.new_ports.retain(|port| *port != id);
        }
        if !port.names.is_awaited() {
            port.names.all().for_each(|(lane, name)| self.lanes[lane].old_ports.push(name));
            self.ports.remove(id);
        }
    }

    fn close_dead_or_touch(&mut self, id: Id) {
        let Some(stream) = self.sockets.get_mut(id).and_then(Socket::stream) else { return };
        if let Some(mate) = stream.mate {
            self.sockets.remove(id);
            self.died(mate, libc::ECONNRESET);
        } else if stream.phase == Phase::Dead {
            self.sockets.remove(id);
        } else {
            self.touch(id);
        }
    }

    /// The dataplane has begun: whoever waits looks again.
    pub fn everybody_looks(&mut self) {
        for lane in &mut self.lanes {
            lane.wants_role.drain(..).for_each(|bell| self.called.ring(bell));
        }
    }

    /// In a forked child. Listeners and UDP sockets are records that a dataplane of its own can begin
    /// with; connections are its parent's. Whatever lies in the parent's packet memory is forgotten:
    /// that memory is not here.
    pub fn forked(&mut self) {
        use core::mem::forget;
        self.lanes.iter_mut().for_each(Lane::forked);
        crate::lane::forked();
        (self.called, self.stay_out, self.waits_for_seat) = (Called::nobody(), 0, false);
        if let Some(fd) = self.quiet_sets.take() {
            crate::sync::close_private(fd);
        }
        forget(core::mem::replace(&mut self.lent, Slab::new()));
        for id in self.sockets.ids() {
            let Some(socket) = self.sockets.get_mut(id) else { continue };
            socket.waiters.clear();
            (socket.dirty, socket.lane) = (false, 0);
            if socket.fds == 0 {
                forget(self.sockets.remove(id));
                continue;
            }
            match &mut socket.kind {
                Kind::Listener(listener) => {
                    listener.queue.clear();
                    listener.deferred = 0;
                    listener.lane = None;
                }
                Kind::Stream(_) => forget(core::mem::replace(&mut socket.kind, Kind::Lost)),
                Kind::Datagrams(udp) => {
                    let (peer, read_shut, port) = (udp.peer, udp.read_shut, udp.port);
                    let fresh = Datagrams { peer, read_shut, port, ..Datagrams::default() };
                    forget(core::mem::replace(udp.as_mut(), fresh));
                    self.touch(id);
                }
                Kind::Linux | Kind::Idle { .. } | Kind::Lost => {}
            }
        }
        for id in self.sets.ids() {
            if let Some(set) = self.sets.get_mut(id) {
                set.waiters.clear();
                set.unwatched();
            }
        }
        // Until its own dataplane begins.
        self.has_lanes(1);
    }

    /// A UDP socket joins its port; there is a new one if it is the first.
    pub fn join_udp_port(&mut self, id: Id, at: std::net::SocketAddr) {
        let same = self.udp_ports.ids().into_iter().find(|port| {
            self.udp_ports.get(*port).is_some_and(|port| port.at == at && !port.members.is_empty())
        });
        let port = same.unwrap_or_else(|| {
            let names = Names::unasked(self.lane_count);
            let (members, told) = (Vec::new(), Vec::new());
            let port = self.udp_ports.insert(UdpPort { names, members, at, told });
            let lanes = &mut self.lanes[..self.lane_count];
            lanes.iter_mut().for_each(|lane| lane.new_udp_ports.push(port));
            port
        });
        if let Some(port) = self.udp_ports.get_mut(port) {
            port.members.push(id);
        }
        if let Some(udp) = self.sockets.get_mut(id).and_then(Socket::datagrams) {
            udp.port = port;
        }
    }

    /// A UDP socket leaves its port, which ends if it was the last one there.
    pub fn leave_udp_port(&mut self, id: Id) {
        let udp = self.sockets.get_mut(id).and_then(Socket::datagrams);
        let Some(name) = udp.map(|udp| udp.port) else { return };
        if let Some(port) = self.udp_ports.get_mut(name) {
            port.members.retain(|member| *member != id);
            self.close_udp_port(name);
        }
    }

    /// Ends a UDP port that nobody is at any more. Where its name is awaited the answer ends it.
    pub fn close_udp_port(&mut self, id: Id) {
        let Some(port) = self.udp_ports.get(id).filter(|port| port.members.is_empty()) else {
            return;
        };
        for lane in &mut self.lanes {
            lane.new_udp_ports.retain(|port| *port != id);
        }
        if !port.names.is_awaited() {
            port.names.all().for_each(|(lane, name)| self.lanes[lane].old_udp_ports.push(name));
            self.udp_ports.remove(id);
        }
    }

    /// An elastic thread has opened a port, or refused to; with `udp`, a UDP port.
    pub fn opened(&mut self, lane: usize, id: Id, answer: Result<u64, libix::Error>, udp: bool) {
        let names = match udp {
            true => self.udp_ports.get_mut(id).map(|port| &mut port.names),
            false => self.ports.get_mut(id).map(|port| &mut port.names),
        };
        if let Some(names) = names {
            names.set(lane, Name::Is(answer));
        }
        // All may have left meanwhile.
        if udp { self.close_udp_port(id) } else { self.close_port(id) }
    }

    /// Takes a socket out of all epoll sets.
    pub fn unwatch(&mut self, id: Id) {
        let Some(socket) = self.sockets.get_mut(id) else { return };
        for watch in core::mem::take(&mut socket.watches) {
            if let Some(set) = self.sets.get_mut(watch.set) {
                set.forget(watch.fd);
            }
        }
    }

    /// Whether something of this process still has to leave: bytes, or the end of a connection.
    pub fn is_leaving(&self) -> bool {
        let unfinished = |socket: &Socket| match &socket.kind {
            Kind::Stream(stream) => stream.phase != Phase::Dead && stream.flow.ending != Ending::No,
            Kind::Datagrams(datagrams) => !datagrams.outbox.is_empty(),
            _ => false,
        };
        let mut sockets = self.sockets.ids().into_iter().filter_map(|id| self.sockets.get(id));
        self.all_lanes().iter().any(Lane::has_calls) || sockets.any(unfinished)
    }
}
