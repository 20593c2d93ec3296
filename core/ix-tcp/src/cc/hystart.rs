//! HyStart++ (RFC 9406): leaves the first slow start when round trips grow, before the queue
//! overflows.
//!
//! Round-trip times alone show this too late where the queue is not longer than the path: the first
//! segments of a round still find it empty, and the next round, which would show it, sends twice
//! what fits. So the other half of HyStart (Ha and Rhee, "Taming the elephants", 2011) is used as
//! the first sign: acknowledgements that arrive without a pause for half of a round trip mean that
//! half of the path is full. From then on the window grows conservatively. When round-trip times
//! grow as well, slow start ends.
use ix_wire::Seq;

/// A round with fewer samples is not evaluated.
const SAMPLES_MIN: u8 = 8;
const THRESHOLD_MIN_US: u32 = 4_000;
const THRESHOLD_MAX_US: u32 = 16_000;
/// MIN_RTT_DIVISOR.
const RTT_DIVISOR: u32 = 8;
/// Conservative slow start divides the growth by this, for at most this many rounds.
pub(crate) const CSS_GROWTH_DIVISOR: u32 = 4;
const CSS_ROUNDS: u8 = 5;
/// The same where a train began it. That says only that half of the path is full, and jitter that
/// gathers acknowledgements says so still earlier; round-trip times that grow end it at once.
const TRAIN_ROUNDS: u8 = 10;
/// A pause between acknowledgements that ends a train: an eighth of a round trip, because jitter
/// that keeps the order gathers them into clumps, and this at least.
const TRAIN_PAUSE_MIN_US: u32 = 2_000;
const TRAIN_PAUSE_DIVISOR: u32 = 8;
/// With a shorter round-trip time a train, like the growth of round-trip times, is not evaluated.
const TRAIN_RTT_MIN_US: u32 = THRESHOLD_MIN_US;
const NONE_US: u32 = u32::MAX;

/// How the window may grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Growth {
    /// Slow start.
    Slow,
    /// Conservative slow start.
    Conservative,
    /// No further: congestion avoidance begins.
    Leave,
}

/// State of a sender in its first slow start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HyStart {
    /// The round ends when this is acknowledged; `None` before the first round.
    round_end: Option<Seq>,
    last_min_us: u32,
    min_us: u32,
    samples: u8,
    /// Rounds of conservative slow start, with the current one; 0: slow start.
    css_rounds: u8,
    /// A train, not the round-trip time, began conservative slow start.
    by_train: bool,
    css_baseline_us: u32,
    /// By how much the first samples of a round were longer than the shortest of the round before,
    /// at most, without being taken for growth.
    noise_us: u32,
    /// When the round began, and when the last acknowledgement of its train arrived.
    began_us: u64,
    train_us: u64,
}

impl HyStart {
    pub const fn new() -> HyStart {
        HyStart {
            round_end: None,
            last_min_us: NONE_US,
            min_us: NONE_US,
            samples: 0,
            css_rounds: 0,
            by_train: false,
            css_baseline_us: NONE_US,
            noise_us: 0,
            began_us: 0,
            train_us: 0,
        }
    }

