//! The errno of each error that the dataplane returns.
use libix::{Dead, Error};

/// The errno of a refused call.
pub fn of_error(error: Error) -> i32 {
    match error {
        Error::NoSys => libc::ENOSYS,
        Error::Invalid => libc::EINVAL,
        Error::BadHandle => libc::EBADF,
        Error::Fault => libc::EFAULT,
        Error::NoResource => libc::ENOBUFS,
        Error::InUse => libc::EADDRINUSE,
        Error::NotLocal => libc::EADDRNOTAVAIL,
        Error::Unreachable => libc::EHOSTUNREACH,
        Error::Refused => libc::ECONNREFUSED,
        Error::TimedOut => libc::ETIMEDOUT,
        Error::Reset | Error::Lost => libc::ECONNRESET,
        Error::State => libc::EPIPE,
        Error::TooLong => libc::EMSGSIZE,
        Error::Again => libc::EAGAIN,
        _ => libc::EIO,
    }
}

/// The errno of the end of a flow; 0 for an orderly one.
pub fn of_dead(reason: Dead) -> i32 {
    match reason {
        Dead::Closed => 0,
        Dead::TimedOut => libc::ETIMEDOUT,
        Dead::Unreachable => libc::EHOSTUNREACH,
        Dead::NotConnected(error) | Dead::Failed(error) => of_error(error),
        Dead::Reset => libc::ECONNRESET,
    }
}
