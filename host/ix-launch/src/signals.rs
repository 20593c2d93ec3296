//! Signals that ask the broker to end are forwarded to the program, which decides.
use std::io;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// Signals that are forwarded.
const FORWARDED: [i32; 6] =
    [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2];

/// The process that gets them; 0: none.
static TARGET: AtomicI32 = AtomicI32::new(0);

/// Signals that ask for an end and were forwarded: one bit for each.
static ENDING: AtomicU64 = AtomicU64::new(0);

/// While this exists, signals go to a child; at most one in a process.
#[derive(Debug)]
pub struct SignalForwarding {
    before: Vec<(i32, libc::sigaction)>,
}

impl SignalForwarding {
    /// Begins to forward to `pid`.
    pub fn to(pid: u32) -> io::Result<SignalForwarding> {
        if TARGET.compare_exchange(0, pid as i32, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        let mut forwarding = SignalForwarding { before: Vec::new() };
        let handler = forward as extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);
        for signal in FORWARDED {
            // SAFETY: all-zero bytes are a valid `sigaction` (empty mask, default action).
            let (mut new, mut old): (libc::sigaction, libc::sigaction) =
                unsafe { (core::mem::zeroed(), core::mem::zeroed()) };
            new.sa_sigaction = handler as usize;
            new.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            // SAFETY: the handler only makes calls that are safe in a handler.
            if unsafe { libc::sigaction(signal, &new, &mut old) } < 0 {
                return Err(io::Error::last_os_error());
            }
            forwarding.before.push((signal, old));
        }
        Ok(forwarding)
    }
}

impl SignalForwarding {
    /// Forwards to this process from now on. The former process may not have handled a request to
    /// end, so this one gets it as well.
    pub fn turn_to(&self, pid: u32) {
        // 0 and negative numbers are groups of processes.
        let Some(pid) = i32::try_from(pid).ok().filter(|pid| *pid > 0) else { return };
        if TARGET.swap(pid, Ordering::SeqCst) == pid {
            return;
        }
        let asked = ENDING.load(Ordering::SeqCst);
        for signal in (1..64).filter(|signal| asked >> signal & 1 != 0) {
            // SAFETY: no pointers; the process is a descendant that nobody but us reaps.
            unsafe { libc::kill(pid, signal) };
        }
    }
}

impl Drop for SignalForwarding {
    fn drop(&mut self) {
        for (signal, old) in &self.before {
            // SAFETY: puts back what `sigaction` had answered.
            unsafe { libc::sigaction(*signal, old, core::ptr::null_mut()) };
        }
        TARGET.store(0, Ordering::SeqCst);
        ENDING.store(0, Ordering::SeqCst);
    }
}

extern "C" fn forward(signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to SA_SIGINFO handlers.
    let code = unsafe { (*info).si_code };
    // A key press at the terminal (SI_KERNEL) reaches the whole process group, the child included.
    let target = TARGET.load(Ordering::SeqCst);
    if target > 0 && code <= 0 {
        if [libc::SIGINT, libc::SIGTERM, libc::SIGQUIT].contains(&signal) {
            ENDING.fetch_or(1 << signal, Ordering::SeqCst);
        }
        // SAFETY: errno is put back, kill is safe in a handler.
        unsafe {
            let errno = *libc::__errno_location();
            libc::kill(target, signal);
            *libc::__errno_location() = errno;
        }
    }
}
