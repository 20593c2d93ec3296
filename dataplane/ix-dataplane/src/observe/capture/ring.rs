//! The rings that a capture is written to, one for each elastic thread.
//!
//! A thread writes its ring and waits for no reader. A reader maps the memory read-only, so the
//! dataplane does not depend on it. A reader that is too slow loses records, and knows how many,
//! because records have numbers. As in a sequence lock, the writer claims room before it overwrites
//! what was there, and a reader drops its copy if the room was claimed meanwhile.
use super::memory::CaptureMemory;
use crate::sync::{Arc, Ordering, fence};
use ix_proto::capture::SNAPLEN_MAX;

/// Words of a record before its bytes.
pub(super) const HEAD_WORDS: usize = 5;

/// What a record says about a packet beside its first bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// When, µs of the monotonic clock.
    pub time_us: u64,
    /// Bytes of the whole packet.
    pub len: u32,
    /// Number of the device.
    pub port: u8,
    /// Sent by this dataplane; else received.
    pub sent: bool,
    /// The flow group, if it has one.
    pub group: Option<u8>,
    /// It had waited while its flow group moved.
    pub held: bool,
    /// Another elastic thread had received it and handed it over.
    pub by_thread: Option<u8>,
    /// Why it was dropped: an index into [`super::drop_names`].
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
    /// The writing end for this thread. There may be only one.
    pub fn new(memory: Arc<CaptureMemory>, thread: usize) -> RingWriter {
        RingWriter { memory, thread, published: 0, serial: 0, staged: 0 }
    }

    /// Writes a packet's bytes, given in pieces. No reader sees them before
    /// [`RingWriter::publish`].
    pub fn stage<'a>(&mut self, snaplen: u32, pieces: impl Iterator<Item = &'a [u8]>) {
        let room = u64::from(snaplen).div_ceil(8) + HEAD_WORDS as u64;
        let claim = self.memory.line(self.thread, 1);
        claim.store(self.published + room, Ordering::Relaxed);
        // A reader that sees a word of this record sees the claim.
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

    /// Publishes what was staged as a record.
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

/// A packet, as a reader gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// The elastic thread that wrote it.
    pub thread: usize,
    /// What the dataplane says about it.
    pub mark: Mark,
    /// Its first bytes.
    pub bytes: Vec<u8>,
    /// Number of packets of this thread before it that were overwritten before they were read.
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

    /// The next packet, if there is one.
    fn next(&mut self) -> Option<Captured> {
        loop {
            let published = self.memory.line(self.thread, 0).load(Ordering::Acquire);
            if published <= self.position {
                return None;
            }
            let Some((words, serial, captured)) = self.copy() else {
                // It was overwritten. A record begins at the end of what is published.
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
    /// The reading end, from the beginning of the ring.
    pub fn new(memory: Arc<CaptureMemory>, thread: usize) -> RingReader {
        RingReader { memory, thread, position: 0, serial: 0 }
    }

    /// Copies the record at the current position, with its length in words and its number; `None`
    /// if it is not the record that was written there.
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
        if claimed > self.position + self.memory.ring_words() {
            return None;
        }
        let mark = Mark::read(len as u32, time, options);
        let captured = Captured { thread: self.thread, mark, bytes, lost_before: 0 };
        Some((words, serial, captured))
    }
}
