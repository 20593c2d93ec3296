//! What ICMP messages mean for programs: Linux's errno for each (RFC 792, RFC 1812).

/// "Destination unreachable".
pub const UNREACHABLE: u8 = 3;
/// Its code for a datagram that was too long for a link.
pub const TOO_LONG: u8 = 4;
/// "Time exceeded": of the packet's time to live, or of reassembly.
const TIME_EXCEEDED: u8 = 11;
/// "Parameter problem": a header that a router or host did not understand.
const PARAMETER_PROBLEM: u8 = 12;

/// The errno of each code of [`UNREACHABLE`], and whether the error is permanent.
const CODES: [(i32, bool); 16] = [
    (libc::ENETUNREACH, false),
    (libc::EHOSTUNREACH, false),
    (libc::ENOPROTOOPT, true),
    (libc::ECONNREFUSED, true),
    (libc::EMSGSIZE, true),
    (libc::EOPNOTSUPP, false),
    (libc::ENETUNREACH, true),
    (libc::EHOSTDOWN, true),
    (libc::ENONET, true),
    (libc::ENETUNREACH, true),
    (libc::EHOSTUNREACH, true),
    (libc::ENETUNREACH, false),
    (libc::EHOSTUNREACH, false),
    (libc::EHOSTUNREACH, true),
    (libc::EHOSTUNREACH, true),
    (libc::EHOSTUNREACH, true),
];

/// The errno of a message, and whether the error is permanent. A connected UDP socket always gets
/// permanent errors. `None` if Linux does not report the message.
pub fn errno(kind: u8, code: u8) -> Option<(i32, bool)> {
    match (kind, code) {
        (UNREACHABLE, code) => CODES.get(usize::from(code)).copied(),
        // Linux does not report the time of reassembly (code 1).
        (TIME_EXCEEDED, 0) => Some((libc::EHOSTUNREACH, false)),
        (PARAMETER_PROBLEM, _) => Some((libc::EPROTO, true)),
        _ => None,
    }
}
