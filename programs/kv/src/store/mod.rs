//! The cache: what each command does to the items, in any protocol.
mod age;
mod change;
mod limits;
mod read;
mod room;
mod write;

use crate::counters::Counters;
use crate::expiry::Now;
use crate::index::{Index, Locked};
use crate::item::Item;
use crate::slab::{ClassStats, Slabs};
use crate::words::Words;
use age::Flush;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

pub use change::{Counted, Deleted};
pub use limits::Limits;
pub use read::{Lease, View};
pub use write::{Draft, How, Outcome, Refusal};

/// Longest key.
pub const KEY_MAX: usize = 250;

/// All items, and the counters of the threads. It lives as long as the process: values that are
/// being sent refer to it.
pub struct Store {
    words: Words,
    index: Index,
    slabs: Slabs,
    /// Its limits.
    pub limits: Limits,
    cas: AtomicU64,
    flush: Flush,
    counters: Box<[Counters]>,
    /// When it was made.
    pub started: Instant,
}

impl Store {
    /// An empty cache in this memory, for the life of the process. `power`: logarithm of the number
    /// of hash buckets.
    pub fn new(words: Words, limits: Limits, power: u32, seed: u64) -> &'static Store {
        let counters = (0..limits.threads).map(|_| Counters::default()).collect();
        Box::leak(Box::new(Store {
            words,
            index: Index::new(words, power, seed),
            slabs: Slabs::new(words, limits.page_bytes(), limits.factor),
            limits,
            cas: AtomicU64::new(0),
            flush: Flush::default(),
            counters,
            started: Instant::now(),
        }))
    }

    /// Counters of a thread.
    pub fn counters(&self, thread: usize) -> &Counters {
        &self.counters[thread]
    }

    /// Counters of all threads.
    pub fn all_counters(&self) -> &[Counters] {
        &self.counters
    }

    /// Numbers of each size class.
    pub fn class_stats(&self) -> Vec<ClassStats> {
        self.slabs.stats()
    }

    /// Bytes of pages in use.
    pub fn used_bytes(&self) -> u64 {
        self.slabs.used_bytes()
    }

    /// Bits of a hash bucket's number.
    pub fn hash_power(&self) -> u32 {
        self.index.power()
    }

    /// Hash of a key.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> u32 {
        self.index.hash(key)
    }

    fn next_cas(&self) -> u64 {
        self.cas.fetch_add(1, Relaxed) + 1
    }

    /// The item with this key, unless it has ended; then it is removed.
    fn live(
        &self,
        me: &Counters,
        locked: &Locked<'_>,
        hash: u32,
        key: &[u8],
        now: Now,
    ) -> Option<Item> {
        let item = locked.find(hash, key)?;
        if self.death(item, now).is_some() {
            self.remove(me, locked, item);
            return None;
        }
        Some(item)
    }

    fn unlink(&self, me: &Counters, locked: &Locked<'_>, item: Item) {
        let shape = item.shape();
        locked.unlink(item);
        me.curr_items.sub(1);
        me.bytes.sub(shape.bytes());
        let class = me.classes.of(shape.class());
        class.number.sub(1);
        class.bytes.sub(shape.bytes());
    }

    /// Removes an item; its memory is free once it is no longer sent.
    fn remove(&self, me: &Counters, locked: &Locked<'_>, item: Item) {
        self.unlink(me, locked, item);
        if item.references() == 0 {
            self.slabs.free(item);
        }
    }

    fn link(&self, me: &Counters, locked: &Locked<'_>, item: Item, now: Now) -> u64 {
        let cas = self.next_cas();
        item.set_cas(cas);
        item.set_stored(now.s);
        locked.link(item);
        let shape = item.shape();
        me.curr_items.add(1);
        me.total_items.add(1);
        me.bytes.add(shape.bytes());
        let class = me.classes.of(shape.class());
        class.number.add(1);
        class.bytes.add(shape.bytes());
        cas
    }
}
