//! The mapping that holds all packets of a dataplane process.
use crate::list::Link;
use crate::{FRAME_BYTES, Mbuf, Pool};
use core::cell::UnsafeCell;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use ix_sys::fd::{fixed_memfd, sealed_memfd};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// Merges pages at once, whatever the system's setting for merging is (Linux 6.1). `libc` has no
/// name for it.
const MADV_COLLAPSE: i32 = 25;
const TWO_MB: usize = 2 << 20;
/// Most processes of a program, beside the first, whose transmit memory can be mapped.
pub const OTHER_ARENAS: usize = 63;

/// Size of each area. Each is rounded up to 2 MB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Frames that devices receive into.
    pub rx_frames: usize,
    /// Frames in which the dataplane builds packets.
    pub tx_frames: usize,
    /// Bytes of transmit memory for the application.
    pub arena_bytes: usize,
}

/// The pages that really back the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// Reserved 2 MB pages (hugetlb).
    Huge2M,
    /// 2 MB pages that Linux has merged at once (transparent huge pages).
    Merged2M,
    /// 4 KB pages, or larger ones that Linux may give at their first use.
    Small,
}

impl Sizes {
    /// Bytes of each of the three areas: receive frames, frames for built packets, transmit memory.
    pub fn areas(&self) -> [usize; 3] {
        let round = |n: usize| n.div_ceil(TWO_MB) * TWO_MB;
        let frames = |n: usize| round(n * FRAME_BYTES);
        [frames(self.rx_frames), frames(self.tx_frames), round(self.arena_bytes)]
    }

    /// Bytes of packet memory with these sizes.
    pub fn bytes(&self) -> usize {
        self.areas().iter().sum()
    }
}

/// Why packet memory could not be made.
#[derive(Debug)]
pub enum MemoryError {
    /// mmap failed with this errno for this many bytes.
    Map(i32, usize),
    /// No descriptor for this many bytes could be made, with this errno.
    Make(i32, usize),
    /// The descriptor has the first number of bytes, the sizes need the second.
    TooShort(u64, usize),
    /// The process uses addresses that packet memory of this many bytes must have.
    Occupied(usize),
}

impl fmt::Display for MemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryError::Map(errno, bytes) => write!(
                f,
                "cannot map {bytes} bytes of packet memory (errno {errno}); lower the number of \
                 buffers"
            ),
            MemoryError::Make(errno, bytes) => {
                let why = io::Error::from_raw_os_error(*errno);
                write!(f, "cannot make {bytes} bytes of shared packet memory: {why}; ")?;
                f.write_str(match *errno {
                    libc::ENOSYS | libc::EPERM | libc::EACCES | libc::EINVAL => {
                        "let this process call memfd_create and seal what it makes (F_ADD_SEALS): \
                         a container's rules or another filter of system calls forbid it"
                    }
                    _ => "lower the number of buffers",
                })
            }
            MemoryError::TooShort(has, bytes) => write!(
                f,
                "the descriptor of packet memory has {has} bytes instead of {bytes}; both sides \
                 must be of the same version"
            ),
            MemoryError::Occupied(bytes) => write!(
                f,
                "cannot map {bytes} bytes of packet memory at its address; lower the number of \
                 buffers"
            ),
        }
    }
}

impl std::error::Error for MemoryError {}

/// Descriptors of packet memory that other processes map too: one for each area, so that a process
/// can be given one of them and not the others. Each is a memfd, sealed so that no process can
/// change its size. Writes to receive frames may be sealed later (`ix_sys::fd::seal_writes`).
#[derive(Debug)]
pub struct MemoryFds {
    /// Frames that devices receive into.
    pub rx: OwnedFd,
    /// Frames that the dataplane builds packets in.
    pub tx: OwnedFd,
    /// The application's transmit memory.
    pub arena: OwnedFd,
}

