//! How long a thread did not run: what a machine with fewer processors than threads adds to a
//! pause.

/// A moment of a thread, as wall time and as time on the CPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct OnCpu {
    wall_ns: u64,
    ran_ns: u64,
}

/// Returns this moment of the calling thread, in a cycle that began at this time, µs.
pub type ReadOnCpu = fn(u64) -> OnCpu;

impl OnCpu {
    /// In virtual time a thread always runs, and a cycle takes no time.
    pub fn in_virtual_time(cycle_us: u64) -> OnCpu {
        OnCpu { wall_ns: cycle_us * 1000, ran_ns: cycle_us * 1000 }
    }

    /// On Linux. Costs a system call, so this is for migrations only.
    #[cold]
    pub fn on_linux(cycle_us: u64) -> OnCpu {
        // In this order: a thread that is interrupted between the two counts as running after this
        // moment. The cycle's clock is not exactly Linux's.
        let wall_ns = read_ns(libc::CLOCK_MONOTONIC).max(cycle_us * 1000);
        OnCpu { wall_ns, ran_ns: read_ns(libc::CLOCK_THREAD_CPUTIME_ID) }
    }

    /// Wall time, µs.
    pub fn wall_us(&self) -> u64 {
        self.wall_ns / 1000
    }

    /// How long it did not run between this moment and `now`, a later moment of the same thread,
    /// ns; without what may have been before `from_us`.
    pub fn off_ns(&self, now: OnCpu, from_us: u64) -> u64 {
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
        let now = || OnCpu::on_linux(0);
        let start = now();
        std::thread::sleep(Duration::from_millis(20));
        let slept_ns = start.off_ns(now(), 0);
        assert!(slept_ns >= 19_000_000, "{slept_ns}");
        let half_us = (start.wall_ns + 10_000_000) / 1000;
        assert!(start.off_ns(now(), half_us) <= start.off_ns(now(), 0) - 9_000_000);
        let begin = Instant::now();
        let work = now();
        while work.ran_ns + 5_000_000 > now().ran_ns {
            std::hint::spin_loop();
        }
        let whole_ns = begin.elapsed().as_nanos() as u64;
        assert!(
            work.off_ns(now(), 0) <= whole_ns.saturating_sub(4_900_000),
            "it ran for 5 ms of these"
        );
    }

    #[test]
    fn virtual_time_is_the_callers_alone() {
        let at = OnCpu::in_virtual_time;
        assert_eq!((at(7).wall_us(), at(7).off_ns(at(1_000_000), 0)), (7, 0));
    }
}
