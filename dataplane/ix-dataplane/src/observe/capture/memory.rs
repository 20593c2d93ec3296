//! The memory that a capture is written to, mapped by its writer and its reader.
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use ix_proto::capture::RING_BYTES;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

/// `b"IXCAP\0\0\x01"` as a little-endian number; the last octet is the version.
const MAGIC: u64 = u64::from_le_bytes(*b"IXCAP\0\0\x01");
/// Words in front of the rings: four of the memory, then a line of eight for each thread.
const LINE_WORDS: usize = 8;

/// Why memory cannot hold a capture.
#[derive(Debug)]
pub enum CaptureError {
    /// A system call failed.
    System(&'static str, io::Error),
    /// The memory has the wrong size or beginning.
    Shape,
}

impl fmt::Display for CaptureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CaptureError::System(call, e) => write!(f, "{call}: {e}"),
            CaptureError::Shape => {
                f.write_str("the memory of the capture has the wrong size or format")
            }
        }
    }
}

impl std::error::Error for CaptureError {}

/// Mapped memory of a capture.
pub struct CaptureMemory {
    words: NonNull<AtomicU64>,
    count: usize,
    threads: usize,
    ring_words: usize,
}

// SAFETY: nothing but atomics, in a mapping that is as long as the value.
unsafe impl Send for CaptureMemory {}
// SAFETY: as above.
unsafe impl Sync for CaptureMemory {}

impl CaptureMemory {
    /// Bytes that a capture of this many threads needs.
    pub fn bytes_for(threads: usize, ring_bytes: u64) -> u64 {
        ((1 + threads) * LINE_WORDS * 8) as u64 + threads as u64 * (ring_bytes & !7)
    }

    /// Makes a capture of zeroed memory of [`CaptureMemory::bytes_for`], for the dataplane.
    pub fn create(fd: BorrowedFd, threads: usize) -> Result<CaptureMemory, CaptureError> {
        let bytes = file_bytes(fd)?;
        let first = Self::bytes_for(threads, 0);
        let ring_bytes = bytes.checked_sub(first).ok_or(CaptureError::Shape)? / threads as u64;
        if !RING_BYTES.contains(&ring_bytes) {
            return Err(CaptureError::Shape);
        }
        let mut memory = Self::map(fd, libc::PROT_READ | libc::PROT_WRITE, bytes)?;
        (memory.threads, memory.ring_words) = (threads, ring_bytes as usize / 8);
        memory.word(1).store(threads as u64, Ordering::Relaxed);
        memory.word(2).store(ring_bytes / 8, Ordering::Relaxed);
        memory.word(0).store(MAGIC, Ordering::Release);
        Ok(memory)
    }

    /// Maps a capture that a dataplane writes, for reading.
    pub fn open(fd: BorrowedFd) -> Result<CaptureMemory, CaptureError> {
        let bytes = file_bytes(fd)?;
        let mut memory = Self::map(fd, libc::PROT_READ, bytes)?;
        if bytes < Self::bytes_for(1, 0) || memory.word(0).load(Ordering::Acquire) != MAGIC {
            return Err(CaptureError::Shape);
        }
        let threads = memory.word(1).load(Ordering::Relaxed);
        let ring_words = memory.word(2).load(Ordering::Relaxed);
        let fits = threads <= 256
            && RING_BYTES.contains(&ring_words.saturating_mul(8))
            && Self::bytes_for(threads as usize, ring_words * 8) <= bytes;
        if !fits {
            return Err(CaptureError::Shape);
        }
        (memory.threads, memory.ring_words) = (threads as usize, ring_words as usize);
        Ok(memory)
    }

    fn map(fd: BorrowedFd, protection: i32, bytes: u64) -> Result<CaptureMemory, CaptureError> {
        let (flags, fd) = (libc::MAP_SHARED, fd.as_raw_fd());
        let len = bytes as usize;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let p = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd, 0) };
        match NonNull::new(p.cast()) {
            Some(words) if p != libc::MAP_FAILED => {
                Ok(CaptureMemory { words, count: len / 8, threads: 0, ring_words: 0 })
            }
            _ => Err(CaptureError::System("mmap", io::Error::last_os_error())),
        }
    }

    /// Number of elastic threads.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Words of each thread's ring.
    pub(super) fn ring_words(&self) -> u64 {
        self.ring_words as u64
    }

    /// Bytes of each thread's ring.
    pub fn ring_bytes(&self) -> u64 {
        self.ring_words as u64 * 8
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.count);
        // SAFETY: within the mapping, which is page-aligned, as long as self, and of words that
        // everybody uses as atomics.
        unsafe { self.words.add(index).as_ref() }
    }

    /// A word of a thread's line: 0 is published, 1 claimed, both as positions in words ever
    /// written.
    pub(super) fn line(&self, thread: usize, which: usize) -> &AtomicU64 {
        self.word((1 + thread) * LINE_WORDS + which)
    }

    /// The word at a position of words ever written.
    pub(super) fn slot(&self, thread: usize, position: u64) -> &AtomicU64 {
        let at = (position % self.ring_words as u64) as usize;
        self.word((1 + self.threads) * LINE_WORDS + thread * self.ring_words + at)
    }
}

impl Drop for CaptureMemory {
    fn drop(&mut self) {
        // SAFETY: our own mapping, of which no reference is left.
        unsafe { libc::munmap(self.words.as_ptr().cast(), self.count * 8) };
    }
}

fn file_bytes(fd: BorrowedFd) -> Result<u64, CaptureError> {
    // SAFETY: all zeroes is a valid `stat`, which the call fills.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor and a local.
    if unsafe { libc::fstat(fd.as_raw_fd(), &mut stat) } < 0 {
        return Err(CaptureError::System("fstat", io::Error::last_os_error()));
    }
    Ok(stat.st_size as u64)
}
