//! Processes, users and signals.
use crate::lock::lock;
use crate::{
    cancel, holders, kept_numbers, limited, outside, pid, process, real, serving, signals,
};
use core::ffi::c_void;
use libc::{c_int, c_ulong, gid_t, pid_t, pthread_t, rlimit, sighandler_t, size_t, uid_t};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fork() -> pid_t {
    // SAFETY: no arguments.
    let pid = unsafe { real::fork() };
    if pid < 0 {
        let errno = real::errno();
        holders::not_forked();
        real::set_errno(errno);
    }
    pid
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn vfork() -> pid_t {
    // A child that shares our memory would close its parent's sockets, so it gets a copy.
    // SAFETY: no arguments.
    unsafe { fork() }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _exit(status: c_int) -> ! {
    process::finish();
    // SAFETY: the C library's `_exit` gets the program's own arguments.
    unsafe { real::_exit(status) };
    std::process::abort()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Exit(status: c_int) -> ! {
    // SAFETY: `_exit` demands no more than this function does.
    unsafe { _exit(status) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kill(pid: pid_t, signal: c_int) -> c_int {
    if pid == pid::own() {
        ends_by(signal);
    }
    // SAFETY: the C library's `kill` gets the program's own arguments.
    unsafe { real::kill(pid, signal) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn raise(signal: c_int) -> c_int {
    ends_by(signal);
    // SAFETY: the C library's `raise` gets the program's own arguments.
    unsafe { real::raise(signal) }
}

/// The process sends itself a signal. If that ends it at once, the dataplane gets before what it
/// has written, as on Linux, where the kernel has it.
fn ends_by(signal: c_int) {
    if signal == libc::SIGKILL {
        process::hands_over_at_once();
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cancel(thread: pthread_t) -> c_int {
    // Before the thread may end.
    // SAFETY: `tid_of` demands no more than this function does.
    let tid = unsafe { cancel::tid_of(thread) };
    // SAFETY: the C library's `pthread_cancel` gets the program's own arguments.
    let result = unsafe { real::pthread_cancel(thread) };
    if let Some(tid) = tid {
        cancel::cancelled(tid);
    }
    result
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int {
    cancel::type_set(kind);
    // SAFETY: the C library's `pthread_setcanceltype` gets the program's own arguments.
    unsafe { real::pthread_setcanceltype(kind, before) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: null, or a structure of the program's.
    if unsafe { new.as_ref() }.is_some_and(|new| new.sa_sigaction == libc::SIG_DFL) {
        process::hands_over();
    }
    // SAFETY: `sigaction` demands no more than this function does.
    unsafe { signals::sigaction(signal, new, old) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: `set` demands no more than this function does.
    unsafe { set(number, handler, signals::BSD_FLAGS) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsd_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: `set` demands no more than this function does.
    unsafe { set(number, handler, signals::BSD_FLAGS) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ssignal(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: `set` demands no more than this function does.
    unsafe { set(number, handler, signals::BSD_FLAGS) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sysv_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: `set` demands no more than this function does.
    unsafe { set(number, handler, signals::SYSV_FLAGS) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sysv_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: `set` demands no more than this function does.
    unsafe { set(number, handler, signals::SYSV_FLAGS) }
}

unsafe fn set(number: c_int, handler: sighandler_t, flags: c_int) -> sighandler_t {
    // SAFETY: all zero is a valid action; `sigaddset` refuses a number that is no signal. The
    // program's handler is one as `sigaction` wants it.
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

#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit(resource: c_int, limit: *const rlimit) -> c_int {
    // SAFETY: the caller passes a limit, or null, which Linux refuses.
    let result = unsafe { real::setrlimit(resource, with_room(resource, limit).as_ptr_or(limit)) };
    limit_changed(resource);
    result
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit64(resource: c_int, limit: *const rlimit) -> c_int {
    // SAFETY: on x86-64 it is the same function.
    unsafe { setrlimit(resource, limit) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit(
    pid: pid_t,
    resource: c_int,
    new: *const rlimit,
    old: *mut rlimit,
) -> c_int {
    let own = pid == 0 || pid == pid::own();
    // SAFETY: the caller passes limits, or null for those that it does not want.
    unsafe {
        let room = if own { with_room(resource, new) } else { Room(None) };
        let result = real::prlimit(pid, resource, room.as_ptr_or(new), old);
        if own && !new.is_null() {
            limit_changed(resource);
        }
        result
    }
}

/// The limit of descriptors has changed, and with it how many numbers may be kept.
fn limit_changed(resource: c_int) {
    if resource == libc::RLIMIT_NOFILE as c_int {
        kept_numbers::limit(&mut lock());
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit64(
    pid: pid_t,
    resource: c_int,
    new: *const rlimit,
    old: *mut rlimit,
) -> c_int {
    // SAFETY: on x86-64 it is the same function.
    unsafe { prlimit(pid, resource, new, old) }
}

/// A limit in place of the program's.
struct Room(Option<rlimit>);

impl Room {
    fn as_ptr_or(&self, given: *const rlimit) -> *const rlimit {
        self.0.as_ref().map_or(given, core::ptr::from_ref)
    }
}

/// If the program lowers the limits of descriptors, those that leave room for the dataplane's.
///
/// # Safety
/// `limit` is null or can be read.
unsafe fn with_room(resource: c_int, limit: *const rlimit) -> Room {
    // SAFETY: null, or a structure of the program's, which waits for this call.
    let limit = unsafe { limit.as_ref() }.filter(|_| resource == libc::RLIMIT_NOFILE as c_int);
    Room(limit.and_then(|limit| limited::before_limit(limit, process::reserved_end())))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(
    option: c_int,
    second: c_ulong,
    third: c_ulong,
    fourth: c_ulong,
    fifth: c_ulong,
) -> c_int {
    if option == libc::PR_SET_SECCOMP {
        let is_strict = second == libc::SECCOMP_MODE_STRICT as c_ulong;
        // SAFETY: the program's own argument, which waits for this call.
        let filter = unsafe { limited::filter(is_strict, third as *const libc::sock_fprog) };
        limited::before_filter(filter, false);
    }
    // SAFETY: the C library's function of this name gets the program's own arguments.
    unsafe { real::prctl(option, second, third, fourth, fifth) }
}

/// Of libseccomp, which most programs have filters from.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seccomp_load(filters: *const c_void) -> c_int {
    limited::before_filter(limited::Filter::Unknown, false);
    // SAFETY: libseccomp's function of this name gets the program's own argument.
    unsafe { real::seccomp_load(filters) }
}

/// Functions that change the user. The C library sends a signal to all threads, whose handler must
/// not run inside the dataplane.
macro_rules! outside {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => { $(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            let mut nobody_inside = outside::everyone_outside();
            serving::before_rights_go(&mut nobody_inside);
            // SAFETY: the C library's function of this name gets the program's own arguments.
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
