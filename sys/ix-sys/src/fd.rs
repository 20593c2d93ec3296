//! Descriptors of any kind, and files without a name.
use crate::check;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Owns a descriptor that a system call just made.
///
/// # Safety
/// It is open, and no other value owns it.
pub(crate) unsafe fn own(fd: RawFd) -> OwnedFd {
    // SAFETY: the caller's promise.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// From now on reads and writes do not block (fcntl(2), O_NONBLOCK).
pub fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no memory is passed.
    let flags = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
    // SAFETY: no memory is passed.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) }).map(drop)
}

/// Bytes of a file (fstat(2)).
pub fn file_bytes(fd: BorrowedFd<'_>) -> io::Result<u64> {
    // SAFETY: all-zero bytes are a valid stat.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is writable for the length of the call.
    check(unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) })?;
    u64::try_from(stat.st_size).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Reads what is there, and returns how many bytes came (read(2)).
pub fn read(fd: BorrowedFd<'_>, to: &mut [u8]) -> io::Result<usize> {
    // SAFETY: `to` is writable for its length across the call.
    let n = check(unsafe { libc::read(fd.as_raw_fd(), to.as_mut_ptr().cast(), to.len()) })?;
    Ok(n as usize)
}

/// Writes, and returns how many bytes were taken (write(2)).
pub fn write(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: `bytes` is readable for its length across the call.
    let n = check(unsafe { libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) })?;
    Ok(n as usize)
}

/// The same, past a library that stands in front of the C library's write.
pub fn write_bare(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let (fd, at, len) = (fd.as_raw_fd(), bytes.as_ptr(), bytes.len());
    // SAFETY: `bytes` is readable for its length across the call.
    let n = check(unsafe { libc::syscall(libc::SYS_write, fd, at, len) })?;
    Ok(n as usize)
}

/// Reads at an offset of a file, and returns how many bytes came (pread(2)).
pub fn read_at(fd: BorrowedFd<'_>, to: &mut [u8], offset: i64) -> io::Result<usize> {
    // SAFETY: `to` is writable for its length across the call.
    let n =
        check(unsafe { libc::pread(fd.as_raw_fd(), to.as_mut_ptr().cast(), to.len(), offset) })?;
    Ok(n as usize)
}

/// A memfd of `bytes` zeroed bytes that may be sealed; with `MFD_HUGETLB` among the flags, of huge
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

/// A [`memfd`] that can neither shrink nor grow. Huge pages are taken now, so that a later access
/// cannot fail for want of them.
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

/// A [`memfd`] of a fixed size whose content may still be sealed with [`seal_writes`]; with
/// `reserve` its pages are taken now, so that a later access cannot fail for want of them.
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

/// From now on no process can map the file to write; mappings that exist stay as they are.
pub fn seal_writes(fd: BorrowedFd<'_>) -> io::Result<()> {
    let seal = libc::F_SEAL_FUTURE_WRITE;
    // SAFETY: no memory is passed.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seal) }).map(drop)
}

/// Whether a file can never become shorter (fcntl(2), F_SEAL_SHRINK).
pub fn cannot_shrink(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: no memory is passed.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    seals >= 0 && seals & libc::F_SEAL_SHRINK != 0
}
