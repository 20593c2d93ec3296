//! UDP sockets of an event loop, and datagrams on their way out.
use super::batch::{Batch, Pending};
use super::io::Io;
use super::slab::Slab;
use crate::error::Error;
use crate::raw::{TxBuf, call};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

/// Datagrams that may wait for room in the call array; beyond that `udp_send` refuses.
const WAITING_MAX: usize = 4096;

struct Outgoing {
    socket: u64,
    to: SocketAddr,
    buf: TxBuf,
}

#[derive(Default)]
pub(super) struct Udp {
    /// Dataplane's name of each socket, once it is known.
    sockets: Slab<Option<Result<u64, Error>>>,
    /// Memory that must stay until `UdpSent`, or until the call was refused.
    sending: Slab<TxBuf>,
    waiting: VecDeque<Outgoing>,
    lost: u64,
    /// The address that the datagram was sent to of which the handler is told.
    pub(super) asked: Option<IpAddr>,
}

impl Udp {
    /// Appends a datagram to the batch, or keeps it for the next one; order is kept.
    fn send(&mut self, batch: &mut Batch, out: Outgoing) {
        if !self.waiting.is_empty() || !batch.has_room(1) {
            self.waiting.push_back(out);
            return;
        }
        let id = self.sending.insert(out.buf);
        if let Some(buf) = self.sending.get(id) {
            batch.push_datagram(out.socket, out.to, buf, id);
        }
    }

    /// Appends what waits, as far as there is room.
    #[inline]
    pub(super) fn flush(&mut self, batch: &mut Batch) {
        if self.has_backlog() {
            self.flush_backlog(batch);
        }
    }

    #[inline(never)]
    fn flush_backlog(&mut self, batch: &mut Batch) {
        let mut waiting = core::mem::take(&mut self.waiting);
        while batch.has_room(1)
            && let Some(out) = waiting.pop_front()
        {
            self.send(batch, out);
        }
        self.waiting = waiting;
    }

    pub(super) fn has_backlog(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// A datagram that was refused is lost, and no event will say that its memory is free.
    pub(super) fn answered(&mut self, id: u64, answer: Result<u64, Error>) {
        if answer.is_err() {
            self.lost += 1;
            self.sending.remove(id);
        }
    }
}

impl<S> Io<S> {
    /// Opens a UDP socket of this elastic thread and answers its id; [`Io::udp_outcome`] says what
    /// came of it ([`super::EventLoop::udp_bind`] waits for that). Other threads may bind the same
    /// port: each gets the datagrams of its flow groups. Port 0: any that is free.
    pub fn udp_bind(&mut self, at: SocketAddr) -> u64 {
        let id = self.udp.sockets.insert(None);
        self.batch.push(call::udp_bind(at, id), Pending::UdpBind(id));
        id
    }

    /// Whether the socket was opened, once that is known; a refused one is forgotten.
    pub fn udp_outcome(&mut self, socket: u64) -> Option<Result<(), Error>> {
        let outcome = *self.udp.sockets.get(socket)?;
        if let Some(Err(_)) = outcome {
            self.udp.sockets.remove(socket);
        }
        outcome.map(|socket| socket.map(|_| ()))
    }

    /// In [`super::Handler::on_datagram`]: the address of ours that the datagram was sent to. A socket of
    /// every address hears it here; to answer from it, bind another one to it.
    pub fn udp_asked(&self) -> Option<IpAddr> {
        self.udp.asked
    }

    /// Sets how a socket sends from now on: `DSCP` or `HOP_LIMIT` of [`ix_abi::flow_opt`]. `false`: it
    /// is not open.
    pub fn udp_set_opt(&mut self, socket: u64, option: u64, value: u64) -> bool {
        let Some(Some(Ok(name))) = self.udp.sockets.get(socket) else { return false };
        let name = *name;
        self.udp.flush(&mut self.batch);
        self.batch.push(call::udp_set_opt(name, option, value), Pending::Nothing);
        true
    }

    /// Ends a UDP socket.
    pub fn udp_unbind(&mut self, socket: u64) {
        self.udp.flush(&mut self.batch);
        if let Some(Some(Ok(name))) = self.udp.sockets.remove(socket) {
            self.batch.push(call::udp_unbind(name), Pending::Nothing);
        }
    }

    /// Copies a datagram into transmit memory and sends it with this cycle's batch. `false`: it was
    /// not taken, for lack of memory or because the socket is not open.
    pub fn udp_send(&mut self, socket: u64, to: SocketAddr, data: &[u8]) -> bool {
        let Some(mut buf) = self.tx().alloc(data.len()) else { return false };
        buf.extend(data) == data.len() && self.udp_send_zc(socket, to, buf).is_ok()
    }

    /// Sends a whole buffer as one datagram without a copy; `Err`: it was not taken.
    pub fn udp_send_zc(&mut self, socket: u64, to: SocketAddr, buf: TxBuf) -> Result<(), TxBuf> {
        let name = match self.udp.sockets.get(socket) {
            Some(Some(Ok(name))) if self.udp.waiting.len() < WAITING_MAX => *name,
            _ => return Err(buf),
        };
        self.udp.send(&mut self.batch, Outgoing { socket: name, to, buf });
        Ok(())
    }

    /// Datagrams that were taken and then refused by the dataplane: no buffers, no route, too long.
    pub fn udp_lost(&self) -> u64 {
        self.udp.lost
    }

    pub(super) fn has_socket(&self, socket: u64) -> bool {
        self.udp.sockets.get(socket).is_some()
    }

    pub(super) fn udp_sent(&mut self, id: u64) {
        self.udp.sending.remove(id);
    }

    pub(super) fn udp_bind_answered(&mut self, id: u64, answer: Result<u64, Error>) {
        match (self.udp.sockets.get_mut(id), answer) {
            (Some(socket), answer) => *socket = Some(answer),
            // Ended before it had a name.
            (None, Ok(name)) => self.batch.push_later(call::udp_unbind(name), Pending::Nothing),
            (None, Err(_)) => {}
        }
    }
}
