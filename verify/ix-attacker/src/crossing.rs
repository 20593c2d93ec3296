//! The cost of a crossing: calls of the gate that the dataplane refuses at once, also where it has
//! gone to sleep before; and the cost of a cycle in which nothing happens.
use crate::Gate;
use ix_abi::{CALLS_MAX, error, gate_op};
use std::time::Duration;

/// Calls that are timed together, and number of samples.
const BATCH: usize = 100;
const BATCHES: usize = 2001;
/// The same where each crossing waits until the other side sleeps.
const WAKES: usize = 301;
/// Longer than a dataplane looks for a request before it sleeps.
const PAUSE: Duration = Duration::from_millis(3);

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// A crossing.
    Crossing,
    /// A crossing that wakes the other side.
    Wake,
    /// A whole cycle.
    Cycle,
}

impl What {
    /// As it is named on the command line.
    pub fn named(word: &str) -> Option<What> {
        match word {
            "crossing" => Some(What::Crossing),
            "wake" => Some(What::Wake),
            "cycle" => Some(What::Cycle),
            _ => None,
        }
    }
}

/// Prints percentiles 10, 50 and 90 of ticks of the time stamp counter.
pub fn measure(gate: Gate, what: What) -> Result<(), String> {
    match gate(gate_op::ENTER, 0, 0, 0) {
        0 => {}
        errno => return Err(format!("the elastic thread cannot be entered: {errno}")),
    }
    // Behind the gate, on the dataplane's stack, the number of calls is checked first.
    let (calls, wanted) = match what {
        What::Cycle => (0, 0),
        What::Crossing | What::Wake => (CALLS_MAX as u64 + 1, -error::INVALID),
    };
    let (batches, batch) = if what == What::Wake { (WAKES, 1) } else { (BATCHES, BATCH) };
    let cross = || gate(gate_op::RUN_IO, 0, calls, 0);
    let mut ticks: Vec<u64> = (0..batches)
        .map(|_| {
            if what == What::Wake {
                std::thread::sleep(PAUSE);
            }
            let start = now();
            let good = (0..batch).filter(|_| cross() == wanted).count();
            let passed = now() - start;
            if good == batch { passed } else { u64::MAX }
        })
        .collect();
    ticks.sort_unstable();
    gate(gate_op::LEAVE, 0, 0, 0);
    let at = |percent: usize| ticks[batches * percent / 100] as f64 / batch as f64;
    if at(50) > u64::MAX as f64 / 1e3 {
        return Err("the gate answers something else".to_owned());
    }
    println!("{:.1} {:.1} {:.1}", at(10), at(50), at(90));
    Ok(())
}

fn now() -> u64 {
    // SAFETY: every x86-64 processor has a time stamp counter.
    unsafe {
        core::arch::x86_64::_mm_lfence();
        core::arch::x86_64::_rdtsc()
    }
}
