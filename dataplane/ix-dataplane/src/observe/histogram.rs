//! Fixed log-linear histogram: 32 buckets an octave (error below 1/32), 0 to 2^36 ns (68 s).
//!
//! Recording is two shifts and an addition into an array; nothing allocates.

/// log2 of the buckets in an octave.
const SUB_BITS: u32 = 5;
const SUB: usize = 1 << SUB_BITS;
/// Larger values than 2^this count as the largest.
const VALUE_BITS: u32 = 36;
/// Buckets of a histogram.
pub const BUCKETS: usize = (VALUE_BITS - SUB_BITS + 1) as usize * SUB;

/// Bucket of a value.
#[inline]
pub fn bucket_of(value: u64) -> usize {
    let value = value.min((1 << VALUE_BITS) - 1);
    // Below 2 * SUB every value has a bucket of its own; above, the SUB_BITS bits behind the
    // leading one choose within the octave.
    let shift = (u64::BITS - value.leading_zeros()).saturating_sub(SUB_BITS + 1);
    shift as usize * SUB + (value >> shift) as usize
}

/// Largest value of a bucket.
pub fn bucket_max(bucket: usize) -> u64 {
    let shift = (bucket / SUB).saturating_sub(1);
    let digits = (bucket - shift * SUB) as u64;
    ((digits + 1) << shift) - 1
}

/// Counts of values, with their sum and maximum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; BUCKETS],
    count: u64,
    sum: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: [0; BUCKETS], count: 0, sum: 0, max: 0 }
    }
}

impl Histogram {
    /// An empty histogram.
    pub fn new() -> Histogram {
        Histogram::default()
    }

    /// A histogram from the counts of its buckets, the sum and the maximum.
    pub fn from_parts(counts: [u64; BUCKETS], sum: u64, max: u64) -> Histogram {
        // They may be of a program that made them up.
        let count = counts.iter().fold(0, |all: u64, count| all.saturating_add(*count));
        Histogram { count, counts, sum, max }
    }

    /// Counts a value.
    #[inline]
    pub fn record(&mut self, value: u64) {
        self.counts[bucket_of(value)] += 1;
        self.count += 1;
        self.sum = self.sum.saturating_add(value);
        self.max = self.max.max(value);
    }

    /// Adds the values of another histogram.
    pub fn merge(&mut self, other: &Histogram) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.count += other.count;
        self.sum = self.sum.saturating_add(other.sum);
        self.max = self.max.max(other.max);
    }

    /// How many values each bucket has, with the largest value that it stands for; `u64::MAX` for
    /// the last one, which has no upper end.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let counted = self.counts.iter().enumerate();
        counted.map(|(bucket, count)| match bucket {
            _ if bucket == BUCKETS - 1 => (u64::MAX, *count),
            _ => (bucket_max(bucket), *count),
        })
    }

    /// Sum of all values.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Largest value, exact.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Arithmetic mean, 0 without values.
    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 }
    }

    /// Smallest recorded value, rounded up to its bucket's upper end, that `percent` of all values
    /// do not exceed; 0 without values.
    pub fn percentile(&self, percent: f64) -> u64 {
        let rank = (self.count as f64 * percent / 100.0).ceil().clamp(1.0, u64::MAX as f64) as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                // The last bucket has no upper end: only the maximum is known.
                let last = bucket == BUCKETS - 1;
                return if last { self.max } else { bucket_max(bucket).min(self.max) };
            }
        }
        self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buckets_tile_the_numbers() {
        assert_eq!(bucket_of(0), 0);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        for bucket in 0..BUCKETS {
            assert_eq!(bucket_of(bucket_max(bucket)), bucket);
            if bucket + 1 < BUCKETS {
                assert_eq!(bucket_of(bucket_max(bucket) + 1), bucket + 1);
            }
        }
        assert_eq!(bucket_max(BUCKETS - 1), (1 << 36) - 1);
    }

    #[test]
    fn empty_and_open_ended() {
        let mut h = Histogram::new();
        assert_eq!((h.percentile(50.0), h.max(), h.mean()), (0, 0, 0.0));
        h.record(1 << 50);
        assert_eq!(h.percentile(99.0), 1 << 50);
    }

    proptest! {
        #[test]
        fn percentiles_are_those_of_the_sorted_values_to_one_32nd(
            mut values in prop::collection::vec((0u32..36, any::<u64>()), 1..200),
            split in 0usize..200,
            percent in 0.0f64..=100.0,
        ) {
            let mut sorted: Vec<u64> =
                values.drain(..).map(|(bits, x)| x & ((1 << bits) - 1)).collect();
            let (mut a, mut b) = (Histogram::new(), Histogram::new());
            for (i, &v) in sorted.iter().enumerate() {
                if i < split { a.record(v) } else { b.record(v) }
            }
            a.merge(&b);
            sorted.sort_unstable();
            let rank = (sorted.len() as f64 * percent / 100.0).ceil().max(1.0) as usize;
            let exact = sorted[rank - 1];
            let got = a.percentile(percent);
            prop_assert!(got >= exact && got - exact <= exact / 32, "{got} for {exact}");
            prop_assert_eq!(a.percentile(100.0), *sorted.last().unwrap());
            prop_assert_eq!(a.count(), sorted.len() as u64);
            let below = a.buckets().filter(|(max, _)| *max <= exact);
            let below: u64 = below.map(|(_, count)| count).sum();
            prop_assert!(below <= sorted.iter().filter(|&&v| v <= exact).count() as u64);
            prop_assert_eq!(a.buckets().map(|(_, count)| count).sum::<u64>(), a.count());
            let mean = sorted.iter().map(|&v| v as f64).sum::<f64>() / sorted.len() as f64;
            prop_assert!((a.mean() - mean).abs() <= mean * 1e-9);
        }
    }
}
