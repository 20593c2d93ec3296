//! Hardware counters of one CPU: what a message costs there, whoever serves it.
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const PERF_TYPE_HARDWARE: u32 = 0;
const PERF_COUNT_HW_CPU_CYCLES: u64 = 0;
const PERF_COUNT_HW_INSTRUCTIONS: u64 = 1;
const PERF_COUNT_HW_CACHE_MISSES: u64 = 3;

/// The first fields of the kernel's `perf_event_attr` (PERF_ATTR_SIZE_VER0).
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    config1: u64,
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Cycles that the CPU was not halted.
    pub cycles: u64,
    /// Instructions.
    pub instructions: u64,
    /// Cache misses, where they are counted.
    pub cache_misses: Option<u64>,
}

/// Counts cycles, instructions and cache misses, of user programs and the kernel.
pub struct Meter {
    cycles: OwnedFd,
    instructions: OwnedFd,
    cache_misses: Option<OwnedFd>,
}

impl Meter {
    /// Counts everything that runs on a CPU. Needs CAP_PERFMON.
    pub fn of_cpu(cpu: usize) -> io::Result<Meter> {
        Meter::open(-1, cpu as i32, 0)
    }

    /// Counts the calling thread, in user mode only.
    pub fn of_this_thread() -> io::Result<Meter> {
        const EXCLUDE_KERNEL_AND_HYPERVISOR: u64 = 1 << 5 | 1 << 6;
        Meter::open(0, -1, EXCLUDE_KERNEL_AND_HYPERVISOR)
    }

    fn open(pid: i32, cpu: i32, flags: u64) -> io::Result<Meter> {
        let counter = |config| {
            let attributes = Attributes {
                kind: PERF_TYPE_HARDWARE,
                size: size_of::<Attributes>() as u32,
                config,
                flags,
                ..Attributes::default()
            };
            let (group, close_on_exec) = (-1, 8);
            // SAFETY: the structure lives across the call and carries its own size; a descriptor
            // that the call answers is nobody else's.
            unsafe {
                let fd = libc::syscall(
                    libc::SYS_perf_event_open,
                    &raw const attributes,
                    pid,
                    cpu,
                    group,
                    close_on_exec,
                );
                if fd < 0 {
                    return Err(io::Error::last_os_error());
                }
                Ok(OwnedFd::from_raw_fd(fd as i32))
            }
        };
        Ok(Meter {
            cycles: counter(PERF_COUNT_HW_CPU_CYCLES)?,
            instructions: counter(PERF_COUNT_HW_INSTRUCTIONS)?,
            cache_misses: counter(PERF_COUNT_HW_CACHE_MISSES).ok(),
        })
    }

    /// Counted since it was opened.
    pub fn read(&self) -> Count {
        let value = |fd: &OwnedFd| {
            let mut bytes = [0u8; 8];
            // SAFETY: the buffer is valid for its length.
            let n = unsafe { libc::read(fd.as_raw_fd(), bytes.as_mut_ptr().cast(), 8) };
            if n == 8 { u64::from_ne_bytes(bytes) } else { 0 }
        };
        Count {
            cycles: value(&self.cycles),
            instructions: value(&self.instructions),
            cache_misses: self.cache_misses.as_ref().map(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_counted_where_there_are_counters() {
        let Ok(meter) = Meter::of_this_thread() else {
            let need = ix_skip::Need::Hardware("a processor or guest with counters, and root");
            ix_skip::skip("work_is_counted_where_there_are_counters", need, "no counters");
            return;
        };
        let before = meter.read();
        let sum = (0..1_000_000u64).fold(0, |sum, n| std::hint::black_box(sum ^ n));
        std::hint::black_box(sum);
        let after = meter.read();
        assert!(after.instructions - before.instructions > 1_000_000);
        assert!(after.cycles > before.cycles);
    }
}
