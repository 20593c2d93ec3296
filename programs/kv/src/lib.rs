//! A memcached-compatible server, on IX and on Linux sockets from one source.
//!
//! From the inside out: [`words`] and [`item`] are memory, [`slab`] allocates it, [`index`] finds
//! keys in it without a lock, [`store`] is the cache, [`session`] one connection (with the
//! protocols `ascii` and `binary`). All of this is without input, output or clock. `server` runs
//! sessions on an elastic thread, `linux` with epoll.
#![forbid(unsafe_code)]

mod args;
mod ascii;
mod binary;
pub mod context;
pub mod counters;
pub mod expiry;
pub mod index;
pub mod item;
mod linux;
mod number;
pub mod reply;
mod run;
mod server;
mod service;
pub mod session;
pub mod slab;
mod stats;
pub mod store;
pub mod udp;
pub mod words;

use clap::Parser;
use std::ffi::OsString;
use std::process::ExitCode;

/// Runs the program with this command line, its name first.
pub fn command(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    ix_programs::exit_code("ix-kv", run::run(&args::Args::parse_from(arguments)))
}
