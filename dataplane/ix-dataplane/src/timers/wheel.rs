//! Hierarchical timing wheel of one elastic thread.
//!
//! Ticks are 16 µs. Level 0 has single ticks, each further level is 256 times coarser (16 µs, 4 ms,
//! 1 s, 268 s, …). There are as many levels as the clock has digits to the base of 256, so there is
//! no horizon: no deadline is clamped, and none needs a special case.
//!
//! An entry is on the level of the highest base-256 digit in which its tick differs from the
//! wheel's position. So all entries of a lower level come before any of a higher one, and the
//! nearest occupied slot is found with a few bitmap words, however far the clock has jumped.
//!
//! Single entries are not removed: the code that has set an entry checks when it fires whether it
//! is still current. So timers are lazy, and an acknowledgement never touches the wheel. Only
//! entries of flow groups that have left are removed, step by step ([`Wheel::sweep`]).

/// Microseconds of one tick.
pub const TICK_US: u64 = 1 << TICK_SHIFT;

const TICK_SHIFT: u32 = 4;
const SLOT_BITS: u32 = 8;
const SLOTS: usize = 1 << SLOT_BITS;
const LEVELS: usize = (u64::BITS - TICK_SHIFT).div_ceil(SLOT_BITS) as usize;
/// Entries of a chunk; with its header it fills two cache lines.
const CHUNK_ENTRIES: usize = 7;
/// Ends a list of chunks.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Default)]
struct Entry {
    tick: u64,
    token: u64,
}

/// A part of a slot's list. Only the first chunk of a list may have room; no chunk is empty.
#[repr(C, align(64))]
#[derive(Clone)]
struct Chunk {
    next: u32,
    len: u32,
    entries: [Entry; CHUNK_ENTRIES],
}

/// Slots of one level: heads of chunk lists, and a bit for each slot that has one.
struct Level {
    occupied: [u64; SLOTS / 64],
    heads: [u32; SLOTS],
}

impl Level {
    /// The first occupied slot at or after `from`.
    fn next_occupied(&self, from: usize) -> Option<usize> {
        let mut word = from / 64;
        let mut bits = self.occupied[word] & (u64::MAX << (from % 64));
        loop {
            if bits != 0 {
                return Some(word * 64 + bits.trailing_zeros() as usize);
            }
            word += 1;
            bits = *self.occupied.get(word)?;
        }
    }
}

/// Progress of [`Wheel::sweep`].
#[derive(Clone, Copy, Debug, Default)]
pub struct SweepCursor {
    levels_done: usize,
    slot: usize,
}

/// Timing wheel of `u64` tokens.
pub struct Wheel {
    /// Position in ticks: every entry of an earlier tick has fired.
    tick: u64,
    levels: [Level; LEVELS],
    /// Before this tick [`Wheel::advance`] finds nothing to do.
    quiet_until: u64,
    chunks: Vec<Chunk>,
    free: u32,
    len: usize,
}

impl Wheel {
    /// An empty wheel at `now_us`, with room for about `entries` without allocation.
    pub fn new(now_us: u64, entries: usize) -> Wheel {
        let level = || Level { occupied: [0; SLOTS / 64], heads: [NONE; SLOTS] };
        Wheel {
            tick: now_us >> TICK_SHIFT,
            levels: core::array::from_fn(|_| level()),
            quiet_until: u64::MAX,
            chunks: Vec::with_capacity(entries.div_ceil(CHUNK_ENTRIES)),
            free: NONE,
            len: 0,
        }
    }

    /// Number of entries that have not fired, with stale ones.
    pub fn len(&self) -> usize {
        self.len
    }

    #[cfg(test)]
    /// True if there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Makes `token` fire at the first [`Wheel::advance`] at or after `deadline_us`: never earlier,
    /// and less than a tick later. A deadline in the past fires at the next `advance`.
    pub fn insert(&mut self, deadline_us: u64, token: u64) {
        let tick = deadline_us.div_ceil(TICK_US).max(self.tick);
        self.place(Entry { tick, token });
        self.len += 1;
    }