    /// An acknowledgement of new data up to `snd_una` arrived and measured `rtt_us`.
    /// `is_limited`: the window holds data back. `is_paced`: what was sent is spread over half of a
    /// round trip, whatever the path is like.
    pub fn on_ack(
        &mut self,
        rtt_us: u32,
        (snd_una, snd_nxt): (Seq, Seq),
        (is_limited, is_paced): (bool, bool),
        now_us: u64,
    ) -> Growth {
        // A round ends after SND.NXT, not at it. So the next round begins with the first
        // acknowledgement of what was sent in the last one, and not with the last acknowledgement
        // of the train before.
        if self.round_end.is_none_or(|end| snd_una.gt(end)) {
            self.round_end = Some(snd_nxt);
            (self.last_min_us, self.min_us, self.samples) = (self.min_us, NONE_US, 0);
            (self.began_us, self.train_us) = (now_us, now_us);
            if self.css_rounds > 0 {
                self.css_rounds += 1;
            }
        }
        let rounds_max = if self.by_train { TRAIN_ROUNDS } else { CSS_ROUNDS };
        if self.css_rounds > rounds_max {
            return Growth::Leave;
        }
        self.min_us = self.min_us.min(rtt_us);
        self.samples = self.samples.saturating_add(1);
        let grown = self.samples >= SAMPLES_MIN && self.have_round_trips_grown();
        if self.css_rounds == 0 {
            if self.samples == SAMPLES_MIN && !grown && self.last_min_us != NONE_US {
                self.noise_us = self.noise_us.max(self.min_us.saturating_sub(self.last_min_us));
            }
            if grown {
                (self.css_rounds, self.css_baseline_us) = (1, self.min_us);
            } else if self.is_long_train(is_paced, now_us) && is_limited {
                (self.css_rounds, self.css_baseline_us) = (1, self.last_min_us);
                self.by_train = true;
            }
        } else if self.by_train && grown {
            return Growth::Leave;
        } else if !self.by_train
            && self.samples >= SAMPLES_MIN
            && self.min_us < self.css_baseline_us
        {
            // This was a mistake: round-trip times are short again.
            (self.css_rounds, self.css_baseline_us) = (0, NONE_US);
        }
        if self.css_rounds > 0 { Growth::Conservative } else { Growth::Slow }
    }

    /// Whether round-trip times are longer than in the round before; after a train, than in the
    /// round before the train, and by more than noise. What a train began ends for good, but what
    /// round-trip times alone began is taken back when they are short again.
    fn have_round_trips_grown(&self) -> bool {
        let (before_us, noise_us) = match self.by_train {
            true => (self.css_baseline_us, self.noise_us),
            false => (self.last_min_us, 0),
        };
        let threshold_us =
            (before_us / RTT_DIVISOR).clamp(THRESHOLD_MIN_US, THRESHOLD_MAX_US) + noise_us;
        before_us != NONE_US && self.min_us >= before_us.saturating_add(threshold_us)
    }

