//! The header in front of each frame of a tap with IFF_VNET_HDR: `struct virtio_net_hdr`, in the
//! machine's byte order.
use crate::sys::check;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Bytes of the header; the driver's default, and the shortest there is.
pub(super) const HEADER_BYTES: usize = 10;

const FLAG_NEEDS_CSUM: u8 = 1;
const GSO_TCPV4: u8 = 1;

/// A header that asks for nothing: a finished frame.
pub(super) const FINISHED: [u8; HEADER_BYTES] = [0; HEADER_BYTES];

/// The header of a TCP segment over IPv4 that counts as several.
pub(super) struct Segments {
    /// All headers, bytes.
    pub header_len: usize,
    /// Payload of each segment but the last, bytes.
    pub segment_len: usize,
    /// Where the TCP header starts.
    pub tcp_at: usize,
    /// Where in it the checksum stands, of which only the pseudo-header's part is in place.
    pub checksum_at: usize,
}

impl Segments {
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let words = [self.header_len, self.segment_len, self.tcp_at, self.checksum_at];
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = FLAG_NEEDS_CSUM;
        bytes[1] = GSO_TCPV4;
        for (to, word) in bytes[2..].chunks_exact_mut(2).zip(words) {
            to.copy_from_slice(&(word as u16).to_ne_bytes());
        }
        bytes
    }
}

/// What Linux may leave undone in the frames it hands over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Undone {
    /// Checksums, and the cutting of TCP segments over IPv4. What we could not parse (IPv6, tunnels)
    /// or could not tell apart (UDP) comes finished.
    ChecksumsAndSegments,
    /// Nothing.
    Nothing,
}

/// Tells the interface what it may leave undone.
pub(super) fn set_undone(queue: BorrowedFd<'_>, undone: Undone) -> io::Result<()> {
    let flags = match undone {
        Undone::ChecksumsAndSegments => libc::TUN_F_CSUM | libc::TUN_F_TSO4,
        Undone::Nothing => 0,
    };
    let flags = libc::c_ulong::from(flags);
    // SAFETY: TUNSETOFFLOAD takes a number.
    check(unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNSETOFFLOAD as _, flags) }).map(drop)
}

/// Whether the driver knows the header at all; `file` need be no queue yet.
pub(super) fn is_known(file: BorrowedFd<'_>) -> bool {
    let mut features: libc::c_uint = 0;
    // SAFETY: TUNGETFEATURES writes one integer.
    let ret =
        unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNGETFEATURES as _, &raw mut features) };
    check(ret).is_ok() && features & libc::IFF_VNET_HDR as libc::c_uint != 0
}

/// Whether frames of this queue carry the header.
pub(super) fn is_used(queue: BorrowedFd<'_>) -> bool {
    let mut request = crate::netdev::request("");
    // SAFETY: TUNGETIFF writes an `ifreq`.
    let ret = unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNGETIFF as _, &raw mut request) };
    // SAFETY: TUNGETIFF answers in this field; any bytes are an integer.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    check(ret).is_ok() && i32::from(flags) & libc::IFF_VNET_HDR != 0
}
