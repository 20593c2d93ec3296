//! Small caches, and what tests do with them.
use ix_kv::counters::Counters;
use ix_kv::expiry::Now;
use ix_kv::item::Fresh;
use ix_kv::store::{How, Limits, Outcome, Store};
use ix_kv::words::Words;

pub const START_UNIX_S: i64 = 1_800_000_000;

pub fn store(limits: Limits, power: u32) -> &'static Store {
    let words = Words::private(limits.region_bytes() as usize).unwrap();
    Store::new(words, limits, power, 42)
}

pub fn small() -> Limits {
    Limits { memory_bytes: 8 << 20, ..Limits::default() }
}

pub fn put(
    store: &'static Store,
    key: &[u8],
    value: &[u8],
    (flags, expires_s): (u32, u32),
    how: How,
    cas: u64,
    now: Now,
) -> Outcome {
    let me = store.counters(0);
    let (hash, value_len) = (store.hash(key), value.len() as u32);
    let fresh = Fresh { key, hash, flags, expires_s, value_len };
    match store.draft(me, &fresh, now) {
        Ok(mut draft) => {
            let middle = value.len() / 3;
            draft.write(0, &value[..middle]);
            draft.write(middle, &value[middle..]);
            store.commit(me, draft, how, cas, now)
        }
        Err(refusal) => Outcome::Refused(refusal),
    }
}

pub fn get(store: &Store, me: &Counters, key: &[u8], now: Now) -> Option<(Vec<u8>, u32, u64)> {
    let mut seen = (Vec::new(), 0, 0);
    let found = store.get(me, key, now, |view| {
        seen.0.clear();
        view.copy(&mut seen.0);
        (seen.1, seen.2) = (view.flags, view.cas);
    });
    found.then_some(seen)
}
