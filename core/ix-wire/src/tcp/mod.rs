//! TCP (RFC 9293 section 3.1).
use crate::{Checksum, DropReason, IpAddr, Seq, be16, be32, ipv4, put_words};
use core::ops::{BitOr, BitOrAssign};

mod ecn_bytes;
mod options;

pub use ecn_bytes::EcnBytes;
pub use options::{OPTIONS_BYTES_MAX, SackBlocks, TcpOptions, WINDOW_SCALE_MAX};
pub(crate) use options::{TIMESTAMP_BYTES, TIMESTAMP_ONLY};

/// Bytes of a header without options.
pub const HEADER_BYTES: usize = 20;
/// Bytes of a header with as many options as fit.
pub const HEADER_BYTES_MAX: usize = HEADER_BYTES + OPTIONS_BYTES_MAX;

const CHECKSUM_AT: usize = 16;

/// The control bits, nine of them with [`TcpFlags::AE`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct TcpFlags(pub u16);

impl TcpFlags {
    /// No more data from the sender.
    pub const FIN: Self = Self(0x01);
    /// Synchronise sequence numbers.
    pub const SYN: Self = Self(0x02);
    /// Reset the connection.
    pub const RST: Self = Self(0x04);
    /// Push.
    pub const PSH: Self = Self(0x08);
    /// The acknowledgement field is significant.
    pub const ACK: Self = Self(0x10);
    /// The urgent pointer is significant.
    pub const URG: Self = Self(0x20);
    /// ECN echo (RFC 3168).
    pub const ECE: Self = Self(0x40);
    /// Congestion window reduced (RFC 3168).
    pub const CWR: Self = Self(0x80);
    /// Accurate ECN (RFC 9768); the lowest of the reserved bits.
    pub const AE: Self = Self(0x100);

    const ALL: u16 = 0x1ff;

    /// True if all of `other`'s bits are set.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// True if any of `other`'s bits is set.
    #[inline]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Both sets together, for constants.
    #[inline]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOr for TcpFlags {
    type Output = Self;
    #[inline]
    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

impl BitOrAssign for TcpFlags {
    #[inline]
    fn bitor_assign(&mut self, other: Self) {
        *self = *self | other;
    }
}

/// The control bits in the word that begins with the length of the header.
#[inline]
pub(crate) const fn flags_of(word: u16) -> TcpFlags {
    TcpFlags(word & TcpFlags::ALL)
}

/// A TCP header without its checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TcpHeader {
    /// The sender's port.
    pub src_port: u16,
    /// The receiver's port.
    pub dst_port: u16,
    /// Sequence number of the first byte (or of the SYN).
    pub seq: Seq,
    /// Next sequence number expected; significant with [`TcpFlags::ACK`].
    pub ack: Seq,
    /// The control bits. Reserved bits are ignored on reception (RFC 9293 section 3.1).
    pub flags: TcpFlags,
    /// The window field, before scaling.
    pub window: u16,
    /// Urgent pointer; significant with [`TcpFlags::URG`].
    pub urgent: u16,
    /// The options.
    pub options: TcpOptions,
}

impl TcpHeader {
    /// Parses the header at the front of a segment; returns the header and its length. The caller
    /// verifies the checksum.
    #[inline]
    pub fn parse(segment: &[u8]) -> Result<(Self, usize), DropReason> {
        let (fixed, options) = split_header(segment)?;
        let options = TcpOptions::parse(options);
        Ok((Self::with_options(fixed, options), usize::from(fixed[12] >> 4) * 4))
    }

    /// The header with these options; `fixed` is the part before the options.
    #[inline(always)]
    pub(crate) fn with_options(fixed: &[u8; HEADER_BYTES], options: TcpOptions) -> Self {
        Self {
            src_port: be16(fixed, 0),
            dst_port: be16(fixed, 2),
            seq: Seq(be32(fixed, 4)),
            ack: Seq(be32(fixed, 8)),
            flags: flags_of(be16(fixed, 12)),
            window: be16(fixed, 14),
            urgent: be16(fixed, 18),
            options,
        }
    }

    /// Bytes that [`Self::emit`] writes.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // a header is never empty
    pub fn len(&self) -> usize {
        HEADER_BYTES + self.options.len()
    }

    /// Writes the header at the front of `out`, with checksum zero; returns its length.
    ///
    /// # Panics
    /// When `out` is shorter than that.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> usize {
        self.emit_summed(out).0
    }

    /// Writes the header with its checksum; returns its length. The payload has `payload_len`
    /// bytes, which sum to `payload`.
    ///
    /// # Panics
    /// When `out` is shorter than that.
    #[inline]
    pub fn emit_with_checksum(
        &self,
        out: &mut [u8],
        src: IpAddr,
        dst: IpAddr,
        payload_len: usize,
        payload: Checksum,
    ) -> usize {
        let (header_len, mut sum) = self.emit_summed(out);
        let length = header_len + payload_len;
        sum.append(Checksum::pseudo_header(src, dst, ipv4::PROTOCOL_TCP, length));
        sum.append(payload);
        out[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&sum.finish().to_be_bytes());
        header_len
    }

    #[inline]
    fn emit_summed(&self, out: &mut [u8]) -> (usize, Checksum) {
        let (fixed, options) = out.split_at_mut(HEADER_BYTES);
        let (options_len, mut sum) = self.options.emit_summed(options);
        let header_len = HEADER_BYTES + options_len;
        let words = [
            u32::from(self.src_port) << 16 | u32::from(self.dst_port),
            self.seq.0,
            self.ack.0,
            (header_len as u32 / 4) << 28 | u32::from(self.flags.0) << 16 | u32::from(self.window),
            u32::from(self.urgent),
        ];
        words.iter().for_each(|word| sum.add_u32(*word));
        put_words(fixed, &words);
        (header_len, sum)
    }
}

/// Writes the checksum of a segment that is in one piece, whatever its checksum field holds.
///
/// # Panics
/// When `segment` is shorter than a header.
#[inline]
pub fn fill_checksum(segment: &mut [u8], src: IpAddr, dst: IpAddr) {
    segment[CHECKSUM_AT..CHECKSUM_AT + 2].fill(0);
    let mut sum = Checksum::pseudo_header(src, dst, ipv4::PROTOCOL_TCP, segment.len());
    sum.add_bytes(segment);
    segment[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&sum.finish().to_be_bytes());
}

/// Splits the header at the front of a segment: the part before the options, and the options.
#[inline(always)]
pub(crate) fn split_header(segment: &[u8]) -> Result<(&[u8; HEADER_BYTES], &[u8]), DropReason> {
    let fixed = segment.first_chunk::<HEADER_BYTES>().ok_or(DropReason::TcpTruncated)?;
    let header_len = usize::from(fixed[12] >> 4) * 4;
    let options = segment.get(HEADER_BYTES..header_len).ok_or(DropReason::TcpBadDataOffset)?;
    Ok((fixed, options))
}

/// The checksum field of a header.
#[inline]
pub(crate) fn checksum_field(fixed: &[u8; HEADER_BYTES]) -> u16 {
    be16(fixed, CHECKSUM_AT)
}
