//! What happens over time: due requests, missing replies, the end of intervals and of the run.
use super::conn::Life;
use super::stats::{DRAIN, Interval};
use super::{ClassState, Engine, Phase};
use crate::fault::Fault;
use crate::protocol::Protocol;

/// Most due requests handed out before input is read again.
const ARRIVALS_PER_TICK: usize = 1024;
/// A request handed out this much later than it was due means that the generator stood still: its
/// loop takes some µs, and wakes for each request that is due.
const STALL_NS: u64 = 50_000;
/// Time in which all connections are checked once for missing replies.
const SCAN_NS: u64 = 100_000_000;

impl<P: Protocol> Engine<P> {
    /// Advances time: due requests, missing replies, the end of an interval. Returns what was
    /// measured in an interval that ended.
    #[inline]
    pub fn tick(&mut self, now_ns: u64) -> Option<Box<Interval>> {
        if self.phase == Phase::Running {
            for class in 0..self.classes.len() {
                self.hand_out(class, now_ns);
            }
        }
        // The interval first: later requests must not count into the last second.
        if now_ns >= self.interval_end_ns {
            return Some(self.turn_interval());
        }
        if now_ns >= self.scan_ns {
            self.scan(now_ns);
        }
        None
    }

    /// Gives requests that became due to connections, each with the same probability.
    #[inline]
    fn hand_out(&mut self, class: usize, now_ns: u64) {
        let ClassState { first, setup, arrivals: Some(arrivals) } = &mut self.classes[class] else {
            return;
        };
        let last_ns = now_ns.min(self.times.to_ns - 1);
        let late_ns = now_ns.saturating_sub(arrivals.next_ns());
        if late_ns >= STALL_NS {
            let counts = &mut self.interval.counts;
            // Requests handed out in several rounds, or by both classes, were late in one stall.
            if arrivals.next_ns() >= self.stall_end_ns {
                counts.stalls += 1;
                counts.stalled_ns += late_ns;
                counts.stall_most_ns = counts.stall_most_ns.max(late_ns);
            }
            self.stall_end_ns = now_ns;
        }
        for _ in 0..ARRIVALS_PER_TICK {
            let due_ns = arrivals.next_ns();
            if due_ns > last_ns {
                break;
            }
            arrivals.advance();
            let index = *first + self.rng.below(setup.connections.into()) as u32;
            let conn = &mut self.conns[index as usize];
            self.interval.classes[class].due += 1;
            if !self.overdue.push(&mut conn.queue, due_ns) {
                self.interval.counts.dropped += 1;
                continue;
            }
            if self.slots.has_room(conn.window) && conn.life == Life::Up {
                self.ready.push(index);
            }
        }
        let most = &mut self.interval.counts.overdue_most;
        *most = (*most).max(self.overdue.len() as u64);
    }

    /// Latest time at which [`Engine::tick`] has something to do.
    #[inline]
    pub fn next_ns(&self) -> u64 {
        let due = self.classes.iter().filter_map(|class| Some(class.arrivals.as_ref()?.next_ns()));
        let due = if self.phase == Phase::Running { due.min() } else { None };
        due.unwrap_or(u64::MAX).min(self.interval_end_ns).min(self.scan_ns)
    }

    /// Checks some connections for missing replies, and the end of the run.
    fn scan(&mut self, now_ns: u64) {
        const STEPS: u64 = 10;
        self.scan_ns = now_ns + SCAN_NS / STEPS;
        let some = self.conns.len().div_ceil(STEPS as usize);
        for _ in 0..some {
            self.scan_at = (self.scan_at + 1) % self.conns.len();
            self.check_answer(self.scan_at as u32, now_ns);
        }
        if self.phase == Phase::Connecting {
            return;
        }
        let idle = self.slots.used() == 0 && self.overdue.len() == 0;
        if self.exhausted && idle {
            self.finish(now_ns);
        }
        if self.phase == Phase::Running && now_ns >= self.times.to_ns {
            self.phase = Phase::Draining;
        }
        let closed = self.setup.open[0].is_none();
        let late = now_ns >= self.times.to_ns + self.setup.drain_ns;
        if self.phase == Phase::Draining && (idle || closed || late) {
            self.finish(now_ns);
        }
    }

    /// A connection whose reply is missing for too long is broken.
    fn check_answer(&mut self, index: u32, now_ns: u64) {
        let conn = &self.conns[index as usize];
        if self.setup.udp && conn.life == Life::Up {
            return self.give_up_datagrams(index, now_ns);
        }
        let waited_ns = now_ns.saturating_sub(conn.progress_ns);
        if waited_ns <= self.setup.timeout_ns || self.phase == Phase::Over {
            return;
        }
        let seconds = self.setup.timeout_ns as f64 / 1e9;
        match conn.life {
            Life::Up if !conn.window.is_empty() => {
                self.fail(index, Fault::NoAnswer, format!("no reply in {seconds} s"), now_ns);
                self.stuck.push(index);
            }
            Life::Dialing => {
                let what = format!("no reply to a SYN in {seconds} s");
                self.fail(index, Fault::NotConnected, what, now_ns);
                self.stuck.push(index);
            }
            _ => {}
        }
    }

    /// Requests that still wait count with their age: their latency would be at least that.
    pub(super) fn finish(&mut self, now_ns: u64) {
        self.phase = Phase::Over;
        self.interval_end_ns = 0;
        for conn in &mut self.conns {
            if self.setup.open[conn.class as usize].is_none() {
                continue;
            }
            let latency = &mut self.interval.classes[conn.class as usize].latency_ns;
            let mut unfinished = |due_ns: u64| {
                if self.times.counts(due_ns) {
                    self.interval.counts.unfinished += 1;
                    latency.saturating_record(now_ns.saturating_sub(due_ns).max(1));
                }
            };
            self.slots.iter(conn.window).for_each(|slot| unfinished(slot.due_ns));
            while let Some(due_ns) = self.overdue.pop(&mut conn.queue) {
                unfinished(due_ns);
            }
        }
    }

    pub(super) fn turn_interval(&mut self) -> Box<Interval> {
        let mut ended = Box::new(core::mem::take(&mut self.interval));
        ended.second = self.second;
        self.interval_end_ns = match self.phase {
            Phase::Over => u64::MAX,
            _ => self.times.next_interval_end_ns(self.interval_end_ns),
        };
        self.second = if self.interval_end_ns == u64::MAX { DRAIN } else { self.second + 1 };
        ended
    }
}
