//! Round-trip time and retransmission timeout (RFC 6298), and the path's minimum round-trip time.

/// Estimates are kept in 1/64 µs, so that round trips of one microsecond do not round to zero and
/// averages reach their goal (gvisor#6113).
const FRACTION_BITS: u32 = 6;
/// Samples are limited to this, so that the scaled estimates and their sum with the variance fit.
const SAMPLE_MAX_US: u32 = (1 << 24) - 1;
/// alpha = 1/8, beta = 1/4 (RFC 6298 section 2.3).
const ALPHA_SHIFT: u32 = 3;
const BETA_SHIFT: u32 = 2;
/// With averages over more samples than this, small round-trip times would not change any more.
const SPREAD_SHIFT_MAX: u32 = 5;
/// The minimum is taken over the last one to two windows of about half a minute, so that it follows
/// a path change. Times are in units of 2^20 µs and wrap after 19 hours: a path that was idle for
/// just so long has its old minimum for another window.
const MIN_WINDOW: u16 = 29;
const MIN_UNIT_SHIFT: u32 = 20;
const BACKOFF_MAX: u8 = 20;
/// RFC 6298 section 2.4 takes no timeout shorter than this to be safe.
const RTO_SAFE_US: u64 = 1_000_000;
/// The part of the timeout beyond the mean is as long as a round trip, up to this, Linux's bound.
/// On a long path whose round trips were alike the variance alone would leave no room for jitter.
const VARIANCE_FLOOR_MAX_US: u32 = 200_000;

/// Round-trip time estimator of one connection.
///
/// Samples must not come from retransmitted segments unless a timestamp tells which copy was
/// acknowledged (Karn's algorithm, RFC 6298 section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RttEstimator {
    /// SRTT, scaled; 0: no sample yet.
    srtt_scaled: u32,
    rttvar_scaled: u32,
    /// Minimum of this window and of the one before; `u32::MAX`: none.
    min_now_us: u32,
    min_before_us: u32,
    window_began: u16,
    /// Number of times the timeout was doubled.
    backoff: u8,
    /// The peer has acknowledged something since, but nothing that tells how long a round trip is.
    keeps_backoff: bool,
}

impl Default for RttEstimator {
    fn default() -> Self {
        Self::new()
    }
}

impl RttEstimator {
    /// An estimator without a sample.
    pub const fn new() -> Self {
        RttEstimator {
            srtt_scaled: 0,
            rttvar_scaled: 0,
            min_now_us: u32::MAX,
            min_before_us: u32::MAX,
            window_began: 0,
            backoff: 0,
            keeps_backoff: false,
        }
    }

    /// Adds a measured round-trip time, and ends the backoff (RFC 6298 section 5, Karn).
    ///
    /// `samples_per_rtt`: how many samples the flight gives, about half of its segments. With more
    /// than one the averages change more slowly, or they would cover less than one round trip (RFC
    /// 7323 appendix G).
    pub fn sample(&mut self, rtt_us: u32, samples_per_rtt: u32, now_us: u64) {
        let rtt_us = rtt_us.clamp(1, SAMPLE_MAX_US);
        self.sample_minimum(rtt_us, now_us);
        self.clear_backoff();
        let rtt_scaled = rtt_us << FRACTION_BITS;
        if self.srtt_scaled == 0 {
            self.srtt_scaled = rtt_scaled;
            self.rttvar_scaled = rtt_scaled / 2;
            return;
        }
        let spread_shift = samples_per_rtt.max(1).ilog2().min(SPREAD_SHIFT_MAX);
        let deviation_scaled = self.srtt_scaled.abs_diff(rtt_scaled);
        // The variance first, because it uses the old mean (RFC 6298 section 2.3).
        approach(&mut self.rttvar_scaled, deviation_scaled, BETA_SHIFT + spread_shift);
        approach(&mut self.srtt_scaled, rtt_scaled, ALPHA_SHIFT + spread_shift);
    }

