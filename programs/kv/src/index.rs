//! From key to item: a chained hash table, read without a lock.
//!
//! Stripes of buckets are guarded by sequence locks: a writer makes the stripe's number odd while
//! it changes an item or a chain; a reader keeps what it has read only if the number was even and
//! is unchanged (Lameter, "Effective synchronization on Linux/NUMA systems", 2005). Item memory is
//! never unmapped, so a reader at worst reads garbage, which it drops.
use crate::item::{Item, NIL};
use crate::words::Words;
use core::hash::{BuildHasher, Hasher};
use foldhash::fast::FixedState;
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// Number of stripes: their numbers fit the first-level cache.
const STRIPES: usize = 4096;
/// A chain is never this long: a longer walk follows garbage.
const CHAIN_MAX: usize = 4096;
/// Attempts without a lock before a reader takes the lock.
const TRIES: usize = 16;

/// The hash table.
pub struct Index {
    words: Words,
    buckets: Box<[AtomicU32]>,
    stripes: Box<[AtomicU32]>,
    hasher: FixedState,
}

/// The right to change one stripe.
pub struct Locked<'a> {
    index: &'a Index,
    stripe: &'a AtomicU32,
    number: u32,
    bucket: &'a AtomicU32,
}

impl Index {
    /// An empty table with 2^power buckets; `seed` must be unknown to clients.
    pub fn new(words: Words, power: u32, seed: u64) -> Index {
        let numbers = |n: usize| (0..n).map(|_| AtomicU32::new(NIL)).collect();
        let buckets: Box<[AtomicU32]> = numbers(1 << power);
        let hasher = FixedState::with_seed(seed);
        Index { words, buckets, stripes: numbers(STRIPES), hasher }
    }

    /// Bits of a bucket's number.
    pub fn power(&self) -> u32 {
        self.buckets.len().ilog2()
    }

    /// Hash of a key.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> u32 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        let hash = hasher.finish();
        (hash ^ hash >> 32) as u32
    }

    #[inline]
    fn bucket(&self, hash: u32) -> &AtomicU32 {
        &self.buckets[hash as usize & (self.buckets.len() - 1)]
    }

    #[inline]
    fn stripe(&self, hash: u32) -> &AtomicU32 {
        &self.stripes[hash as usize & (STRIPES - 1) & (self.buckets.len() - 1)]
    }

    /// What `look` returns for the item with this key, read at one moment. `look` may be called
    /// several times, also with garbage, and only its last result counts.
    #[inline]
    pub fn read<R>(&self, hash: u32, key: &[u8], mut look: impl FnMut(Option<Item>) -> R) -> R {
        let stripe = self.stripe(hash);
        for _ in 0..TRIES {
            let number = stripe.load(Ordering::Acquire);
            if number & 1 == 0 {
                let answer = look(self.walk(hash, key));
                fence(Ordering::Acquire);
                if stripe.load(Ordering::Relaxed) == number {
                    return answer;
                }
            }
            core::hint::spin_loop();
        }
        let locked = self.lock(hash);
        look(locked.find(hash, key))
    }

    #[inline]
    fn walk(&self, hash: u32, key: &[u8]) -> Option<Item> {
        let mut at = self.bucket(hash).load(Ordering::Relaxed);
        for _ in 0..CHAIN_MAX {
            if at == NIL {
                return None;
            }
            let item = Item::new(self.words, at);
            let (next, its_hash) = item.link();
            if its_hash == hash && item.has_key(key) {
                return Some(item);
            }
            at = next;
        }
        None
    }

    /// Locks the stripe of a hash.
    pub fn lock(&self, hash: u32) -> Locked<'_> {
        loop {
            if let Some(locked) = self.try_lock(hash) {
                return locked;
            }
            core::hint::spin_loop();
        }
    }

    /// Locks the stripe of a hash, unless it is locked.
    pub fn try_lock(&self, hash: u32) -> Option<Locked<'_>> {
        let stripe = self.stripe(hash);
        let number = stripe.load(Ordering::Relaxed);
        let free = number & 1 == 0;
        let taken = number.wrapping_add(1);
        let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
        if !free || stripe.compare_exchange(number, taken, success, failure).is_err() {
            return None;
        }
        // No change may be visible before the odd number.
        fence(Ordering::Release);
        Some(Locked { index: self, stripe, number: taken, bucket: self.bucket(hash) })
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.stripe.store(self.number.wrapping_add(1), Ordering::Release);
    }
}

impl Locked<'_> {
    /// The item with this key.
    pub fn find(&self, hash: u32, key: &[u8]) -> Option<Item> {
        self.index.walk(hash, key)
    }

    /// Inserts an item, which can be found from then on.
    pub fn link(&self, item: Item) {
        item.set_next(self.bucket.load(Ordering::Relaxed));
        item.set_bits(true, false);
        self.bucket.store(item.at, Ordering::Relaxed);
    }

    /// Removes an item.
    pub fn unlink(&self, item: Item) {
        let (next, _) = item.link();
        item.set_bits(false, false);
        let mut at = self.bucket.load(Ordering::Relaxed);
        if at == item.at {
            return self.bucket.store(next, Ordering::Relaxed);
        }
        while at != NIL {
            let here = Item::new(self.index.words, at);
            at = here.link().0;
            if at == item.at {
                return here.set_next(next);
            }
        }
    }
}
