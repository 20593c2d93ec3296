//! Socket calls with typed results.
use crate::buffer::evbuffer;
use core::ffi::{c_int, c_void};
use libc::{iovec, sockaddr, socklen_t};
use std::io;

/// Most pieces of one write.
const PIECES: usize = 64;

/// The state of a connection after `connect`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Connecting {
    /// The attempt is under way.
    Begun,
    /// It is open.
    Done,
    /// The peer refused it.
    Refused,
}

/// The calling thread's errno.
pub fn errno() -> c_int {
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() }
}

/// Sets the calling thread's errno.
pub fn set_errno(errno: c_int) {
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() = errno };
}

/// Closes a descriptor.
pub fn close(fd: c_int) {
    // SAFETY: the caller owns it; an error changes nothing.
    unsafe { libc::close(fd) };
}

fn outcome(answer: isize) -> io::Result<usize> {
    usize::try_from(answer).map_err(|_| io::Error::last_os_error())
}

/// Reads at most `most` bytes to the end of a buffer.
pub fn read_into(buffer: &evbuffer, fd: c_int, most: usize) -> io::Result<usize> {
    buffer.change(|chunks| {
        let room = chunks.reserve(most);
        // SAFETY: reserved above.
        let read = outcome(unsafe { libc::read(fd, room.as_mut_ptr().cast(), most) });
        if let Ok(n) = read {
            // SAFETY: written just now.
            unsafe { chunks.commit(n) };
        }
        (read, Vec::new())
    })
}

/// Writes at most `most` of the first bytes of a buffer, and removes what was written.
pub fn write_from(buffer: &evbuffer, fd: c_int, most: usize) -> io::Result<usize> {
    let written = {
        let chunks = buffer.chunks.borrow();
        let (mut pieces, mut left) = (Vec::with_capacity(8), most);
        for slice in chunks.slices().take(PIECES) {
            let n = slice.len().min(left);
            pieces.push(iovec { iov_base: slice.as_ptr().cast_mut().cast(), iov_len: n });
            left -= n;
            if left == 0 {
                break;
            }
        }
        // SAFETY: pieces of the buffer, which is borrowed meanwhile.
        outcome(unsafe { libc::writev(fd, pieces.as_ptr(), pieces.len() as c_int) })?
    };
    // Errors of the program's functions that take memory back are not the result of the write.
    buffer.change(|chunks| ((), chunks.drain(written)));
    Ok(written)
}

/// The error of a socket; 0 if it has none, `EINPROGRESS` if it is still connecting.
pub fn socket_error(fd: c_int) -> c_int {
    let (mut error, mut bytes): (c_int, _) = (0, size_of::<c_int>() as socklen_t);
    let at = (&raw mut error).cast::<c_void>();
    // SAFETY: a local with its size.
    let answer = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, at, &mut bytes) };
    if answer == 0 { error } else { errno() }
}

/// Starts to connect.
///
/// # Safety
/// `to` points to an address of this length.
pub unsafe fn connect(fd: c_int, to: *const sockaddr, bytes: c_int) -> io::Result<Connecting> {
    // SAFETY: the caller's promise.
    if unsafe { libc::connect(fd, to, bytes as socklen_t) } == 0 {
        return Ok(Connecting::Done);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EINTR | libc::EINPROGRESS | libc::EAGAIN) => Ok(Connecting::Begun),
        Some(libc::ECONNREFUSED) => Ok(Connecting::Refused),
        _ => Err(error),
    }
}

/// Sets an option of a socket to a number.
pub fn set_option(fd: c_int, level: c_int, name: c_int, value: c_int) -> c_int {
    let at = (&raw const value).cast::<c_void>();
    // SAFETY: a local with its size.
    unsafe { libc::setsockopt(fd, level, name, at, size_of::<c_int>() as socklen_t) }
}

/// Adds flags of a descriptor: `O_NONBLOCK`, or `FD_CLOEXEC`.
pub fn add_flag(fd: c_int, get: c_int, set: c_int, flag: c_int) -> c_int {
    // SAFETY: plain calls.
    let flags = unsafe { libc::fcntl(fd, get) };
    if flags < 0 {
        return -1;
    }
    if flags & flag != 0 {
        return 0;
    }
    // SAFETY: as above.
    if unsafe { libc::fcntl(fd, set, flags | flag) } < 0 { -1 } else { 0 }
}
