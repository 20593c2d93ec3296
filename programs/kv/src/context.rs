//! What requests of both protocols share.
use crate::counters::Counters;
use crate::expiry::Now;
use crate::reply::Reply;
use crate::store::{Store, View};

/// The environment of a request.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The cache.
    pub store: &'static Store,
    /// Counters of this thread.
    pub me: &'a Counters,
    /// The present time.
    pub now: Now,
}

impl Context<'_> {
    /// Appends the item with this key, after what `head` writes about it; returns whether there is
    /// one. Sets its expiration to `expires_s`, if given.
    #[inline]
    pub(crate) fn show(
        &self,
        key: &[u8],
        expires_s: Option<u32>,
        reply: &mut Reply,
        head: impl Fn(&View, &mut Reply),
    ) -> bool {
        let Context { store, me, now } = *self;
        if let Some(expires_s) = expires_s
            && !store.touch(me, key, expires_s, now)
        {
            me.get_misses.add(1);
            return false;
        }
        // The new expiration of an item that has expired meanwhile.
        let now = if expires_s.is_some() { Now { s: 0, ..now } } else { now };
        let start = reply.bytes.len();
        let mut lend = false;
        let found = store.get(me, key, now, |view| {
            reply.bytes.truncate(start);
            head(view, reply);
            lend = reply.lends(view.len);
            if !lend {
                view.copy(&mut reply.bytes);
            }
        });
        if found && !lend {
            return true;
        }
        // Only a head, or garbage.
        reply.bytes.truncate(start);
        if !found {
            return false;
        }
        let Some((view, lease)) = store.lease(key, now) else { return false };
        head(&view, reply);
        reply.lend(&view, lease);
        true
    }
}
