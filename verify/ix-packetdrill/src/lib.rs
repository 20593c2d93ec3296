//! The stack behind packetdrill's plug-in interface, so that any packetdrill can run any scripts
//! against it:
//!
//! ```text
//! LD_PRELOAD=libix_packetdrill.so \
//!     packetdrill --so_filename=libix_packetdrill.so --local_ip=192.168.0.1 SCRIPT.pkt
//! ```
//!
//! packetdrill loads the object and calls [`packetdrill_interface_init`]. From then on every system
//! call, packet and reading of the clock is a call of ours, for which an elastic thread in virtual
//! time does the work (`ix_scripts::sockets`). Only the order and types of the interface's
//! functions are known here. docs/guide/packetdrill.md says how to run suites.
mod calls;
mod info;
mod plug;

pub use calls::Interface;
use libc::{c_int, socklen_t};
use plug::Plug;
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The present stack, for calls that bypass the interface.
static LOADED: AtomicPtr<Plug> = AtomicPtr::new(std::ptr::null_mut());

/// packetdrill calls this once: it fills `interface`. `flags` is the text of `--so_flags`: settings
/// as `NAME=VALUE` separated by commas, with names of `sysctl`, or `ix.` and a field of
/// `ix_tcp::Config`; also `mtu=`, and `local=` and `remote=` if packetdrill uses other addresses
/// than 192.168.0.1 and 192.0.2.1. An unknown setting ends the process with one line as the reason.
///
/// # Safety
/// `flags` is null or a C string, `interface` points to room for an [`Interface`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn packetdrill_interface_init(
    flags: *const c_char,
    interface: *mut Interface,
) {
    let flags = match flags.is_null() {
        true => String::new(),
        // SAFETY: a C string, as the caller promises.
        false => unsafe { CStr::from_ptr(flags) }.to_string_lossy().into_owned(),
    };
    let plug = Plug::new(&flags).unwrap_or_else(|why| {
        eprintln!("libix_packetdrill: --so_flags: {why}");
        std::process::exit(1)
    });
    let plug = Box::into_raw(Box::new(plug));
    LOADED.store(plug, Ordering::Release);
    let userdata = plug.cast::<c_void>();
    // SAFETY: room for one, as the caller promises.
    unsafe { interface.write(calls::interface(userdata)) };
}

/// `getsockopt`, for `LD_PRELOAD`: packetdrill reads the values of assertions (`TCP_INFO`) by the C
/// library's function, not by the interface. Calls on the kernel's descriptors go to the kernel.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    to: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    let plug = LOADED.load(Ordering::Acquire);
    // SAFETY: not null: leaked by `packetdrill_interface_init`, and not freed (`free` clears it).
    if let Some(plug) = unsafe { plug.as_ref() }
        && plug.lock().sockets.get(fd).is_ok()
    {
        // SAFETY: C's promise about `getsockopt`.
        return unsafe { calls::option_of(plug, fd, level, name, to, len) };
    }
    // SAFETY: as above; the kernel checks the pointers.
    unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, to, len) as c_int }
}

/// `system`, for `LD_PRELOAD`: a script's `sysctl` lines set the stack's parameters, not the
/// kernel's. Other commands (Python runs packetdrill's assertions) go to the C library.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn system(command: *const c_char) -> c_int {
    const FAILED: c_int = 1 << 8;
    // SAFETY: not null: see `getsockopt`.
    let plug = unsafe { LOADED.load(Ordering::Acquire).as_ref() };
    if let Some(plug) = plug
        && !command.is_null()
    {
        // SAFETY: a C string, as C promises.
        let line = unsafe { CStr::from_ptr(command) }.to_string_lossy();
        if line.contains("sysctl") || line.contains("defaults.sh") {
            let Err(why) = plug.command(&line) else { return 0 };
            eprintln!("libix_packetdrill: `{line}`: {why}");
            return FAILED;
        }
    }
    // SAFETY: a name that ends.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"system".as_ptr()) };
    if next.is_null() {
        return -1;
    }
    // SAFETY: the C library's function of that name has this type.
    let next: unsafe extern "C" fn(*const c_char) -> c_int = unsafe { std::mem::transmute(next) };
    // SAFETY: the caller's promise.
    unsafe { next(command) }
}
