//! Hash table of one flow group: from a flow's hash to its slot number.
//!
//! Open addressing with linear probing. An entry has 8 bytes, so eight are in a cache line, and a
//! look-up usually touches one line. The flow itself is not in the table: the caller compares.
//!
//! Positions and tags come from the upper half of the hash, because the lower bits select the flow
//! group and are the same for all flows in one table.

use ix_mem::prefetch_read;

const EMPTY: u32 = u32::MAX;
const CAPACITY_MIN: usize = 16;

#[derive(Clone, Copy)]
struct Entry {
    /// Upper half of the hash; its lowest bits are the home position.
    tag: u32,
    index: u32,
}

/// Maps hashes to `u32` indices, of which `u32::MAX` is not allowed. Several entries may have the
/// same hash.
#[derive(Default)]
pub struct FlowTable {
    /// Empty, or a power of two of entries.
    entries: Box<[Entry]>,
    len: usize,
}

impl FlowTable {
    /// An empty table; it allocates at the first insertion.
    pub fn new() -> FlowTable {
        FlowTable::default()
    }

    #[cfg(any(test, feature = "fuzzing"))]
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    #[cfg(test)]
    /// True if there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The index under `hash` for which `same` returns true.
    #[inline]
    pub fn find(&self, hash: u64, mut same: impl FnMut(u32) -> bool) -> Option<u32> {
        self.probe(hash).map(|position| self.entries[position].index).find(|&index| same(index))
    }

    /// Prefetches the cache line in which the search for `hash` begins.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        if !self.entries.is_empty() {
            prefetch_read(&self.entries[self.home(tag_of(hash))]);
        }
    }

    /// Stores `index` under `hash`. The caller makes sure that it is not there yet.
    pub fn insert(&mut self, hash: u64, index: u32) {
        debug_assert!(index != EMPTY);
        debug_assert!(self.find(hash, |i| i == index).is_none());
        // At most three quarters full, so that an unsuccessful search is short.
        if (self.len + 1) * 4 > self.entries.len() * 3 {
            self.grow();
        }
        self.place(Entry { tag: tag_of(hash), index });
        self.len += 1;
    }

    /// Removes `index`, stored under `hash`; returns whether it was there.
    pub fn remove(&mut self, hash: u64, index: u32) -> bool {
        let Some(position) = self.probe(hash).find(|&p| self.entries[p].index == index) else {
            return false;
        };
        self.close_gap(position);
        self.len -= 1;
        true
    }

    #[cfg(any(test, feature = "fuzzing"))]
    /// All indices, in no useful order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.entries.iter().map(|e| e.index).filter(|&index| index != EMPTY)
    }

    /// Positions of the entries with this hash's tag.
    #[inline]
    fn probe(&self, hash: u64) -> impl Iterator<Item = usize> + '_ {
        let tag = tag_of(hash);
        let mask = self.entries.len().wrapping_sub(1);
        let mut position = self.home(tag);
        core::iter::from_fn(move || {
            loop {
                // `get` fails only for a table without entries.
                let entry = self.entries.get(position)?;
                if entry.index == EMPTY {
                    return None;
                }
                let here = position;
                position = (position + 1) & mask;
                if entry.tag == tag {
                    return Some(here);
                }
            }
        })
    }

    fn home(&self, tag: u32) -> usize {
        tag as usize & self.entries.len().wrapping_sub(1)
    }

    fn place(&mut self, entry: Entry) {
        let mask = self.entries.len() - 1;
        let mut position = self.home(entry.tag);
        while self.entries[position].index != EMPTY {
            position = (position + 1) & mask;
        }
        self.entries[position] = entry;
    }

    /// Empties a position, and moves back the entries that the gap would cut off from their home,
    /// so that there are no tombstones.
    fn close_gap(&mut self, mut gap: usize) {
        let mask = self.entries.len() - 1;
        let mut position = gap;
        loop {
            position = (position + 1) & mask;
            let entry = self.entries[position];
            if entry.index == EMPTY {
                break;
            }
            // The entry must move if its way from home passes the gap: its distance from home is at
            // least its distance from the gap.
            let from_home = position.wrapping_sub(self.home(entry.tag)) & mask;
            let from_gap = position.wrapping_sub(gap) & mask;
            if from_home >= from_gap {
                self.entries[gap] = entry;
                gap = position;
            }
        }
        self.entries[gap].index = EMPTY;
    }

    #[cold]
    fn grow(&mut self) {
        let capacity = (self.entries.len() * 2).max(CAPACITY_MIN);
        let empty = vec![Entry { tag: 0, index: EMPTY }; capacity].into_boxed_slice();
        let old = core::mem::replace(&mut self.entries, empty);
        old.iter().filter(|e| e.index != EMPTY).for_each(|&entry| self.place(entry));
    }
}

fn tag_of(hash: u64) -> u32 {
    (hash >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzzing::{FlowStep, flow_table_is_a_hash_map};
    use proptest::prelude::*;

    /// Few different homes, some at the end of the table so that chains wrap, and equal hashes.
    fn hash() -> impl Strategy<Value = u64> {
        prop_oneof![
            (0u64..4).prop_map(|x| x << 32),
            (0u64..4).prop_map(|x| (u64::MAX - x) << 32),
            any::<u64>(),
        ]
    }

    fn step() -> impl Strategy<Value = FlowStep> {
        prop_oneof![hash().prop_map(FlowStep::Insert), any::<usize>().prop_map(FlowStep::Remove),]
    }

    proptest! {
        #[test]
        fn does_what_a_hash_map_does(steps in prop::collection::vec(step(), 1..400)) {
            flow_table_is_a_hash_map(&steps);
        }
    }

    #[test]
    fn an_empty_table_finds_nothing() {
        let table = FlowTable::new();
        table.prefetch(5);
        assert_eq!(table.find(5, |_| true), None);
        assert!(table.is_empty());
    }

    #[test]
    fn stays_at_most_three_quarters_full_and_needs_eight_bytes_an_entry() {
        let mut table = FlowTable::new();
        for i in 0..10_000u32 {
            table.insert((i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15), i);
            assert!(table.len() * 4 <= table.entries.len() * 3);
        }
        assert_eq!(table.entries.len(), 16384);
        assert_eq!(size_of::<Entry>(), 8);
    }

    #[test]
    fn flows_of_one_group_spread_over_the_table() {
        let mut table = FlowTable::new();
        // All in flow group 5: the lowest 7 bits never differ.
        let hash = |i: u32| (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) & !127 | 5;
        for i in 0..6000 {
            table.insert(hash(i), i);
        }
        let mut compared = 0;
        for i in 0..6000 {
            assert_eq!(
                table.find(hash(i), |found| {
                    compared += 1;
                    found == i
                }),
                Some(i)
            );
        }
        assert!(compared < 6010, "{compared} comparisons for 6000 look-ups");
    }
}
