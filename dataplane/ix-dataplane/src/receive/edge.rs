//! Congestion signals at the edge: the dataplane tells senders that its receive queue is long.
//!
//! A dataplane takes at most a batch at a time. What it cannot keep up with waits in one place, in
//! front of it (the IX paper, section 3): the only queue of the host, whose length shows that the
//! host is congested. From `mark_queue` waiting packets on, ECN-capable packets are treated as if a
//! switch had marked them. From `drop_queue` on, some payloads of the others are dropped,
//! increasingly up to a tenth at twice that length (RED), before the device must drop.
use ix_tcp::ecn::{CE, NOT_ECT};

/// RED's largest share of early drops: a tenth.
const SHARE_DIVISOR: u64 = 10;

/// The congestion signals for the senders of one batch.
#[derive(Debug)]
pub(crate) struct Edge {
    mark_queue: usize,
    drop_queue: usize,
    /// Number of packets that wait behind this batch, if so many that senders must be told.
    waiting: usize,
    random: u64,
}

impl Edge {
    /// Queue lengths are in packets; 0: never.
    pub fn new(mark_queue: usize, drop_queue: usize, seed: u64) -> Edge {
        Edge { mark_queue, drop_queue, waiting: 0, random: seed | 1 }
    }

    /// To be called when a batch was taken and `waiting` packets wait.
    #[inline]
    pub fn look(&mut self, waiting: usize) {
        self.waiting = if waiting == 0 { 0 } else { self.judge(waiting) };
    }

    #[cold]
    fn judge(&self, waiting: usize) -> usize {
        let reached = |queue: usize| queue > 0 && waiting >= queue;
        if reached(self.mark_queue) || reached(self.drop_queue) { waiting } else { 0 }
    }

    /// Whether [`Self::signal`] must be called.
    #[inline]
    pub fn is_congested(&self) -> bool {
        self.waiting > 0
    }

    /// The ECN field with which a packet counts as received, and whether its payload is dropped.
    #[cold]
    pub fn signal(&mut self, ecn: u8) -> (u8, bool) {
        if ecn != NOT_ECT {
            let mark = self.mark_queue > 0 && self.waiting >= self.mark_queue;
            return (if mark { CE } else { ecn }, false);
        }
        if self.drop_queue == 0 || self.waiting < self.drop_queue {
            return (ecn, false);
        }
        // Marsaglia's xorshift.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let above = (self.waiting - self.drop_queue).min(self.drop_queue) as u64;
        let range = self.drop_queue as u64 * SHARE_DIVISOR;
        (ecn, (self.random >> 16) % range < above)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ix_tcp::ecn::ECT0;

    /// Of ten thousand packets with `waiting` behind them: how many are marked, and how many
    /// dropped.
    fn signalled(edge: &mut Edge, waiting: usize, ecn: u8) -> (usize, usize) {
        edge.look(waiting);
        let (mut marked, mut dropped) = (0, 0);
        for _ in 0..10_000 {
            if edge.is_congested() {
                let (ecn, drop) = edge.signal(ecn);
                marked += usize::from(ecn == CE);
                dropped += usize::from(drop);
            }
        }
        (marked, dropped)
    }

    #[test]
    fn who_understands_marks_is_marked_and_never_dropped() {
        let mut edge = Edge::new(100, 200, 7);
        assert_eq!(signalled(&mut edge, 99, ECT0), (0, 0));
        assert_eq!(signalled(&mut edge, 100, ECT0), (10_000, 0));
        assert_eq!(signalled(&mut edge, 5_000, ECT0), (10_000, 0));
        assert_eq!(signalled(&mut edge, 0, ECT0), (0, 0));
    }

    #[test]
    fn others_are_dropped_the_more_the_longer_the_queue() {
        let mut edge = Edge::new(100, 200, 7);
        assert_eq!(signalled(&mut edge, 199, NOT_ECT), (0, 0));
        for (waiting, wanted) in [(300, 500), (400, 1_000), (40_000, 1_000)] {
            let (marked, dropped) = signalled(&mut edge, waiting, NOT_ECT);
            assert!(marked == 0 && dropped.abs_diff(wanted) < wanted / 5, "{waiting}: {dropped}");
        }
    }

    #[test]
    fn zero_is_never() {
        let mut edge = Edge::new(0, 0, 7);
        for ecn in [NOT_ECT, ECT0] {
            assert_eq!(signalled(&mut edge, usize::MAX, ecn), (0, 0));
        }
    }
}
