//! The dataplane's clock: the time stamp counter, held to Linux' monotonic clock.
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
    /// Microseconds a tick, times 2^32.
    us_per_tick: u64,
    /// When the rate is looked at next, µs.
    check_us: u64,
    first: (u64, u64),
}

const CHECK_EVERY_US: u64 = 1_000_000;

impl Clock {
    /// Measures the counter's rate for a few milliseconds.
    pub fn new() -> Clock {
        let (ticks_0, ns_0) = (ticks(), monotonic_ns());
        while monotonic_ns() - ns_0 < 5_000_000 {
            core::hint::spin_loop();
        }
        let (ticks_1, ns_1) = (ticks(), monotonic_ns());
        let mut clock = Clock {
            base_ticks: ticks_1,
            base_us: ns_1 / 1000,
            us_per_tick: 0,
            check_us: ns_1 / 1000 + CHECK_EVERY_US / 10,
            first: (ticks_0, ns_0),
        };
        clock.measure(ticks_1, ns_1);
        clock
    }

    /// Ticks in a microsecond.
    pub fn ticks_per_us(&self) -> u64 {
        (1u64 << 32) / self.us_per_tick.max(1)
    }

    /// Microseconds on the monotonic clock, give or take the drift of a second.
    #[inline]
    pub fn now_us(&mut self) -> u64 {
        let now_ticks = ticks();
        let passed = now_ticks.wrapping_sub(self.base_ticks);
        let now_us = self.base_us + ((passed as u128 * self.us_per_tick as u128) >> 32) as u64;
        if now_us < self.check_us {
            return now_us;
        }
        self.check(now_ticks, now_us)
    }

    #[cold]
    fn check(&mut self, now_ticks: u64, now_us: u64) -> u64 {
        let ns = monotonic_ns();
        self.measure(now_ticks, ns);
        self.base_ticks = now_ticks;
        // Ahead of Linux: stand still until it has caught up, rather than go back.
        self.base_us = now_us.max(ns / 1000);
        self.check_us = self.base_us + CHECK_EVERY_US;
        self.base_us
    }

    fn measure(&mut self, now_ticks: u64, ns: u64) {
        let passed = now_ticks.wrapping_sub(self.first.0).max(1) as u128;
        self.us_per_tick = (((ns - self.first.1) as u128) << 32).div_ceil(passed * 1000) as u64;
    }
}

impl Default for Clock {
    fn default() -> Clock {
        Clock::new()
    }
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
}
