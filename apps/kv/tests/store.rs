//! The cache against a naive model, in virtual time.
use ix_kv::counters::Counters;
use ix_kv::expiry::Now;
use ix_kv::item::Fresh;
use ix_kv::store::{Counted, Deleted, How, Limits, Outcome, Refusal, Store};
use ix_kv::words::Words;
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

const START_UNIX_S: i64 = 1_800_000_000;

fn store(limits: Limits, power: u32) -> &'static Store {
    let words = Words::private(limits.region_bytes() as usize).unwrap();
    Store::new(words, limits, power, 42)
}

fn small() -> Limits {
    Limits { memory_bytes: 8 << 20, ..Limits::default() }
}

#[derive(Clone, Debug, PartialEq)]
struct Entry {
    value: Vec<u8>,
    flags: u32,
    expires_s: u32,
    cas: u64,
    stored_s: u32,
}

#[derive(Default)]
struct Model {
    entries: HashMap<Vec<u8>, Entry>,
    /// Everything stored before this second is gone once it has come.
    flush_s: Option<u32>,
}

impl Model {
    /// Takes away what is over.
    fn pass(&mut self, now: Now) {
        let flush_s = self.flush_s.filter(|flush_s| *flush_s <= now.s);
        self.entries.retain(|_, entry| {
            let expired = entry.expires_s != 0 && entry.expires_s <= now.s;
            !expired && flush_s.is_none_or(|flush_s| entry.stored_s >= flush_s)
        });
        if flush_s.is_some() {
            self.flush_s = None;
        }
    }

    fn put(&mut self, key: &[u8], how: How, mut new: Entry, cas: u64) -> Option<&'static str> {
        let old = self.entries.get(key);
        match (how, old) {
            (How::Append | How::Prepend, None) => return Some("not stored"),
            (_, None) if cas != 0 => return Some("not found"),
            (How::Replace, None) => return Some("not stored"),
            (_, Some(old)) if cas != 0 && old.cas != cas => return Some("exists"),
            (How::Add, Some(_)) if cas == 0 => return Some("not stored"),
            (How::Append, Some(old)) => {
                new.value = [&old.value[..], &new.value].concat();
                (new.flags, new.expires_s) = (old.flags, old.expires_s);
            }
            (How::Prepend, Some(old)) => {
                new.value.extend(&old.value);
                (new.flags, new.expires_s) = (old.flags, old.expires_s);
            }
            _ => {}
        }
        self.entries.insert(key.to_vec(), new);
        None
    }
}

fn put(
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

fn get(store: &Store, me: &Counters, key: &[u8], now: Now) -> Option<(Vec<u8>, u32, u64)> {
    let mut seen = (Vec::new(), 0, 0);
    let found = store.get(me, key, now, |view| {
        seen.0.clear();
        view.copy(&mut seen.0);
        (seen.1, seen.2) = (view.flags, view.cas);
    });
    found.then_some(seen)
}

#[derive(Clone, Debug)]
enum Step {
    Put(How, Vec<u8>, u32, i64),
    PutIf(bool, Vec<u8>),
    Count(u64, bool),
    Touch(i64),
    Delete(bool),
    Flush(u32),
    Wait(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let how = prop_oneof![
        3 => Just(How::Set),
        1 => Just(How::Add),
        1 => Just(How::Replace),
        1 => Just(How::Append),
        1 => Just(How::Prepend),
    ];
    let value = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..300),
        (0..u64::MAX).prop_map(|number| number.to_string().into_bytes()),
        (0..200u64).prop_map(|number| number.to_string().into_bytes()),
    ];
    let time = prop_oneof![
        4 => Just(0i64),
        3 => 1..20i64,
        1 => Just(-1i64),
        1 => START_UNIX_S - 5..START_UNIX_S + 60,
    ];
    prop_oneof![
        8 => (how, value.clone(), any::<u32>(), time.clone())
            .prop_map(|(how, value, flags, time)| Step::Put(how, value, flags, time)),
        2 => (any::<bool>(), value).prop_map(|(right, value)| Step::PutIf(right, value)),
        3 => (prop_oneof![0..100u64, any::<u64>()], any::<bool>())
            .prop_map(|(delta, up)| Step::Count(delta, up)),
        2 => time.prop_map(Step::Touch),
        2 => any::<bool>().prop_map(Step::Delete),
        1 => (0..8u32).prop_map(Step::Flush),
        3 => (1..6u32).prop_map(Step::Wait),
    ]
}

