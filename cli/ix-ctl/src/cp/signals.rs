//! Signals of `ix cp`: SIGHUP reads the policy again, SIGINT and SIGTERM end it.
use ix_report::problem::{Problem, Result};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

static ENDED: AtomicBool = AtomicBool::new(false);
static RELOAD: AtomicBool = AtomicBool::new(false);

extern "C" fn note(signal: i32) {
    let flag = if signal == libc::SIGHUP { &RELOAD } else { &ENDED };
    flag.store(true, Ordering::Relaxed);
}

/// Begins to note them.
pub(super) fn catch() -> Result<()> {
    let handler = note as extern "C" fn(i32);
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler only stores to an atomic; all zeroes is a valid `sigaction`.
        let answer = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as usize;
            libc::sigaction(signal, &action, std::ptr::null_mut())
        };
        if answer < 0 {
            return Err(Problem::new("cannot catch signals", io::Error::last_os_error()));
        }
    }
    Ok(())
}

/// Whether a signal has asked for the end.
pub(super) fn ended() -> bool {
    ENDED.load(Ordering::Relaxed)
}

/// Whether a signal has asked to read the policy again; once for each time.
pub(super) fn take_reload() -> bool {
    RELOAD.swap(false, Ordering::Relaxed)
}

/// The calling thread gets none: they are for the broker.
pub(super) fn block_all() {
    // SAFETY: fills and reads a local set.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut set);
        libc::pthread_sigmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
    }
}
