//! The processor's time stamp counter.

/// Ticks since the processor started.
#[inline]
#[allow(unused_unsafe)] // Depending on the compiler's version it is a safe function.
pub fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and Linux allows it in user space.
    unsafe { core::arch::x86_64::_rdtsc() }
}
