//! Connections to the dataplane's own address. Both ends are this process's, or even the same
//! socket, so bytes go from one to the other without a packet: no device brings back what it sends.
use crate::mem::Gather;
use crate::ops::free_port;
use crate::slab::Id;
use crate::socket::{Kind, Socket};
use crate::state::Core;
use crate::stream::{Phase, Stream};
use libc::{EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLLRDNORM, EPOLLWRNORM};
use std::net::SocketAddr;

const IN: i32 = EPOLLIN | EPOLLRDNORM;
const OUT: i32 = EPOLLOUT | EPOLLWRNORM;

impl Core {
    /// Connects a socket to an address that is our own: with a listener of this process, or with
    /// itself if that is where it is bound. Like any connection it is open, or dead, when the
    /// caller looks.
    pub fn connect_here(&mut self, id: Id, to: SocketAddr) -> Result<(), i32> {
        let bound = self.sockets.get(id).ok_or(libc::EBADF)?.bound;
        let port = match bound {
            Some(at) => at.port(),
            None => free_port(self, id, to.ip(), true).map_err(|_| libc::EADDRNOTAVAIL)?,
        };
        let ip =
            bound.map_or(to.ip(), |at| if at.ip().is_unspecified() { to.ip() } else { at.ip() });
        let local = SocketAddr::new(ip, port);
        let mut stream = Stream::new(Phase::Connecting, 0, to, Some(local));
        stream.mate = if local == to { Some(id) } else { self.queue_here(id, to, local) };
        let found = stream.mate.is_some();
        if found {
            (stream.phase, stream.was_open) = (Phase::Open, true);
        }
        let socket = self.sockets.get_mut(id).ok_or(libc::EBADF)?;
        socket.bound = Some(bound.unwrap_or(local));
        socket.kind = Kind::Stream(Box::new(stream));
        if found {
            self.tell(id, OUT);
        } else {
            self.died(id, libc::ECONNREFUSED);
        }
        Ok(())
    }

    /// The other end, in the queue of whoever listens there.
    fn queue_here(&mut self, id: Id, to: SocketAddr, from: SocketAddr) -> Option<Id> {
        let serves = |port: &Id| {
            let Some(port) = self.ports.get(*port) else { return false };
            let here = port.at.ip() == to.ip() || port.at.ip().is_unspecified();
            port.at.port() == to.port() && here && !port.members.is_empty()
        };
        let port = self.ports.ids().into_iter().find(serves)?;
        let listener = self.choose_listener(self.home(), port)?;
        let socket = self.sockets.get_mut(listener)?;
        let (ipv6, options) = (socket.ipv6, socket.options.clone());
        if socket.listener().is_none_or(|listener| listener.queue.len() > listener.backlog) {
            return None;
        }
        let mut stream = Stream::new(Phase::Open, 0, from, Some(to));
        (stream.was_open, stream.announced) = (true, true);
        (stream.mate, stream.queued_at) = (Some(id), Some(listener));
        let mut accepted = Socket::new(Kind::Stream(Box::new(stream)), ipv6, false);
        accepted.options = options;
        let accepted = self.sockets.insert(accepted);
        let queue = &mut self.sockets.get_mut(listener)?.listener()?.queue;
        queue.push_back(accepted);
        self.tell(listener, IN);
        Some(accepted)
    }

    /// Copies what there is room for to the other end; returns how many bytes.
    pub fn give_to_mate(&mut self, id: Id, mate: Id, from: &mut Gather<'_>) -> usize {
        let Some(socket) = self.sockets.get_mut(id) else { return 0 };
        let limit = socket.options.send_buffer;
        let Some(stream) = socket.stream() else { return 0 };
        let mut room = stream.space(limit).min(from.left());
        let given = room;
        stream.lend_to_mate(given);
        let Some(other) = self.sockets.get_mut(mate).and_then(Socket::stream) else {
            // It is closed: what was sent is answered by a reset.
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
            self.tell(mate, IN);
        }
        given
    }

    /// Bytes from the other end were read: it has room again.
    pub fn took_from_mate(&mut self, mate: Id, bytes: usize) {
        let Some(socket) = self.sockets.get_mut(mate) else { return };
        let limit = socket.options.send_buffer;
        let Some(stream) = socket.stream() else { return };
        let was_writable = stream.is_writable(limit);
        stream.mate_took(bytes);
        if !was_writable && stream.is_writable(limit) {
            self.tell(mate, OUT);
        }
    }

    /// The other end sends no more.
    pub fn mate_ended(&mut self, mate: Id) {
        let Some(stream) = self.sockets.get_mut(mate).and_then(Socket::stream) else { return };
        stream.eof = true;
        self.tell(mate, IN | EPOLLRDHUP | EPOLLHUP);
    }

    /// Closes one end; the other hears of it, as of a reset if something was not read.
    pub fn close_pair(&mut self, id: Id) {
        let Some(socket) = self.sockets.get_mut(id) else { return };
        let hard = socket.options.linger.is_some_and(|time| time.is_zero());
        let Some(stream) = socket.stream() else { return };
        let (mate, unread) = (stream.mate, stream.unread() > 0);
        self.sockets.remove(id);
        match mate {
            Some(mate) if hard || unread => self.died(mate, libc::ECONNRESET),
            Some(mate) => self.mate_ended(mate),
            None => {}
        }
    }
}
