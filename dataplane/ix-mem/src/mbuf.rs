//! The owning name of one frame.
use crate::{FRAME_BYTES, HEADROOM_BYTES, PacketMemory};

/// In the field of the offset: another buffer of the same frame follows.
pub(crate) const CONTINUES: u16 = 1 << 15;

/// One frame and its bytes in use. Owning: only its holder may touch the frame, and must return it
/// to a [`crate::Pool`]. A dropped `Mbuf` is a leaked frame, which the pools' counters show. It may
/// own further buffers that continue it: it is a chain then ([`Mbuf::attach`]), and what is said
/// here of bytes is said of the first buffer.
#[must_use = "a dropped mbuf is a leaked frame"]
#[derive(Debug, PartialEq, Eq)]
pub struct Mbuf {
    frame: u32,
    off: u16,
    len: u16,
}

impl Mbuf {
    /// Makes an mbuf of a frame number. For pools and devices, which get frame numbers back from
    /// the kernel's rings.
    ///
    /// # Safety
    /// The caller owns `frame` and no other `Mbuf` names it.
    pub unsafe fn from_frame(frame: u32) -> Mbuf {
        Mbuf { frame, off: HEADROOM_BYTES as u16, len: 0 }
    }

    /// Returns the frame number without the ownership, for a ring or list that owns the frame from
    /// now on.
    pub fn into_frame(self) -> u32 {
        debug_assert!(!self.continues(), "the rest of a chain would be lost");
        self.frame
    }

    /// Frame number within the packet memory.
    pub fn frame(&self) -> u32 {
        self.frame
    }

    /// First byte in use, from the start of the frame.
    pub fn offset(&self) -> usize {
        (self.off & !CONTINUES) as usize
    }

    /// Whether another buffer of the same frame follows.
    #[inline]
    pub fn continues(&self) -> bool {
        self.off & CONTINUES != 0
    }

    pub(crate) fn set_continues(&mut self, continues: bool) {
        self.off = self.off & !CONTINUES | if continues { CONTINUES } else { 0 };
    }

    /// Bytes in use.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Sets which bytes of the frame are in use.
    ///
    /// # Panics
    /// If they are not within the frame.
    pub fn set_range(&mut self, off: usize, len: usize) {
        assert!(off + len <= FRAME_BYTES);
        self.off = self.off & CONTINUES | off as u16;
        self.len = len as u16;
    }

    /// Drops `n` bytes from the front, at most all.
    pub fn trim_front(&mut self, n: usize) {
        let n = n.min(self.len());
        self.off += n as u16;
        self.len -= n as u16;
    }

    /// Keeps the first `n` bytes.
    pub fn truncate(&mut self, n: usize) {
        self.len = self.len.min(n.min(FRAME_BYTES) as u16);
    }

    /// The bytes in use.
    pub fn bytes<'a>(&'a self, memory: &'a PacketMemory) -> &'a [u8] {
        // SAFETY: the range lies within the frame (`set_range`), the frame number within the memory
        // (pools make them); this Mbuf owns the frame, and `&self` forbids `bytes_mut` meanwhile.
        unsafe {
            core::slice::from_raw_parts(memory.frame_ptr(self.frame).add(self.offset()), self.len())
        }
    }

    /// Appends these bytes behind those in use. False, and nothing changes, if the frame has too
    /// little room.
    pub fn append(&mut self, memory: &PacketMemory, bytes: &[u8]) -> bool {
        let len = self.len();
        if self.offset() + len + bytes.len() > FRAME_BYTES {
            return false;
        }
        self.len += bytes.len() as u16;
        self.bytes_mut(memory)[len..].copy_from_slice(bytes);
        true
    }

    /// Takes over range and content of another one, without the buffers that continue it.
    pub fn copy_of(&mut self, other: &Mbuf, memory: &PacketMemory) {
        self.set_range(other.offset(), other.len());
        self.bytes_mut(memory).copy_from_slice(other.bytes(memory));
    }

    /// The bytes in use, for writing.
    pub fn bytes_mut<'a>(&'a mut self, memory: &'a PacketMemory) -> &'a mut [u8] {
        // SAFETY: as in `bytes`; `&mut self` makes this the only reference.
        unsafe {
            core::slice::from_raw_parts_mut(
                memory.frame_ptr(self.frame).add(self.offset()),
                self.len(),
            )
        }
    }
}
