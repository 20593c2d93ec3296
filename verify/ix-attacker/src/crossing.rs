//! The cost of a crossing: calls of the gate that the dataplane refuses at once; and the cost of a
//! cycle in which nothing happens.
use crate::Gate;
use ix_abi::{CALLS_MAX, error, gate_op};

/// Calls that are timed together, and number of samples.
const BATCH: usize = 100;
const BATCHES: usize = 2001;

/// Prints percentiles 10, 50 and 90 of ticks of the time stamp counter.
///
/// Measures a whole cycle with `cycle`, else a crossing.
pub fn measure(gate: Gate, cycle: bool) -> Result<(), String> {
    match gate(gate_op::ENTER, 0, 0, 0) {
        0 => {}
        errno => return Err(format!("the elastic thread cannot be entered: {errno}")),
    }
    // Behind the gate, on the dataplane's stack, the number of calls is checked first.
    let (calls, wanted) = if cycle { (0, 0) } else { (CALLS_MAX as u64 + 1, -error::INVALID) };
    let cross = || gate(gate_op::RUN_IO, 0, calls, 0);
    let mut ticks: Vec<u64> = (0..BATCHES)
        .map(|_| {
            let start = now();
            let good = (0..BATCH).filter(|_| cross() == wanted).count();
            let passed = now() - start;
            if good == BATCH { passed } else { u64::MAX }
        })
        .collect();
    ticks.sort_unstable();
    gate(gate_op::LEAVE, 0, 0, 0);
    let at = |percent: usize| ticks[BATCHES * percent / 100] as f64 / BATCH as f64;
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