    /// Whether nothing can be due at `now_us`: [`Wheel::advance`] would fire nothing.
    #[inline]
    pub fn is_quiet(&mut self, now_us: u64) -> bool {
        let target = now_us >> TICK_SHIFT;
        let is_quiet = target < self.quiet_until;
        if is_quiet {
            self.tick = self.tick.max(target);
        }
        is_quiet
    }

    /// Fires what is due at `now_us`, ordered by tick. Processes at most `limit` entries; moving an
    /// entry from a coarse level to a finer one counts. Returns whether all that is due has fired.
    /// If not, the next call continues.
    ///
    /// However far `now_us` is from the last call, no entry is skipped: the position only moves
    /// from one occupied slot to the next.
    #[inline]
    pub fn advance(&mut self, now_us: u64, limit: usize, mut fire: impl FnMut(u64)) -> bool {
        if self.is_quiet(now_us) {
            return true;
        }
        let target = now_us >> TICK_SHIFT;
        let mut left = limit;
        while let Some((level, start)) = self.nearest() {
            if start > target {
                break;
            }
            // Only forward: the slot at the position may be half processed.
            self.tick = self.tick.max(start);
            let slot = slot_of(self.tick, level);
            while let Some(entry) = self.first_of(level, slot) {
                if left == 0 {
                    return false;
                }
                left -= 1;
                self.pop(level, slot);
                if entry.tick <= self.tick {
                    self.len -= 1;
                    fire(entry.token);
                } else {
                    self.place(entry);
                }
            }
        }
        self.tick = self.tick.max(target);
        self.quiet_until = self.nearest().map_or(u64::MAX, |(_, start)| start);
        true
    }

    /// A time at which `advance` has something to do, at the latest when the nearest entry is due;
    /// `None` if the wheel is empty. Exact to the tick within 4 ms, else the start of the nearest
    /// entry's slot.
    pub fn next_deadline_us(&self) -> Option<u64> {
        self.nearest().map(|(_, start)| start << TICK_SHIFT)
    }

    /// Continues removing entries that are `gone`; checks about `limit` of them. Returns whether
    /// all were checked since the cursor was new. Entries only move to finer levels, so the coarse
    /// ones are checked first; those that move past the cursor fire soon.
    pub fn sweep(
        &mut self,
        cursor: &mut SweepCursor,
        limit: usize,
        gone: impl Fn(u64) -> bool,
    ) -> bool {
        let mut left = limit;
        while cursor.levels_done < LEVELS {
            let level = LEVELS - 1 - cursor.levels_done;
            let Some(slot) =
                (cursor.slot < SLOTS).then(|| self.levels[level].next_occupied(cursor.slot))
            else {
                *cursor = SweepCursor { levels_done: cursor.levels_done + 1, slot: 0 };
                continue;
            };
            let Some(slot) = slot else {
                cursor.slot = SLOTS;
                continue;
            };
            if left == 0 {
                return false;
            }
            cursor.slot = slot + 1;
            left = left.saturating_sub(self.sweep_slot(level, slot, &gone));
        }
        true
    }

    /// Builds a slot's list again without the entries that are gone; returns how many entries it
    /// had.
    fn sweep_slot(&mut self, level: usize, slot: usize, gone: &impl Fn(u64) -> bool) -> usize {
        let mut next = std::mem::replace(&mut self.levels[level].heads[slot], NONE);
        self.levels[level].occupied[slot / 64] &= !(1 << (slot % 64));
        let mut seen = 0;
        while let Some(chunk) = self.chunks.get_mut(next as usize) {
            let Chunk { next: after, len, entries } = chunk.clone();
            chunk.next = self.free;
            self.free = next;
            next = after;
            for entry in &entries[..len as usize] {
                seen += 1;
                if gone(entry.token) {
                    self.len -= 1;
                } else {
                    self.push(level, slot, *entry);
                }
            }
        }
        seen
    }

