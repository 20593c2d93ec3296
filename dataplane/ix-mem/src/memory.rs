//! The one mapping that holds every packet of a dataplane process.
use crate::list::Link;
use crate::{FRAME_BYTES, Mbuf, Pool};
use core::cell::UnsafeCell;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use ix_sys::fd::sealed_memfd;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// Merges pages at once, whatever the system says of merging by itself (Linux 6.1). `libc` has no name for it.
const MADV_COLLAPSE: i32 = 25;
const TWO_MB: usize = 2 << 20;

/// How many bytes each area gets; rounded up to 2 MB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Frames that devices receive into.
    pub rx_frames: usize,
    /// Frames that we build packets in.
    pub tx_frames: usize,
    /// Bytes of transmit memory for the application.
    pub arena_bytes: usize,
}

/// Which pages really back the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// Reserved 2 MB pages (hugetlb).
    Huge2M,
    /// 2 MB pages that Linux has put together at once (transparent huge pages).
    Merged2M,
    /// 4 KB pages, and larger ones where Linux has them when they are first used.
    Small,
}

impl Sizes {
    /// Bytes of the three areas.
    fn areas(&self) -> (usize, usize, usize) {
        let round = |n: usize| n.div_ceil(TWO_MB) * TWO_MB;
        let frames = |n: usize| round(n * FRAME_BYTES);
        (frames(self.rx_frames), frames(self.tx_frames), round(self.arena_bytes))
    }

    /// Bytes of packet memory of these sizes.
    pub fn bytes(&self) -> usize {
        let (rx, tx, arena) = self.areas();
        rx + tx + arena
    }
}

/// Why there is no packet memory.
#[derive(Debug)]
pub enum MemoryError {
    /// mmap failed with this errno for this many bytes.
    Map(i32, usize),
    /// No descriptor for this many bytes, with this errno.
    Make(i32, usize),
    /// The descriptor has this many bytes and not those of the sizes.
    TooShort(u64, usize),
}

impl fmt::Display for MemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryError::Map(errno, bytes) => write!(
                f,
                "cannot map {bytes} bytes of packet memory (errno {errno}); lower the number of \
                 buffers"
            ),
            MemoryError::Make(errno, bytes) => write!(
                f,
                "cannot make {bytes} bytes of shared packet memory (errno {errno}); lower the \
                 number of buffers"
            ),
            MemoryError::TooShort(has, bytes) => write!(
                f,
                "the descriptor of packet memory has {has} bytes instead of {bytes}; both sides \
                 must be of the same version"
            ),
        }
    }
}

impl std::error::Error for MemoryError {}

/// Makes packet memory that can be shared with another process: a memfd in 2 MB pages where the
/// system has them reserved, sealed so that nobody can change its size.
pub fn memory_fd(sizes: Sizes) -> Result<OwnedFd, MemoryError> {
    let bytes = sizes.bytes();
    sealed_memfd(c"ix-packets", bytes, libc::MFD_HUGETLB | libc::MFD_HUGE_2MB)
        .or_else(|_| sealed_memfd(c"ix-packets", bytes, 0))
        .map_err(|e| MemoryError::Make(e.raw_os_error().unwrap_or(0), bytes))
}

/// One range: receive frames, then frames for built packets, then the application's transmit
/// memory. Shared by all elastic threads; which thread may touch a frame is said by who holds its
/// [`crate::Mbuf`].
pub struct PacketMemory {
    base: *mut u8,
    /// What was mapped: the base and what stands in front of it to align it.
    mapping: (*mut u8, usize),
    rx_bytes: usize,
    tx_bytes: usize,
    arena_bytes: usize,
    pages: PageKind,
    /// Its frames have pools ([`PacketMemory::take_pools`]).
    has_pools: AtomicBool,
    /// One link a frame, for [`crate::MbufList`]; touched by whoever owns the frame.
    links: Box<[UnsafeCell<Link>]>,
}

