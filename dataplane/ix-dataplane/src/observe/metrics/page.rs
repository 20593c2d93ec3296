//! The control page: versioned shared memory with one block for each elastic thread.
use super::{Metric, NONRESPONSIVE_US, ThreadBlock, VERSION, WallBlock};
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};
use std::os::fd::{AsRawFd, BorrowedFd};

/// `b"IXCTRL\0\0"` as a little-endian number. Written last: the page is complete.
const MAGIC: u64 = u64::from_le_bytes(*b"IXCTRL\0\0");

/// First bytes of the page. Blocks follow at a multiple of their alignment.
#[repr(C, align(128))]
struct Header {
    magic: AtomicU64,
    version: u32,
    threads: u32,
    block_bytes: u32,
    reserved: u32,
    ticks_per_us: u64,
    batch_bound: Metric,
    nonresponsive_us: Metric,
    commands: CommandBlock,
    wall: WallBlock,
}

/// The results of the control plane's commands. Written by the elastic thread that holds the lock
/// of the running command.
#[derive(Debug, Default)]
#[repr(C)]
pub struct CommandBlock {
    /// Number of the running command; 0: none.
    pub running: Metric,
    /// Number of the last command that ended.
    pub ended: Metric,
    /// Commands that were carried out.
    pub done: Metric,
    /// Commands that were refused.
    pub refused: Metric,
    /// Commands that were undone because they took too long.
    pub timed_out: Metric,
}

/// Why a control page cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageError {
    /// A system call failed with this errno.
    System(&'static str, i32),
    /// Not a control page, or one that is not complete yet.
    NotAPage,
    /// Written by another version of IX.
    Version(u32),
    /// Shorter than its own header says.
    Truncated,
}

impl fmt::Display for PageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PageError::System(call, errno) => {
                write!(f, "control page: {call} failed (errno {errno})")
            }
            PageError::NotAPage => {
                write!(f, "not a control page, or its dataplane is still starting")
            }
            PageError::Version(theirs) => {
                write!(
                    f,
                    "the control page has version {theirs}, this `ix` has {VERSION}; use the same `ix` for both"
                )
            }
            PageError::Truncated => write!(f, "the control page is truncated"),
        }
    }
}

impl std::error::Error for PageError {}

/// A mapped control page.
pub struct ControlPage {
    header: NonNull<Header>,
    bytes: usize,
    threads: usize,
    writable: bool,
}

// SAFETY: a mapping of atomics and of header fields that never change once the page exists.
unsafe impl Send for ControlPage {}
// SAFETY: as above.
unsafe impl Sync for ControlPage {}

impl ControlPage {
    /// Bytes of a page for this many elastic threads.
    pub fn bytes_for(threads: usize) -> usize {
        size_of::<Header>() + threads * size_of::<ThreadBlock>()
    }

    /// A page in private memory, for tests and for simulators.
    pub fn anonymous(threads: usize) -> Result<ControlPage, PageError> {
        let bytes = Self::bytes_for(threads);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let header = map(bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1)?;
        // SAFETY: a fresh, zeroed mapping of `bytes_for(threads)` bytes.
        Ok(unsafe { Self::format(header, bytes, threads, 0) })
    }

