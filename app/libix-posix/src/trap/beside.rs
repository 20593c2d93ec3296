//! The start beside a static program. The image has mapped the program, and this library as a
//! program of its own, with a C library, which begins first (`ix-image/src/beside.rs`).
use super::{How, context, entry, start};
use crate::log;
use core::arch::naked_asm;
use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;

/// This library is a program of its own.
static IS_PROGRAM: AtomicBool = AtomicBool::new(false);

/// Whether this library has begun as a program of its own.
pub fn is_program() -> bool {
    IS_PROGRAM.load(Ordering::Relaxed)
}

/// The entry point in the library's file.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn ix_posix_beside() -> ! {
    naked_asm!("mov rdi, rsp", "and rsp, -16", "call {begin}", "ud2", begin = sym begin)
}

/// # Safety
/// The stack that the dynamic loader has left: count of arguments, and their addresses.
unsafe extern "C" fn begin(stack: *const usize) -> ! {
    // SAFETY: the caller's promise. The image passes entry and stack of the program.
    let words = unsafe {
        let count = *stack;
        (0..count).map(|nth| CStr::from_ptr(*stack.add(1 + nth) as *const c_char))
    };
    let words: Vec<_> = words.map(|word| word.to_str().unwrap_or_default()).collect();
    let hex = |nth: usize| words.get(nth).and_then(|word| u64::from_str_radix(word, 16).ok());
    let (Some(entry), Some(stack)) = (hex(1), hex(2)) else {
        log::fatal("libix-posix is no program; it is loaded by `ix run`");
    };
    IS_PROGRAM.store(true, Ordering::Relaxed);
    // The dynamic loader leaves it to a program to call what is called before it.
    if !crate::pid::is_noted() {
        super::begin();
    }
    // SAFETY: the program's first stack, which Linux or the image has made.
    unsafe { hide(stack as *mut usize) };
    if let Err(why) = start(How::Own) {
        log::fatal(&format!(
            "system calls of this static program cannot be intercepted ({why}); --posix off gives \
             it Linux's sockets"
        ));
    }
    // SAFETY: the thread's own context, and a program that has not begun.
    unsafe {
        let context = &mut *context::current();
        context.layer_fs = context::fs_base();
        if context.has_alternate() {
            let alternate = (&raw const context.alternate).cast::<libc::stack_t>();
            libc::sigaltstack(alternate, core::ptr::null_mut());
        }
        entry::begin_program(entry, stack)
    }
}

/// Takes this library's variables out of the program's environment, so that what it executes does
/// not get them. What follows the environment moves down.
///
/// # Safety
/// The initial stack of a program that has not begun.
unsafe fn hide(stack: *mut usize) {
    let own = [
        crate::route::ENV,
        crate::successor::ENV,
        crate::process::SYSCALLS,
        ix_sys::log::FORMAT_ENV,
        "LD_PRELOAD",
    ];
    // SAFETY: the caller's promise: argument count, pointers to arguments, null, pointers to
    // strings, null, the auxiliary vector up to a pair that begins with null.
    unsafe {
        let mut from = stack.add(1 + *stack + 1);
        let mut to = from;
        while *from != 0 {
            let text = CStr::from_ptr(*from as *const c_char).to_bytes();
            let is_own = own.iter().any(|name| {
                text.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.starts_with(b"="))
            });
            if !is_own {
                *to = *from;
                to = to.add(1);
            }
            from = from.add(1);
        }
        let mut last = false;
        *to = 0;
        (from, to) = (from.add(1), to.add(1));
        while !last {
            last = *from == 0;
            if *from == libc::AT_EXECFN as usize {
                crate::successor::is_named(CStr::from_ptr(*from.add(1) as *const c_char));
            }
            *to = *from;
            *to.add(1) = *from.add(1);
            (from, to) = (from.add(2), to.add(2));
        }
    }
}

/// The program's heap: this library's C library has the one of the process.
static HEAP: Mutex<Heap> = Mutex::new(Heap { first: 0, end: 0, top: 0 });

struct Heap {
    first: u64,
    end: u64,
    top: u64,
}

/// Most bytes of the heap, and how many are tried at least.
const HEAP_BYTES: [u64; 2] = [64 << 30, 64 << 20];

/// `brk` of the program.
pub fn brk(wanted: u64) -> i64 {
    let Ok(mut heap) = HEAP.try_lock() else { return 0 };
    if heap.first == 0 {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let mut bytes = HEAP_BYTES[0];
        while bytes >= HEAP_BYTES[1] && heap.first == 0 {
            let (nowhere, none) = (core::ptr::null_mut(), libc::PROT_NONE);
            // SAFETY: a new mapping.
            let at = unsafe { libc::mmap(nowhere, bytes as usize, none, flags, -1, 0) };
            if at != libc::MAP_FAILED {
                (heap.first, heap.top, heap.end) = (at as u64, at as u64, at as u64 + bytes);
            }
            bytes /= 2;
        }
    }
    if (heap.first..=heap.end).contains(&wanted) && wanted != 0 {
        let page = |address: u64| address.next_multiple_of(4096);
        let (top, new) = (page(heap.top), page(wanted));
        let (at, bytes) = (top.min(new) as *mut libc::c_void, top.abs_diff(new) as usize);
        // SAFETY: within the reservation above, which is the program's heap alone.
        let changed = bytes == 0
            || unsafe {
                if new > top {
                    libc::mprotect(at, bytes, libc::PROT_READ | libc::PROT_WRITE) == 0
                } else {
                    libc::madvise(at, bytes, libc::MADV_DONTNEED) == 0
                        && libc::mprotect(at, bytes, libc::PROT_NONE) == 0
                }
            };
        if changed {
            heap.top = wanted;
        }
    }
    heap.top as i64
}
