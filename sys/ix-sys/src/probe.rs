//! Tests what processor and kernel can do, each by trying it.
use crate::check;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::io;

/// Memory can have protection keys (pkeys(7), Linux 4.9).
pub fn protection_keys() -> io::Result<()> {
    // SAFETY: takes numbers.
    let key = check(unsafe { libc::syscall(libc::SYS_pkey_alloc, 0, 0) })?;
    // SAFETY: the key from above, which no page has.
    unsafe { libc::syscall(libc::SYS_pkey_free, key) };
    Ok(())
}

/// Mappings can be sealed (mseal(2), Linux 6.10).
pub fn seals() -> io::Result<()> {
    const SYS_MSEAL: i64 = 462;
    // SAFETY: seals an empty range.
    check(unsafe { libc::syscall(SYS_MSEAL, 0, 0, 0) }).map(drop)
}

/// System calls can be stopped by address (Syscall User Dispatch, Linux 5.11).
pub fn user_dispatch() -> io::Result<()> {
    const PR_SET_SYSCALL_USER_DISPATCH: i32 = 59;
    const OFF: i32 = 0;
    // SAFETY: turns off what is off.
    check(unsafe { libc::prctl(PR_SET_SYSCALL_USER_DISPATCH, OFF, 0, 0, 0) }).map(drop)
}

/// System calls can be filtered (seccomp(2), Linux 4.14).
pub fn seccomp() -> io::Result<()> {
    const SECCOMP_GET_ACTION_AVAIL: u32 = 2;
    let action = libc::SECCOMP_RET_ERRNO;
    // SAFETY: reads a local.
    let ret =
        unsafe { libc::syscall(libc::SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) };
    check(ret).map(drop)
}

/// True if programs may make 32-bit system calls.
pub fn calls_of_32_bits() -> bool {
    const GETPID: u32 = 20;
    // SAFETY: the child makes one system call, by which it may crash, and ends.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
            let mut result = u64::from(GETPID);
            std::arch::asm!("int 0x80", inout("rax") result,
                out("r8") _, out("r9") _, out("r10") _, out("r11") _);
            libc::_exit(i32::from(result as i32 != libc::getpid()));
        }
        let mut status = -1;
        child > 0 && libc::waitpid(child, &raw mut status, 0) == child && status == 0
    }
}

/// True if rights of protection keys are saved with the vector registers (`xrstor`).
pub fn saves_key_rights() -> bool {
    const RIGHTS: u32 = 9;
    let has_xsave = __cpuid(1).ecx & (1 << 27) != 0;
    has_xsave && __cpuid_count(0xd, RIGHTS).eax >= 4
}

/// True if programs may switch thread-local storage by an instruction (FSGSBASE).
pub fn fsgsbase() -> bool {
    const HWCAP2_FSGSBASE: u64 = 1 << 1;
    // SAFETY: reads the process's auxiliary vector.
    unsafe { libc::getauxval(libc::AT_HWCAP2) & HWCAP2_FSGSBASE != 0 }
}
