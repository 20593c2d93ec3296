//! The only source of chance in a simulation: PCG-XSL-RR 128/64, seeded, portable, 16 bytes of state.

const MULTIPLIER: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;
const INCREMENT: u128 = 0x5851_f42d_4c95_7f2d_1405_7b7e_f767_814f;

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Rng(u128);

impl Rng {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Rng {
        let mut rng = Rng((seed as u128) << 64 | (!seed) as u128);
        // Seeds that differ in few bits begin alike for a few steps.
        for _ in 0..8 {
            rng.next();
        }
        rng
    }

    /// An independent stream; what is drawn from it does not shift the numbers of this one.
    pub fn fork(&mut self) -> Rng {
        Rng::new(self.next())
    }

    /// 64 random bits.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT);
        let folded = (self.0 >> 64) as u64 ^ self.0 as u64;
        folded.rotate_right((self.0 >> 122) as u32)
    }

    /// A number below `n`; 0 for 0.
    pub fn below(&mut self, n: u64) -> u64 {
        // Multiply and take the upper half: the bias is below n / 2^64.
        ((self.next() as u128 * n as u128) >> 64) as u64
    }

    /// A number within `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        debug_assert!(low <= high);
        low + self.below((high - low).saturating_add(1))
    }

    /// A number within `low..=high` whose order of magnitude is uniform.
    pub fn spread(&mut self, low: u64, high: u64) -> u64 {
        let (from, to) = ((low.max(1) as f64).ln(), (high.max(1) as f64).ln());
        let at = from + (to - from) * self.unit();
        (at.exp().round() as u64).clamp(low, high)
    }

    /// A number in 0.0..1.0.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        // No number is drawn for what cannot happen, so that adding a fault that is off
        // leaves old seeds alone.
        probability > 0.0 && self.unit() < probability
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_stream_and_streams_differ() {
        let draw = |seed| {
            let mut rng = Rng::new(seed);
            [rng.next(), rng.next(), rng.next()]
        };
        assert_eq!(draw(1), draw(1));
        let mut seen = std::collections::HashSet::new();
        assert!((0..1000).flat_map(draw).all(|x| seen.insert(x)));
    }

    #[test]
    fn numbers_keep_their_bounds_and_reach_them() {
        let mut rng = Rng::new(3);
        let drawn: Vec<u64> = (0..1000).map(|_| rng.between(5, 8)).collect();
        assert!((5..=8).all(|x| drawn.contains(&x)) && drawn.iter().all(|x| (5..=8).contains(x)));
        assert_eq!((rng.below(0), rng.below(1)), (0, 0));
        assert!((0..1000).map(|_| rng.spread(10, 10_000)).all(|x| (10..=10_000).contains(&x)));
        let hits = (0..100_000).filter(|_| rng.chance(0.1)).count();
        assert!((9_500..10_500).contains(&hits), "{hits}");
        let ones: u32 = (0..1000).map(|_| rng.next().count_ones()).sum();
        assert!((31_500..32_500).contains(&ones), "{ones}");
    }
}
