//! Executing other programs, here or in a child. They inherit what they would inherit on Linux.
use crate::lock::lock;
use crate::ops::{before_exec, name_inherited};
use crate::successor::{self, Strings, Successor};
use crate::{custodian, holders, kin, log, process, real};
use core::ffi::CStr;
use core::ptr::null;
use libc::{c_char, c_int, c_void, pid_t};
use std::ffi::CString;

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

/// A process of our own executes another program in its place, outside of IX: it has no
/// connections any more. Those that it shares with its parent are the parent's alone.
fn leaves_connections() {
    before_exec();
    holders::leave_all_but(&[]);
}

/// Executes a program in this process: with IX and the sockets that it inherits, or, where it
/// cannot start so, as `plain` does it.
///
/// # Safety
/// The program's own arguments of an `exec` function; `searched`: the file is found along `PATH`.
unsafe fn execute(
    (file, searched): (*const c_char, bool),
    arguments: Strings,
    environment: Strings,
    plain: impl FnOnce() -> c_int,
) -> c_int {
    // Who searches a program tries names that do not exist, and goes on.
    // SAFETY: the caller's promise.
    let Some(path) = (unsafe { path_of(file, searched) }) else { return plain() };
    // SAFETY: the caller's promise.
    if let Some(next) = unsafe { successor::prepare(&path, arguments, environment) } {
        before_exec();
        let kept = name_inherited(false);
        let kin = kin::parts();
        holders::parts();
        custodian::takes_over(&kept);
        holders::leave_all_but(&kept);
        next.execute();
        kin::comes_back(kin);
        holders::comes_back();
        lock().executing = false;
    }
    leaves_connections();
    // SAFETY: the program's own string, or null.
    unsafe { leaves(file) };
    plain()
}

/// The path of a program that may be executed.
///
/// # Safety
/// Null or a string.
unsafe fn path_of(file: *const c_char, searched: bool) -> Option<CString> {
    if file.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let file = unsafe { CStr::from_ptr(file) };
    let path = if searched { successor::find(file)? } else { file.to_owned() };
    successor::may_execute(&path).then_some(path)
}

/// # Safety
/// As [`execute`].
unsafe fn successor(
    file: *const c_char,
    searched: bool,
    arguments: Strings,
    environment: Strings,
) -> Option<Successor> {
    // SAFETY: the caller's promise.
    unsafe { successor::prepare(&path_of(file, searched)?, arguments, environment) }
}

/// The program's environment.
fn own_environment() -> Strings {
    // SAFETY: the C library's variable; who changes it while another thread executes a program is
    // wrong without IX as well.
    unsafe { process::environ }.cast_const().cast()
}

macro_rules! executes {
    ($($name:ident($($argument:ident: $type:ty),*), $file:ident $searched:literal $listed:ident $environment:expr;)*) => { $(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            // SAFETY: the C library's function of this name gets the program's own arguments.
            let plain = || unsafe { real::$name($($argument),*) };
            // SAFETY: the program's own arguments.
            unsafe { execute(($file, $searched), $listed, $environment, plain) }
        }
    )* };
}

executes! {
    execve(path: *const c_char, arguments: Strings, environment: Strings),
        path false arguments environment;
    execv(path: *const c_char, arguments: Strings), path false arguments own_environment();
    execvp(file: *const c_char, arguments: Strings), file true arguments own_environment();
    execvpe(file: *const c_char, arguments: Strings, environment: Strings),
        file true arguments environment;
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fexecve(fd: c_int, arguments: Strings, environment: Strings) -> c_int {
    leaves_connections();
    // SAFETY: no string; then the C library's function gets the program's own arguments.
    unsafe {
        leaves(null());
        real::fexecve(fd, arguments, environment)
    }
}

macro_rules! spawns {
    ($($name:ident $searched:expr;)*) => { $(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            pid: *mut pid_t,
            file: *const c_char,
            actions: *const c_void,
            attributes: *const c_void,
            arguments: Strings,
            environment: Strings,
        ) -> c_int {
            before_exec();
            // SAFETY: the program's own arguments.
            if let Some(next) = unsafe { successor(file, $searched, arguments, environment) } {
                // The new process has a place once it runs.
                name_inherited(true);
                return next.spawn(|file, arguments, environment| {
                    // SAFETY: the program's own arguments, and those of the successor.
                    unsafe { real::posix_spawn(pid, file, actions, attributes, arguments, environment) }
                });
            }
            // SAFETY: the program's own string, or null.
            unsafe { leaves(file) };
            // SAFETY: the C library's function of this name gets the program's own arguments.
            unsafe { real::$name(pid, file, actions, attributes, arguments, environment) }
        }
    )* };
}

