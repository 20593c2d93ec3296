//! ICMP (RFC 792).
use crate::{Checksum, DropReason, checksum, head};

/// Bytes of an ICMP header: type, code, checksum and four bytes that depend on the type.
pub const HEADER_BYTES: usize = 8;

/// Answer to an echo request.
pub const ECHO_REPLY: u8 = 0;
/// Destination unreachable; the code is one of `UNREACHABLE_…`.
pub const UNREACHABLE: u8 = 3;
/// Source quench, deprecated (RFC 6633).
pub const SOURCE_QUENCH: u8 = 4;
/// Redirect.
pub const REDIRECT: u8 = 5;
/// Echo request.
pub const ECHO_REQUEST: u8 = 8;
/// The hop limit has expired, or a reassembly has timed out.
pub const TIME_EXCEEDED: u8 = 11;
/// The header could not be understood.
pub const PARAMETER_PROBLEM: u8 = 12;

/// Code of [`UNREACHABLE`]: network.
pub const UNREACHABLE_NET: u8 = 0;
/// Code of [`UNREACHABLE`]: host.
pub const UNREACHABLE_HOST: u8 = 1;
/// Code of [`UNREACHABLE`]: protocol.
pub const UNREACHABLE_PROTOCOL: u8 = 2;
/// Code of [`UNREACHABLE`]: port.
pub const UNREACHABLE_PORT: u8 = 3;
/// Code of [`UNREACHABLE`]: fragmentation needed and DF set.
pub const UNREACHABLE_FRAGMENTATION: u8 = 4;

/// An ICMP header without its checksum.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct IcmpHeader {
    /// The message's type.
    pub kind: u8,
    /// The message's code.
    pub code: u8,
    /// The second word: identifier and sequence number of an echo; the next-hop MTU in its last two
    /// bytes of "fragmentation needed" (RFC 1191 section 4).
    pub rest: [u8; 4],
}

impl IcmpHeader {
    /// Parses the header at the front of a message.
    #[inline]
    pub fn parse(message: &[u8]) -> Result<Self, DropReason> {
        let header = message.first_chunk::<HEADER_BYTES>().ok_or(DropReason::IcmpTruncated)?;
        let &[kind, code, _, _, a, b, c, d] = header;
        Ok(Self { kind, code, rest: [a, b, c, d] })
    }

    /// Writes the header at the front of `out`; returns its length. `body` is the sum of the body.
    ///
    /// # Panics
    /// When `out` is shorter than the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8], body: Checksum) -> usize {
        let header = head::<HEADER_BYTES>(out);
        header[0] = self.kind;
        header[1] = self.code;
        header[2..4].fill(0);
        header[4..8].copy_from_slice(&self.rest);
        let mut sum = Checksum::of(header);
        sum.append(body);
        let check = sum.finish();
        header[2..4].copy_from_slice(&check.to_be_bytes());
        HEADER_BYTES
    }
}

/// Turns an echo request into its reply, in place. The body, of any length, does not change; the
/// checksum is updated for the one word that does.
///
/// # Panics
/// When `message` is shorter than an ICMP header.
#[inline]
pub fn echo_request_to_reply(message: &mut [u8]) {
    let header = head::<HEADER_BYTES>(message);
    let old = u16::from_be_bytes([header[0], header[1]]);
    let check = u16::from_be_bytes([header[2], header[3]]);
    header[0] = ECHO_REPLY;
    let new = u16::from_be_bytes([header[0], header[1]]);
    let check = checksum::update_u16(check, old, new);
    header[2..4].copy_from_slice(&check.to_be_bytes());
}