    /// Level and first tick of the nearest occupied slot.
    fn nearest(&self) -> Option<(usize, u64)> {
        // A coarse slot at the position itself is being emptied (`insert` never uses it), and its
        // entries may be due before those that have already moved down.
        let halfway = (1..LEVELS).find(|&l| self.levels[l].heads[slot_of(self.tick, l)] != NONE);
        if let Some(level) = halfway {
            return Some((level, self.tick));
        }
        (0..LEVELS).find_map(|level| {
            let slot = self.levels[level].next_occupied(slot_of(self.tick, level))?;
            let shift = level as u32 * SLOT_BITS;
            let above = self.tick & !((SLOTS as u64) << shift).wrapping_sub(1);
            Some((level, above | (slot as u64) << shift))
        })
    }

    fn place(&mut self, entry: Entry) {
        let differ = entry.tick ^ self.tick;
        let level = (u64::BITS - differ.leading_zeros()).saturating_sub(1) / SLOT_BITS;
        let start = entry.tick & (u64::MAX << (level * SLOT_BITS));
        self.quiet_until = self.quiet_until.min(start);
        self.push(level as usize, slot_of(entry.tick, level as usize), entry);
    }

    fn push(&mut self, level: usize, slot: usize, entry: Entry) {
        let head = self.levels[level].heads[slot];
        if let Some(chunk) = self.chunks.get_mut(head as usize)
            && (chunk.len as usize) < CHUNK_ENTRIES
        {
            chunk.entries[chunk.len as usize] = entry;
            chunk.len += 1;
            return;
        }
        let new = self.take_chunk();
        let chunk = &mut self.chunks[new as usize];
        chunk.next = head;
        chunk.len = 1;
        chunk.entries[0] = entry;
        self.levels[level].heads[slot] = new;
        self.levels[level].occupied[slot / 64] |= 1 << (slot % 64);
    }

    fn first_of(&self, level: usize, slot: usize) -> Option<Entry> {
        let chunk = self.chunks.get(self.levels[level].heads[slot] as usize)?;
        Some(chunk.entries[chunk.len as usize - 1])
    }

    /// Removes the entry that `first_of` returns.
    fn pop(&mut self, level: usize, slot: usize) {
        let head = self.levels[level].heads[slot];
        let chunk = &mut self.chunks[head as usize];
        chunk.len -= 1;
        if chunk.len > 0 {
            return;
        }
        let next = chunk.next;
        chunk.next = self.free;
        self.free = head;
        self.levels[level].heads[slot] = next;
        if next == NONE {
            self.levels[level].occupied[slot / 64] &= !(1 << (slot % 64));
        }
    }

    fn take_chunk(&mut self) -> u32 {
        if let Some(chunk) = self.chunks.get(self.free as usize) {
            let taken = self.free;
            self.free = chunk.next;
            return taken;
        }
        self.chunks.push(Chunk { next: NONE, len: 0, entries: Default::default() });
        (self.chunks.len() - 1) as u32
    }
}

