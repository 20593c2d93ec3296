//! Memory shared between broker and image: the control page with the metrics.
use crate::image::{memfd, seal};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A shared mapping of a memfd; zero when made. Its size is sealed, so that no side can make the
/// other one fault by truncating it.
#[derive(Debug)]
pub struct SharedPages {
    fd: OwnedFd,
    base: *mut u8,
    bytes: usize,
}

// SAFETY: a plain mapping; how its words are shared is the business of who reads and writes them.
unsafe impl Send for SharedPages {}
// SAFETY: as above; the methods only hand out the address.
unsafe impl Sync for SharedPages {}

impl SharedPages {
    /// Makes at least `bytes` of zeroed memory (whole pages).
    pub fn create(name: &CStr, bytes: usize) -> io::Result<SharedPages> {
        let fd = memfd(name)?;
        let bytes = bytes.next_multiple_of(4096);
        // SAFETY: no pointers; the descriptor is ours.
        if unsafe { libc::ftruncate(fd.as_raw_fd(), bytes as libc::off_t) } < 0 {
            return Err(io::Error::last_os_error());
        }
        seal(fd.as_fd(), libc::F_SEAL_GROW | libc::F_SEAL_SHRINK)?;
        SharedPages::map(fd, bytes)
    }

    /// Maps what the other side made.
    pub fn open(fd: OwnedFd) -> io::Result<SharedPages> {
        // SAFETY: all-zero bytes are a valid `stat`.
        let mut stat: libc::stat = unsafe { core::mem::zeroed() };
        // SAFETY: fstat fills the struct we own.
        if unsafe { libc::fstat(fd.as_raw_fd(), &mut stat) } < 0 {
            return Err(io::Error::last_os_error());
        }
        SharedPages::map(fd, stat.st_size as usize)
    }

    fn map(fd: OwnedFd, bytes: usize) -> io::Result<SharedPages> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(SharedPages { fd, base: base.cast(), bytes })
    }

    /// The descriptor, to be sent over the channel.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Where the mapping begins; valid as long as `self`.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base
    }

    /// Its bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for SharedPages {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what `map` mapped; pointers into it end with `self`.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_mappings_see_one_memory_and_its_size_is_sealed() {
        let ours = SharedPages::create(c"test", 5000).unwrap();
        assert_eq!(ours.bytes(), 8192);
        let theirs = SharedPages::open(ours.fd().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(theirs.bytes(), 8192);
        // SAFETY: inside the mappings, which live here, one thread.
        unsafe {
            assert_eq!(theirs.as_ptr().add(8191).read_volatile(), 0);
            ours.as_ptr().add(8191).write_volatile(7);
            assert_eq!(theirs.as_ptr().add(8191).read_volatile(), 7);
        }
        // SAFETY: no pointers.
        assert_eq!(unsafe { libc::ftruncate(ours.fd().as_raw_fd(), 0) }, -1);
    }
}
