//! Memory for very many connections: pages of 2 MB where they can be had, and cache lines asked for
//! ahead.

/// A boxed slice whose memory Linux is asked to back by large pages before it is first touched.
pub(crate) fn boxed<T>(values: impl ExactSizeIterator<Item = T>) -> Box<[T]> {
    let mut slice: Vec<T> = Vec::with_capacity(values.len());
    advise(slice.as_ptr().cast(), slice.capacity() * size_of::<T>());
    slice.extend(values);
    slice.into_boxed_slice()
}

fn advise(start: *const u8, bytes: usize) {
    const PAGE: usize = 4096;
    let first = start.addr().next_multiple_of(PAGE);
    let end = (start.addr() + bytes) / PAGE * PAGE;
    if end >= first + (2 << 20) {
        let start = start.with_addr(first).cast_mut().cast();
        // SAFETY: whole pages within one allocation of ours; the advice changes no content.
        unsafe { libc::madvise(start, end - first, libc::MADV_HUGEPAGE) };
    }
}

/// Asks for all cache lines of a value; a hint, whatever stands there.
#[inline]
pub fn prefetch<T>(value: &T) {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    let start = (&raw const *value).cast::<i8>();
    for offset in (0..size_of::<T>()).step_by(64) {
        // SAFETY: a hint that neither faults nor reads architecturally.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(offset)) };
    }
}