// SAFETY: the memory is plain bytes; access goes through owning Mbufs, each with one holder.
unsafe impl Send for PacketMemory {}
// SAFETY: as above; the fields themselves never change after `new`.
unsafe impl Sync for PacketMemory {}

impl PacketMemory {
    /// Maps memory of these sizes that no other process can share, in 2 MB pages where the system
    /// has them reserved, else as Linux has them when they are first used.
    pub fn new(sizes: Sizes) -> Result<PacketMemory, MemoryError> {
        let bytes = sizes.bytes();
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let huge = private | libc::MAP_HUGETLB | libc::MAP_POPULATE;
        if let Some(base) = map(core::ptr::null_mut(), bytes, huge, -1) {
            return Ok(PacketMemory::over(base, (base, bytes), PageKind::Huge2M, sizes));
        }
        let (start, base) = reserve(bytes)?;
        // SAFETY: the range was mapped just now; the advice changes no content.
        unsafe { libc::madvise(base.cast(), bytes, libc::MADV_HUGEPAGE) };
        Ok(PacketMemory::over(base, (start, bytes + TWO_MB), PageKind::Small, sizes))
    }

    /// Maps memory that [`memory_fd`] made with the same sizes. The descriptor may be closed then.
    pub fn map(fd: BorrowedFd<'_>, sizes: Sizes) -> Result<PacketMemory, MemoryError> {
        let bytes = sizes.bytes();
        let failed = || MemoryError::Map(errno(), bytes);
        // SAFETY: all-zero bytes are a valid stat.
        let mut stat: libc::stat = unsafe { core::mem::zeroed() };
        // SAFETY: `stat` is writable for the length of the call.
        if unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) } < 0 {
            return Err(failed());
        }
        if stat.st_size < bytes as libc::off_t {
            return Err(MemoryError::TooShort(stat.st_size as u64, bytes));
        }
        let huge = stat.st_blksize as usize == TWO_MB;
        let (start, base) = reserve(bytes)?;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED | if huge { libc::MAP_POPULATE } else { 0 };
        if map(base, bytes, flags, fd.as_raw_fd()).is_none() {
            let error = failed();
            // SAFETY: exactly what `reserve` mapped.
            unsafe { libc::munmap(start.cast(), bytes + TWO_MB) };
            return Err(error);
        }
        let pages = if huge { PageKind::Huge2M } else { populate(base, bytes) };
        Ok(PacketMemory::over(base, (start, bytes + TWO_MB), pages, sizes))
    }

    fn over(
        base: *mut u8,
        mapping: (*mut u8, usize),
        pages: PageKind,
        sizes: Sizes,
    ) -> PacketMemory {
        let (rx_bytes, tx_bytes, arena_bytes) = sizes.areas();
        let frames = (rx_bytes + tx_bytes) / FRAME_BYTES;
        let links = (0..frames).map(|_| UnsafeCell::new(Link::default())).collect();
        let has_pools = AtomicBool::new(false);
        PacketMemory { base, mapping, rx_bytes, tx_bytes, arena_bytes, pages, has_pools, links }
    }

    /// Which pages back it.
    pub fn pages(&self) -> PageKind {
        self.pages
    }

    /// Start of the whole range.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Bytes of the whole range.
    pub fn bytes(&self) -> usize {
        self.rx_bytes + self.tx_bytes + self.arena_bytes
    }

    /// Frame numbers that devices receive into.
    pub fn rx_frames(&self) -> core::ops::Range<u32> {
        0..(self.rx_bytes / FRAME_BYTES) as u32
    }

    /// Frame numbers for packets that we build.
    pub fn tx_frames(&self) -> core::ops::Range<u32> {
        let first = (self.rx_bytes / FRAME_BYTES) as u32;
        first..first + (self.tx_bytes / FRAME_BYTES) as u32
    }

    /// A pool of all frames that devices receive into and one of all for packets that we build, for a
    /// process whose only thread has all of them; `None` after the first time.
    pub fn take_pools(&self) -> Option<(Pool, Pool)> {
        if self.has_pools.swap(true, Ordering::Relaxed) {
            return None;
        }
        // SAFETY: each frame goes to one pool, and this memory makes pools but once.
        Some(unsafe { (Pool::new(self.rx_frames()), Pool::new(self.tx_frames())) })
    }

    /// Address and bytes of the receive area.
    pub fn rx_area(&self) -> (usize, usize) {
        (self.base as usize, self.rx_bytes)
    }

    /// Address and bytes of the application's transmit memory.
    pub fn arena(&self) -> (usize, usize) {
        (self.base as usize + self.rx_bytes + self.tx_bytes, self.arena_bytes)
    }

    /// First byte of a frame. Callers hold the frame's Mbuf.
    pub(crate) fn frame_ptr(&self, frame: u32) -> *mut u8 {
        debug_assert!((frame as usize) < (self.rx_bytes + self.tx_bytes) / FRAME_BYTES);
        // SAFETY: frame numbers come from `rx_frames`/`tx_frames`, both within the mapping.
        unsafe { self.base.add(frame as usize * FRAME_BYTES) }
    }

    /// Copies application memory that lies within the receive area or the transmit memory into
    /// `to`. Answers false, and copies nothing, when the range lies elsewhere.
    /// The application may change the bytes meanwhile: they are payload, never trusted.
    pub fn copy_from_app(&self, addr: u64, to: &mut [u8]) -> bool {
        if !self.app_may_send(addr, to.len() as u64) {
            return false;
        }
        // SAFETY: source range checked above to lie in our mapping, which lives as long as self;
        // the destination is a distinct exclusive slice.
        unsafe { core::ptr::copy_nonoverlapping(addr as *const u8, to.as_mut_ptr(), to.len()) };
        true
    }

    /// Whether `len` bytes at `addr` lie wholly in the receive area or wholly in transmit memory.
    pub fn app_may_send(&self, addr: u64, len: u64) -> bool {
        within(addr, len, self.rx_area()) || within(addr, len, self.arena())
    }

    /// Whether `len` bytes at `addr` lie wholly in transmit memory.
    pub fn in_arena(&self, addr: u64, len: u64) -> bool {
        within(addr, len, self.arena())
    }

    /// Frame number of an address in the receive area.
    pub fn rx_frame_of(&self, addr: u64) -> Option<u32> {
        let (start, len) = self.rx_area();
        within(addr, 1, (start, len)).then(|| ((addr as usize - start) / FRAME_BYTES) as u32)
    }

    /// Writes the link of a frame whose Mbuf the caller holds.
    pub(crate) fn set_link(&self, mbuf: &Mbuf, link: Link) {
        // SAFETY: the holder of a frame's Mbuf is the only one to touch its link.
        unsafe { *self.links[mbuf.frame() as usize].get() = link }
    }

    /// Reads the link of a frame that the calling list owns.
    pub(crate) fn link(&self, frame: u32) -> Link {
        // SAFETY: only the list that owns the frame calls this, under a borrow of itself.
        unsafe { *self.links[frame as usize].get() }
    }

    /// Points the link of a frame that the calling list owns to another.
    pub(crate) fn relink(&self, frame: u32, next: u32) {
        let link = self.link(frame).with_next(next);
        // SAFETY: only the list that owns the frame calls this, under an exclusive borrow of itself.
        unsafe { *self.links[frame as usize].get() = link }
    }

    /// Address of an mbuf's first byte in use, to tell the application.
    pub fn addr_of(&self, mbuf: &crate::Mbuf) -> u64 {
        self.frame_ptr(mbuf.frame()) as u64 + mbuf.offset() as u64
    }
}

