//! Buffers of transmit memory: of one owner, or of many.
use super::tx::{CLASS_BYTES, Home, Word};
use core::cell::Cell;
use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use core::ptr::{NonNull, with_exposed_provenance_mut};

/// A buffer in transmit memory: filled by the application, sent without a copy. It may go to
/// another thread; its memory comes back to where it is from.
pub struct TxBuf {
    base: *mut u8,
    len: u32,
    class: u32,
    home: &'static Home,
}

// SAFETY: the block is this buffer's alone, and the home takes it back from any thread.
unsafe impl Send for TxBuf {}
// SAFETY: a shared buffer can only be read.
unsafe impl Sync for TxBuf {}

impl TxBuf {
    /// Of a free block at `address`.
    #[inline]
    pub(super) fn new(address: u64, class: usize, home: &'static Home) -> TxBuf {
        let base = with_exposed_provenance_mut(address as usize);
        TxBuf { base, len: 0, class: class as u32, home }
    }

    /// Bytes it can hold.
    #[inline]
    pub fn capacity(&self) -> usize {
        CLASS_BYTES[self.class as usize] as usize
    }

    /// Appends as much of `data` as fits; answers how much that was.
    #[inline]
    pub fn extend(&mut self, data: &[u8]) -> usize {
        let n = data.len().min(self.capacity() - self.len as usize);
        // SAFETY: the `n` bytes after `len` are within the block, which is ours alone; `data` is
        // a Rust slice and so cannot overlap memory that only this buffer hands out mutably.
        unsafe { self.base.add(self.len as usize).copy_from_nonoverlapping(data.as_ptr(), n) };
        self.len += n as u32;
        n
    }

    /// Says that the first `len` bytes are the content, written at [`TxBuf::base`].
    ///
    /// # Safety
    /// They were written, and there are as many.
    pub unsafe fn set_len(&mut self, len: usize) {
        debug_assert!(len <= self.capacity());
        self.len = len as u32;
    }

    /// Forgets the content.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Address of the first byte, for a scatter-gather entry.
    #[inline]
    pub fn base(&self) -> u64 {
        self.base.expose_provenance() as u64
    }

    /// The same buffer for several owners; it can be changed no more.
    pub fn share(self) -> TxShared {
        let home = self.home;
        let shared = Box::new(Shared { references: Cell::new(1), buf: self });
        TxShared { shared: NonNull::from(Box::leak(shared)), home }
    }

    /// The block itself, never to be given back.
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

/// What [`TxShared`]s refer to. The count is its home's: other threads send word.
pub(super) struct Shared {
    references: Cell<u32>,
    buf: TxBuf,
}

impl Shared {
    /// One more reference, while there is one. Only at home.
    #[inline]
    pub(super) fn more(shared: NonNull<Shared>) {
        // SAFETY: there is a reference, so it lives; the count is touched at home only.
        let references = unsafe { &(*shared.as_ptr()).references };
        references.set(references.get() + 1);
    }

    /// One reference less; the last one frees it. Only at home, where all references are known that
    /// were made before.
    #[inline]
    pub(super) fn less(shared: NonNull<Shared>) {
        // SAFETY: as in `more`.
        let references = unsafe { &(*shared.as_ptr()).references };
        references.set(references.get() - 1);
        if references.get() == 0 {
            // SAFETY: of `Box::leak` in `TxBuf::share`; nobody refers to it any more.
            drop(unsafe { Box::from_raw(shared.as_ptr()) });
        }
    }
}

/// A buffer with several owners. Where it was made, counting them needs no atomics; elsewhere,
/// where it comes with a connection that moved, each change is a word to its home.
pub struct TxShared {
    shared: NonNull<Shared>,
    home: &'static Home,
}

// SAFETY: the buffer can only be read, and the count is its home's alone.
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
            // This may be the model of one that was made elsewhere.
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
