//! When connections must be checked again: coarse and lazy, so that requests cost nothing.
//!
//! Each connection has one entry. Events of the connection move no entry; when an entry is due, the
//! connection says whether it is overdue or when to check again. No wait is shorter than the
//! shortest patience, so an entry that is at most that far ahead is late by at most a step.

/// Steps in the shortest patience: a connection may live this fraction of it too long.
const STEPS: u64 = 16;

/// A wheel of connection ids.
#[derive(Default)]
pub struct Deadlines {
    step_us: u64,
    /// Entries of step `n` are in slot `n` modulo the number of slots.
    slots: Vec<Vec<u64>>,
    /// The last step that was handled.
    done: u64,
}

impl Deadlines {
    /// For waits that are never shorter than `shortest_us`.
    pub fn new(shortest_us: u64, now_us: u64) -> Deadlines {
        let step_us = (shortest_us / STEPS).max(1);
        // One more for the step that has begun, and one that is being handled.
        let slots = (0..STEPS + 2).map(|_| Vec::new()).collect();
        Deadlines { step_us, slots, done: now_us / step_us }
    }

    /// Time between two calls of [`Deadlines::expire`].
    pub fn step_us(&self) -> u64 {
        self.step_us
    }

    /// Adds a connection that must be checked at `due_us` or earlier.
    pub fn insert(&mut self, id: u64, due_us: u64) {
        let number = self.slots.len() as u64;
        let step = due_us.div_ceil(self.step_us).clamp(self.done + 1, self.done + number - 1);
        self.slots[(step % number) as usize].push(id);
    }

    /// Calls `next` for each connection that is due, which returns when to check again; `None`:
    /// never.
    pub fn expire(&mut self, now_us: u64, mut next: impl FnMut(u64) -> Option<u64>) {
        while self.done < now_us / self.step_us {
            self.done += 1;
            let slot = (self.done % self.slots.len() as u64) as usize;
            let mut due = core::mem::take(&mut self.slots[slot]);
            for id in due.drain(..) {
                if let Some(due_us) = next(id) {
                    self.insert(id, due_us);
                }
            }
            // No insertion goes to the slot that is being handled: keep its memory.
            self.slots[slot] = due;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn entries_come_up_in_time_and_once() {
        let mut deadlines = Deadlines::new(1600, 5_000);
        deadlines.insert(1, 5_250);
        deadlines.insert(2, 6_600);
        let mut seen = Vec::new();
        for now_us in (5_000..10_000).step_by(50) {
            deadlines.expire(now_us, |id| {
                seen.push((id, now_us));
                None
            });
        }
        assert_eq!(seen, [(1, 5_300), (2, 6_600)]);
    }

    proptest! {
        /// Waits begin at any time and are never shorter than the shortest patience.
        #[test]
        fn never_early_and_late_by_two_steps_at_most(
            waits in prop::collection::vec((1..3_000u64, 1_600..9_000u64), 1..20),
        ) {
            let mut deadlines = Deadlines::new(1_600, 0);
            deadlines.insert(7, 1_600);
            let mut waits = waits.into_iter();
            let (mut due, mut begins) = (u64::MAX, 0);
            let mut upcoming = waits.next();
            for now_us in (0..120_000).step_by(25) {
                if let Some((gap, wait)) = upcoming && now_us >= begins + gap {
                    // A new wait replaces the one before.
                    (begins, due, upcoming) = (now_us, now_us + wait, waits.next());
                }
                let mut expired = false;
                deadlines.expire(now_us, |_| {
                    expired = now_us >= due;
                    (!expired).then_some(due)
                });
                if expired {
                    prop_assert!(now_us < due + 2 * 100);
                    return Ok(());
                }
                prop_assert!(now_us < due.saturating_add(2 * 100));
            }
        }
    }
}