impl MemoryFds {
    /// Makes packet memory of these sizes, in 2 MB pages where the system has reserved them.
    pub fn new(sizes: Sizes) -> Result<MemoryFds, MemoryError> {
        let huge = libc::MFD_HUGETLB | libc::MFD_HUGE_2MB;
        MemoryFds::with(sizes, huge)
            .or_else(|_| MemoryFds::with(sizes, 0))
            .map_err(|e| MemoryError::Make(e.raw_os_error().unwrap_or(0), sizes.bytes()))
    }

    /// Makes packet memory of these sizes whose transmit memory a program in another process
    /// writes. A program can give pages of a memfd back to the system. Reserved 2 MB pages might
    /// be missing when the dataplane next touches them, so these are small ones.
    pub fn for_another_process(sizes: Sizes) -> Result<MemoryFds, MemoryError> {
        MemoryFds::with(sizes, 0)
            .map_err(|e| MemoryError::Make(e.raw_os_error().unwrap_or(0), sizes.bytes()))
    }

    fn with(sizes: Sizes, flags: u32) -> io::Result<MemoryFds> {
        let [rx, tx, arena] = sizes.areas();
        Ok(MemoryFds {
            rx: match flags {
                0 => fixed_memfd(c"ix-receive", rx, false)?,
                _ => sealed_memfd(c"ix-receive", rx, flags)?,
            },
            tx: sealed_memfd(c"ix-headers", tx, flags)?,
            arena: sealed_memfd(c"ix-transmit", arena, flags)?,
        })
    }

    /// In the order of the areas.
    pub fn as_fds(&self) -> [BorrowedFd<'_>; 3] {
        [self.rx.as_fd(), self.tx.as_fd(), self.arena.as_fd()]
    }
}

/// One range: receive frames, then frames for built packets, then the application's transmit
/// memory. All elastic threads share it; only the holder of a frame's [`crate::Mbuf`] may touch
/// that frame.
pub struct PacketMemory {
    base: *mut u8,
    /// The whole mapping: its start, which may be before the base for alignment, and its length.
    mapping: (*mut u8, usize),
    rx_bytes: usize,
    tx_bytes: usize,
    arena_bytes: usize,
    pages: PageKind,
    /// It is mapped from descriptors.
    is_shared: bool,
    /// Frames that devices may use themselves.
    devices: core::ops::Range<u32>,
    /// True once its pools were made ([`PacketMemory::take_pools`]).
    has_pools: AtomicBool,
    /// Where transmit memory of the program's other processes is mapped; 0: nowhere yet.
    others: AtomicUsize,
    /// One link for each frame, for [`crate::MbufList`]; only the frame's owner touches it.
    links: Box<[UnsafeCell<Link>]>,
}

// SAFETY: the memory is plain bytes; access goes through owning Mbufs, each with one holder.
unsafe impl Send for PacketMemory {}
// SAFETY: as above; the fields themselves never change after `new`.
unsafe impl Sync for PacketMemory {}

impl PacketMemory {
    /// Maps memory of these sizes that no other process can share: in 2 MB pages where the system
    /// has reserved them, else in those that Linux gives at their first use.
    pub fn new(sizes: Sizes) -> Result<PacketMemory, MemoryError> {
        let bytes = sizes.bytes();
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let huge = private | libc::MAP_HUGETLB | libc::MAP_POPULATE;
        if let Some(base) = map(core::ptr::null_mut(), bytes, huge, -1) {
            return Ok(PacketMemory::over(base, (base, bytes), PageKind::Huge2M, sizes, false));
        }
        let (start, base) = reserve(bytes)?;
        // SAFETY: the range was mapped just now; the advice changes no content.
        unsafe { libc::madvise(base.cast(), bytes, libc::MADV_HUGEPAGE) };
        Ok(PacketMemory::over(base, (start, bytes + TWO_MB), PageKind::Small, sizes, false))
    }

