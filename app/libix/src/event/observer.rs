//! Passes events of the engine on to the handler of an event loop.
use super::io::Attached;
use super::{EventLoop, Handler};
use crate::engine::{Engine, Observer};
use crate::error::{Dead, Error};
use crate::raw::Event;
use std::net::{IpAddr, SocketAddr};

/// An event loop that receives the events of a cycle.
pub(super) struct LoopObserver<'a, H: Handler>(pub(super) &'a mut EventLoop<H>);

impl<H: Handler> Observer for LoopObserver<'_, H> {
    type User = Attached<H::State>;

    #[inline]
    fn engine(&mut self) -> &mut Engine<Self::User> {
        &mut self.0.io.engine
    }

    #[inline]
    fn received(&mut self, id: u64) {
        let Some(mut conn) = self.0.io.conn(id) else { return self.0.io.touch(id) };
        self.0.handler.on_readable(&mut conn);
    }

    #[inline]
    fn sent(&mut self, id: u64, bytes: u32) {
        let io = &mut self.0.io;
        let send_limit = io.send_limit;
        let Some((connection, tx)) = io.connection_with_tx(id) else { return };
        let writable = connection.wants_room && connection.has_room(send_limit, tx);
        if writable {
            connection.wants_room = false;
        }
        if bytes > 0 {
            self.0.tell(id, |handler, conn| handler.on_sent(conn, bytes));
        }
        if writable {
            self.0.tell(id, |handler, conn| handler.on_writable(conn));
        }
    }

    fn connected(&mut self, id: u64) {
        self.0.tell(id, |handler, conn| handler.on_connected(conn));
    }

    fn ended(&mut self, id: u64) {
        self.0.tell(id, |handler, conn| handler.on_eof(conn));
    }

    fn dead(&mut self, id: u64, why: Dead) {
        self.0.tell(id, |handler, conn| handler.on_dead(conn, why));
    }

    fn knocked(&mut self, listener: u64, handle: u64, peer: SocketAddr) {
        match self.0.handler.on_accept(&mut self.0.io, listener, peer) {
            Some(state) => {
                let id = self.0.io.engine.accept(handle, peer, state);
                self.0.tell(id, |handler, conn| handler.on_connected(conn));
            }
            None => self.0.io.engine.reject(handle),
        }
    }

    fn datagram(&mut self, socket: u64, peer: SocketAddr, local: IpAddr, data: &[u8]) {
        if self.0.io.has_socket(socket) {
            self.0.io.asked = Some(local);
            self.0.handler.on_datagram(&mut self.0.io, socket, peer, data);
            self.0.io.asked = None;
        }
    }

    fn other(&mut self, event: Event) {
        match event {
            Event::Timer { cookie } => {
                if let Some(token) = self.0.io.timer_fired(cookie) {
                    self.0.handler.on_timer(&mut self.0.io, token);
                }
            }
            Event::GroupLeaves { group, to } => self.0.group_leaves(group, to),
            Event::GroupArrived { group, from } => self.0.group_arrived(group, from),
            Event::Revoked => self.0.handler.on_revoke(&mut self.0.io),
            Event::Restored => self.0.handler.on_restore(&mut self.0.io),
            Event::Drained => self.0.io.drained = true,
            Event::UdpError { cookie, peer, why, said, .. } => {
                let mtu = if why == Error::TooLong { said.detail } else { 0 };
                if self.0.io.has_socket(cookie) {
                    self.0.handler.on_datagram_error(&mut self.0.io, cookie, peer, why, mtu);
                }
            }
            Event::PacketRecv { cookie, data } => self.0.io.packet_came(cookie, data),
            Event::PacketSent { cookie } => self.0.io.packet_left(cookie, Ok(())),
            Event::Signal { from, value } => self.0.handler.on_signal(&mut self.0.io, from, value),
            // A flow's error is reported when its effect arrives; the rest concerns the engine.
            _ => {}
        }
    }
}
