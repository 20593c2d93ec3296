//! Changes of existing items: counters, expiration times, deletion.
use super::Store;
use crate::counters::Counters;
use crate::expiry::Now;
use crate::item::Fresh;
use crate::number;

/// Longest text of a number that is accepted, with leading zeros and with spaces: memcached refuses
/// values that it keeps in several pieces.
const NUMBER_MAX: usize = 500_000;

/// Result of changing a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Its new value, and number.
    Value(u64, u64),
    /// There is no item.
    NotFound,
    /// The value is not a number.
    NotANumber,
    /// The item has changed since.
    Exists,
    /// No memory for a longer number.
    Refused,
}

/// Result of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// The item was deleted.
    Yes,
    /// There was none.
    NotFound,
    /// The item has changed since.
    Exists,
}

impl Store {
    /// Adds to a number, modulo 2^64, or subtracts from it, down to 0.
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
        // The rest of a longer number becomes spaces.
        text.fill(b' ');
        text.resize(len.max(digits.len()), b' ');
        text[..digits.len()].copy_from_slice(digits);
        if text.len() == len && old.references() == 0 {
            old.write_value(0, &text);
            let cas = self.next_cas();
            old.set_cas(cas);
            return Counted::Value(value, cas);
        }
        let (expires_s, flags) = old.expires_and_flags();
        let value_len = text.len() as u32;
        let fresh = Fresh { key, hash, flags, expires_s, value_len };
        let Ok(item) = self.allocate(me, &fresh, now) else { return Counted::Refused };
        item.write_value(0, &text);
        self.remove(me, &locked, old);
        Counted::Value(value, self.link(me, &locked, item, now))
    }

    /// Sets when an item ends; returns whether there is one.
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

    /// Deletes an item.
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

    /// Deletes the item of a key that could not be set, so that the old value does not stay.
    pub fn forget(&self, me: &Counters, key: &[u8]) {
        let hash = self.index.hash(key);
        let locked = self.index.lock(hash);
        if let Some(item) = locked.find(hash, key) {
            self.remove(me, &locked, item);
        }
    }
}
