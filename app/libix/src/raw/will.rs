//! What the dataplane carries out for this process if it ends before its next batch.
use core::ptr::with_exposed_provenance_mut;
use core::sync::atomic::{AtomicU64, Ordering};
use ix_abi::{WILL_MAX, WillEntry, WillState};

/// The will of a process on one elastic thread ([`ix_abi::Will`]).
///
/// A thread that is killed leaves it as it was after the last [`Will::note`] or [`Will::renew`].
#[derive(Debug)]
pub struct Will(*mut ix_abi::Will);

// SAFETY: memory of the process, as the call array is; it is written by `&mut self` only.
unsafe impl Send for Will {}

impl Will {
    /// # Safety
    /// `at` is 0 or the address of a will that nothing else in this process writes, and that is
    /// never unmapped.
    pub(super) unsafe fn at(at: u64) -> Option<Will> {
        let will = with_exposed_provenance_mut::<ix_abi::Will>(at as usize);
        (!will.is_null()).then_some(Will(will))
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: `at`; this word is accessed as an atomic only.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.0).state) }
    }

    fn state(&self) -> WillState {
        WillState::decode(self.word().load(Ordering::Relaxed))
    }

    fn write(&mut self, list: usize, index: usize, entry: WillEntry) {
        assert!(list < 2 && index < WILL_MAX, "no such entry");
        // SAFETY: `at`; within the lists.
        unsafe { (&raw mut (*self.0).entries[list][index]).write_volatile(entry) };
    }

    /// Appends an entry. Without effect when the list is full.
    #[inline]
    pub fn note(&mut self, entry: WillEntry) {
        let state = self.state();
        if state.count < WILL_MAX {
            self.write(state.list, state.count, entry);
            let state = WillState { count: state.count + 1, ..state };
            // Who reads the count reads the entry.
            self.word().store(state.encode(), Ordering::Release);
        }
    }

    /// From now on it is what was not taken of this batch of calls, and then these entries,
    /// as many as there is room for.
    pub fn renew(
        &mut self,
        (batch, calls): (u64, usize),
        entries: impl Iterator<Item = WillEntry>,
    ) {
        // SAFETY: `at`.
        unsafe { (&raw mut (*self.0).batch).write_volatile(batch) };
        let list = 1 - self.state().list;
        let mut count = 0;
        for entry in entries.take(WILL_MAX) {
            self.write(list, count, entry);
            count += 1;
        }
        self.word().store(WillState { list, count, calls }.encode(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_follows_what_was_renewed() {
        let entries = [[WillEntry::default(); WILL_MAX]; 2];
        let mut memory = Box::new(ix_abi::Will { state: 0, batch: 0, reserved: [0; 6], entries });
        // SAFETY: used through the will only until it is dropped below.
        let mut will = unsafe { Will::at((&raw mut *memory).expose_provenance() as u64) }.unwrap();
        let entry = |handle| WillEntry { handle, ..WillEntry::default() };
        will.note(entry(1));
        will.renew((1, 7), [entry(2), entry(3)].into_iter());
        will.note(entry(4));
        let state = will.state();
        assert_eq!((state.count, state.calls), (3, 7));
        will.renew((1, 0), core::iter::repeat_n(entry(5), WILL_MAX + 1));
        will.note(entry(6));
        assert_eq!(will.state(), WillState { list: 0, count: WILL_MAX, calls: 0 });
        assert_eq!(memory.entries[state.list][..3].iter().map(|e| e.handle).sum::<u64>(), 9);
        // SAFETY: 0 is allowed.
        assert!(unsafe { Will::at(0) }.is_none());
    }
}
