//! Datagrams of the model: in order between two sockets, and lost only without a receiver.
use super::calls::Answer;
use super::flow::Taken;
use super::memory::copy_out;
use super::{RX_BUFFER_BYTES, World};
use core::ptr::with_exposed_provenance_mut;
use ix_abi::{CallError, Cookie, DatagramNotes, Endpoint, Event, RxData, SgArray};
use std::collections::{BTreeMap, VecDeque};

/// Longest datagram, as with an Ethernet MTU of 1500 bytes.
const PAYLOAD_MAX: usize = 1472;
/// First port for sockets bound to port 0.
const EPHEMERAL_PORT: u16 = 40_000;
/// Address of every thread of the model.
const LOCAL: [u8; 4] = [10, 0, 0, 1];

struct Socket {
    thread: usize,
    port: u16,
    cookie: u64,
}

/// Sent and not delivered; its memory must not change until then.
struct Flying {
    thread: usize,
    cookie: u64,
    from_port: u16,
    to_port: u16,
    pieces: Vec<Taken>,
}

#[derive(Default)]
pub(super) struct Udp {
    sockets: BTreeMap<u64, Socket>,
    flying: VecDeque<Flying>,
    /// Received buffers not given back: thread and index, by address.
    held: BTreeMap<u64, (usize, usize)>,
}

impl World {
    pub(super) fn udp_bind(&mut self, thread: usize, port: u16, cookie: u64) -> Answer {
        let taken = |sockets: &BTreeMap<u64, Socket>, port| {
            sockets.values().any(|socket| (socket.thread, socket.port) == (thread, port))
        };
        if port != 0 && taken(&self.udp.sockets, port) {
            return Err(CallError::InUse);
        }
        let id = self.name();
        let port = if port == 0 { EPHEMERAL_PORT + id as u16 } else { port };
        self.udp.sockets.insert(id, Socket { thread, port, cookie });
        Ok(id)
    }

    pub(super) fn udp_unbind(&mut self, thread: usize, id: u32) -> Answer {
        match self.udp.sockets.get(&id.into()) {
            Some(socket) if socket.thread == thread => {
                self.udp.sockets.remove(&id.into());
                Ok(0)
            }
            _ => Err(CallError::BadHandle),
        }
    }

    pub(super) fn udp_set_opt(&mut self, thread: usize, id: u32) -> Answer {
        let theirs = self.udp.sockets.get(&id.into()).is_some_and(|socket| socket.thread == thread);
        if theirs { Ok(0) } else { Err(CallError::BadHandle) }
    }

    pub(super) fn udp_sendv(
        &mut self,
        thread: usize,
        id: u32,
        to_port: u16,
        sg: SgArray,
        cookie: Cookie,
    ) -> Answer {
        if self.refuses() {
            return Err(CallError::NoResource);
        }
        let from_port = match self.udp.sockets.get(&id.into()) {
            Some(socket) if socket.thread == thread => socket.port,
            _ => return Err(CallError::BadHandle),
        };
        let mut pieces = Vec::new();
        for entry in self.read_sg(sg)? {
            let in_rx = self.rx.contains(entry.base, entry.len);
            if !in_rx && !self.in_tx(entry.base, entry.len) {
                return Err(CallError::Fault);
            }
            pieces.push(Taken { base: entry.base, bytes: copy_out(entry.base, entry.len) });
        }
        let bytes = pieces.iter().map(|piece| piece.bytes.len()).sum::<usize>();
        if bytes > PAYLOAD_MAX {
            return Err(CallError::Invalid);
        }
        self.udp.flying.push_back(Flying { thread, cookie, from_port, to_port, pieces });
        Ok(bytes as u64)
    }

    pub(super) fn udp_recv_done(&mut self, thread: usize, base: u64) -> Answer {
        let held = self.udp.held.remove(&base);
        let (holder, buffer) = held.expect("a datagram was given back twice");
        assert_eq!(holder, thread, "given back by another thread");
        self.free(buffer);
        Ok(0)
    }

    /// Delivers some of the datagrams in flight.
    pub(super) fn move_datagrams(&mut self) {
        let some = self.udp.flying.len() as u64;
        for _ in 0..self.random(some + 1).max(some.min(1)) {
            let Some(flying) = self.udp.flying.pop_front() else { return };
            let mut data = Vec::new();
            for piece in &flying.pieces {
                let now = copy_out(piece.base, piece.bytes.len() as u64);
                assert_eq!(now, piece.bytes, "sent memory changed before UDP_SENT");
                data.extend(now);
            }
            self.threads[flying.thread].tell(Event::UdpSent { cookie: flying.cookie });
            self.deliver_datagram(&flying, &data);
        }
    }

    fn deliver_datagram(&mut self, flying: &Flying, data: &[u8]) {
        let listening = self.udp.sockets.values().filter(|socket| socket.port == flying.to_port);
        let listening: Vec<_> = listening.map(|socket| (socket.thread, socket.cookie)).collect();
        if listening.is_empty() {
            return;
        }
        let (thread, cookie) = listening[self.random(listening.len() as u64) as usize];
        let Some(buffer) = self.rx_free.pop() else { return };
        let base = self.rx.base() + (buffer * RX_BUFFER_BYTES) as u64;
        let to = with_exposed_provenance_mut::<u8>(base as usize);
        // SAFETY: a free buffer of the receive memory; a datagram is shorter (`PAYLOAD_MAX`).
        unsafe { to.copy_from_nonoverlapping(data.as_ptr(), data.len()) };
        self.udp.held.insert(base, (thread, buffer));
        let local = ix_abi::v4(LOCAL);
        self.threads[thread].tell(Event::UdpRecv {
            cookie,
            peer: Endpoint { addr: local, port: flying.from_port },
            local,
            data: RxData { addr: base, len: data.len() as u32 },
            notes: DatagramNotes::new(64, 0, 0),
        });
    }
}
