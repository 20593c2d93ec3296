//! Static pages from memory over HTTP/1.1, on IX and on Linux sockets: the papers' httpd.
//!
//! [`session`] decides what is sent on a connection, without input and output: it turns request
//! bytes into responses. [`answers`] has the bytes of each response ready in memory that can be
//! sent from again and again: transmit memory on IX, the heap on Linux. `ix` and `linux` move
//! bytes.
//!
//! A library, so that the `ix` command can contain the program.
#![forbid(unsafe_code)]
pub mod answers;
mod args;
pub mod chunked;
pub mod deadlines;
pub mod head;
mod ix;
mod linux;
mod peer;
mod run;
pub mod session;
pub mod site;
pub mod status;

use clap::Parser;
use std::ffi::OsString;
use std::process::ExitCode;

/// Runs the program with this command line, its name first.
pub fn command(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    ix_programs::exit_code("ix-httpd", run::run(&args::Args::parse_from(arguments)))
}