fn number(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?.trim();
    let fine = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if fine { text.parse().ok() } else { None }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn behaves_like_the_model(
        power in 0..6u32,
        steps in prop::collection::vec((0..12usize, step()), 1..400),
    ) {
        // So much that no size class takes memory from another.
        let store = store(Limits { memory_bytes: 32 << 20, ..small() }, power);
        let me = store.counters(0);
        let mut model = Model::default();
        let mut elapsed_s = 0;
        for (name, step) in steps {
            let now = Now::new(elapsed_s, START_UNIX_S);
            let key = format!("{name}{}", "k".repeat(name * 21)).into_bytes();
            model.pass(now);
            let stored = |outcome| match outcome {
                Outcome::Stored(_) => None,
                Outcome::NotStored => Some("not stored"),
                Outcome::Exists => Some("exists"),
                Outcome::NotFound => Some("not found"),
                Outcome::Refused(_) => Some("refused"),
            };
            match step {
                Step::Put(how, value, flags, time) => {
                    let expires_s = now.expires(time);
                    let outcome = put(store, &key, &value, (flags, expires_s), how, 0, now);
                    let cas = if let Outcome::Stored(cas) = outcome { cas } else { 0 };
                    let entry = Entry { value, flags, expires_s, cas, stored_s: now.s };
                    prop_assert_eq!(stored(outcome), model.put(&key, how, entry, 0));
                }
                Step::PutIf(right, value) => {
                    let known = model.entries.get(&key).map_or(77, |entry| entry.cas);
                    let cas = if right { known } else { known + 1000 };
                    let outcome = put(store, &key, &value, (1, 0), How::Set, cas, now);
                    let new = if let Outcome::Stored(cas) = outcome { cas } else { 0 };
                    let entry = Entry { value, flags: 1, expires_s: 0, cas: new, stored_s: now.s };
                    prop_assert_eq!(stored(outcome), model.put(&key, How::Set, entry, cas));
                }
                Step::Count(delta, up) => {
                    let counted = store.count(me, &key, delta, up, 0, now);
                    let Some(entry) = model.entries.get_mut(&key) else {
                        prop_assert_eq!(counted, Counted::NotFound);
                        continue;
                    };
                    let Some(old) = number(&entry.value) else {
                        prop_assert!(matches!(counted, Counted::NotANumber | Counted::Value(..)));
                        if let Counted::Value(..) = counted {
                            // White space before or after, which the naive reader does not take.
                            model.entries.remove(&key);
                            store.delete(me, &key, 0, now);
                        }
                        continue;
                    };
                    let value = if up { old.wrapping_add(delta) } else { old.saturating_sub(delta) };
                    let Counted::Value(seen, cas) = counted else {
                        return Err(TestCaseError::fail(format!("{counted:?}")));
                    };
                    prop_assert_eq!(seen, value);
                    let grown = value.to_string().len() > entry.value.len();
                    let width = entry.value.len();
                    entry.value = format!("{value:<width$}").into_bytes();
                    entry.cas = cas;
                    if grown {
                        entry.stored_s = now.s;
                    }
                }
                Step::Touch(time) => {
                    let expires_s = now.expires(time);
                    let found = store.touch(me, &key, expires_s, now);
                    let entry = model.entries.get_mut(&key);
                    prop_assert_eq!(found, entry.is_some());
                    if let Some(entry) = entry {
                        entry.expires_s = expires_s;
                    }
                }
                Step::Delete(right) => {
                    let cas = model.entries.get(&key).map_or(0, |entry| entry.cas);
                    let cas = if right || cas == 0 { cas } else { cas + 1 };
                    let expected = match model.entries.get(&key) {
                        None => Deleted::NotFound,
                        Some(entry) if cas != 0 && cas != entry.cas => Deleted::Exists,
                        Some(_) => Deleted::Yes,
                    };
                    if expected == Deleted::Yes {
                        model.entries.remove(&key);
                    }
                    prop_assert_eq!(store.delete(me, &key, cas, now), expected);
                }
                Step::Flush(0) => {
                    store.flush(me, 0, now);
                    model.entries.clear();
                    model.flush_s = None;
                }
                Step::Flush(delay_s) => {
                    let at_s = now.expires(delay_s.into());
                    store.flush(me, at_s, now);
                    model.flush_s = Some(at_s);
                }
                Step::Wait(s) => elapsed_s += u64::from(s),
            }
            let now = Now::new(elapsed_s, START_UNIX_S);
            model.pass(now);
            let seen = get(store, me, &key, now);
            let expected = model.entries.get(&key);
            let expected = expected.map(|entry| (entry.value.clone(), entry.flags, entry.cas));
            prop_assert_eq!(seen, expected);
        }
        // What is dead but not buried still counts; all else must agree.
        let now = Now::new(elapsed_s, START_UNIX_S);
        for name in 0..12 {
            let key = format!("{name}{}", "k".repeat(name * 21)).into_bytes();
            get(store, me, &key, now);
        }
        prop_assert_eq!(me.curr_items.get(), model.entries.len() as u64);
        let used: u64 = store.class_stats().iter().map(|class| class.used).sum();
        prop_assert_eq!(used, model.entries.len() as u64, "memory of dead items");
    }
}

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
