//! The last changes of epoll sets that several processes have, in memory of all of them.
use core::sync::atomic::{AtomicU64, Ordering};
use std::os::fd::RawFd;

/// How many changes are kept. A process that has not looked for longer misses the older ones.
pub const CHANGES_MAX: usize = 512;

/// A change, as `epoll_ctl` has made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The set's number, which is the same in all processes.
    pub set: u64,
    /// `EPOLL_CTL_*`.
    pub op: i32,
    /// The descriptor that was named.
    pub fd: RawFd,
    /// The place of its socket in that memory.
    pub place: u32,
    /// Events and word of the entry.
    pub entry: (u32, u64),
    /// The process that has made it.
    pub by: i32,
}

/// Words of a change.
const WORDS: usize = 5;

struct Slot {
    /// The number of its change plus one, once it is whole.
    written: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// The changes, all zero at first.
pub struct SetLog {
    next: AtomicU64,
    slots: [Slot; CHANGES_MAX],
}

/// Two numbers in one word.
pub fn pair(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

impl SetLog {
    /// The number of the next change.
    pub fn next(&self) -> u64 {
        self.next.load(Ordering::Acquire)
    }

    /// Notes a change.
    pub fn add(&self, change: &Change) {
        let number = self.next.fetch_add(1, Ordering::AcqRel);
        let slot = &self.slots[number as usize % CHANGES_MAX];
        slot.written.store(0, Ordering::Release);
        let words = [
            change.set,
            pair(change.op as u32, change.fd as u32),
            pair(change.place, change.by as u32),
            change.entry.0.into(),
            change.entry.1,
        ];
        slot.words.iter().zip(words).for_each(|(to, word)| to.store(word, Ordering::Release));
        slot.written.store(number + 1, Ordering::Release);
    }

    /// A change, unless it is not whole yet or has been written over.
    pub fn get(&self, number: u64) -> Option<Change> {
        let slot = &self.slots[number as usize % CHANGES_MAX];
        let is_it = || slot.written.load(Ordering::Acquire) == number + 1;
        if !is_it() {
            return None;
        }
        let [set, op_and_fd, place_and_by, events, data] =
            core::array::from_fn(|n| slot.words[n].load(Ordering::Acquire));
        let change = Change {
            set,
            op: (op_and_fd >> 32) as i32,
            fd: op_and_fd as u32 as i32,
            place: (place_and_by >> 32) as u32,
            entry: (events as u32, data),
            by: place_and_by as u32 as i32,
        };
        is_it().then_some(change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read_as_they_were_written_and_old_ones_are_gone() {
        let slot = || Slot { written: AtomicU64::new(0), words: [const { AtomicU64::new(0) }; 5] };
        let log = SetLog { next: AtomicU64::new(0), slots: std::array::from_fn(|_| slot()) };
        let entry = (libc::EPOLLIN as u32, u64::MAX);
        let change =
            |fd| Change { set: 1 << 40, op: libc::EPOLL_CTL_ADD, fd, place: 7, entry, by: 42 };
        assert_eq!(log.get(0), None);
        for fd in 0..=CHANGES_MAX as i32 {
            log.add(&change(fd));
        }
        assert_eq!((log.get(0), log.get(1)), (None, Some(change(1))));
        assert_eq!(log.get(log.next() - 1), Some(change(CHANGES_MAX as i32)));
        assert_eq!(log.get(log.next()), None);
    }
}
