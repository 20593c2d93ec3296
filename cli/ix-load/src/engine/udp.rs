//! Requests as datagrams: answers come in any order, in parts, late, or never.
use super::Engine;
use crate::fault::Fault;
use crate::protocol::{Protocol, Step};

/// Parts of one answer.
pub(super) struct Parts {
    id: u32,
    got: u16,
    parts: Vec<Option<Vec<u8>>>,
}

impl<P: Protocol> Engine<P> {
    /// Appends the next request that may go out on a connection as one datagram; returns whether
    /// there was one.
    pub fn output_datagram(&mut self, index: u32, now_ns: u64, out: &mut Vec<u8>) -> bool {
        let Some(slot) = self.next_request(index, now_ns) else { return false };
        self.protocol.encode_datagram(&slot.ask, out);
        true
    }

    /// A datagram came in on a connection.
    pub fn input_datagram(&mut self, index: u32, data: &[u8], now_ns: u64) {
        let Some(datagram) = self.protocol.datagram(data) else {
            self.fault(Fault::BadReply, || format!("a datagram of {} bytes", data.len()));
            return;
        };
        let (id, mask) = (datagram.id, datagram.id_mask);
        let conn = &mut self.conns[index as usize];
        let wanted = self.slots.iter(conn.window).any(|slot| slot.ask.id & mask == id);
        if !wanted {
            self.interval.counts.late += 1;
            return;
        }
        if datagram.parts == 1 {
            self.answer_datagram(index, id, mask, datagram.payload, now_ns);
            return;
        }
        let all = &mut conn.parts;
        let at = all.iter().position(|parts| parts.id == id).unwrap_or_else(|| {
            let parts = vec![None; datagram.parts.into()];
            all.push(Parts { id, got: 0, parts });
            all.len() - 1
        });
        let Some(place) = all[at].parts.get_mut(usize::from(datagram.part)) else {
            return;
        };
        if place.replace(datagram.payload.to_vec()).is_none() {
            all[at].got += 1;
        }
        if usize::from(all[at].got) == all[at].parts.len() {
            let parts = all.swap_remove(at).parts;
            let whole: Vec<u8> = parts.into_iter().flatten().flatten().collect();
            self.answer_datagram(index, id, mask, &whole, now_ns);
        }
    }

    fn answer_datagram(&mut self, index: u32, id: u32, mask: u32, data: &[u8], now_ns: u64) {
        let conn = &mut self.conns[index as usize];
        let Some(slot) = self.slots.take(&mut conn.window, |slot| slot.ask.id & mask == id) else {
            return;
        };
        conn.progress_ns = now_ns;
        let class = conn.class;
        match self.protocol.decode_datagram(&slot.ask, data) {
            Step::Done(used, _) if used < data.len() => {
                let what = || format!("{} bytes too many", data.len() - used);
                self.fault(Fault::WrongLength, what);
            }
            Step::Done(_, outcome) => {
                let stalled = slot.due_ns < self.stall_end_ns;
                let sample = &mut self.interval.classes[class as usize];
                sample.answered(&self.times, slot.due_ns, now_ns, stalled);
                self.interval.counts.outcome(outcome);
            }
            Step::More(used) => {
                let what = || format!("{used} of {} bytes are not a whole reply", data.len());
                self.fault(Fault::WrongLength, what);
            }
            Step::Wrong(fault, what) => self.fault(fault, || what),
        }
    }

    /// Requests of a connection that have no answer in time are lost, one error each.
    pub(super) fn give_up_datagrams(&mut self, index: u32, now_ns: u64) {
        let timeout_ns = self.setup.timeout_ns;
        let conn = &mut self.conns[index as usize];
        let late = |slot: &super::slots::Slot| now_ns.saturating_sub(slot.sent_ns) > timeout_ns;
        let mut lost = 0;
        while let Some(slot) = self.slots.take(&mut conn.window, late) {
            conn.parts.retain(|parts| parts.id != slot.ask.id);
            lost += 1;
        }
        if lost > 0 {
            let seconds = timeout_ns as f64 / 1e9;
            let what = || format!("a datagram had no answer in {seconds} s");
            self.interval.counts.faults.add_many(Fault::NoAnswer, lost, what);
            self.ready.push(index);
        }
    }

    fn fault(&mut self, fault: Fault, what: impl FnOnce() -> String) {
        self.interval.counts.faults.add(fault, what);
    }
}