    /// The same for a round trip so long that the timer has expired in vain. The path has changed:
    /// the estimates begin anew, unless they are longer (RFC 4015 section 3.2, (7) and (8)).
    pub fn sample_longer_path(&mut self, rtt_us: u32, now_us: u64) {
        let rtt_us = rtt_us.clamp(1, SAMPLE_MAX_US);
        self.sample_minimum(rtt_us, now_us);
        self.clear_backoff();
        let rtt_scaled = rtt_us << FRACTION_BITS;
        self.srtt_scaled = self.srtt_scaled.max(rtt_scaled);
        self.rttvar_scaled = self.rttvar_scaled.max(rtt_scaled / 2);
    }

    fn sample_minimum(&mut self, rtt_us: u32, now_us: u64) {
        let now = (now_us >> MIN_UNIT_SHIFT) as u16;
        let age = now.wrapping_sub(self.window_began);
        if age >= MIN_WINDOW {
            // After a long idle time the last window is no use either.
            let stale = age >= 2 * MIN_WINDOW;
            self.min_before_us = if stale { u32::MAX } else { self.min_now_us };
            self.min_now_us = u32::MAX;
            self.window_began = now;
        }
        self.min_now_us = self.min_now_us.min(rtt_us);
    }

    /// True if a round-trip time was measured.
    #[inline]
    pub fn has_sample(&self) -> bool {
        self.srtt_scaled != 0
    }

    /// Smoothed round-trip time; 0 only before the first sample.
    #[inline]
    pub fn srtt_us(&self) -> u32 {
        self.srtt_scaled.div_ceil(1 << FRACTION_BITS)
    }

    /// Round-trip time variation.
    #[inline]
    pub fn rttvar_us(&self) -> u32 {
        self.rttvar_scaled.div_ceil(1 << FRACTION_BITS)
    }

    /// Smallest round-trip time of the last half minute to minute with samples (RACK, RFC 8985
    /// section 6.2 step 1); 0 only before the first sample.
    #[inline]
    pub fn min_rtt_us(&self) -> u32 {
        let min_us = self.min_now_us.min(self.min_before_us);
        if min_us == u32::MAX { 0 } else { min_us }
    }

    /// Retransmission timeout with its backoff, within `min_us..=max_us`. Before the first sample
    /// it is `initial_us` (for data after a retransmitted SYN that is 3 s, RFC 6298 section 5.7).
    ///
    /// `min_us` bounds the variance term, not the sum (as on Linux): with steady round trips the
    /// variance goes to zero, and the sum would become the round-trip time itself.
    #[inline]
    pub fn rto_us(&self, min_us: u32, max_us: u32, initial_us: u32) -> u32 {
        let base_us = if self.has_sample() {
            let srtt_us = self.srtt_us();
            let floor_us = min_us.max(srtt_us.min(VARIANCE_FLOOR_MAX_US));
            srtt_us + (4 * self.rttvar_us()).max(floor_us)
        } else {
            initial_us.max(min_us)
        };
        let backed_off_us = u64::from(base_us) << self.backoff;
        backed_off_us.min(u64::from(max_us)) as u32
    }

    /// Doubles the timeout, because the timer has expired (RFC 6298 section 5.5). Where the peer
    /// has acknowledged something since, a timeout of a second or more does not grow: the path
    /// works, and something was lost anew. It becomes half as long while that is still a second,
    /// for doublings are kept until something that was sent once arrives: on a path that loses
    /// much, hours would pass before that.
    pub fn back_off(&mut self, rto_us: u64) {
        self.backoff = match self.keeps_backoff && rto_us >= RTO_SAFE_US {
            true => self.backoff.saturating_sub(u8::from(rto_us >= 2 * RTO_SAFE_US)),
            false => (self.backoff + 1).min(BACKOFF_MAX),
        };
        self.keeps_backoff = false;
    }

    /// The peer has acknowledged only what was sent again: the timeout stays as long as it is.
    /// `only_probed`: that was a tail loss probe, which may have been needless. The timeout becomes
    /// longer, and no probe is sent, so that the next flight has the time to give a sample.
    #[inline]
    pub fn keep_backoff(&mut self, only_probed: bool) {
        self.backoff = self.backoff.max(u8::from(only_probed));
        self.keeps_backoff = true;
    }

