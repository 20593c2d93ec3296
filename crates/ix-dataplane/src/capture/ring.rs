//! The memory that a capture is written to: one ring for each elastic thread.
//!
//! A thread writes its ring and waits for nobody. Who reads maps the memory read-only, so that the
//! dataplane depends on nothing that a reader does: a reader that is too slow loses records, and
//! knows how many, because records have numbers. As in a sequence lock, the writer claims room
//! before it overwrites what was there, and a reader that copied while its copy was claimed throws
//! the copy away.
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering, fence};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// `b"IXCAP\0\0\x01"` as a little-endian number; the last octet is the version.
const MAGIC: u64 = u64::from_le_bytes(*b"IXCAP\0\0\x01");
/// Words in front of the rings: four of the memory, then a line of eight for each thread.
const LINE_WORDS: usize = 8;
/// Words of a record in front of its bytes.
pub(super) const HEAD_WORDS: usize = 5;
/// Least and most bytes of a thread's ring.
pub const RING_BYTES: std::ops::RangeInclusive<u64> = 64 << 10..=1 << 30;
/// Most bytes of a packet that are kept.
pub const SNAPLEN_MAX: u32 = 65_535;

/// What a record says beside the packet's first bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// When, µs of the monotonic clock.
    pub time_us: u64,
    /// Bytes of the whole packet.
    pub len: u32,
    /// Number of the device.
    pub port: u8,
    /// Sent by us; else received.
    pub sent: bool,
    /// The flow group, where it has one.
    pub group: Option<u8>,
    /// It had waited while its flow group moved.
    pub held: bool,
    /// Another elastic thread had received it and handed it over.
    pub by_thread: Option<u8>,
    /// Why it went no further: an index into [`super::drop_names`].
    pub dropped: Option<u8>,
}

impl Mark {
    fn words(&self) -> [u64; 2] {
        let option = |value: Option<u8>| value.map_or(0, |v| 0x100 | u64::from(v));
        let flags = u64::from(self.sent) | u64::from(self.held) << 1 | u64::from(self.port) << 8;
        let options = option(self.group)
            | option(self.by_thread) << 16
            | option(self.dropped) << 32
            | flags << 48;
        [self.time_us, options]
    }

    fn read(len: u32, time_us: u64, options: u64) -> Mark {
        let option = |at: u32| (options >> (at + 8) & 1 == 1).then_some((options >> at) as u8);
        let flags = (options >> 48) as u16;
        Mark {
            time_us,
            len,
            port: (flags >> 8) as u8,
            sent: flags & 1 != 0,
            group: option(0),
            held: flags & 2 != 0,
            by_thread: option(16),
            dropped: option(32),
        }
    }
}

/// Why memory cannot be a capture's.
#[derive(Debug)]
pub enum CaptureError {
    /// A system call failed.
    System(&'static str, io::Error),
    /// It has not the size or the beginning that it must have.
    Shape,
}

impl fmt::Display for CaptureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CaptureError::System(call, e) => write!(f, "{call}: {e}"),
            CaptureError::Shape => f.write_str("the memory of the capture has another shape"),
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
    /// Bytes that a capture of so many threads needs.
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

