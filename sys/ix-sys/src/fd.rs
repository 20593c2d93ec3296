//! Descriptors of any kind, and files without names.
use crate::check;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Takes ownership of a descriptor that a system call has just made.
///
/// # Safety
/// It is open, and no other value owns it.
pub(crate) unsafe fn own(fd: RawFd) -> OwnedFd {
    // SAFETY: the caller's promise.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Makes reads and writes nonblocking (fcntl(2), O_NONBLOCK).
pub fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no memory is passed.
    let flags = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
    // SAFETY: no memory is passed.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) }).map(drop)
}

/// Copies a descriptor to the lowest free number from `lowest` on, close-on-exec (fcntl(2),
/// F_DUPFD_CLOEXEC).
pub fn copy_from(fd: BorrowedFd<'_>, lowest: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let copy = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, lowest) })?;
    // SAFETY: a new descriptor that no other value owns.
    Ok(unsafe { own(copy) })
}

/// Length of a file in bytes (fstat(2)).
pub fn file_bytes(fd: BorrowedFd<'_>) -> io::Result<u64> {
    u64::try_from(stat(fd)?.st_size).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// The inode of what a descriptor is of (fstat(2)).
pub fn inode(fd: BorrowedFd<'_>) -> io::Result<u64> {
    stat(fd).map(|stat| stat.st_ino)
}

fn stat(fd: BorrowedFd<'_>) -> io::Result<libc::stat> {
    // SAFETY: all-zero bytes are a valid stat.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is writable for the length of the call.
    check(unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) })?;
    Ok(stat)
}

/// Reads; returns the number of bytes (read(2)).
pub fn read(fd: BorrowedFd<'_>, to: &mut [u8]) -> io::Result<usize> {
    // SAFETY: `to` is writable for its length across the call.
    let n = check(unsafe { libc::read(fd.as_raw_fd(), to.as_mut_ptr().cast(), to.len()) })?;
    Ok(n as usize)
}

/// Writes; returns the number of bytes written (write(2)).
pub fn write(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: `bytes` is readable for its length across the call.
    let n = check(unsafe { libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) })?;
    Ok(n as usize)
}

/// As [`write`], but past a library that replaces the C library's write.
#[cfg(feature = "host")]
pub fn write_bare(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    Ok(rustix::io::write(fd, bytes)?)
}

/// Reads at an offset of a file; returns the number of bytes (pread(2)).
#[cfg(feature = "host")]
pub fn read_at(fd: BorrowedFd<'_>, to: &mut [u8], offset: u64) -> io::Result<usize> {
    Ok(rustix::io::pread(fd, to, offset)?)
}

/// Makes a memfd of `bytes` zeroed bytes that may be sealed; with `MFD_HUGETLB` in `flags`, of huge
/// pages (memfd_create(2)).
pub fn memfd(name: &CStr, bytes: usize, flags: u32) -> io::Result<OwnedFd> {
    let all = flags | libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: `name` is a C string for the length of the call.
    let fd = check(unsafe { libc::memfd_create(name.as_ptr(), all) })?;
    // SAFETY: a new descriptor that no other value owns.
    let fd = unsafe { own(fd) };
    // SAFETY: no memory is passed.
    check(unsafe { libc::ftruncate(fd.as_raw_fd(), bytes as libc::off_t) })?;
    Ok(fd)
}

/// Makes a [`memfd`] that can neither shrink nor grow. Huge pages are allocated now, so that a
/// later access cannot fail.
pub fn sealed_memfd(name: &CStr, bytes: usize, flags: u32) -> io::Result<OwnedFd> {
    let fd = memfd(name, bytes, flags)?;
    if flags & libc::MFD_HUGETLB != 0 {
        // SAFETY: no memory is passed.
        check(unsafe { libc::fallocate(fd.as_raw_fd(), 0, 0, bytes as libc::off_t) })?;
    }
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: no memory is passed.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
    Ok(fd)
}

