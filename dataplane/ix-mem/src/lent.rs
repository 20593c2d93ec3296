//! Frames that the application holds one by one, and returns by number.
use crate::{Mbuf, PacketMemory};

/// Receive frames that the application holds and that belong to no flow (datagrams). Owning: a
/// frame leaves as an [`Mbuf`], once.
pub struct LentFrames {
    lent: Vec<u64>,
    /// Who holds each frame that is lent.
    holders: Vec<u8>,
    count: usize,
}

impl LentFrames {
    /// A set without frames, for the frames of this memory.
    pub fn new(memory: &PacketMemory) -> LentFrames {
        let frames = memory.rx_frames().len();
        LentFrames { lent: vec![0; frames.div_ceil(64)], holders: vec![0; frames], count: 0 }
    }

    /// Number of frames that are lent now.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Lends a receive frame to a holder, of whom the caller has several.
    ///
    /// # Panics
    /// If it is not a receive frame.
    pub fn lend(&mut self, mbuf: Mbuf, holder: u8) {
        let frame = mbuf.into_frame() as usize;
        self.holders[frame] = holder;
        self.lent[frame / 64] |= 1 << (frame % 64);
        self.count += 1;
    }

    /// Takes a frame back; `None` if it was not lent to this holder, whatever the number is.
    pub fn take_back(&mut self, frame: u32, holder: u8) -> Option<Mbuf> {
        let (word, bit) = (frame as usize / 64, 1 << (frame % 64));
        let lent = self.lent.get_mut(word)?;
        if *lent & bit == 0 || self.holders[frame as usize] != holder {
            return None;
        }
        *lent &= !bit;
        self.count -= 1;
        // SAFETY: the frame was lent, so its Mbuf had been given up to us; the bit is cleared, so
        // this happens once.
        Some(unsafe { Mbuf::from_frame(frame) })
    }

    /// Takes all frames back that a holder has; each goes to `free`.
    pub fn take_all_back(&mut self, holder: u8, mut free: impl FnMut(Mbuf)) {
        for frame in 0..self.holders.len() as u32 {
            if let Some(mbuf) = self.take_back(frame, holder) {
                free(mbuf);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Pool, Sizes};

    #[test]
    fn only_what_was_lent_comes_back_and_only_once() {
        let memory =
            PacketMemory::new(Sizes { rx_frames: 100, tx_frames: 1, arena_bytes: 1 }).unwrap();
        // SAFETY: the only pool of this memory.
        let mut pool = unsafe { Pool::new(0..100) };
        let mut lent = LentFrames::new(&memory);
        let mbuf = pool.take().unwrap();
        let frame = mbuf.frame();
        lent.lend(mbuf, 3);
        assert!(lent.take_back(frame + 1, 3).is_none());
        assert!(lent.take_back(u32::MAX, 3).is_none());
        assert!(lent.take_back(frame, 2).is_none(), "of another holder");
        pool.put(lent.take_back(frame, 3).unwrap());
        assert!(lent.take_back(frame, 3).is_none());
        lent.lend(pool.take().unwrap(), 3);
        lent.lend(pool.take().unwrap(), 4);
        lent.take_all_back(4, |mbuf| pool.put(mbuf));
        assert_eq!((lent.count(), pool.in_use()), (1, 1));
        lent.take_all_back(3, |mbuf| pool.put(mbuf));
        assert_eq!((lent.count(), pool.in_use()), (0, 0));
    }
}
