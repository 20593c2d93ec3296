//! From the image to the program: writes down where the dataplane is, and starts the program as the
//! kernel would have done.
use crate::arguments::{Arguments, Domain};
use crate::{sys, wall};
use core::arch::asm;
use core::ffi::{CStr, c_char};
use ix_abi::ENV_HEADER;
use ix_entry::ABI_PLACEHOLDER;

/// Where to jump. In memory, because a new program starts with all registers zero.
static mut ENTRY: usize = 0;

/// Starts the program, whose `IX_ABI` names the header (or the starter) at this address.
///
/// # Safety
/// The arguments are the entry point and the stack pointer of a program that the kernel has just
/// loaded into this process, and no code of it has run.
pub unsafe fn program(arguments: &Arguments, header: usize) -> ! {
    // SAFETY: the caller's promise.
    unsafe { patch_environment(arguments.stack as *mut usize, header) };
    // What our C library has registered for this Linux thread points to our memory; the program's
    // library will register its own, but a program without one would not.
    // SAFETY: null is allowed for both. 24 is the size of a `robust_list_head`.
    unsafe {
        sys::syscall(libc::SYS_set_robust_list, [0, 24, 0, 0, 0, 0]);
        sys::syscall(libc::SYS_set_tid_address, [0; 6]);
    }
    if matches!(arguments.domain, Domain::Pku(_)) {
        // SAFETY: the wall was raised, the caller's promise is the same.
        unsafe { wall::start(arguments.entry as u64, arguments.stack as u64) }
    }
    // SAFETY: a single thread. The jump leaves this code for good, with the registers as the kernel
    // sets them for a new program: rdx = 0 above all, for a function in it would be called at exit.
    unsafe {
        ENTRY = arguments.entry;
        asm!(
            "mov rsp, {stack}",
            "xor eax, eax",
            "wrfsbase rax",
            "wrgsbase rax",
            "cld",
            "xor ebx, ebx",
            "xor ecx, ecx",
            "xor edx, edx",
            "xor esi, esi",
            "xor edi, edi",
            "xor ebp, ebp",
            "xor r8d, r8d",
            "xor r9d, r9d",
            "xor r10d, r10d",
            "xor r11d, r11d",
            "xor r12d, r12d",
            "xor r13d, r13d",
            "xor r14d, r14d",
            "xor r15d, r15d",
            "jmp [rip + {entry}]",
            stack = in(reg) arguments.stack,
            entry = sym ENTRY,
            options(noreturn),
        )
    }
}

/// Writes the header's address over the digits of `IX_ABI=` on the program's initial stack. If the
/// variable is missing, the program will report that it does not run on IX.
///
/// # Safety
/// `stack` points to the initial stack of a program: argument count, pointers to arguments, null,
/// pointers to writable `NAME=value` strings, null.
unsafe fn patch_environment(stack: *mut usize, header: usize) {
    // SAFETY: the caller's promise; the walk ends at the null pointer.
    unsafe {
        let count = stack.read();
        let mut variable = stack.add(1 + count + 1).cast::<*mut c_char>();
        while !variable.read().is_null() {
            let text = variable.read();
            let bytes = CStr::from_ptr(text).to_bytes();
            let value =
                bytes.strip_prefix(ENV_HEADER.as_bytes()).and_then(|v| v.strip_prefix(b"="));
            if value.is_some_and(|value| value.len() == ABI_PLACEHOLDER.len()) {
                let digits = format!("{header:016x}");
                let place = text.cast::<u8>().add(ENV_HEADER.len() + 1);
                place.copy_from_nonoverlapping(digits.as_ptr(), ABI_PLACEHOLDER.len());
            }
            variable = variable.add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    #[test]
    fn only_the_variable_itself_is_patched() {
        let texts =
            ["prog", "HOME=/", "IX_ABI=0000000000000000", "IX_ABI=1", "IX_ABIX=000000000000000"];
        let texts = texts.map(|text| CString::new(text).unwrap().into_raw());
        let word = |i: usize| texts[i] as usize;
        let mut stack = [1, word(0), 0, word(1), word(2), word(3), word(4), 0];
        // SAFETY: laid out as an initial stack.
        unsafe { patch_environment(stack.as_mut_ptr(), 0x7f12_3456_7000) };
        // SAFETY: made by `into_raw` above.
        let texts = texts.map(|text| unsafe { CString::from_raw(text) }.into_string().unwrap());
        let expected = ["HOME=/", "IX_ABI=00007f1234567000", "IX_ABI=1", "IX_ABIX=000000000000000"];
        assert_eq!(texts[1..], expected);
    }
}
