//! Attacks on the process of a dataplane by all that Linux lets one process do to another. Each is
//! made as all that a program can be; where nothing stops it, it succeeds and does no harm.
use crate::aim::{Aim, Attack, Whom};
use crate::call;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::Read;

/// All attacks: name, and what is tried.
pub const ATTACKS: &[(&str, Attack)] = &[
    ("/proc/PID/mem, to read", |aim| open(aim, "mem", libc::O_RDONLY)),
    ("/proc/PID/mem, to write", |aim| open(aim, "mem", libc::O_RDWR)),
    ("/proc/PID/task/TID/mem", |aim| {
        open(aim, &format!("task/{}/mem", aim.dataplane), libc::O_RDWR)
    }),
    ("/proc/PID/maps", |aim| read(aim, "maps")),
    ("/proc/PID/environ", |aim| read(aim, "environ")),
    ("/proc/PID/auxv", |aim| read(aim, "auxv")),
    ("/proc/PID/syscall", |aim| read(aim, "syscall")),
    ("/proc/PID/pagemap", |aim| open(aim, "pagemap", libc::O_RDONLY)),
    ("/proc/PID/exe", |aim| read(aim, "exe")),
    ("/proc/PID/fd/0", |aim| open(aim, "fd/0", libc::O_RDONLY)),
    ("/proc/PID/root", |aim| list(aim, "root")),
    ("/proc/PID/cwd", |aim| list(aim, "cwd")),
    ("/proc/PID/map_files", |aim| list(aim, "map_files")),
    ("ptrace: attach", |aim| {
        trace(libc::PTRACE_ATTACH, aim.dataplane)?;
        // The stop that the attachment brings about.
        call(libc::SYS_wait4, [aim.dataplane, 0, libc::__WALL as u64, 0, 0, 0])?;
        trace(libc::PTRACE_DETACH, aim.dataplane)
    }),
    ("ptrace: seize", |aim| trace(libc::PTRACE_SEIZE, aim.dataplane)),
    ("process_vm_readv", |aim| copy(aim, libc::SYS_process_vm_readv, &mut 0)),
    ("process_vm_writev", |aim| {
        let mut word = 0;
        if aim.whom == Whom::Root {
            copy(aim, libc::SYS_process_vm_readv, &mut word)?;
        }
        copy(aim, libc::SYS_process_vm_writev, &mut word)
    }),
    ("pidfd_getfd", |aim| call(libc::SYS_pidfd_getfd, [aim.pidfd()?, 0, 0, 0, 0, 0]).map(drop)),
    ("process_madvise", |aim| {
        let part = libc::iovec { iov_base: aim.mapped as *mut libc::c_void, iov_len: 4096 };
        let (part, advice) = (&raw const part as u64, libc::MADV_COLD as u64);
        call(libc::SYS_process_madvise, [aim.pidfd()?, part, 1, advice, 0, 0]).map(drop)
    }),
    ("kcmp", |aim| {
        const KCMP_VM: u64 = 1;
        let own = u64::from(std::process::id());
        call(libc::SYS_kcmp, [own, aim.dataplane, KCMP_VM, 0, 0, 0]).map(drop)
    }),
    ("perf_event_open: page faults", |aim| count(aim, 2)),
    ("perf_event_open: a clock", |aim| count(aim, 0)),
    ("kill: SIGKILL", |aim| kill(aim, libc::SIGKILL)),
    ("kill: SIGSTOP", |aim| kill(aim, libc::SIGSTOP)),
    ("pidfd_send_signal", |aim| {
        let signal = aim.harm(libc::SIGKILL as u64, 0);
        call(libc::SYS_pidfd_send_signal, [aim.pidfd()?, signal, 0, 0, 0, 0]).map(drop)
    }),
    ("setpriority", |aim| {
        let to = aim.harm(19, 0);
        call(libc::SYS_setpriority, [libc::PRIO_PROCESS as u64, aim.dataplane, to, 0, 0, 0])
            .map(drop)
    }),
    ("ioprio_set", |aim| {
        // The class idle, or the usual one.
        let to = aim.harm(3 << 13, 2 << 13 | 4);
        let whose = 1;
        call(libc::SYS_ioprio_set, [whose, aim.dataplane, to, 0, 0, 0]).map(drop)
    }),
    ("sched_setaffinity", |aim| {
        let mut set = [0u8; 128];
        let (bytes, at) = (set.len() as u64, set.as_mut_ptr() as u64);
        let n = call(libc::SYS_sched_getaffinity, [aim.dataplane, bytes, at, 0, 0, 0])?;
        call(libc::SYS_sched_setaffinity, [aim.dataplane, n, at, 0, 0, 0]).map(drop)
    }),
    ("sched_setscheduler", |aim| {
        let (priority, policy) = (0i32, aim.harm(libc::SCHED_IDLE as u64, 0));
        let priority = &raw const priority as u64;
        call(libc::SYS_sched_setscheduler, [aim.dataplane, policy, priority, 0, 0, 0]).map(drop)
    }),
    (LIMITS[0], |aim| {
        let mut limit = [0u64; 2];
        let (what, to) = (u64::from(libc::RLIMIT_NOFILE), limit.as_mut_ptr() as u64);
        call(libc::SYS_prlimit64, [aim.dataplane, what, 0, to, 0, 0]).map(drop)
    }),
    (LIMITS[1], |aim| {
        let seconds = aim.harm(1, 1 << 40);
        let limit = [seconds; 2];
        let (what, to) = (u64::from(libc::RLIMIT_CPU), limit.as_ptr() as u64);
        call(libc::SYS_prlimit64, [aim.dataplane, what, to, 0, 0, 0]).map(drop)
    }),
];

