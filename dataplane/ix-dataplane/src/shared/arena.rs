//! The application's transmit memory, allocated in steps of 2 MB. Not on the packet path.

/// The transmit memory as 2 MB steps, first fit.
pub struct Arena {
    base: usize,
    used: Vec<bool>,
}

/// Bytes of one step.
pub const STEP: usize = 2 << 20;

impl Arena {
    /// A free arena of `(address, bytes)`.
    pub fn new((base, bytes): (usize, usize)) -> Arena {
        Arena { base, used: vec![false; bytes / STEP] }
    }

    /// From now on what lies before this offset is allocated.
    pub fn give(&mut self, bytes: u64) {
        let steps = usize::try_from(bytes.div_ceil(STEP as u64)).unwrap_or(usize::MAX);
        let steps = steps.min(self.used.len());
        self.used[..steps].fill(true);
    }

    /// Offset of the end of the last allocation, bytes.
    pub fn end(&self) -> u64 {
        let steps = self.used.iter().rposition(|used| *used).map_or(0, |last| last + 1);
        (steps * STEP) as u64
    }

    /// Makes all of it free.
    pub fn clear(&mut self) {
        self.used.fill(false);
    }

    /// Allocates `bytes`, rounded up to whole steps; returns the address.
    pub fn allocate(&mut self, bytes: u64) -> Option<u64> {
        let steps = usize::try_from(bytes.div_ceil(STEP as u64)).ok()?.max(1);
        if steps > self.used.len() {
            return None;
        }
        let first = (0..=self.used.len() - steps)
            .find(|&first| self.used[first..first + steps].iter().all(|used| !used))?;
        self.used[first..first + steps].fill(true);
        Some((self.base + first * STEP) as u64)
    }

    /// Frees what `allocate` has returned; false if it was not allocated.
    pub fn free(&mut self, addr: u64, bytes: u64) -> bool {
        let Some(offset) = (addr as usize).checked_sub(self.base) else { return false };
        let first = offset / STEP;
        let Ok(steps) = usize::try_from(bytes.div_ceil(STEP as u64)) else { return false };
        let Some(end) = first.checked_add(steps.max(1)) else { return false };
        if offset % STEP != 0 || end > self.used.len() || !self.used[first..end].iter().all(|u| *u)
        {
            return false;
        }
        self.used[first..end].fill(false);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_fit_and_refusals() {
        let mut arena = Arena::new((0x40_0000, 4 * STEP));
        let a = arena.allocate(1).unwrap();
        let b = arena.allocate(2 * STEP as u64).unwrap();
        assert_eq!((a, b), (0x40_0000, 0x40_0000 + STEP as u64));
        assert_eq!(arena.allocate(2 * STEP as u64), None);
        assert_eq!(arena.allocate(u64::MAX), None);
        assert!(!arena.free(b + 1, 1));
        assert!(!arena.free(b, u64::MAX));
        assert!(!arena.free(0, 1));
        assert!(arena.free(b, 2 * STEP as u64));
        assert!(!arena.free(b, 2 * STEP as u64));
        assert_eq!(arena.allocate(3 * STEP as u64), Some(b));
    }

    #[test]
    fn what_an_earlier_dataplane_gave_out_is_not_given_again() {
        let mut first = Arena::new((0x40_0000, 4 * STEP));
        let a = first.allocate(1).unwrap();
        first.allocate(1).unwrap();
        assert!(first.free(a, 1));
        let mut second = Arena::new((0x40_0000, 4 * STEP));
        second.give(first.end());
        assert_eq!((first.end(), second.end()), (2 * STEP as u64, 2 * STEP as u64));
        assert_eq!(second.allocate(1), Some(0x40_0000 + 2 * STEP as u64));
        second.give(u64::MAX);
        assert_eq!((second.allocate(1), second.end()), (None, 4 * STEP as u64));
    }
}
