//! UDP (RFC 768).
use crate::{Checksum, DropReason, IpAddr, be16, head, ipv4};

/// Bytes of a UDP header.
pub const HEADER_BYTES: usize = 8;

/// A UDP header, checked against the packet that it is in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UdpHeader {
    /// The sender's port; 0 if it expects no reply.
    pub src_port: u16,
    /// The receiver's port.
    pub dst_port: u16,
    /// Header and payload, bytes; at least 8.
    pub length: u16,
    /// The checksum field; 0: no checksum.
    pub checksum: u16,
}

impl UdpHeader {
    /// Parses the header at the front of an IP payload of `available` bytes.
    #[inline]
    pub fn parse(datagram: &[u8], available: usize) -> Result<Self, DropReason> {
        let header = datagram.first_chunk::<HEADER_BYTES>().ok_or(DropReason::UdpTruncated)?;
        let parsed = Self {
            src_port: be16(header, 0),
            dst_port: be16(header, 2),
            length: be16(header, 4),
            checksum: be16(header, 6),
        };
        let length = usize::from(parsed.length);
        if length < HEADER_BYTES || length > available {
            return Err(DropReason::UdpBadLength);
        }
        Ok(parsed)
    }
}

/// Writes a UDP header at the front of `out`; returns the header's length. The payload has
/// `payload_len` bytes, which sum to `payload`.
///
/// # Panics
/// When `out` is shorter than the header.
#[inline]
pub fn emit(
    out: &mut [u8],
    src: (IpAddr, u16),
    dst: (IpAddr, u16),
    payload_len: usize,
    payload: Checksum,
) -> usize {
    let header = head::<HEADER_BYTES>(out);
    let length = HEADER_BYTES + payload_len;
    debug_assert!(length <= usize::from(u16::MAX));
    header[0..2].copy_from_slice(&src.1.to_be_bytes());
    header[2..4].copy_from_slice(&dst.1.to_be_bytes());
    header[4..6].copy_from_slice(&(length as u16).to_be_bytes());
    header[6..8].fill(0);
    let mut sum = Checksum::pseudo_header(src.0, dst.0, ipv4::PROTOCOL_UDP, length);
    sum.add_bytes(header);
    sum.append(payload);
    // A sum of zero is sent as all ones, its other form: zero means that there is none (RFC 768).
    let check = match sum.finish() {
        0 => 0xffff,
        check => check,
    };
    header[6..8].copy_from_slice(&check.to_be_bytes());
    HEADER_BYTES
}
