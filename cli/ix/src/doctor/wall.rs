//! What the wall (`--domain pku`) stands on, each tried for real; ARCHITECTURE.md says what each stops.
use super::{Check, State};
use ix_report::machine::read;
use std::io;

fn parts() -> [Check; 8] {
    [keys(), seal(), dispatch(), descriptors(), signal_stack(), seccomp(), vector_state(), user()]
}

fn is_missing(check: &&Check) -> bool {
    check.state == State::Missing
}

/// The first that `--domain pku` lacks on this machine, in words; `None`: it can be used.
pub fn lacking() -> Option<String> {
    parts().iter().find(is_missing).map(|check| check.why.clone())
}

/// All of it, and first whether it is enough.
pub(super) fn checks() -> Vec<Check> {
    let parts = parts();
    let lacking: Vec<_> = parts.iter().filter(is_missing).map(|check| check.name).collect();
    let whole = match lacking.as_slice() {
        [] => {
            let what = "--domain pku, the default here, keeps programs out of the dataplane's memory \
                        (`ix attack` tries it)";
            Check::ok("pku", what)
        }
        lacking => {
            let why = format!("no --domain pku here: it lacks {}", lacking.join(", "));
            Check::limited("pku", why)
                .mend("use a processor with protection keys, and Linux 6.12 or later")
        }
    };
    // A machine without the wall works: what it lacks for it only limits.
    let limit = |mut check: Check| {
        if check.state == State::Missing {
            check.state = State::Limited;
        }
        check
    };
    std::iter::once(whole).chain(parts.map(limit)).collect()
}

fn last() -> io::Error {
    io::Error::last_os_error()
}

fn keys() -> Check {
    // SAFETY: plain system calls; the key, which nothing uses, is given back at once.
    unsafe {
        let key = libc::syscall(libc::SYS_pkey_alloc, 0, 0);
        if key >= 0 {
            libc::syscall(libc::SYS_pkey_free, key);
            return Check::ok("wall-keys", "memory protection keys (Linux 4.9)");
        }
    }
    let why = format!("no memory protection keys (processor; Linux 4.9): {}", last());
    Check::missing("wall-keys", why)
}

fn seal() -> Check {
    const SYS_MSEAL: i64 = 462;
    // SAFETY: seals nothing.
    match unsafe { libc::syscall(SYS_MSEAL, 0, 0, 0) } {
        0 => Check::ok("wall-seals", "mappings can be sealed (mseal, Linux 6.10)"),
        _ => Check::missing("wall-seals", format!("no mseal (Linux 6.10): {}", last())),
    }
}

fn dispatch() -> Check {
    const PR_SET_SYSCALL_USER_DISPATCH: i32 = 59;
    const OFF: i32 = 0;
    // SAFETY: turns off what is off.
    match unsafe { libc::prctl(PR_SET_SYSCALL_USER_DISPATCH, OFF, 0, 0, 0) } {
        0 => {
            Check::ok("wall-dispatch", "system calls can be stopped (Syscall User Dispatch, 5.11)")
        }
        _ => {
            let why = format!("no Syscall User Dispatch (Linux 5.11): {}", last());
            Check::missing("wall-dispatch", why)
        }
    }
}

/// Who a thread is says a segment descriptor, which only a 32-bit system call sets.
fn descriptors() -> Check {
    if emulates_32_bit() {
        return Check::ok("wall-threads", "32-bit system calls, for the descriptors of threads");
    }
    let why = "no 32-bit system calls: threads could not be told apart";
    Check::missing("wall-threads", why).mend("boot with ia32_emulation=1")
}

fn emulates_32_bit() -> bool {
    const GETPID: u32 = 20;
    // SAFETY: the child makes one system call, by which it may crash, and ends.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &none);
            let mut answer = u64::from(GETPID);
            std::arch::asm!("int 0x80", inout("rax") answer,
                out("r8") _, out("r9") _, out("r10") _, out("r11") _);
            libc::_exit(i32::from(answer as i32 != libc::getpid()));
        }
        let mut status = -1;
        child > 0 && libc::waitpid(child, &mut status, 0) == child && status == 0
    }
}

/// A signal's frame is written with the rights of the stack's owner since this version; that cannot be
/// tried without keys.
fn signal_stack() -> Check {
    const FROM: (u32, u32) = (6, 12);
    let release = read("/proc/sys/kernel/osrelease");
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= FROM {
        return Check::ok("wall-signals", "stacks for signals may have a key (Linux 6.12)");
    }
    let why = format!("stacks for signals cannot have a key before Linux 6.12; this is {release}");
    Check::missing("wall-signals", why)
}

fn seccomp() -> Check {
    const SECCOMP_GET_ACTION_AVAIL: u32 = 2;
    let action = libc::SECCOMP_RET_ERRNO;
    // SAFETY: reads a local.
    let answer =
        unsafe { libc::syscall(libc::SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) };
    match answer {
        0 => Check::ok("wall-seccomp", "system calls can be filtered (seccomp, Linux 4.14)"),
        _ => Check::missing("wall-seccomp", format!("no seccomp filters (Linux 4.14): {}", last())),
    }
}

/// Rights are part of the state that `xrstor` loads.
fn vector_state() -> Check {
    const RIGHTS: u32 = 9;
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    let has_xsave = __cpuid(1).ecx & (1 << 27) != 0;
    let bytes = if has_xsave { __cpuid_count(0xd, RIGHTS).eax } else { 0 };
    if bytes >= 4 {
        return Check::ok("wall-xstate", "rights are saved and restored with the vector registers");
    }
    Check::missing("wall-xstate", "the processor does not save rights with the vector registers")
}

fn user() -> Check {
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } == 0 {
        return Check::ok("wall-user", "programs behind the wall run as another user");
    }
    let why = "programs behind the wall run as you: they can signal and read your other processes";
    Check::limited("wall-user", why).mend("start `ix run` as root, which gives it up for them")
}
