//! One way for a test to skip: it says why on the terminal, and the summary of the run counts it.
//!
//! A test that lacks something of the machine calls [`skip`] and returns. libtest would count it as
//! passed and swallow what it printed. So [`skip`] writes past libtest's capture, and it appends a
//! record to the file that the environment variable [`RECORDS`] names. `ix-tests` (this package's
//! command) sets that variable, runs `cargo test`, and reports what was skipped, by group.
#![forbid(unsafe_code)]
mod allowed;
mod record;
mod summary;

pub use allowed::Allowed;
pub use record::Record;
pub use summary::Summary;

use std::fmt::Display;
use std::io::Write;

/// Environment variable with the file that skipped tests are appended to.
pub const RECORDS: &str = "IX_SKIPPED_TESTS";

/// What the machine lacks. Each kind is a group of the summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need<'a> {
    /// Rights of root: network namespaces, TAP, AF_XDP, other users.
    Root,
    /// At least this many CPUs.
    Cpus(usize),
    /// A program, with the command that installs it.
    Program(&'a str),
    /// A feature of the kernel, with how to get it.
    Kernel(&'a str),
    /// A feature of the hardware, with what it is.
    Hardware(&'a str),
    /// A build whose code lies elsewhere, with how to get one.
    Layout(&'a str),
}

impl Need<'_> {
    /// Name of the group in the summary and in `.ci/skips`.
    pub fn group(&self) -> &'static str {
        match self {
            Need::Root => "root",
            Need::Cpus(_) => "cpus",
            Need::Program(_) => "program",
            Need::Kernel(_) => "kernel",
            Need::Hardware(_) => "hardware",
            Need::Layout(_) => "layout",
        }
    }

    /// What to do so that the test runs.
    pub fn remedy(&self) -> String {
        match self {
            Need::Root => "run it as root: sudo -E cargo test".to_owned(),
            Need::Cpus(count) => format!("run it on {count} or more CPUs"),
            Need::Program(remedy)
            | Need::Kernel(remedy)
            | Need::Hardware(remedy)
            | Need::Layout(remedy) => (*remedy).to_owned(),
        }
    }
}

/// Says and records that the running test does not run; the caller returns from the test after it.
///
/// `test` is the test's name, used in a run with one thread; otherwise the name of libtest's thread
/// is used. `why` is what is missing.
pub fn skip(test: &str, need: Need<'_>, why: impl Display) {
    report(test, need, &why.to_string(), false);
}

/// As [`skip`], for a part of a test: the rest of the test runs and counts.
pub fn skip_part(test: &str, need: Need<'_>, why: impl Display) {
    report(test, need, &why.to_string(), true);
}

fn report(test: &str, need: Need<'_>, why: &str, part: bool) {
    let thread = std::thread::current();
    let name = thread.name().filter(|name| *name != "main").unwrap_or(test);
    let record = Record {
        package: std::env::var("CARGO_PKG_NAME").unwrap_or_default(),
        test: name.to_owned(),
        group: need.group().to_owned(),
        part,
        why: why.to_owned(),
        remedy: need.remedy(),
    };
    // Not by `eprintln!`, which libtest captures. One write each, so that lines do not mix.
    let _ = std::io::stderr().write_all(format!("{}\n", record.sentence()).as_bytes());
    if let Some(path) = std::env::var_os(RECORDS) {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        let written = file.and_then(|mut file| file.write_all(record.line().as_bytes()));
        written.expect("the file of skipped tests can be written");
    }
}
