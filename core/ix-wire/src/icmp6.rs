//! ICMPv6 (RFC 4443). A message has the header of ICMP, with other numbers.
use crate::checksum;

/// The destination cannot be reached; the code says why.
pub const UNREACHABLE: u8 = 1;
/// A packet was longer than the MTU of a link, which is in the second word.
pub const PACKET_TOO_BIG: u8 = 2;
/// The hop limit has expired, or a reassembly has timed out.
pub const TIME_EXCEEDED: u8 = 3;
/// The header could not be understood; the second word points to the octet.
pub const PARAMETER_PROBLEM: u8 = 4;
/// Messages below this number are errors, all others are information.
pub const INFORMATION_FROM: u8 = 128;
/// Echo request.
pub const ECHO_REQUEST: u8 = 128;
/// Answer to an echo request.
pub const ECHO_REPLY: u8 = 129;

/// Code of [`UNREACHABLE`]: no route.
pub const UNREACHABLE_ROUTE: u8 = 0;
/// Code of [`UNREACHABLE`]: forbidden.
pub const UNREACHABLE_PROHIBITED: u8 = 1;
/// Code of [`UNREACHABLE`]: beyond the scope of the source address.
pub const UNREACHABLE_SCOPE: u8 = 2;
/// Code of [`UNREACHABLE`]: address.
pub const UNREACHABLE_ADDRESS: u8 = 3;
/// Code of [`UNREACHABLE`]: port.
pub const UNREACHABLE_PORT: u8 = 4;

/// Turns an echo request into its reply, in place. The body, of any length, does not change, and
/// the pseudo-header of the swapped addresses has the same sum; the checksum is updated for the one
/// word that changes.
///
/// # Panics
/// When `message` is shorter than an ICMP header.
pub fn echo_request_to_reply(message: &mut [u8]) {
    let header = crate::head::<{ crate::icmp::HEADER_BYTES }>(message);
    let old = u16::from_be_bytes([header[0], header[1]]);
    let check = u16::from_be_bytes([header[2], header[3]]);
    header[0] = ECHO_REPLY;
    let new = u16::from_be_bytes([header[0], header[1]]);
    let check = checksum::update_u16(check, old, new);
    header[2..4].copy_from_slice(&check.to_be_bytes());
}
