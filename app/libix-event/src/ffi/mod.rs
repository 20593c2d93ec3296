//! The calls, by libevent's names. Every `SAFETY` comment here relies on what libevent's headers
//! demand of callers: a pointer is null where that is allowed, or points to an object of its type
//! that was not freed; a function has the type that it is passed as.

mod base;
mod buffer;
mod buffer_search;
mod bufferevent;
mod event;
mod listener;
mod util;

/// The object that a pointer of the program points to; `None` for null.
macro_rules! at {
    ($pointer:expr) => {
        // SAFETY: null or good, as libevent asks (see the module).
        unsafe { $pointer.as_ref() }
    };
}

/// Writes to an object of the program, unless the pointer is null.
macro_rules! put {
    ($place:expr, $value:expr) => {
        // SAFETY: null or good, as libevent asks (see the module).
        if let Some(place) = unsafe { $place.as_mut() } {
            *place = $value;
        }
    };
}

pub(crate) use {at, put};

use libc::timeval;

/// A span of time, µs; `None` for null.
fn span_us(time: *const timeval) -> Option<u64> {
    at!(time).map(|time| {
        let (seconds, micros) = (time.tv_sec.max(0) as u64, time.tv_usec.max(0) as u64);
        seconds.saturating_mul(1_000_000).saturating_add(micros)
    })
}

/// A span of µs as a `timeval`.
fn timeval_of(us: u64) -> timeval {
    timeval { tv_sec: (us / 1_000_000) as i64, tv_usec: (us % 1_000_000) as i64 }
}
