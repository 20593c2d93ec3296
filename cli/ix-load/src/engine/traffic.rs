//! Requests out and answers in, on connections.
use super::conn::Life;
use super::{Engine, Phase, Verdict, slots};
use crate::fault::Fault;
use crate::protocol::{Protocol, Step};

/// Longest piece of an answer that is kept until more of it comes.
const KEPT_MOST: usize = 64 << 10;

impl<P: Protocol> Engine<P> {
    /// Bytes came in on a connection.
    #[inline]
    pub fn input(&mut self, index: u32, data: &[u8], now_ns: u64) -> Verdict {
        let conn = &mut self.conns[index as usize];
        if let Some(kept) = conn.kept.take() {
            let mut kept = kept.into_vec();
            kept.extend_from_slice(data);
            return self.read(index, &kept, now_ns);
        }
        self.read(index, data, now_ns)
    }

    #[inline]
    fn read(&mut self, index: u32, mut data: &[u8], now_ns: u64) -> Verdict {
        let conn = &mut self.conns[index as usize];
        while !data.is_empty() {
            let Some(slot) = self.slots.front(conn.window) else {
                let what = format!("{} bytes that nobody asked for", data.len());
                return self.broken(index, Fault::BadReply, what, now_ns);
            };
            match self.protocol.decode(&slot.ask, &mut conn.partial, data) {
                Step::Done(used, outcome) => {
                    data = &data[used..];
                    conn.partial = Default::default();
                    conn.progress_ns = now_ns;
                    conn.answers += 1;
                    let (class, due_ns) = (conn.class, slot.due_ns);
                    self.slots.pop(&mut conn.window);
                    let stalled = due_ns < self.stall_end_ns;
                    let sample = &mut self.interval.classes[class as usize];
                    sample.answered(&self.times, due_ns, now_ns, stalled);
                    self.interval.counts.outcome(outcome);
                }
                Step::More(used) => {
                    conn.progress_ns = now_ns;
                    let rest = &data[used..];
                    if rest.len() > KEPT_MOST {
                        let what = "an answer without an end".to_string();
                        return self.broken(index, Fault::BadReply, what, now_ns);
                    }
                    if !rest.is_empty() {
                        conn.kept = Some(rest.into());
                    }
                    break;
                }
                Step::Wrong(fault, what) => return self.broken(index, fault, what, now_ns),
            }
        }
        let limit = self.setup.messages_per_connection;
        if conn.answers >= limit && conn.window.is_empty() && conn.partial.stage == 0 {
            self.drop_connection(index);
            self.dials.push_back(index);
            return Verdict::Reset;
        }
        Verdict::Open
    }

    /// Appends the requests that may go out on a connection now.
    #[inline]
    pub fn output(&mut self, index: u32, now_ns: u64, out: &mut Vec<u8>) {
        while let Some(slot) = self.next_request(index, now_ns) {
            self.protocol.encode(&slot.ask, out);
        }
    }

    /// Takes the next request that may go out on a connection.
    #[inline]
    pub(super) fn next_request(&mut self, index: u32, now_ns: u64) -> Option<slots::Slot> {
        let conn = &mut self.conns[index as usize];
        if conn.life != Life::Up || !self.slots.has_room(conn.window) {
            return None;
        }
        if conn.asked >= self.setup.messages_per_connection {
            return None;
        }
        let due_ns = match &self.setup.open[conn.class as usize] {
            None if self.phase == Phase::Running => now_ns,
            None => return None,
            Some(_) => self.overdue.pop(&mut conn.queue)?,
        };
        let Some(mut ask) = self.protocol.next() else {
            self.exhausted = true;
            return None;
        };
        if conn.window.is_empty() {
            // It could have gone out when it was due or when the last answer came.
            let could_ns = due_ns.max(conn.progress_ns);
            let lag_ns = now_ns.saturating_sub(could_ns);
            conn.progress_ns = now_ns;
            let most = &mut self.interval.counts.lag_most_ns;
            *most = lag_ns.max(*most);
        }
        self.random_id = self.random_id.wrapping_add(1);
        ask.id = self.random_id;
        conn.asked += 1;
        let slot = slots::Slot { due_ns, sent_ns: now_ns, ask };
        self.slots.push(&mut conn.window, slot);
        Some(slot)
    }

    /// Takes a connection that has something to send.
    #[inline]
    pub fn take_ready(&mut self) -> Option<u32> {
        self.ready.pop()
    }
}
