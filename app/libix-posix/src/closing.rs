//! How sockets end: closed by the program, ended by the peer, or refused by the dataplane.
use crate::holders;
use crate::slab::Id;
use crate::socket::{Kind, Socket};
use crate::state::Core;
use crate::stream::Phase;
use libc::{EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLLRDNORM, EPOLLWRNORM};
use libix::engine::Ending;

const IN: i32 = EPOLLIN | EPOLLRDNORM;
const OUT: i32 = EPOLLOUT | EPOLLWRNORM;

impl Core {
    /// The program has closed the last descriptor of a socket.
    pub fn close(&mut self, id: Id) {
        // An entry of a set lives as long as the file does, which another process may have.
        if !self.goes_on_here(id) {
            self.unwatch(id);
        }
        let lives_on = self.stays_afloat(id);
        if !lives_on && self.closes_handed(id) {
            return;
        }
        self.unwatch(id);
        if lives_on {
            return;
        }
        let Some(socket) = self.sockets.get_mut(id) else { return };
        let linger = socket.options.linger;
        match &mut socket.kind {
            Kind::Linux | Kind::Idle { .. } | Kind::Lost => drop(self.sockets.remove(id)),
            Kind::Listener(_) => {
                self.end_listener(id);
                self.sockets.remove(id);
            }
            // The dataplane does not run, so it does not know the port.
            Kind::Datagrams(_) if self.elastic_threads[0].tx.is_none() => {
                self.leave_udp_port(id);
                self.sockets.remove(id);
            }
            Kind::Datagrams(datagrams) => {
                datagrams.closing = true;
                self.mark_dirty(id);
            }
            Kind::Stream(stream) => {
                if stream.phase == Phase::Dead || stream.phase == Phase::ToConnect {
                    self.sockets.remove(id);
                    return;
                }
                if stream.local_peer.is_some() {
                    return self.close_local_pair(id);
                }
                // The peer must learn that its data was not read (RFC 2525, 2.17).
                let abort = stream.unread() > 0
                    || linger.is_some_and(|time| time.is_zero())
                    || stream.is_connecting();
                stream.flow.ending = if abort { Ending::Abort } else { Ending::Close };
                stream.queued_at = None;
                self.mark_dirty(id);
            }
        }
    }

    /// Ends a listener. Connections that wait to be accepted are reset, as on Linux, unless another
    /// process has it and waits for them.
    pub fn end_listener(&mut self, id: Id) {
        let listener = self.sockets.get_mut(id).and_then(Socket::listener);
        let Some(listener) = listener else { return };
        let (port_id, queue) = (listener.port, core::mem::take(&mut listener.queue));
        let deferred = core::mem::take(&mut listener.deferred) > 0;
        let deferred = if deferred { self.take_deferred(id) } else { Vec::new() };
        for waiting in queue.into_iter().chain(deferred) {
            if self.leaves_to_kin(port_id, waiting) {
                continue;
            }
            if let Some(stream) = self.sockets.get_mut(waiting).and_then(Socket::stream) {
                stream.flow.ending = Ending::Abort;
                stream.queued_at = None;
            }
            self.leaves_queue(waiting);
            self.end_unaccepted(waiting);
        }
        if let Some(port) = self.ports.get_mut(port_id) {
            port.members.retain(|member| *member != id);
            self.close_port(port_id);
            self.size_backlog(port_id);
            self.say_waits();
        }
    }

    /// Takes the connections of a listener that wait for their first bytes.
    fn take_deferred(&mut self, listener: Id) -> Vec<Id> {
        let Core { elastic_threads, sockets, .. } = self;
        let mut all: Vec<Id> =
            elastic_threads.iter().flat_map(|thread| thread.deferred.iter().copied()).collect();
        all.retain(|id| {
            let stream = sockets.get_mut(*id).and_then(Socket::stream);
            stream.is_some_and(|stream| {
                stream.queued_at == Some(listener) && stream.deferred_until_us.take().is_some()
            })
        });
        all
    }

    fn end_unaccepted(&mut self, id: Id) {
        let Some(stream) = self.sockets.get_mut(id).and_then(Socket::stream) else { return };
        if let Some(local_peer) = stream.local_peer {
            self.sockets.remove(id);
            self.died(local_peer, libc::ECONNRESET);
        } else if stream.phase == Phase::Dead {
            self.sockets.remove(id);
        } else {
            self.mark_dirty(id);
        }
    }

    /// The flow of a socket has ended; `errno` is 0 if in order.
    pub fn died(&mut self, id: Id, errno: i32) {
        let Some(socket) = self.sockets.get_mut(id) else { return };
        let Some(stream) = socket.stream() else { return };
        if stream.phase == Phase::Dead {
            return;
        }
        let connecting = stream.is_connecting();
        let soft = core::mem::take(&mut stream.soft_error);
        // As on Linux: after the end of the stream, a reset is a broken pipe.
        let errno = match errno {
            libc::ECONNRESET if connecting => libc::ECONNREFUSED,
            libc::ECONNRESET if stream.eof && !stream.flow.has_sent_fin() => libc::EPIPE,
            libc::ECONNRESET if stream.eof => 0,
            // The ICMP message was reported already.
            libc::EHOSTUNREACH if soft == 0 && stream.was_open => libc::ETIMEDOUT,
            libc::EHOSTUNREACH if soft != 0 => soft,
            errno => errno,
        };
        stream.phase = Phase::Dead;
        stream.flow_is_gone();
        // A deferred connection is not known to the program yet.
        let deferred_at = stream.deferred_until_us.and(stream.queued_at);
        let (is_gift, shared) = (stream.gift.is_some() && stream.shared.is_none(), stream.shared);
        let orphan = stream.flow.ending != Ending::No || deferred_at.is_some() || is_gift;
        socket.error = errno;
        let listener = deferred_at.and_then(|at| self.sockets.get_mut(at)?.listener());
        if let Some(listener) = listener {
            listener.deferred = listener.deferred.saturating_sub(1);
        }
        if orphan {
            self.leaves_queue(id);
            self.sockets.remove(id);
            return;
        }
        // Said now: this process may end before it looks at what others have.
        shared.into_iter().for_each(|at| holders::ends(at, errno));
        self.notify(id, IN | OUT | EPOLLRDHUP | EPOLLHUP | EPOLLERR);
    }

    /// Closes one end of a connection within this process. The other end receives an end of
    /// stream, or a reset if bytes were not read or `SO_LINGER` is 0.
    fn close_local_pair(&mut self, id: Id) {
        let Some(socket) = self.sockets.get_mut(id) else { return };
        let hard = socket.options.linger.is_some_and(|time| time.is_zero());
        let Some(stream) = socket.stream() else { return };
        let (local_peer, unread) = (stream.local_peer, stream.unread() > 0);
        self.sockets.remove(id);
        match local_peer {
            Some(local_peer) if hard || unread => self.died(local_peer, libc::ECONNRESET),
            Some(local_peer) => self.end_of_local_stream(local_peer),
            None => {}
        }
    }

    /// The other end of a connection within this process sends no more.
    pub fn end_of_local_stream(&mut self, id: Id) {
        let Some(stream) = self.sockets.get_mut(id).and_then(Socket::stream) else { return };
        stream.eof = true;
        self.notify(id, IN | EPOLLRDHUP | EPOLLHUP);
    }
}
