//! What the dataplane tells, and what it means to a socket.
use super::{Role, Sockets, errno_of};
use crate::stack::StackEvent;
use libc::c_int;
use libix::Dead;
use libix::engine::SendQueue;
use libix::raw::Event;

impl Sockets {
    /// Handles the events of the dataplane.
    pub fn digest(&mut self) {
        while let Some(event) = self.stack.as_mut().and_then(|stack| stack.events.pop_front()) {
            match event {
                StackEvent::Knock(listener, handle, peer) => {
                    if let Some(socket) = self.sockets.get_mut(&(listener as c_int)) {
                        socket.knocking.push_back((handle, peer));
                        socket.news += 1;
                    }
                }
                StackEvent::Received(cookie, bytes, acked) => {
                    self.received(cookie as c_int, bytes);
                    if acked > 0 {
                        self.acked(cookie as c_int, acked);
                    }
                }
                StackEvent::Datagram(cookie, bytes, peer) => {
                    if let Some(socket) = self.sockets.get_mut(&(cookie as c_int))
                        && socket.peer.is_none_or(|of| of == peer)
                    {
                        socket.datagrams_in.push_back((bytes, peer));
                        socket.news += 1;
                    }
                }
                StackEvent::Other(event) => self.event(event),
            }
        }
    }

    pub(super) fn received(&mut self, fd: c_int, bytes: Vec<u8>) {
        let Some(socket) = self.sockets.get_mut(&fd) else { return };
        socket.news += 1;
        // After `SHUT_RD`, too: what comes can be read, as on Linux.
        socket.received.extend(bytes);
    }

    fn acked(&mut self, fd: c_int, bytes: u32) {
        if let Some(socket) = self.sockets.get_mut(&fd) {
            socket.flow.acked(bytes.into());
            self.push(fd);
        }
    }

    pub(super) fn event(&mut self, event: Event) {
        let (Event::UdpError { cookie, .. }
        | Event::Connected { cookie, .. }
        | Event::Eof { cookie }
        | Event::Sent { cookie, .. }
        | Event::Dead { cookie, .. }) = event
        else {
            return;
        };
        let fd = cookie as c_int;
        let Some(socket) = self.sockets.get_mut(&fd) else { return };
        socket.news += 1;
        match event {
            Event::UdpError { why, .. } => socket.error = errno_of(why),
            Event::Connected { outcome: Ok(()), .. } => {
                (socket.role, socket.flow.established) = (Role::Connection, true);
            }
            Event::Connected { outcome: Err(error), .. } => {
                socket.role = Role::Fresh;
                socket.error = errno_of(error);
            }
            Event::Eof { .. } => socket.eof = true,
            Event::Sent { bytes, .. } => self.acked(fd, bytes),
            Event::Dead { reason, .. } => {
                socket.dead = Some(reason);
                socket.error = match reason {
                    Dead::Closed => 0,
                    Dead::Reset if socket.eof => libc::EPIPE,
                    Dead::Reset | Dead::Failed(_) => libc::ECONNRESET,
                    Dead::TimedOut => libc::ETIMEDOUT,
                    Dead::Unreachable => libc::EHOSTUNREACH,
                    Dead::NotConnected(error) => errno_of(error),
                };
                socket.flow.send = SendQueue::default();
            }
            _ => {}
        }
    }
}