impl Drop for PacketMemory {
    fn drop(&mut self) {
        let (start, bytes) = self.mapping;
        // SAFETY: unmaps exactly what `new` mapped; no Mbuf is used after its memory is gone.
        unsafe { libc::munmap(start.cast(), bytes) };
    }
}

fn within(addr: u64, len: u64, (start, area): (usize, usize)) -> bool {
    let Some(offset) = addr.checked_sub(start as u64) else { return false };
    len <= area as u64 && offset <= area as u64 - len
}

/// Maps anonymous memory with 2 MB to spare: answers its start, and the first multiple of 2 MB in
/// it, where the areas shall begin.
fn reserve(bytes: usize) -> Result<(*mut u8, *mut u8), MemoryError> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let mapped = map(core::ptr::null_mut(), bytes + TWO_MB, flags, -1);
    let start = mapped.ok_or_else(|| MemoryError::Map(errno(), bytes))?;
    let skip = start.align_offset(TWO_MB);
    // SAFETY: `skip` is below 2 MB, which were mapped in addition.
    Ok((start, unsafe { start.add(skip) }))
}

/// Has Linux back shared memory that was mapped just now, begins at a multiple of 2 MB and is as long as
/// several. By itself it gives shared memory no large pages where the system's settings are the usual ones.
fn populate(base: *mut u8, bytes: usize) -> PageKind {
    // A piece without any page is not merged. Much less work than to fill all of it with small ones.
    for at in (0..bytes).step_by(TWO_MB) {
        // SAFETY: within the mapping; any byte is valid, and what is read is not used.
        unsafe { base.add(at).read_volatile() };
    }
    // SAFETY: neither changes content.
    unsafe {
        libc::madvise(base.cast(), bytes, libc::MADV_HUGEPAGE);
        match libc::madvise(base.cast(), bytes, MADV_COLLAPSE) {
            0 => PageKind::Merged2M,
            _ => {
                libc::madvise(base.cast(), bytes, libc::MADV_POPULATE_WRITE);
                PageKind::Small
            }
        }
    }
}

