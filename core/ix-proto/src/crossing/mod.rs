//! How a program and its dataplane cross the wall between two processes: words in memory that both
//! map, one group of them for each elastic thread.
//!
//! Each word has one writer, and no other side can write it: a [`Request`] is on pages that the
//! program writes and a [`Reply`] is on pages that it can only read. The program is never trusted:
//! the dataplane reads each word of a request once and checks what it got.
//!
//! One request is under way at a time. The program writes its words and then [`Request::serial`];
//! the dataplane carries it out, writes the words of the reply and then [`Reply::serial`]. How each
//! of them publishes and sleeps is in [`Direction`]; the bell is a socket.
mod direction;

pub use direction::Direction;

use crate::codec::codec_struct;
use crate::sync::{AtomicU32, AtomicU64};
use ix_abi::{CALLS_MAX, CallSlot, EVENTS_MAX, EventSlot, ProcessHeader, ThreadArea, Will};

/// Address of everything that both processes map, in both of them. Programs, sanitizers' shadows
/// and the heaps of Go and Java leave it free.
pub const WINDOW: usize = 0x5500_0000_0000;
/// Most bytes of packet memory.
pub const PACKETS_MAX: usize = 1 << 38;
/// Address of the pages that the program writes.
pub const WRITTEN_AT: usize = WINDOW + PACKETS_MAX;
/// Address of the pages that the program only reads.
pub const READ_AT: usize = WRITTEN_AT + (1 << 36);

/// Number of one of the processes of a program that share a dataplane: an *attachment*. The first
/// one has number 0.
pub type AttachmentId = u8;
/// Most processes of a program that share a dataplane at a time.
pub const ATTACHMENTS_MAX: usize = 64;

/// What a program's side needs to know to map what it shares with its dataplane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attach {
    /// What the process's hello said.
    pub asker: u64,
    /// The process's number among those that share the dataplane.
    pub number: usize,
    /// Number of elastic threads.
    pub threads: usize,
    /// Bytes of receive memory, of what the dataplane keeps for itself, and of transmit memory. In
    /// this order they begin at [`WINDOW`].
    pub packet_bytes: [u64; 3],
    /// Program and dataplane share hardware threads: a thread that enters an elastic thread is
    /// pinned to that one's.
    pub pins: bool,
}

codec_struct!(Attach { asker, number, threads, packet_bytes, pins } if check);

/// More than [`THREADS_MAX`] threads or [`ATTACHMENTS_MAX`] processes, or more packet memory than
/// the window has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachError;

impl Attach {
    /// Whether what is at the addresses of the other one may be replaced by this: all but the asker
    /// and the number is the same.
    pub fn fits(&self, other: &Attach) -> bool {
        let alike = Attach { asker: other.asker, number: other.number, ..*self };
        alike == *other
    }

    /// Refuses what does not fit into the window.
    pub fn check(&self) -> Result<(), AttachError> {
        let bytes = self.packet_bytes.iter().try_fold(0u64, |sum, bytes| sum.checked_add(*bytes));
        let fits = bytes.is_some_and(|bytes| bytes <= PACKETS_MAX as u64);
        let fits = fits && self.number < ATTACHMENTS_MAX;
        if fits && (1..=THREADS_MAX).contains(&self.threads) { Ok(()) } else { Err(AttachError) }
    }
}

/// What the program asks of one elastic thread. The program writes it.
#[repr(C, align(64))]
pub struct Request {
    /// Number of the request, from 1 on. Written last.
    pub serial: AtomicU64,
    /// One of [`ix_abi::gate_op`].
    pub op: AtomicU64,
    /// Number of calls in the array (`RUN_IO`).
    pub calls: AtomicU64,
    /// Longest wait, µs (`RUN_IO`).
    pub wait_us: AtomicU64,
    /// The hardware thread on which the caller waits.
    pub cpu: AtomicU32,
    /// 1: the caller sleeps until its bell rings.
    pub is_asleep: AtomicU32,
    /// Grows when a wait is to end early: whatever request is under way then ends.
    pub kick: AtomicU64,
}

