//! The raw contract: the dataplane of this process, its gate and its elastic threads.
//!
//! A program without the event loop finds the header, becomes an elastic thread by IX_GATE_ENTER,
//! writes calls into its array, enters the gate with IX_GATE_RUN_IO and reads results and events,
//! as libix-contract(7) describes. Signals are blocked on an elastic thread. If the thread's status
//! has signal_pending, the program unblocks them for a moment (pthread_sigmask) and enters again.
use crate::error::remember;
use ix_abi::{ENV_HEADER, ProcessHeader, ThreadArea, error};
use libix::raw::{Gate, Process};

/// Returns the dataplane of this process. Returns NULL if there is none or if it has another
/// version; ix_last_error has the reason.
#[unsafe(no_mangle)]
pub extern "C" fn ix_find() -> *const ProcessHeader {
    if let Err(why) = Process::find() {
        remember(&why);
        return core::ptr::null();
    }
    // `find` has read and checked the address.
    let address = std::env::var(ENV_HEADER).ok();
    let address = address.and_then(|text| usize::from_str_radix(&text, 16).ok());
    core::ptr::with_exposed_provenance(address.unwrap_or(0))
}

/// Enters the gate with an operation, an IX_GATE_ number. Returns the operation's result, 0 or
/// more, or minus an IX_ERROR_ number.
///
/// # Safety
/// `header` is null or the result of `ix_find`, and the arguments are as the contract demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_gate(
    header: *const ProcessHeader,
    op: u64,
    a: u64,
    b: u64,
    c: u64,
) -> i64 {
    if header.is_null() {
        return -error::INVALID;
    }
    // SAFETY: the header is the dataplane's by the caller's promise.
    match unsafe { Process::at(header) } {
        Ok(process) => process.gate().call(op, a, b, c),
        Err(_) => -error::INVALID,
    }
}

/// Returns the addresses of an elastic thread's arrays, or NULL if the dataplane has no such
/// thread.
///
/// # Safety
/// `header` is null or the result of `ix_find`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_area(header: *const ProcessHeader, thread: u32) -> *const ThreadArea {
    // SAFETY: null or the dataplane's by the caller's promise.
    match unsafe { header.as_ref() } {
        Some(header) if thread < header.threads => {
            let areas: *const ThreadArea =
                core::ptr::with_exposed_provenance(header.thread_areas as usize);
            areas.wrapping_add(thread as usize)
        }
        _ => core::ptr::null(),
    }
}

/// Returns the number of elastic threads of this process's dataplane; 0 if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn ix_threads() -> u32 {
    Process::find().map_or(0, |process| process.threads())
}
