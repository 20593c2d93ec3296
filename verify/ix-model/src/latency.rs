//! Weighted latencies of one second.

/// Width of a bin, µs.
const BIN_US: f64 = 2.0;
/// Longer latencies count as this, 10 ms.
const BINS: usize = 5_000;

/// A histogram that is cleared when it is read.
#[derive(Clone, Debug)]
pub struct Latencies {
    bins: Vec<f64>,
    total: f64,
}

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies { bins: vec![0.0; BINS], total: 0.0 }
    }
}

impl Latencies {
    /// Adds a latency for a share of the requests.
    pub fn add(&mut self, us: f64, weight: f64) {
        self.bins[((us / BIN_US) as usize).min(BINS - 1)] += weight;
        self.total += weight;
    }

    /// The latency that this share of the requests does not exceed, µs; 0 if empty.
    pub fn quantile(&self, part: f64) -> f64 {
        let wanted = self.total * part;
        let mut sum = 0.0;
        for (index, weight) in self.bins.iter().enumerate() {
            sum += weight;
            if sum >= wanted && sum > 0.0 {
                return (index as f64 + 1.0) * BIN_US;
            }
        }
        0.0
    }

    /// Clears it.
    pub fn clear(&mut self) {
        self.bins.fill(0.0);
        self.total = 0.0;
    }
}
