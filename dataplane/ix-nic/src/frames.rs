//! The set of frames that a device has.

/// A set of frame numbers, a bit each: the frames that were given to a device and not returned.
///
/// A frame number from a ring that is shared with the kernel makes an owning `Mbuf` only if it is
/// in the set. So a wrong ring entry can lose a packet, but never gives a frame two owners.
#[derive(Debug)]
pub(crate) struct FrameSet {
    bits: Vec<u64>,
    count: usize,
}

impl FrameSet {
    /// An empty set for frames `0..frames`.
    pub fn new(frames: usize) -> FrameSet {
        FrameSet { bits: vec![0; frames.div_ceil(64)], count: 0 }
    }

    /// Adds a frame that is not in the set.
    #[inline]
    pub fn insert(&mut self, frame: u32) {
        let word = &mut self.bits[frame as usize / 64];
        debug_assert_eq!(*word >> (frame % 64) & 1, 0, "frame {frame} given twice");
        *word |= 1 << (frame % 64);
        self.count += 1;
    }

    /// Removes a frame; false if it is not in the set.
    #[inline]
    pub fn remove(&mut self, frame: u64) -> bool {
        let Some(word) = self.bits.get_mut((frame / 64) as usize) else { return false };
        let bit = 1 << (frame % 64);
        let held = *word & bit != 0;
        *word &= !bit;
        self.count -= usize::from(held);
        held
    }

    /// Number of frames in the set.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Empties the set.
    pub fn drain(&mut self) -> impl Iterator<Item = u32> + '_ {
        self.count = 0;
        self.bits.iter_mut().enumerate().flat_map(|(i, word)| {
            let bits = std::mem::take(word);
            (0..64).filter(move |b| bits >> b & 1 != 0).map(move |b| (i * 64 + b) as u32)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_each_frame_back_once() {
        let mut set = FrameSet::new(200);
        for frame in [0, 63, 64, 199] {
            set.insert(frame);
        }
        assert!(set.remove(64));
        assert!(!set.remove(64), "no longer there");
        assert!(!set.remove(1), "never there");
        assert!(!set.remove(1 << 40), "far outside");
        assert_eq!(set.count(), 3);
        assert_eq!(set.drain().collect::<Vec<_>>(), [0, 63, 199]);
        assert_eq!((set.count(), set.drain().count()), (0, 0));
    }
}
