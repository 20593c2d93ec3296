//! The memory that a dataplane shares with one process of a program, as the dataplane sees it
//! (`ix_proto::crossing` has the layout). The program may write its part at any time: each word is
//! read once, and what was read is checked before it is used.
use crate::run::boot::BootError;
use ix_abi::{CallSlot, EventSlot, ProcessHeader, ThreadArea, WillEntry, WillState};
use ix_proto::crossing::{
    HEADER_BYTES, LEGACY_AT, Legacy, READ_AT, ReadPages, Reply, Request, THREADS_MAX, WRITTEN_AT,
    WrittenPages, read_bytes, written_bytes,
};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{null_mut, without_provenance_mut};

/// The pages of both kinds.
pub struct CrossingPages {
    written: *mut WrittenPages,
    /// The header, then the pages of each elastic thread.
    read: *mut u8,
    threads: usize,
    /// They are unmapped when this is dropped.
    are_ours: bool,
}

// SAFETY: plain memory; words of both sides are atomics, and the arrays are used by one elastic
// thread each.
unsafe impl Send for CrossingPages {}
// SAFETY: as above.
unsafe impl Sync for CrossingPages {}

impl CrossingPages {
    /// Maps the memory that the program's first process writes and the memory that it reads, for so
    /// many elastic threads, at the addresses at which the program has them. Both descriptors may
    /// be closed afterwards. The memory is never unmapped.
    pub fn map(
        written: BorrowedFd<'_>,
        read: BorrowedFd<'_>,
        threads: usize,
    ) -> Result<CrossingPages, BootError> {
        CrossingPages::at([WRITTEN_AT, READ_AT], [written, read], threads)
    }

    /// The same for another process of the program, at any address, until this is dropped.
    pub fn map_another(
        written: BorrowedFd<'_>,
        read: BorrowedFd<'_>,
        threads: usize,
    ) -> Result<CrossingPages, BootError> {
        CrossingPages::at([0, 0], [written, read], threads)
    }

    fn at(
        [written_at, read_at]: [usize; 2],
        [written, read]: [BorrowedFd<'_>; 2],
        threads: usize,
    ) -> Result<CrossingPages, BootError> {
        if threads > THREADS_MAX {
            let why = std::io::Error::from_raw_os_error(libc::E2BIG);
            return Err(BootError::System("too many elastic threads", why));
        }
        let mut pages = CrossingPages {
            written: map(written, written_at, written_bytes(threads))?.cast(),
            read: null_mut(),
            threads,
            are_ours: written_at == 0,
        };
        pages.read = map(read, read_at, read_bytes(threads))?;
        Ok(pages)
    }

    /// Where the process header is, with the thread areas behind it.
    pub(crate) fn header(&self) -> *mut u8 {
        self.read
    }

    /// What the next dataplane of the program is left.
    pub(crate) fn legacy(&self) -> &Legacy {
        // SAFETY: within the mapping, aligned, which lives as long as self; an atomic.
        unsafe { &*self.read.add(LEGACY_AT).cast::<Legacy>() }
    }

    /// Writes the process's number into the header's thread areas. The program must not have the
    /// pages yet.
    pub(crate) fn set_attachment(&self, number: usize) {
        let behind = size_of::<ProcessHeader>().next_multiple_of(64);
        for thread in 0..self.threads {
            // SAFETY: `Dataplane::new` has laid out the header, which was copied here.
            unsafe {
                let area = self.read.add(behind).cast::<ThreadArea>().add(thread);
                (*area).attachment = number as u32;
            }
        }
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
        // SAFETY: within the mapping, which lives as long as self; atomics only, for which every
        // value is valid.
        unsafe { &(*self.written_pages(thread)).request }
    }

    /// What the process has left to be carried out, and the number of its last batch; each word is
    /// read once.
    pub(crate) fn will(&self, thread: usize) -> (WillState, Vec<WillEntry>, u64) {
        // SAFETY: within the mapping, which lives as long as self; volatile, because the program
        // may write meanwhile. Every value is valid, and the numbers are within the lists.
        unsafe {
            let will = &raw const (*self.written_pages(thread)).will;
            let state = WillState::decode((&raw const (*will).state).read_volatile());
            let list = &raw const (*will).entries[state.list];
            let entry = |index| list.cast::<WillEntry>().add(index).read_volatile();
            let batch = (&raw const (*will).batch).read_volatile();
            (state, (0..state.count).map(entry).collect(), batch)
        }
    }

    /// Its reply.
    pub(crate) fn reply(&self, thread: usize) -> &Reply {
        // SAFETY: as in `request`.
        unsafe { &(*self.read_pages(thread)).reply }
    }
}

impl Drop for CrossingPages {
    fn drop(&mut self) {
        if !self.are_ours {
            return;
        }
        // SAFETY: what `at` has mapped, if it has; nobody uses the arrays any more, because who
        // does holds this.
        unsafe {
            libc::munmap(self.written.cast(), written_bytes(self.threads));
            if !self.read.is_null() {
                libc::munmap(self.read.cast(), read_bytes(self.threads));
            }
        }
    }
}

/// Maps a file at this address, where nothing is yet; 0: anywhere.
fn map(fd: BorrowedFd<'_>, at: usize, bytes: usize) -> Result<*mut u8, BootError> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let place = if at == 0 { 0 } else { libc::MAP_FIXED_NOREPLACE };
    let flags = libc::MAP_SHARED | libc::MAP_POPULATE | place;
    let at = without_provenance_mut(at);
    // SAFETY: a new mapping where nothing is.
    let map = unsafe { libc::mmap(at, bytes, prot, flags, fd.as_raw_fd(), 0) };
    if map == libc::MAP_FAILED {
        let why = std::io::Error::last_os_error();
        return Err(BootError::System("cannot map the arrays for the application", why));
    }
    Ok(map.cast())
}
