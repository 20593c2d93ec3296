//! The dataplane's clock: the time stamp counter, kept in step with Linux's monotonic clock.
//!
//! A reading costs a few nanoseconds and no system call. The counter's rate is measured once and
//! corrected every second, so that it never drifts far; time never goes backwards.

/// Ticks of the time stamp counter.
#[inline]
pub fn ticks() -> u64 {
    // SAFETY: RDTSC exists on every x86-64 processor, and Linux does not disable it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Converts ticks to microseconds since an arbitrary start.
pub struct Clock {
    base_ticks: u64,
    base_us: u64,
    /// Measured rate: microseconds per tick, times 2^32.
    rate: u64,
    /// The rate in use, in the same unit. It is lower while this clock is ahead of Linux's.
    us_per_tick: u64,
    /// When the rate is measured next, µs.
    check_us: u64,
    first: Reading,
}

/// Both clocks at one time.
#[derive(Clone, Copy)]
struct Reading {
    ticks: u64,
    ns: u64,
}

const CHECK_EVERY_US: u64 = 1_000_000;
/// The best of this many readings is used, because the thread may be interrupted between reading
/// the two clocks.
const READINGS: usize = 3;

impl Clock {
    /// Measures the counter's rate for a few milliseconds.
    pub fn new() -> Clock {
        let first = read_both();
        while monotonic_ns() - first.ns < 5_000_000 {
            core::hint::spin_loop();
        }
        let mut clock = Clock::starting(first, read_both());
        clock.check_us = clock.base_us + CHECK_EVERY_US / 10;
        clock
    }

    fn starting(first: Reading, now: Reading) -> Clock {
        let mut clock =
            Clock { base_ticks: 0, base_us: 0, rate: 0, us_per_tick: 0, check_us: 0, first };
        clock.correct(0, now);
        clock
    }

    /// Ticks per microsecond.
    pub fn ticks_per_us(&self) -> u64 {
        (1u64 << 32) / self.rate.max(1)
    }

    /// Microseconds on the monotonic clock, except for the drift of a second.
    #[inline]
    pub fn now_us(&mut self) -> u64 {
        self.read().0
    }

    /// The same, and the counter that it was computed from.
    #[inline]
    pub fn read(&mut self) -> (u64, u64) {
        let ticks = ticks();
        let now_us = self.at(ticks);
        if now_us < self.check_us {
            return (now_us, ticks);
        }
        (self.check(now_us), ticks)
    }

    #[inline]
    fn at(&self, ticks: u64) -> u64 {
        let passed = ticks.wrapping_sub(self.base_ticks);
        self.base_us + ((passed as u128 * self.us_per_tick as u128) >> 32) as u64
    }

    #[cold]
    fn check(&mut self, now_us: u64) -> u64 {
        self.correct(now_us, read_both())
    }

    /// Measures the rate again. `now_us` is the last returned time; returns the next one.
    fn correct(&mut self, now_us: u64, now: Reading) -> u64 {
        let passed = now.ticks.wrapping_sub(self.first.ticks).max(1) as u128;
        self.rate = (((now.ns - self.first.ns) as u128) << 32).div_ceil(passed * 1000) as u64;
        let linux_us = now.ns / 1000;
        // Ahead of Linux: run more slowly until Linux has caught up, because time never goes back.
        let ahead_us = now_us.saturating_sub(linux_us).min(CHECK_EVERY_US / 2);
        self.us_per_tick = self.rate - self.rate * ahead_us / CHECK_EVERY_US;
        self.base_ticks = now.ticks;
        self.base_us = now_us.max(linux_us);
        self.check_us = self.base_us + CHECK_EVERY_US;
        self.base_us
    }
}

impl Default for Clock {
    fn default() -> Clock {
        Clock::new()
    }
}

fn read_both() -> Reading {
    let read = |_| {
        let before = ticks();
        let ns = monotonic_ns();
        let between = ticks().wrapping_sub(before);
        (between, Reading { ticks: before.wrapping_add(between / 2), ns })
    };
    let closer =
        |best: (u64, Reading), other: (u64, Reading)| if other.0 < best.0 { other } else { best };
    (1..READINGS).map(read).fold(read(0), closer).1
}

pub(crate) fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to a local structure; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_monotonic_clock_and_never_goes_back() {
        let mut clock = Clock::new();
        let mut last = 0;
        let start = std::time::Instant::now();
        let first = clock.now_us();
        while start.elapsed().as_millis() < 250 {
            let now = clock.now_us();
            assert!(now >= last);
            last = now;
        }
        let (ours, theirs) = (clock.now_us() - first, start.elapsed().as_micros() as u64);
        assert!(ours.abs_diff(theirs) < 5_000, "{ours} against {theirs}");
    }

    #[test]
    fn one_that_is_ahead_waits_for_linux_without_going_back() {
        // A tick is a nanosecond.
        let reading = |ns| Reading { ticks: ns, ns };
        let mut clock = Clock::starting(reading(0), reading(1_000_000_000));
        assert_eq!(clock.at(1_500_000_000), 1_500_000);
        clock.correct(1_700_000, reading(1_000_000_000));
        let mut last = 0;
        for ms in 1_000..4_000u64 {
            let ns = ms * 1_000_000;
            let mut now_us = clock.at(ns);
            if now_us >= clock.check_us {
                now_us = clock.correct(now_us, reading(ns));
            }
            assert!(now_us >= last, "{now_us} after {last}");
            last = now_us;
        }
        assert!(last.abs_diff(3_999_000) < 10, "{last}");
    }
}