/// Maps `bytes`: at `at` when the flags say so (then it is a range of ours), else anywhere.
fn map(at: *mut u8, bytes: usize, flags: i32, fd: RawFd) -> Option<*mut u8> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice, or with MAP_FIXED over a range
    // that the caller has reserved and uses for nothing yet.
    let p = unsafe { libc::mmap(at.cast(), bytes, prot, flags, fd, 0) };
    if p == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the mapping just made. A forked child has none of it: neither is the memory copied at
    // its first write, nor do devices stay open there. Where it fails, fork is only slower.
    unsafe { libc::madvise(p, bytes, libc::MADV_DONTFORK) };
    Some(p.cast())
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    const SIZES: Sizes = Sizes { rx_frames: 100, tx_frames: 1, arena_bytes: 1 };

    #[test]
    fn two_mappings_of_one_descriptor_see_the_same_frames() {
        let fd = memory_fd(SIZES).unwrap();
        let one = PacketMemory::map(fd.as_fd(), SIZES).unwrap();
        let other = PacketMemory::map(fd.as_fd(), SIZES).unwrap();
        assert_eq!((one.bytes(), one.base() as usize % TWO_MB), (3 * TWO_MB, 0));
        for (memory, frame) in [(&one, one.rx_frames().start), (&one, one.tx_frames().end - 1)] {
            // SAFETY: nobody else has this frame.
            let mut mbuf = unsafe { Mbuf::from_frame(frame) };
            mbuf.set_range(0, FRAME_BYTES);
            let byte = 7 + (frame % 200) as u8;
            mbuf.bytes_mut(memory).fill(byte);
            assert!(mbuf.bytes(&other).iter().all(|b| *b == byte));
        }
    }

    #[test]
    fn nobody_can_change_the_size_and_a_short_descriptor_is_refused() {
        let fd = memory_fd(SIZES).unwrap();
        for bytes in [0, 2 * TWO_MB, 100 * TWO_MB] {
            // SAFETY: no memory is passed.
            let ret = unsafe { libc::ftruncate(fd.as_raw_fd(), bytes as libc::off_t) };
            assert_eq!((ret, errno()), (-1, libc::EPERM));
        }
        let larger = Sizes { arena_bytes: 10 * TWO_MB, ..SIZES };
        let Err(e) = PacketMemory::map(fd.as_fd(), larger) else { panic!("mapped") };
        assert!(e.to_string().contains("same version"), "{e}");
    }
}
