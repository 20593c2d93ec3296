//! The memory that a dataplane shares with a program in another process, as the dataplane sees it
//! (`ix_proto::crossing` has the layout). The program may write its part at any time: each word is
//! read once, and what was read is checked before it is used.
use crate::run::boot::BootError;
use ix_abi::{CallSlot, EventSlot};
use ix_proto::crossing::{
    HEADER_BYTES, LEGACY_AT, Legacy, READ_AT, ReadPages, Reply, Request, THREADS_MAX, WRITTEN_AT,
    WrittenPages, read_bytes, written_bytes,
};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::without_provenance_mut;

/// The pages of both kinds, at the addresses at which the program has them.
pub struct CrossingPages {
    written: *mut WrittenPages,
    /// The header, then the pages of each elastic thread.
    read: *mut u8,
    threads: usize,
}

// SAFETY: plain memory; words of both sides are atomics, and the arrays are used by one elastic
// thread each.
unsafe impl Send for CrossingPages {}
// SAFETY: as above.
unsafe impl Sync for CrossingPages {}

impl CrossingPages {
    /// Maps the memory that the program writes and the memory that it reads, for so many elastic
    /// threads. Both descriptors may be closed afterwards. The memory is never unmapped.
    pub fn map(
        written: BorrowedFd<'_>,
        read: BorrowedFd<'_>,
        threads: usize,
    ) -> Result<CrossingPages, BootError> {
        if threads > THREADS_MAX {
            let why = std::io::Error::from_raw_os_error(libc::E2BIG);
            return Err(BootError::System("too many elastic threads", why));
        }
        Ok(CrossingPages {
            written: map(written, WRITTEN_AT, written_bytes(threads))?.cast(),
            read: map(read, READ_AT, read_bytes(threads))?,
            threads,
        })
    }

    /// Where the process header is, with the thread areas behind it.
    pub(crate) fn header(&self) -> *mut u8 {
        self.read
    }

    /// What the next dataplane of the program is left.
    pub(crate) fn legacy(&self) -> &'static Legacy {
        // SAFETY: within the mapping, aligned, never unmapped; an atomic.
        unsafe { &*self.read.add(LEGACY_AT).cast::<Legacy>() }
    }

    fn written_pages(&self, thread: usize) -> *mut WrittenPages {
        assert!(thread < self.threads, "no such elastic thread");
        // SAFETY: within the mapping.
        unsafe { self.written.add(thread) }
    }

    fn read_pages(&self, thread: usize) -> *mut ReadPages {
        assert!(thread < self.threads, "no such elastic thread");
        // SAFETY: within the mapping.
        unsafe { self.read.add(HEADER_BYTES).cast::<ReadPages>().add(thread) }
    }

    /// The call array of an elastic thread.
    pub(crate) fn calls(&self, thread: usize) -> *mut CallSlot {
        self.written_pages(thread).cast()
    }

    /// Its event array.
    pub(crate) fn events(&self, thread: usize) -> *mut EventSlot {
        self.read_pages(thread).cast()
    }

    /// Its request.
    pub(crate) fn request(&self, thread: usize) -> &Request {
        // SAFETY: within the mapping, which is never unmapped; atomics only, for which every value
        // is valid.
        unsafe { &(*self.written_pages(thread)).request }
    }

    /// Its reply.
    pub(crate) fn reply(&self, thread: usize) -> &Reply {
        // SAFETY: as in `request`.
        unsafe { &(*self.read_pages(thread)).reply }
    }
}

/// Maps a file at this address, where nothing is yet.
fn map(fd: BorrowedFd<'_>, at: usize, bytes: usize) -> Result<*mut u8, BootError> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE | libc::MAP_POPULATE;
    let at = without_provenance_mut(at);
    // SAFETY: a new mapping where nothing is.
    let map = unsafe { libc::mmap(at, bytes, prot, flags, fd.as_raw_fd(), 0) };
    if map == libc::MAP_FAILED {
        let why = std::io::Error::last_os_error();
        return Err(BootError::System("cannot map the arrays for the application", why));
    }
    Ok(map.cast())
}