    /// Ends the backoff, because the peer has acknowledged what was sent once, though no round-trip
    /// time could be measured.
    #[inline]
    pub fn clear_backoff(&mut self) {
        self.backoff = 0;
        self.keeps_backoff = false;
    }

    /// Number of times the timeout was doubled since the last sample.
    #[inline]
    pub fn backoff(&self) -> u8 {
        self.backoff
    }
}

/// Moves an average by `1 / 2^shift` of the way towards `sample`, and by at least one unit if they
/// differ: truncation must not stop it a few units off.
fn approach(average: &mut u32, sample: u32, shift: u32) {
    let round_up = (1 << shift) - 1;
    if sample >= *average {
        *average += (sample - *average + round_up) >> shift;
    } else {
        *average -= (*average - sample + round_up) >> shift;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIN_US: u32 = 1;
    const MAX_US: u32 = 60_000_000;
    const INITIAL_US: u32 = 1_000_000;

    fn rto_us(rtt: &RttEstimator) -> u32 {
        rtt.rto_us(MIN_US, MAX_US, INITIAL_US)
    }

    #[test]
    fn state_is_compact() {
        assert!(size_of::<RttEstimator>() <= 20);
    }

    #[test]
    fn first_sample_sets_mean_and_half_of_it_as_variance() {
        let mut rtt = RttEstimator::new();
        assert_eq!((rtt.srtt_us(), rtt.min_rtt_us(), rto_us(&rtt)), (0, 0, INITIAL_US));
        rtt.sample(10_000, 1, 0);
        assert_eq!((rtt.srtt_us(), rtt.rttvar_us()), (10_000, 5_000));
        assert_eq!(rto_us(&rtt), 30_000);
    }

    #[test]
    fn second_sample_follows_rfc_6298() {
        let mut rtt = RttEstimator::new();
        rtt.sample(8_000, 1, 0);
        rtt.sample(16_000, 1, 0);
        // RTTVAR = 3/4 * 4000 + 1/4 * 8000; SRTT = 7/8 * 8000 + 1/8 * 16000.
        assert_eq!((rtt.srtt_us(), rtt.rttvar_us()), (9_000, 5_000));
        assert_eq!(rto_us(&rtt), 29_000);
    }

    #[test]
    fn a_round_trip_of_one_microsecond_is_not_zero() {
        let mut rtt = RttEstimator::new();
        for _ in 0..1000 {
            rtt.sample(0, 1, 0);
            assert_eq!((rtt.srtt_us(), rtt.min_rtt_us()), (1, 1));
            assert!(rto_us(&rtt) >= 2);
        }
    }

    #[test]
    fn averages_reach_a_new_round_trip_time() {
        for (from_us, to_us) in [(1, 100), (100, 1), (50, 51), (200_000, 7), (3, 16_000_000)] {
            for samples_per_rtt in [1, 16, 1000] {
                let mut rtt = RttEstimator::new();
                rtt.sample(from_us, samples_per_rtt, 0);
                for _ in 0..20_000 {
                    rtt.sample(to_us, samples_per_rtt, 0);
                }
                assert_eq!(rtt.srtt_us(), to_us);
                assert!(rtt.rttvar_us() <= 1);
            }
        }
    }

    #[test]
    fn many_samples_a_round_trip_remember_as_long_as_one() {
        // RFC 7323 appendix G: one slow round trip, then as many fast ones; whatever the number of
        // samples in each, about the same timeout remains.
        let after = |samples_per_rtt: u32| {
            let mut rtt = RttEstimator::new();
            rtt.sample(100_000, 1, 0);
            for _ in 0..8 * samples_per_rtt {
                rtt.sample(1_000, samples_per_rtt, 0);
            }
            rto_us(&rtt)
        };
        let one = after(1);
        for samples_per_rtt in [2, 4, 8, 16, 32] {
            let many = after(samples_per_rtt);
            assert!(many > one * 2 / 3 && many < one * 3 / 2, "{samples_per_rtt}: {many} {one}");
        }
    }

    #[test]
    fn backoff_doubles_from_the_minimum_and_a_sample_ends_it() {
        let mut rtt = RttEstimator::new();
        rtt.sample(100, 1, 0);
        let at = |rtt: &RttEstimator| rtt.rto_us(5_000, MAX_US, INITIAL_US);
        assert_eq!(at(&rtt), 5_100);
        for doublings in 1..=30u32 {
            rtt.back_off(0);
            assert_eq!(u64::from(at(&rtt)), (5_100u64 << doublings.min(20)).min(60_000_000));
        }
        rtt.sample(100, 1, 0);
        assert_eq!(at(&rtt), 5_100);
        rtt.back_off(0);
        rtt.clear_backoff();
        assert_eq!((at(&rtt), rtt.backoff()), (5_100, 0));
    }

    #[test]
    fn steady_round_trips_leave_room_for_others() {
        for (rtt_us, rto_us) in
            [(50, 5_050), (8_000, 16_000), (80_000, 160_000), (300_000, 500_000)]
        {
            let mut rtt = RttEstimator::new();
            for _ in 0..100 {
                rtt.sample(rtt_us, 1, 0);
            }
            assert_eq!(rtt.rto_us(5_000, MAX_US, INITIAL_US), rto_us);
            // Linux's bound, if it is configured.
            assert_eq!(rtt.rto_us(200_000, MAX_US, INITIAL_US), rtt_us + 200_000);
        }
    }

    #[test]
    fn minimum_forgets_an_old_path() {
        let mut rtt = RttEstimator::new();
        let second_us = 1_000_000;
        rtt.sample(100, 1, 0);
        for second in 1..30 {
            rtt.sample(300, 1, second * second_us);
            assert_eq!(rtt.min_rtt_us(), 100);
        }
        for second in 30..100 {
            rtt.sample(300, 1, second * second_us);
        }
        assert_eq!(rtt.min_rtt_us(), 300);
        // At once after a long idle time.
        rtt.sample(500, 1, 200 * second_us);
        assert_eq!(rtt.min_rtt_us(), 500);
    }

    proptest! {
        /// Against RFC 6298 in floating point.
        #[test]
        fn agrees_with_floating_point(samples in proptest::collection::vec(1u32..10_000_000, 1..80)) {
            let mut rtt = RttEstimator::new();
            let (mut srtt, mut rttvar) = (0f64, 0f64);
            for (index, &sample_us) in samples.iter().enumerate() {
                rtt.sample(sample_us, 1, 0);
                let sample = f64::from(sample_us);
                if index == 0 {
                    (srtt, rttvar) = (sample, sample / 2.0);
                } else {
                    rttvar = 0.75 * rttvar + 0.25 * (srtt - sample).abs();
                    srtt = 0.875 * srtt + 0.125 * sample;
                }
                prop_assert!((f64::from(rtt.srtt_us()) - srtt).abs() < 1.5);
                prop_assert!((f64::from(rtt.rttvar_us()) - rttvar).abs() < 2.5);
                prop_assert_eq!(rtt.min_rtt_us(), *samples[..=index].iter().min().unwrap());
            }
        }

        /// Any samples at any times: no overflow, and the timeout stays within its bounds.
        #[test]
        fn bounds_hold(
            samples in proptest::collection::vec((any::<u32>(), any::<u32>(), 0..1u64 << 40), 0..50),
            backoffs in 0..40u32,
            min_us in 1..10_000_000u32,
        ) {
            let mut rtt = RttEstimator::new();
            let mut now_us = 0;
            for (rtt_us, samples_per_rtt, dt_us) in samples {
                now_us += dt_us;
                rtt.sample(rtt_us, samples_per_rtt, now_us);
                prop_assert!(rtt.srtt_us() > 0);
                prop_assert!(rtt.min_rtt_us() > 0);
            }
            for _ in 0..backoffs {
                rtt.back_off(0);
            }
            let rto_us = rtt.rto_us(min_us, MAX_US, INITIAL_US);
            prop_assert!((min_us..=MAX_US).contains(&rto_us));
        }
    }
}
