//! An error of a system call: what was tried, and what the kernel reported.
use std::{fmt, io};

/// What was tried and why the kernel refused.
#[derive(Debug)]
pub struct Error {
    what: String,
    source: io::Error,
    /// The kernel's own explanation, if netlink sent one.
    explanation: Option<String>,
}

impl Error {
    /// An error of `what` ("cannot make …"), with its reason.
    pub fn new(what: impl Into<String>, source: io::Error) -> Error {
        Error { what: what.into(), source, explanation: None }
    }

    /// As [`Error::new`], with `errno`.
    pub fn last(what: impl Into<String>) -> Error {
        Error::new(what, io::Error::last_os_error())
    }

    /// Adds the kernel's own explanation.
    #[must_use]
    pub fn explained(mut self, text: Option<String>) -> Error {
        self.explanation = text;
        self
    }

    /// The kernel's error number; 0 if the kernel did not cause the error.
    pub fn errno(&self) -> i32 {
        self.source.raw_os_error().unwrap_or(0)
    }

    /// True if a privilege is missing.
    pub fn is_permission(&self) -> bool {
        self.source.kind() == io::ErrorKind::PermissionDenied
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.source)?;
        self.explanation.as_ref().map_or(Ok(()), |text| write!(f, " ({text})"))
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}
