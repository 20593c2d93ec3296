//! Which descriptors are ours: one word for each, which every intercepted call reads without a
//! lock.
use crate::numbers;
use crate::slab::Id;
use core::sync::atomic::{AtomicU32, Ordering};
use std::os::fd::RawFd;

/// Descriptors from this number on are Linux's: sockets of IX have lower ones.
pub const FDS_MAX: usize = 1 << 20;

/// What a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Linux's, or closed.
    Linux,
    /// An Internet socket, IX's or not decided yet: its index in the table of sockets.
    Socket(u32),
    /// An epoll set: its index in the table of sets.
    Epoll(u32),
    /// Closed by the program, and kept for its next socket ([`crate::numbers`]).
    Kept,
    /// A descriptor of this library. The program cannot use it.
    Private,
}

const PRIVATE: u32 = u32::MAX;
const KEPT: u32 = u32::MAX - 1;
const EPOLL: u32 = 1 << 31;

/// One word for each descriptor; 0 is Linux's. Pages take no memory until they are written.
pub static TABLE: [AtomicU32; FDS_MAX] = [const { AtomicU32::new(0) }; FDS_MAX];

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

/// What Linux says of the file under a descriptor, by the system call itself; `None`: it is closed.
pub fn status(fd: RawFd) -> Option<libc::stat> {
    // SAFETY: all zeroes is a valid value, which the call fills.
    unsafe {
        let mut status: libc::stat = core::mem::zeroed();
        (libc::syscall(libc::SYS_fstat, fd, &raw mut status) == 0).then_some(status)
    }
}

/// The inode under a descriptor that is a socket on Linux.
pub fn socket_inode(fd: RawFd) -> Option<u64> {
    let status = status(fd).filter(|status| status.st_mode & libc::S_IFMT == libc::S_IFSOCK)?;
    Some(status.st_ino)
}

/// Close-on-exec, as Linux has it.
pub fn closes_on_exec(fd: RawFd) -> bool {
    // SAFETY: no pointers.
    let flags = unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFD) };
    flags >= 0 && flags as i32 & libc::FD_CLOEXEC != 0
}

/// What a descriptor is.
#[inline]
pub fn get(fd: i32) -> Entry {
    // A negative number is a large one here.
    TABLE.get(fd as u32 as usize).map_or(Entry::Linux, |word| decode(word.load(Ordering::Acquire)))
}

/// Whether a descriptor is not simply Linux's.
#[inline]
pub fn is_ours(fd: i32) -> bool {
    TABLE.get(fd as u32 as usize).is_some_and(|word| word.load(Ordering::Acquire) != 0)
}

/// Writes an entry and returns the previous one. Numbers out of range stay Linux's.
pub fn replace(fd: i32, entry: Entry) -> Entry {
    match TABLE.get(fd as u32 as usize) {
        Some(word) => decode(word.swap(encode(entry), Ordering::AcqRel)),
        None => Entry::Linux,
    }
}

/// The entries from `first` to `last` that are not Linux's.
pub fn within(first: u32, last: u32) -> Vec<(i32, Entry)> {
    let end = (last as usize).saturating_add(1).min(FDS_MAX);
    let numbers = (first as usize).min(end)..end;
    let entries = numbers.map(|fd| (fd as i32, get(fd as i32)));
    entries.filter(|(_, entry)| *entry != Entry::Linux).collect()
}

/// The index of an object in the table of sockets or sets.
pub fn index_of(id: Id) -> u32 {
    id as u32
}

/// The first number of the range of the dataplane's descriptors.
static RESERVED_BASE: AtomicU32 = AtomicU32::new(16384);

/// The dataplane's descriptors have numbers of this range.
pub fn reserve_from(base: RawFd) {
    RESERVED_BASE.store(base as u32, Ordering::Relaxed);
}

/// These are the dataplane's descriptors. Calls that close all must leave them.
pub fn reserve(numbers: impl Iterator<Item = RawFd>) {
    numbers.for_each(|fd| {
        replace(fd, Entry::Private);
    });
}

/// They are closed, and the program's to use.
pub fn release(numbers: impl Iterator<Item = RawFd>) {
    for fd in numbers {
        if get(fd) == Entry::Private {
            replace(fd, Entry::Linux);
            numbers::freed(fd);
        }
    }
}

/// A copy of a descriptor at a high number, so that the program's next descriptor has the number
/// that it expects. `None` if the process has no descriptor left.
pub fn copy_out_of_the_way(fd: RawFd) -> Option<RawFd> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills a local; the second call has no pointers.
    let copy = unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        let reserved = RESERVED_BASE.load(Ordering::Relaxed) as u64;
        let from = limit.rlim_cur.min(reserved).saturating_sub(256).max(3);
        libc::syscall(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, from) as RawFd
    };
    if copy < 0 {
        return None;
    }
    replace(copy, Entry::Private);
    Some(copy)
}

/// Closes a descriptor of this library.
pub fn close_private(fd: RawFd) {
    replace(fd, Entry::Linux);
    // SAFETY: ours alone.
    unsafe { libc::syscall(libc::SYS_close, fd) };
    numbers::freed(fd);
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
