//! The functions that the program calls, by their C names. Each turns pointers into references and
//! asks the safe code; what is Linux's goes on to the C library.
//!
//! # Safety
//! All of them: as the function of this name demands, see its manual page.
#![allow(clippy::missing_safety_doc)]
#![allow(missing_docs)]

mod addresses;
mod allocate;
mod descriptors;
mod direct;
mod execute;
mod process;
mod sockets;
mod transfer;
mod waits;

use crate::ops::{self, Instead, Outcome};
use crate::real;
use libc::c_int;

/// The answer of a call that was done here, or the C library's.
fn answer<T: TryInto<isize>>(
    fd: c_int,
    outcome: Outcome<T>,
    on_linux: impl FnOnce() -> isize,
) -> isize {
    match outcome {
        Ok(value) => value.try_into().unwrap_or(0),
        Err(Instead::Linux) => match ops::before_linux(fd) {
            Ok(()) => on_linux(),
            Err(errno) => fail(errno),
        },
        Err(Instead::Errno(errno)) => fail(errno),
    }
}

/// -1 with this errno.
#[cold]
fn fail(errno: i32) -> isize {
    real::set_errno(errno);
    -1
}
