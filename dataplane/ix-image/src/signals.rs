//! Linux signals and the dataplane. While a Linux thread runs an elastic thread, all signals except
//! faults are blocked. `run_io` notices by a signalfd that one is pending, and reports it in
//! `ThreadStatus`. The application then unblocks it, in its own context.
use crate::sys;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Signals that are not blocked: a fault belongs to the current instruction and cannot wait.
const FAULTS: u64 = bit(libc::SIGSEGV)
    | bit(libc::SIGBUS)
    | bit(libc::SIGFPE)
    | bit(libc::SIGILL)
    | bit(libc::SIGTRAP)
    | bit(libc::SIGSYS);

/// The mask of an elastic thread.
pub const BLOCKED: u64 = !FAULTS;

/// Watches for pending signals. Each elastic thread has one; a signalfd reports signals of the
/// thread that polls it.
pub struct SignalWatch {
    fd: OwnedFd,
}

impl SignalWatch {
    /// Watches for no signal yet.
    pub fn new() -> io::Result<SignalWatch> {
        let fd = signalfd(-1, 0)?;
        // SAFETY: a new descriptor that belongs to nobody else.
        Ok(SignalWatch { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// The same watch with another descriptor number.
    pub fn placed(self, place: impl FnOnce(OwnedFd) -> io::Result<OwnedFd>) -> io::Result<Self> {
        Ok(SignalWatch { fd: place(self.fd)? })
    }

    /// The descriptor: readable while a watched signal is pending.
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Watches for the signals that the application itself has not blocked; the others must wait
    /// anyway.
    pub fn set_application_mask(&self, mask: u64) -> io::Result<()> {
        SignalWatch::show(self.fd(), mask)
    }

    /// The same of a watch that lives as long as the process. Uses no thread-local storage.
    pub fn show(fd: RawFd, mask: u64) -> io::Result<()> {
        signalfd(fd, BLOCKED & !mask).map(drop)
    }

    /// The descriptor alone.
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }
}

fn signalfd(fd: RawFd, signals: u64) -> io::Result<RawFd> {
    let flags = libc::SFD_NONBLOCK | libc::SFD_CLOEXEC;
    let pointer = &raw const signals as u64;
    // SAFETY: the mask is a local of the kernel's mask size.
    let answer =
        unsafe { sys::syscall(libc::SYS_signalfd4, [fd as u64, pointer, 8, flags as u64, 0, 0]) };
    if answer < 0 { Err(io::Error::from_raw_os_error(-answer as i32)) } else { Ok(answer as RawFd) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readable(fd: RawFd) -> bool {
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one struct.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    }

    #[test]
    fn only_signals_that_the_application_would_take_are_told() {
        let before = sys::set_signal_mask(BLOCKED);
        let watch = SignalWatch::new().unwrap();
        // SAFETY: sent to this thread, where it is blocked.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGWINCH) };
        watch.set_application_mask(bit(libc::SIGWINCH)).unwrap();
        assert!(!readable(watch.fd()), "the application has blocked it itself");
        watch.set_application_mask(0).unwrap();
        assert!(readable(watch.fd()));
        // Ignored by default, so it is gone once it is unblocked.
        sys::set_signal_mask(before);
        assert!(!readable(watch.fd()));
    }
}