/// What became of the request. The dataplane writes it.
#[repr(C, align(64))]
pub struct Reply {
    /// Number of the request that was carried out last. Written last.
    pub serial: AtomicU64,
    /// What it returns: see [`ix_abi::gate_op`].
    pub result: AtomicU64,
    /// Time of the last cycle, µs of the dataplane's monotonic clock.
    pub now_us: AtomicU64,
    /// 1: the elastic thread sleeps until its bell rings.
    pub is_asleep: AtomicU32,
    /// Always 0.
    pub reserved: AtomicU32,
}

/// Where the program has faulted, for the broker to tell the user. Nothing else depends on it.
#[repr(C, align(64))]
pub struct FaultNote {
    /// The signal; 0: none.
    pub signal: AtomicU64,
    /// The address that was accessed.
    pub address: AtomicU64,
    /// The instruction's address.
    pub instruction: AtomicU64,
}

/// From the program to the dataplane.
pub fn requests<'a>(request: &'a Request, reply: &'a Reply) -> Direction<'a> {
    Direction { serial: &request.serial, is_asleep: &reply.is_asleep }
}

/// From the dataplane to the program.
pub fn replies<'a>(request: &'a Request, reply: &'a Reply) -> Direction<'a> {
    Direction { serial: &reply.serial, is_asleep: &request.is_asleep }
}

/// What the program writes for one elastic thread.
#[repr(C, align(4096))]
pub struct WrittenPages {
    /// The call array.
    pub calls: [CallSlot; CALLS_MAX],
    /// The request.
    pub request: Request,
    /// Written for the first elastic thread only.
    pub fault: FaultNote,
    /// What is carried out when the process has ended.
    pub will: Will,
}

/// What the program only reads of one elastic thread.
#[repr(C, align(4096))]
pub struct ReadPages {
    /// The event array.
    pub events: [EventSlot; EVENTS_MAX],
    /// The reply.
    pub reply: Reply,
}

/// What a dataplane leaves to the next one of its program, if it ends before the program does. The
/// dataplane writes it, behind the thread areas.
#[repr(C, align(64))]
pub struct Legacy {
    /// Transmit memory before this offset may belong to the program, bytes.
    pub given_bytes: AtomicU64,
}

/// Where the [`Legacy`] is in the memory that the program only reads.
pub const LEGACY_AT: usize = HEADER_BYTES - size_of::<Legacy>();

/// Pages before the [`ReadPages`]: a [`ProcessHeader`] without a gate, which the program's side
/// copies, and the [`ThreadArea`]s behind it.
pub const HEADER_BYTES: usize = 16 << 10;

/// Most elastic threads whose areas fit behind the header.
pub const THREADS_MAX: usize = 256;

const _: () =
    assert!(size_of::<ProcessHeader>() + THREADS_MAX * size_of::<ThreadArea>() <= LEGACY_AT);
const _: () = assert!(THREADS_MAX * size_of::<WrittenPages>() < READ_AT - WRITTEN_AT);

/// Bytes of the memory that the program writes, for so many elastic threads.
pub const fn written_bytes(threads: usize) -> usize {
    threads * size_of::<WrittenPages>()
}

/// Bytes of the memory that the program only reads, for so many elastic threads.
pub const fn read_bytes(threads: usize) -> usize {
    HEADER_BYTES + threads * size_of::<ReadPages>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;

    #[test]
    fn arrays_begin_on_a_page_and_words_on_a_line_of_their_own() {
        assert_eq!(offset_of!(WrittenPages, calls), 0);
        assert_eq!(offset_of!(ReadPages, events), 0);
        assert!(offset_of!(WrittenPages, request).is_multiple_of(64));
        assert!(offset_of!(ReadPages, reply).is_multiple_of(64));
        assert_eq!((size_of::<Request>(), size_of::<Reply>()), (64, 64));
        assert!(READ_AT + read_bytes(THREADS_MAX) < 0x5555_5555_4000, "below any program");
    }
}
