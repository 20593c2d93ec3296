//! Item memory: words that any thread may read at any time.
//!
//! Readers take no lock, so every access is an atomic one; a reader finds out afterwards (see
//! [`crate::index`]) whether what it saw belongs together. Indices that came out of such memory may
//! be garbage: reads outside are 0, never a panic.
use libix::raw::Lent;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const WORD: usize = 8;

/// The memory of all items.
#[derive(Clone, Copy)]
pub struct Words(&'static [AtomicU64]);

impl Words {
    /// Zeroed memory of the process, in large pages where there are any, up to its last whole word.
    pub fn private(bytes: usize) -> std::io::Result<Words> {
        ix_sys::zeroed_words(bytes / WORD).map(Words)
    }

    /// Memory that was given.
    pub fn over(words: &'static [AtomicU64]) -> Words {
        Words(words)
    }

    /// How many.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(self) -> usize {
        self.0.len()
    }

    /// One word; 0 outside.
    #[inline]
    pub fn load(self, at: usize) -> u64 {
        self.0.get(at).map_or(0, |word| word.load(Relaxed))
    }

    /// Writes one word. Only the holder of an item's lock may, or the maker of an item that cannot
    /// be found yet.
    #[inline]
    pub fn store(self, at: usize, value: u64) {
        if let Some(word) = self.0.get(at) {
            word.store(value, Relaxed);
        }
    }

    /// Writes bytes at byte `at`, behind whatever is in their first word.
    pub fn write(self, at: usize, mut data: &[u8]) {
        let mut word = at / WORD;
        let inside = at % WORD;
        if inside > 0 {
            let (head, rest) = data.split_at(data.len().min(WORD - inside));
            self.patch(word, inside, head);
            word += 1;
            data = rest;
        }
        let (whole, tail) = data.as_chunks::<WORD>();
        for (index, chunk) in whole.iter().enumerate() {
            self.store(word + index, u64::from_le_bytes(*chunk));
        }
        if !tail.is_empty() {
            self.patch(word + whole.len(), 0, tail);
        }
    }

    fn patch(self, at: usize, inside: usize, data: &[u8]) {
        let mut bytes = self.load(at).to_le_bytes();
        bytes[inside..inside + data.len()].copy_from_slice(data);
        self.store(at, u64::from_le_bytes(bytes));
    }

    /// Appends `len` bytes from word `at` on; `false`, and nothing, when they are not all there.
    #[inline]
    pub fn read(self, at: usize, len: usize, to: &mut Vec<u8>) -> bool {
        let start = to.len();
        let words = len.div_ceil(WORD);
        let Some(from) = at.checked_add(words).and_then(|end| self.0.get(at..end)) else {
            return false;
        };
        to.resize(start + words * WORD, 0);
        let (chunks, _) = to[start..].as_chunks_mut::<WORD>();
        for (chunk, word) in chunks.iter_mut().zip(from) {
            *chunk = word.load(Relaxed).to_le_bytes();
        }
        to.truncate(start + len);
        true
    }

    /// Whether `data` is at word `at`.
    #[inline]
    pub fn equal(self, at: usize, data: &[u8]) -> bool {
        let (whole, tail) = data.as_chunks::<WORD>();
        for (index, chunk) in whole.iter().enumerate() {
            if self.load(at + index) != u64::from_le_bytes(*chunk) {
                return false;
            }
        }
        if tail.is_empty() {
            return true;
        }
        let mut last = [0; WORD];
        last[..tail.len()].copy_from_slice(tail);
        // What stands behind the end of a key is 0: `clear_tail`.
        self.load(at + whole.len()) == u64::from_le_bytes(last)
    }

    /// Copies bytes between items; both ends at words, or the target where [`Words::write`] may.
    pub fn copy(self, from: usize, len: usize, to_byte: usize) {
        let mut block = [0; 64];
        let mut done = 0;
        while done < len {
            let n = block.len().min(len - done);
            for (index, chunk) in block.chunks_exact_mut(WORD).enumerate() {
                chunk.copy_from_slice(&self.load(from + done / WORD + index).to_le_bytes());
            }
            self.write(to_byte + done, &block[..n]);
            done += n;
        }
    }

    /// `len` bytes from word `at` on, for somebody who is told when not to read them.
    pub fn lend(self, at: usize, len: usize) -> Option<Span> {
        let words = self.0.get(at..at.checked_add(len.div_ceil(WORD))?)?;
        Some(Span { words: Words(words), lent: Lent::of(words, 0, len)? })
    }
}

/// Bytes in item memory.
#[derive(Clone, Copy)]
pub struct Span {
    words: Words,
    lent: Lent,
}

impl Span {
    /// How many.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(self) -> usize {
        self.lent.len()
    }

    /// Where they are, to be sent from there.
    pub fn lent(self) -> Lent {
        self.lent
    }

    /// Appends them.
    pub fn copy(self, to: &mut Vec<u8>) {
        self.words.read(0, self.len(), to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_make_the_whole(
            first in 0..20usize,
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8),
        ) {
            let words = Words::private(4096).unwrap();
            let mut at = first * WORD;
            for piece in &pieces {
                words.write(at, piece);
                at += piece.len();
            }
            let whole = pieces.concat();
            let mut read = vec![7];
            prop_assert!(words.read(first, whole.len(), &mut read));
            prop_assert_eq!(&read[1..], &whole[..]);
            prop_assert!(words.equal(first, &whole));
            words.copy(first, whole.len(), 2001);
            words.copy(first, whole.len(), 3000);
            let mut copied = Vec::new();
            words.read(375, whole.len(), &mut copied);
            prop_assert_eq!(&copied, &whole);
            copied.clear();
            words.read(250, whole.len() + 1, &mut copied);
            prop_assert_eq!(&copied[1..], &whole[..]);
        }
    }

    #[test]
    fn nothing_outside() {
        let words = Words::private(4096).unwrap();
        words.store(512, 1);
        assert_eq!((words.load(512), words.load(usize::MAX)), (0, 0));
        assert!(!words.read(511, 9, &mut Vec::new()) && words.read(511, 8, &mut Vec::new()));
        assert!(words.lend(511, 9).is_none() && words.lend(usize::MAX, 1).is_none());
    }
}
