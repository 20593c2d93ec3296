//! All that the threads of the program share: sockets, epoll sets, calls to be made.
use crate::epoll::Set;
use crate::numbers::Numbers;
use crate::route::Routes;
use crate::slab::{Id, Slab};
use crate::socket::{Datagrams, Kind, Socket};
use crate::stream::{Ending, Phase};
use crate::sync::Locked;
use libix::raw::{TxArena, TxBuf};
use std::collections::VecDeque;
use std::os::fd::RawFd;

/// Cookies say what they name by their upper bits; names of sockets leave these free.
pub mod cookie {
    /// A port that is listened at.
    pub const PORT: u64 = 1 << 63;
    /// Memory of a datagram that is being sent.
    pub const DATAGRAM: u64 = 1 << 62;
}

/// A port that the dataplane listens at, for all sockets of this process that do.
pub struct Port {
    /// Dataplane's name, or why not; `None`: not known yet.
    pub listener: Option<Result<u64, libix::Error>>,
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
    /// Dataplane's name, once it is known.
    pub id: Option<u64>,
    /// `UDP_BIND` was called.
    pub asked: bool,
    /// Its sockets, oldest first.
    pub members: Vec<Id>,
    /// What `UDP_BIND` asks for.
    pub at: std::net::SocketAddr,
}

/// What has to be done with the answer of a call.
pub enum Pending {
    /// Nothing.
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
    /// Information of a flow, in this memory.
    Info(Id, TxBuf),
    /// Transmit memory.
    Memory,
}

