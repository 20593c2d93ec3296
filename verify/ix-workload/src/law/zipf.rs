//! Zipf's law over records.
use ix_random::Rng;

/// Ranks `0..n`, rank k with a probability proportional to (k + 1)^-s, by rejection-inversion
/// (Hörmann and Derflinger 1996): constant time and no table, whatever n and s.
#[derive(Clone, Debug)]
pub struct Zipf {
    n: f64,
    s: f64,
    /// Integral of the hat up to 3/2 less the first rank's weight, and up to n + 1/2.
    low: f64,
    high: f64,
    /// Rank less point below which a draw is accepted unseen.
    sure: f64,
}

impl Zipf {
    /// `n` ranks, `s` >= 0.
    pub fn new(n: u64, s: f64) -> Zipf {
        let mut zipf = Zipf { n: n as f64, s, low: 0.0, high: 0.0, sure: 0.0 };
        zipf.low = zipf.integral(1.5) - 1.0;
        zipf.high = zipf.integral(zipf.n + 0.5);
        zipf.sure = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.weight(2.0));
        zipf
    }

    /// A rank.
    #[inline]
    pub fn draw(&self, rng: &mut Rng) -> u64 {
        loop {
            let u = self.high + rng.open_unit() * (self.low - self.high);
            let point = self.inverse(u);
            let rank = point.round().clamp(1.0, self.n);
            if rank - point <= self.sure || u >= self.integral(rank + 0.5) - self.weight(rank) {
                return rank as u64 - 1;
            }
        }
    }

    fn weight(&self, x: f64) -> f64 {
        (-self.s * x.ln()).exp()
    }

    /// Integral of x^-s from 1.
    fn integral(&self, x: f64) -> f64 {
        let log = x.ln();
        let t = (1.0 - self.s) * log;
        // (e^t - 1) / t is 1 where t is 0, that is at s = 1.
        if t.abs() < 1e-9 { log } else { t.exp_m1() / t * log }
    }

    fn inverse(&self, area: f64) -> f64 {
        let t = (area * (1.0 - self.s)).max(-1.0);
        let scale = if t.abs() < 1e-9 { 1.0 } else { t.ln_1p() / t };
        (scale * area).exp()
    }
}
