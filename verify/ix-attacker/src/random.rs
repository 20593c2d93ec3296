//! Random numbers that repeat.

/// xorshift64*.
pub struct Random(u64);

impl Random {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed | 1)
    }

    /// The next one.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// One below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}
