//! HyStart++ (RFC 9406): leaves the first slow start when round trips grow, before the queue
//! overflows.
use ix_wire::Seq;

/// Round trips of fewer samples say nothing.
const SAMPLES_MIN: u8 = 8;
const THRESHOLD_MIN_US: u32 = 4_000;
const THRESHOLD_MAX_US: u32 = 16_000;
/// MIN_RTT_DIVISOR.
const RTT_DIVISOR: u32 = 8;
/// Conservative slow start grows by this much less, for so many rounds.
pub(crate) const CSS_GROWTH_DIVISOR: u32 = 4;
const CSS_ROUNDS: u8 = 5;
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

/// What a sender in its first slow start watches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HyStart {
    /// The round ends when this is acknowledged; `None` before the first.
    round_end: Option<Seq>,
    last_min_us: u32,
    min_us: u32,
    samples: u8,
    /// Rounds of conservative slow start, the present one included; 0: slow start.
    css_rounds: u8,
    css_baseline_us: u32,
}

impl HyStart {
    pub const fn new() -> HyStart {
        HyStart {
            round_end: None,
            last_min_us: NONE_US,
            min_us: NONE_US,
            samples: 0,
            css_rounds: 0,
            css_baseline_us: NONE_US,
        }
    }

    /// An acknowledgement of new data up to `snd_una` measured `rtt_us`.
    pub fn on_ack(&mut self, rtt_us: u32, snd_una: Seq, snd_nxt: Seq) -> Growth {
        if self.round_end.is_none_or(|end| snd_una.ge(end)) {
            self.round_end = Some(snd_nxt);
            (self.last_min_us, self.min_us, self.samples) = (self.min_us, NONE_US, 0);
            if self.css_rounds > 0 {
                self.css_rounds += 1;
            }
        }
        if self.css_rounds > CSS_ROUNDS {
            return Growth::Leave;
        }
        self.min_us = self.min_us.min(rtt_us);
        self.samples = self.samples.saturating_add(1);
        if self.samples >= SAMPLES_MIN {
            self.judge();
        }
        if self.css_rounds > 0 { Growth::Conservative } else { Growth::Slow }
    }

    fn judge(&mut self) {
        if self.css_rounds > 0 {
            if self.min_us < self.css_baseline_us {
                // It was a mistake: round trips are short again.
                (self.css_rounds, self.css_baseline_us) = (0, NONE_US);
            }
        } else if self.last_min_us != NONE_US {
            let threshold_us =
                (self.last_min_us / RTT_DIVISOR).clamp(THRESHOLD_MIN_US, THRESHOLD_MAX_US);
            if self.min_us >= self.last_min_us.saturating_add(threshold_us) {
                (self.css_rounds, self.css_baseline_us) = (1, self.min_us);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds of `samples` acknowledgements each; answers the growth after each round.
    fn rounds(hystart: &mut HyStart, rtts_us: &[u32], samples: u32) -> Vec<Growth> {
        let mut una = 0;
        let mut after = Vec::new();
        for &rtt_us in rtts_us {
            let mut growth = Growth::Slow;
            for _ in 0..samples {
                una += 1;
                growth = hystart.on_ack(rtt_us, Seq(una), Seq(una + samples));
            }
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
}
