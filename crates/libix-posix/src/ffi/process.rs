//! Processes, users and signals.
use crate::{drive, process, real, signals};
use libc::{c_int, gid_t, pid_t, sighandler_t, size_t, uid_t};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn vfork() -> pid_t {
    // A child that shares our memory would close its parent's sockets.
    // SAFETY: the caller's promise.
    unsafe { real::fork() }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _exit(status: c_int) -> ! {
    process::leave();
    // SAFETY: the caller's promise.
    unsafe { real::_exit(status) };
    std::process::abort()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Exit(status: c_int) -> ! {
    // SAFETY: the caller's promise.
    unsafe { _exit(status) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { signals::sigaction(signal, new, old) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller's promise.
    unsafe { set(number, handler, signals::BSD_FLAGS) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsd_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller's promise.
    unsafe { set(number, handler, signals::BSD_FLAGS) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ssignal(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller's promise.
    unsafe { set(number, handler, signals::BSD_FLAGS) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sysv_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller's promise.
    unsafe { set(number, handler, signals::SYSV_FLAGS) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sysv_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller's promise.
    unsafe { set(number, handler, signals::SYSV_FLAGS) }
}

unsafe fn set(number: c_int, handler: sighandler_t, flags: c_int) -> sighandler_t {
    // SAFETY: the caller's promise.
    unsafe {
        let mut new: libc::sigaction = core::mem::zeroed();
        let mut old: libc::sigaction = core::mem::zeroed();
        (new.sa_sigaction, new.sa_flags) = (handler, flags);
        if flags == signals::BSD_FLAGS {
            libc::sigaddset(&mut new.sa_mask, number);
        }
        match signals::sigaction(number, &new, &mut old) {
            0 => old.sa_sigaction,
            _ => libc::SIG_ERR,
        }
    }
}

/// The C library tells all threads of a change of user by a signal, whose handler must not run
/// inside the dataplane.
macro_rules! outside {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => { $(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            let _nobody_inside = drive::everyone_outside();
            // SAFETY: the caller's promise.
            unsafe { real::$name($($argument),*) }
        }
    )* };
}

outside! {
    setuid(id: uid_t);
    setgid(id: gid_t);
    seteuid(id: uid_t);
    setegid(id: gid_t);
    setreuid(id: uid_t, effective: uid_t);
    setregid(id: gid_t, effective: gid_t);
    setresuid(id: uid_t, effective: uid_t, saved: uid_t);
    setresgid(id: gid_t, effective: gid_t, saved: gid_t);
    setgroups(count: size_t, groups: *const gid_t);
}
