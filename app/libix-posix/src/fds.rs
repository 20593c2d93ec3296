//! Which descriptors are ours: one word each, read without a lock by every intercepted call.
use crate::slab::Id;
use core::sync::atomic::{AtomicU32, Ordering};

/// Descriptors beyond this number are Linux's: we do not hand out such.
pub const FDS_MAX: usize = 1 << 20;

/// What a descriptor stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Linux's, or closed.
    Linux,
    /// An Internet socket: of IX, or not decided yet. The index in the table of sockets.
    Socket(u32),
    /// An epoll set. The index in the table of sets.
    Epoll(u32),
    /// Closed by the program, and kept for its next socket ([`crate::numbers`]).
    Kept,
    /// Our own, none of the program's business.
    Private,
}

const PRIVATE: u32 = u32::MAX;
const KEPT: u32 = u32::MAX - 1;
const EPOLL: u32 = 1 << 31;

/// 0: Linux's. Zero pages of the program's memory until they are written.
static TABLE: [AtomicU32; FDS_MAX] = [const { AtomicU32::new(0) }; FDS_MAX];

fn decode(word: u32) -> Entry {
    match word {
        0 => Entry::Linux,
        PRIVATE => Entry::Private,
        KEPT => Entry::Kept,
        word if word & EPOLL != 0 => Entry::Epoll((word & !EPOLL) - 1),
        word => Entry::Socket(word - 1),
    }
}

fn encode(entry: Entry) -> u32 {
    match entry {
        Entry::Linux => 0,
        Entry::Private => PRIVATE,
        Entry::Kept => KEPT,
        Entry::Socket(index) => index + 1,
        Entry::Epoll(index) => (index + 1) | EPOLL,
    }
}

/// What stands at this number.
#[inline]
pub fn get(fd: i32) -> Entry {
    // A negative number is a large one here.
    TABLE.get(fd as u32 as usize).map_or(Entry::Linux, |word| decode(word.load(Ordering::Acquire)))
}

/// Whether it is ours.
#[inline]
pub fn is_ours(fd: i32) -> bool {
    TABLE.get(fd as u32 as usize).is_some_and(|word| word.load(Ordering::Acquire) != 0)
}

/// Writes an entry, returns the one before. False numbers stay Linux's.
pub fn replace(fd: i32, entry: Entry) -> Entry {
    match TABLE.get(fd as u32 as usize) {
        Some(word) => decode(word.swap(encode(entry), Ordering::AcqRel)),
        None => Entry::Linux,
    }
}

/// Those of ours within a range.
pub fn within(first: u32, last: u32) -> Vec<(i32, Entry)> {
    let end = (last as usize).saturating_add(1).min(FDS_MAX);
    let numbers = (first as usize).min(end)..end;
    let entries = numbers.map(|fd| (fd as i32, get(fd as i32)));
    entries.filter(|(_, entry)| *entry != Entry::Linux).collect()
}

/// The index that the table of sockets or sets has an object under.
pub fn index_of(id: Id) -> u32 {
    id as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back() {
        for entry in
            [Entry::Socket(0), Entry::Epoll(0), Entry::Socket(77), Entry::Kept, Entry::Private]
        {
            assert_eq!(replace(500, entry), Entry::Linux);
            assert_eq!(get(500), entry);
            assert_eq!(replace(500, Entry::Linux), entry);
        }
        for wrong in [-1, FDS_MAX as i32, i32::MAX, i32::MIN] {
            assert_eq!(replace(wrong, Entry::Socket(1)), Entry::Linux);
            assert_eq!((get(wrong), is_ours(wrong)), (Entry::Linux, false));
        }
    }
}
