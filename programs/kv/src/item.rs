//! One item in memory: five words, then the key, then the value, each beginning at a word.
//!
//! ```text
//! 0  next in chain (32) | hash (32)          3  value bytes (32) | key bytes (8) | class | bits
//! 1  cas                                     4  stored at, s (32) | references (32)
//! 2  expires at, s (32) | client flags (32)  5  key, value
//! ```
use crate::words::Words;

const HEADER_WORDS: usize = 5;
/// An item can be found.
const LINKED: u64 = 1 << 48;
/// It was found since the clock's hand last passed.
const USED: u64 = 1 << 49;
/// It was found at some time.
const FETCHED: u64 = 1 << 50;
/// Its memory is free.
const FREE: u64 = 1 << 51;
const LOW: u64 = 0xffff_ffff;

/// No item: the first word of memory belongs to none.
pub const NIL: u32 = 0;

/// Key and fixed fields of a new item.
#[derive(Clone, Copy)]
pub struct Fresh<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Its hash.
    pub hash: u32,
    /// The client's flags.
    pub flags: u32,
    /// When it ends, s; 0: never.
    pub expires_s: u32,
    /// Bytes of the value to come.
    pub value_len: u32,
}

/// The place of an item. Fields may be garbage if read without its lock.
#[derive(Clone, Copy)]
pub struct Item {
    words: Words,
    /// Its first word.
    pub at: u32,
}

impl Item {
    /// The item at a word.
    #[inline]
    pub fn new(words: Words, at: u32) -> Item {
        Item { words, at }
    }

    /// Bytes of memory that an item needs.
    pub fn bytes(key_len: usize, value_len: u64) -> u64 {
        let words = HEADER_WORDS as u64 + (key_len as u64).div_ceil(8) + value_len.div_ceil(8);
        words * 8
    }

    #[inline]
    fn load(self, word: usize) -> u64 {
        self.words.load(self.at as usize + word)
    }

    #[inline]
    fn store(self, word: usize, value: u64) {
        self.words.store(self.at as usize + word, value);
    }

    /// Writes header and key of an item that cannot be found yet.
    pub fn begin(self, fresh: &Fresh<'_>, class: u8) {
        let Fresh { key, hash, flags, expires_s, value_len } = *fresh;
        self.store(0, u64::from(hash) << 32);
        self.store(1, 0);
        self.store(2, u64::from(flags) << 32 | u64::from(expires_s));
        self.store(3, u64::from(class) << 40 | (key.len() as u64) << 32 | u64::from(value_len));
        self.store(4, 0);
        if !key.is_empty() {
            // Keys are compared by words: the bytes after the end must be 0.
            self.store(HEADER_WORDS + (key.len() - 1) / 8, 0);
            self.words.write((self.at as usize + HEADER_WORDS) * 8, key);
        }
    }

    /// Next item of the chain, and hash.
    #[inline]
    pub fn link(self) -> (u32, u32) {
        let word = self.load(0);
        (word as u32, (word >> 32) as u32)
    }

    /// Sets the next item.
    pub fn set_next(self, next: u32) {
        self.store(0, self.load(0) & !LOW | u64::from(next));
    }

    /// Unique number of the last change.
    #[inline]
    pub fn cas(self) -> u64 {
        self.load(1)
    }

    /// Records a change.
    pub fn set_cas(self, cas: u64) {
        self.store(1, cas);
    }

    /// When it ends, s (0: never), and the client's flags.
    #[inline]
    pub fn expires_and_flags(self) -> (u32, u32) {
        let word = self.load(2);
        (word as u32, (word >> 32) as u32)
    }

    /// Sets when it ends.
    pub fn set_expires(self, expires_s: u32) {
        self.store(2, self.load(2) & !LOW | u64::from(expires_s));
    }

    /// Lengths, class and bits.
    #[inline]
    pub fn shape(self) -> Shape {
        Shape(self.load(3))
    }

    /// Sets and clears bits.
    pub fn set_bits(self, linked: bool, used: bool) {
        let word = self.load(3) & !(LINKED | USED);
        self.store(3, word | if linked { LINKED } else { 0 } | if used { USED } else { 0 });
    }

    /// Marks memory that is not an item yet, and no longer free.
    pub fn set_taken(self, class: u8) {
        self.store(3, u64::from(class) << 40);
    }

    /// Marks memory as free.
    pub fn set_free(self, class: u8) {
        self.store(3, FREE | u64::from(class) << 40);
    }

    /// Marks it as found.
    pub fn set_found(self) {
        self.store(3, self.load(3) | USED | FETCHED);
    }

    /// When it was stored, s.
    #[inline]
    pub fn stored_s(self) -> u32 {
        self.load(4) as u32
    }

    /// Sets when it was stored.
    pub fn set_stored(self, now_s: u32) {
        self.store(4, self.load(4) & !LOW | u64::from(now_s));
    }

    /// Number of replies that are sending the value.
    pub fn references(self) -> u32 {
        (self.load(4) >> 32) as u32
    }

    /// Sets that number.
    pub fn set_references(self, references: u32) {
        self.store(4, self.load(4) & LOW | u64::from(references) << 32);
    }

    /// Whether this is the item's key.
    #[inline]
    pub fn has_key(self, key: &[u8]) -> bool {
        self.shape().key_len() == key.len()
            && self.words.equal(self.at as usize + HEADER_WORDS, key)
    }

    /// The key.
    pub fn key(self, buffer: &mut [u8; 256]) -> &[u8] {
        let len = self.shape().key_len();
        for (index, chunk) in buffer.chunks_exact_mut(8).take(len.div_ceil(8)).enumerate() {
            chunk.copy_from_slice(&self.load(HEADER_WORDS + index).to_le_bytes());
        }
        &buffer[..len]
    }

    /// First word of the value.
    #[inline]
    pub fn value_word(self) -> usize {
        self.at as usize + HEADER_WORDS + self.shape().key_len().div_ceil(8)
    }

    /// Writes part of the value.
    pub fn write_value(self, offset: usize, data: &[u8]) {
        self.words.write(self.value_word() * 8 + offset, data);
    }
}

/// Lengths, class and bits of an item, read at one time.
#[derive(Clone, Copy)]
pub struct Shape(u64);

impl Shape {
    /// Bytes of the value.
    #[inline]
    pub fn value_len(self) -> u32 {
        self.0 as u32
    }

    /// Bytes of the key.
    #[inline]
    pub fn key_len(self) -> usize {
        (self.0 >> 32) as u8 as usize
    }

    /// Slab class.
    #[inline]
    pub fn class(self) -> usize {
        (self.0 >> 40) as u8 as usize
    }

    /// Is free.
    pub fn is_free(self) -> bool {
        self.0 & FREE != 0
    }

    /// Can be found.
    pub fn is_linked(self) -> bool {
        self.0 & LINKED != 0
    }

    /// Was found since the clock's hand last passed.
    #[inline]
    pub fn is_used(self) -> bool {
        self.0 & USED != 0
    }

    /// Was found at some time.
    pub fn is_fetched(self) -> bool {
        self.0 & FETCHED != 0
    }

    /// Bytes of memory that it needs.
    pub fn bytes(self) -> u64 {
        Item::bytes(self.key_len(), self.value_len().into())
    }
}
