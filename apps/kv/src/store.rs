//! The cache: what each command does to the items, whoever speaks which protocol.
use crate::counters::Counters;
use crate::expiry::Now;
use crate::index::{Index, Locked};
use crate::item::{Fresh, Item};
use crate::number;
use crate::slab::{ClassStats, Slabs, Verdict};
use crate::words::Words;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Longest key.
pub const KEY_MAX: usize = 250;
/// A number's longest text that is understood, leading zeroes and spaces included.
const NUMBER_MAX: usize = 64;

/// How large things may be.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Memory for items, bytes.
    pub memory_bytes: u64,
    /// One item with its key and header, bytes.
    pub item_bytes: u64,
    /// Throw old items away for new ones, rather than refuse.
    pub evict: bool,
    /// Growth of chunk sizes.
    pub factor: f64,
    /// Server threads.
    pub threads: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            memory_bytes: 64 << 20,
            item_bytes: 1 << 20,
            evict: true,
            factor: 1.25,
            threads: 1,
        }
    }
}

impl Limits {
    /// Bytes of a page, which holds the largest item.
    pub fn page_bytes(&self) -> u64 {
        self.item_bytes.max(1 << 20).next_multiple_of(1 << 20)
    }

    /// Bytes of item memory to give to [`Store::new`]: whole pages, and the words before them.
    pub fn region_bytes(&self) -> u64 {
        self.memory_bytes.max(self.page_bytes()) / self.page_bytes() * self.page_bytes() + 4096
    }
}

/// All items, and what the threads count. Lives as long as the process: values that are being sent
/// refer to it.
pub struct Store {
    words: Words,
    index: Index,
    slabs: Slabs,
    /// As it was made.
    pub limits: Limits,
    cas: AtomicU64,
    flush: Flush,
    counters: Box<[Counters]>,
    /// When it was made.
    pub started: Instant,
}

/// `flush_all`: what is older is gone.
#[derive(Default)]
struct Flush {
    /// Changes up to this number are.
    cas: AtomicU64,
    /// Items stored before this second are.
    past_s: AtomicU32,
    /// Items stored before this second are, once it has come; 0: none asked for.
    pending_s: AtomicU32,
}

/// An item as [`Store::get`] shows it.
#[derive(Clone, Copy)]
pub struct View {
    words: Words,
    word: usize,
    /// Bytes of the value.
    pub len: usize,
    /// The client's flags.
    pub flags: u32,
    /// Number of its last change.
    pub cas: u64,
}

impl View {
    fn new(words: Words, item: Item) -> View {
        let (len, flags) = (item.shape().value_len() as usize, item.expires_and_flags().1);
        View { words, word: item.value_word(), len, flags, cas: item.cas() }
    }

    /// Appends the value.
    #[inline]
    pub fn copy(&self, to: &mut Vec<u8>) {
        self.words.read(self.word, self.len, to);
    }

    /// Where the value is, for somebody who holds a [`Lease`].
    pub fn lend(&self) -> Option<&'static [std::sync::atomic::AtomicU8]> {
        self.words.lend(self.word, self.len)
    }
}

/// Keeps a value unchanged and its memory in place.
pub struct Lease {
    store: &'static Store,
    at: u32,
}

impl Lease {
    /// The name by which [`Store::release`] ends it.
    pub fn into_token(self) -> u64 {
        core::mem::ManuallyDrop::new(self).at.into()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.store.release(self.at.into());
    }
}

/// An item in the making. Dropped, its memory goes back.
pub struct Draft {
    store: &'static Store,
    item: Item,
}

impl Draft {
    /// Writes part of the value.
    pub fn write(&mut self, offset: usize, data: &[u8]) {
        self.item.write_value(offset, data);
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        self.store.slabs.free(self.item);
    }
}

/// Why there is no draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Larger than an item may be.
    TooLarge,
    /// No memory, and nothing to be thrown away.
    NoMemory,
}

/// When a draft becomes an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// In any case.
    Set,
    /// Unless there is one.
    Add,
    /// If there is one.
    Replace,
    /// Behind the value there is.
    Append,
    /// Before the value there is.
    Prepend,
}

/// What became of a draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is an item, with this number.
    Stored(u64),
    /// The condition did not hold.
    NotStored,
    /// The item was changed since.
    Exists,
    /// There is none to be changed.
    NotFound,
    /// No memory for the joined value, or it would be too large.
    Refused(Refusal),
}

