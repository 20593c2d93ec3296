//! UDP sockets of an elastic thread, and datagrams on their way out.
use super::{Batch, Engine, Name, Pending, Table, User};
use crate::error::Error;
use crate::raw::{Thread, TxBuf, call};
use ix_abi::{FlowOption, SgEntry};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

/// Datagrams that may wait for room in the call array; beyond that they are refused.
const WAITING_MAX: usize = 4096;

struct Outgoing {
    socket: u64,
    to: SocketAddr,
    buf: TxBuf,
}

struct Socket<T> {
    name: Name,
    at: SocketAddr,
    state: T,
}

pub(super) struct Udp<T> {
    sockets: Table<Socket<T>>,
    /// Memory that must stay until `UdpSent`, or until the call was refused.
    sending: Table<TxBuf>,
    waiting: VecDeque<Outgoing>,
    /// The pieces so far of a received datagram that is longer than a buffer.
    gathered: Vec<u8>,
    lost: u64,
}

impl<T> Udp<T> {
    pub(super) fn new(thread: u32) -> Udp<T> {
        Udp {
            sockets: Table::new(thread),
            sending: Table::new(thread),
            waiting: VecDeque::new(),
            gathered: Vec::new(),
            lost: 0,
        }
    }

    /// Whether pieces of a datagram are missing.
    #[inline]
    pub(super) fn is_gathering(&self) -> bool {
        !self.gathered.is_empty()
    }

    /// The pieces so far.
    pub(super) fn gathered(&mut self) -> &mut Vec<u8> {
        &mut self.gathered
    }

    /// Appends a datagram to the batch, or keeps it for the next one; order is kept.
    fn send<C: Copy>(&mut self, thread: &mut Thread, batch: &mut Batch<Pending<C>>, out: Outgoing) {
        if !self.waiting.is_empty() || !batch.has_room(thread, 1) {
            self.waiting.push_back(out);
            return;
        }
        let piece = SgEntry { base: out.buf.base(), len: out.buf.len() as u64 };
        let id = self.sending.insert(out.buf);
        batch.push_datagram(thread, (out.socket, out.to), piece, id, Pending::Datagram(id));
    }

    /// Appends what waits, as far as there is room.
    #[inline]
    pub(super) fn flush<C: Copy>(&mut self, thread: &mut Thread, batch: &mut Batch<Pending<C>>) {
        if self.has_backlog() {
            self.flush_backlog(thread, batch);
        }
    }

    #[inline(never)]
    fn flush_backlog<C: Copy>(&mut self, thread: &mut Thread, batch: &mut Batch<Pending<C>>) {
        let mut waiting = core::mem::take(&mut self.waiting);
        while batch.has_room(thread, 1)
            && let Some(out) = waiting.pop_front()
        {
            self.send(thread, batch, out);
        }
        self.waiting = waiting;
    }

    #[inline]
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

    /// The dataplane has ended: datagrams on their way are lost. Returns the sockets to be bound
    /// again.
    pub(super) fn lose(&mut self) -> Vec<(u64, SocketAddr)> {
        self.lost += self.waiting.len() as u64;
        self.waiting.clear();
        for id in self.sending.ids().collect::<Vec<_>>() {
            self.sending.remove(id);
        }
        let mut again = Vec::new();
        for id in self.sockets.ids().collect::<Vec<_>>() {
            if let Some(socket) = self.sockets.get_mut(id)
                && !matches!(socket.name, Some(Err(_)))
            {
                socket.name = None;
                again.push((id, socket.at));
            }
        }
        again
    }

    pub(super) fn sent(&mut self, id: u64) {
        self.sending.remove(id);
    }
}

impl<U: User> Engine<U> {
    /// Opens a UDP socket of this elastic thread and returns its id; [`Engine::udp_outcome`] says
    /// what came of it. Port 0: any that is free.
    pub fn udp_bind(&mut self, at: SocketAddr, state: U::Socket) -> u64 {
        let id = self.udp.sockets.insert(Socket { name: None, at, state });
        self.make(call::udp_bind(at, id), Pending::UdpBind(id));
        id
    }

    /// Whether the socket was opened, once that is known; a refused one is forgotten.
    pub fn udp_outcome(&mut self, socket: u64) -> Option<Result<(), Error>> {
        let outcome = self.udp.sockets.get(socket)?.name;
        if let Some(Err(_)) = outcome {
            self.udp.sockets.remove(socket);
        }
        outcome.map(|name| name.map(|_| ()))
    }

    /// What is attached to a UDP socket, unless it is gone.
    #[inline]
    pub fn udp_state(&self, socket: u64) -> Option<&U::Socket> {
        self.udp.sockets.get(socket).map(|socket| &socket.state)
    }

    /// The dataplane's name of an open UDP socket.
    fn udp_name(&self, socket: u64) -> Option<u64> {
        self.udp.sockets.get(socket)?.name?.ok()
    }

    /// Sets how a socket sends from now on: code point or hop limit. `false`: it is not open.
    pub fn udp_set_opt(&mut self, socket: u64, option: FlowOption) -> bool {
        let Some(name) = self.udp_name(socket) else { return false };
        self.udp.flush(&mut self.thread, &mut self.batch);
        self.push_quietly(call::udp_set_opt(name, option));
        true
    }

    /// Listens to a group, or no more. `false`: the socket is not open.
    pub fn udp_listen(&mut self, socket: u64, group: IpAddr, listens: bool) -> bool {
        let Some(name) = self.udp_name(socket) else { return false };
        // All sources but none, or none.
        self.push_quietly(call::udp_listen(name, group, listens, (0, 0)));
        true
    }

    /// Ends a UDP socket.
    pub fn udp_unbind(&mut self, socket: u64) {
        self.udp.flush(&mut self.thread, &mut self.batch);
        if let Some(Socket { name: Some(Ok(name)), .. }) = self.udp.sockets.remove(socket) {
            self.push_quietly(call::udp_unbind(name));
        }
    }

    /// Sends a whole buffer as one datagram without a copy; `Err`: it was not taken, for the socket
    /// is not open or too many wait.
    pub fn udp_send(&mut self, socket: u64, to: SocketAddr, buf: TxBuf) -> Result<(), TxBuf> {
        match self.udp_name(socket) {
            Some(socket) if self.udp.waiting.len() < WAITING_MAX => {
                let out = Outgoing { socket, to, buf };
                self.udp.send(&mut self.thread, &mut self.batch, out);
                Ok(())
            }
            _ => Err(buf),
        }
    }

    /// Whether a datagram would go out with the next cycle.
    pub fn udp_has_room(&self) -> bool {
        !self.udp.has_backlog() && self.has_room()
    }

    /// Datagrams that were taken and then refused by the dataplane: no buffers, no route, too long.
    pub fn udp_lost(&self) -> u64 {
        self.udp.lost
    }

    pub(super) fn udp_bind_answered(&mut self, id: u64, answer: Result<u64, Error>) {
        match (self.udp.sockets.get_mut(id), answer) {
            // Linux is asked for the port.
            (Some(socket), Err(Error::Again)) => {
                let again = call::udp_bind(socket.at, id);
                self.asks_for_port = true;
                self.make(again, Pending::UdpBind(id));
            }
            (Some(socket), answer) => socket.name = Some(answer),
            // Ended before it had a name.
            (None, Ok(name)) => self.push_quietly(call::udp_unbind(name)),
            (None, Err(_)) => {}
        }
    }
}
