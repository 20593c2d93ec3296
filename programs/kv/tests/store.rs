//! The cache under pressure: eviction, leases, several threads.

use crate::support::{START_UNIX_S, get, put, small, store};
use ix_kv::expiry::Now;
use ix_kv::item::Fresh;
use ix_kv::store::{Counted, Deleted, How, Limits, Outcome, Refusal};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

#[test]
fn throws_the_unused_away_and_keeps_the_used() {
    let store = store(small(), 16);
    let me = store.counters(0);
    let now = Now::new(0, START_UNIX_S);
    let key = |number: u32| format!("key{number}").into_bytes();
    let value = vec![b'v'; 900];
    for number in 0..100_000 {
        let outcome = put(store, &key(number), &value, (0, 0), How::Set, 0, now);
        assert!(matches!(outcome, Outcome::Stored(_)), "{number}: {outcome:?}");
        // The first hundred are asked for all the time.
        assert!(get(store, me, &key(number % 100), now).is_some(), "key {}", number % 100);
    }
    assert!(me.evictions.get() > 80_000);
    assert_eq!(me.evictions.get() + me.curr_items.get(), 100_000);
    assert!(me.bytes.get() <= 8 << 20);
    // Items of another size find memory, although one size had all of it.
    let large = vec![b'l'; 500_000];
    for number in 0..20 {
        let outcome = put(store, &key(number), &large, (0, 0), How::Set, 0, now);
        assert!(matches!(outcome, Outcome::Stored(_)), "{outcome:?}");
        assert_eq!(get(store, me, &key(number), now).map(|seen| seen.0), Some(large.clone()));
    }
}

#[test]
fn refuses_rather_than_throw_away() {
    let store = store(Limits { evict: false, ..small() }, 10);
    let me = store.counters(0);
    let mut now = Now::new(0, START_UNIX_S);
    let key = |number: u32| format!("key{number}").into_bytes();
    let value = vec![b'v'; 100_000];
    let fill = |from: u32, expires_s, now| {
        let put = |&number: &u32| {
            let outcome = put(store, &key(number), &value, (0, expires_s), How::Set, 0, now);
            outcome != Outcome::Refused(Refusal::NoMemory)
        };
        (from..).take_while(put).count() as u32
    };
    let fit = fill(0, 0, now);
    assert!((60..84).contains(&fit), "{fit} items of 100 kB in 8 MB");
    assert!((0..fit).all(|number| get(store, me, &key(number), now).is_some()));
    assert_eq!((me.evictions.get(), me.store_no_memory.get()), (0, 1));
    // What has expired makes room.
    (0..fit).for_each(|number| assert!(store.touch(me, &key(number), now.expires(5), now)));
    now.s += 5;
    assert_eq!(fill(1000, 0, now), fit);
    assert_eq!(
        put(store, b"x", &[0; 1 << 20], (0, 0), How::Set, 0, now),
        Outcome::Refused(Refusal::TooLarge)
    );
}

#[test]
fn a_lent_value_outlives_its_item() {
    let store = store(Limits { memory_bytes: 4 << 20, ..Limits::default() }, 10);
    let me = store.counters(0);
    let now = Now::new(0, START_UNIX_S);
    let value: Vec<u8> = (0..300_000u32).map(|i| (i * 7) as u8).collect();
    put(store, b"a", &value, (0, 0), How::Set, 0, now);
    let (view, lease) = store.lease(b"a", now).unwrap();
    assert_eq!(store.delete(me, b"a", 0, now), Deleted::Yes);
    let mut stored = 0;
    for number in 0..50u32 {
        let key = number.to_string();
        let outcome = put(store, key.as_bytes(), &[1; 300_000], (0, 0), How::Set, 0, now);
        stored += u32::from(matches!(outcome, Outcome::Stored(_)));
    }
    assert!(stored > 0);
    let mut seen = Vec::new();
    view.copy(&mut seen);
    assert!(seen == value, "lent memory changed");
    // A number that is being sent is not changed in place.
    put(store, b"n", b"10", (0, 0), How::Set, 0, now);
    let (view, second) = store.lease(b"n", now).unwrap();
    assert!(matches!(store.count(me, b"n", 1, true, 0, now), Counted::Value(11, _)));
    seen.clear();
    view.copy(&mut seen);
    assert_eq!(seen, b"10");
    drop((lease, second));
    store.flush(me, 0, now);
    (0..50u32).for_each(|number| drop(get(store, me, number.to_string().as_bytes(), now)));
    get(store, me, b"n", now);
    let used: u64 = store.class_stats().iter().map(|class| class.used).sum();
    assert_eq!((used, me.curr_items.get()), (0, 0));
}

/// Readers without a lock beside writers: what they see was written by one of them as a whole.
#[test]
fn readers_see_whole_values() {
    let limits = Limits { memory_bytes: 1 << 20, threads: 3, ..Limits::default() };
    let store = store(limits, 3);
    let now = Now::new(0, START_UNIX_S);
    let key = |number: u32| format!("key{}", number % 40).into_bytes();
    let writing = &AtomicU32::new(2);
    std::thread::scope(|scope| {
        for thread in 0..2u32 {
            scope.spawn(move || {
                for round in 0..60_000u32 {
                    let name = round.wrapping_mul(2_654_435_761) >> 7;
                    // Different lengths fight for the same memory.
                    let value = [(round + thread) as u8].repeat(20 + (round % 7 * 3000) as usize);
                    let me = store.counters(thread as usize);
                    let key = key(name);
                    let (hash, value_len) = (store.hash(&key), value.len() as u32);
                    let fresh =
                        Fresh { key: &key, hash, flags: value_len, expires_s: 0, value_len };
                    if let Ok(mut draft) = store.draft(me, &fresh, now) {
                        draft.write(0, &value);
                        store.commit(me, draft, How::Set, 0, now);
                    }
                }
                writing.fetch_sub(1, Relaxed);
            });
        }
        scope.spawn(move || {
            let me = store.counters(2);
            let mut hits = 0;
            let mut round = 0;
            while writing.load(Relaxed) > 0 || hits < 1000 {
                round += 1;
                if let Some((value, flags, _)) = get(store, me, &key(round), now) {
                    assert_eq!(value.len() as u32, flags);
                    assert!(value.iter().all(|byte| *byte == value[0]), "a torn value");
                    hits += 1;
                }
            }
        });
    });
}