/// What became of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Its new value, and number.
    Value(u64, u64),
    /// There is none.
    NotFound,
    /// The value is no number.
    NotANumber,
    /// The item was changed since.
    Exists,
    /// No memory for a longer number.
    Refused,
}

/// What became of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// It is gone.
    Yes,
    /// There was none.
    NotFound,
    /// The item was changed since.
    Exists,
}

#[derive(Clone, Copy)]
enum Death {
    Expired,
    Flushed,
}

enum Seen {
    Missing,
    Dead(Death),
    Alive { at: u32, class: usize, used: bool },
}

impl Store {
    /// An empty cache in this memory, for good. `power`: of the number of hash buckets.
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

    #[inline]
    fn death(&self, item: Item, now: Now) -> Option<Death> {
        let (expires_s, _) = item.expires_and_flags();
        if expires_s != 0 && expires_s <= now.s {
            return Some(Death::Expired);
        }
        let (stored_s, pending_s) = (item.stored_s(), self.flush.pending_s.load(Relaxed));
        let flushed = item.cas() <= self.flush.cas.load(Relaxed)
            || stored_s < self.flush.past_s.load(Relaxed)
            || (pending_s <= now.s && stored_s < pending_s);
        flushed.then_some(Death::Flushed)
    }

    /// Shows the item with this key and answers whether there is one. `show` may be called several
    /// times; only the last counts.
    #[inline]
    pub fn get(&self, me: &Counters, key: &[u8], now: Now, mut show: impl FnMut(&View)) -> bool {
        let hash = self.index.hash(key);
        let seen = self.index.read(hash, key, |item| {
            let Some(item) = item else { return Seen::Missing };
            if let Some(death) = self.death(item, now) {
                return Seen::Dead(death);
            }
            let shape = item.shape();
            // A longer one is garbage, and will be seen again.
            if u64::from(shape.value_len()) <= self.limits.item_bytes {
                show(&View::new(self.words, item));
            }
            Seen::Alive { at: item.at, class: shape.class(), used: shape.is_used() }
        });
        match seen {
            Seen::Alive { at, class, used } => {
                if !used {
                    self.mark(hash, key, at);
                }
                me.classes.of(class).get_hits.add(1);
                true
            }
            Seen::Missing => {
                me.get_misses.add(1);
                false
            }
            Seen::Dead(death) => {
                me.get_misses.add(1);
                self.bury(me, hash, key, now, death);
                false
            }
        }
    }

    /// Shows the item with this key, whatever its age, and counts nothing.
    pub fn peek(&self, key: &[u8], mut show: impl FnMut(&View)) {
        self.index.read(self.index.hash(key), key, |item| {
            if let Some(item) = item {
                show(&View::new(self.words, item));
            }
        });
    }

    #[cold]
    fn mark(&self, hash: u32, key: &[u8], at: u32) {
        let locked = self.index.lock(hash);
        if let Some(item) = locked.find(hash, key).filter(|item| item.at == at) {
            item.set_found();
        }
    }

    #[cold]
    fn bury(&self, me: &Counters, hash: u32, key: &[u8], now: Now, death: Death) {
        match death {
            Death::Expired => me.get_expired.add(1),
            Death::Flushed => me.get_flushed.add(1),
        }
        let locked = self.index.lock(hash);
        self.live(me, &locked, hash, key, now);
    }

    /// The item with this key unless its time is over, which ends it.
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

    /// Ends an item; its memory is free once nobody sends it any more.
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

    /// Like [`Store::get`], and the value stays where it is until the lease ends.
    pub fn lease(&'static self, key: &[u8], now: Now) -> Option<(View, Lease)> {
        let hash = self.index.hash(key);
        let locked = self.index.lock(hash);
        let item = locked.find(hash, key)?;
        if self.death(item, now).is_some() {
            return None;
        }
        item.set_references(item.references() + 1);
        item.set_found();
        Some((View::new(self.words, item), Lease { store: self, at: item.at }))
    }

    /// Ends a lease by its name.
    pub fn release(&self, token: u64) {
        let item = Item::new(self.words, token as u32);
        // The hash of an item that is referred to does not change.
        let locked = self.index.lock(item.link().1);
        let references = item.references() - 1;
        item.set_references(references);
        if references == 0 && !item.shape().is_linked() {
            self.slabs.free(item);
        }
        drop(locked);
    }

