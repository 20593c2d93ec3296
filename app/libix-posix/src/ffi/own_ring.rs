//! The ring of io_uring by which this library sends completions to the program's rings.
use super::direct::bare;
use crate::fds;
use crate::uring::{Entry, Message, Params};
use core::ptr::{null_mut, with_exposed_provenance, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicU32, Ordering};
use libc::c_long;
use std::os::fd::RawFd;

/// Its entries.
const ENTRIES: u32 = 64;
/// How often Linux is asked to take them, when it is short of memory.
const TRIES: u32 = 1000;
/// Where Linux shows rings and entries, as offsets of `mmap`.
const OFFSETS: [i64; 2] = [0, 0x1000_0000];

/// A ring of ours.
pub struct OwnRing {
    fd: RawFd,
    /// Its words, and its entries.
    memory: [usize; 2],
    params: Params,
    tail: u32,
}

impl OwnRing {
    /// `None`: Linux makes none.
    pub fn make() -> Option<OwnRing> {
        let mut params = Params::default();
        let at = (&raw mut params).expose_provenance() as c_long;
        // SAFETY: Linux fills a local.
        let made = unsafe { bare(libc::SYS_io_uring_setup, [ENTRIES.into(), at, 0, 0, 0, 0]) };
        let made = RawFd::try_from(made).ok().filter(|made| *made >= 0)?;
        let fd = fds::copy_out_of_the_way(made);
        // SAFETY: ours alone.
        unsafe { libc::syscall(libc::SYS_close, made) };
        let fd = fd?;
        let offsets = &params.submission;
        let words = (offsets.array + 4 * params.entries) as usize;
        let lengths = [words, params.entries as usize * size_of::<Entry>()];
        let mut memory = [0; 2];
        for ((to, len), offset) in memory.iter_mut().zip(lengths).zip(OFFSETS) {
            // SAFETY: new mappings, of which this value alone knows.
            unsafe {
                let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
                let at = libc::mmap(null_mut(), len, rights, flags, fd, offset);
                if at == libc::MAP_FAILED {
                    fds::close_private(fd);
                    return None;
                }
                libc::madvise(at, len, libc::MADV_DONTFORK);
                *to = at.expose_provenance();
            }
        }
        Some(OwnRing { fd, memory, params, tail: 0 })
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        let at = with_exposed_provenance(self.memory[0] + offset as usize);
        // SAFETY: one of the ring's words, which stay mapped.
        unsafe { &*at }
    }

    /// Sends these completions, in their order.
    pub fn send(&mut self, messages: &[Message]) {
        for some in messages.chunks(self.params.entries as usize) {
            let offsets = self.params.submission;
            for message in some {
                let slot = self.tail & (self.params.entries - 1);
                let at = self.memory[1] + slot as usize * size_of::<Entry>();
                // SAFETY: a slot of the ring that Linux has emptied: it takes all at each call.
                unsafe {
                    with_exposed_provenance_mut::<Entry>(at)
                        .write_volatile(Entry::message(message));
                }
                self.word(offsets.array + 4 * slot).store(slot, Ordering::Relaxed);
                self.tail = self.tail.wrapping_add(1);
            }
            self.word(offsets.tail).store(self.tail, Ordering::Release);
            let mut left = some.len() as c_long;
            for _ in 0..TRIES {
                if left == 0 {
                    break;
                }
                let enter = [self.fd.into(), left, 0, 0, 0, 0];
                // SAFETY: no pointers.
                match unsafe { bare(libc::SYS_io_uring_enter, enter) } {
                    taken if taken > 0 => left -= taken,
                    // Interrupted, or short of memory.
                    _ => std::thread::yield_now(),
                }
            }
            // What could not be sent is of a ring that the program has closed.
            let completion = self.params.completion;
            let tail = self.word(completion.tail).load(Ordering::Acquire);
            self.word(completion.head).store(tail, Ordering::Release);
        }
    }
}
