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
    /// Which of the sockets that have had that place.
    pub serial: u32,
    /// Events and word of the entry.
    pub entry: (u32, u64),
    /// The process that has made it.
    pub by: i32,
}

/// What there is of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// All of it.
    Whole(Change),
    /// Its process is writing it, or was killed meanwhile.
    NotYet,
    /// A later one has its slot.
    Gone,
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
            pair(change.serial, change.entry.0),
            change.entry.1,
        ];
        slot.words.iter().zip(words).for_each(|(to, word)| to.store(word, Ordering::Release));
        slot.written.store(number + 1, Ordering::Release);
    }

    /// The change with this number.
    pub fn get(&self, number: u64) -> Found {
        let slot = &self.slots[number as usize % CHANGES_MAX];
        let missing = || match slot.written.load(Ordering::Acquire) {
            written if written > number + 1 => Some(Found::Gone),
            written if written < number + 1 => Some(Found::NotYet),
            _ => None,
        };
        if let Some(missing) = missing() {
            return missing;
        }
        let [set, op_and_fd, place_and_by, serial_and_events, data] =
            core::array::from_fn(|n| slot.words[n].load(Ordering::Acquire));
        let change = Change {
            set,
            op: (op_and_fd >> 32) as i32,
            fd: op_and_fd as u32 as i32,
            place: (place_and_by >> 32) as u32,
            serial: (serial_and_events >> 32) as u32,
            entry: (serial_and_events as u32, data),
            by: place_and_by as u32 as i32,
        };
        missing().unwrap_or(Found::Whole(change))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> SetLog {
        let slot = || Slot { written: AtomicU64::new(0), words: [const { AtomicU64::new(0) }; 5] };
        SetLog { next: AtomicU64::new(0), slots: std::array::from_fn(|_| slot()) }
    }

    fn change(fd: RawFd) -> Change {
        let (op, entry) = (libc::EPOLL_CTL_ADD, (libc::EPOLLIN as u32, u64::MAX));
        Change { set: 1 << 40, op, fd, place: 7, serial: u32::MAX, entry, by: 42 }
    }

    #[test]
    fn changes_are_read_as_they_were_written_and_old_ones_are_gone() {
        let log = log();
        assert_eq!(log.get(0), Found::NotYet);
        for fd in 0..=CHANGES_MAX as i32 {
            log.add(&change(fd));
        }
        assert_eq!((log.get(0), log.get(1)), (Found::Gone, Found::Whole(change(1))));
        assert_eq!(log.get(log.next() - 1), Found::Whole(change(CHANGES_MAX as i32)));
        assert_eq!(log.get(log.next()), Found::NotYet);
    }

    #[test]
    fn what_is_being_written_is_not_gone() {
        let log = log();
        log.add(&change(3));
        // A process has taken a number, and no more yet.
        log.next.fetch_add(1, Ordering::AcqRel);
        log.add(&change(5));
        assert_eq!(log.get(0), Found::Whole(change(3)));
        assert_eq!(log.get(1), Found::NotYet);
        assert_eq!(log.get(2), Found::Whole(change(5)));
    }
}
