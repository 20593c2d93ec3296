//! The functions that ours replace for the program: the next ones in the order of loading, which
//! are the C library's.
use core::ffi::{CStr, c_int, c_uint, c_void};
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use libc::{
    c_char, epoll_event, fd_set, iovec, mmsghdr, mode_t, msghdr, nfds_t, off_t, pid_t, pollfd,
    sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval,
};

/// The address of the next function of this name.
#[cold]
pub fn find(name: &CStr) -> *mut c_void {
    // SAFETY: a string that ends with zero.
    let at = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if at.is_null() {
        crate::log::fatal(&format!("the C library has no {name:?}"));
    }
    at
}

macro_rules! next {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        /// Functions that calls go on to.
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy)]
        enum Call { $($name),* }

        const NAMES: [&str; [$(Call::$name),*].len()] = [$(stringify!($name)),*];

        $(
        /// The C library's function of this name.
        ///
        /// # Safety
        /// As the function demands.
        #[allow(clippy::too_many_arguments)]
        pub unsafe fn $name($($arg: $type),*) -> $result {
            static AT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
            MADE[Call::$name as usize].fetch_add(1, Ordering::Relaxed);
            ALL.fetch_add(1, Ordering::Relaxed);
            let mut at = AT.load(Ordering::Relaxed);
            if at.is_null() {
                // SAFETY: the bytes end with the only zero.
                at = find(unsafe {
                    CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes())
                });
                AT.store(at, Ordering::Relaxed);
            }
            // SAFETY: the C library's function of this name has this type; the rest is the
            // caller's.
            unsafe {
                core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> $result>(at)(
                    $($arg),*
                )
            }
        }
        )*
    };
}