    /// Makes a page in the file or memfd `fd`, which is empty or all zeros. `ticks_per_us` is the
    /// rate of the time stamp counter; 0: unknown.
    pub fn create(fd: BorrowedFd, threads: usize, ticks_per_us: u64) -> Result<Self, PageError> {
        let bytes = Self::bytes_for(threads);
        // The broker's memfd already has its final, sealed size.
        if file_bytes(fd)? < bytes {
            // SAFETY: a plain system call on a descriptor that is open.
            let ret = unsafe { libc::ftruncate(fd.as_raw_fd(), bytes as libc::off_t) };
            if ret < 0 {
                return Err(PageError::System("ftruncate", errno()));
            }
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let header = map(bytes, protection, libc::MAP_SHARED, fd.as_raw_fd())?;
        // SAFETY: a mapping of a file that is `bytes` long, of zeroes, and ours to write.
        Ok(unsafe { Self::format(header, bytes, threads, ticks_per_us) })
    }

    /// Maps a page that a dataplane made, for reading.
    pub fn open(fd: BorrowedFd) -> Result<ControlPage, PageError> {
        let bytes = file_bytes(fd)?;
        if bytes < size_of::<Header>() {
            return Err(PageError::NotAPage);
        }
        let header = map(bytes, libc::PROT_READ, libc::MAP_SHARED, fd.as_raw_fd())?;
        let mut page = ControlPage { header, bytes, threads: 0, writable: false };
        page.threads = page.check()?;
        Ok(page)
    }

    /// # Safety
    /// `header` is a writable, zeroed mapping of `bytes >= bytes_for(threads)` that nobody else
    /// uses.
    unsafe fn format(
        header: NonNull<Header>,
        bytes: usize,
        threads: usize,
        ticks_per_us: u64,
    ) -> ControlPage {
        let content = Header {
            magic: AtomicU64::new(0),
            version: VERSION,
            threads: threads as u32,
            block_bytes: size_of::<ThreadBlock>() as u32,
            reserved: 0,
            ticks_per_us,
            batch_bound: Metric::default(),
            nonresponsive_us: Metric::default(),
            commands: CommandBlock::default(),
            wall: WallBlock::default(),
        };
        // SAFETY: the mapping begins with room for a header (the caller's promise).
        unsafe { header.write(content) };
        let page = ControlPage { header, bytes, threads, writable: true };
        page.header().magic.store(MAGIC, Release);
        page
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping lives as long as self and is at least a header long; all bit patterns
        // are valid. Fields but atomic ones do not change after `magic` was written.
        unsafe { self.header.as_ref() }
    }

    /// Returns the number of threads of a page that another process has made.
    fn check(&self) -> Result<usize, PageError> {
        let header = self.header();
        if header.magic.load(Acquire) != MAGIC {
            return Err(PageError::NotAPage);
        }
        if header.version != VERSION || header.block_bytes as usize != size_of::<ThreadBlock>() {
            return Err(PageError::Version(header.version));
        }
        let threads = header.threads as usize;
        let fits = self.bytes >= Self::bytes_for(threads);
        if fits { Ok(threads) } else { Err(PageError::Truncated) }
    }

    /// Number of elastic threads.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Ticks of the time stamp counter per microsecond; 0: unknown.
    pub fn ticks_per_us(&self) -> u64 {
        self.header().ticks_per_us
    }

    /// The batch bound B; 0: not known yet.
    pub fn batch_bound(&self) -> u32 {
        self.header().batch_bound.get() as u32
    }

    /// Sets the batch bound.
    pub(crate) fn set_batch_bound(&self, batch: usize) {
        self.header().batch_bound.set(batch as u64);
    }

    /// How long an application may keep an elastic thread before it counts as non-responsive, µs.
    pub fn nonresponsive_us(&self) -> u64 {
        match self.header().nonresponsive_us.get() {
            0 => NONRESPONSIVE_US,
            us => us,
        }
    }

    /// Sets that time; 0: the default.
    pub(crate) fn set_nonresponsive_us(&self, us: u64) {
        self.header().nonresponsive_us.set(us);
    }

    /// The results of commands.
    pub fn commands(&self) -> &CommandBlock {
        &self.header().commands
    }

    /// What the wall has refused.
    pub fn wall(&self) -> &WallBlock {
        &self.header().wall
    }

    /// Where it is mapped: address and bytes, whole pages.
    pub(crate) fn range(&self) -> (usize, usize) {
        (self.header.as_ptr() as usize, self.bytes.next_multiple_of(4096))
    }

    /// True if it may be written: a page from [`ControlPage::open`] may not.
    pub fn writable(&self) -> bool {
        self.writable
    }

    /// The block of one elastic thread.
    ///
    /// # Panics
    /// If there is no such thread.
    pub fn thread(&self, index: usize) -> &ThreadBlock {
        assert!(index < self.threads, "no elastic thread {index}");
        // SAFETY: within the mapping (`bytes_for` of `threads` was checked against its length);
        // the header's size is a multiple of the block's alignment; all bit patterns are valid.
        unsafe { self.header.add(1).cast::<ThreadBlock>().add(index).as_ref() }
    }
}

impl Drop for ControlPage {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what was mapped; blocks are borrowed from self or hold it alive.
        unsafe { libc::munmap(self.header.as_ptr().cast(), self.bytes) };
    }
}

fn file_bytes(fd: BorrowedFd) -> Result<usize, PageError> {
    // SAFETY: all zero is a valid `stat`; fstat fills it.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: the pointer is to a local.
    if unsafe { libc::fstat(fd.as_raw_fd(), &mut stat) } < 0 {
        return Err(PageError::System("fstat", errno()));
    }
    Ok(stat.st_size as usize)
}

fn map(bytes: usize, prot: i32, flags: i32, fd: i32) -> Result<NonNull<Header>, PageError> {
    // SAFETY: a new mapping at an address of the kernel's choice.
    let p = unsafe { libc::mmap(core::ptr::null_mut(), bytes, prot, flags, fd, 0) };
    match NonNull::new(p) {
        Some(p) if p.as_ptr() != libc::MAP_FAILED => Ok(p.cast()),
        _ => Err(PageError::System("mmap", errno())),
    }
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

const _: () = assert!(size_of::<Header>().is_multiple_of(align_of::<ThreadBlock>()));
