//! When the next packet may pass: the generic cell rate algorithm (ITU-T I.371), once for bits and
//! once for packets.
//!
//! Each limit keeps the exact time at which all passed packets are paid for. The remainder of each
//! division is kept, so no limit drifts, however fast the link is. After an idle time a burst may
//! pass at once. If the caller is late while packets wait, at most [`LATE_NS`] are made up for.
use crate::rate::Rate;

/// How much of the caller's delay is made up for, ns. A shared machine stands still for some
/// milliseconds now and then, and in each whole second the rate must be within 2 % of the limit,
/// from below and from above: 2 % are 20 ms.
pub const LATE_NS: u64 = 16_000_000;
/// A queue whose packets had to wait less than this ago, ns, counts as waiting: after it has caught
/// up it may be empty for a round trip.
const HELD_NS: u64 = 2 * LATE_NS;

/// A rate specifier applied to one queue.
#[derive(Clone, Debug)]
pub struct Shaper {
    limits: Vec<Limit>,
    /// When a packet last had to wait.
    held_ns: Option<u64>,
}

/// One of the two limits.
#[derive(Clone, Debug)]
struct Limit {
    /// Cost of a byte or a packet: this many of `per` ns.
    cost: u128,
    per: u128,
    counts_packets: bool,
    /// How far `even_ns` may be in the past after an idle time.
    burst_ns: u64,
    /// When all passed packets are paid for, and the remainder in parts of `per`.
    even_ns: u64,
    rest: u128,
}

impl Shaper {
    /// A shaper that no packet has passed yet.
    pub fn new(rate: Rate, now_ns: u64) -> Shaper {
        let burst_bytes = u128::from(rate.burst_bytes);
        let limit = |cost: u128, per: u64, counts_packets: bool, burst: u128| Limit {
            cost,
            per: per.into(),
            counts_packets,
            burst_ns: (burst * cost / u128::from(per)).min(1_000_000_000) as u64,
            even_ns: now_ns,
            rest: 0,
        };
        let bits = rate.bits_per_s.map(|r| limit(8_000_000_000, r, false, burst_bytes));
        // As many packets as the burst has full frames.
        let frames = (burst_bytes / 1514).max(1);
        let packets = rate.packets_per_s.map(|r| limit(1_000_000_000, r, true, frames));
        Shaper { limits: bits.into_iter().chain(packets).collect(), held_ns: None }
    }

    /// When the next packet may pass, ns; a time that is not after now means at once.
    pub fn due_ns(&self) -> u64 {
        self.limits.iter().map(|limit| limit.even_ns).max().unwrap_or(0)
    }

    /// Whether the first waiting packet may pass now.
    pub fn passes(&mut self, now_ns: u64) -> bool {
        let passes = self.due_ns() <= now_ns;
        if !passes {
            self.held_ns = Some(now_ns);
        }
        passes
    }

    /// To be called when no packet waits. Unused time is kept up to the burst.
    pub fn idle(&mut self, now_ns: u64) {
        let was_held = self.held_ns.is_some_and(|ns| now_ns.saturating_sub(ns) <= HELD_NS);
        let least_ns = if was_held { LATE_NS } else { 0 };
        for limit in &mut self.limits {
            limit.forget_before(now_ns.saturating_sub(limit.burst_ns.max(least_ns)));
        }
    }

    /// Charges a packet of this length.
    pub fn charge(&mut self, now_ns: u64, bytes: usize) {
        for limit in &mut self.limits {
            limit.forget_before(now_ns.saturating_sub(limit.burst_ns.max(LATE_NS)));
            let units = if limit.counts_packets { 1 } else { bytes as u128 };
            let sum = units * limit.cost + limit.rest;
            limit.even_ns = limit.even_ns.saturating_add((sum / limit.per) as u64);
            limit.rest = sum % limit.per;
        }
    }

    /// For a queue without waiting packets: whether a packet may pass now. If so, it is charged.
    pub fn police(&mut self, now_ns: u64, bytes: usize) -> bool {
        self.idle(now_ns);
        let passes = self.due_ns() <= now_ns;
        if passes {
            self.charge(now_ns, bytes);
        }
        passes
    }
}

impl Limit {
    fn forget_before(&mut self, ns: u64) {
        if self.even_ns < ns {
            (self.even_ns, self.rest) = (ns, 0);
        }
    }
}
