//! Arrays whose elements are rows of 64-bit words.
use super::{COMMAND_MAP_LOOKUP, COMMAND_MAP_UPDATE, MapKind, create_map, element};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// An array of rows of `N` words, all zero at first.
#[derive(Debug)]
pub struct Rows<const N: usize>(OwnedFd);

impl<const N: usize> Rows<N> {
    /// With rows `0..entries`.
    pub fn new(name: &CStr, entries: u32) -> io::Result<Rows<N>> {
        create_map(MapKind::Array, name, entries, 8 * N as u32, 0).map(Rows)
    }

    /// A row; each word is whole, but programs may have changed others meanwhile.
    pub fn get(&self, row: u32) -> io::Result<[u64; N]> {
        let mut words = [0u64; N];
        let at = words.as_mut_ptr().expose_provenance() as u64;
        element(&self.0, COMMAND_MAP_LOOKUP, row, at)?;
        Ok(words)
    }

    /// Replaces a row.
    pub fn set(&self, row: u32, words: &[u64; N]) -> io::Result<()> {
        element(&self.0, COMMAND_MAP_UPDATE, row, words.as_ptr().expose_provenance() as u64)
    }

    /// Its descriptor's number, for programs.
    pub fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
