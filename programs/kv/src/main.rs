//! A memcached-compatible server, on IX and on Linux sockets.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    ix_kv::command(std::env::args_os())
}