    /// Whether acknowledgements have arrived without a pause since the round began, for half of the
    /// last round's shortest round-trip time. Paced segments are themselves sent during half of a
    /// round trip: there five eighths mean that something has spread them further.
    fn is_long_train(&mut self, is_paced: bool, now_us: u64) -> bool {
        let rtt_us = self.last_min_us;
        let pause_us = match rtt_us {
            NONE_US => TRAIN_PAUSE_MIN_US,
            rtt_us => (rtt_us / TRAIN_PAUSE_DIVISOR).max(TRAIN_PAUSE_MIN_US),
        };
        if now_us.saturating_sub(self.train_us) > u64::from(pause_us) {
            return false;
        }
        self.train_us = now_us;
        let measured = rtt_us != NONE_US && rtt_us >= TRAIN_RTT_MIN_US;
        measured
            && self.samples >= SAMPLES_MIN
            && now_us.saturating_sub(self.began_us)
                >= u64::from(if is_paced { rtt_us / 8 * 5 } else { rtt_us / 2 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds of `samples` acknowledgements at once each; returns the growth after each round.
    fn rounds(hystart: &mut HyStart, rtts_us: &[u32], samples: u32) -> Vec<Growth> {
        spaced_rounds(hystart, rtts_us, samples, 0)
    }

    /// As [`rounds`], with this time between acknowledgements.
    fn spaced_rounds(
        hystart: &mut HyStart,
        rtts_us: &[u32],
        samples: u32,
        space_us: u64,
    ) -> Vec<Growth> {
        let each: Vec<_> = rtts_us.iter().map(|rtt_us| (*rtt_us, space_us)).collect();
        different_rounds(hystart, &each, samples)
    }

    /// As [`rounds`], with a round-trip time and a time between acknowledgements for each.
    fn different_rounds(hystart: &mut HyStart, each: &[(u32, u64)], samples: u32) -> Vec<Growth> {
        let (mut una, mut now_us) = (0, 1_000_000);
        let mut after = Vec::new();
        for &(rtt_us, space_us) in each {
            let mut growth = Growth::Slow;
            for _ in 0..samples {
                una += 1;
                // One is acknowledged, and nothing was sent in its place yet.
                growth = hystart.on_ack(
                    rtt_us,
                    (Seq(una), Seq(una + samples - 1)),
                    (true, false),
                    now_us,
                );
                now_us += space_us;
            }
            now_us += 100_000;
            after.push(growth);
        }
        after
    }

    #[test]
    fn steady_round_trips_are_slow_start() {
        let all = rounds(&mut HyStart::new(), &[20_000; 30], 16);
        assert!(all.iter().all(|growth| *growth == Growth::Slow));
    }

    #[test]
    fn longer_round_trips_end_it_after_five_conservative_rounds() {
        use Growth::{Conservative, Leave, Slow};
        // The threshold at 40 ms is 5 ms.
        let rtts_us = [40_000, 44_900, 50_600, 50_600, 50_600, 50_600, 50_600, 50_600];
        let want = [
            Slow,
            Slow,
            Conservative,
            Conservative,
            Conservative,
            Conservative,
            Conservative,
            Leave,
        ];
        assert_eq!(rounds(&mut HyStart::new(), &rtts_us, 16), want);
    }

    #[test]
    fn shorter_round_trips_resume_slow_start() {
        use Growth::{Conservative, Slow};
        let got = rounds(&mut HyStart::new(), &[20_000, 25_000, 24_999, 24_999], 16);
        assert_eq!(got, [Slow, Conservative, Slow, Slow]);
    }

    #[test]
    fn few_samples_say_nothing() {
        let got = rounds(&mut HyStart::new(), &[20_000, 90_000, 200_000], 7);
        assert!(got.iter().all(|growth| *growth == Growth::Slow));
    }

    #[test]
    fn a_train_of_half_a_round_trip_is_the_first_witness_and_growth_the_second() {
        use Growth::{Conservative, Leave, Slow};
        // 16 acknowledgements, 15 pauses: 4.5 ms, then 5.25 ms of a round trip of 10 ms.
        assert_eq!(spaced_rounds(&mut HyStart::new(), &[10_000; 3], 16, 300), [Slow; 3]);
        let mut hystart = HyStart::new();
        let got = spaced_rounds(&mut hystart, &[10_000, 10_000, 13_900, 14_000], 16, 350);
        assert_eq!(got, [Slow, Conservative, Conservative, Leave]);
    }

    #[test]
    fn a_train_without_growth_ends_slow_start_after_ten_rounds() {
        use Growth::{Conservative, Leave, Slow};
        let got = spaced_rounds(&mut HyStart::new(), &[10_000; 13], 16, 350);
        assert_eq!(got[..1], [Slow]);
        assert_eq!(got[1..11], [Conservative; 10]);
        assert_eq!(got[11], Leave);
    }

    #[test]
    fn pauses_and_short_round_trips_make_no_train() {
        for (rtt_us, samples, space_us) in
            [(40_000, 16, 5_001), (12_000, 16, 2_001), (3_900, 16, 1_000)]
        {
            let got = spaced_rounds(&mut HyStart::new(), &[rtt_us; 6], samples, space_us);
            assert!(got.iter().all(|growth| *growth == Growth::Slow), "{rtt_us}");
        }
    }

    #[test]
    fn an_application_that_sends_a_little_all_the_time_has_no_train() {
        let mut hystart = HyStart::new();
        for number in 0..2_000 {
            // One segment each millisecond on a path of 10 ms.
            let (una, now_us) = (Seq(number), 1_000_000 + 1_000 * u64::from(number));
            let growth = hystart.on_ack(10_000, (una, una + 9u32), (false, false), now_us);
            assert_eq!(growth, Growth::Slow);
        }
    }

    #[test]
    fn after_a_train_growth_is_more_than_noise() {
        use Growth::{Conservative, Leave, Slow};
        // The threshold at 40 ms is 5 ms. Rounds have differed by 3 ms before the train.
        let noisy = [(40_000, 0), (43_000, 0), (40_000, 0), (40_000, 1_400)];
        for (rtt_us, growth) in [(47_900, Conservative), (48_000, Leave)] {
            let each: Vec<_> = noisy.into_iter().chain([(rtt_us, 1_400)]).collect();
            let got = different_rounds(&mut HyStart::new(), &each, 16);
            assert_eq!(got, [Slow, Slow, Slow, Conservative, growth]);
        }
    }
}
