//! The header in front of each frame of a tap with IFF_VNET_HDR: `struct virtio_net_hdr`, in the
//! machine's byte order.

/// Bytes of the header: the driver's default, and the shortest possible.
pub(super) const HEADER_BYTES: usize = 10;

const FLAG_NEEDS_CSUM: u8 = 1;
const GSO_TCPV4: u8 = 1;

/// The header of a finished frame.
pub(super) const FINISHED: [u8; HEADER_BYTES] = [0; HEADER_BYTES];

/// The header of a TCP segment over IPv4 that stands for several.
pub(super) struct Segments {
    /// All headers, bytes.
    pub header_len: usize,
    /// Payload of each segment but the last, bytes.
    pub segment_len: usize,
    /// Offset of the TCP header.
    pub tcp_at: usize,
    /// Offset of the checksum in it. The field holds only the sum of the pseudo-header.
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
