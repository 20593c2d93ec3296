//! The descriptors that a dataplane in another process has in this one.
//!
//! The program may have all other numbers of the range that is reserved for them: a limit that it
//! has lifted, or that was high from the start, reaches beyond the range.
use core::sync::atomic::{AtomicI32, Ordering};
use ix_proto::crossing::THREADS_MAX;
use std::os::fd::RawFd;

/// A bell and a signalfd for each elastic thread.
const MOST: usize = 2 * THREADS_MAX;

/// Numbers plus 1, and then zeroes. Unlike the table behind the gate it is there in a forked child.
static ALL: [AtomicI32; MOST] = [const { AtomicI32::new(0) }; MOST];

/// There is one more.
pub fn add(fd: RawFd) {
    if let Some(free) = ALL.iter().find(|own| own.load(Ordering::Relaxed) == 0) {
        free.store(fd + 1, Ordering::Relaxed);
    }
}

/// The descriptor of this index; `None` behind the last one.
pub fn get(index: usize) -> Option<RawFd> {
    let word = ALL.get(index)?.load(Ordering::Relaxed);
    (word != 0).then_some(word - 1)
}

/// There are none any more; `each` gets those that there were.
pub fn take_all(each: impl Fn(RawFd)) {
    let taken = ALL.iter().map(|own| own.swap(0, Ordering::Relaxed));
    taken.take_while(|word| *word != 0).for_each(|word| each(word - 1));
}
