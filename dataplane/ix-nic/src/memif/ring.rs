//! One ring in shared memory: a line with the head, a line with the tail, then descriptors.
//!
//! Both indices run freely over 16 bits. Towards the server, the client moves the head when it has
//! filled descriptors, and the server moves the tail when it has processed them. Towards the
//! client, the client moves the head when it offers empty buffers, and the server moves the tail
//! when it has filled them. The peer can write anything anywhere at any time: nothing is read
//! twice, and no value of the peer is used before it is checked.
use ix_mem::prefetch_read;
use ix_proto::memif::{DESC_BYTES, LOG2_SIZE_MAX, RING_HEADER_BYTES, ring_bytes};
use ix_sys::Mapping;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

/// The first word of every ring.
pub const COOKIE: u32 = 0x03E3_1F20;
/// The frame continues in the next descriptor.
pub const DESC_NEXT: u16 = 1;
/// A flag of the ring: the reader polls and needs no interrupt.
const MASK_INT: u16 = 1;

const COOKIE_AT: usize = 0;
const FLAGS_AT: usize = 4;
const HEAD_AT: usize = 6;
const TAIL_AT: usize = 64;

/// A descriptor, copied out of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Desc {
    /// [`DESC_NEXT`] or 0.
    pub flags: u16,
    /// The region of the buffer.
    pub region: u16,
    /// Bytes of the buffer, or of the packet in it.
    pub length: u32,
    /// Where the buffer begins in its region.
    pub offset: u32,
}

/// A ring in a mapping.
#[derive(Clone, Copy)]
pub struct Ring {
    base: *mut u8,
    size: u16,
}

// SAFETY: plain shared memory without thread affinity; it is only accessed atomically or as the
// protocol says that it is ours.
unsafe impl Send for Ring {}

impl Ring {
    /// The ring at `base`.
    ///
    /// # Safety
    /// `base` is aligned to 16, and [`ring_bytes`]`(log2_size)` bytes from there on are mapped as
    /// long as this value lives; `log2_size` is at most [`LOG2_SIZE_MAX`].
    pub unsafe fn new(base: *mut u8, log2_size: u8) -> Ring {
        debug_assert!(base.addr().is_multiple_of(DESC_BYTES) && log2_size <= LOG2_SIZE_MAX);
        Ring { base, size: 1 << log2_size }
    }

    /// Makes it an empty ring whose reader polls. Only before the peer knows the ring.
    pub fn initialize(&self) {
        self.word(TAIL_AT).store(0, Ordering::Relaxed);
        self.word(HEAD_AT).store(0, Ordering::Relaxed);
        self.word(FLAGS_AT).store(MASK_INT, Ordering::Relaxed);
        // SAFETY: in bounds and aligned, by the promise of `new`.
        let cookie = unsafe { AtomicU32::from_ptr(self.base.add(COOKIE_AT).cast()) };
        cookie.store(COOKIE, Ordering::Release);
    }

    /// Number of descriptors.
    #[inline]
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Index of the descriptor for a running index.
    #[inline]
    pub fn slot(&self, index: u16) -> usize {
        usize::from(index & (self.size - 1))
    }

    /// The head. Acquire: all that was written before it is visible.
    #[inline]
    pub fn head(&self) -> u16 {
        self.word(HEAD_AT).load(Ordering::Acquire)
    }

    /// Moves the head. Release: makes visible what was written before.
    #[inline]
    pub fn set_head(&self, index: u16) {
        self.word(HEAD_AT).store(index, Ordering::Release);
    }

    /// The tail. Acquire: all that was written before it is visible.
    #[inline]
    pub fn tail(&self) -> u16 {
        self.word(TAIL_AT).load(Ordering::Acquire)
    }

    /// Moves the tail. Release: makes visible what was written before.
    #[inline]
    pub fn set_tail(&self, index: u16) {
        self.word(TAIL_AT).store(index, Ordering::Release);
    }

