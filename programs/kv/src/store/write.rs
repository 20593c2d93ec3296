//! New values: a draft is written in place, then becomes an item.
use super::{KEY_MAX, Store};
use crate::counters::Counters;
use crate::expiry::Now;
use crate::item::{Fresh, Item};

/// An item under construction. Dropping it frees its memory.
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
    /// Larger than the largest item.
    TooLarge,
    /// No memory, and nothing to evict.
    NoMemory,
}

/// Condition for a draft to become an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Always.
    Set,
    /// If there is none.
    Add,
    /// If there is one.
    Replace,
    /// After the existing value.
    Append,
    /// Before the existing value.
    Prepend,
}

/// Result of a draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is an item, with this number.
    Stored(u64),
    /// The condition did not hold.
    NotStored,
    /// The item has changed since.
    Exists,
    /// There is no item to change.
    NotFound,
    /// No memory for the joined value, or it would be too large.
    Refused(Refusal),
}

impl Store {
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

    /// Turns a draft into an item if the condition holds. `cas` 0: whatever number the present item
    /// has.
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
}
