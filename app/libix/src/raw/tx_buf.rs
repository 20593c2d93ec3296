//! Buffers of transmit memory, with one owner or several.
use super::tx::{CLASS_BYTES, Home, Word};
use core::cell::Cell;
use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use core::ptr::{NonNull, with_exposed_provenance_mut};

/// A buffer in transmit memory: filled by the application, sent without a copy. It may move to
/// another thread; its memory returns to its arena.
pub struct TxBuf {
    base: *mut u8,
    len: u32,
    class: u32,
    home: &'static Home,
}

// SAFETY: the block belongs to this buffer alone, and the home takes it back from any thread.
unsafe impl Send for TxBuf {}
// SAFETY: a shared buffer can only be read.
unsafe impl Sync for TxBuf {}

impl TxBuf {
    /// Makes it of a free block at `address`.
    #[inline]
    pub(super) fn new(address: u64, class: usize, home: &'static Home) -> TxBuf {
        let base = with_exposed_provenance_mut(address as usize);
        TxBuf { base, len: 0, class: class as u32, home }
    }

    /// Bytes that it can hold.
    #[inline]
    pub fn capacity(&self) -> usize {
        CLASS_BYTES[self.class as usize] as usize
    }

    /// Appends as much of `data` as fits; returns that number of bytes.
    #[inline]
    pub fn extend(&mut self, data: &[u8]) -> usize {
        let n = data.len().min(self.capacity() - self.len as usize);
        // SAFETY: the `n` bytes after `len` are within the block, which is ours alone; `data` is
        // a Rust slice and so cannot overlap memory that only this buffer hands out mutably.
        unsafe { self.base.add(self.len as usize).copy_from_nonoverlapping(data.as_ptr(), n) };
        self.len += n as u32;
        n
    }

    /// Sets the content to the first `len` bytes, written at [`TxBuf::base`].
    ///
    /// # Safety
    /// They were written, and are within the capacity.
    pub unsafe fn set_len(&mut self, len: usize) {
        debug_assert!(len <= self.capacity());
        self.len = len as u32;
    }

    /// Removes the content.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Address of the first byte, for a scatter-gather entry.
    #[inline]
    pub fn base(&self) -> u64 {
        self.base.expose_provenance() as u64
    }

    /// Makes the buffer shared by several owners; it can no longer be changed.
    pub fn share(self) -> TxShared {
        let home = self.home;
        let shared = Box::new(Shared { references: Cell::new(1), buf: self });
        TxShared { shared: NonNull::from(Box::leak(shared)), home }
    }

    /// The block itself, which is never given back.
    pub(super) fn into_raw(self) -> *mut u8 {
        ManuallyDrop::new(self).base
    }
}

impl Deref for TxBuf {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes were written, the block is ours, and the dataplane never writes it.
        unsafe { core::slice::from_raw_parts(self.base, self.len as usize) }
    }
}

impl DerefMut for TxBuf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes it the only access.
        unsafe { core::slice::from_raw_parts_mut(self.base, self.len as usize) }
    }
}

impl fmt::Debug for TxBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TxBuf({} of {} bytes at {:p})", self.len, self.capacity(), self.base)
    }
}

impl Drop for TxBuf {
    #[inline]
    fn drop(&mut self) {
        self.home.give_back(self.base(), self.class as usize);
    }
}

/// What [`TxShared`]s refer to. Only the home changes the count: other threads send it messages.
pub(super) struct Shared {
    references: Cell<u32>,
    buf: TxBuf,
}

impl Shared {
    /// Adds a reference, while there is one. Only at home.
    #[inline]
    pub(super) fn more(shared: NonNull<Shared>) {
        // SAFETY: there is a reference, so it lives; only the home uses the count.
        let references = unsafe { &(*shared.as_ptr()).references };
        references.set(references.get() + 1);
    }

    /// Removes a reference; the last one frees the buffer. Only at home, where all references made
    /// before are known.
    #[inline]
    pub(super) fn less(shared: NonNull<Shared>) {
        // SAFETY: as in `more`.
        let references = unsafe { &(*shared.as_ptr()).references };
        references.set(references.get() - 1);
        if references.get() == 0 {
            // SAFETY: from `Box::leak` in `TxBuf::share`; no reference is left.
            drop(unsafe { Box::from_raw(shared.as_ptr()) });
        }
    }
}

/// A buffer with several owners. On its home thread the count needs no atomics; elsewhere, after
/// its connection has moved, each change is a message to its home.
pub struct TxShared {
    shared: NonNull<Shared>,
    home: &'static Home,
}

// SAFETY: the buffer can only be read, and only the home changes the count.
unsafe impl Send for TxShared {}
// SAFETY: as above.
unsafe impl Sync for TxShared {}

impl Clone for TxShared {
    #[inline]
    fn clone(&self) -> TxShared {
        if self.home.is_here() {
            Shared::more(self.shared);
        } else {
            self.home.say(Word::More(self.shared));
        }
        TxShared { ..*self }
    }
}

impl Drop for TxShared {
    #[inline]
    fn drop(&mut self) {
        if self.home.is_here() {
            // This may be a copy of a reference that was made elsewhere.
            self.home.listen();
            Shared::less(self.shared);
        } else {
            self.home.say(Word::Less(self.shared));
        }
    }
}

impl Deref for TxShared {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: this reference keeps it, and a shared buffer is not changed.
        unsafe { &(*self.shared.as_ptr()).buf }
    }
}

impl fmt::Debug for TxShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TxShared({} bytes)", self.len())
    }
}
