//! The papers' background job (SoCC '15, section 2): threads compute the SHA-1 of an array again
//! and again. The array is larger than the last-level cache, so the job disturbs programs that need
//! memory. Its progress shows how much of the machine was left to it.
//!
//! A library, so that the `ix` command can contain the program.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod args;
pub mod job;
mod run;

use clap::Parser;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::process::ExitCode;

/// A report of the program in JSON, a line each second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Second {
    /// Time since the start, s.
    pub at_s: f64,
    /// Threads that work.
    pub threads: usize,
    /// Work since the line before.
    pub bytes_per_s: f64,
}

/// Runs the program with this command line, its name first.
pub fn command(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    ix_programs::exit_code("ix-background", run::run(&args::Args::parse_from(arguments)))
}
