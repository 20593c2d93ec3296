//! Configuration of an engine.
use ix_workload::arrivals::Arrival;
use ix_workload::pattern::Rate;

/// Length of an interval.
pub const INTERVAL_NS: u64 = 1_000_000_000;

/// Connections of one class on one thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClassSetup {
    /// Connections.
    pub connections: u32,
    /// Most requests in flight on one of them.
    pub depth: u32,
}

/// An open loop.
#[derive(Clone, Debug)]
pub struct Open {
    /// Distribution of the gaps.
    pub arrival: Arrival,
    /// Rate of all threads together.
    pub rate: Rate,
    /// This thread's share of it.
    pub share: f64,
}

/// The setup of one thread's engine.
#[derive(Clone, Debug)]
pub struct Setup {
    /// By [`super::Class`].
    pub classes: [ClassSetup; 2],
    /// By class; `None`: closed loop.
    pub open: [Option<Open>; 2],
    /// Requests after which a connection is reset and opened again.
    pub messages_per_connection: u64,
    /// A reply that takes longer is missing.
    pub timeout_ns: u64,
    /// How long replies are awaited after the end (open loop).
    pub drain_ns: u64,
    /// Most requests that may wait for a free connection.
    pub overdue_most: usize,
    /// Seed of this thread.
    pub seed: u64,
    /// Seed of the rate's noise, the same for all threads.
    pub noise_seed: u64,
    /// Requests are datagrams.
    pub udp: bool,
}

/// When a run begins, counts and ends, ns.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// First request.
    pub start_ns: u64,
    /// Requests due from here on count.
    pub from_ns: u64,
    /// No more requests.
    pub to_ns: u64,
}

impl Times {
    /// Whether a request that was due at that time counts.
    #[inline]
    pub fn counts(&self, due_ns: u64) -> bool {
        self.from_ns <= due_ns && due_ns < self.to_ns
    }

    /// Intervals are placed so that one begins at `from_ns`.
    pub(super) fn first_interval_end_ns(&self) -> u64 {
        let warmup_ns = self.from_ns - self.start_ns;
        let first_ns = warmup_ns % INTERVAL_NS;
        let first_ns = if first_ns == 0 { INTERVAL_NS } else { first_ns };
        (self.start_ns + first_ns).min(self.to_ns)
    }

    /// Number of the first interval: 0 is the one that begins at `from_ns`.
    pub(super) fn first_second(&self) -> i64 {
        -((self.from_ns - self.start_ns).div_ceil(INTERVAL_NS) as i64)
    }

    /// The end of the next interval; after `to_ns` there is none until all is over.
    pub(super) fn next_interval_end_ns(&self, end_ns: u64) -> u64 {
        if end_ns >= self.to_ns { u64::MAX } else { (end_ns + INTERVAL_NS).min(self.to_ns) }
    }
}