    /// Maps memory that [`MemoryFds::new`] made with the same sizes, its areas side by side. The
    /// descriptors may be closed afterwards.
    pub fn map(fds: [BorrowedFd<'_>; 3], sizes: Sizes) -> Result<PacketMemory, MemoryError> {
        let bytes = sizes.bytes();
        let (start, base) = reserve(bytes)?;
        match map_areas(base, fds, sizes) {
            Ok(pages) => Ok(PacketMemory::over(base, (start, bytes + TWO_MB), pages, sizes, true)),
            Err(error) => {
                // SAFETY: exactly what `reserve` mapped, whatever lies in it now.
                unsafe { libc::munmap(start.cast(), bytes + TWO_MB) };
                Err(error)
            }
        }
    }

    /// As [`PacketMemory::map`], at this address (a multiple of 2 MB), where nothing is mapped yet.
    pub fn map_at(
        at: usize,
        fds: [BorrowedFd<'_>; 3],
        sizes: Sizes,
    ) -> Result<PacketMemory, MemoryError> {
        let bytes = sizes.bytes();
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let at = core::ptr::without_provenance_mut(at);
        let base = map(at, bytes, flags, -1).ok_or(MemoryError::Occupied(bytes))?;
        match map_areas(base, fds, sizes) {
            Ok(pages) => Ok(PacketMemory::over(base, (base, bytes), pages, sizes, true)),
            Err(error) => {
                // SAFETY: exactly what was mapped above, whatever lies in it now.
                unsafe { libc::munmap(base.cast(), bytes) };
                Err(error)
            }
        }
    }

    fn over(
        base: *mut u8,
        mapping: (*mut u8, usize),
        pages: PageKind,
        sizes: Sizes,
        is_shared: bool,
    ) -> PacketMemory {
        let [rx_bytes, tx_bytes, arena_bytes] = sizes.areas();
        let frames = (rx_bytes + tx_bytes) / FRAME_BYTES;
        let links = (0..frames).map(|_| UnsafeCell::new(Link::default())).collect();
        let has_pools = AtomicBool::new(false);
        let others = AtomicUsize::new(0);
        PacketMemory {
            base,
            mapping,
            rx_bytes,
            tx_bytes,
            arena_bytes,
            pages,
            is_shared,
            devices: 0..frames as u32,
            has_pools,
            others,
            links,
        }
    }

    /// From now on devices use at most so many receive frames and frames for built packets: the
    /// last ones and the first ones, which lie side by side. A kernel that a device gives frames to
    /// keeps all their pages, used or not; those of other frames exist once they are used.
    pub fn limit_devices(&mut self, rx_frames: usize, tx_frames: usize) {
        let (rx, tx) = (self.rx_frames(), self.tx_frames());
        let first = rx.end - rx_frames.min(rx.len()) as u32;
        self.devices = first..tx.start + tx_frames.min(tx.len()) as u32;
    }

    /// The frames that devices may use themselves.
    pub fn device_frames(&self) -> core::ops::Range<u32> {
        self.devices.clone()
    }

    /// Address and bytes of the frames that devices may use themselves.
    pub fn device_area(&self) -> (usize, usize) {
        let first = self.devices.start as usize * FRAME_BYTES;
        (self.base as usize + first, self.devices.len() * FRAME_BYTES)
    }

    /// Makes Linux back the devices' frames with pages, large ones if it can. Returns the kind of
    /// the pages.
    pub fn populate(&mut self) -> PageKind {
        if self.is_shared && self.pages != PageKind::Huge2M {
            let first = self.devices.start as usize * FRAME_BYTES;
            // SAFETY: within the mapping.
            let start = unsafe { self.base.add(first) };
            self.pages = populate(start, self.devices.len() * FRAME_BYTES);
        }
        self.pages
    }

    /// Gives the pages of frames back to the system, which nobody holds and no device may use.
    /// False: it does not take them, now or ever, because the memory is sealed.
    pub fn give_back(&self, frames: core::ops::Range<u32>) -> bool {
        debug_assert!(frames.end <= self.devices.start || frames.start >= self.devices.end);
        if frames.is_empty() || self.pages == PageKind::Huge2M {
            return false;
        }
        let advice = if self.is_shared { libc::MADV_REMOVE } else { libc::MADV_DONTNEED };
        let (start, bytes) = (self.frame_ptr(frames.start), frames.len() * FRAME_BYTES);
        // SAFETY: within our mapping, and the caller's promise; the bytes are zero from then on.
        unsafe { libc::madvise(start.cast(), bytes, advice) == 0 }
    }

    /// The pages that back it.
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

    /// Numbers of the frames that devices receive into.
    pub fn rx_frames(&self) -> core::ops::Range<u32> {
        0..(self.rx_bytes / FRAME_BYTES) as u32
    }

    /// Numbers of the frames in which the dataplane builds packets.
    pub fn tx_frames(&self) -> core::ops::Range<u32> {
        let first = (self.rx_bytes / FRAME_BYTES) as u32;
        first..first + (self.tx_bytes / FRAME_BYTES) as u32
    }

    /// Returns a pool of all receive frames and one of all frames for built packets, for a process
    /// whose only thread has all of them. `None` after the first call.
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

    /// First byte of a frame. The caller holds the frame's Mbuf.
    pub(crate) fn frame_ptr(&self, frame: u32) -> *mut u8 {
        debug_assert!((frame as usize) < (self.rx_bytes + self.tx_bytes) / FRAME_BYTES);
        // SAFETY: frame numbers come from `rx_frames`/`tx_frames`, both within the mapping.
        unsafe { self.base.add(frame as usize * FRAME_BYTES) }
    }

    /// Copies memory of the application, within the receive area or the transmit memory, into `to`.
    /// Returns false and copies nothing if the range is not within one of them, or within that of
    /// another process ([`PacketMemory::add_arena`]). The application may change the bytes
    /// meanwhile: they are payload, never trusted.
    pub fn copy_from_app(&self, addr: u64, to: &mut [u8]) -> bool {
        let len = to.len() as u64;
        if !self.app_may_send(addr, len) && !self.in_other_arena(addr, len) {
            return false;
        }
        // SAFETY: source range checked above to lie in our mapping, which lives as long as self;
        // the destination is a distinct exclusive slice.
        unsafe { core::ptr::copy_nonoverlapping(addr as *const u8, to.as_mut_ptr(), to.len()) };
        true
    }

    /// True if `len` bytes at `addr` are wholly within the receive area or wholly within transmit
    /// memory.
    pub fn app_may_send(&self, addr: u64, len: u64) -> bool {
        within(addr, len, self.rx_area()) || within(addr, len, self.arena())
    }

    /// True if `len` bytes at `addr` are wholly within transmit memory.
    pub fn in_arena(&self, addr: u64, len: u64) -> bool {
        within(addr, len, self.arena())
    }

    /// Maps the transmit memory of another process of the program, of the same size as that of the
    /// first: number `number` of at most [`OTHER_ARENAS`]. Returns what must be added to an address
    /// that the process uses, so that it is one of this process; the sum may wrap around.
    pub fn add_arena(&self, number: usize, fd: BorrowedFd<'_>) -> Result<u64, MemoryError> {
        let bytes = self.arena_bytes;
        if number >= OTHER_ARENAS {
            return Err(MemoryError::Map(libc::EINVAL, bytes));
        }
        let failed = || MemoryError::Map(errno(), bytes);
        has_room(fd, bytes)?;
        let mut first = self.others.load(Ordering::Acquire);
        if first == 0 {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let all = map(core::ptr::null_mut(), OTHER_ARENAS * bytes, flags, -1);
            first = all.ok_or_else(failed)?.expose_provenance();
            self.others.store(first, Ordering::Release);
        }
        let at = core::ptr::with_exposed_provenance_mut(first + number * bytes);
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        map(at, bytes, flags, fd.as_raw_fd()).ok_or_else(failed)?;
        Ok((at as u64).wrapping_sub(self.arena().0 as u64))
    }

    /// Takes away what [`PacketMemory::add_arena`] has mapped. What still refers to it reads
    /// zeroes.
    pub fn remove_arena(&self, number: usize) {
        let first = self.others.load(Ordering::Acquire);
        if first == 0 || number >= OTHER_ARENAS {
            return;
        }
        let bytes = self.arena_bytes;
        let at = core::ptr::with_exposed_provenance_mut(first + number * bytes);
        let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // If there is no memory even for that, the old mapping stays.
        map(at, bytes, anonymous | libc::MAP_FIXED, -1);
    }

    /// Gives the pages of the first process's transmit memory back to the system.
    pub fn empty_arena(&self) {
        let (start, bytes) = self.arena();
        let start = core::ptr::with_exposed_provenance_mut(start);
        // SAFETY: within our mapping; the bytes are zero from then on. Where it fails, for private
        // memory, nothing changes.
        unsafe { libc::madvise(start, bytes, libc::MADV_REMOVE) };
    }

    /// Where this process has the transmit memory of process `number` of the program: address and
    /// bytes.
    pub fn arena_of(&self, number: usize) -> (usize, usize) {
        match number.checked_sub(1) {
            None => self.arena(),
            Some(other) => {
                let first = self.others.load(Ordering::Relaxed);
                (first + other * self.arena_bytes, self.arena_bytes)
            }
        }
    }

    /// The number of the process of the program whose transmit memory this address of ours is in.
    pub fn arena_with(&self, addr: u64) -> Option<usize> {
        if within(addr, 1, self.arena()) {
            return Some(0);
        }
        let first = self.others.load(Ordering::Relaxed);
        let is_other = first != 0 && within(addr, 1, (first, OTHER_ARENAS * self.arena_bytes));
        is_other.then(|| 1 + (addr as usize - first) / self.arena_bytes)
    }

    /// True if `len` bytes at `addr` of this process are transmit memory of other processes than
    /// the first.
    #[cold]
    fn in_other_arena(&self, addr: u64, len: u64) -> bool {
        let first = self.others.load(Ordering::Relaxed);
        first != 0 && within(addr, len, (first, OTHER_ARENAS * self.arena_bytes))
    }

    /// Frame number of an address in the receive area.
    pub fn rx_frame_of(&self, addr: u64) -> Option<u32> {
        let (start, len) = self.rx_area();
        within(addr, 1, (start, len)).then(|| ((addr as usize - start) / FRAME_BYTES) as u32)
    }

    /// Sets the link of a frame whose Mbuf the caller holds.
    pub(crate) fn set_link(&self, mbuf: &Mbuf, link: Link) {
        // SAFETY: the holder of a frame's Mbuf is the only one to touch its link.
        unsafe { *self.links[mbuf.frame() as usize].get() = link }
    }

    /// Reads the link of a frame that the calling list owns.
    pub(crate) fn link(&self, frame: u32) -> Link {
        // SAFETY: only the list that owns the frame calls this, under a borrow of itself.
        unsafe { *self.links[frame as usize].get() }
    }

    /// Changes the link of a frame that the calling list owns.
    pub(crate) fn relink(&self, frame: u32, link: Link) {
        // SAFETY: only the list that owns the frame calls this, under an exclusive borrow of
        // itself.
        unsafe { *self.links[frame as usize].get() = link }
    }

    /// Address of an mbuf's first byte in use, as the application sees it.
    pub fn addr_of(&self, mbuf: &crate::Mbuf) -> u64 {
        self.frame_ptr(mbuf.frame()) as u64 + mbuf.offset() as u64
    }
}

impl Drop for PacketMemory {
    fn drop(&mut self) {
        let (start, bytes) = self.mapping;
        // SAFETY: unmaps exactly what `new` mapped; no Mbuf is used after its memory is gone.
        unsafe { libc::munmap(start.cast(), bytes) };
        let others = *self.others.get_mut();
        if others != 0 {
            let others = core::ptr::with_exposed_provenance_mut(others);
            // SAFETY: exactly what `add_arena` has reserved, whatever lies in it now.
            unsafe { libc::munmap(others, OTHER_ARENAS * self.arena_bytes) };
        }
    }
}

fn within(addr: u64, len: u64, (start, area): (usize, usize)) -> bool {
    let Some(offset) = addr.checked_sub(start as u64) else { return false };
    len <= area as u64 && offset <= area as u64 - len
}

/// Maps anonymous memory with 2 MB to spare. Returns its start, and the first multiple of 2 MB in
/// it, where the areas begin.
fn reserve(bytes: usize) -> Result<(*mut u8, *mut u8), MemoryError> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let mapped = map(core::ptr::null_mut(), bytes + TWO_MB, flags, -1);
    let start = mapped.ok_or_else(|| MemoryError::Map(errno(), bytes))?;
    let skip = start.align_offset(TWO_MB);
    // SAFETY: `skip` is below 2 MB, which were mapped in addition.
    Ok((start, unsafe { start.add(skip) }))
}

/// Maps the areas side by side from `base` on, where the caller has reserved room for all. Returns
/// the worst pages of the three.
fn map_areas(
    mut base: *mut u8,
    fds: [BorrowedFd<'_>; 3],
    sizes: Sizes,
) -> Result<PageKind, MemoryError> {
    let mut worst = PageKind::Huge2M;
    for (fd, bytes) in fds.into_iter().zip(sizes.areas()).filter(|(_, bytes)| *bytes > 0) {
        let pages = map_area(base, fd, bytes)?;
        worst = match (worst, pages) {
            (PageKind::Small, _) | (_, PageKind::Small) => PageKind::Small,
            (PageKind::Merged2M, _) | (_, PageKind::Merged2M) => PageKind::Merged2M,
            _ => PageKind::Huge2M,
        };
        // SAFETY: the areas together are as long as what was reserved.
        base = unsafe { base.add(bytes) };
    }
    Ok(worst)
}

/// What Linux knows of a memfd, which must have so many bytes.
fn has_room(fd: BorrowedFd<'_>, bytes: usize) -> Result<libc::stat, MemoryError> {
    // SAFETY: all-zero bytes are a valid stat.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: `stat` is writable for the length of the call.
    if unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) } < 0 {
        return Err(MemoryError::Map(errno(), bytes));
    }
    if stat.st_size < bytes as libc::off_t {
        return Err(MemoryError::TooShort(stat.st_size as u64, bytes));
    }
    Ok(stat)
}