/// Attacks that in some virtual machines root has no right to make.
const LIMITS: [&str; 2] = ["prlimit", "prlimit: no more processor time"];

fn open(aim: &Aim, name: &str, flags: i32) -> Result<(), String> {
    let path = CString::new(aim.file(name)).map_err(|e| e.to_string())?;
    call(libc::SYS_open, [path.as_ptr() as u64, flags as u64, 0, 0, 0, 0]).map(drop)
}

fn read(aim: &Aim, name: &str) -> Result<(), String> {
    let mut byte = [0];
    let file = File::open(aim.file(name)).and_then(|mut file| file.read_exact(&mut byte));
    file.map_err(|e| e.to_string())
}

fn list(aim: &Aim, name: &str) -> Result<(), String> {
    let mut entries = fs::read_dir(aim.file(name)).map_err(|e| e.to_string())?;
    entries.next().ok_or("it is empty")?.map(drop).map_err(|e| e.to_string())
}

/// Asks to trace a process, in this way.
pub fn trace(request: libc::c_uint, pid: u64) -> Result<(), String> {
    call(libc::SYS_ptrace, [u64::from(request), pid, 0, 0, 0, 0]).map(drop)
}

/// Copies a word from or to a page that the dataplane has mapped.
fn copy(aim: &Aim, number: i64, word: &mut u64) -> Result<(), String> {
    let [local, remote] = [std::ptr::from_mut(word) as usize, aim.mapped]
        .map(|base| libc::iovec { iov_base: base as *mut libc::c_void, iov_len: size_of::<u64>() });
    let (local, remote) = (&raw const local as u64, &raw const remote as u64);
    call(number, [aim.dataplane, local, 1, remote, 1, 0]).map(drop)
}

/// Counts what software counts of the process, its part outside of the kernel.
fn count(aim: &Aim, what: u64) -> Result<(), String> {
    // Type and size; what; neither the kernel's part nor a hypervisor's.
    let mut event = [0u64; 16];
    (event[0], event[1], event[5]) = (1 | 128 << 32, what, 0b11 << 5);
    let (at, any, none) = (event.as_ptr() as u64, u64::MAX, u64::MAX);
    call(libc::SYS_perf_event_open, [at, aim.dataplane, any, none, 0, 0]).map(drop)
}

fn kill(aim: &Aim, signal: i32) -> Result<(), String> {
    call(libc::SYS_kill, [aim.dataplane, aim.harm(signal as u64, 0), 0, 0, 0, 0]).map(drop)
}
