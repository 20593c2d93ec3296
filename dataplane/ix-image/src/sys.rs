//! System calls that do not change errno. They can be made on the program's side of the gate, where
//! errno of the image's C library would be written into the program's thread-local storage, and
//! before the C library is ready.
use core::arch::asm;

/// Makes a system call. A negative result is minus an errno.
///
/// # Safety
/// What the system call requires.
#[inline(always)]
pub unsafe fn syscall(number: i64, args: [u64; 6]) -> i64 {
    let mut result = number;
    // SAFETY: the kernel changes rax, rcx and r11, and memory as the call says; the rest is the
    // caller's promise.
    unsafe {
        asm!(
            "syscall",
            inout("rax") result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") args[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// The kernel's `struct sigaction`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Action {
    /// Address, or `SIG_DFL`, `SIG_IGN`.
    pub handler: u64,
    /// `SA_…`.
    pub flags: u64,
    /// Where the handler returns to, with [`SA_RESTORER`].
    pub restorer: u64,
    /// Signals that are blocked meanwhile.
    pub mask: u64,
}

impl Action {
    /// The kernel's default action.
    pub const DEFAULT: Action =
        Action { handler: libc::SIG_DFL as u64, flags: 0, restorer: 0, mask: 0 };
}

/// The action has a restorer. The C library does not export this flag.
pub const SA_RESTORER: u64 = 0x0400_0000;

/// Maps new anonymous memory.
pub fn map(bytes: usize, prot: i32) -> Result<*mut u8, i64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let args = [0, bytes as u64, prot as u64, flags as u64, u64::MAX, 0];
    // SAFETY: a new mapping at an address of the kernel's choice.
    match unsafe { syscall(libc::SYS_mmap, args) } {
        error @ -4095..0 => Err(error),
        addr => Ok(addr as *mut u8),
    }
}

/// Sets the calling thread's signal mask; returns the old one. It cannot fail.
#[inline(always)]
pub fn set_signal_mask(mask: u64) -> u64 {
    let mut before = 0u64;
    let (new, old) = (&raw const mask as u64, &raw mut before as u64);
    let args = [libc::SIG_SETMASK as u64, new, old, 8, 0, 0];
    // SAFETY: both pointers are to locals of the kernel's mask size.
    unsafe { syscall(libc::SYS_rt_sigprocmask, args) };
    before
}
