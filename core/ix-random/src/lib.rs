//! The one generator of random numbers for tests, simulation and load.
//!
//! A seed determines every number, on every machine and in every build, so a run that has printed
//! its seed can be repeated. Nothing here reads a clock or asks the system. Not for secrets: a few
//! numbers are enough to compute all others.
//!
//! The generator is PCG-XSL-RR 128/64 (O'Neill 2014): one multiplication and one addition a number,
//! 16 bytes of state. [`Rng::fork`] splits a stream in two, so that one part of a simulation can
//! draw more numbers without changing what another part draws.
#![forbid(unsafe_code)]

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
            rng.next_u64();
        }
        rng
    }

    /// Returns an independent stream and takes one number from this one. Numbers drawn from the new
    /// stream do not change those of this one.
    pub fn fork(&mut self) -> Rng {
        Rng::new(self.next_u64())
    }

    /// 64 random bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT);
        let folded = (self.0 >> 64) as u64 ^ self.0 as u64;
        folded.rotate_right((self.0 >> 122) as u32)
    }

    /// A number below `n`; 0 for 0. The bias is below n / 2^64.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        // Multiply and take the upper half (Lemire 2019).
        ((self.next_u64() as u128 * n as u128) >> 64) as u64
    }

    /// An index below `n`; 0 for 0.
    #[inline]
    pub fn index(&mut self, n: usize) -> usize {
        self.below(n as u64) as usize
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
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A number strictly between 0.0 and 1.0, whose logarithm is finite.
    #[inline]
    pub fn open_unit(&mut self) -> f64 {
        ((self.next_u64() >> 11) as f64 + 0.5) * (1.0 / (1u64 << 53) as f64)
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        // No number is drawn for what cannot happen, so that adding a fault that is off
        // leaves old seeds alone.
        probability > 0.0 && self.unit() < probability
    }

    /// True in `parts` of a thousand.
    pub fn per_mille(&mut self, parts: u32) -> bool {
        self.below(1000) < u64::from(parts)
    }

    /// One of these, of which there is at least one.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())]
    }

    /// Fills `bytes` with random octets.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            piece.copy_from_slice(&self.next_u64().to_le_bytes()[..piece.len()]);
        }
    }
}

/// Mixes the bits of a word, one to one: the finaliser of SplitMix64 (Steele, Lea and Flood 2014).
/// For a number that must depend only on a position or a record, without a stream.
#[inline]
pub const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_stream_and_streams_differ() {
        let draw = |seed| {
            let mut rng = Rng::new(seed);
            [rng.next_u64(), rng.next_u64(), rng.next_u64()]
        };
        assert_eq!(draw(1), draw(1));
        let mut seen = std::collections::HashSet::new();
        assert!((0..1000).flat_map(draw).all(|x| seen.insert(x)));
    }

    /// Runs that printed a seed are repeated by it for as long as the numbers stay what they are.
    #[test]
    fn the_numbers_of_a_seed_never_change() {
        let mut rng = Rng::new(42);
        let drawn = [rng.next_u64(), rng.fork().next_u64(), rng.next_u64()];
        assert_eq!(drawn, GOLDEN, "{drawn:#x?}");
    }

    const GOLDEN: [u64; 3] = [0xd7fe_5d15_886a_ece3, 0x7257_68e2_86b4_8e0f, 0x1a60_4e18_ecd0_d320];

    #[test]
    fn numbers_keep_their_bounds_and_reach_them() {
        let mut rng = Rng::new(3);
        let drawn: Vec<u64> = (0..1000).map(|_| rng.between(5, 8)).collect();
        assert!((5..=8).all(|x| drawn.contains(&x)) && drawn.iter().all(|x| (5..=8).contains(x)));
        assert_eq!((rng.below(0), rng.below(1)), (0, 0));
        assert!((0..1000).map(|_| rng.spread(10, 10_000)).all(|x| (10..=10_000).contains(&x)));
        let hits = (0..100_000).filter(|_| rng.chance(0.1)).count();
        assert!((9_500..10_500).contains(&hits), "{hits}");
        let ones: u32 = (0..1000).map(|_| rng.next_u64().count_ones()).sum();
        assert!((31_500..32_500).contains(&ones), "{ones}");
        assert!((0..1000).map(|_| rng.open_unit()).all(|x| 0.0 < x && x < 1.0));
        let mut bytes = [0; 4001];
        rng.fill(&mut bytes);
        assert!((1..=255).all(|octet| bytes.contains(&octet)));
    }
}
