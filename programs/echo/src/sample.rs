//! What a client measured.
use hdrhistogram::Histogram;

/// The measurement of one thread, or of all.
pub struct Sample {
    /// Round trips.
    pub latency_ns: Histogram<u64>,
    /// Connections opened in the measured time.
    pub opened: u64,
    /// Datagrams that did not come back.
    pub lost: u64,
    /// Connections that at the end had waited for a reply for more than a second.
    pub stalled: u64,
    /// Failed connections and wrong replies, at any time.
    pub errors: u64,
    /// The first of them.
    pub first_error: Option<String>,
}

impl Default for Sample {
    fn default() -> Sample {
        Sample {
            latency_ns: histogram(),
            opened: 0,
            lost: 0,
            stalled: 0,
            errors: 0,
            first_error: None,
        }
    }
}

impl Sample {
    /// Records a message that came back after this time.
    pub fn record(&mut self, latency_ns: u64) {
        self.latency_ns.saturating_record(latency_ns.max(1));
    }

    /// Messages.
    pub fn messages(&self) -> u64 {
        self.latency_ns.len()
    }

    /// Records an error.
    pub fn error(&mut self, why: &str) {
        self.errors += 1;
        self.first_error.get_or_insert_with(|| why.to_string());
    }

    /// Adds another thread's measurement.
    pub fn merge(&mut self, other: Sample) {
        self.latency_ns += other.latency_ns;
        self.opened += other.opened;
        self.lost += other.lost;
        self.stalled += other.stalled;
        self.errors += other.errors;
        self.first_error = self.first_error.take().or(other.first_error);
    }
}

/// A histogram of latencies in ns: 1 ns to 100 s at three digits.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 100_000_000_000, 3).expect("constant bounds")
}
