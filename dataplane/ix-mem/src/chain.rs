//! Frames to send in several buffers.
//!
//! Such a frame is a *chain*: the [`Mbuf`] of its first buffer owns the others too. So a queue
//! holds one mbuf for each frame, however long that is. The first buffer is filled to its end, the
//! others from their beginning; the links are in the table beside the frames, as those of lists
//! are. A chain is never in an [`crate::MbufList`], which uses the same links.
use crate::list::Link;
use crate::{FRAME_BYTES, HEADROOM_BYTES, Mbuf, PacketMemory, Pool, ROOM_BYTES};

/// Number of buffers of a frame of `len` bytes to send.
#[inline]
pub fn buffers_for(len: usize) -> usize {
    1 + len.saturating_sub(ROOM_BYTES).div_ceil(FRAME_BYTES)
}

/// A buffer of a chain: frame, offset, length, and whether another one follows.
#[derive(Clone, Copy)]
struct Piece {
    frame: u32,
    off: usize,
    len: usize,
    continues: bool,
}

impl Piece {
    fn of(mbuf: &Mbuf) -> Piece {
        let (frame, continues) = (mbuf.frame(), mbuf.continues());
        Piece { frame, off: mbuf.offset(), len: mbuf.len(), continues }
    }
}

/// The buffers of a chain, in order.
#[derive(Clone)]
struct Pieces<'a> {
    memory: &'a PacketMemory,
    next: Option<Piece>,
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let piece = self.next?;
        self.next = piece.continues.then(|| {
            let frame = self.memory.link(piece.frame).next();
            self.memory.link(frame).piece(frame)
        });
        Some(piece)
    }
}

impl Link {
    fn piece(self, frame: u32) -> Piece {
        let (off, len, continues) = self.range();
        Piece { frame, off, len, continues }
    }
}

impl Mbuf {
    fn walk<'a>(&self, memory: &'a PacketMemory) -> Pieces<'a> {
        Pieces { memory, next: Some(Piece::of(self)) }
    }

    /// The bytes of each buffer of the frame, in order.
    pub fn pieces<'a>(
        &'a self,
        memory: &'a PacketMemory,
    ) -> impl Iterator<Item = &'a [u8]> + Clone {
        // SAFETY: the chain owns its frames, each once, with ranges within them
        // (`Mbuf::set_range`); `&self` forbids to write them meanwhile.
        Pieces { memory, next: Some(Piece::of(self)) }.map(move |piece| unsafe {
            core::slice::from_raw_parts(memory.frame_ptr(piece.frame).add(piece.off), piece.len)
        })
    }

    /// The bytes of each buffer behind the first, in order, for writing.
    pub fn tails_mut<'a>(
        &'a mut self,
        memory: &'a PacketMemory,
    ) -> impl Iterator<Item = &'a mut [u8]> {
        // SAFETY: as in `pieces`; all of them are different frames, and `&mut self` makes these the
        // only references.
        self.walk(memory).skip(1).map(move |piece| unsafe {
            core::slice::from_raw_parts_mut(memory.frame_ptr(piece.frame).add(piece.off), piece.len)
        })
    }

    /// The frame numbers of its buffers, in order.
    pub fn frames<'a>(&self, memory: &'a PacketMemory) -> impl Iterator<Item = u32> + 'a {
        self.walk(memory).map(|piece| piece.frame)
    }

    /// Bytes of the whole frame.
    pub fn frame_len(&self, memory: &PacketMemory) -> usize {
        match self.continues() {
            false => self.len(),
            true => self.walk(memory).map(|piece| piece.len).sum(),
        }
    }

    /// Number of its buffers.
    pub fn buffers(&self, memory: &PacketMemory) -> usize {
        match self.continues() {
            false => 1,
            true => self.walk(memory).count(),
        }
    }

    /// Writes these bytes, as far as the frame has room for them, from byte `at` of its first
    /// buffer on.
    pub fn write_at(&mut self, memory: &PacketMemory, at: usize, bytes: &[u8]) {
        let place = self.bytes_mut(memory).get_mut(at..).unwrap_or_default();
        let (first, mut rest) = bytes.split_at(place.len().min(bytes.len()));
        place[..first.len()].copy_from_slice(first);
        for tail in self.tails_mut(memory) {
            let (now, later) = rest.split_at(tail.len().min(rest.len()));
            tail[..now.len()].copy_from_slice(now);
            rest = later;
        }
    }

    /// Puts a chain or a single buffer behind this buffer, which is the last one of its frame.
    pub fn attach(&mut self, memory: &PacketMemory, rest: Mbuf) {
        debug_assert!(!self.continues());
        let (off, len, continues) = (rest.offset(), rest.len(), rest.continues());
        let frame = rest.frame();
        memory.set_link(&rest, memory.link(frame).with_range(off, len, continues));
        memory.set_link(self, memory.link(self.frame()).with_next(frame));
        self.set_continues(true);
    }

    /// Takes off what is behind this buffer.
    #[inline]
    pub fn detach(&mut self, memory: &PacketMemory) -> Option<Mbuf> {
        if self.continues() { Some(self.detach_rest(memory)) } else { None }
    }

    #[inline(never)]
    fn detach_rest(&mut self, memory: &PacketMemory) -> Mbuf {
        let frame = memory.link(self.frame()).next();
        let (off, len, continues) = memory.link(frame).range();
        self.set_continues(false);
        // SAFETY: `attach` put the frame of an owning mbuf behind this one, which has been the only
        // way to it since, and is no more.
        let mut rest = unsafe { Mbuf::from_frame(frame) };
        rest.set_range(off, len);
        rest.set_continues(continues);
        rest
    }
}

