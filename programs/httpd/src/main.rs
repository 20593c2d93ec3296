//! Static pages from memory over HTTP/1.1, on IX and on Linux sockets.
#![forbid(unsafe_code)]
use std::process::ExitCode;

fn main() -> ExitCode {
    ix_httpd::command(std::env::args_os())
}
