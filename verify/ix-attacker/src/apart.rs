//! Attacks on a dataplane in a process of its own (`ix attack --domain process`), by all that
//! Linux lets one process do to another. The control is the same attack where there is no wall:
//! the dataplane is then in this process, so the attack is on the attacker's own parent.
use crate::{Targets, call};
use std::ffi::CString;

/// Makes an attack on the process of the dataplane.
pub type OnProcess = fn(i32) -> Result<String, String>;

/// Asks for the right to signal, and does nothing. (Linux lets everybody in a session send the
/// signal that only continues a process.)
const NO_SIGNAL: u64 = 0;

/// Name and attack. Each is made in a forked copy.
pub const ON_PROCESS: &[(&str, OnProcess)] = &[
    ("/proc/PID/mem, to read", |pid| open(pid, "mem", libc::O_RDONLY)),
    ("/proc/PID/mem, to write", |pid| open(pid, "mem", libc::O_RDWR)),
    ("/proc/PID/task/TID/mem", |pid| open(pid, &format!("task/{pid}/mem"), libc::O_RDWR)),
    ("/proc/PID/maps", |pid| open(pid, "maps", libc::O_RDONLY)),
    ("/proc/PID/environ", |pid| open(pid, "environ", libc::O_RDONLY)),
    ("/proc/PID/auxv", |pid| open(pid, "auxv", libc::O_RDONLY)),
    ("/proc/PID/exe", |pid| open(pid, "exe", libc::O_RDONLY)),
    ("/proc/PID/cwd", |pid| open(pid, "cwd", libc::O_RDONLY)),
    ("/proc/PID/root", |pid| open(pid, "root", libc::O_RDONLY)),
    ("/proc/PID/ns/net", |pid| open(pid, "ns/net", libc::O_RDONLY)),
    ("/proc/PID/fd, the list", |pid| list(pid, "fd")),
    ("/proc/PID/map_files, the list", |pid| list(pid, "map_files")),
    ("/proc/PID/fd/0", |pid| open(pid, "fd/0", libc::O_RDONLY)),
    ("/proc/PID/oom_score_adj, to be killed first", |pid| {
        std::fs::write(format!("/proc/{pid}/oom_score_adj"), "1000").map_err(|e| e.to_string())?;
        Ok("written".to_owned())
    }),
    ("ptrace: seize", |pid| {
        done(libc::SYS_ptrace, [u64::from(libc::PTRACE_SEIZE), pid as u64, 0, 0, 0, 0])
    }),
    ("ptrace: attach", trace),
    ("process_vm_readv", |pid| copy_memory(libc::SYS_process_vm_readv, pid)),
    ("process_vm_writev", |pid| copy_memory(libc::SYS_process_vm_writev, pid)),
    ("pidfd_getfd", |pid| {
        let handle = call(libc::SYS_pidfd_open, [pid as u64, 0, 0, 0, 0, 0])?;
        done(libc::SYS_pidfd_getfd, [handle, 0, 0, 0, 0, 0])
    }),
    ("process_madvise", |pid| {
        const COLD: u64 = libc::MADV_COLD as u64;
        let handle = call(libc::SYS_pidfd_open, [pid as u64, 0, 0, 0, 0, 0])?;
        let page = page_of_ours();
        done(libc::SYS_process_madvise, [handle, &raw const page as u64, 1, COLD, 0, 0])
    }),
    ("kcmp", |pid| {
        let own = u64::from(std::process::id());
        done(libc::SYS_kcmp, [own, pid as u64, 1, 0, 0, 0])
    }),
    ("perf_event_open", perf),
    ("move_pages", |pid| done(libc::SYS_move_pages, [pid as u64, 0, 0, 0, 0, 0])),
    ("a signal that stops it", |pid| {
        let stopped = done(libc::SYS_kill, [pid as u64, libc::SIGSTOP as u64, 0, 0, 0, 0]);
        let _ = call(libc::SYS_kill, [pid as u64, libc::SIGCONT as u64, 0, 0, 0, 0]);
        stopped
    }),
    ("any signal to its thread", |pid| {
        done(libc::SYS_tgkill, [pid as u64, pid as u64, NO_SIGNAL, 0, 0, 0])
    }),
    ("any signal by a descriptor", |pid| {
        let handle = call(libc::SYS_pidfd_open, [pid as u64, 0, 0, 0, 0, 0])?;
        done(libc::SYS_pidfd_send_signal, [handle, NO_SIGNAL, 0, 0, 0, 0])
    }),
    ("setpriority", |pid| {
        done(libc::SYS_setpriority, [libc::PRIO_PROCESS as u64, pid as u64, 1, 0, 0, 0])
    }),
    ("sched_setscheduler", |pid| {
        let priority = 0u32;
        let batch = libc::SCHED_BATCH as u64;
        done(libc::SYS_sched_setscheduler, [pid as u64, batch, &raw const priority as u64, 0, 0, 0])
    }),
    ("sched_setaffinity", |pid| {
        let all = [u64::MAX; 16];
        done(libc::SYS_sched_setaffinity, [pid as u64, 128, all.as_ptr() as u64, 0, 0, 0])
    }),
    ("ioprio_set", |pid| {
        const IDLE: u64 = 3 << 13;
        done(libc::SYS_ioprio_set, [1, pid as u64, IDLE, 0, 0, 0])
    }),
    ("prlimit: no more processor time", |pid| {
        let limit = [1u64 << 40, 1 << 40];
        let (what, to) = (libc::RLIMIT_CPU as u64, limit.as_ptr() as u64);
        done(libc::SYS_prlimit64, [pid as u64, what, to, 0, 0, 0])
    }),
    ("become its user", become_it),
];

