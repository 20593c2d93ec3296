//! Items that have ended: expired ones, and those from before a `flush_all`.
use super::Store;
use crate::counters::Counters;
use crate::expiry::Now;
use crate::item::Item;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// `flush_all`: older items have ended.
#[derive(Default)]
pub(super) struct Flush {
    /// Changes up to this number have ended.
    cas: AtomicU64,
    /// Items stored before this second have ended.
    past_s: AtomicU32,
    /// Items stored before this second end when it comes; 0: none requested.
    pending_s: AtomicU32,
}

/// Why an item has ended.
#[derive(Clone, Copy)]
pub(super) enum Death {
    Expired,
    Flushed,
}

impl Store {
    #[inline]
    pub(super) fn death(&self, item: Item, now: Now) -> Option<Death> {
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

    /// Ends all items, now (`at_s` 0) or at a second; a later call replaces a pending one.
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