next! {
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    listen(fd: c_int, backlog: c_int) -> c_int;
    connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    shutdown(fd: c_int, how: c_int) -> c_int;
    getifaddrs(list: *mut *mut libc::ifaddrs) -> c_int;
    freeifaddrs(list: *mut libc::ifaddrs) -> ();
    read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t;
    readv(fd: c_int, to: *const iovec, count: c_int) -> ssize_t;
    recv(fd: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    recvfrom(
        fd: c_int, to: *mut c_void, len: size_t, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t
    ) -> ssize_t;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    recvmmsg(
        fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec
    ) -> c_int;
    write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t;
    writev(fd: c_int, from: *const iovec, count: c_int) -> ssize_t;
    send(fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    sendto(
        fd: c_int, from: *const c_void, len: size_t, flags: c_int, to: *const sockaddr, to_len: socklen_t
    ) -> ssize_t;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    sendfile(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    splice(
        input: c_int, in_offset: *mut off_t, out: c_int, out_offset: *mut off_t, len: size_t, flags: c_uint
    ) -> ssize_t;
    close(fd: c_int) -> c_int;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    dup(fd: c_int) -> c_int;
    dup2(fd: c_int, to: c_int) -> c_int;
    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
    fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    ioctl(fd: c_int, request: libc::c_ulong, argument: usize) -> c_int;
    poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int;
    ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    select(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval
    ) -> c_int;
    pselect(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *const timespec, mask: *const sigset_t
    ) -> c_int;
    epoll_create1(flags: c_int) -> c_int;
    epoll_ctl(set: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_pwait(
        set: c_int, events: *mut epoll_event, count: c_int, timeout_ms: c_int, mask: *const sigset_t
    ) -> c_int;
    pthread_create(
        thread: *mut libc::pthread_t, attributes: *const libc::pthread_attr_t,
        body: extern "C" fn(*mut c_void) -> *mut c_void, argument: *mut c_void
    ) -> c_int;
    pthread_sigmask(how: c_int, new: *const sigset_t, old: *mut sigset_t) -> c_int;
    pthread_cancel(thread: libc::pthread_t) -> c_int;
    pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int;
    fork() -> pid_t;
    _exit(status: c_int) -> c_int;
    kill(pid: pid_t, signal: c_int) -> c_int;
    raise(signal: c_int) -> c_int;
    sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
    setrlimit(resource: c_int, limit: *const libc::rlimit) -> c_int;
    prlimit(
        pid: pid_t, resource: c_int, new: *const libc::rlimit, old: *mut libc::rlimit
    ) -> c_int;
    prctl(
        option: c_int, second: libc::c_ulong, third: libc::c_ulong, fourth: libc::c_ulong, fifth: libc::c_ulong
    ) -> c_int;
    seccomp_load(filters: *const c_void) -> c_int;
    setuid(id: libc::uid_t) -> c_int;
    setgid(id: libc::gid_t) -> c_int;
    seteuid(id: libc::uid_t) -> c_int;
    setegid(id: libc::gid_t) -> c_int;
    setreuid(real: libc::uid_t, effective: libc::uid_t) -> c_int;
    setregid(real: libc::gid_t, effective: libc::gid_t) -> c_int;
    setresuid(real: libc::uid_t, effective: libc::uid_t, saved: libc::uid_t) -> c_int;
    setresgid(real: libc::gid_t, effective: libc::gid_t, saved: libc::gid_t) -> c_int;
    setgroups(count: size_t, groups: *const libc::gid_t) -> c_int;
    open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    openat(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    openat64(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    __open_2(path: *const c_char, flags: c_int) -> c_int;
    __open64_2(path: *const c_char, flags: c_int) -> c_int;
    __openat_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int;
    __openat64_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int;
    creat(path: *const c_char, mode: mode_t) -> c_int;
    creat64(path: *const c_char, mode: mode_t) -> c_int;
    pipe(ends: *mut c_int) -> c_int;
    pipe2(ends: *mut c_int, flags: c_int) -> c_int;
    socketpair(domain: c_int, kind: c_int, protocol: c_int, ends: *mut c_int) -> c_int;
    eventfd(count: c_uint, flags: c_int) -> c_int;
    timerfd_create(clock: c_int, flags: c_int) -> c_int;
    signalfd(fd: c_int, mask: *const sigset_t, flags: c_int) -> c_int;
    inotify_init() -> c_int;
    inotify_init1(flags: c_int) -> c_int;
    memfd_create(name: *const c_char, flags: c_uint) -> c_int;
    pidfd_open(pid: pid_t, flags: c_uint) -> c_int;
    shm_open(name: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    posix_openpt(flags: c_int) -> c_int;
    mkstemp(template: *mut c_char) -> c_int;
    mkstemp64(template: *mut c_char) -> c_int;
    mkostemp(template: *mut c_char, flags: c_int) -> c_int;
    mkostemp64(template: *mut c_char, flags: c_int) -> c_int;
    fopen(path: *const c_char, mode: *const c_char) -> *mut c_void;
    fopen64(path: *const c_char, mode: *const c_char) -> *mut c_void;
    tmpfile() -> *mut c_void;
    tmpfile64() -> *mut c_void;
    opendir(path: *const c_char) -> *mut c_void;
    fclose(stream: *mut c_void) -> c_int;
    pclose(stream: *mut c_void) -> c_int;
    closedir(stream: *mut c_void) -> c_int;
    freopen(path: *const c_char, mode: *const c_char, stream: *mut c_void) -> *mut c_void;
    freopen64(path: *const c_char, mode: *const c_char, stream: *mut c_void) -> *mut c_void;
    eventfd_write(fd: c_int, value: u64) -> c_int;
    timerfd_settime(
        fd: c_int, flags: c_int, new: *const libc::itimerspec, old: *mut libc::itimerspec
    ) -> c_int;
    execve(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    execv(path: *const c_char, arguments: *const *const c_char) -> c_int;
    execvp(file: *const c_char, arguments: *const *const c_char) -> c_int;
    execvpe(file: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    fexecve(fd: c_int, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    posix_spawn(
        pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: *const *const c_char, environment: *const *const c_char
    ) -> c_int;
    posix_spawnp(
        pid: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: *const *const c_char, environment: *const *const c_char
    ) -> c_int;
    popen(command: *const c_char, kind: *const c_char) -> *mut c_void;
    system(command: *const c_char) -> c_int;
    fstat(fd: c_int, to: *mut libc::stat) -> c_int;
    fstat64(fd: c_int, to: *mut libc::stat) -> c_int;
}

/// Closes a descriptor where the lock may be held: the C library's `close` is a cancellation point.
pub fn close_held(fd: c_int) {
    MADE[Call::close as usize].fetch_add(1, Ordering::Relaxed);
    ALL.fetch_add(1, Ordering::Relaxed);
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}

/// How often each was called. A count costs little compared with a system call.
static MADE: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];
/// The sum of all counts.
pub static ALL: AtomicU64 = AtomicU64::new(0);
/// The library's own system calls, by which threads wake each other and wait.
static OWN: AtomicU64 = AtomicU64::new(0);

/// Counts a system call of the library's own.
pub fn own_call() {
    OWN.fetch_add(1, Ordering::Relaxed);
}

/// Counts a call that the program makes by an instruction of its own.
pub fn made_by_program() {
    ALL.fetch_add(1, Ordering::Relaxed);
}

/// One more than the calls before the program's first connection on IX; 0: it had none yet.
static FIRST: AtomicU64 = AtomicU64::new(0);

/// The program has a connection on IX.
pub fn has_connection() {
    if FIRST.load(Ordering::Relaxed) == 0 {
        FIRST.store(calls() + 1, Ordering::Relaxed);
    }
}

/// How many calls have gone on to Linux.
pub fn calls() -> u64 {
    ALL.load(Ordering::Relaxed)
}

/// The counts as text, the most frequent calls by name.
pub fn calls_made() -> String {
    const NAMED: usize = 12;
    let counts = NAMES.iter().zip(&MADE).map(|(name, made)| (made.load(Ordering::Relaxed), *name));
    let mut counts: Vec<_> = counts.filter(|(count, _)| *count > 0).collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let all = calls();
    let since = match FIRST.load(Ordering::Relaxed) {
        0 => 0,
        first => all + 1 - first,
    };
    let most = counts.iter().take(NAMED).map(|(count, name)| format!("{name} {count}"));
    let most = most.collect::<Vec<_>>().join(", ");
    let own = OWN.load(Ordering::Relaxed);
    format!("{since} since its first connection, {all} in all ({most}), {own} of the library's own")
}

/// The calling thread's errno.
pub fn errno() -> i32 {
    // SAFETY: the C library returns a valid address.
    unsafe { *libc::__errno_location() }
}

/// Whether a call that does not wait has failed only because nothing was there, or because a signal
/// came.
pub fn found_nothing(errno: i32) -> bool {
    matches!(errno, libc::EAGAIN | libc::EINTR)
}

/// Sets the calling thread's errno.
pub fn set_errno(errno: i32) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Gives pages of the C library's heap back to Linux in which nothing is. The more free blocks
/// there are, the longer it takes; only threads that allocate wait meanwhile.
#[cold]
pub fn give_heap_back() {
    // SAFETY: no pointers; of the heap only free blocks are touched.
    unsafe { libc::malloc_trim(0) };
}