    /// Memory for an item; the caller writes the value, then [`Store::commit`]s it.
    pub fn draft(
        &'static self,
        me: &Counters,
        fresh: &Fresh<'_>,
        now: Now,
    ) -> Result<Draft, Refusal> {
        let item = self.allocate(me, fresh, now)?;
        Ok(Draft { store: self, item })
    }

    fn allocate(&self, me: &Counters, fresh: &Fresh<'_>, now: Now) -> Result<Item, Refusal> {
        let bytes = Item::bytes(fresh.key.len(), fresh.value_len.into());
        let class = self.slabs.class_of(bytes).filter(|_| bytes <= self.limits.item_bytes);
        let Some(class) = class else {
            me.store_too_large.add(1);
            return Err(Refusal::TooLarge);
        };
        let item = self.slabs.allocate(class, |item| self.judge(me, item, now));
        let Some(item) = item else {
            me.store_no_memory.add(1);
            me.classes.of(class.into()).outofmemory.add(1);
            return Err(Refusal::NoMemory);
        };
        // A reader that is still at the item that was here must not see the new one's words
        // without seeing as well that it was unlinked.
        std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
        item.begin(fresh, class);
        Ok(item)
    }

    /// The clock's hand is at an item: whether it goes. The allocator is locked, and stripes come
    /// before it: no waiting here.
    fn judge(&self, me: &Counters, item: Item, now: Now) -> Verdict {
        let (_, hash) = item.link();
        let Some(locked) = self.index.try_lock(hash) else { return Verdict::Busy };
        let shape = item.shape();
        if !shape.is_linked() || item.link().1 != hash || item.references() > 0 {
            return Verdict::Busy;
        }
        let class = me.classes.of(shape.class());
        if self.death(item, now).is_some() {
            me.reclaimed.add(1);
            class.reclaimed.add(1);
            if !shape.is_fetched() {
                me.expired_unfetched.add(1);
            }
        } else if !self.limits.evict {
            return Verdict::Busy;
        } else if shape.is_used() {
            item.set_bits(true, false);
            return Verdict::Spared;
        } else {
            me.evictions.add(1);
            class.evicted.add(1);
            if item.expires_and_flags().0 != 0 {
                class.evicted_nonzero.add(1);
            }
            if !shape.is_fetched() {
                me.evicted_unfetched.add(1);
            }
        }
        self.unlink(me, &locked, item);
        Verdict::Freed
    }

    /// Makes a draft an item if the condition holds. `cas` 0: whatever number the present one has.
    pub fn commit(&self, me: &Counters, draft: Draft, how: How, cas: u64, now: Now) -> Outcome {
        let mut buffer = [0; KEY_MAX + 6];
        let item = draft.item;
        let key = item.key(&mut buffer);
        let (_, hash) = item.link();
        let locked = self.index.lock(hash);
        let old = self.live(me, &locked, hash, key, now);
        let class = me.classes.of(item.shape().class());
        class.cmd_set.add(1);
        let joins = matches!(how, How::Append | How::Prepend);
        match old {
            None if joins => return Outcome::NotStored,
            None if cas != 0 => {
                me.cas_misses.add(1);
                return Outcome::NotFound;
            }
            None if how == How::Replace => return Outcome::NotStored,
            Some(old) if cas != 0 && old.cas() != cas => {
                class.cas_badval.add(1);
                return Outcome::Exists;
            }
            Some(_) if how == How::Add && cas == 0 => return Outcome::NotStored,
            Some(_) if cas != 0 => class.cas_hits.add(1),
            _ => {}
        }
        let item = match old {
            Some(old) if joins => match self.join(me, old, item, key, how, now) {
                Ok(joined) => joined,
                Err(refusal) => return Outcome::Refused(refusal),
            },
            _ => {
                core::mem::forget(draft);
                item
            }
        };
        if let Some(old) = old {
            self.remove(me, &locked, old);
        }
        Outcome::Stored(self.link(me, &locked, item, now))
    }

    fn join(
        &self,
        me: &Counters,
        old: Item,
        piece: Item,
        key: &[u8],
        how: How,
        now: Now,
    ) -> Result<Item, Refusal> {
        let (expires_s, flags) = old.expires_and_flags();
        let (first, second) = if how == How::Append { (old, piece) } else { (piece, old) };
        let lens = [first, second].map(|item| item.shape().value_len());
        let value_len = lens[0].checked_add(lens[1]).ok_or(Refusal::TooLarge)?;
        let hash = old.link().1;
        let item = self.allocate(me, &Fresh { key, hash, flags, expires_s, value_len }, now)?;
        let to = item.value_word() * 8;
        self.words.copy(first.value_word(), lens[0] as usize, to);
        self.words.copy(second.value_word(), lens[1] as usize, to + lens[0] as usize);
        Ok(item)
    }

