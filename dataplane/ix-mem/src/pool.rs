//! A thread's stack of free frames: last in, first out, so that frames that are still in the cache
//! are used first.
use crate::{HEADROOM_BYTES, Mbuf, PacketMemory, prefetch_write};

/// Frames of one elastic thread and one kind (for receiving or for building). Without atomics: one
/// thread uses it.
pub struct Pool {
    free: Vec<u32>,
    owned: isize,
}

impl Pool {
    /// A pool that owns these frames.
    ///
    /// # Safety
    /// The numbers belong to one [`crate::PacketMemory`] and to no other pool or Mbuf.
    pub unsafe fn new(frames: core::ops::Range<u32>) -> Pool {
        Pool { owned: frames.len() as isize, free: frames.rev().collect() }
    }

    /// Takes a free frame; `None` if all are in use.
    #[inline]
    pub fn take(&mut self) -> Option<Mbuf> {
        let frame = self.free.pop()?;
        // SAFETY: the number was on the free stack, so nobody else holds it.
        Some(unsafe { Mbuf::from_frame(frame) })
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

    /// Returns a frame to the pool.
    #[inline]
    pub fn put(&mut self, mbuf: Mbuf) {
        self.free.push(mbuf.into_frame());
    }

    /// Number of free frames.
    pub fn free(&self) -> usize {
        self.free.len()
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
        self.owned - self.free.len() as isize
    }
}