/// Digit of `tick` on this level.
fn slot_of(tick: u64, level: usize) -> usize {
    (tick >> (level as u32 * SLOT_BITS)) as usize % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzzing::{WheelStep, wheel_is_a_sorted_map};
    use proptest::prelude::*;

    fn drain(wheel: &mut Wheel, now_us: u64) -> Vec<u64> {
        let mut fired = Vec::new();
        assert!(wheel.advance(now_us, usize::MAX, |t| fired.push(t)));
        fired
    }

    #[test]
    fn fires_not_before_the_deadline_and_within_a_tick() {
        let mut wheel = Wheel::new(1000, 0);
        wheel.insert(5001, 7);
        assert!(drain(&mut wheel, 5000).is_empty());
        assert_eq!(drain(&mut wheel, 5001 + TICK_US - 1), [7]);
        assert!(wheel.is_empty());
    }

    #[test]
    fn a_deadline_in_the_past_fires_at_the_next_advance() {
        let mut wheel = Wheel::new(1_000_000, 0);
        wheel.insert(3, 1);
        assert_eq!(wheel.next_deadline_us().map(|d| d <= 1_000_000), Some(true));
        assert_eq!(drain(&mut wheel, 1_000_000), [1]);
    }

    /// The original IX's wheel lost entries in slots that a jump skipped (ix-original, bug 12).
    #[test]
    fn a_long_sleep_delays_nothing() {
        let mut wheel = Wheel::new(77, 0);
        let deadlines = [90, 5_000, 1_100_000, 270_000_000, 80_000_000_000, u64::MAX - TICK_US];
        for (token, deadline_us) in deadlines.into_iter().enumerate() {
            wheel.insert(deadline_us, token as u64);
        }
        assert_eq!(drain(&mut wheel, 300_000_000), [0, 1, 2, 3]);
        assert_eq!(drain(&mut wheel, u64::MAX), [4, 5]);
    }

    #[test]
    fn a_clock_that_steps_back_fires_nothing_early_and_loses_nothing() {
        let mut wheel = Wheel::new(1_000_000, 0);
        wheel.insert(1_000_100, 1);
        assert!(drain(&mut wheel, 10).is_empty());
        assert_eq!(drain(&mut wheel, 1_000_200), [1]);
    }

    #[test]
    fn steady_state_uses_chunks_again() {
        let mut wheel = Wheel::new(0, 0);
        for round in 0..200u64 {
            for token in 0..50 {
                wheel.insert(round * 9_000 + token * 150, token);
            }
            assert_eq!(drain(&mut wheel, (round + 1) * 9_000).len(), 50);
        }
        assert!(wheel.chunks.len() <= 100, "{} chunks for 50 entries", wheel.chunks.len());
    }

    proptest! {
        /// What is removed never fires, all else does, and no chunk is lost.
        #[test]
        fn a_sweep_takes_out_what_is_gone(
            deadlines in prop::collection::vec((0u32..45, any::<u64>()), 1..200),
            limit in 1usize..50,
            modulo in 1u64..5,
        ) {
            let mut wheel = Wheel::new(77, 0);
            for (token, (bits, x)) in deadlines.iter().enumerate() {
                wheel.insert(77 + (x & ((1 << bits) - 1)), token as u64);
            }
            let gone = |token: u64| token.is_multiple_of(modulo);
            let mut cursor = SweepCursor::default();
            let mut rounds = 0;
            while !wheel.sweep(&mut cursor, limit, gone) {
                rounds += 1;
                prop_assert!(rounds <= deadlines.len());
            }
            let kept: Vec<u64> = (0..deadlines.len() as u64).filter(|t| !gone(*t)).collect();
            prop_assert_eq!(wheel.len(), kept.len());
            let mut fired = drain(&mut wheel, u64::MAX);
            fired.sort_unstable();
            prop_assert_eq!(fired, kept);
            let chunks = wheel.chunks.len();
            for token in 0..deadlines.len() as u64 {
                wheel.insert(u64::MAX, token);
            }
            prop_assert!(wheel.chunks.len() <= chunks.max(deadlines.len().div_ceil(CHUNK_ENTRIES)));
        }
    }

    fn step() -> impl Strategy<Value = WheelStep> {
        // Distances on all scales, so that every level is used and crossed.
        let distance = (0u32..45, any::<u64>()).prop_map(|(bits, x)| x & ((1 << bits) - 1));
        prop_oneof![
            3 => distance.clone().prop_map(WheelStep::Insert),
            1 => (distance, 1usize..40).prop_map(|(d, limit)| WheelStep::Advance(d, limit)),
        ]
    }

    proptest! {
        #[test]
        fn does_what_a_sorted_map_does(
            start_us in prop_oneof![0u64..1 << 20, any::<u64>().prop_map(|x| x >> 8)],
            steps in prop::collection::vec(step(), 1..300),
        ) {
            wheel_is_a_sorted_map(start_us, &steps);
        }
    }
}