    /// Elastic threads.
    pub fn threads(&self) -> usize {
        self.threads
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

    /// A word of a thread's line: 0 published, 1 claimed, both positions in words ever written.
    fn line(&self, thread: usize, which: usize) -> &AtomicU64 {
        self.word((1 + thread) * LINE_WORDS + which)
    }

    fn slot(&self, thread: usize, position: u64) -> &AtomicU64 {
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

/// The writing end of one thread's ring.
pub struct RingWriter {
    memory: Arc<CaptureMemory>,
    thread: usize,
    published: u64,
    serial: u64,
    /// Bytes of the record that is written and not published yet.
    staged: u32,
}

impl RingWriter {
    /// The end of this thread; there is one at most.
    pub fn new(memory: Arc<CaptureMemory>, thread: usize) -> RingWriter {
        RingWriter { memory, thread, published: 0, serial: 0, staged: 0 }
    }

    /// Writes a packet's bytes, which come in pieces; nobody sees them until [`RingWriter::publish`].
    pub fn stage<'a>(&mut self, snaplen: u32, pieces: impl Iterator<Item = &'a [u8]>) {
        let room = u64::from(snaplen).div_ceil(8) + HEAD_WORDS as u64;
        let claim = self.memory.line(self.thread, 1);
        claim.store(self.published + room, Ordering::Relaxed);
        // Whoever sees a word of this record sees the claim.
        fence(Ordering::Release);
        let mut at = self.published + HEAD_WORDS as u64;
        let (mut word, mut filled, mut left) = ([0u8; 8], 0, snaplen as usize);
        for piece in pieces {
            for &byte in &piece[..piece.len().min(left)] {
                word[filled] = byte;
                filled += 1;
                if filled == 8 {
                    self.put(at, u64::from_le_bytes(word));
                    (at, filled) = (at + 1, 0);
                }
            }
            left -= piece.len().min(left);
        }
        if filled > 0 {
            word[filled..].fill(0);
            self.put(at, u64::from_le_bytes(word));
        }
        self.staged = snaplen - left as u32;
    }

    /// Makes what was staged a record.
    pub fn publish(&mut self, mark: &Mark) {
        let words = HEAD_WORDS as u64 + u64::from(self.staged).div_ceil(8);
        let [time, options] = mark.words();
        let head =
            [words << 32 | u64::from(self.staged), self.serial, u64::from(mark.len), time, options];
        for (i, word) in head.into_iter().enumerate() {
            self.put(self.published + i as u64, word);
        }
        self.serial += 1;
        self.published += words;
        self.memory.line(self.thread, 0).store(self.published, Ordering::Release);
    }

    fn put(&self, position: u64, word: u64) {
        self.memory.slot(self.thread, position).store(word, Ordering::Relaxed);
    }
}

/// A packet as a reader has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// The elastic thread that wrote it.
    pub thread: usize,
    /// What the dataplane says of it.
    pub mark: Mark,
    /// Its first bytes.
    pub bytes: Vec<u8>,
    /// So many packets of this thread in front of it were overwritten before they were read.
    pub lost_before: u64,
}

/// The reading end of one thread's ring.
pub struct RingReader {
    memory: Arc<CaptureMemory>,
    thread: usize,
    position: u64,
    serial: u64,
}

impl Iterator for RingReader {
    type Item = Captured;

    /// The next packet, if there is one by now.
    fn next(&mut self) -> Option<Captured> {
        loop {
            let published = self.memory.line(self.thread, 0).load(Ordering::Acquire);
            if published <= self.position {
                return None;
            }
            let Some((words, serial, captured)) = self.copy() else {
                // Overwritten. The end of what is published is where a record begins.
                self.position = published;
                continue;
            };
            let lost_before = serial.saturating_sub(self.serial);
            (self.position, self.serial) = (self.position + words, serial + 1);
            return Some(Captured { lost_before, ..captured });
        }
    }
}

impl RingReader {
    /// From its beginning.
    pub fn new(memory: Arc<CaptureMemory>, thread: usize) -> RingReader {
        RingReader { memory, thread, position: 0, serial: 0 }
    }

    /// A copy of the record here, its words and number; `None` if it is not what was written here.
    fn copy(&self) -> Option<(u64, u64, Captured)> {
        let get =
            |at: u64| self.memory.slot(self.thread, self.position + at).load(Ordering::Relaxed);
        let [sizes, serial, len, time, options] = std::array::from_fn(|i| get(i as u64));
        let (words, len_kept) = (sizes >> 32, sizes as u32 as usize);
        let possible = len_kept <= SNAPLEN_MAX as usize
            && words == HEAD_WORDS as u64 + (len_kept as u64).div_ceil(8);
        if !possible {
            return None;
        }
        let mut bytes = Vec::with_capacity(len_kept + 8);
        for at in HEAD_WORDS as u64..words {
            bytes.extend(get(at).to_le_bytes());
        }
        bytes.truncate(len_kept);
        fence(Ordering::Acquire);
        let claimed = self.memory.line(self.thread, 1).load(Ordering::Relaxed);
        if claimed > self.position + self.memory.ring_words as u64 {
            return None;
        }
        let mark = Mark::read(len as u32, time, options);
        let captured = Captured { thread: self.thread, mark, bytes, lost_before: 0 };
        Some((words, serial, captured))
    }
}
