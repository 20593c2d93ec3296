//! The papers' background job: SHA-1 over an array, without end, with its throughput.
#![forbid(unsafe_code)]
use std::process::ExitCode;

fn main() -> ExitCode {
    ix_background::command(std::env::args_os())
}
