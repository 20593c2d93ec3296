//! Symbols that the C library inside the image uses instead of its own, so that it never touches
//! the program break: glibc caches its break, and the program's C library assumes that it alone
//! changes it.
use crate::heap::Heap;
use crate::{sys, wall};
use core::ffi::c_void;
use core::ptr::null_mut;

#[global_allocator]
pub static HEAP: Heap = Heap::new();

const PAGE: usize = 4096;

fn or_enomem(ptr: *mut u8) -> *mut c_void {
    if ptr.is_null() {
        // SAFETY: errno of this thread; the C library is up when memory runs out.
        unsafe { *libc::__errno_location() = libc::ENOMEM };
    }
    ptr.cast()
}

/// C11 7.22.3.4.
#[unsafe(no_mangle)]
extern "C" fn malloc(bytes: usize) -> *mut c_void {
    or_enomem(HEAP.allocate(bytes, 16, false))
}

/// C11 7.22.3.2.
#[unsafe(no_mangle)]
extern "C" fn calloc(count: usize, bytes: usize) -> *mut c_void {
    match count.checked_mul(bytes) {
        Some(bytes) => or_enomem(HEAP.allocate(bytes, 16, true)),
        None => or_enomem(null_mut()),
    }
}

/// C11 7.22.3.5.
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(ptr: *mut c_void, bytes: usize) -> *mut c_void {
    if ptr.is_null() {
        return malloc(bytes);
    }
    // SAFETY: the caller's promise: memory of ours.
    or_enomem(unsafe { HEAP.resize(ptr.cast(), bytes, 16) })
}

/// C11 7.22.3.3.
#[unsafe(no_mangle)]
unsafe extern "C" fn free(ptr: *mut c_void) {
    if !ptr.is_null() {
        // SAFETY: the caller's promise: memory of ours, not used any more.
        unsafe { HEAP.release(ptr.cast()) }
    }
}

/// C11 7.22.3.1.
#[unsafe(no_mangle)]
extern "C" fn aligned_alloc(align: usize, bytes: usize) -> *mut c_void {
    if align.is_power_of_two() {
        return or_enomem(HEAP.allocate(bytes, align, false));
    }
    // SAFETY: errno of this thread.
    unsafe { *libc::__errno_location() = libc::EINVAL };
    null_mut()
}

/// The older name of `aligned_alloc`.
#[unsafe(no_mangle)]
extern "C" fn memalign(align: usize, bytes: usize) -> *mut c_void {
    aligned_alloc(align, bytes)
}

/// POSIX.1-2017.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, bytes: usize) -> i32 {
    if !align.is_power_of_two() || align < size_of::<usize>() {
        return libc::EINVAL;
    }
    let ptr = HEAP.allocate(bytes, align, false);
    if ptr.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller's promise.
    unsafe { *out = ptr.cast() };
    0
}

/// Whole pages.
#[unsafe(no_mangle)]
extern "C" fn valloc(bytes: usize) -> *mut c_void {
    aligned_alloc(PAGE, bytes)
}

/// Whole pages, rounded up.
#[unsafe(no_mangle)]
extern "C" fn pvalloc(bytes: usize) -> *mut c_void {
    aligned_alloc(PAGE, bytes.next_multiple_of(PAGE))
}

/// glibc's extension.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc_usable_size(ptr: *mut c_void) -> usize {
    // SAFETY: the caller's promise: memory of ours.
    if ptr.is_null() { 0 } else { unsafe { HEAP.usable(ptr.cast()) } }
}

/// Where a static glibc (2.35 and later) allocates the main thread's thread-local storage, before
/// anything else works. glibc's own function takes it from the program break.
#[unsafe(no_mangle)]
extern "C" fn _dl_early_allocate(bytes: usize) -> *mut c_void {
    sys::map(bytes, libc::PROT_READ | libc::PROT_WRITE).map_or(null_mut(), <*mut u8>::cast)
}

/// Nothing in the image may move the program break.
#[unsafe(no_mangle)]
extern "C" fn __sbrk(_increment: isize) -> *mut c_void {
    // SAFETY: errno of this thread.
    unsafe { *libc::__errno_location() = libc::ENOMEM };
    usize::MAX as *mut c_void
}

/// As [`__sbrk`].
#[unsafe(no_mangle)]
extern "C" fn sbrk(increment: isize) -> *mut c_void {
    __sbrk(increment)
}

/// New mappings behind the wall belong behind the wall: devices that change bring new memory.
#[unsafe(no_mangle)]
unsafe extern "C" fn mmap(
    addr: *mut c_void,
    bytes: usize,
    prot: i32,
    flags: i32,
    fd: i32,
    offset: i64,
) -> *mut c_void {
    let args = [addr as u64, bytes as u64, prot as u64, flags as u64, fd as u64, offset as u64];
    // SAFETY: the caller's promise.
    let answer = unsafe {
        match wall::is_raised() {
            true => wall::memory::map_own(args),
            false => sys::syscall(libc::SYS_mmap, args),
        }
    };
    if answer < 0 {
        // SAFETY: errno of this thread.
        unsafe { *libc::__errno_location() = -answer as i32 };
        return libc::MAP_FAILED;
    }
    answer as *mut c_void
}

/// As [`mmap`].
#[unsafe(no_mangle)]
unsafe extern "C" fn mmap64(
    addr: *mut c_void,
    bytes: usize,
    prot: i32,
    flags: i32,
    fd: i32,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { mmap(addr, bytes, prot, flags, fd, offset) }
}

/// As [`mmap`].
#[unsafe(no_mangle)]
unsafe extern "C" fn munmap(addr: *mut c_void, bytes: usize) -> i32 {
    // SAFETY: the caller's promise.
    let answer = unsafe {
        match wall::is_raised() {
            true => wall::memory::unmap_own(addr as u64, bytes as u64),
            false => sys::syscall(libc::SYS_munmap, [addr as u64, bytes as u64, 0, 0, 0, 0]),
        }
    };
    if answer < 0 {
        // SAFETY: errno of this thread.
        unsafe { *libc::__errno_location() = -answer as i32 };
        return -1;
    }
    0
}
