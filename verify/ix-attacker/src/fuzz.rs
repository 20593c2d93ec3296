//! Random system calls with significant arguments: addresses of the dataplane, its descriptors.
use crate::{Targets, is_walled};
use ix_random::Rng;
use std::sync::atomic::{AtomicU32, Ordering};

/// Calls that would only end or stop the fuzzer, or its parent.
const NOT: [i64; 24] = [
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_pause,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigreturn,
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_tgkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_pidfd_send_signal,
    libc::SYS_reboot,
    libc::SYS_alarm,
    libc::SYS_setitimer,
    libc::SYS_rt_sigprocmask,
    libc::SYS_vhangup,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_execve,
    libc::SYS_write,
    libc::SYS_close_range,
];

/// Then tries what the calls were to make possible: access to the dataplane's memory. Without the
/// wall the calls are not made: they could do anything to the machine.
pub fn run(t: &Targets, calls: u32, seed: u64, made: &AtomicU32) -> Result<String, String> {
    let walled = is_walled();
    let mut random = Rng::new(seed);
    let stack = [0u64; 64];
    if walled {
        // A timer interrupts calls that wait.
        // SAFETY: all zero is a valid action; the handler does nothing; the timer is a local.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as *const () as usize;
            libc::sigaction(libc::SIGVTALRM, &action, std::ptr::null_mut());
            libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut());
            let time = libc::timeval { tv_sec: 0, tv_usec: 20_000 };
            let timer = libc::itimerval { it_interval: time, it_value: time };
            libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut());
        }
    }
    let tries = if walled { calls } else { 0 };
    for _ in 0..tries {
        let number = random.below(470) as i64;
        let mut args = [0u64; 6];
        for arg in &mut args {
            *arg = match random.below(10) {
                0 => 0,
                1 => random.below(64),
                2 => t.data as u64 & !4095,
                3 => t.shown as u64,
                4 => t.code as u64 + random.below(4096),
                5 => t.descriptor as u64,
                6 => 4096 << random.below(8),
                7 => stack.as_ptr() as u64,
                8 => 1 << random.below(64),
                _ => random.next_u64(),
            };
        }
        // Destroying its own mappings is allowed, and would end it early.
        let destroys = [libc::SYS_munmap, libc::SYS_mremap, libc::SYS_mprotect, libc::SYS_brk];
        if NOT.contains(&number)
            || (destroys.contains(&number) && args[0] != t.data as u64 & !4095)
            || (number == libc::SYS_mmap && args[3] & libc::MAP_FIXED as u64 != 0)
            || (number == libc::SYS_close && args[0] < 64)
            || (number == libc::SYS_dup2 && args[1] < 64)
            || (number == libc::SYS_dup3 && args[1] < 64)
        {
            continue;
        }
        // SAFETY: an attack: what it may do to this copy of the process it may.
        unsafe { libc::syscall(number, args[0], args[1], args[2], args[3], args[4], args[5]) };
        made.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: an attack; if it is allowed, the byte stays what it was.
    unsafe {
        let at = t.data as *mut u8;
        at.write_volatile(at.read_volatile());
    }
    Ok("no fault".to_owned())
}

extern "C" fn nothing(_: i32) {}
