//! How long a thread did not run: what a machine with more threads than processors adds to a pause.

/// A moment of the calling thread, in time that passes and in time that it ran.
#[derive(Clone, Copy, Debug, Default)]
pub struct OnCpu {
    wall_ns: u64,
    ran_ns: u64,
}

impl OnCpu {
    /// Now. Costs a system call, so this is for migrations only.
    #[cold]
    pub fn now() -> OnCpu {
        // In this order: who does not run between the two does not run after this moment.
        let wall_ns = read_ns(libc::CLOCK_MONOTONIC);
        OnCpu { wall_ns, ran_ns: read_ns(libc::CLOCK_THREAD_CPUTIME_ID) }
    }

    /// This moment, µs, for a cycle that began at `cycle_us`; that itself where the cycle's clock is
    /// another one (virtual time).
    pub fn within_us(&self, cycle_us: u64) -> u64 {
        let now_us = self.wall_ns / 1000;
        if (cycle_us..cycle_us.saturating_add(1_000_000)).contains(&now_us) {
            now_us
        } else {
            cycle_us
        }
    }

    /// Since this moment of the same thread it did not run for so long, ns, apart from what it may
    /// have been before `from_us` of the monotonic clock.
    pub fn off_ns(&self, from_us: u64) -> u64 {
        let now = OnCpu::now();
        let passed_ns = now.wall_ns.saturating_sub(self.wall_ns);
        let off_ns = passed_ns.saturating_sub(now.ran_ns.saturating_sub(self.ran_ns));
        off_ns.saturating_sub((from_us * 1000).saturating_sub(self.wall_ns))
    }
}

fn read_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to a local structure; both clocks always exist.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn sleep_counts_and_work_does_not() {
        let start = OnCpu::now();
        std::thread::sleep(Duration::from_millis(20));
        let slept_ns = start.off_ns(0);
        assert!(slept_ns >= 19_000_000, "{slept_ns}");
        let half_us = (start.wall_ns + 10_000_000) / 1000;
        assert!(start.off_ns(half_us) <= start.off_ns(0) - 9_000_000);
        let begin = Instant::now();
        let work = OnCpu::now();
        while work.ran_ns + 5_000_000 > OnCpu::now().ran_ns {
            std::hint::spin_loop();
        }
        let whole_ns = begin.elapsed().as_nanos() as u64;
        assert!(work.off_ns(0) <= whole_ns.saturating_sub(4_900_000), "it ran for 5 ms of these");
    }
}
