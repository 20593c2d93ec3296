//! What ICMP messages are to programs: Linux's errno of each (RFC 792, RFC 1812), and what it does.

/// "Destination unreachable".
pub const UNREACHABLE: u8 = 3;
/// Its code for a datagram that was too long for a link.
pub const TOO_LONG: u8 = 4;
/// A packet lived too long, or did not become whole in time.
const TIME_EXCEEDED: u8 = 11;
/// A header that somebody did not understand.
const PARAMETER_PROBLEM: u8 = 12;

/// Errno of each code of [`UNREACHABLE`], and whether it is for good.
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

/// The errno of a message, and whether it is for good, which a connected UDP socket hears of in any
/// case. `None`: Linux keeps it to itself.
pub fn errno(kind: u8, code: u8) -> Option<(i32, bool)> {
    match (kind, code) {
        (UNREACHABLE, code) => CODES.get(usize::from(code)).copied(),
        // Fragments that did not come in time are nobody's fault.
        (TIME_EXCEEDED, 0) => Some((libc::EHOSTUNREACH, false)),
        (PARAMETER_PROBLEM, _) => Some((libc::EPROTO, true)),
        _ => None,
    }
}
