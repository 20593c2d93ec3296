//! Echo and bulk server, and the load for them, on IX and on Linux sockets.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    ix_echo::command(std::env::args_os())
}
