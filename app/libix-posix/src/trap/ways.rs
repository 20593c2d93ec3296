//! What decides where a call goes, by its number.

/// What decides where a call of a rewritten site goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Way {
    /// It is Linux's.
    Linux = 0,
    /// The descriptor that is its first argument.
    Descriptor = 1,
    /// The same, if its fifth argument, a signal mask, is null; otherwise a trap.
    Unmasked = 2,
    /// [`is_for_library`](super::calls::is_for_library).
    Asks = 3,
    /// A trap: it needs the thread's whole state.
    Trap = 4,
}

/// The way of each call.
pub static WAYS: [Way; 512] = {
    let mut ways = [Way::Linux; 512];
    let mut number = 0;
    while number < ways.len() {
        ways[number] = way(number as i64);
        number += 1;
    }
    ways
};

/// The way of a call.
pub const fn way(number: i64) -> Way {
    match number {
        libc::SYS_read
        | libc::SYS_write
        | libc::SYS_readv
        | libc::SYS_writev
        | libc::SYS_ioctl
        | libc::SYS_sendto
        | libc::SYS_recvfrom
        | libc::SYS_connect
        | libc::SYS_accept
        | libc::SYS_accept4
        | libc::SYS_shutdown
        | libc::SYS_listen
        | libc::SYS_getsockname
        | libc::SYS_getpeername
        | libc::SYS_setsockopt
        | libc::SYS_getsockopt
        | libc::SYS_epoll_ctl
        | libc::SYS_epoll_wait
        | libc::SYS_recvmmsg
        | libc::SYS_sendmmsg
        | libc::SYS_fstat
        | libc::SYS_sendfile => Way::Descriptor,
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => Way::Unmasked,
        libc::SYS_newfstatat
        | libc::SYS_statx
        | libc::SYS_recvmsg
        | libc::SYS_sendmsg
        | libc::SYS_splice
        | libc::SYS_fcntl
        | libc::SYS_poll
        | libc::SYS_select
        | libc::SYS_setrlimit
        | libc::SYS_prlimit64
        | libc::SYS_socket
        | libc::SYS_bind
        | libc::SYS_close
        | libc::SYS_close_range
        | libc::SYS_dup
        | libc::SYS_dup2
        | libc::SYS_dup3
        | libc::SYS_epoll_create
        | libc::SYS_epoll_create1
        | libc::SYS_io_uring_setup
        | libc::SYS_io_uring_enter
        | libc::SYS_io_uring_register => Way::Asks,
        made if new_numbers(made) > 0 => Way::Asks,
        libc::SYS_ppoll
        | libc::SYS_pselect6
        | libc::SYS_rt_sigsuspend
        | libc::SYS_arch_prctl
        | libc::SYS_prctl
        | libc::SYS_seccomp
        | libc::SYS_brk
        | libc::SYS_sigaltstack
        | libc::SYS_munmap
        | libc::SYS_rt_sigaction
        | libc::SYS_rt_sigprocmask
        | libc::SYS_rt_sigreturn
        | libc::SYS_clone
        | libc::SYS_clone3
        | libc::SYS_fork
        | libc::SYS_vfork
        | libc::SYS_execve
        | libc::SYS_execveat
        | libc::SYS_exit
        | libc::SYS_exit_group
        | libc::SYS_setuid
        | libc::SYS_setgid
        | libc::SYS_setreuid
        | libc::SYS_setregid
        | libc::SYS_setgroups
        | libc::SYS_setresuid
        | libc::SYS_setresgid => Way::Trap,
        _ => Way::Linux,
    }
}

/// Number of descriptors that a call makes which always goes to Linux.
pub const fn new_numbers(call: i64) -> usize {
    match call {
        libc::SYS_pipe | libc::SYS_pipe2 | libc::SYS_socketpair => 2,
        libc::SYS_open
        | libc::SYS_openat
        | libc::SYS_openat2
        | libc::SYS_creat
        | libc::SYS_eventfd
        | libc::SYS_eventfd2
        | libc::SYS_timerfd_create
        | libc::SYS_signalfd
        | libc::SYS_signalfd4
        | libc::SYS_inotify_init
        | libc::SYS_inotify_init1
        | libc::SYS_memfd_create
        | libc::SYS_pidfd_open => 1,
        _ => 0,
    }
}
