//! Signals that ask the broker to end are forwarded to the program, which decides.
use ix_sys::process::{Process, signal_pidfd};
use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// Signals that are forwarded.
const FORWARDED: [i32; 6] =
    [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2];

/// The descriptor of the process that gets them.
static TARGET: AtomicI32 = AtomicI32::new(NOBODY);
const NOBODY: RawFd = -1;

/// Signals that ask for an end and were forwarded: one bit for each.
static ENDING: AtomicU64 = AtomicU64::new(0);

/// While this exists, signals go to a child; at most one in a process.
#[derive(Debug)]
pub struct SignalForwarding {
    before: Vec<(i32, libc::sigaction)>,
    /// The target and the one before it, the newest last: a handler on another thread may still use
    /// that one's descriptor.
    targets: RefCell<Vec<Arc<Process>>>,
}

impl SignalForwarding {
    /// Begins to forward to a process.
    pub fn to(process: &Arc<Process>) -> io::Result<SignalForwarding> {
        let fd = process.as_fd().as_raw_fd();
        if TARGET.compare_exchange(NOBODY, fd, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        let targets = RefCell::new(vec![Arc::clone(process)]);
        let mut forwarding = SignalForwarding { before: Vec::new(), targets };
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
    pub fn turn_to(&self, process: &Arc<Process>) {
        let mut targets = self.targets.borrow_mut();
        if targets.last().is_some_and(|last| Arc::ptr_eq(last, process)) {
            return;
        }
        targets.push(Arc::clone(process));
        TARGET.store(process.as_fd().as_raw_fd(), Ordering::SeqCst);
        if targets.len() > 2 {
            targets.remove(0);
        }
        let asked = ENDING.load(Ordering::SeqCst);
        for signal in (1..64).filter(|signal| asked >> signal & 1 != 0) {
            // An error: it has ended.
            let _ = process.signal(signal);
        }
    }
}

impl Drop for SignalForwarding {
    fn drop(&mut self) {
        for (signal, old) in &self.before {
            // SAFETY: puts back what `sigaction` had answered.
            unsafe { libc::sigaction(*signal, old, core::ptr::null_mut()) };
        }
        TARGET.store(NOBODY, Ordering::SeqCst);
        ENDING.store(0, Ordering::SeqCst);
    }
}

extern "C" fn forward(signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to SA_SIGINFO handlers.
    let code = unsafe { (*info).si_code };
    // A key press at the terminal (SI_KERNEL) reaches the whole process group, the child included.
    let target = TARGET.load(Ordering::SeqCst);
    if target != NOBODY && code <= 0 {
        if [libc::SIGINT, libc::SIGTERM, libc::SIGQUIT].contains(&signal) {
            ENDING.fetch_or(1 << signal, Ordering::SeqCst);
        }
        // SAFETY: errno is put back; the call between is only a system call.
        unsafe {
            let errno = *libc::__errno_location();
            let _ = signal_pidfd(target, signal);
            *libc::__errno_location() = errno;
        }
    }
}
