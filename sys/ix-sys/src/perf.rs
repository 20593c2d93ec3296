//! Hardware counters (perf_event_open(2)).
use crate::{check, fd};
use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};

/// What a counter counts (`enum perf_hw_id` of linux/perf_event.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Event {
    /// Cycles of the processor.
    Cycles = 0,
    /// Instructions.
    Instructions = 1,
    /// Misses of the last cache.
    CacheMisses = 3,
}

/// The scope of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All that runs on one CPU, with the kernel. Needs CAP_PERFMON.
    Cpu(usize),
    /// The calling thread, in user mode only.
    ThisThread,
}

/// A running counter.
#[derive(Debug)]
pub struct Counter(OwnedFd);

/// The first part of `struct perf_event_attr`; the kernel takes the rest as zero.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint_type: u32,
    breakpoint_address: u64,
}

const PERF_TYPE_HARDWARE: u32 = 0;
const EXCLUDE_KERNEL_AND_HYPERVISOR: u64 = 1 << 5 | 1 << 6;
const CLOSE_ON_EXEC: i32 = 8;

impl Counter {
    /// Starts a counter at 0.
    pub fn open(event: Event, scope: Scope) -> io::Result<Counter> {
        let (pid, cpu, flags) = match scope {
            Scope::Cpu(cpu) => (-1, cpu as i32, 0),
            Scope::ThisThread => (0, -1, EXCLUDE_KERNEL_AND_HYPERVISOR),
        };
        let attributes = Attributes {
            kind: PERF_TYPE_HARDWARE,
            size: size_of::<Attributes>() as u32,
            config: event as u64,
            flags,
            ..Attributes::default()
        };
        let (number, group) = (libc::SYS_perf_event_open, -1);
        // SAFETY: the structure lives across the call and carries its own size.
        let new = check(unsafe {
            libc::syscall(number, &raw const attributes, pid, cpu, group, CLOSE_ON_EXEC)
        })?;
        // SAFETY: a new descriptor that no other value owns.
        Ok(Counter(unsafe { fd::own(new as RawFd) }))
    }

    /// The count since it was opened; 0 if it cannot be read.
    pub fn read(&self) -> u64 {
        let mut bytes = [0u8; 8];
        let n = fd::read(self.0.as_fd(), &mut bytes).unwrap_or(0);
        if n == bytes.len() { u64::from_ne_bytes(bytes) } else { 0 }
    }
}
