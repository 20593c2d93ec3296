//! Random bytes of the kernel (getrandom(2)).
use crate::check;
use std::io;

/// Fills a buffer of at most 256 bytes with random bytes that no other process can guess.
pub fn fill(bytes: &mut [u8]) -> io::Result<()> {
    // SAFETY: `bytes` is writable for its length.
    let n = check(unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) })?;
    if n as usize == bytes.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}
