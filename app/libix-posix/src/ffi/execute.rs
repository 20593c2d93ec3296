//! Executing other programs, here or in a child. They inherit what they would inherit on Linux.
use crate::ops::before_exec;
use crate::real;
use core::ffi::CStr;
use libc::{c_char, c_int, c_void, pid_t};

type Strings = *const *const c_char;

macro_rules! executes {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => { $(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            before_exec();
            // SAFETY: the C library's function of this name gets the program's own arguments.
            unsafe { real::$name($($argument),*) }
        }
    )* };
}

executes! {
    execve(path: *const c_char, arguments: Strings, environment: Strings) -> c_int;
    execv(path: *const c_char, arguments: Strings) -> c_int;
    execvp(file: *const c_char, arguments: Strings) -> c_int;
    execvpe(file: *const c_char, arguments: Strings, environment: Strings) -> c_int;
    fexecve(fd: c_int, arguments: Strings, environment: Strings) -> c_int;
    posix_spawn(
        pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: Strings, environment: Strings
    ) -> c_int;
    posix_spawnp(
        pid: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: Strings, environment: Strings
    ) -> c_int;
    popen(command: *const c_char, kind: *const c_char) -> *mut c_void;
    system(command: *const c_char) -> c_int;
}

/// Functions with a list of arguments, part of which is on the stack. They jump to the C library's
/// function with registers and stack unchanged.
macro_rules! jumps {
    ($($name:ident $find:ident)*) => { $(
        extern "C" fn $find() -> *mut c_void {
            before_exec();
            // SAFETY: the bytes end with the only zero.
            real::find(unsafe {
                CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes())
            })
        }

        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() -> c_int {
            core::arch::naked_asm!(
                "push rbp", "mov rbp, rsp",
                "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9",
                "call {find}",
                "mov r11, rax",
                "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                "pop rbp",
                "xor eax, eax",
                "jmp r11",
                find = sym $find,
            )
        }
    )* };
}

jumps! {
    execl find_execl
    execlp find_execlp
    execle find_execle
}
