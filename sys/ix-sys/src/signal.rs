//! Signals of this process: counted, read from a descriptor, or with their default actions.
use crate::{check, fd};
use std::io;
use std::mem::zeroed;
use std::os::fd::OwnedFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

/// Standard signals and those of real time.
const SIGNALS: usize = 65;

/// How often each caught signal has arrived.
static CAME: [AtomicU32; SIGNALS] = [const { AtomicU32::new(0) }; SIGNALS];

extern "C" fn note(signal: i32) {
    if let Some(came) = CAME.get(signal as usize) {
        came.fetch_add(1, Ordering::Relaxed);
    }
}

/// From now on the signal is only counted ([`count`]). A system call that waits is interrupted by
/// it (sigaction(2)).
pub fn catch(signal: i32) -> io::Result<()> {
    // SAFETY: all zeroes is a valid `sigaction`, without flags.
    let mut action: libc::sigaction = unsafe { zeroed() };
    action.sa_sigaction = note as extern "C" fn(i32) as usize;
    // SAFETY: the handler only adds to an atomic number.
    check(unsafe { libc::sigaction(signal, &raw const action, null_mut()) }).map(drop)
}

/// As [`catch`], but system calls that wait are restarted.
pub fn catch_and_go_on(signal: i32) -> io::Result<()> {
    // SAFETY: all zeroes is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { zeroed() };
    action.sa_sigaction = note as extern "C" fn(i32) as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler only adds to an atomic number.
    check(unsafe { libc::sigaction(signal, &raw const action, null_mut()) }).map(drop)
}

/// How often a signal has arrived since the start, or since the last [`take`].
pub fn count(signal: i32) -> u32 {
    CAME.get(signal as usize).map_or(0, |came| came.load(Ordering::Relaxed))
}

/// As [`count`], and sets the count to 0.
pub fn take(signal: i32) -> u32 {
    CAME.get(signal as usize).map_or(0, |came| came.swap(0, Ordering::Relaxed))
}

/// Restores the kernel's default action for a signal. For SIGPIPE, which Rust ignores at start,
/// that ends the process.
pub fn set_default(signal: i32) {
    // SAFETY: takes numbers.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Blocks all signals in the calling thread and those that it starts (pthread_sigmask(3)).
pub fn block_all() {
    // SAFETY: all zeroes is a valid set, which is filled and then read.
    unsafe {
        let mut set: libc::sigset_t = zeroed();
        libc::sigfillset(&raw mut set);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, null_mut());
    }
}

/// Returns a descriptor that is readable when one of these signals has arrived. The signals have no
/// other effect any more in the calling thread and those that it starts (signalfd(2)). It never
/// blocks.
pub fn into_fd(signals: &[i32]) -> io::Result<OwnedFd> {
    // SAFETY: all zeroes is a valid set, which is filled and then read.
    let new = unsafe {
        let mut set: libc::sigset_t = zeroed();
        libc::sigemptyset(&raw mut set);
        for &signal in signals {
            libc::sigaddset(&raw mut set, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, null_mut());
        libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    };
    let new = check(new)?;
    // SAFETY: a new descriptor that no other value owns.
    Ok(unsafe { fd::own(new) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_is_caught_is_counted() {
        catch(libc::SIGUSR2).unwrap();
        let pid = std::process::id() as i32;
        crate::process::kill(pid, libc::SIGUSR2).unwrap();
        while count(libc::SIGUSR2) == 0 {
            std::thread::yield_now();
        }
        assert_eq!((take(libc::SIGUSR2), count(libc::SIGUSR2)), (1, 0));
        assert_eq!((count(-1), count(1000)), (0, 0));
        assert!(catch(1000).is_err());
    }
}
