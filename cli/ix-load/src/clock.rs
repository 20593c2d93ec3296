//! Monotonic time from the time stamp counter: a read costs a few cycles, while the kernel's clock
//! costs tens of ns.
use ix_sys::tsc::ticks;
use std::time::{Duration, Instant};

/// How long the counter is compared with the kernel's clock. An error of 0.1 µs in either reading
/// is two parts in a million.
const CALIBRATION: Duration = Duration::from_millis(50);

/// A clock that starts at 0 when it is made. Copies agree with each other on all hardware threads
/// (`constant_tsc` and `nonstop_tsc`, which the kernel checks before it uses the counter itself).
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: u64,
    /// ns per tick, times 2^32.
    ns_per_tick: u64,
}

impl Clock {
    /// Calibrates against the kernel's monotonic clock.
    pub fn calibrated() -> Clock {
        let (start, since) = (ticks(), Instant::now());
        std::thread::sleep(CALIBRATION);
        let (end, passed) = (ticks(), since.elapsed());
        let ns_per_tick =
            ((passed.as_nanos() << 32) / u128::from(end.wrapping_sub(start).max(1))) as u64;
        Clock { start, ns_per_tick }
    }

    /// ns since the clock was made.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        let passed = ticks().wrapping_sub(self.start);
        ((u128::from(passed) * u128::from(self.ns_per_tick)) >> 32) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_time_with_the_kernel() {
        let (clock, since) = (Clock::calibrated(), Instant::now());
        let begin = clock.now_ns();
        std::thread::sleep(Duration::from_millis(100));
        let here = (clock.now_ns() - begin) as f64;
        let there = since.elapsed().as_nanos() as f64;
        assert!((here / there - 1.0).abs() < 0.01, "{here} {there}");
        let (first, second) = (clock.now_ns(), clock.now_ns());
        assert!(second >= first);
    }
}
