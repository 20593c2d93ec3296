//! The one mapping that holds every packet of a dataplane process.
use crate::list::Link;
use crate::{FRAME_BYTES, Mbuf};
use core::cell::UnsafeCell;
use core::fmt;

const TWO_MB: usize = 2 << 20;

/// How many bytes each area gets; rounded up to 2 MB.
#[derive(Clone, Copy, Debug)]
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
    /// 4 KB pages with the advice to merge them (transparent huge pages).
    Small,
}

/// Why there is no packet memory.
#[derive(Debug)]
pub enum MemoryError {
    /// mmap failed with this errno for this many bytes.
    Map(i32, usize),
}

impl fmt::Display for MemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemoryError::Map(errno, bytes) = self;
        write!(
            f,
            "cannot map {bytes} bytes of packet memory (errno {errno}); lower the number of buffers"
        )
    }
}

impl std::error::Error for MemoryError {}

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
    /// One link a frame, for [`crate::MbufList`]; touched by whoever owns the frame.
    links: Box<[UnsafeCell<Link>]>,
}

// SAFETY: the memory is plain bytes; access goes through owning Mbufs, each with one holder.
unsafe impl Send for PacketMemory {}
// SAFETY: as above; the fields themselves never change after `new`.
unsafe impl Sync for PacketMemory {}

impl PacketMemory {
    /// Maps memory of these sizes, in 2 MB pages where the system has them reserved.
    pub fn new(sizes: Sizes) -> Result<PacketMemory, MemoryError> {
        let round = |n: usize| n.div_ceil(TWO_MB) * TWO_MB;
        let rx_bytes = round(sizes.rx_frames * FRAME_BYTES);
        let tx_bytes = round(sizes.tx_frames * FRAME_BYTES);
        let arena_bytes = round(sizes.arena_bytes);
        let bytes = rx_bytes + tx_bytes + arena_bytes;
        let frames = (rx_bytes + tx_bytes) / FRAME_BYTES;
        let links = (0..frames).map(|_| UnsafeCell::new(Link::default())).collect();
        if let Some(base) = map(bytes, libc::MAP_HUGETLB | libc::MAP_POPULATE) {
            let pages = PageKind::Huge2M;
            let mapping = (base, bytes);
            return Ok(PacketMemory {
                base,
                mapping,
                rx_bytes,
                tx_bytes,
                arena_bytes,
                pages,
                links,
            });
        }
        // 2 MB more, so that the areas can start at a multiple of 2 MB.
        let mapped = bytes + TWO_MB;
        let Some(start) = map(mapped, 0) else {
            return Err(MemoryError::Map(errno(), bytes));
        };
        let skip = start.align_offset(TWO_MB);
        // SAFETY: `skip` is below 2 MB, which were mapped in addition.
        let base = unsafe { start.add(skip) };
        // SAFETY: the range was mapped just now; the advice changes no content.
        unsafe { libc::madvise(base.cast(), bytes, libc::MADV_HUGEPAGE) };
        let pages = PageKind::Small;
        let mapping = (start, mapped);
        Ok(PacketMemory { base, mapping, rx_bytes, tx_bytes, arena_bytes, pages, links })
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

fn map(bytes: usize, flags: i32) -> Option<*mut u8> {
    // SAFETY: a new anonymous mapping at an address of the kernel's choice.
    let p = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
            -1,
            0,
        )
    };
    (p != libc::MAP_FAILED).then_some(p.cast())
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
