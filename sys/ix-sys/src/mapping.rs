//! Memory shared with the kernel, with another process, or among all threads of this one.
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::null_mut;
use std::sync::atomic::AtomicU64;

/// Readable and writable pages, unmapped when this is dropped. It gives out addresses only: the
/// user of one argues for what it does there.
#[derive(Debug)]
pub struct Mapping {
    addr: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory without thread affinity; users order their accesses themselves.
unsafe impl Send for Mapping {}
// SAFETY: a shared mapping gives out raw pointers only, and nothing of itself changes.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` of a descriptor's memory at `offset`.
    pub fn of_fd(fd: BorrowedFd<'_>, bytes: usize, offset: i64) -> io::Result<Mapping> {
        Mapping::new(bytes, libc::MAP_SHARED | libc::MAP_POPULATE, fd.as_raw_fd(), offset)
    }

    /// Maps the first `bytes` of a descriptor's memory, whose pages come when they are used.
    pub fn of_fd_lazily(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<Mapping> {
        Mapping::new(bytes, libc::MAP_SHARED, fd.as_raw_fd(), 0)
    }

    /// Fresh zeroed memory.
    pub fn anonymous(bytes: usize) -> io::Result<Mapping> {
        Mapping::new(bytes, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    }

    fn new(bytes: usize, flags: i32, fd: RawFd, offset: i64) -> io::Result<Mapping> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let p = unsafe { libc::mmap(null_mut(), bytes, prot, flags, fd, offset) };
        if p == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping just made. A forked child must not keep a device open that its parent
        // has closed; where it fails, the child does.
        unsafe { libc::madvise(p, bytes, libc::MADV_DONTFORK) };
        Ok(Mapping { addr: p.cast(), bytes })
    }

    /// Address of `len` bytes at `offset`; `None` when they do not lie within the mapping.
    #[inline]
    pub fn bytes_at(&self, offset: u64, len: u64) -> Option<*mut u8> {
        let end = offset.checked_add(len)?;
        // SAFETY: `offset` is within the mapping, or one behind its last byte.
        (end <= self.bytes as u64).then(|| unsafe { self.addr.add(offset as usize) })
    }

    /// Address of the value at `offset`.
    ///
    /// # Panics
    /// When `count` values from there on do not lie within the mapping, aligned.
    pub fn at<T>(&self, offset: u64, count: usize) -> *mut T {
        let end = count.checked_mul(size_of::<T>()).and_then(|n| n.checked_add(offset as usize));
        assert!(end.is_some_and(|end| end <= self.bytes), "offset outside of the mapping");
        // SAFETY: `offset` is within the mapping, checked above.
        let p = unsafe { self.addr.add(offset as usize) }.cast::<T>();
        assert!(p.is_aligned());
        p
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what `new` mapped; who has pointers into it owns this value.
        unsafe { libc::munmap(self.addr.cast(), self.bytes) };
    }
}

/// So many zeroed words for good, in large pages where the kernel has them (mmap(2),
/// MADV_HUGEPAGE). All threads may use them at any time.
pub fn zeroed_words(count: usize) -> io::Result<&'static [AtomicU64]> {
    let bytes = count.checked_mul(size_of::<AtomicU64>()).ok_or(io::ErrorKind::OutOfMemory)?;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let p = unsafe { libc::mmap(null_mut(), bytes, prot, flags, -1, 0) };
    if p == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: advice on the mapping just made; without large pages it is slower, and right.
    unsafe { libc::madvise(p, bytes, libc::MADV_HUGEPAGE) };
    // SAFETY: a page-aligned mapping of so many zeroed words, which nothing else knows and which is
    // never unmapped.
    Ok(unsafe { std::slice::from_raw_parts(p.cast(), count) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn words_are_zero_and_all_there() {
        let words = zeroed_words(3 << 18).unwrap();
        assert_eq!(words.len(), 3 << 18);
        assert!(words.iter().all(|word| word.load(Relaxed) == 0));
        words.iter().for_each(|word| word.store(u64::MAX, Relaxed));
        assert!(zeroed_words(usize::MAX).is_err());
    }
}
