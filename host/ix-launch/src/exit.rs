//! How a program ended.
use std::ffi::CStr;
use std::fmt;

/// The end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It exited with this status.
    Status(u8),
    /// A signal killed it.
    Signal(i32),
}

impl Exit {
    /// From `waitpid`'s status; `None` if the process was only stopped or continued.
    pub fn from_wait_status(status: i32) -> Option<Exit> {
        if libc::WIFEXITED(status) {
            Some(Exit::Status(libc::WEXITSTATUS(status) as u8))
        } else if libc::WIFSIGNALED(status) {
            Some(Exit::Signal(libc::WTERMSIG(status)))
        } else {
            None
        }
    }

    /// The exit status of `ix run` for it, as in shells: 128 + n for signal n.
    pub fn status(self) -> u8 {
        match self {
            Exit::Status(status) => status,
            Exit::Signal(signal) => 128u8.wrapping_add(signal as u8),
        }
    }

    /// Whether it ended by its own fault: an illegal access or instruction, or an abort.
    pub fn is_crash(self) -> bool {
        const FAULTS: [i32; 7] = [
            libc::SIGSEGV,
            libc::SIGBUS,
            libc::SIGILL,
            libc::SIGFPE,
            libc::SIGTRAP,
            libc::SIGABRT,
            libc::SIGSYS,
        ];
        matches!(self, Exit::Signal(signal) if FAULTS.contains(&signal))
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exit::Status(status) => write!(f, "exit status {status}"),
            Exit::Signal(signal) => write!(f, "killed by {}", SignalName(*signal)),
        }
    }
}

/// Name of a signal.
struct SignalName(i32);

impl fmt::Display for SignalName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        unsafe extern "C" {
            /// glibc's name of a signal without `SIG`, a static string, or null.
            fn sigabbrev_np(signal: libc::c_int) -> *const libc::c_char;
        }
        // SAFETY: any number is allowed.
        let name = unsafe { sigabbrev_np(self.0) };
        if name.is_null() {
            return write!(f, "signal {}", self.0);
        }
        // SAFETY: not null, so a static C string.
        let name = unsafe { CStr::from_ptr(name) };
        write!(f, "SIG{}", name.to_string_lossy())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_as_shells_tell_them() {
        assert_eq!(Exit::from_wait_status(3 << 8), Some(Exit::Status(3)));
        assert_eq!(Exit::from_wait_status(libc::SIGSEGV), Some(Exit::Signal(11)));
        assert_eq!(Exit::from_wait_status(0x137f), None);
        assert_eq!(Exit::Signal(libc::SIGTERM).status(), 143);
        assert_eq!(Exit::Signal(libc::SIGSEGV).to_string(), "killed by SIGSEGV");
        assert!(Exit::Signal(libc::SIGABRT).is_crash() && !Exit::Signal(libc::SIGKILL).is_crash());
    }
}