spawns! {
    posix_spawn false;
    posix_spawnp true;
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn popen(command: *const c_char, kind: *const c_char) -> *mut c_void {
    before_exec();
    // SAFETY: the program's own string, or null; then the C library's function gets the program's
    // own arguments.
    unsafe {
        leaves(command);
        real::popen(command, kind)
    }
}

/// As the C library's (POSIX, `system`), by the `posix_spawn` of this file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn system(command: *const c_char) -> c_int {
    if command.is_null() {
        // SAFETY: there is a shell, or none.
        return unsafe { real::system(command) };
    }
    let words = [c"sh".as_ptr(), c"-c".as_ptr(), command, null()];
    // SAFETY: all zero is a valid value of each; locals are filled and read; signals are set back
    // as they were. The program's own string lives during this call.
    unsafe {
        let mut ignored: libc::sigaction = core::mem::zeroed();
        ignored.sa_sigaction = libc::SIG_IGN;
        let mut before: [libc::sigaction; 2] = core::mem::zeroed();
        let (mut blocked, mut mask, mut defaults): (
            libc::sigset_t,
            libc::sigset_t,
            libc::sigset_t,
        ) = core::mem::zeroed();
        libc::sigemptyset(&mut defaults);
        libc::sigemptyset(&mut blocked);
        libc::sigaddset(&mut blocked, libc::SIGCHLD);
        for (signal, before) in [libc::SIGINT, libc::SIGQUIT].into_iter().zip(&mut before) {
            libc::sigaction(signal, &ignored, before);
            if before.sa_sigaction != libc::SIG_IGN {
                libc::sigaddset(&mut defaults, signal);
            }
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &blocked, &mut mask);
        let mut attributes: libc::posix_spawnattr_t = core::mem::zeroed();
        libc::posix_spawnattr_init(&mut attributes);
        libc::posix_spawnattr_setsigmask(&mut attributes, &mask);
        libc::posix_spawnattr_setsigdefault(&mut attributes, &defaults);
        let flags = libc::POSIX_SPAWN_SETSIGMASK | libc::POSIX_SPAWN_SETSIGDEF;
        libc::posix_spawnattr_setflags(&mut attributes, flags as libc::c_short);
        let (mut pid, mut status) = (0, 127 << 8);
        let (shell, attributes_at) = (c"/bin/sh".as_ptr(), (&raw const attributes).cast());
        let errno =
            posix_spawn(&mut pid, shell, null(), attributes_at, words.as_ptr(), own_environment());
        while errno == 0 && libc::waitpid(pid, &mut status, 0) < 0 && real::errno() == libc::EINTR {
        }
        libc::posix_spawnattr_destroy(&mut attributes);
        for (signal, before) in [libc::SIGINT, libc::SIGQUIT].into_iter().zip(&before) {
            libc::sigaction(signal, before, core::ptr::null_mut());
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &mask, core::ptr::null_mut());
        if errno != 0 && errno != libc::ENOENT {
            real::set_errno(errno);
            return -1;
        }
        status
    }
}

/// How the program's arguments follow the file, and what follows them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Listed {
    /// A path.
    Path,
    /// A name to be found along `PATH`.
    Name,
    /// A path, and the environment behind the arguments.
    WithEnvironment,
}

/// Executes a program whose arguments are listed: those in registers are at `first`, the rest is on
/// the stack.
///
/// # Safety
/// Six words, and the caller's stack, with what the program has listed.
unsafe fn list(how: Listed, first: *const usize, rest: *const usize) -> c_int {
    const IN_REGISTERS: usize = 6;
    // SAFETY: the caller's promise; nothing behind the last word that the program lists is read.
    let word = |n: usize| unsafe {
        if n < IN_REGISTERS { *first.add(n) } else { *rest.add(n - IN_REGISTERS) }
    };
    let string = |n: usize| core::ptr::with_exposed_provenance::<c_char>(word(n));
    let mut arguments = Vec::new();
    while arguments.last().is_none_or(|last: &*const c_char| !last.is_null()) {
        arguments.push(string(1 + arguments.len()));
    }
    let environment = match how {
        Listed::WithEnvironment => string(1 + arguments.len()).cast(),
        _ => own_environment(),
    };
    let (file, arguments) = (string(0), arguments.as_ptr());
    // SAFETY: the program's own arguments, ended by null.
    unsafe {
        match how {
            Listed::Name => execvpe(file, arguments, environment),
            _ => execve(file, arguments, environment),
        }
    }
}

/// Functions with a list of arguments, part of which is on the stack.
macro_rules! lists {
    ($($name:ident $listed:ident $how:ident)*) => { $(
        unsafe extern "C" fn $listed(first: *const usize, rest: *const usize) -> c_int {
            // SAFETY: the caller below has put them there.
            unsafe { list(Listed::$how, first, rest) }
        }

        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() -> c_int {
            core::arch::naked_asm!(
                "push rbp", "mov rbp, rsp",
                "push r9", "push r8", "push rcx", "push rdx", "push rsi", "push rdi",
                "mov rdi, rsp", "lea rsi, [rbp + 16]",
                "call {listed}",
                "leave", "ret",
                listed = sym $listed,
            )
        }
    )* };
}

lists! {
    execl listed_execl Path
    execlp listed_execlp Name
    execle listed_execle WithEnvironment
}
