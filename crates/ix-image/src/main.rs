//! The dataplane image: a static position-independent executable planted into the program.
//!
//! `ix_domain::launch` maps it into a process that has not run an instruction yet and lets it run
//! first. It has a C library, a heap and thread-local storage of its own. What it does:
//!
//! 1. `main`: read the command line;
//! 2. [`boot`]: say hello to the broker, get configuration and descriptors, start the dataplane, at once
//!    or [`later`];
//! 3. [`elastic`]: make a stack and thread-local storage for each elastic thread;
//! 4. [`resume`]: write the header's address into `IX_ABI`, and jump to the program's entry.
//!
//! From then on it runs only when the program calls the [`gate`].
//!
//! Built by `build_image.rs` with `+crt-static`. It is also a member of the workspace, where it
//! compiles as an ordinary program that nobody runs.
#![cfg_attr(not(test), no_main)]
#![cfg_attr(test, allow(dead_code))]

mod arguments;
mod boot;
#[cfg(not(test))]
mod c_symbols;
mod elastic;
mod faults;
mod gate;
mod heap;
mod later;
mod resume;
mod signals;
mod survivor;
mod sys;
mod updates;
mod wall;

use arguments::Arguments;
use ix_domain::{Channel, FromImage, ReservedFds};
use std::ffi::{c_char, c_int};
use std::os::fd::{FromRawFd, OwnedFd};

/// Not Rust's own `main`: that would ignore SIGPIPE and install handlers for SIGSEGV and SIGBUS, and
/// the program would inherit it all.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn main(argc: c_int, argv: *const *const c_char, _env: *const *const c_char) -> c_int {
    // SAFETY: the C library passes the argument vector that the launcher has built.
    let arguments = unsafe { Arguments::read(argc, argv) };
    let Some(arguments) = arguments else {
        eprintln!("ix-image: this is the dataplane of `ix run`; it is not for starting by hand");
        return 2;
    };
    std::panic::set_hook(Box::new(|info| eprintln!("ix: fault in the dataplane: {info}")));
    // SAFETY: the launcher has given us this descriptor, and nobody else knows of it.
    let fd = unsafe { OwnedFd::from_raw_fd(arguments.channel) };
    // It was inherited across the exec of the program, and must not be across the next.
    // SAFETY: no pointers.
    unsafe { libc::fcntl(arguments.channel, libc::F_SETFD, libc::FD_CLOEXEC) };
    let channel = Channel::from_fd(fd);
    let started = boot::can_start().and_then(|()| reserved());
    let started = started.and_then(|reserved| match arguments.later {
        true => {
            later::prepare(arguments.channel, reserved);
            reserved.fence().map_err(|e| format!("setrlimit: {e}"))?;
            Ok((&raw const later::STARTER).addr())
        }
        false => boot::start(&channel, reserved, &arguments.domain, false)
            .map(|header| header.expose_provenance()),
    });
    match started {
        // SAFETY: the launcher has read both from the stopped process, and no code of the program
        // has run since. The channel stays open.
        Ok(address) => unsafe { resume::program(&arguments, address) },
        Err(why) => {
            // When the broker is gone too, there is nobody to tell.
            let _ = channel.send(&FromImage::Failed(why).encode(), &[]);
            1
        }
    }
}

fn reserved() -> Result<ReservedFds, String> {
    ReservedFds::of_this_process().map_err(|e| format!("getrlimit: {e}"))
}
