//! A thread's stack of free frames: last in, first out, so that frames that are still in the cache
//! are used first.
//!
//! A pool may have frames that devices cannot use themselves
//! ([`PacketMemory::limit_devices`]): they lie *beyond*, and are used when the others are taken.
use crate::{HEADROOM_BYTES, Mbuf, PacketMemory, prefetch_write};
use core::ops::Range;

/// Frames of one elastic thread and one kind (for receiving or for building). Without atomics: one
/// thread uses it.
pub struct Pool {
    free: Vec<u32>,
    /// Free frames beyond those that devices can use.
    beyond: Vec<u32>,
    /// Those that it was made with.
    made_beyond: Range<u32>,
    /// How often one of them was taken.
    taken_beyond: u64,
    owned: isize,
}

impl Pool {
    /// A pool that owns these frames.
    ///
    /// # Safety
    /// The numbers belong to one [`crate::PacketMemory`] and to no other pool or Mbuf.
    pub unsafe fn new(frames: Range<u32>) -> Pool {
        // SAFETY: the caller's promise.
        unsafe { Pool::with_beyond(frames, 0..0) }
    }

    /// A pool that owns these frames, and those beyond.
    ///
    /// # Safety
    /// As [`Pool::new`], for all of them.
    pub unsafe fn with_beyond(frames: Range<u32>, beyond: Range<u32>) -> Pool {
        Pool {
            owned: (frames.len() + beyond.len()) as isize,
            free: frames.rev().collect(),
            beyond: beyond.clone().rev().collect(),
            made_beyond: beyond,
            taken_beyond: 0,
        }
    }

    /// Takes a free frame; `None` if all are in use.
    #[inline]
    pub fn take(&mut self) -> Option<Mbuf> {
        let Some(frame) = self.free.pop() else { return self.take_beyond() };
        // SAFETY: the number was on the free stack, so nobody else holds it.
        Some(unsafe { Mbuf::from_frame(frame) })
    }

    /// Takes a free frame beyond those that devices can use.
    #[cold]
    pub fn take_beyond(&mut self) -> Option<Mbuf> {
        let frame = self.beyond.pop()?;
        self.taken_beyond += 1;
        // SAFETY: as in `take`.
        Some(unsafe { Mbuf::from_frame(frame) })
    }

    /// Takes a free frame that a device can use, of these; `None` if all of them are in use.
    #[inline]
    pub fn take_within(&mut self, devices: &Range<u32>) -> Option<Mbuf> {
        loop {
            let frame = self.free.pop()?;
            if devices.contains(&frame) {
                // SAFETY: as in `take`.
                return Some(unsafe { Mbuf::from_frame(frame) });
            }
            // It has come back like any other.
            self.beyond.push(frame);
        }
    }

    /// Returns a frame that devices cannot use.
    pub fn put_beyond(&mut self, mbuf: Mbuf) {
        self.beyond.push(mbuf.into_frame());
    }

    /// How many frames are free without those beyond, as far as those were returned as such.
    #[inline]
    pub fn near(&self) -> usize {
        self.free.len()
    }

    /// Number of free frames beyond.
    pub fn beyond(&self) -> usize {
        self.beyond.len()
    }

    /// How often a frame beyond was taken.
    pub fn taken_beyond(&self) -> u64 {
        self.taken_beyond
    }

    /// All frames beyond that it was made with, if each of them is free.
    pub fn unused_beyond(&mut self) -> Option<Range<u32>> {
        let Pool { free, beyond, made_beyond, .. } = self;
        free.retain(|frame| {
            let is_beyond = made_beyond.contains(frame);
            if is_beyond {
                beyond.push(*frame);
            }
            !is_beyond
        });
        let all = beyond.iter().filter(|frame| made_beyond.contains(frame)).count();
        if all < made_beyond.len() {
            return None;
        }
        // The lowest is taken first.
        beyond.sort_unstable_by(|a, b| b.cmp(a));
        Some(made_beyond.clone())
    }

