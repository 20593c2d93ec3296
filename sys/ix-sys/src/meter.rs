//! Hardware counters of one CPU: what a message costs there, whichever process serves it.
use crate::perf::{Counter, Event, Scope};
use std::io;

/// The counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Cycles that the CPU was not halted.
    pub cycles: u64,
    /// Instructions.
    pub instructions: u64,
    /// Cache misses, if they are counted.
    pub cache_misses: Option<u64>,
}

/// Counts cycles, instructions and cache misses, of user programs and the kernel.
pub struct Meter {
    cycles: Counter,
    instructions: Counter,
    cache_misses: Option<Counter>,
}

impl Meter {
    /// Counts everything that runs on a CPU. Needs CAP_PERFMON.
    pub fn of_cpu(cpu: usize) -> io::Result<Meter> {
        Meter::open(Scope::Cpu(cpu))
    }

    /// Counts the calling thread, in user mode only.
    pub fn of_this_thread() -> io::Result<Meter> {
        Meter::open(Scope::ThisThread)
    }

    fn open(scope: Scope) -> io::Result<Meter> {
        Ok(Meter {
            cycles: Counter::open(Event::Cycles, scope)?,
            instructions: Counter::open(Event::Instructions, scope)?,
            cache_misses: Counter::open(Event::CacheMisses, scope).ok(),
        })
    }

    /// The counts since it was opened.
    pub fn read(&self) -> Count {
        Count {
            cycles: self.cycles.read(),
            instructions: self.instructions.read(),
            cache_misses: self.cache_misses.as_ref().map(Counter::read),
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
