//! Connections to the dataplane's own address within this process: of a socket with itself, or of
//! any two where one process serves. Bytes go from one to the other without a packet. Each end is
//! the other's *local peer*.
use crate::mem::Gather;
use crate::slab::Id;
use crate::socket::{Kind, Socket};
use crate::state::Core;
use crate::stream::{Phase, Stream};
use crate::{family, serving};
use libc::{EPOLLIN, EPOLLOUT, EPOLLRDNORM, EPOLLWRNORM};
use std::net::SocketAddr;

/// How often another port is asked for.
const OTHERS_MAX: usize = 8;

const IN: i32 = EPOLLIN | EPOLLRDNORM;
const OUT: i32 = EPOLLOUT | EPOLLWRNORM;

impl Core {
    /// Whether a connection to this address is a pair. Behind the process wall only that of a
    /// socket with itself is: other processes may listen, or get an end of it later.
    pub fn is_pair_of_here(&self, id: Id, to: SocketAddr) -> bool {
        let bound = self.sockets.get(id).and_then(|socket| socket.bound);
        let is_itself =
            || bound.is_some_and(|at| at.port() == to.port() && family::hears(at.ip(), to.ip()));
        self.routes.is_ours(to.ip()) && (!serving::is_shared() || is_itself())
    }

    /// The port with a listener of this process that a connection to an address reaches.
    fn port_at(&self, to: SocketAddr) -> Option<Id> {
        let serves = |port: &Id| {
            let Some(port) = self.ports.get(*port) else { return false };
            let here = family::hears(port.at.ip(), to.ip());
            port.at.port() == to.port() && here && !port.members.is_empty()
        };
        self.ports.ids().into_iter().find(serves)
    }

    /// Connects a socket to an address of the dataplane: to a listener of this process, or to
    /// itself if it is bound there. On return the connection is open or dead.
    pub fn connect_here(&mut self, id: Id, to: SocketAddr) -> Result<(), i32> {
        let bound = self.sockets.get(id).ok_or(libc::EBADF)?.bound;
        let port = match bound {
            Some(at) => at.port(),
            None => {
                // Not the one that it connects to, or it would be its own peer. On Linux these
                // differ by their parity.
                let mut port = self.free_port(id, to.ip(), true);
                for _ in 0..OTHERS_MAX {
                    if port != Ok(to.port()) {
                        break;
                    }
                    port = self.free_port(id, to.ip(), true);
                }
                port.map_err(|_| libc::EADDRNOTAVAIL)?
            }
        };
        let ip = bound
            .map_or(to.ip(), |at| if family::is_wildcard(at.ip()) { to.ip() } else { at.ip() });
        let local = SocketAddr::new(ip, port);
        let mut stream = Stream::new(Phase::Connecting, 0, to, Some(local));
        stream.local_peer = if local == to { Some(id) } else { self.queue_here(id, to, local) };
        let found = stream.local_peer.is_some();
        if found {
            (stream.phase, stream.was_open) = (Phase::Open, true);
        }
        let socket = self.sockets.get_mut(id).ok_or(libc::EBADF)?;
        socket.bound = Some(bound.unwrap_or(local));
        socket.kind = Kind::Stream(Box::new(stream));
        if found {
            self.notify(id, OUT);
        } else {
            self.died(id, libc::ECONNREFUSED);
        }
        Ok(())
    }

    /// Makes the other end and puts it into the accept queue of a listener at `to`.
    fn queue_here(&mut self, id: Id, to: SocketAddr, from: SocketAddr) -> Option<Id> {
        let port = self.port_at(to)?;
        let listener = self.choose_listener(self.home(), port)?;
        let socket = self.sockets.get_mut(listener)?;
        let (ipv6, options) = (socket.ipv6, socket.options.clone());
        if socket.listener().is_none_or(|listener| listener.queue.len() > listener.backlog) {
            return None;
        }
        let mut stream = Stream::new(Phase::Open, 0, from, Some(to));
        (stream.was_open, stream.announced) = (true, true);
        (stream.local_peer, stream.queued_at) = (Some(id), Some(listener));
        let mut accepted = Socket::new(Kind::Stream(Box::new(stream)), ipv6, false);
        accepted.options = options;
        let accepted = self.sockets.insert(accepted);
        let queue = &mut self.sockets.get_mut(listener)?.listener()?.queue;
        queue.push_back(accepted);
        self.notify(listener, IN);
        Some(accepted)
    }

    /// Copies as many bytes to the local peer as there is room for. Returns how many.
    pub fn send_to_local_peer(&mut self, id: Id, local_peer: Id, from: &mut Gather<'_>) -> usize {
        let Some(socket) = self.sockets.get_mut(id) else { return 0 };
        let limit = socket.send_buffer();
        let Some(stream) = socket.stream() else { return 0 };
        let mut room = stream.space(limit).min(from.left());
        let given = room;
        stream.gave_to_local_peer(given);
        let Some(other) = self.sockets.get_mut(local_peer).and_then(Socket::stream) else {
            // It is closed: bytes sent to it bring a reset.
            self.died(id, libc::ECONNRESET);
            return given;
        };
        while room > 0 {
            let front = from.front();
            let piece = &front[..front.len().min(room)];
            other.append(piece);
            room -= piece.len();
            from.advance(piece.len());
        }
        if given > 0 {
            self.notify(local_peer, IN);
        }
        given
    }

    /// Bytes of the local peer were read: it has room again.
    pub fn read_from_local_peer(&mut self, local_peer: Id, bytes: usize) {
        let Some(socket) = self.sockets.get_mut(local_peer) else { return };
        let limit = socket.send_buffer();
        let Some(stream) = socket.stream() else { return };
        let was_writable = stream.is_writable(limit);
        stream.local_peer_read(bytes);
        if !was_writable && stream.is_writable(limit) {
            self.notify(local_peer, OUT);
        }
    }
}