fn map_area(base: *mut u8, fd: BorrowedFd<'_>, bytes: usize) -> Result<PageKind, MemoryError> {
    let huge = has_room(fd, bytes)?.st_blksize as usize == TWO_MB;
    let flags = libc::MAP_SHARED | libc::MAP_FIXED | if huge { libc::MAP_POPULATE } else { 0 };
    let mapped = map(base, bytes, flags, fd.as_raw_fd());
    mapped.ok_or_else(|| MemoryError::Map(errno(), bytes))?;
    Ok(if huge { PageKind::Huge2M } else { PageKind::Small })
}

/// Makes Linux back shared memory with pages. It lies within a mapping whose begin and length are
/// multiples of 2 MB. With the usual system settings Linux does not give shared memory large pages
/// by itself.
fn populate(base: *mut u8, bytes: usize) -> PageKind {
    // A piece without any page is not merged. One page is enough, and much less work than filling
    // the piece with small pages.
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

/// Maps `bytes`, at `at` if the flags say so (then it is a reserved range of ours), else anywhere.
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
    use std::os::unix::fs::FileExt;

    const SIZES: Sizes = Sizes { rx_frames: 100, tx_frames: 1, arena_bytes: 1 };

    #[test]
    fn two_mappings_of_one_descriptor_see_the_same_frames() {
        let fds = MemoryFds::new(SIZES).unwrap();
        let one = PacketMemory::map(fds.as_fds(), SIZES).unwrap();
        let other = PacketMemory::map(fds.as_fds(), SIZES).unwrap();
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
    fn transmit_memory_of_other_processes_is_read_where_it_is_mapped() {
        let fds = MemoryFds::new(SIZES).unwrap();
        let memory = PacketMemory::map(fds.as_fds(), SIZES).unwrap();
        let other = MemoryFds::new(SIZES).unwrap();
        let file = std::fs::File::from(other.arena.try_clone().unwrap());
        file.write_all_at(b"theirs", 8).unwrap();
        let shift = memory.add_arena(62, other.arena.as_fd()).unwrap();
        assert!(memory.add_arena(63, other.arena.as_fd()).is_err());
        let (base, len) = memory.arena();
        let at = (base as u64 + 8).wrapping_add(shift);
        let mut read = [0; 6];
        assert!(memory.copy_from_app(at, &mut read) && read == *b"theirs");
        let numbers = [at, base as u64, 1].map(|address| memory.arena_with(address));
        assert_eq!(numbers, [Some(63), Some(0), None]);
        // It is not what a program may name.
        assert!(!memory.app_may_send(at, 6) && !memory.in_arena(at, 6));
        assert!(!memory.copy_from_app(at + len as u64 - 8, &mut read), "behind the last");
        memory.remove_arena(62);
        assert!(memory.copy_from_app(at, &mut read) && read == [0; 6]);
    }

    #[test]
    fn memory_has_pages_where_it_is_used_and_gives_them_back_unless_it_is_sealed() {
        let sizes = Sizes { rx_frames: 4096, tx_frames: 2048, arena_bytes: 4 * TWO_MB };
        let fds = MemoryFds::for_another_process(sizes).unwrap();
        let mut memory = PacketMemory::map(fds.as_fds(), sizes).unwrap();
        let bytes = || {
            fds.as_fds().map(|fd| {
                let file = std::fs::File::from(fd.try_clone_to_owned().unwrap());
                std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap()) as usize * 512
            })
        };
        assert_eq!(bytes(), [0; 3]);
        memory.limit_devices(1024, 1024);
        assert_eq!(memory.device_frames(), 3072..5120);
        memory.populate();
        let before = bytes();
        assert!(before[0] >= TWO_MB && before[1] >= TWO_MB && before[2] == 0, "{before:?}");
        assert!(before[0] < 8 * TWO_MB / 2, "{before:?}: frames beyond have no pages");
        let touch = |memory: &PacketMemory| {
            for frame in (0..3072).step_by(2) {
                // SAFETY: nobody else has this frame.
                let mut mbuf = unsafe { Mbuf::from_frame(frame) };
                mbuf.set_range(0, 1);
                mbuf.bytes_mut(memory).fill(7);
                let _ = mbuf.into_frame();
            }
        };
        touch(&memory);
        assert_eq!(bytes()[0], 4096 * FRAME_BYTES);
        assert!(memory.give_back(0..3072));
        assert!(bytes()[0] <= before[0], "{:?}", bytes());
        touch(&memory);
        ix_sys::fd::seal_writes(fds.rx.as_fd()).unwrap();
        assert!(!memory.give_back(0..3072), "Linux refuses");
        assert_eq!(bytes()[0], 4096 * FRAME_BYTES);
    }

    #[test]
    fn nobody_can_change_the_size_and_a_short_descriptor_is_refused() {
        let fds = MemoryFds::new(SIZES).unwrap();
        for fd in fds.as_fds() {
            for bytes in [0, 2 * TWO_MB, 100 * TWO_MB] {
                // SAFETY: no memory is passed.
                let ret = unsafe { libc::ftruncate(fd.as_raw_fd(), bytes as libc::off_t) };
                assert_eq!((ret, errno()), (-1, libc::EPERM));
            }
        }
        let larger = Sizes { arena_bytes: 10 * TWO_MB, ..SIZES };
        let Err(e) = PacketMemory::map(fds.as_fds(), larger) else { panic!("mapped") };
        assert!(e.to_string().contains("same version"), "{e}");
    }
}
