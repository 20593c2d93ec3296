//! What the kernel lets this process have: getrlimit(2).
use crate::check;
use std::io;

/// Lifts RLIMIT_MEMLOCK of this process and of those it starts as far as it may (beyond the hard
/// limit only with CAP_SYS_RESOURCE), and returns the bytes that may be locked then.
pub fn raise_memlock() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: `limit` is readable for the length of the call.
    let lifted = unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) } == 0;
    if !lifted {
        // SAFETY: `limit` is writable for the length of the call.
        check(unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) })?;
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: as for the first call.
        check(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) })?;
    }
    Ok(limit.rlim_cur)
}
