//! When requests are due in open loop: drawn from a law and a seed, whatever the server does.
use crate::pattern::Rate;
use ix_random::Rng;
use serde::{Deserialize, Serialize};

/// The rate is taken as constant for so long.
const SLICE_NS: u64 = 10_000_000;
/// Shape of Facebook's gaps ([`crate::law::FB_IA`]); the scale follows from the rate.
const FB_SHAPE: f64 = 0.154971;

/// Law of the gaps between requests; all have the mean that the rate asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Arrival {
    /// Exponential gaps
    Poisson,
    /// Generalised Pareto gaps with the shape of Facebook's ETC
    Fb,
    /// Gaps uniform between 0 and twice the mean
    Uniform,
    /// Equal gaps
    Fixed,
}

impl Arrival {
    /// A gap of mean 1.
    #[inline]
    fn draw(self, rng: &mut Rng) -> f64 {
        match self {
            Arrival::Poisson => -rng.open_unit().ln(),
            Arrival::Fb => (1.0 - FB_SHAPE) * (rng.open_unit().powf(-FB_SHAPE) - 1.0) / FB_SHAPE,
            Arrival::Uniform => 2.0 * rng.open_unit(),
            Arrival::Fixed => 1.0,
        }
    }
}

/// A sequence of due times.
#[derive(Clone, Debug)]
pub struct Arrivals {
    law: Arrival,
    rate: Rate,
    /// This thread's share of the rate.
    share: f64,
    seed: u64,
    rng: Rng,
    start_ns: u64,
    slice_ns: u64,
    /// The next due time as ns into the slice: whole ns would add up to a wrong rate.
    within_ns: f64,
    /// Requests a ns in this slice.
    intensity: f64,
}

impl Arrivals {
    /// Due times after `start_ns` with `share` of the rate. `seed` draws the gaps; the noise of
    /// the rate depends on `rate_seed`, which all threads share.
    pub fn new(
        law: Arrival,
        rate: Rate,
        share: f64,
        seed: u64,
        rate_seed: u64,
        start_ns: u64,
    ) -> Arrivals {
        let mut arrivals = Arrivals {
            law,
            rate,
            share,
            seed: rate_seed,
            rng: Rng::new(seed),
            start_ns,
            slice_ns: start_ns,
            within_ns: 0.0,
            intensity: 0.0,
        };
        arrivals.enter(start_ns);
        arrivals.advance();
        arrivals
    }

    /// When the next request is due.
    #[inline]
    pub fn next_ns(&self) -> u64 {
        self.slice_ns + self.within_ns as u64
    }

    /// Draws the one after it. A gap is stretched by the rate of each slice that it spans.
    #[inline]
    pub fn advance(&mut self) {
        let mut left = self.law.draw(&mut self.rng);
        loop {
            let here = (SLICE_NS as f64 - self.within_ns) * self.intensity;
            if left < here {
                self.within_ns += left / self.intensity;
                return;
            }
            left -= here;
            self.enter(self.slice_ns + SLICE_NS);
        }
    }

    fn enter(&mut self, slice_ns: u64) {
        self.slice_ns = slice_ns;
        self.within_ns = 0.0;
        let middle_s = (slice_ns - self.start_ns + SLICE_NS / 2) as f64 / 1e9;
        self.intensity = self.rate.at(middle_s, self.seed) * self.share / 1e9;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn due(arrival: Arrival, rate: &str, share: f64, seconds: u64) -> Vec<u64> {
        let rate = rate.parse().unwrap();
        let mut arrivals = Arrivals::new(arrival, rate, share, 5, 5, SECOND);
        let mut all = Vec::new();
        while arrivals.next_ns() < SECOND + seconds * SECOND {
            all.push(arrivals.next_ns() - SECOND);
            arrivals.advance();
        }
        all
    }

    #[test]
    fn every_law_keeps_the_rate() {
        for law in [Arrival::Poisson, Arrival::Fb, Arrival::Uniform, Arrival::Fixed] {
            let n = due(law, "constant:40000", 0.5, 20).len() as f64;
            // Variances of the gaps are at most 1.45 means squared.
            assert!((n - 400_000.0).abs() < 5.0 * 1.3 * 400_000f64.sqrt(), "{law:?}: {n}");
        }
    }

    #[test]
    fn gaps_follow_their_laws() {
        let quantile = |law, q: f64| {
            let due = due(law, "constant:10000", 1.0, 20);
            let mut gaps: Vec<f64> = due.windows(2).map(|w| (w[1] - w[0]) as f64 / 1e5).collect();
            gaps.sort_by(f64::total_cmp);
            gaps[(q * gaps.len() as f64) as usize]
        };
        for q in [0.1, 0.5, 0.9, 0.99] {
            let tail: f64 = 1.0 - q;
            let poisson = -tail.ln();
            assert!((quantile(Arrival::Poisson, q) / poisson - 1.0).abs() < 0.04, "{q}");
            let scale = 1.0 - 0.154971;
            let fb = scale * (tail.powf(-0.154971) - 1.0) / 0.154971;
            assert!((quantile(Arrival::Fb, q) / fb - 1.0).abs() < 0.04, "{q}");
            assert!((quantile(Arrival::Uniform, q) / (2.0 * q) - 1.0).abs() < 0.04, "{q}");
            assert!((quantile(Arrival::Fixed, q) - 1.0).abs() < 0.001);
        }
    }

    #[test]
    fn a_changing_rate_is_followed() {
        let due = due(Arrival::Poisson, "triangle:0:20000:10:0", 1.0, 10);
        for second in 0..10 {
            let n = due.iter().filter(|ns| **ns / SECOND == second).count() as f64;
            let middle = second as f64 + 0.5;
            let expected = 20_000.0 * middle.min(10.0 - middle) / 5.0;
            assert!((n - expected).abs() < 5.0 * expected.sqrt(), "{second}: {n} for {expected}");
        }
    }

    #[test]
    fn the_same_seed_draws_the_same_times() {
        let twice = [(); 2].map(|()| due(Arrival::Fb, "constant:1000", 1.0, 2));
        assert_eq!(twice[0], twice[1]);
    }
}