/// The dataplane's process: where there is no wall, the program that makes the attacks.
pub fn process_of(t: &Targets, control: bool) -> i32 {
    match control {
        true => std::process::id() as i32,
        false => t.survivor,
    }
}

fn done(number: i64, args: [u64; 6]) -> Result<String, String> {
    call(number, args).map(|answer| format!("answered {answer}"))
}

fn open(pid: i32, file: &str, flags: i32) -> Result<String, String> {
    let path = CString::new(format!("/proc/{pid}/{file}")).map_err(|e| e.to_string())?;
    call(libc::SYS_open, [path.as_ptr() as u64, flags as u64, 0, 0, 0, 0])
        .map(|_| "opened".to_owned())
}

fn list(pid: i32, folder: &str) -> Result<String, String> {
    let names = std::fs::read_dir(format!("/proc/{pid}/{folder}")).map_err(|e| e.to_string())?;
    let names = names.collect::<Result<Vec<_>, _>>().map_err(|e| e.to_string())?;
    Ok(format!("{} names", names.len()))
}

/// A page of the calling process's own. The dataplane in another process may have none there: the
/// rights are checked before.
fn page_of_ours() -> libc::iovec {
    #[repr(align(4096))]
    struct Page([u8; 4096]);
    static PAGE: Page = Page([1; 4096]);
    libc::iovec { iov_base: PAGE.0.as_ptr().cast_mut().cast(), iov_len: PAGE.0.len() }
}

/// Traces the process for a moment.
fn trace(pid: i32) -> Result<String, String> {
    let attached =
        done(libc::SYS_ptrace, [u64::from(libc::PTRACE_ATTACH), pid as u64, 0, 0, 0, 0])?;
    // SAFETY: waits for the stop that the attachment brings about; without a place for its status.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::__WALL) };
    call(libc::SYS_ptrace, [u64::from(libc::PTRACE_DETACH), pid as u64, 0, 0, 0, 0])?;
    Ok(attached)
}

/// Copies a word of ours from or to where the other process has the same program.
fn copy_memory(number: i64, pid: i32) -> Result<String, String> {
    static WORD: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let word = libc::iovec { iov_base: WORD.as_ptr().cast(), iov_len: 8 };
    let word = &raw const word as u64;
    done(number, [pid as u64, word, 1, word, 1, 0])
}

/// Counts a software clock of the process.
fn perf(pid: i32) -> Result<String, String> {
    // Of type 1, size 64, config 0; neither the kernel's part nor a hypervisor's.
    let mut attributes = [0u64; 16];
    (attributes[0], attributes[5]) = (1 | 64 << 32, 0b11 << 5);
    let at = attributes.as_ptr() as u64;
    done(libc::SYS_perf_event_open, [at, pid as u64, u64::MAX, u64::MAX, 0, 0])
}

fn become_it(pid: i32) -> Result<String, String> {
    use std::os::unix::fs::MetadataExt;
    let status =
        std::fs::read_to_string(format!("/proc/{pid}/status")).map_err(|e| e.to_string())?;
    let of_status = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let user = of_status.and_then(|users| users.split_whitespace().next()?.parse::<u64>().ok());
    let owner = std::fs::metadata(format!("/proc/{pid}")).map_or(0, |owner| owner.uid());
    let user = user.unwrap_or(u64::from(owner));
    done(libc::SYS_setresuid, [user, user, user, 0, 0, 0])
}
