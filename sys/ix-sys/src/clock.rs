//! Clocks of the kernel (clock_gettime(2)), and the date.
use std::time::Duration;

/// Time since some point in the past, the same for all processes. It never goes back
/// (CLOCK_MONOTONIC).
pub fn monotonic() -> Duration {
    read(libc::CLOCK_MONOTONIC)
}

/// Time since 1970 (CLOCK_REALTIME). The administrator may set this clock.
pub fn since_1970() -> Duration {
    read(libc::CLOCK_REALTIME)
}

fn read(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills a local; both clocks exist.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A date and a time of day, UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The names say it; months and days count from 1.
pub struct DateTime {
    pub year: u32,
    pub month: u32,
    pub day: u32,
    pub hour: u32,
    pub minute: u32,
    pub second: u32,
}

/// The time now.
pub fn now_utc() -> DateTime {
    let now = since_1970().as_secs() as libc::time_t;
    // SAFETY: all zeroes is a valid structure.
    let mut time: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: reads and fills locals, and keeps no pointer.
    unsafe { libc::gmtime_r(&raw const now, &raw mut time) };
    DateTime {
        year: (time.tm_year + 1900) as u32,
        month: (time.tm_mon + 1) as u32,
        day: time.tm_mday as u32,
        hour: time.tm_hour as u32,
        minute: time.tm_min as u32,
        second: time.tm_sec as u32,
    }
}
