//! The calls, by libevent's names. What libevent's headers ask of those who call them is what every
//! `SAFETY` comment here rests on: pointers are null where that is allowed, or name what their
//! types say and was not freed; functions are of the types that they are passed as.

mod base;
mod buffer;
mod buffer_search;
mod bufferevent;
mod event;
mod listener;
mod util;

/// What a pointer of the program names; `None` for null.
macro_rules! at {
    ($pointer:expr) => {
        // SAFETY: null or good, as libevent asks (see the module).
        unsafe { $pointer.as_ref() }
    };
}

/// Writes to a place of the program, if there is one.
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

/// The same the other way.
fn timeval_of(us: u64) -> timeval {
    timeval { tv_sec: (us / 1_000_000) as i64, tv_usec: (us % 1_000_000) as i64 }
}
