//! Memory for new items, and eviction of old ones.
use super::{Refusal, Store};
use crate::counters::Counters;
use crate::expiry::Now;
use crate::item::{Fresh, Item};
use crate::slab::Verdict;
use std::sync::atomic::{Ordering::Release, fence};

impl Store {
    pub(super) fn allocate(
        &self,
        me: &Counters,
        fresh: &Fresh<'_>,
        now: Now,
    ) -> Result<Item, Refusal> {
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
        // A reader that still reads the old item must not see the new one's words without also
        // seeing that the old one was unlinked.
        fence(Release);
        item.begin(fresh, class);
        Ok(item)
    }

    /// The clock's hand is at an item: decides whether to evict it. The allocator is locked, and
    /// stripes are locked before it: so this must not wait.
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
}
