//! Calls that carry requests out.
use super::flow::{entry, fill, unsent_pieces};
use super::{OnIx, Pending};
use crate::protocol::Protocol;
use libix::raw::call;

/// Calls that one connection appends in a cycle at most.
const EMIT_CALLS: usize = 2;

impl<P: Protocol> OnIx<P> {
    /// Appends the calls of connections that were touched, as far as there is room.
    pub(super) fn emit(&mut self, now_ns: u64) {
        // Each once: one that lacks memory joins the end again.
        for _ in 0..self.dirty.len() {
            let room = self.thread.call_room() >= EMIT_CALLS && self.thread.sg_room();
            if !room || !self.backlog.is_empty() {
                return;
            }
            let Some(index) = self.dirty.pop_front() else { return };
            self.flows[index as usize].dirty = false;
            if self.engine.is_udp() {
                self.emit_datagrams(index, now_ns);
            } else {
                self.emit_stream(index, now_ns);
            }
        }
    }

    #[inline]
    fn emit_stream(&mut self, index: u32, now_ns: u64) {
        let flow = &mut self.flows[index as usize];
        if !flow.up {
            return;
        }
        let (handle, done_bytes) = (flow.handle, core::mem::take(&mut flow.done_bytes));
        if done_bytes > 0 && self.thread.push(call::recv_done(handle, done_bytes)).is_some() {
            self.pending.push(Pending::Nothing);
        }
        if flow.unsent_bytes == 0 {
            self.out.clear();
            if flow.spilled.is_empty() {
                self.engine.output(index, now_ns, &mut self.out);
            } else {
                self.out.append(&mut flow.spilled);
            }
            let taken = fill(&self.thread, &mut flow.pieces, &self.out);
            flow.unsent_bytes = taken as u64;
            if taken < self.out.len() {
                flow.spilled.extend_from_slice(&self.out[taken..]);
            }
        }
        if flow.unsent_bytes > 0 && !flow.blocked {
            let pieces =
                unsent_pieces(flow.pieces.iter().map(|piece| entry(piece)), flow.taken_bytes);
            if let Some((_, offered)) = self.thread.push_sendv(handle, pieces) {
                let cookie = u64::from(flow.generation) << 32 | u64::from(index);
                self.pending.push(Pending::Sendv(cookie, offered));
            }
        }
        if !flow.spilled.is_empty() && flow.unsent_bytes == 0 {
            // No event says that there is memory again.
            self.mark(index);
        }
    }

    fn emit_datagrams(&mut self, index: u32, now_ns: u64) {
        let to = self.targets[index as usize % self.targets.len()];
        let flow = &self.flows[index as usize];
        let (socket, up) = (flow.handle, flow.up);
        while up && self.thread.call_room() > 0 && self.thread.sg_room() {
            self.out.clear();
            if !self.engine.output_datagram(index, now_ns, &mut self.out) {
                return;
            }
            // Without memory it is lost as any other datagram.
            let Some(mut buf) = self.thread.tx().alloc(self.out.len()) else { continue };
            buf.extend(&self.out);
            let piece = entry(&buf);
            let place = self.free_datagrams.pop().unwrap_or_else(|| {
                self.datagrams.push(None);
                (self.datagrams.len() - 1) as u32
            });
            self.datagrams[place as usize] = Some(buf);
            let one = core::iter::once(piece);
            if self.thread.push_udp_sendv(socket, to, one, place.into()).is_some() {
                self.pending.push(Pending::Datagram(place));
            }
        }
        self.mark(index);
    }
}