    /// Sets whether the reader polls. A reader that turns interrupts on must then issue a fence and
    /// look at the ring once more.
    pub fn mask_interrupts(&self, masked: bool) {
        self.word(FLAGS_AT).store(if masked { MASK_INT } else { 0 }, Ordering::Relaxed);
    }

    /// Whether the reader sleeps. Only after the index that wakes it was moved, and then a full
    /// fence.
    #[inline]
    pub fn wants_interrupt(&self) -> bool {
        self.word(FLAGS_AT).load(Ordering::Relaxed) & MASK_INT == 0
    }

    /// Reads a descriptor, once.
    #[inline]
    pub fn desc(&self, index: u16) -> Desc {
        let at = self.desc_at(index);
        // SAFETY: in bounds and aligned, by the promise of `new`; any bytes are integers. Volatile,
        // because the peer may write at the same time: each half is read exactly once.
        let (low, high) = unsafe { (at.read_volatile(), at.add(1).read_volatile()) };
        Desc {
            flags: low as u16,
            region: (low >> 16) as u16,
            length: (low >> 32) as u32,
            offset: high as u32,
        }
    }

    /// The flags and the length of a descriptor, read once.
    #[inline]
    pub fn desc_length(&self, index: u16) -> (u16, u32) {
        // SAFETY: as in `desc`.
        let low = unsafe { self.desc_at(index).read_volatile() };
        (low as u16, (low >> 32) as u32)
    }

    /// Fetches a descriptor that the peer is about to write. Together with the index that says that
    /// it has: one after the other they take twice as long.
    #[inline]
    pub fn fetch_desc(&self, index: u16) {
        prefetch_read(self.desc_at(index));
    }

    /// Writes a descriptor.
    #[inline]
    pub fn set_desc(&self, index: u16, desc: Desc) {
        let at = self.desc_at(index);
        // SAFETY: as in `desc`; it is ours to write until the index moves past it.
        unsafe {
            at.write_volatile(low_half(desc));
            at.add(1).write_volatile(u64::from(desc.offset));
        }
    }

    /// Writes the half of a descriptor with its length and flags.
    #[inline]
    pub fn set_desc_length(&self, index: u16, desc: Desc) {
        // SAFETY: as in `set_desc`.
        unsafe { self.desc_at(index).write_volatile(low_half(desc)) }
    }

    /// Address of a descriptor, for prefetching.
    #[inline]
    pub fn desc_at(&self, index: u16) -> *mut u64 {
        let offset = RING_HEADER_BYTES + DESC_BYTES * self.slot(index);
        // SAFETY: within the ring, by the promise of `new`.
        unsafe { self.base.add(offset).cast() }
    }

    #[inline]
    fn word(&self, at: usize) -> &AtomicU16 {
        // SAFETY: in bounds, aligned and mapped, by the promise of `new`; always accessed so.
        unsafe { AtomicU16::from_ptr(self.base.add(at).cast()) }
    }
}

/// Makes `1 << log2_size` empty descriptors with their header at `offset` of a mapping, before the
/// peer knows the ring. At first the reader polls.
///
/// # Panics
/// If the ring is not within the mapping, not aligned to [`DESC_BYTES`], or too large.
pub fn initialize_ring(mapping: &Mapping, offset: u32, log2_size: u8) {
    assert!(log2_size <= LOG2_SIZE_MAX, "a ring of 2^{log2_size} descriptors");
    let base = mapping.at::<[u64; 2]>(u64::from(offset), ring_bytes(log2_size) / DESC_BYTES);
    assert!(base.addr().is_multiple_of(DESC_BYTES), "a ring is aligned");
    // SAFETY: the ring lies within the mapping, aligned, which lives until after its use here.
    unsafe { Ring::new(base.cast(), log2_size) }.initialize();
}

#[inline]
fn low_half(desc: Desc) -> u64 {
    u64::from(desc.flags) | u64::from(desc.region) << 16 | u64::from(desc.length) << 32
}
