//! The Linux system calls that an application behind the wall may make.
//!
//! This is an allow-list: other calls are refused. The kernel carries out calls with the
//! application's rights, so pointers into the dataplane's memory fault there. What remains to be
//! checked is what the kernel does *to* a process (its mappings, signals, threads), and the
//! descriptors of the dataplane. This table has no other logic, so it is tested without a wall.

/// Verdict about a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The kernel carries it out unchanged.
    Forward,
    /// `EPERM`, and counted.
    Refuse,
    /// `EBADF`: its argument is a descriptor of the dataplane. Counted, too.
    BadDescriptor,
    /// `ENOSYS`: callers have another way.
    Absent,
    /// The dataplane carries it out, or checks more than numbers.
    Look(Kind),
}

/// Calls that need a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Changes mappings.
    Memory,
    /// `rt_sigaction`.
    SigAction,
    /// `rt_sigprocmask`.
    SigMask,
    /// `sigaltstack`.
    SigStack,
    /// `rt_sigreturn`.
    SigReturn,
    /// `clone`.
    Clone,
    /// `fork` and `vfork`.
    Fork,
    /// `exit`.
    Exit,
    /// `exit_group`.
    ExitGroup,
    /// `arch_prctl`.
    ArchPrctl,
    /// `setrlimit` and `prlimit64`.
    Limit,
    /// `set_tid_address`.
    TidAddress,
    /// `sendmsg`.
    SendMessage,
    /// `sendmmsg`.
    SendMessages,
    /// A signal to the process or thread of argument 0.
    Signal,
    /// A signal to the thread of argument 1.
    ThreadSignal,
    /// Sets the owner of a descriptor, which gets its signals: argument 2.
    Owner,
}

/// Decides. Descriptors from `fd_base` on are the dataplane's.
pub fn verdict(number: u64, args: &[u64; 6], fd_base: i32) -> Verdict {
    let Ok(number) = i64::try_from(number) else { return Verdict::Refuse };
    if let Some(verdict) = special(number, args, fd_base) {
        return verdict;
    }
    match descriptors(number) {
        None => Verdict::Refuse,
        Some(which) if which.iter().any(|&i| args[i] as i32 >= fd_base) => Verdict::BadDescriptor,
        Some(_) => look(number).map_or(Verdict::Forward, Verdict::Look),
    }
}

/// Calls whose numbers decide.
fn special(number: i64, args: &[u64; 6], fd_base: i32) -> Option<Verdict> {
    let allow = |good: bool| Some(if good { Verdict::Forward } else { Verdict::Refuse });
    match number {
        // The kernel would write into memory, or jump, on its own.
        libc::SYS_rseq | libc::SYS_set_robust_list | libc::SYS_clone3 => Some(Verdict::Absent),
        libc::SYS_prctl => allow(matches!(
            args[0] as i32,
            libc::PR_SET_NAME
                | libc::PR_GET_NAME
                | libc::PR_GET_DUMPABLE
                | libc::PR_GET_NO_NEW_PRIVS
                | libc::PR_GET_TIMERSLACK
                | libc::PR_SET_TIMERSLACK
                | libc::PR_GET_PDEATHSIG
                | libc::PR_CAPBSET_READ
                | libc::PR_SET_VMA
        )),
        // Only queries.
        libc::SYS_personality => allow(args[0] as u32 == u32::MAX),
        libc::SYS_shmat => allow(args[1] == 0 && args[2] as i32 & libc::SHM_EXEC == 0),
        // A range that contains the dataplane's descriptors would close them, and a new table would
        // contain copies of them.
        libc::SYS_close_range if args[2] as u32 & libc::CLOSE_RANGE_UNSHARE != 0 => {
            Some(Verdict::Refuse)
        }
        libc::SYS_close_range => match (args[0] as u32, args[1] as u32) {
            (_, last) if last < fd_base as u32 => Some(Verdict::Forward),
            _ => Some(Verdict::BadDescriptor),
        },
        // Numbers in memory; the plain calls are checked.
        libc::SYS_fcntl if args[1] as i32 == F_SETOWN_EX => Some(Verdict::Refuse),
        libc::SYS_ioctl if [FIOSETOWN, SIOCSPGRP].contains(&(args[1] as u32)) => {
            Some(Verdict::Refuse)
        }
        // The program must not type on the terminal of the user who started it.
        libc::SYS_ioctl if TERMINAL_INPUT.contains(&(args[1] as u32)) => Some(Verdict::Refuse),
        libc::SYS_fcntl if args[1] as i32 == libc::F_SETOWN && (args[0] as i32) < fd_base => {
            Some(Verdict::Look(Kind::Owner))
        }
        _ => None,
    }
}