    /// Prefetches the first `bytes` of the frame that will be taken after the next one, for
    /// writing: the last to read it was often another processor.
    #[inline]
    pub fn fetch_ahead(&self, memory: &PacketMemory, bytes: usize) {
        let after_next = self.free.len().checked_sub(2).and_then(|index| self.free.get(index));
        if let Some(&frame) = after_next {
            let start = memory.frame_ptr(frame).wrapping_add(HEADROOM_BYTES);
            (0..bytes).step_by(64).for_each(|at| prefetch_write(start.wrapping_add(at)));
        }
    }

    /// Returns a single buffer to the pool. [`Pool::put_frame`] takes chains too.
    #[inline]
    pub fn put(&mut self, mbuf: Mbuf) {
        debug_assert!(!mbuf.continues(), "the rest of a chain would be lost");
        self.free.push(mbuf.into_frame());
    }

    /// Number of free frames.
    pub fn free(&self) -> usize {
        self.free.len() + self.beyond.len()
    }

    /// To be called when the frame of this Mbuf moves to another thread's pool for good.
    pub fn disown(&mut self, _: &Mbuf) {
        self.owned -= 1;
    }

    /// To be called when the frame of this Mbuf has come from another thread's pool for good.
    pub fn adopt(&mut self, _: &Mbuf) {
        self.owned += 1;
    }

    /// As [`Pool::disown`], for frames that lists and flows hold.
    pub fn disown_many(&mut self, frames: usize) {
        self.owned -= frames as isize;
    }

    /// As [`Pool::adopt`], for frames that lists and flows hold.
    pub fn adopt_many(&mut self, frames: usize) {
        self.owned += frames as isize;
    }

    /// Number of frames that belong to this pool: those it was made with, without those disowned,
    /// and with those adopted.
    pub fn owned(&self) -> usize {
        self.owned.max(0) as usize
    }

    /// Number of frames in use: in rings or queues, or with the application.
    pub fn in_use(&self) -> isize {
        self.owned - self.free() as isize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> Pool {
        // SAFETY: no memory behind the numbers; they are only counted.
        unsafe { Pool::with_beyond(100..104, 0..8) }
    }

    #[test]
    fn frames_beyond_are_taken_last_and_never_by_a_device() {
        let mut pool = pool();
        assert_eq!((pool.free(), pool.near(), pool.owned()), (12, 4, 12));
        let near: Vec<Mbuf> = (0..4).map(|_| pool.take_within(&(100..104)).unwrap()).collect();
        assert!(pool.take_within(&(100..104)).is_none());
        let beyond = pool.take().unwrap();
        assert_eq!((beyond.frame(), pool.taken_beyond(), pool.in_use()), (0, 1, 5));
        // As when the application has read it.
        pool.put(beyond);
        near.into_iter().take(1).for_each(|mbuf| pool.put(mbuf));
        assert_eq!(pool.take_within(&(100..104)).map(|mbuf| mbuf.into_frame()), Some(100));
        assert!(pool.take_within(&(100..104)).is_none(), "the other one is beyond");
        assert_eq!(pool.beyond(), 8);
    }

    #[test]
    fn frames_beyond_are_unused_once_each_has_come_back() {
        let mut pool = pool();
        let near: Vec<Mbuf> = (0..4).map(|_| pool.take().unwrap()).collect();
        let beyond: Vec<Mbuf> = (0..3).map(|_| pool.take().unwrap()).collect();
        assert_eq!(pool.unused_beyond(), None);
        near.into_iter().chain(beyond).for_each(|mbuf| pool.put(mbuf));
        assert_eq!((pool.unused_beyond(), pool.near(), pool.free()), (Some(0..8), 4, 12));
        let order: Vec<u32> = (0..12).map(|_| pool.take().unwrap().into_frame()).collect();
        assert_eq!(order[4..], [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}
