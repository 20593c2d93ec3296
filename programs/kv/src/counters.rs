//! Counters of a server thread: written by one thread, read by any.
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Most size classes.
pub const CLASSES: usize = 256;

/// A number that one thread changes. It may go below zero and back: only sums are meaningful.
#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Subtracts.
    #[inline]
    pub fn sub(&self, n: u64) {
        self.add(n.wrapping_neg());
    }

    /// The number.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    fn reset(&self) {
        self.0.store(0, Relaxed);
    }
}

macro_rules! counters {
    ($name:ident: $($field:ident)*; kept: $($kept:ident)*) => {
        /// Counters of one thread.
        #[derive(Default)]
        #[allow(missing_docs)] // They are named as memcached names them.
        #[repr(align(64))]
        pub struct $name {
            $(pub $field: Counter,)*
            $(pub $kept: Counter,)*
            /// By size class.
            pub classes: Classes,
        }

        impl $name {
            /// `stats reset`: clears all but the counters of present state.
            pub fn reset(&self) {
                $(self.$field.reset();)*
                self.classes.0.iter().for_each(ClassCounters::reset);
            }
        }
    };
}

counters! { Counters:
    cmd_flush cmd_touch get_misses get_expired get_flushed delete_misses incr_misses decr_misses
    cas_misses touch_misses store_too_large store_no_memory bytes_read bytes_written
    total_connections rejected_connections total_items evictions reclaimed
    expired_unfetched evicted_unfetched;
    kept: curr_connections curr_items bytes
}

macro_rules! class_counters {
    ($($field:ident)*; kept: $($kept:ident)*) => {
        /// Counters of one size class.
        #[derive(Default)]
        #[allow(missing_docs)]
        pub struct ClassCounters { $(pub $field: Counter,)* $(pub $kept: Counter,)* }

        impl ClassCounters {
            fn reset(&self) { $(self.$field.reset();)* }

            /// Adds another thread's counters to copies of these.
            pub fn merge(&self, other: &ClassCounters) {
                $(self.$field.add(other.$field.get());)*
                $(self.$kept.add(other.$kept.get());)*
            }
        }
    };
}

class_counters! {
    get_hits cmd_set delete_hits incr_hits decr_hits cas_hits cas_badval touch_hits
    evicted evicted_nonzero reclaimed outofmemory;
    kept: number bytes
}

/// [`ClassCounters`] of all classes.
pub struct Classes(pub Box<[ClassCounters]>);

impl Default for Classes {
    fn default() -> Classes {
        Classes((0..CLASSES).map(|_| ClassCounters::default()).collect())
    }
}

impl Classes {
    /// Counters of one class.
    #[inline]
    pub fn of(&self, class: usize) -> &ClassCounters {
        &self.0[class & (CLASSES - 1)]
    }
}
