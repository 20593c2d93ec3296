//! The dataplane of this process, and how another thread makes a driver come out of it.
use crate::{filtered, wake};
use core::sync::atomic::{AtomicPtr, Ordering};
use ix_abi::gate_op;
use libix::raw::{Gate, Process};

/// The dataplane, once it runs in this process.
static PROCESS: AtomicPtr<Process> = AtomicPtr::new(core::ptr::null_mut());

/// The dataplane runs in this process from now on.
pub fn set_process(process: Process) {
    PROCESS.store(Box::into_raw(Box::new(process)), Ordering::Release);
}

/// A forked child has no dataplane.
pub fn forked() {
    PROCESS.store(core::ptr::null_mut(), Ordering::Release);
}

/// The dataplane of this process, if it runs here.
pub fn process() -> Option<&'static Process> {
    // SAFETY: null, or a value that is never freed.
    unsafe { PROCESS.load(Ordering::Acquire).as_ref() }
}

/// Makes the driver of an elastic thread come out. Signal handlers call this, also on a thread that
/// is inside the dataplane.
pub fn kick(elastic: usize) {
    if let Some(come_out) = filtered::come_out().filter(|_| filtered::is_filtered()) {
        wake::wake(come_out);
    } else if let Some(process) = process() {
        process.gate().call(gate_op::KICK, elastic as u64, 0, 0);
    }
}
