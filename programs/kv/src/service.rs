//! What all server threads share.
use crate::context::Context;
use crate::counters::Counters;
use crate::expiry::Now;
use crate::store::Store;

/// Message to a connection beyond the most.
pub const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";

/// The service: one for all threads, for the life of the process.
pub struct Service {
    /// The cache.
    pub store: &'static Store,
    /// Whether item memory can be sent from.
    pub lends: bool,
    /// Most connections of all threads.
    pub connections: u64,
    /// Its start, on the clock of its threads.
    pub origin_us: u64,
    /// The date at that time.
    pub start_unix_s: i64,
}

impl Service {
    /// The present time, on the clock of its threads.
    #[inline]
    pub fn now(&self, clock_us: u64) -> Now {
        Now::new(clock_us.saturating_sub(self.origin_us) / 1_000_000, self.start_unix_s)
    }

    /// The environment of a request of a thread.
    #[inline]
    pub fn context(&self, me: &'static Counters, clock_us: u64) -> Context<'static> {
        Context { store: self.store, me, now: self.now(clock_us) }
    }

    /// Counts a connection; returns whether it may stay.
    pub fn admit(&self, me: &Counters) -> bool {
        let all = self.store.all_counters().iter();
        let open = all.fold(0u64, |sum, one| sum.wrapping_add(one.curr_connections.get()));
        let fits = open < self.connections;
        if fits {
            me.curr_connections.add(1);
            me.total_connections.add(1);
        } else {
            me.rejected_connections.add(1);
        }
        fits
    }
}