/// Who runs the dataplane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Nobody.
    Free,
    /// A thread of the program.
    Program,
    /// Our own thread, while the program does something else.
    Helper,
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
    /// Memory of datagrams that are being sent, and whose they are.
    pub datagrams: Slab<(TxBuf, Id)>,
    /// Transmit memory; there is some when the dataplane is entered.
    pub tx: Option<Locked<TxArena>>,
    /// First and last port that a program is given which does not say one.
    pub ephemeral: (u16, u16),
    /// Which addresses are ours.
    pub routes: Routes,
    /// The dataplane's address.
    pub address: Option<std::net::IpAddr>,
    /// Sockets with calls to make.
    pub dirty: VecDeque<Id>,
    /// Connections that hold the end of what is unsent back (`TCP_CORK`).
    pub corked: Vec<Id>,
    /// Largest TCP payload of one packet, bytes.
    pub mss: u64,
    /// Ports to be opened.
    pub new_ports: Vec<Id>,
    /// Listeners to be closed, by the dataplane's names.
    pub old_ports: Vec<u64>,
    /// UDP ports to be unbound, by the dataplane's names.
    pub old_udp_ports: Vec<u64>,
    /// What the answers of the last batch are for.
    pub pending: Vec<Pending>,
    /// Transmit memory was asked for.
    pub memory_asked: bool,
    /// The dataplane has refused more transmit memory.
    pub memory_refused: bool,
    /// Somebody found no transmit memory in this cycle.
    pub starved: bool,
    /// Who runs the dataplane.
    pub role: Role,
    /// Threads of the program that want to.
    pub wants_role: Vec<RawFd>,
    /// The helper's bell while it sleeps for long.
    pub helper_sleeps: Option<RawFd>,
    /// The driver was asked to come back.
    kicked: bool,
    /// Cycles so far.
    pub cycle: u64,
    bells: Vec<RawFd>,
    /// Our set of the program's real sets that are quiet, for the helper.
    pub quiet_sets: Option<RawFd>,
    /// What the dataplane watches beside its own.
    pub watched: Option<RawFd>,
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
            datagrams: Slab::new(),
            tx: None,
            ephemeral: (32768, 60999),
            routes: Routes::none(),
            address: None,
            dirty: VecDeque::new(),
            corked: Vec::new(),
            mss: 1,
            new_ports: Vec::new(),
            old_ports: Vec::new(),
            old_udp_ports: Vec::new(),
            pending: Vec::new(),
            memory_asked: false,
            memory_refused: false,
            starved: false,
            role: Role::Free,
            wants_role: Vec::new(),
            helper_sleeps: None,
            kicked: false,
            cycle: 0,
            bells: Vec::new(),
            quiet_sets: None,
            watched: None,
            leaving: false,
            waits_for_seat: false,
        }
    }

    /// Whether a thread is inside the dataplane that should come out for calls that wait.
    pub fn wants_kick(&mut self) -> bool {
        let waits = self.has_calls() || !self.wants_role.is_empty();
        let kick = self.role != Role::Free && waits && !self.kicked;
        self.kicked |= kick;
        kick
    }

    /// A thread has come out of the dataplane; answers whether somebody wanted it to.
    pub fn came_out(&mut self) -> bool {
        core::mem::take(&mut self.kicked)
    }

    /// Whether there are calls to make.
    pub fn has_calls(&self) -> bool {
        !self.dirty.is_empty()
            || !self.new_ports.is_empty()
            || !self.old_ports.is_empty()
            || !self.old_udp_ports.is_empty()
    }

    /// Bells to be rung once the lock is released.
    pub fn take_bells(&mut self) -> Option<Vec<RawFd>> {
        if self.bells.is_empty() { None } else { Some(core::mem::take(&mut self.bells)) }
    }

    /// Has this bell rung once the lock is released.
    pub fn ring(&mut self, bell: RawFd) {
        if !self.bells.contains(&bell) {
            self.bells.push(bell);
        }
    }

    /// Notes that a socket has calls to make.
    pub fn touch(&mut self, id: Id) {
        if let Some(socket) = self.sockets.get_mut(id)
            && !socket.dirty
        {
            socket.dirty = true;
            self.dirty.push_back(id);
        }
    }

    /// Something about a socket has changed: tells those who wait for any of these `EPOLL*` bits.
    pub fn tell(&mut self, id: Id, bits: i32) {
        let Core { sockets, sets, bells, .. } = self;
        let Some(socket) = sockets.get_mut(id) else { return };
        let mut ring = |bell: RawFd| {
            if !bells.contains(&bell) {
                bells.push(bell);
            }
        };
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
            Kind::Datagrams(_) if self.tx.is_none() => {
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
                // Unread data: the peer must hear that it was not read (RFC 2525, 2.17).
                let abort = stream.inbox.len() > 0
                    || linger.is_some_and(|time| time.is_zero())
                    || stream.is_connecting();
                stream.ending = if abort { Ending::Abort } else { Ending::Close };
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
        for waiting in queue {
            if let Some(stream) = self.sockets.get_mut(waiting).and_then(Socket::stream) {
                stream.ending = Ending::Abort;
                stream.queued_at = None;
            }
            self.close_dead_or_touch(waiting);
        }
        let Some(port) = self.ports.get_mut(port_id) else { return };
        port.members.retain(|member| *member != id);
        if port.members.is_empty() {
            if let Some(Ok(listener)) = port.listener {
                self.old_ports.push(listener);
            }
            let unheard = self.new_ports.len();
            self.new_ports.retain(|port| *port != port_id);
            if port.listener.is_some() || self.new_ports.len() < unheard {
                self.ports.remove(port_id);
            }
        }
    }

    fn close_dead_or_touch(&mut self, id: Id) {
        let dead = self.sockets.get_mut(id).and_then(Socket::stream);
        if dead.is_some_and(|stream| stream.phase == Phase::Dead) {
            self.sockets.remove(id);
        } else {
            self.touch(id);
        }
    }

    /// The dataplane has begun: whoever waits looks again.
    pub fn everybody_looks(&mut self) {
        for bell in core::mem::take(&mut self.wants_role) {
            self.ring(bell);
        }
    }

    /// In a forked child. Listeners and UDP sockets are records that a dataplane of its own can begin
    /// with; connections are its parent's. Whatever lies in the parent's packet memory is forgotten:
    /// that memory is not here.
    pub fn forked(&mut self) {
        use core::mem::{forget, take};
        (self.role, self.kicked, self.watched, self.starved) = (Role::Free, false, None, false);
        (self.memory_asked, self.memory_refused, self.waits_for_seat) = (false, false, false);
        (self.tx, self.helper_sleeps) = (None, None);
        (self.wants_role, self.bells) = (Vec::new(), Vec::new());
        if let Some(fd) = self.quiet_sets.take() {
            crate::sync::close_private(fd);
        }
        self.dirty.clear();
        self.corked.clear();
        self.old_ports.clear();
        self.old_udp_ports.clear();
        forget(take(&mut self.pending));
        forget(core::mem::replace(&mut self.datagrams, Slab::new()));
        for id in self.sockets.ids() {
            let Some(socket) = self.sockets.get_mut(id) else { continue };
            socket.waiters.clear();
            socket.dirty = false;
            if socket.fds == 0 {
                forget(self.sockets.remove(id));
                continue;
            }
            match &mut socket.kind {
                Kind::Listener(listener) => listener.queue.clear(),
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
        for id in self.udp_ports.ids() {
            if let Some(port) = self.udp_ports.get_mut(id) {
                (port.id, port.asked) = (None, false);
            }
        }
        self.new_ports = self.ports.ids();
        for id in self.new_ports.clone() {
            if let Some(port) = self.ports.get_mut(id) {
                port.listener = None;
            }
        }
    }

    /// A UDP socket joins its port; there is a new one if it is the first.
    pub fn join_udp_port(&mut self, id: Id, at: std::net::SocketAddr) {
        let same = self.udp_ports.ids().into_iter().find(|port| {
            self.udp_ports.get(*port).is_some_and(|port| port.at == at && !port.members.is_empty())
        });
        let port = same.unwrap_or_else(|| {
            self.udp_ports.insert(UdpPort { id: None, asked: false, members: Vec::new(), at })
        });
        if let Some(port) = self.udp_ports.get_mut(port) {
            port.members.push(id);
        }
        if let Some(udp) = self.sockets.get_mut(id).and_then(Socket::datagrams) {
            udp.port = port;
        }
    }

    /// A UDP socket leaves its port. Answers the dataplane's name of the port if it was the last one
    /// there; then it has to be unbound.
    pub fn leave_udp_port(&mut self, id: Id) -> Option<u64> {
        let name = self.sockets.get_mut(id).and_then(Socket::datagrams)?.port;
        let port = self.udp_ports.get_mut(name)?;
        port.members.retain(|member| *member != id);
        if !port.members.is_empty() || (port.asked && port.id.is_none()) {
            return None;
        }
        self.udp_ports.remove(name)?.id
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
            Kind::Stream(stream) => stream.phase != Phase::Dead && stream.ending != Ending::No,
            Kind::Datagrams(datagrams) => !datagrams.outbox.is_empty(),
            _ => false,
        };
        let mut sockets = self.sockets.ids().into_iter().filter_map(|id| self.sockets.get(id));
        self.has_calls() || sockets.any(unfinished)
    }
}
