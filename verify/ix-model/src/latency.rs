//! Latencies of one second, by weight.

/// Width of a bin, µs.
const BIN_US: f64 = 2.0;
/// More than 10 ms is 10 ms.
const BINS: usize = 5_000;

/// A histogram that forgets everything when it is read.
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
    /// Adds a latency with the part of the requests that have it.
    pub fn add(&mut self, us: f64, weight: f64) {
        self.bins[((us / BIN_US) as usize).min(BINS - 1)] += weight;
        self.total += weight;
    }

    /// The latency that a part of the requests stays within, µs; 0 of nothing.
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

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.bins.fill(0.0);
        self.total = 0.0;
    }
}