const F_SETOWN_EX: i32 = 15;
const FIOSETOWN: u32 = 0x8901;
const SIOCSPGRP: u32 = 0x8902;
/// Requests that put input into a terminal: `TIOCSTI`, and `TIOCLINUX`, which pastes.
pub const TERMINAL_INPUT: [u32; 2] = [0x5412, 0x541c];

fn look(number: i64) -> Option<Kind> {
    Some(match number {
        libc::SYS_mmap
        | libc::SYS_munmap
        | libc::SYS_mprotect
        | libc::SYS_mremap
        | libc::SYS_madvise
        | libc::SYS_brk
        | libc::SYS_shmdt => Kind::Memory,
        libc::SYS_rt_sigaction => Kind::SigAction,
        libc::SYS_rt_sigprocmask => Kind::SigMask,
        libc::SYS_sigaltstack => Kind::SigStack,
        libc::SYS_rt_sigreturn => Kind::SigReturn,
        libc::SYS_clone => Kind::Clone,
        libc::SYS_fork | libc::SYS_vfork => Kind::Fork,
        libc::SYS_exit => Kind::Exit,
        libc::SYS_exit_group => Kind::ExitGroup,
        libc::SYS_arch_prctl => Kind::ArchPrctl,
        libc::SYS_setrlimit | libc::SYS_prlimit64 => Kind::Limit,
        libc::SYS_set_tid_address => Kind::TidAddress,
        libc::SYS_sendmsg => Kind::SendMessage,
        libc::SYS_sendmmsg => Kind::SendMessages,
        libc::SYS_kill | libc::SYS_tkill | libc::SYS_rt_sigqueueinfo => Kind::Signal,
        libc::SYS_tgkill | libc::SYS_rt_tgsigqueueinfo => Kind::ThreadSignal,
        _ => return None,
    })
}

