//! Limits of challenge ACKs (RFC 5961 section 7), without the side channel of that section's
//! suggestion. With a fixed global budget an off-path attacker can use it up on a connection of
//! their own, and learn from what is left whether they provoked a challenge on another one
//! (CVE-2016-5696). So each connection has its own limit. The global budget only bounds the load,
//! and is drawn anew each second from a range that the attacker cannot predict.
use crate::isn::{Key, Purpose};
use ix_wire::{FlowTuple, IpAddr};

/// Least time between two challenge ACKs of a connection.
pub const SPACING_MS: u32 = 500;

/// When a connection last sent a challenge ACK. Four bytes of its control block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChallengeSpacing {
    /// Milliseconds, wrapping after 49 days, never 0; 0: none sent yet.
    last_ms: u32,
}

impl ChallengeSpacing {
    /// Whether this connection may send a challenge ACK now. If so, counts it as sent.
    pub fn allow(&mut self, now_us: u64) -> bool {
        let now_ms = ((now_us / 1000) as u32).max(1);
        if self.last_ms != 0 && now_ms.wrapping_sub(self.last_ms) < SPACING_MS {
            return false;
        }
        self.last_ms = now_ms;
        true
    }
}

/// Budget of challenge ACKs of one elastic thread.
#[derive(Debug)]
pub struct ChallengeLimit {
    key: Key,
    per_second: u32,
    second: u64,
    left: u32,
}

impl ChallengeLimit {
    /// A limit of `per_second` on average. The budget of each second is between half and one and a
    /// half of it.
    pub fn new(key: Key, per_second: u32) -> Self {
        ChallengeLimit { key, per_second, second: u64::MAX, left: 0 }
    }

    /// Whether a challenge ACK may be sent now. If so, counts it as sent.
    ///
    /// Call [`ChallengeSpacing::allow`] first, so that a limited connection does not use up the
    /// budget.
    pub fn allow(&mut self, now_us: u64) -> bool {
        let second = now_us / 1_000_000;
        if second != self.second {
            self.second = second;
            self.left = self.draw(second);
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }

    fn draw(&self, second: u64) -> u32 {
        let nobody = FlowTuple {
            local: IpAddr::UNSPECIFIED,
            remote: IpAddr::UNSPECIFIED,
            local_port: 0,
            remote_port: 0,
        };
        let words = [(second >> 32) as u32, second as u32];
        let random = self.key.hash(Purpose::ChallengeLimit, &nobody, &words);
        let spread = u64::from(self.per_second) + 1;
        self.per_second.div_ceil(2).saturating_add((random % spread) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isn::tests::KEY;
    use std::collections::HashSet;

    fn budget(limit: &mut ChallengeLimit, second: u64) -> u32 {
        let mut sent = 0;
        while limit.allow(second * 1_000_000 + u64::from(sent % 1000)) {
            sent += 1;
        }
        sent
    }

    #[test]
    fn a_connection_is_spaced() {
        let mut spacing = ChallengeSpacing::default();
        assert!(spacing.allow(0));
        assert!(!spacing.allow(0));
        assert!(!spacing.allow(499_000));
        assert!(spacing.allow(502_000));
        let sent = (0..10_000u64).filter(|ms| spacing.allow(2_000_000 + ms * 1000)).count();
        assert_eq!(sent, 20);
        assert_eq!(size_of::<ChallengeSpacing>(), 4);
    }

    #[test]
    fn spacing_survives_the_wrap_of_its_clock() {
        let wrap_us = (1u64 << 32) * 1000;
        let mut spacing = ChallengeSpacing::default();
        let sent = (0..4000u64).filter(|ms| spacing.allow(wrap_us - 2_000_000 + ms * 1000)).count();
        assert_eq!(sent, 8);
    }

    #[test]
    fn budget_is_bounded_and_unpredictable() {
        let mut limit = ChallengeLimit::new(KEY, 100);
        let budgets: Vec<u32> = (0..200).map(|second| budget(&mut limit, second)).collect();
        assert!(budgets.iter().all(|budget| (50..=150).contains(budget)));
        let mean = budgets.iter().sum::<u32>() / 200;
        assert!((90..=110).contains(&mean), "{mean}");
        // CVE-2016-5696: an attacker cannot count down from a known budget.
        let distinct: HashSet<_> = budgets.iter().collect();
        assert!(distinct.len() > 60, "{}", distinct.len());
        let mut other = ChallengeLimit::new(Key([1, 2]), 100);
        let others: Vec<u32> = (0..200).map(|second| budget(&mut other, second)).collect();
        assert_ne!(budgets, others);
    }

    #[test]
    fn extremes_do_not_overflow() {
        let mut none = ChallengeLimit::new(KEY, 0);
        assert!(!none.allow(5));
        let mut all = ChallengeLimit::new(KEY, u32::MAX);
        assert!(all.allow(5));
    }
}
