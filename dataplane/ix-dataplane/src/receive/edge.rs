//! Congestion signals at the edge: senders hear from us that our receive queue is long.
//!
//! A dataplane takes no more than a batch at a time, so what it cannot keep up with waits in one
//! place, in front of it (the IX paper, section 3): the only queue of the host, and the one whose
//! length says that the host is congested. From `mark_queue` waiting packets on ECN-capable ones
//! are treated as if a switch had marked them; from `drop_queue` on some of the others' payloads
//! are dropped, ever more up to a tenth at twice that length (RED), before the device has to.
use ix_tcp::ecn::{CE, NOT_ECT};

/// RED's largest share of early drops: a tenth.
const SHARE_DIVISOR: u64 = 10;

/// What a batch tells the senders of its packets.
#[derive(Debug)]
pub(crate) struct Edge {
    mark_queue: usize,
    drop_queue: usize,
    /// Packets that wait behind this batch, if so many that somebody is to be told.
    waiting: usize,
    random: u64,
}

impl Edge {
    /// Lengths in packets; 0: never.
    pub fn new(mark_queue: usize, drop_queue: usize, seed: u64) -> Edge {
        Edge { mark_queue, drop_queue, waiting: 0, random: seed | 1 }
    }

    /// A batch was taken, and so many packets wait.
    #[inline]
    pub fn look(&mut self, waiting: usize) {
        self.waiting = if waiting == 0 { 0 } else { self.judge(waiting) };
    }

    #[cold]
    fn judge(&self, waiting: usize) -> usize {
        let reached = |queue: usize| queue > 0 && waiting >= queue;
        if reached(self.mark_queue) || reached(self.drop_queue) { waiting } else { 0 }
    }

    /// Whether [`Self::signal`] has something to say.
    #[inline]
    pub fn is_congested(&self) -> bool {
        self.waiting > 0
    }

    /// The ECN field that a packet is taken to have come with, and whether its payload is dropped.
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

    /// Of ten thousand packets behind which so many wait: marked ones, and those dropped.
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
