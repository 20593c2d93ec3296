//! Seeded randomness: everything the generator draws can be drawn again.

/// SplitMix64 (Steele, Lea and Flood 2014): one addition and a mix, one word of state.
#[derive(Clone, Debug)]
pub struct Rng(u64);

const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// The mix of SplitMix64, a bijection: also the hash of what is a function of a record.
#[inline]
pub fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

impl Rng {
    /// A stream of its own for each seed.
    pub fn new(seed: u64) -> Rng {
        Rng(mix(seed.wrapping_add(GOLDEN_GAMMA)))
    }

    /// 64 random bits.
    #[inline]
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN_GAMMA);
        mix(self.0)
    }

    /// Uniform over the open interval (0, 1).
    #[inline]
    pub fn unit(&mut self) -> f64 {
        ((self.word() >> 11) as f64 + 0.5) * (1.0 / (1u64 << 53) as f64)
    }

    /// Uniform over `0..n`; `n` > 0. The bias is below n / 2^64.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(n)) >> 64) as u64
    }
}
