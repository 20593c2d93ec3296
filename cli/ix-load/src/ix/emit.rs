//! Sending of requests and replies.
use super::{Attached, OnIx, Peer};
use crate::engine::Engine;
use crate::protocol::Protocol;
use libix::engine::Connection;
use libix::raw::TxArena;

/// Gives a connection of the load the requests that may be sent. Returns whether it waits for
/// transmit memory.
#[inline]
pub(super) fn fill_load<P: Protocol>(
    engine: &mut Engine<P>,
    out: &mut Vec<u8>,
    connection: &mut Connection<Peer>,
    tx: &TxArena,
    now_ns: u64,
) -> bool {
    let empty = connection.unsent_bytes() == 0;
    let Peer::Load { index, spilled } = &mut connection.state else { return false };
    if !empty {
        return false;
    }
    out.clear();
    if spilled.is_empty() {
        engine.output(*index, now_ns, out);
    } else {
        out.append(spilled);
    }
    let taken = connection.write(tx, out);
    if taken == out.len() {
        return false;
    }
    if let Peer::Load { spilled, .. } = &mut connection.state {
        spilled.extend_from_slice(&out[taken..]);
    }
    // No event announces free memory.
    taken == 0
}

impl<P: Protocol> OnIx<P> {
    /// Appends the calls of changed connections, as far as there is room.
    pub(super) fn emit(&mut self, now_ns: u64) {
        let OnIx { engine, net, out, back_ends, .. } = self;
        net.emit(|_, connection, tx| match (&connection.state, &mut *back_ends) {
            _ if !connection.can_send() || !connection.is_established() => false,
            (Peer::Load { .. }, _) => fill_load(engine, out, connection, tx, now_ns),
            (Peer::Served(_), Some(back_ends)) => back_ends.fill(connection),
            (Peer::Served(_), None) => false,
        });
        self.emit_datagrams(now_ns);
    }

    /// Sends the datagrams of UDP sockets.
    fn emit_datagrams(&mut self, now_ns: u64) {
        while self.net.udp_has_room()
            && let Some(index) = self.ready_sockets.pop_front()
        {
            self.flows[index as usize].ready = false;
            self.emit_datagrams_of(index, now_ns);
        }
    }

    fn emit_datagrams_of(&mut self, index: u32, now_ns: u64) {
        let to = self.targets[index as usize % self.targets.len()];
        let flow = &self.flows[index as usize];
        let (socket, up) = (flow.name, flow.up);
        while up && self.net.udp_has_room() {
            self.out.clear();
            if !self.engine.output_datagram(index, now_ns, &mut self.out) {
                return;
            }
            // Without memory the datagram is lost, as any other may be.
            let Some(mut buf) = self.net.tx().alloc(self.out.len()) else { continue };
            buf.extend(&self.out);
            let _ = self.net.udp_send(socket, to, buf);
        }
        self.mark(index);
    }
}

/// What the generator attaches to connections of the engine.
impl libix::engine::User for Attached {
    type Connection = Peer;
    /// Number of the connection in the measuring engine.
    type Socket = u32;
    type Call = ();
}
