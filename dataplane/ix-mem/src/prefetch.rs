//! Cache hints; they never fault, whatever the address.
use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

/// Prefetches the cache line at `p` for reading.
#[inline(always)]
pub fn prefetch_read<T>(p: *const T) {
    // SAFETY: PREFETCHT0 is a hint; it neither faults nor dereferences architecturally.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
}

/// Prefetches the cache line at `p` for writing, so that this processor alone has it.
#[inline(always)]
pub fn prefetch_write<T>(p: *const T) {
    // SAFETY: PREFETCHW is a hint; it neither faults nor dereferences architecturally, and is a
    // no-operation on the few 64-bit processors without it.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) p, options(nostack, preserves_flags, readonly));
    }
}
