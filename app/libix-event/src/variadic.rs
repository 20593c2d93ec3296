//! Calls with any number of arguments. Rust can call such functions but not be one, so a few
//! instructions put the arguments where C's `va_list` finds them (System V ABI for x86-64, 3.5.7).
use core::arch::naked_asm;
use core::ffi::{c_char, c_int};

/// A `va_list`.
#[repr(C)]
#[derive(Clone)]
pub struct VaList {
    gp_offset: u32,
    fp_offset: u32,
    overflow_arg_area: *mut u8,
    reg_save_area: *mut u8,
}

unsafe extern "C" {
    /// The C library's function.
    pub fn vsnprintf(
        to: *mut c_char,
        bytes: usize,
        format: *const c_char,
        args: *mut VaList,
    ) -> c_int;
}

/// Saves the argument registers, makes a list that begins after the named arguments, and calls.
macro_rules! with_list {
    ($named:literal, $list:literal, $call:literal) => {
        naked_asm!(
            "sub rsp, 216",
            "mov [rsp + 32], rdi",
            "mov [rsp + 40], rsi",
            "mov [rsp + 48], rdx",
            "mov [rsp + 56], rcx",
            "mov [rsp + 64], r8",
            "mov [rsp + 72], r9",
            "test al, al",
            "je 2f",
            "movaps [rsp + 80], xmm0",
            "movaps [rsp + 96], xmm1",
            "movaps [rsp + 112], xmm2",
            "movaps [rsp + 128], xmm3",
            "movaps [rsp + 144], xmm4",
            "movaps [rsp + 160], xmm5",
            "movaps [rsp + 176], xmm6",
            "movaps [rsp + 192], xmm7",
            "2:",
            concat!("mov dword ptr [rsp], 8 * ", $named),
            "mov dword ptr [rsp + 4], 48",
            "lea rax, [rsp + 224]",
            "mov [rsp + 8], rax",
            "lea rax, [rsp + 32]",
            "mov [rsp + 16], rax",
            concat!("mov ", $list, ", rsp"),
            concat!("call ", $call, "@PLT"),
            "add rsp, 216",
            "ret",
        )
    };
}

/// `int evbuffer_add_printf(struct evbuffer *, const char *format, ...)`
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn evbuffer_add_printf() {
    with_list!("2", "rdx", "evbuffer_add_vprintf")
}

/// `int evutil_snprintf(char *, size_t, const char *format, ...)`
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn evutil_snprintf() {
    with_list!("3", "rcx", "evutil_vsnprintf")
}
