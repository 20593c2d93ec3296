//! Calls that take descriptor numbers from Linux, or free some. Kept numbers are released first.
use crate::kept_numbers::make_room;
use crate::numbers::freed;
use crate::real;
use libc::{c_char, c_int, c_uint, c_void, mode_t, pid_t, sigset_t};

/// Functions that take the lowest free numbers, as many as said.
macro_rules! takes {
    ($($count:literal $name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => { $(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            make_room($count, 0);
            // SAFETY: the C library's function of this name gets the program's own arguments.
            unsafe { real::$name($($argument),*) }
        }
    )* };
}

// Functions that need a mode only with some flags always pass it on: the C library ignores it
// otherwise.
takes! {
    1 open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    1 open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    1 openat(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    1 openat64(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    1 __open_2(path: *const c_char, flags: c_int) -> c_int;
    1 __open64_2(path: *const c_char, flags: c_int) -> c_int;
    1 __openat_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int;
    1 __openat64_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int;
    1 creat(path: *const c_char, mode: mode_t) -> c_int;
    1 creat64(path: *const c_char, mode: mode_t) -> c_int;
    2 pipe(ends: *mut c_int) -> c_int;
    2 pipe2(ends: *mut c_int, flags: c_int) -> c_int;
    2 socketpair(domain: c_int, kind: c_int, protocol: c_int, ends: *mut c_int) -> c_int;
    1 eventfd(count: c_uint, flags: c_int) -> c_int;
    1 timerfd_create(clock: c_int, flags: c_int) -> c_int;
    1 signalfd(fd: c_int, mask: *const sigset_t, flags: c_int) -> c_int;
    1 inotify_init() -> c_int;
    1 inotify_init1(flags: c_int) -> c_int;
    1 memfd_create(name: *const c_char, flags: c_uint) -> c_int;
    1 pidfd_open(pid: pid_t, flags: c_uint) -> c_int;
    1 shm_open(name: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    1 posix_openpt(flags: c_int) -> c_int;
    1 mkstemp(template: *mut c_char) -> c_int;
    1 mkstemp64(template: *mut c_char) -> c_int;
    1 mkostemp(template: *mut c_char, flags: c_int) -> c_int;
    1 mkostemp64(template: *mut c_char, flags: c_int) -> c_int;
    1 fopen(path: *const c_char, mode: *const c_char) -> *mut c_void;
    1 fopen64(path: *const c_char, mode: *const c_char) -> *mut c_void;
    1 tmpfile() -> *mut c_void;
    1 tmpfile64() -> *mut c_void;
    1 opendir(path: *const c_char) -> *mut c_void;
}

/// Functions that free numbers which are not seen here. They may also take one.
macro_rules! frees {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => { $(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            make_room(1, 0);
            // SAFETY: the C library's function of this name gets the program's own arguments.
            let result = unsafe { real::$name($($argument),*) };
            freed(0);
            result
        }
    )* };
}

frees! {
    fclose(stream: *mut c_void) -> c_int;
    pclose(stream: *mut c_void) -> c_int;
    closedir(stream: *mut c_void) -> c_int;
    freopen(path: *const c_char, mode: *const c_char, stream: *mut c_void) -> *mut c_void;
    freopen64(path: *const c_char, mode: *const c_char, stream: *mut c_void) -> *mut c_void;
}

/// Functions that are only counted, because they may make a descriptor ready.
macro_rules! counts {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => { $(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            // SAFETY: the C library's function of this name gets the program's own arguments.
            unsafe { real::$name($($argument),*) }
        }
    )* };
}

counts! {
    eventfd_write(fd: c_int, value: u64) -> c_int;
    timerfd_settime(
        fd: c_int, flags: c_int, new: *const libc::itimerspec, old: *mut libc::itimerspec
    ) -> c_int;
}

/// `fstat`: a kept number is closed for the program.
macro_rules! stats {
    ($($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(fd: c_int, to: *mut libc::stat) -> c_int {
            if crate::fds::get(fd) == crate::fds::Entry::Kept {
                return super::fail(libc::EBADF) as c_int;
            }
            // SAFETY: the C library's function of this name gets the program's own arguments.
            unsafe { real::$name(fd, to) }
        }
    )* };
}

stats! { fstat fstat64 }
