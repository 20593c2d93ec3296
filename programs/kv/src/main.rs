//! A memcached-compatible server, on IX and on Linux sockets.
use std::process::ExitCode;

fn main() -> ExitCode {
    ix_kv::command(std::env::args_os())
}