impl Pool {
    /// Takes the buffers of a frame of `len` bytes, with all of them in use; `None`, and nothing is
    /// taken, if there are too few.
    pub fn take_frame(&mut self, memory: &PacketMemory, len: usize) -> Option<Mbuf> {
        let mut first = self.take()?;
        first.set_range(HEADROOM_BYTES, len.min(ROOM_BYTES));
        match self.extend(memory, &mut first, len.saturating_sub(ROOM_BYTES)) {
            true => Some(first),
            false => {
                self.put(first);
                None
            }
        }
    }

    /// Puts buffers for `len` more bytes behind the only one of a frame. False, and nothing
    /// changes, if there are too few.
    #[inline(never)]
    pub fn extend(&mut self, memory: &PacketMemory, first: &mut Mbuf, len: usize) -> bool {
        if len.div_ceil(FRAME_BYTES) > self.free() {
            return false;
        }
        // The last one first.
        let mut rest = None;
        let mut left = len;
        while left > 0 {
            let part = (left - 1) % FRAME_BYTES + 1;
            let Some(mut mbuf) = self.take() else { break };
            mbuf.set_range(0, part);
            if let Some(rest) = rest.take() {
                mbuf.attach(memory, rest);
            }
            rest = Some(mbuf);
            left -= part;
        }
        if let Some(rest) = rest {
            first.attach(memory, rest);
        }
        left == 0
    }

    /// Returns all buffers of a frame to the pool.
    #[inline]
    pub fn put_frame(&mut self, memory: &PacketMemory, mut mbuf: Mbuf) {
        while let Some(rest) = mbuf.detach(memory) {
            self.put(core::mem::replace(&mut mbuf, rest));
        }
        self.put(mbuf);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sizes;

    const SIZES: Sizes = Sizes { rx_frames: 1, tx_frames: 1024, arena_bytes: 1 };

    #[test]
    fn a_chain_has_the_buffers_that_its_frame_needs_and_gives_all_back() {
        let memory = PacketMemory::new(SIZES).unwrap();
        let (_, mut pool) = memory.take_pools().unwrap();
        for len in [0, 1, ROOM_BYTES, ROOM_BYTES + 1, ROOM_BYTES + FRAME_BYTES, 9014, 65_535] {
            let bytes: Vec<u8> = (0..len).map(|n| (n % 251) as u8).collect();
            let mut frame = pool.take_frame(&memory, len).unwrap();
            assert_eq!((frame.frame_len(&memory), frame.continues()), (len, len > ROOM_BYTES));
            assert_eq!(frame.buffers(&memory), buffers_for(len));
            assert_eq!(pool.in_use(), buffers_for(len) as isize);
            frame.write_at(&memory, 0, &bytes);
            assert_eq!(frame.pieces(&memory).collect::<Vec<_>>().concat(), bytes);
            // One after the other, as a device takes them.
            let (mut seen, mut rest) = (Vec::new(), Some(frame));
            while let Some(mut one) = rest {
                rest = one.detach(&memory);
                assert!(!one.continues());
                seen.extend_from_slice(one.bytes(&memory));
                pool.put(one);
            }
            assert_eq!((seen, pool.in_use()), (bytes, 0));
        }
    }

    #[test]
    fn many_chains_at_a_time_keep_their_buffers() {
        let memory = PacketMemory::new(SIZES).unwrap();
        let (_, mut pool) = memory.take_pools().unwrap();
        let mut frames = Vec::new();
        while let Some(mut frame) = pool.take_frame(&memory, 9014) {
            let byte = frames.len() as u8;
            frame.write_at(&memory, 0, &[byte; 9014]);
            frames.push(frame);
        }
        assert_eq!(frames.len(), pool.owned() / buffers_for(9014));
        assert!(pool.free() < buffers_for(9014), "what was taken in vain is back");
        for (number, frame) in frames.into_iter().enumerate() {
            let is_its = |piece: &[u8]| piece.iter().all(|byte| *byte == number as u8);
            assert!(frame.pieces(&memory).all(is_its));
            pool.put_frame(&memory, frame);
        }
        assert_eq!(pool.in_use(), 0);
    }
}
