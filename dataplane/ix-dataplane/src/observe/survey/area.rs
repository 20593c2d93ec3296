//! The memory of a survey: how far each flow group was surveyed, and a record of each flow.
use crate::observe::metrics::PageError;
use core::mem::offset_of;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use ix_proto::GroupSet;
use ix_proto::survey::{DONE, FlowRecord, Header, bytes_for};
use ix_wire::FLOW_GROUPS;
use std::os::fd::{AsRawFd, BorrowedFd};

/// A mapping of it.
pub struct SurveyArea {
    header: NonNull<Header>,
    bytes: usize,
    capacity: usize,
}

// SAFETY: the mapping is no thread's own. Progress and handles are atomics; the rest of a record is
// written once, by the thread that has claimed it, and read when the handle says that it is there.
unsafe impl Send for SurveyArea {}
// SAFETY: as above.
unsafe impl Sync for SurveyArea {}

impl SurveyArea {
    /// Bytes for so many records.
    pub const fn bytes_for(records: usize) -> usize {
        bytes_for(records)
    }

    /// Maps the sealed memfd `fd`, all zero when the survey begins.
    pub fn map(fd: BorrowedFd<'_>) -> Result<SurveyArea, PageError> {
        // SAFETY: all zero is a valid `stat`; fstat fills it.
        let mut stat: libc::stat = unsafe { core::mem::zeroed() };
        // SAFETY: the pointer is to a local.
        if unsafe { libc::fstat(fd.as_raw_fd(), &mut stat) } < 0 {
            return Err(failed("fstat"));
        }
        let bytes = stat.st_size as usize;
        let Some(for_records) = bytes.checked_sub(size_of::<Header>()) else {
            return Err(PageError::Truncated);
        };
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let p = unsafe { libc::mmap(core::ptr::null_mut(), bytes, prot, flags, fd.as_raw_fd(), 0) };
        match NonNull::new(p) {
            Some(p) if p.as_ptr() != libc::MAP_FAILED => {
                let capacity = for_records / size_of::<FlowRecord>();
                Ok(SurveyArea { header: p.cast(), bytes, capacity })
            }
            _ => Err(failed("mmap")),
        }
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping lives as long as self and is at least a header long; all bit patterns
        // are valid, and all its fields are atomic.
        unsafe { self.header.as_ref() }
    }

    /// The record `index`, below the capacity.
    fn record(&self, index: usize) -> *mut FlowRecord {
        debug_assert!(index < self.capacity);
        // SAFETY: within the mapping (`map` has computed the capacity from its length), which
        // begins at a page and so is aligned for records.
        unsafe { self.header.add(1).cast::<FlowRecord>().as_ptr().add(index) }
    }

    /// The handle of a record, as a word that others may look at meanwhile.
    fn handle(&self, index: usize) -> &AtomicU64 {
        const { assert!(offset_of!(FlowRecord, handle) == 0) }
        // SAFETY: the first word of a record within the mapping, aligned; only used atomically.
        unsafe { AtomicU64::from_ptr(self.record(index).cast()) }
    }

    /// The next slot of a group; `None`: it was surveyed.
    pub(crate) fn progress(&self, group: usize) -> Option<u32> {
        let next = self.header().progress[group].load(Ordering::Acquire);
        (next != DONE).then(|| u32::try_from(next).unwrap_or(u32::MAX))
    }

    /// A group was surveyed up to this slot; `None`: to its end. Said by the thread that owns it.
    pub(crate) fn set_progress(&self, group: usize, next: Option<u32>) {
        self.header().progress[group].store(next.map_or(DONE, u64::from), Ordering::Release);
    }

    /// Lays a record down; there may be no room for it.
    pub(crate) fn push(&self, record: &FlowRecord) {
        let index = self.header().claimed.fetch_add(1, Ordering::Relaxed) as usize;
        if index >= self.capacity {
            return;
        }
        let body = FlowRecord { handle: 0, ..*record };
        // SAFETY: a record of ours: nobody else has claimed this index, and readers wait for the
        // handle.
        unsafe { self.record(index).write_volatile(body) };
        self.handle(index).store(record.handle, Ordering::Release);
    }

    /// Flow groups that were not surveyed to their end.
    pub fn missing(&self) -> GroupSet {
        (0..FLOW_GROUPS).filter(|group| self.progress(*group).is_some()).collect()
    }

    /// Records for which there was no room.
    pub fn overflow(&self) -> u64 {
        self.header().claimed.load(Ordering::Relaxed).saturating_sub(self.capacity as u64)
    }

    /// All records. A flow that moved meanwhile is there once.
    pub fn records(&self) -> impl Iterator<Item = FlowRecord> + '_ {
        let claimed = self.header().claimed.load(Ordering::Acquire);
        let count = self.capacity.min(usize::try_from(claimed).unwrap_or(usize::MAX));
        (0..count).filter_map(|index| {
            let handle = self.handle(index).load(Ordering::Acquire);
            // SAFETY: within the mapping; written before its handle was. Were the writer hostile,
            // some mixture of its values would be read, of which all are valid.
            let record = unsafe { self.record(index).read_volatile() };
            (handle != 0).then_some(FlowRecord { handle, ..record })
        })
    }
}

impl Drop for SurveyArea {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what was mapped; nothing borrowed from self lives on.
        unsafe { libc::munmap(self.header.as_ptr().cast(), self.bytes) };
    }
}

fn failed(call: &'static str) -> PageError {
    PageError::System(call, std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::os::fd::{AsFd, FromRawFd, OwnedFd};

    /// Memory for so many records.
    pub fn area(records: usize) -> (OwnedFd, SurveyArea) {
        // SAFETY: the name is a C string; the descriptor is nobody else's.
        let fd = unsafe {
            OwnedFd::from_raw_fd(libc::memfd_create(c"ix-survey".as_ptr(), libc::MFD_CLOEXEC))
        };
        // SAFETY: a plain system call on a descriptor that is open.
        let sized = unsafe {
            libc::ftruncate(fd.as_raw_fd(), SurveyArea::bytes_for(records) as libc::off_t)
        };
        assert_eq!(sized, 0);
        let area = SurveyArea::map(fd.as_fd()).expect("mapped");
        (fd, area)
    }

    #[test]
    fn what_one_side_lays_down_the_other_reads() {
        let (fd, ours) = area(3);
        let theirs = SurveyArea::map(fd.as_fd()).expect("mapped again");
        assert_eq!((theirs.missing().len(), theirs.records().count()), (FLOW_GROUPS, 0));
        for handle in 1..=5 {
            let thread = 7 * handle as u16;
            theirs.push(&FlowRecord { handle, thread, ..FlowRecord::default() });
        }
        theirs.set_progress(5, Some(16));
        theirs.set_progress(6, None);
        assert_eq!((ours.progress(5), ours.progress(6)), (Some(16), None));
        assert!(!ours.missing().contains(6) && ours.missing().contains(5));
        assert_eq!(ours.overflow(), 2);
        let read: Vec<_> = ours.records().map(|record| (record.handle, record.thread)).collect();
        assert_eq!(read, [(1, 7), (2, 14), (3, 21)]);
    }
}
