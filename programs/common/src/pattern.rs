//! Content in which every byte depends on its position, so that lost, repeated and moved bytes
//! show.
use ix_random::Rng;

/// Prime, so that no shift of the stream by a power of two looks right.
const PERIOD: usize = 65_521;
/// Longest slice at any position.
const SLICE: usize = 64 << 10;

/// An endless stream of bytes.
pub struct Pattern {
    bytes: Vec<u8>,
}

impl Default for Pattern {
    fn default() -> Pattern {
        let mut bytes = vec![0; PERIOD];
        Rng::new(0).fill(&mut bytes);
        let again: Vec<u8> = bytes.iter().cycle().take(SLICE).copied().collect();
        bytes.extend(again);
        Pattern { bytes }
    }
}

impl Pattern {
    /// The bytes from `position` on, at most `most` (64 KiB at most).
    pub fn at(&self, position: u64, most: u64) -> &[u8] {
        let start = (position % PERIOD as u64) as usize;
        &self.bytes[start..start + most.min(SLICE as u64) as usize]
    }

    /// Whether `data` is the content at `position`.
    pub fn matches(&self, position: u64, data: &[u8]) -> bool {
        let mut at = position;
        data.chunks(SLICE).all(|chunk| {
            let same = self.at(at, chunk.len() as u64) == chunk;
            at += chunk.len() as u64;
            same
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_shifts_and_flips() {
        let pattern = Pattern::default();
        let mut data: Vec<u8> = Vec::new();
        while data.len() < 200_000 {
            data.extend(pattern.at(1000 + data.len() as u64, 50_000));
        }
        assert!(pattern.matches(1000, &data));
        for shift in [1, 2, 64, 1460, 4096, 65_536] {
            assert!(!pattern.matches(1000 + shift, &data), "shift {shift}");
        }
        data[150_000] ^= 1;
        assert!(!pattern.matches(1000, &data));
    }
}
