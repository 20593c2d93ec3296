//! Memory that is sent from where it is.
use std::sync::atomic::{AtomicU8, AtomicU64};

/// Bytes of memory that all threads of the program use ([`super::Thread::shared_memory`]): where
/// they are and how many. Nobody reads them through it but the dataplane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lent {
    base: u64,
    len: usize,
}

impl Lent {
    /// `len` bytes from byte `start` on; `None` when they are not all there.
    #[inline]
    pub fn of(words: &'static [AtomicU64], start: usize, len: usize) -> Option<Lent> {
        let end = start.checked_add(len)?;
        let base = words.as_ptr().expose_provenance() as u64;
        (end <= size_of_val(words)).then(|| Lent { base: base + start as u64, len })
    }

    /// Address, for a scatter-gather entry.
    #[inline]
    pub fn base(self) -> u64 {
        self.base
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty)]
    #[inline]
    pub fn len(self) -> usize {
        self.len
    }
}

impl From<&'static [AtomicU8]> for Lent {
    fn from(bytes: &'static [AtomicU8]) -> Lent {
        Lent { base: bytes.as_ptr().expose_provenance() as u64, len: bytes.len() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bytes_that_are_there_are_lent() {
        static WORDS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
        let all = Lent::of(&WORDS, 0, 32).unwrap();
        assert_eq!((all.base(), all.len()), (WORDS.as_ptr().addr() as u64, 32));
        let end = Lent::of(&WORDS, 5, 27).unwrap();
        assert_eq!((end.base() - all.base(), end.len()), (5, 27));
        assert!(Lent::of(&WORDS, 5, 28).is_none() && Lent::of(&WORDS, usize::MAX, 1).is_none());
        assert_eq!(Lent::of(&WORDS, 32, 0).unwrap().len(), 0);
    }
}