#[allow(non_upper_case_globals)]
/// The arguments of an allowed call that are descriptors; `None`: the call is not allowed.
fn descriptors(number: i64) -> Option<&'static [usize]> {
    use libc::*;
    Some(match number {
        SYS_read
        | SYS_write
        | SYS_readv
        | SYS_writev
        | SYS_pread64
        | SYS_pwrite64
        | SYS_preadv
        | SYS_pwritev
        | SYS_preadv2
        | SYS_pwritev2
        | SYS_close
        | SYS_fstat
        | SYS_lseek
        | SYS_ioctl
        | SYS_flock
        | SYS_ftruncate
        | SYS_getdents64
        | SYS_fchdir
        | SYS_fchmod
        | SYS_fchown
        | SYS_fsync
        | SYS_fdatasync
        | SYS_fadvise64
        | SYS_fallocate
        | SYS_sync_file_range
        | SYS_syncfs
        | SYS_readahead
        | SYS_fstatfs
        | SYS_vmsplice
        | SYS_connect
        | SYS_accept
        | SYS_accept4
        | SYS_bind
        | SYS_listen
        | SYS_getsockname
        | SYS_getpeername
        | SYS_setsockopt
        | SYS_getsockopt
        | SYS_shutdown
        | SYS_sendto
        | SYS_recvfrom
        | SYS_recvmsg
        | SYS_recvmmsg
        | SYS_sendmsg
        | SYS_sendmmsg
        | SYS_openat
        | SYS_openat2
        | SYS_newfstatat
        | SYS_statx
        | SYS_unlinkat
        | SYS_mkdirat
        | SYS_readlinkat
        | SYS_fchmodat
        | SYS_fchmodat2
        | SYS_fchownat
        | SYS_futimesat
        | SYS_utimensat
        | SYS_faccessat
        | SYS_faccessat2
        | SYS_mknodat
        | SYS_dup
        | SYS_fcntl
        | SYS_epoll_wait
        | SYS_epoll_pwait
        | SYS_epoll_pwait2
        | SYS_signalfd4
        | SYS_signalfd
        | SYS_timerfd_settime
        | SYS_timerfd_gettime
        | SYS_inotify_add_watch
        | SYS_inotify_rm_watch
        | SYS_execveat
        | SYS_fgetxattr
        | SYS_fsetxattr
        | SYS_flistxattr => &[0],
        SYS_dup2 | SYS_dup3 | SYS_sendfile | SYS_tee => &[0, 1],
        SYS_splice | SYS_copy_file_range | SYS_renameat | SYS_renameat2 | SYS_linkat
        | SYS_epoll_ctl => &[0, 2],
        SYS_symlinkat => &[1],
        SYS_waitid => &[1],
        SYS_mmap => &[4],
        SYS_munmap | SYS_mprotect | SYS_mremap | SYS_madvise | SYS_brk | SYS_shmdt | SYS_msync
        | SYS_mincore | SYS_mlock | SYS_mlock2 | SYS_munlock | SYS_mlockall | SYS_munlockall
        | SYS_membarrier => &[],
        SYS_rt_sigaction
        | SYS_rt_sigprocmask
        | SYS_rt_sigreturn
        | SYS_sigaltstack
        | SYS_rt_sigpending
        | SYS_rt_sigtimedwait
        | SYS_rt_sigsuspend
        | SYS_pause
        | SYS_kill
        | SYS_tkill
        | SYS_tgkill
        | SYS_rt_sigqueueinfo
        | SYS_rt_tgsigqueueinfo => &[],
        SYS_clone
        | SYS_fork
        | SYS_vfork
        | SYS_execve
        | SYS_exit
        | SYS_exit_group
        | SYS_wait4
        | SYS_set_tid_address
        | SYS_futex
        | SYS_futex_waitv
        | SYS_arch_prctl
        | SYS_sched_yield
        | SYS_sched_setaffinity
        | SYS_sched_getaffinity
        | SYS_sched_setparam
        | SYS_sched_getparam
        | SYS_sched_setscheduler
        | SYS_sched_getscheduler
        | SYS_sched_get_priority_max
        | SYS_sched_get_priority_min
        | SYS_sched_rr_get_interval
        | SYS_getpriority
        | SYS_setpriority
        | SYS_getcpu => &[],
        SYS_open | SYS_creat | SYS_access | SYS_stat | SYS_lstat | SYS_unlink | SYS_mkdir
        | SYS_rmdir | SYS_rename | SYS_link | SYS_symlink | SYS_readlink | SYS_chmod
        | SYS_chown | SYS_lchown | SYS_chdir | SYS_getcwd | SYS_truncate | SYS_utime
        | SYS_utimes | SYS_statfs | SYS_mknod | SYS_getxattr | SYS_lgetxattr | SYS_listxattr
        | SYS_umask | SYS_sync => &[],
        SYS_poll | SYS_ppoll | SYS_select | SYS_pselect6 | SYS_epoll_create | SYS_epoll_create1
        | SYS_eventfd | SYS_eventfd2 | SYS_timerfd_create | SYS_inotify_init
        | SYS_inotify_init1 | SYS_pipe | SYS_pipe2 | SYS_memfd_create | SYS_socket
        | SYS_socketpair => &[],
        SYS_getpid | SYS_gettid | SYS_getppid | SYS_getuid | SYS_geteuid | SYS_getgid
        | SYS_getegid | SYS_getresuid | SYS_getresgid | SYS_getgroups | SYS_getpgid
        | SYS_getpgrp | SYS_getsid | SYS_setpgid | SYS_setsid | SYS_setuid | SYS_setgid
        | SYS_setreuid | SYS_setregid | SYS_setresuid | SYS_setresgid | SYS_setfsuid
        | SYS_setfsgid | SYS_setgroups | SYS_capget | SYS_uname | SYS_sysinfo | SYS_times
        | SYS_getrusage | SYS_getrlimit | SYS_setrlimit | SYS_prlimit64 | SYS_getrandom => &[],
        SYS_time | SYS_gettimeofday | SYS_clock_gettime | SYS_clock_getres
        | SYS_clock_nanosleep | SYS_nanosleep | SYS_getitimer | SYS_setitimer | SYS_alarm
        | SYS_timer_create | SYS_timer_settime | SYS_timer_gettime | SYS_timer_getoverrun
        | SYS_timer_delete => &[],
        SYS_shmget | SYS_shmctl | SYS_semget | SYS_semop | SYS_semtimedop | SYS_semctl
        | SYS_msgget | SYS_msgsnd | SYS_msgrcv | SYS_msgctl => &[],
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BASE: i32 = 960;

    fn of(number: i64, args: [u64; 6]) -> Verdict {
        verdict(number as u64, &args, BASE)
    }

    #[test]
    fn what_breaks_walls_is_refused() {
        for number in [
            libc::SYS_ptrace,
            libc::SYS_process_vm_readv,
            libc::SYS_process_vm_writev,
            libc::SYS_pkey_mprotect,
            libc::SYS_pkey_alloc,
            libc::SYS_pkey_free,
            libc::SYS_io_uring_setup,
            libc::SYS_io_uring_enter,
            libc::SYS_userfaultfd,
            libc::SYS_bpf,
            libc::SYS_perf_event_open,
            libc::SYS_modify_ldt,
            libc::SYS_seccomp,
            libc::SYS_process_madvise,
            libc::SYS_remap_file_pages,
            libc::SYS_pidfd_getfd,
            libc::SYS_unshare,
            libc::SYS_setns,
            libc::SYS_mount,
            libc::SYS_kcmp,
            libc::SYS_mseal,
        ] {
            assert_eq!(of(number, [0; 6]), Verdict::Refuse, "{number}");
        }
        // Syscall User Dispatch, dumpable, seccomp, no_new_privs: none of them may be changed.
        for option in [59, libc::PR_SET_DUMPABLE, libc::PR_SET_SECCOMP, libc::PR_SET_MM] {
            assert_eq!(of(libc::SYS_prctl, [option as u64, 0, 0, 0, 0, 0]), Verdict::Refuse);
        }
        assert_eq!(of(libc::SYS_personality, [0x0040_0000, 0, 0, 0, 0, 0]), Verdict::Refuse);
        assert_eq!(of(libc::SYS_rseq, [0; 6]), Verdict::Absent);
    }

    #[test]
    fn no_table_of_descriptors_of_its_own_and_no_input_for_terminals() {
        const UNSHARE: u64 = libc::CLOSE_RANGE_UNSHARE as u64;
        assert_eq!(of(libc::SYS_close_range, [3, 100, UNSHARE, 0, 0, 0]), Verdict::Refuse);
        for request in TERMINAL_INPUT {
            let long = u64::from(request) | 1 << 40;
            assert_eq!(of(libc::SYS_ioctl, [0, long, 0, 0, 0, 0]), Verdict::Refuse);
        }
        let address = of(libc::SYS_set_tid_address, [7; 6]);
        assert_eq!(address, Verdict::Look(Kind::TidAddress));
    }

    #[test]
    fn signals_have_no_way_around_the_look_at_whom_they_are_for() {
        let with = |at: usize, value: u64| {
            let mut args = [3; 6];
            args[at] = value;
            args
        };
        for number in [libc::SYS_kill, libc::SYS_tkill, libc::SYS_rt_sigqueueinfo] {
            assert_eq!(of(number, [7; 6]), Verdict::Look(Kind::Signal), "{number}");
        }
        for number in [libc::SYS_tgkill, libc::SYS_rt_tgsigqueueinfo] {
            assert_eq!(of(number, [7; 6]), Verdict::Look(Kind::ThreadSignal), "{number}");
        }
        let own = with(1, libc::F_SETOWN as u64);
        assert_eq!(of(libc::SYS_fcntl, own), Verdict::Look(Kind::Owner));
        assert_eq!(of(libc::SYS_fcntl, with(1, F_SETOWN_EX as u64)), Verdict::Refuse);
        for request in [FIOSETOWN, SIOCSPGRP] {
            assert_eq!(of(libc::SYS_ioctl, with(1, request.into())), Verdict::Refuse);
            // The kernel reads 32 bits only.
            let long = u64::from(request) | 1 << 40;
            assert_eq!(of(libc::SYS_ioctl, with(1, long)), Verdict::Refuse);
        }
        for number in [libc::SYS_pidfd_send_signal, libc::SYS_pidfd_open] {
            assert_eq!(of(number, [3; 6]), Verdict::Refuse, "{number}");
        }
    }

    #[test]
    fn descriptors_of_the_dataplane_cannot_be_named() {
        let fd = 960;
        for (number, at) in [
            (libc::SYS_read, 0),
            (libc::SYS_close, 0),
            (libc::SYS_dup, 0),
            (libc::SYS_dup2, 1),
            (libc::SYS_dup3, 0),
            (libc::SYS_fcntl, 0),
            (libc::SYS_mmap, 4),
            (libc::SYS_epoll_ctl, 2),
            (libc::SYS_sendfile, 1),
            (libc::SYS_splice, 2),
            (libc::SYS_ioctl, 0),
            (libc::SYS_openat, 0),
            (libc::SYS_sendmsg, 0),
        ] {
            let mut args = [3; 6];
            args[at] = fd;
            assert_eq!(of(number, args), Verdict::BadDescriptor, "{number}");
            // The kernel reads 32 bits only.
            args[at] = fd | 0xdead_0000_0000;
            assert_eq!(of(number, args), Verdict::BadDescriptor, "{number}");
            args[at] = libc::AT_FDCWD as u64;
            assert_ne!(of(number, args), Verdict::BadDescriptor, "{number}");
        }
        assert_eq!(of(libc::SYS_close_range, [3, u64::MAX, 0, 0, 0, 0]), Verdict::BadDescriptor);
        assert_eq!(of(libc::SYS_close_range, [3, 100, 0, 0, 0, 0]), Verdict::Forward);
    }

    proptest! {
        #[test]
        fn numbers_beyond_the_table_are_refused(number in 500u64.., args in any::<[u64; 6]>()) {
            prop_assert_eq!(verdict(number, &args, BASE), Verdict::Refuse);
        }

        /// A forwarded call with a large number in the place of a descriptor takes no descriptor
        /// there.
        #[test]
        fn large_descriptors_never_reach_a_call_that_takes_them(
            number in 0u64..470,
            fd in BASE..i32::MAX,
        ) {
            const FIRST_IS_FD: [i64; 8] = [
                libc::SYS_read, libc::SYS_write, libc::SYS_close, libc::SYS_ioctl,
                libc::SYS_dup, libc::SYS_fcntl, libc::SYS_connect, libc::SYS_recvmsg,
            ];
            let args = [fd as u64; 6];
            if FIRST_IS_FD.contains(&(number as i64)) {
                prop_assert_eq!(verdict(number, &args, BASE), Verdict::BadDescriptor);
            }
        }
    }
}
