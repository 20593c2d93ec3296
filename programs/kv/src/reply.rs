//! Bytes to be sent, and values that are sent from where they are.
use crate::store::{Lease, View};
use std::sync::atomic::AtomicU8;

/// A reply that has this much takes no further requests before it was sent.
const FULL_BYTES: usize = 64 << 10;
/// Values up to this are copied: that is cheaper than a lease and a piece of their own.
pub const COPY_BYTES_MAX: usize = 1024;

/// A value in the midst of a reply.
pub struct Lent {
    /// Bytes of the reply before it.
    pub before: usize,
    /// The value.
    pub data: &'static [AtomicU8],
    /// Keeps it.
    pub lease: Lease,
}

/// What a connection is answered.
#[derive(Default)]
pub struct Reply {
    /// All but lent values.
    pub bytes: Vec<u8>,
    /// In order.
    pub lent: Vec<Lent>,
    lent_bytes: usize,
    /// Whether values can be sent from item memory.
    lends: bool,
}

impl Reply {
    /// Empty; `lends`: values can be sent from item memory.
    pub fn new(lends: bool) -> Reply {
        Reply { bytes: Vec::with_capacity(2 * FULL_BYTES), lends, ..Reply::default() }
    }

    /// Whether it must be sent before more is answered.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.bytes.len() + self.lent_bytes >= FULL_BYTES
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.lent.is_empty()
    }

    /// Forgets what was sent.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.lent.clear();
        self.lent_bytes = 0;
    }

    /// Appends bytes.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends a number in digits.
    #[inline]
    pub fn put_number(&mut self, value: u64) {
        if value < 10 {
            return self.bytes.push(b'0' + value as u8);
        }
        self.put(itoa::Buffer::new().format(value).as_bytes());
    }

    /// Whether a value of this length would be lent.
    #[inline]
    pub fn lends(&self, len: usize) -> bool {
        self.lends && len > COPY_BYTES_MAX
    }

    /// Appends a value without a copy.
    pub fn lend(&mut self, view: &View, lease: Lease) {
        match view.lend() {
            Some(data) => {
                self.lent_bytes += data.len();
                self.lent.push(Lent { before: self.bytes.len(), data, lease });
            }
            None => view.copy(&mut self.bytes),
        }
    }
}