    /// Adds to a number, modulo 2^64, or takes from it, down to 0.
    pub fn count(
        &self,
        me: &Counters,
        key: &[u8],
        delta: u64,
        up: bool,
        cas: u64,
        now: Now,
    ) -> Counted {
        let hash = self.index.hash(key);
        let locked = self.index.lock(hash);
        let Some(old) = self.live(me, &locked, hash, key, now) else {
            if up {
                me.incr_misses.add(1)
            } else {
                me.decr_misses.add(1)
            }
            return Counted::NotFound;
        };
        let len = old.shape().value_len() as usize;
        if len == 0 {
            return Counted::NotANumber;
        }
        if cas != 0 && old.cas() != cas {
            return Counted::Exists;
        }
        let mut text = Vec::new();
        if len <= NUMBER_MAX {
            self.words.read(old.value_word(), len, &mut text);
        }
        let Some(value) = number::unsigned(&text) else { return Counted::NotANumber };
        let value = if up { value.wrapping_add(delta) } else { value.saturating_sub(delta) };
        let class = me.classes.of(old.shape().class());
        if up {
            class.incr_hits.add(1)
        } else {
            class.decr_hits.add(1)
        }
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(value).as_bytes();
        if digits.len() <= len && old.references() == 0 {
            // In place; what is left of a longer number is spaces.
            text.fill(b' ');
            text[..digits.len()].copy_from_slice(digits);
            old.write_value(0, &text);
            let cas = self.next_cas();
            old.set_cas(cas);
            return Counted::Value(value, cas);
        }
        let (expires_s, flags) = old.expires_and_flags();
        let value_len = digits.len() as u32;
        let fresh = Fresh { key, hash, flags, expires_s, value_len };
        let Ok(item) = self.allocate(me, &fresh, now) else { return Counted::Refused };
        item.write_value(0, digits);
        self.remove(me, &locked, old);
        Counted::Value(value, self.link(me, &locked, item, now))
    }

    /// Changes when an item ends; answers whether there is one.
    pub fn touch(&self, me: &Counters, key: &[u8], expires_s: u32, now: Now) -> bool {
        let hash = self.index.hash(key);
        let locked = self.index.lock(hash);
        me.cmd_touch.add(1);
        let Some(item) = self.live(me, &locked, hash, key, now) else {
            me.touch_misses.add(1);
            return false;
        };
        item.set_expires(expires_s);
        item.set_found();
        me.classes.of(item.shape().class()).touch_hits.add(1);
        true
    }

    /// Ends an item.
    pub fn delete(&self, me: &Counters, key: &[u8], cas: u64, now: Now) -> Deleted {
        let hash = self.index.hash(key);
        let locked = self.index.lock(hash);
        let Some(item) = self.live(me, &locked, hash, key, now) else {
            me.delete_misses.add(1);
            return Deleted::NotFound;
        };
        if cas != 0 && item.cas() != cas {
            return Deleted::Exists;
        }
        me.classes.of(item.shape().class()).delete_hits.add(1);
        self.remove(me, &locked, item);
        Deleted::Yes
    }

    /// Ends the item under a key that could not be set, so that the old value does not stay.
    pub fn forget(&self, me: &Counters, key: &[u8]) {
        let hash = self.index.hash(key);
        let locked = self.index.lock(hash);
        if let Some(item) = locked.find(hash, key) {
            self.remove(me, &locked, item);
        }
    }

    /// Ends all items, now (`at_s` 0) or at a second; a later call replaces an earlier one whose
    /// time has not come.
    pub fn flush(&self, me: &Counters, at_s: u32, now: Now) {
        me.cmd_flush.add(1);
        let pending_s = self.flush.pending_s.load(Relaxed);
        if pending_s != 0 && pending_s <= now.s {
            self.flush.past_s.store(pending_s, Relaxed);
        }
        let immediate = at_s <= now.s;
        self.flush.pending_s.store(if immediate { 0 } else { at_s }, Relaxed);
        if immediate {
            self.flush.cas.store(self.next_cas(), Relaxed);
        }
    }
}
