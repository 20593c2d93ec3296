//! Echo and bulk server, and the load for them, on IX and on Linux sockets.
mod args;
mod bulk;
mod client;
mod ix;
mod report;
mod run;
mod server;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    match run::run(&args::Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ix-echo: {error:#}");
            ExitCode::FAILURE
        }
    }
}
