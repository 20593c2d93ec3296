//! The clock that says whether something is due.

use std::time::{Duration, SystemTime};

/// The time of day, since the epoch.
pub fn time_of_day() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// Microseconds of Linux's monotonic clock.
pub fn now_us() -> u64 {
    us_of(libc::CLOCK_MONOTONIC)
}

/// The same as of Linux's last tick, a few milliseconds ago, which costs much less.
pub fn tick_us() -> u64 {
    us_of(libc::CLOCK_MONOTONIC_COARSE)
}

fn us_of(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills a local.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}
