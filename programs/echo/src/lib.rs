//! Echo and bulk server, and the load for them, on IX and on Linux sockets.
//!
//! A library, so that the `ix` command can contain the program for its demo.
#![forbid(unsafe_code)]

mod args;
mod bulk;
mod client;
mod ix;
pub mod parts;
mod report;
mod rounds;
mod rounds_ix;
mod rounds_linux;
mod run;
mod run_load;
mod sample;
mod server;
mod stamp;
mod udp;
mod udp_ix;
mod udp_linux;
mod udp_packets;
mod window;

use clap::Parser;
use std::ffi::OsString;
use std::process::ExitCode;

/// Runs the program with this command line, its name first.
pub fn command(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    ix_programs::exit_code("ix-echo", run::run(&args::Args::parse_from(arguments)))
}
