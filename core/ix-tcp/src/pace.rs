//! Pacing: large windows leave in pieces, not at once.
//!
//! A window of a hundred segments that leaves at once fills the queues of the device and of the
//! path, and what others send waits behind it or is lost. So a connection with more than
//! [`BURST_SEGMENTS`] in its window sends at a multiple of the rate at which it is acknowledged, as
//! Linux does with its `fq` discipline, and at most that many segments at once. Short messages and
//! short round trips are never held back. BBR always paces, because its rate is what it controls.

/// Segments that leave at once where nothing else is said: about what a device's queue takes.
pub(crate) const BURST_SEGMENTS: u32 = 64;
/// With shorter round trips the window leaves within the precision of timers anyway.
pub(crate) const RTT_MIN_US: u32 = 2_000;
/// The rate in percent of window and round trip: in slow start, which doubles the window in each,
/// and otherwise (Linux: `tcp_pacing_ss_ratio`, `tcp_pacing_ca_ratio`).
pub(crate) const SLOW_START_PERCENT: u64 = 200;
pub(crate) const AVOIDANCE_PERCENT: u64 = 120;
/// What was held back is sent in pieces of this duration.
const PIECE_NS: u64 = 500_000;
/// A thread that looks again late, because it was busy or not woken in time, makes up for it if it
/// is not later than this: otherwise every delay would lower the rate, and BBR would take the lower
/// rate for that of the path.
const LATE_MAX_US: u64 = 4_000;

/// When the next segment may leave: the generic cell rate algorithm (a leaky bucket).
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    /// When what was sent so far would have left, at the rate.
    next_ns: u64,
    /// What was sent and is not part of `next_ns` yet, and when.
    sent_bytes: u32,
    sent_us: u64,
    /// When to look again.
    pub due_us: u64,
    /// The application's limit, bytes per second; 0: none.
    limit: u64,
}

/// A rate, and how much may leave at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    pub bytes_per_s: u64,
    pub burst_bytes: u32,
}

impl Pace {
    pub const fn new() -> Pace {
        Pace { next_ns: 0, sent_bytes: 0, sent_us: 0, due_us: 0, limit: 0 }
    }

    /// So many bytes were sent.
    #[inline]
    pub fn sent(&mut self, bytes: u32, now_us: u64) {
        self.sent_bytes = self.sent_bytes.saturating_add(bytes);
        self.sent_us = now_us;
    }

    pub fn limit(&self) -> Option<u64> {
        (self.limit > 0).then_some(self.limit)
    }

    pub fn set_limit(&mut self, limit: Option<u64>) {
        self.limit = limit.unwrap_or(0);
    }

    /// Whether the next segment must wait. `rate`: `None` if there is no limit.
    pub fn is_too_early(&mut self, rate: Option<Rate>, now_us: u64) -> bool {
        let sent_bytes = core::mem::take(&mut self.sent_bytes);
        let Some(rate) = rate else { return false };
        // What was sent while nothing limited the rate does not count.
        let sent_bytes = sent_bytes.min(rate.burst_bytes);
        let bytes_per_s = rate.bytes_per_s.max(1);
        let takes_ns = |bytes: u32| u64::from(bytes) * 1_000_000_000 / bytes_per_s;
        let now_ns = now_us.saturating_mul(1000);
        let was_held = (self.due_us..=self.due_us + LATE_MAX_US).contains(&self.sent_us);
        let idle_ns = if was_held { 0 } else { self.sent_us.saturating_mul(1000) };
        let begin_ns = self.next_ns.max(idle_ns);
        self.next_ns = begin_ns.saturating_add(takes_ns(sent_bytes));
        let burst_ns = takes_ns(rate.burst_bytes);
        if self.next_ns < now_ns.saturating_add(burst_ns) {
            return false;
        }
        let early_ns = self.next_ns - now_ns - burst_ns;
        self.due_us = now_us + (early_ns + PIECE_NS.min(burst_ns)).div_ceil(1000).max(1);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Option<Rate> = Some(Rate { bytes_per_s: 1_000_000, burst_bytes: 10_000 });

    /// Sends segments of 1,000 bytes whenever they may leave; returns when they did.
    fn leave(pace: &mut Pace, segments: usize, mut now_us: u64) -> Vec<u64> {
        let mut at_us = Vec::new();
        while at_us.len() < segments {
            if pace.is_too_early(RATE, now_us) {
                assert!(pace.due_us > now_us);
                now_us = pace.due_us;
            } else {
                pace.sent(1_000, now_us);
                at_us.push(now_us);
            }
        }
        at_us
    }

    #[test]
    fn a_burst_leaves_at_once_and_the_rest_at_the_rate() {
        let mut pace = Pace::new();
        let at_us = leave(&mut pace, 110, 5_000_000);
        assert!(at_us[..10].iter().all(|at_us| *at_us == 5_000_000));
        let took_us = at_us[109] - at_us[0];
        assert!((99_000..=101_000).contains(&took_us), "{took_us}");
        // After a pause there is a burst again.
        let at_us = leave(&mut pace, 10, 7_000_000);
        assert_eq!(at_us, [7_000_000; 10]);
    }

    #[test]
    fn a_thread_that_looks_late_makes_up_for_it_but_not_for_a_pause() {
        let mut pace = Pace::new();
        let (mut now_us, mut sent) = (5_000_000, 0);
        // The burst is 2 ms of the rate, and each look 3 ms late.
        let rate = Some(Rate { burst_bytes: 2_000, ..RATE.unwrap() });
        while now_us < 6_000_000 {
            match pace.is_too_early(rate, now_us) {
                true => now_us = pace.due_us + 3_000,
                false => {
                    pace.sent(500, now_us);
                    sent += 500;
                }
            }
        }
        assert!((990_000..=1_010_000).contains(&sent), "{sent}");
        // Nothing is saved up while there was nothing to send.
        now_us += 100_000;
        let mut burst = 0;
        while !pace.is_too_early(rate, now_us) {
            pace.sent(500, now_us);
            burst += 500;
        }
        assert!(burst <= 2_500, "{burst}");
    }

    #[test]
    fn without_a_rate_nothing_waits_and_nothing_is_remembered() {
        let mut pace = Pace::new();
        for _ in 0..1_000 {
            assert!(!pace.is_too_early(None, 1_000));
            pace.sent(60_000, 1_000);
        }
        assert!(!pace.is_too_early(None, 1_000));
        assert!(!pace.is_too_early(RATE, 1_000));
        pace.sent(1_000_000, 1_000);
        assert!(!pace.is_too_early(RATE, 12_000));
    }
}
