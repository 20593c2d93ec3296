//! A connection to a socket of Linux that is made within some time.
use std::io;
use std::os::fd::FromRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// As [`UnixStream::connect`]. Where the queue of the socket stays full, because nobody accepts,
/// the error is [`io::ErrorKind::WouldBlock`] after `within` (unix(7)).
pub(crate) fn connect_within(path: &Path, within: Duration) -> io::Result<UnixStream> {
    let bytes = path.as_os_str().as_bytes();
    // SAFETY: all-zero bytes are a valid address.
    let mut address: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    if bytes.is_empty() || bytes.contains(&0) || bytes.len() >= address.sun_path.len() {
        let why = "not a path of at most 107 bytes";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    for (to, byte) in address.sun_path.iter_mut().zip(bytes) {
        *to = *byte as libc::c_char;
    }
    // SAFETY: takes numbers.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that no other value owns.
    let stream = unsafe { UnixStream::from_raw_fd(fd) };
    stream.set_write_timeout(Some(within))?;
    let len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: `address` is `len` readable bytes for the length of the call.
    match unsafe { libc::connect(fd, (&raw const address).cast(), len) } {
        0 => Ok(stream),
        _ => Err(io::Error::last_os_error()),
    }
}
