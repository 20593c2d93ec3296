//! Comparisons with naive models, for fuzzers in other crates. Only with the feature `fuzzing`, and
//! in tests.
use crate::flows::table::FlowTable;
use crate::timers::wheel::{TICK_US, Wheel};
use std::collections::{BTreeMap, HashMap};

/// What happens to a timing wheel.
#[derive(Clone, Copy, Debug)]
pub enum WheelStep {
    /// A deadline, so many µs from now.
    Insert(u64),
    /// This many µs pass; what is due fires, at most so many entries at a time.
    Advance(u64, usize),
}

/// A wheel and a sorted map of the same deadlines.
struct Deadlines {
    wheel: Wheel,
    model: BTreeMap<u64, Vec<u64>>,
    now_us: u64,
}

/// The wheel fires what a sorted map would: nothing early, nothing late by more than a tick, in the
/// order of ticks; and its next deadline is right.
pub fn wheel_is_a_sorted_map(start_us: u64, steps: &[WheelStep]) {
    let mut both =
        Deadlines { wheel: Wheel::new(start_us, 16), model: BTreeMap::new(), now_us: start_us };
    for (token, step) in steps.iter().enumerate() {
        match *step {
            WheelStep::Insert(distance) => {
                let deadline_us = both.now_us + distance;
                both.wheel.insert(deadline_us, token as u64);
                both.model.entry(deadline_us).or_default().push(token as u64);
            }
            WheelStep::Advance(distance, limit) => both.advance(distance, limit),
        }
        both.compare();
    }
}

impl Deadlines {
    fn advance(&mut self, distance: u64, limit: usize) {
        self.now_us += distance;
        let (wheel, now_us) = (&mut self.wheel, self.now_us);
        let mut fired = Vec::new();
        loop {
            let before = fired.len();
            let done = wheel.advance(now_us, limit, |token| fired.push(token));
            assert!(fired.len() - before <= limit);
            if done {
                break;
            }
            // What is left is due: no thread may sleep now.
            assert!(wheel.next_deadline_us().is_some_and(|due_us| due_us <= now_us));
        }
        let mut last_tick = 0;
        for token in fired {
            let found = self.model.iter().find(|(_, tokens)| tokens.contains(&token));
            let deadline_us = *found.expect("fired twice").0;
            let tick = deadline_us.div_ceil(TICK_US);
            assert!(tick * TICK_US <= now_us, "early");
            assert!(tick >= last_tick, "out of order");
            last_tick = tick;
            let tokens = self.model.entry(deadline_us).or_default();
            tokens.retain(|&other| other != token);
            if tokens.is_empty() {
                self.model.remove(&deadline_us);
            }
        }
        if let Some((first, _)) = self.model.first_key_value() {
            assert!(first.div_ceil(TICK_US) * TICK_US > now_us, "late");
        }
        assert_eq!(wheel.next_deadline_us().is_some(), !self.model.is_empty());
    }

    fn compare(&self) {
        let (wheel, now_us) = (&self.wheel, self.now_us);
        assert_eq!(wheel.len(), self.model.values().map(Vec::len).sum::<usize>());
        if let (Some(bound), Some((&first, _))) =
            (wheel.next_deadline_us(), self.model.first_key_value())
        {
            let due_us = first.div_ceil(TICK_US) * TICK_US;
            assert!(bound <= due_us.max(now_us), "sleeps too long");
            // Within one level-0 turn of the position the deadline is exact.
            if due_us >> 12 == now_us >> 12 {
                assert_eq!(bound, due_us.max(now_us & !(TICK_US - 1)));
            }
        }
    }
}

/// What happens to a flow table.
#[derive(Clone, Copy, Debug)]
pub enum FlowStep {
    /// A flow with this hash is added.
    Insert(u64),
    /// One of the flows is removed, by its number.
    Remove(usize),
}

/// The table finds what a hash map of the same flows holds.
pub fn flow_table_is_a_hash_map(steps: &[FlowStep]) {
    let mut table = FlowTable::new();
    let mut model = HashMap::<u32, u64>::new();
    let mut order: Vec<u32> = Vec::new();
    for (serial, step) in steps.iter().enumerate() {
        match *step {
            FlowStep::Insert(hash) => {
                table.insert(hash, serial as u32);
                model.insert(serial as u32, hash);
                order.push(serial as u32);
            }
            FlowStep::Remove(_) if order.is_empty() => {}
            FlowStep::Remove(which) => {
                let index = order.swap_remove(which % order.len());
                let hash = model.remove(&index).expect("it came and did not go");
                assert!(table.remove(hash, index));
                assert!(!table.remove(hash, index));
            }
        }
        assert_eq!(table.len(), model.len());
        for (&index, &hash) in &model {
            assert_eq!(table.find(hash, |i| i == index), Some(index));
            let first = table.find(hash, |_| true).expect("one of this tag");
            assert_eq!(model[&first] >> 32, hash >> 32);
        }
        let mut all: Vec<u32> = table.iter().collect();
        all.sort_unstable();
        let mut expected = order.clone();
        expected.sort_unstable();
        assert_eq!(all, expected);
    }
}
