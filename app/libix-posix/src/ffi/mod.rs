//! The functions that the program calls, by their C names. Each turns pointers into references and
//! calls safe code. Calls for Linux go on to the C library.
//!
//! # Safety
//! Each function demands what its manual page says.
#![allow(clippy::missing_safety_doc)]
#![allow(missing_docs)]

mod addresses;
mod allocate;
pub mod descriptors;
mod direct;
pub mod execute;
mod own_ring;
pub mod passing;
pub mod process;
pub mod sockets;
pub mod transfer;
pub mod uring;
pub mod uring_waits;
pub mod waits;

use crate::ops::{self, Instead, Outcome};
use crate::real;
use libc::c_int;

/// The return value of a call: of one done here, or the C library's.
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
        Err(Instead::Made(result)) => result,
        Err(Instead::Errno(errno)) => fail(errno),
    }
}

/// Sets errno and returns -1.
#[cold]
fn fail(errno: i32) -> isize {
    real::set_errno(errno);
    -1
}
