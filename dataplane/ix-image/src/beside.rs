//! A static program with the library for unmodified programs beside it.
//!
//! Such a program has no dynamic loader that could load the library. So the image maps one, on a
//! stack of its own, and has it begin first, as if it had been told to run the library
//! (`ld.so /proc/self/fd/N ENTRY STACK`). The library brings a C library of its own. When both are
//! ready, the library begins the program where Linux would have begun it.
use crate::arguments::{Arguments, Domain};
use crate::load::{auxv_behind, cannot, load, put, random, stack, strings};
use ix_entry::Auxv;
use ix_entry::elf::Layout;
use ix_entry::stack::InitialStack;
use std::ffi::c_char;

/// Where the psABI wants the dynamic loader of x86-64 to be.
const LOADER: &[u8] = b"/lib64/ld-linux-x86-64.so.2";
/// What the launcher tells the library; its third part is the number of the library's descriptor.
const TOLD: &[u8] = b"IX_POSIX=";
/// What the loader beside the program does not get: it is about the program's own.
const NOT_FOR_LOADER: [&[u8]; 4] =
    [b"LD_PRELOAD=", b"LD_AUDIT=", b"GLIBC_TUNABLES=", b"IX_SYSCALLS="];

/// Where the process goes on: with the library if the program has no dynamic loader and is to have
/// sockets of IX, else with the program.
pub fn with_library(arguments: Arguments) -> Result<Arguments, String> {
    // SAFETY: the initial stack of a program that has not begun.
    let (args, env, mut auxv) = unsafe { read(arguments.stack) };
    let told = env.iter().find_map(|text| text.strip_prefix(TOLD));
    let is_static = auxv.get(libc::AT_BASE).unwrap_or(0) == 0;
    let (Some(told), true) = (told, is_static) else { return Ok(arguments) };
    let program = args.first().cloned().unwrap_or_default();
    if arguments.domain != Domain::Process {
        return Err(cannot(&program, "sockets on IX", "it is linked statically"));
    }
    let number = told.split(|byte| *byte == b';').nth(2).unwrap_or_default();
    let (loader, base) = load(LOADER).map_err(|why| {
        format!("a static program needs the C library of this machine for its sockets: {why}")
    })?;
    let entry = base + loader.layout.entry;
    auxv.set(libc::AT_PHDR, base + loader.layout.phdr);
    auxv.set(libc::AT_PHENT, Layout::PHENT);
    auxv.set(libc::AT_PHNUM, loader.layout.phnum);
    auxv.set(libc::AT_BASE, 0);
    auxv.set(libc::AT_ENTRY, entry);
    let library = [b"/proc/self/fd/", number].concat();
    let [first, stack_pointer] = [arguments.entry, arguments.stack].map(|at| format!("{at:x}"));
    let args = [LOADER, &library, first.as_bytes(), stack_pointer.as_bytes()];
    // The image's own: the program registers restartable sequences, if anyone does.
    let tunables = std::env::var("GLIBC_TUNABLES").unwrap_or_default();
    let tunables = format!("GLIBC_TUNABLES={tunables}").into_bytes();
    let is_for_loader =
        |text: &&Vec<u8>| NOT_FOR_LOADER.iter().all(|prefix| !text.starts_with(prefix));
    let env: Vec<&[u8]> =
        env.iter().filter(is_for_loader).map(Vec::as_slice).chain([&tunables[..]]).collect();
    let random = random().map_err(|e| cannot(&program, "getrandom", e))?;
    let (file, platform) = (LOADER, None);
    let initial = InitialStack { file, args: &args, env: &env, auxv, platform, random };
    let place = stack().map_err(|e| cannot(&program, "no stack", e))?;
    let stack = put(initial, place).ok_or_else(|| {
        cannot(&program, "arguments and environment", "too long for its stack (ulimit -s)")
    })?;
    Ok(Arguments { entry: entry as usize, stack, ..arguments })
}

/// Arguments, environment and auxiliary vector.
///
/// # Safety
/// The initial stack of a program.
unsafe fn read(stack: usize) -> (Vec<Vec<u8>>, Vec<Vec<u8>>, Auxv) {
    // SAFETY: the caller's promise: argument count, pointers to arguments, null, pointers to
    // strings, null, pairs.
    unsafe {
        let stack = stack as *const *const c_char;
        let env = stack.add(1 + stack.read().addr() + 1);
        (strings(stack.add(1)), strings(env), auxv_behind(env))
    }
}
