//! The cache against a naive model, in virtual time.

use crate::support::{START_UNIX_S, get, put, small, store};
use ix_kv::counters::Counters;
use ix_kv::expiry::Now;
use ix_kv::store::{Counted, Deleted, How, Limits, Outcome, Store};
use proptest::prelude::*;
use std::collections::HashMap;

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

/// The cache and the model, which must always agree.
struct Both {
    store: &'static Store,
    me: &'static Counters,
    model: Model,
    elapsed_s: u64,
}

impl Both {
    fn now(&self) -> Now {
        Now::new(self.elapsed_s, START_UNIX_S)
    }

    fn take(&mut self, key: &[u8], step: Step) -> Result<(), TestCaseError> {
        let now = self.now();
        self.model.pass(now);
        match step {
            Step::Put(how, value, flags, time) => {
                self.put(key, (value, flags, now.expires(time)), how, 0)?;
            }
            Step::PutIf(right, value) => {
                let known = self.model.entries.get(key).map_or(77, |entry| entry.cas);
                let cas = if right { known } else { known + 1000 };
                self.put(key, (value, 1, 0), How::Set, cas)?;
            }
            Step::Count(delta, up) => self.count(key, delta, up)?,
            Step::Touch(time) => {
                let expires_s = now.expires(time);
                let found = self.store.touch(self.me, key, expires_s, now);
                let entry = self.model.entries.get_mut(key);
                prop_assert_eq!(found, entry.is_some());
                if let Some(entry) = entry {
                    entry.expires_s = expires_s;
                }
            }
            Step::Delete(right) => self.delete(key, right)?,
            Step::Flush(0) => {
                self.store.flush(self.me, 0, now);
                self.model.entries.clear();
                self.model.flush_s = None;
            }
            Step::Flush(delay_s) => {
                let at_s = now.expires(delay_s.into());
                self.store.flush(self.me, at_s, now);
                self.model.flush_s = Some(at_s);
            }
            Step::Wait(s) => self.elapsed_s += u64::from(s),
        }
        self.agree_on(key)
    }

    fn put(
        &mut self,
        key: &[u8],
        (value, flags, expires_s): (Vec<u8>, u32, u32),
        how: How,
        cas: u64,
    ) -> Result<(), TestCaseError> {
        let now = self.now();
        let outcome = put(self.store, key, &value, (flags, expires_s), how, cas, now);
        let (stored, new) = match outcome {
            Outcome::Stored(cas) => (None, cas),
            Outcome::NotStored => (Some("not stored"), 0),
            Outcome::Exists => (Some("exists"), 0),
            Outcome::NotFound => (Some("not found"), 0),
            Outcome::Refused(_) => (Some("refused"), 0),
        };
        let entry = Entry { value, flags, expires_s, cas: new, stored_s: now.s };
        prop_assert_eq!(stored, self.model.put(key, how, entry, cas));
        Ok(())
    }

    fn count(&mut self, key: &[u8], delta: u64, up: bool) -> Result<(), TestCaseError> {
        let now = self.now();
        let counted = self.store.count(self.me, key, delta, up, 0, now);
        let Some(entry) = self.model.entries.get_mut(key) else {
            prop_assert_eq!(counted, Counted::NotFound);
            return Ok(());
        };
        let Some(old) = number(&entry.value) else {
            prop_assert!(matches!(counted, Counted::NotANumber | Counted::Value(..)));
            if let Counted::Value(..) = counted {
                // White space before or after, which the naive reader does not take.
                self.model.entries.remove(key);
                self.store.delete(self.me, key, 0, now);
            }
            return Ok(());
        };
        let value = if up { old.wrapping_add(delta) } else { old.saturating_sub(delta) };
        let Counted::Value(seen, cas) = counted else {
            return Err(TestCaseError::fail(format!("{counted:?}")));
        };
        prop_assert_eq!(seen, value);
        let width = entry.value.len();
        if value.to_string().len() > width {
            entry.stored_s = now.s;
        }
        entry.value = format!("{value:<width$}").into_bytes();
        entry.cas = cas;
        Ok(())
    }

    fn delete(&mut self, key: &[u8], right: bool) -> Result<(), TestCaseError> {
        let cas = self.model.entries.get(key).map_or(0, |entry| entry.cas);
        let cas = if right || cas == 0 { cas } else { cas + 1 };
        let expected = match self.model.entries.get(key) {
            None => Deleted::NotFound,
            Some(entry) if cas != 0 && cas != entry.cas => Deleted::Exists,
            Some(_) => Deleted::Yes,
        };
        if expected == Deleted::Yes {
            self.model.entries.remove(key);
        }
        prop_assert_eq!(self.store.delete(self.me, key, cas, self.now()), expected);
        Ok(())
    }

    fn agree_on(&mut self, key: &[u8]) -> Result<(), TestCaseError> {
        let now = self.now();
        self.model.pass(now);
        let expected = self.model.entries.get(key);
        let expected = expected.map(|entry| (entry.value.clone(), entry.flags, entry.cas));
        prop_assert_eq!(get(self.store, self.me, key, now), expected);
        Ok(())
    }

    /// What is dead but not buried still counts; all else must agree.
    fn agree_in_the_end(&self) -> Result<(), TestCaseError> {
        (0..KEYS).for_each(|name| drop(get(self.store, self.me, &key(name), self.now())));
        prop_assert_eq!(self.me.curr_items.get(), self.model.entries.len() as u64);
        let used: u64 = self.store.class_stats().iter().map(|class| class.used).sum();
        prop_assert_eq!(used, self.model.entries.len() as u64, "memory of dead items");
        Ok(())
    }
}

const KEYS: usize = 12;

fn key(name: usize) -> Vec<u8> {
    format!("{name}{}", "k".repeat(name * 21)).into_bytes()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn behaves_like_the_model(
        power in 0..6u32,
        steps in prop::collection::vec((0..KEYS, step()), 1..400),
    ) {
        // So much that no size class takes memory from another.
        let store = store(Limits { memory_bytes: 32 << 20, ..small() }, power);
        let (me, model) = (store.counters(0), Model::default());
        let mut both = Both { store, me, model, elapsed_s: 0 };
        for (name, step) in steps {
            both.take(&key(name), step)?;
        }
        both.agree_in_the_end()?;
    }
}
