//! What ICMP messages mean for programs: Linux's errno for each (RFC 792, RFC 1812, RFC 4443).
use libix::raw::Said;

/// "Destination unreachable".
const UNREACHABLE: u8 = 3;
/// Its code for a datagram that was too long for a link.
const TOO_LONG: u8 = 4;
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

/// "Destination unreachable", "packet too big", "time exceeded" and "parameter problem" of ICMPv6.
const UNREACHABLE_V6: u8 = 1;
const TOO_BIG_V6: u8 = 2;
const TIME_EXCEEDED_V6: u8 = 3;
const PARAMETER_PROBLEM_V6: u8 = 4;

/// The same of each code of [`UNREACHABLE_V6`].
const CODES_V6: [(i32, bool); 7] = [
    (libc::ENETUNREACH, false),
    (libc::EACCES, true),
    (libc::EHOSTUNREACH, false),
    (libc::EHOSTUNREACH, false),
    (libc::ECONNREFUSED, true),
    (libc::EACCES, true),
    (libc::EACCES, true),
];

/// Whether a packet was too long for a link.
pub fn is_too_long(said: &Said) -> bool {
    if said.by.is_ipv6() {
        return said.kind == TOO_BIG_V6;
    }
    (said.kind, said.code) == (UNREACHABLE, TOO_LONG)
}

/// The errno of a message, and whether the error is permanent. A connected UDP socket always gets
/// permanent errors. `None` if Linux does not report the message.
pub fn errno(said: &Said) -> Option<(i32, bool)> {
    if said.by.is_ipv6() {
        return errno_v6(said.kind, said.code);
    }
    match (said.kind, said.code) {
        (UNREACHABLE, code) => CODES.get(usize::from(code)).copied(),
        // Linux does not report the time of reassembly (code 1).
        (TIME_EXCEEDED, 0) => Some((libc::EHOSTUNREACH, false)),
        (PARAMETER_PROBLEM, _) => Some((libc::EPROTO, true)),
        _ => None,
    }
}

fn errno_v6(kind: u8, code: u8) -> Option<(i32, bool)> {
    match kind {
        UNREACHABLE_V6 => {
            Some(CODES_V6.get(usize::from(code)).copied().unwrap_or((libc::EPROTO, true)))
        }
        TOO_BIG_V6 => Some((libc::EMSGSIZE, false)),
        TIME_EXCEEDED_V6 => Some((libc::EHOSTUNREACH, false)),
        PARAMETER_PROBLEM_V6 => Some((libc::EPROTO, true)),
        _ => None,
    }
}
