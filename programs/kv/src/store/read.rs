//! Reading and lending items: `get` reads without a lock, `lease` keeps a value in place.
use super::Store;
use super::age::Death;
use crate::counters::Counters;
use crate::expiry::Now;
use crate::item::Item;
use crate::words::{Span, Words};

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

    /// Address of the value, for a holder of a [`Lease`].
    pub fn lend(&self) -> Option<Span> {
        self.words.lend(self.word, self.len)
    }
}

/// Keeps a value unchanged, and its memory in place.
pub struct Lease {
    store: &'static Store,
    at: u32,
}

impl Lease {
    /// The number by which [`Store::release`] ends it.
    pub fn into_token(self) -> u64 {
        core::mem::ManuallyDrop::new(self).at.into()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.store.release(self.at.into());
    }
}

enum Seen {
    Missing,
    Dead(Death),
    Alive { at: u32, class: usize, used: bool },
}

impl Store {
    /// Shows the item with this key; returns whether there is one. `show` may be called several
    /// times; only the last call counts.
    #[inline]
    pub fn get(&self, me: &Counters, key: &[u8], now: Now, mut show: impl FnMut(&View)) -> bool {
        let hash = self.index.hash(key);
        let seen = self.index.read(hash, key, |item| {
            let Some(item) = item else { return Seen::Missing };
            if let Some(death) = self.death(item, now) {
                return Seen::Dead(death);
            }
            let shape = item.shape();
            // A longer one is garbage, and will be read again.
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

    /// Shows the item with this key, whatever its age, without counting.
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

    /// Like [`Store::get`], but the value stays in place until the lease ends.
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

    /// Ends a lease by its number.
    pub fn release(&self, token: u64) {
        let item = Item::new(self.words, token as u32);
        // The hash of a referenced item does not change.
        let locked = self.index.lock(item.link().1);
        let references = item.references() - 1;
        item.set_references(references);
        if references == 0 && !item.shape().is_linked() {
            self.slabs.free(item);
        }
        drop(locked);
    }
}