/// Makes a [`memfd`] of a fixed size whose content may be sealed later with [`seal_writes`]. With
/// `reserve` its pages are allocated now, so that a later access cannot fail.
pub fn fixed_memfd(name: &CStr, bytes: usize, reserve: bool) -> io::Result<OwnedFd> {
    let fd = memfd(name, bytes, 0)?;
    if reserve {
        // SAFETY: no memory is passed.
        check(unsafe { libc::fallocate(fd.as_raw_fd(), 0, 0, bytes as libc::off_t) })?;
    }
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // SAFETY: no memory is passed.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
    Ok(fd)
}

/// Seals the file: no process can map it writable any more. Existing mappings do not change.
pub fn seal_writes(fd: BorrowedFd<'_>) -> io::Result<()> {
    let seal = libc::F_SEAL_FUTURE_WRITE;
    // SAFETY: no memory is passed.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seal) }).map(drop)
}

/// A program that this process executes gets the first three descriptors and no other one, until a
/// descriptor is exempted again (close_range(2)). For a child, whose parent's caller may have left
/// some open for the program that it wanted.
pub fn close_others_at_exec() -> io::Result<()> {
    const FIRST: libc::c_uint = 3;
    let flags = libc::CLOSE_RANGE_CLOEXEC as libc::c_int;
    // SAFETY: takes numbers, and closes nothing now.
    check(unsafe { libc::close_range(FIRST, libc::c_uint::MAX, flags) }).map(drop)
}

/// True if the file can never become shorter (fcntl(2), F_SEAL_SHRINK).
#[cfg(feature = "host")]
pub fn cannot_shrink(fd: BorrowedFd<'_>) -> bool {
    use rustix::fs::{SealFlags, fcntl_get_seals};
    fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK))
}

/// Takes all rights from the mode of memory that has no name but its descriptor, so that nobody
/// else's process can open it anew through `/proc`. Another descriptor, or memory whose mode is
/// somebody else's to change, stays as it is.
pub fn hide_memory(fd: BorrowedFd<'_>) {
    let is_unnamed =
        |stat: libc::stat| stat.st_mode & libc::S_IFMT == libc::S_IFREG && stat.st_nlink == 0;
    if stat(fd).is_ok_and(is_unnamed) {
        // SAFETY: takes numbers.
        unsafe { libc::fchmod(fd.as_raw_fd(), 0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::{FileExt, PermissionsExt};

    #[test]
    fn a_size_is_for_good_and_writes_until_they_are_sealed() {
        for reserve in [false, true] {
            let file = File::from(fixed_memfd(c"ix-sys-test", 5000, reserve).unwrap());
            assert_eq!(file_bytes(file.as_fd()).unwrap(), 5000);
            assert!(file.set_len(4999).is_err() && file.set_len(5001).is_err());
            assert!(cannot_shrink(file.as_fd()));
            file.write_all_at(b"now", 4997).unwrap();
            seal_writes(file.as_fd()).unwrap();
            assert!(file.write_all_at(b"then", 0).is_err());
        }
    }

    #[test]
    fn only_memory_without_a_name_is_hidden() {
        let mode = |fd: BorrowedFd<'_>| {
            let file = File::from(fd.try_clone_to_owned().unwrap());
            file.metadata().unwrap().permissions().mode() & 0o777
        };
        let memory = memfd(c"ix-sys-test", 100, 0).unwrap();
        assert_ne!(mode(memory.as_fd()), 0);
        hide_memory(memory.as_fd());
        assert_eq!(mode(memory.as_fd()), 0);
        let path = std::env::temp_dir().join(format!("ix-sys-hide-{}", std::process::id()));
        let file = File::create(&path).unwrap();
        let before = mode(file.as_fd());
        hide_memory(file.as_fd());
        std::fs::remove_file(&path).unwrap();
        assert_eq!(mode(file.as_fd()), before);
    }
}
