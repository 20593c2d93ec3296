//! System calls of Linux in safe words: owned descriptors, checked results, no pointers.
//!
//! Every other crate may use this one, even the data path and the programs, so it uses only `libc`.
//! With the feature `host`, which those lack, it has what commands and the broker need beside it,
//! and uses rustix for all that rustix has in safe words.
//!
//! Each module stands for a part of the kernel's interface. The documentation of a function names
//! the manual page that says what the call does.
pub mod bpf;
#[cfg(feature = "host")]
mod child;
pub mod clock;
#[cfg(feature = "host")]
pub mod command;
pub mod cpu;
mod datagrams;
#[cfg(feature = "host")]
mod end_all;
mod epoll;
mod error;
pub mod event;
pub mod fd;
pub mod interface;
#[cfg(feature = "host")]
pub mod landlock;
pub mod limits;
pub mod log;
mod mapping;
pub mod meter;
#[cfg(feature = "host")]
pub mod mounts;
#[cfg(feature = "host")]
pub mod netfilter;
#[cfg(feature = "host")]
pub mod network_namespace;
pub mod output;
pub mod perf;
pub mod poll;
pub mod probe;
pub mod process;
pub mod program_file;
pub mod random;
mod scarcity;
#[cfg(feature = "host")]
pub mod scheduling;
pub mod signal;
pub mod socket;
pub mod stamps;
#[cfg(feature = "host")]
pub mod terminal;
pub mod tsc;
pub mod tun;
#[cfg(feature = "host")]
pub mod user_namespace;

#[cfg(feature = "host")]
pub use child::{Holder, Responder};
pub use datagrams::Datagrams;
#[cfg(feature = "host")]
pub use end_all::{Of, end_all};
pub use epoll::Epoll;
pub use error::Error;
pub use interface::Interface;
pub use mapping::{Mapping, zeroed_words};
pub use scarcity::Scarcity;

use std::io;

/// Returns the result of a system call: -1 becomes the error that `errno` names.
pub fn check<T: Copy + PartialEq + From<i8>>(ret: T) -> io::Result<T> {
    if ret == T::from(-1) { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

/// Repeats a call that a signal interrupted.
pub(crate) fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
