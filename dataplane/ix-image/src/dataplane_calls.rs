//! The system calls of a dataplane in a process of its own: what it needs once it stands. Another
//! one ends it (SIGSYS), because only foreign code makes it.
use crate::seccomp::{ARCH, ARCH_X86_64, NUMBER, answer, argument, fails, install, jump, load};
use std::io;

/// To wait, and to take turns with the program.
const WAITING: [i64; 12] = [
    libc::SYS_ppoll,
    libc::SYS_poll,
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setattr,
    libc::SYS_sched_getattr,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_membarrier,
];

/// Packets, bells, and messages of the broker with the descriptors that they bring.
const DESCRIPTORS: [i64; 27] = [
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    // The C library's fstat(3).
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_eventfd2,
    libc::SYS_timerfd_settime,
    libc::SYS_epoll_ctl,
    libc::SYS_shutdown,
    // A device that comes back is attached again.
    libc::SYS_ioctl,
    libc::SYS_bind,
    libc::SYS_getsockopt,
];

/// Memory, threads, and the process's own end.
const PROCESS: [i64; 27] = [
    libc::SYS_setsockopt,
    libc::SYS_munmap,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_mlock,
    libc::SYS_munlock,
    libc::SYS_brk,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_tgkill,
    libc::SYS_getrandom,
    libc::SYS_getrlimit,
    libc::SYS_prlimit64,
    libc::SYS_getrusage,
    libc::SYS_getcpu,
    libc::SYS_sysinfo,
    libc::SYS_capget,
    libc::SYS_capset,
];

/// Memory of the dataplane never becomes code.
const MAPPING: [i64; 2] = [libc::SYS_mmap, libc::SYS_mprotect];
/// The argument of both with the rights.
const RIGHTS: u32 = 2;

/// Threads are started, processes are not.
const THREAD: u32 = libc::CLONE_THREAD as u32;

fn program() -> Vec<libc::sock_filter> {
    let allow = answer(libc::SECCOMP_RET_ALLOW);
    let end = answer(libc::SECCOMP_RET_KILL_PROCESS);
    let mut program = vec![
        load(ARCH),
        jump(libc::BPF_JEQ, ARCH_X86_64, 1, 0),
        end,
        // Numbers of the x32 interface are none of the following.
        load(NUMBER),
    ];
    for number in WAITING.iter().chain(&DESCRIPTORS).chain(&PROCESS) {
        program.extend([jump(libc::BPF_JEQ, *number as u32, 0, 1), allow]);
    }
    // A check of arguments ends the filter: what was loaded is no longer the number.
    for number in MAPPING {
        program.extend([
            jump(libc::BPF_JEQ, number as u32, 0, 4),
            load(argument(RIGHTS)),
            jump(libc::BPF_JSET, libc::PROT_EXEC as u32, 0, 1),
            end,
            allow,
        ]);
    }
    program.extend([
        jump(libc::BPF_JEQ, libc::SYS_clone as u32, 0, 4),
        load(argument(0)),
        jump(libc::BPF_JSET, THREAD, 0, 1),
        allow,
        end,
        // Its flags cannot be checked here; the C library has another way.
        jump(libc::BPF_JEQ, libc::SYS_clone3 as u32, 0, 1),
        fails(libc::ENOSYS),
        // Names of threads and of memory are for people only.
        jump(libc::BPF_JEQ, libc::SYS_prctl as u32, 0, 1),
        fails(libc::EPERM),
        end,
    ]);
    program
}

/// The calling thread, which is the only one, and all that it starts make no other system calls
/// from now on, and no program that is executed brings rights.
pub fn confine() -> io::Result<()> {
    // SAFETY: no pointers.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // A mitigation that older kernels switch on with a filter costs the data path time. It is for
    // processes that run foreign code, and this one runs none.
    install(program(), libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW)
}
