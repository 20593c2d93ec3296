//! Filters of system calls (seccomp(2)): the instructions that they are made of, and how the
//! calling thread gets one.
use std::io;

/// System calls of this processor's own interface, and those of 32-bit code.
pub const ARCH_X86_64: u32 = 0xc000_003e;
pub const ARCH_I386: u32 = 0x4000_0003;
/// Numbers from here on belong to the x32 interface.
pub const X32: u32 = 0x4000_0000;

/// Where a filter finds the number of the system call, and whose interface it belongs to.
pub const NUMBER: u32 = 0;
pub const ARCH: u32 = 4;

/// Where it finds the lower half of this argument, counted from 0.
pub const fn argument(nth: u32) -> u32 {
    16 + 8 * nth
}

/// Loads what is there.
pub fn load(offset: u32) -> libc::sock_filter {
    let code = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    libc::sock_filter { code, jt: 0, jf: 0, k: offset }
}

/// Skips `jt` instructions if what was loaded passes the test, else `jf`.
pub fn jump(test: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code: (libc::BPF_JMP | test | libc::BPF_K) as u16, jt, jf, k }
}

/// Ends the filter with this decision.
pub fn answer(k: u32) -> libc::sock_filter {
    libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k }
}

/// The call fails with this error.
pub fn fails(errno: i32) -> libc::sock_filter {
    answer(libc::SECCOMP_RET_ERRNO | errno as u32)
}

/// Installs the filter on the calling thread, and those that it starts from now on. `flags` as
/// `SECCOMP_FILTER_FLAG_SPEC_ALLOW`.
pub fn install(mut program: Vec<libc::sock_filter>, flags: libc::c_ulong) -> io::Result<()> {
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    let (call, set) = (libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER);
    // SAFETY: the program outlives the call.
    let installed = unsafe { libc::syscall(call, set, flags, &raw const filter) };
    if installed < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
