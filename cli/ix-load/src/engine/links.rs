//! Connections: opened, opened again, lost.
use super::conn::Life;
use super::{End, Engine, Phase, Verdict};
use crate::fault::Fault;
use crate::protocol::Protocol;

/// Most connections that are being opened at a time.
const DIALS: usize = 512;
/// Time before a failed connection is opened again.
const REDIAL_NS: u64 = 100_000_000;
/// A run without any connection for this long is over.
const GIVE_UP_NS: u64 = 3_000_000_000;

impl<P: Protocol> Engine<P> {
    /// Returns the next connection to open.
    pub fn dial(&mut self, now_ns: u64) -> Option<u32> {
        if let Some(&(at_ns, index)) = self.redials.front()
            && at_ns <= now_ns
        {
            self.redials.pop_front();
            self.dials.push_back(index);
        }
        if self.dialing >= DIALS || self.phase == Phase::Over {
            return None;
        }
        let index = self.dials.pop_front()?;
        self.conns[index as usize].life = Life::Dialing;
        self.conns[index as usize].progress_ns = now_ns;
        self.dialing += 1;
        Some(index)
    }

    /// A connection is open.
    pub fn connected(&mut self, index: u32, now_ns: u64) {
        let conn = &mut self.conns[index as usize];
        if conn.life == Life::Dialing {
            self.dialing -= 1;
        }
        conn.life = Life::Up;
        conn.progress_ns = now_ns;
        self.up += 1;
        self.alive_ns = now_ns;
        self.interval.counts.opened += 1;
    }

    /// A connection ended, and not by us.
    pub fn closed(&mut self, index: u32, end: End, now_ns: u64) {
        if self.phase == Phase::Over {
            return;
        }
        let (fault, what) = match end {
            End::NotConnected(what) => (Fault::NotConnected, what),
            End::Reset(what) => (Fault::Reset, what),
            End::Closed => (Fault::Closed, "the server closed the connection".to_string()),
        };
        self.fail(index, fault, what, now_ns);
    }

    /// The connection cannot be used further.
    #[cold]
    pub(super) fn broken(
        &mut self,
        index: u32,
        fault: Fault,
        what: String,
        now_ns: u64,
    ) -> Verdict {
        self.fail(index, fault, what, now_ns);
        Verdict::Reset
    }

    pub(super) fn fail(&mut self, index: u32, fault: Fault, what: String, now_ns: u64) {
        // One error for each request that has no reply because of it, and at least one.
        let lost = self.conns[index as usize].window.len.max(1);
        self.interval.counts.faults.add_many(fault, lost.into(), || what.clone());
        let up = self.up;
        self.drop_connection(index);
        if up > 0 && self.up == 0 {
            self.alive_ns = now_ns;
        }
        if self.up == 0 && now_ns.saturating_sub(self.alive_ns) > GIVE_UP_NS {
            self.gave_up.get_or_insert(what);
        }
        self.redials.push_back((now_ns + REDIAL_NS, index));
    }

    /// Forgets the requests in flight on a connection.
    pub(super) fn drop_connection(&mut self, index: u32) {
        let conn = &mut self.conns[index as usize];
        match conn.life {
            Life::Up => self.up -= 1,
            Life::Dialing => self.dialing -= 1,
            Life::Down => {}
        }
        self.slots.clear(&mut conn.window);
        conn.reset();
    }

    /// Takes a connection that was given up because its reply is missing: the caller resets it.
    pub fn take_stuck(&mut self) -> Option<u32> {
        self.stuck.pop()
    }
}
