//! Services that run on IX and on Linux sockets from one source, so that the two can be compared.
//!
//! A [`Service`] is a protocol without input and output: it turns bytes into bytes. [`ix`] drives
//! it with an event loop on an elastic thread, [`linux`] with epoll.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod clock;
pub mod cpu;
pub mod ix;
pub mod linux;
mod pattern;
mod service;
pub mod socket;
pub mod threads;

pub use pattern::Pattern;
pub use service::{End, Service, Verdict};

use std::fmt::Display;
use std::process::ExitCode;

/// Ends a program: an error goes to standard error, in one line after the program's name.
pub fn exit_code(program: &str, outcome: Result<(), impl Display>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{program}: {error:#}");
            ExitCode::FAILURE
        }
    }
}
