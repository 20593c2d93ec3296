//! Bytes to send, and values that are sent from their items.
use crate::store::{Lease, View};
use crate::words::Span;

/// A reply of this length must be sent before further requests are carried out.
const FULL_BYTES: usize = 64 << 10;
/// Values up to this length are copied: that is cheaper than a lease and a separate piece.
pub const COPY_BYTES_MAX: usize = 1024;

/// A value within a reply.
pub struct Lent {
    /// Bytes of the reply before it.
    pub before: usize,
    /// The value.
    pub data: Span,
    /// Keeps it.
    pub lease: Lease,
}

/// The reply on a connection.
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
    /// An empty reply; `lends`: values can be sent from item memory.
    pub fn new(lends: bool) -> Reply {
        Reply { bytes: Vec::with_capacity(2 * FULL_BYTES), lends, ..Reply::default() }
    }

    /// Whether it must be sent before further requests.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.bytes.len() + self.lent_bytes >= FULL_BYTES
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.lent.is_empty()
    }

    /// Drops what was sent.
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
