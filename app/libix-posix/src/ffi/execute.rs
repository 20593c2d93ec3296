//! Executing other programs, here or in a child. They inherit what they would inherit on Linux.
use crate::ops::before_exec;
use crate::{holders, log, real};
use core::ffi::CStr;
use core::ptr::null;
use libc::{c_char, c_int, c_void, pid_t};

type Strings = *const *const c_char;

/// Longest name of a program in a message, bytes.
const NAME_MAX: usize = 200;

/// What is about to be executed. Says once in a run of `ix run` that its sockets are Linux's.
///
/// # Safety
/// Null or a string, which does not change during this call.
unsafe fn leaves(program: *const c_char) {
    if program.is_null() || !log::may_tell_of_leaving() {
        return;
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(program) };
    // Who searches a program tries names that do not exist.
    // SAFETY: a string.
    let searched = name.to_bytes().contains(&b'/')
        && !name.to_bytes().contains(&b' ')
        && unsafe { libc::access(program, libc::X_OK) } != 0;
    if !searched {
        let name = &name.to_bytes()[..name.count_bytes().min(NAME_MAX)];
        log::leaves(&String::from_utf8_lossy(name));
    }
}

/// A process of our own executes another program in its place: it has no connections any more.
/// Those that it shares with its parent are the parent's alone.
fn leaves_connections() {
    before_exec();
    holders::leave_all();
}

macro_rules! executes {
    ($before:ident; $($name:ident($($argument:ident: $type:ty),*), $program:expr => $result:ty;)*) => { $(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            $before();
            // SAFETY: the program's own string, or null.
            unsafe { leaves($program) };
            // SAFETY: the C library's function of this name gets the program's own arguments.
            unsafe { real::$name($($argument),*) }
        }
    )* };
}

executes! {
    leaves_connections;
    execve(path: *const c_char, arguments: Strings, environment: Strings), path => c_int;
    execv(path: *const c_char, arguments: Strings), path => c_int;
    execvp(file: *const c_char, arguments: Strings), file => c_int;
    execvpe(file: *const c_char, arguments: Strings, environment: Strings), file => c_int;
    fexecve(fd: c_int, arguments: Strings, environment: Strings), null() => c_int;
}

executes! {
    before_exec;
    posix_spawn(
        pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: Strings, environment: Strings
    ), path => c_int;
    posix_spawnp(
        pid: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: Strings, environment: Strings
    ), file => c_int;
    popen(command: *const c_char, kind: *const c_char), command => *mut c_void;
    system(command: *const c_char), command => c_int;
}

/// Functions with a list of arguments, part of which is on the stack. They jump to the C library's
/// function with registers and stack unchanged.
macro_rules! jumps {
    ($($name:ident $find:ident)*) => { $(
        extern "C" fn $find(program: *const c_char) -> *mut c_void {
            leaves_connections();
            // SAFETY: the first argument of each is a string of the program's.
            unsafe { leaves(program) };
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
