//! One line for the user: what went wrong, why, and what to do about it. The broker and the
//! commands use no other kind of error.
#![forbid(unsafe_code)]

use std::fmt;

/// The result of everything that can fail with a [`Problem`].
pub type Result<T> = std::result::Result<T, Problem>;

/// What went wrong, why, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    what: String,
    why: String,
    mend: String,
    status: u8,
}

/// Exit status of a command that failed and says no more.
const STATUS_FAILED: u8 = 1;
/// Exit status of `ix run` for its own failures, which none of its program's statuses is usually.
pub const STATUS_OWN_FAILURE: u8 = 125;
/// Exit status of `ix run` when the program could not be found, as shells have it.
pub const STATUS_NOT_FOUND: u8 = 127;
/// Exit status of `ix run` when the program could not be executed.
pub const STATUS_NOT_EXECUTABLE: u8 = 126;

impl Problem {
    /// `what` failed because of `why`.
    pub fn new(what: impl Into<String>, why: impl fmt::Display) -> Problem {
        Problem {
            what: what.into(),
            why: why.to_string(),
            mend: String::new(),
            status: STATUS_FAILED,
        }
    }

    /// A problem that is described by one text alone.
    pub fn line(text: impl fmt::Display) -> Problem {
        Problem::new("", text)
    }

    /// What the user can do about it.
    pub fn mend(mut self, mend: impl Into<String>) -> Problem {
        self.mend = mend.into();
        self
    }

    /// Sets the exit status; without this it is 1.
    pub fn with_status(mut self, status: u8) -> Problem {
        self.status = status;
        self
    }

    /// Sets the exit status of a problem that has no status of its own.
    pub fn or_status(mut self, status: u8) -> Problem {
        if self.status == STATUS_FAILED {
            self.status = status;
        }
        self
    }

    /// What failed; empty where [`Problem::why`] says it all.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// Why it failed.
    pub fn why(&self) -> &str {
        self.why.trim_end()
    }

    /// What failed and why, without what to do.
    pub fn reason(&self) -> String {
        if self.what.is_empty() {
            return self.why.trim_end().to_owned();
        }
        format!("{}: {}", self.what, self.why.trim_end())
    }

    /// What to do about it; empty where nothing is known.
    pub fn what_mends(&self) -> &str {
        &self.mend
    }

    /// The exit status of a command that ends with this problem; never 0.
    pub fn status(&self) -> u8 {
        self.status.max(STATUS_FAILED)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = self.reason();
        if !self.mend.is_empty() {
            line = format!("{line}; {}", self.mend);
        }
        // Reasons come from the kernel and from libraries: keep the promise of one line for them.
        write!(f, "{}", line.split_whitespace().collect::<Vec<_>>().join(" "))
    }
}

impl std::error::Error for Problem {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_one_line() {
        let p = Problem::new("cannot read x.toml", "expected `=`\n  at line 3\n").mend("mend it");
        assert_eq!(p.to_string(), "cannot read x.toml: expected `=` at line 3; mend it");
        assert_eq!(p.with_status(0).status(), 1, "a problem is no success");
    }

    #[test]
    fn a_status_of_its_own_stays() {
        let problem = || Problem::new("cannot run x", "no");
        assert_eq!(problem().or_status(STATUS_OWN_FAILURE).status(), 125);
        let not_found = problem().with_status(STATUS_NOT_FOUND);
        assert_eq!(not_found.or_status(STATUS_OWN_FAILURE).status(), 127);
    }
}
