//! The dataplane image: a static position-independent executable planted into the program.
//!
//! `ix_launch::launch` maps it into a process that has not run an instruction yet and lets it run
//! first; or Linux executes it, and it loads the program ([`load`]). It has a C library, a heap and
//! thread-local storage of its own. What it does:
//!
//! 1. `main`: read the command line;
//! 2. [`boot`]: say hello to the broker, get configuration and descriptors, and start the
//!    dataplane, at once or [`later`];
//! 3. [`elastic`]: make a stack and thread-local storage for each elastic thread;
//! 4. [`resume`]: write the header's address into `IX_ABI`, and jump to the program's entry.
//!
//! With a dataplane in a process of its own the image in the program's process only maps what is
//! shared and is the gate ([`program`]); the same image, executed alone, is that process
//! ([`dataplane`]).
//!
//! From then on it runs only when the program calls the [`gate`].
//!
//! Built by `ix_build` with `+crt-static`. It is also a member of the workspace, where it
//! compiles as an ordinary program that is never run.
#![cfg_attr(not(test), no_main)]
#![cfg_attr(test, allow(dead_code))]

mod arguments;
mod attached;
mod beside;
mod boot;
#[cfg(not(test))]
mod c_symbols;
mod dataplane;
mod dataplane_calls;
mod elastic;
mod faults;
mod gate;
mod heap;
mod later;
mod linux_thread;
mod load;
mod own_descriptors;
mod program;
mod resume;
mod seccomp;
mod signals;
mod survivor;
mod sys;
mod updates;
mod wall;

use arguments::{Arguments, Domain};
use ix_entry::{Channel, ReservedFds};
use ix_proto::Codec;
use load::Request;
use program::Failure;
use std::ffi::{c_char, c_int};
use std::os::fd::{FromRawFd, OwnedFd};

/// Not Rust's own `main`, which would ignore SIGPIPE and install handlers for SIGSEGV and SIGBUS:
/// the program would inherit both.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn main(argc: c_int, argv: *const *const c_char, env: *const *const c_char) -> c_int {
    // SAFETY: the C library passes the argument vector that the launcher has built.
    let planted = unsafe { Arguments::read(argc, argv) };
    // SAFETY: as above; behind the environment is what Linux has put there.
    let loading = unsafe { Request::read(argc, argv, env) };
    // SAFETY: as above.
    let alone = unsafe { dataplane::channel_of(argc, argv) };
    let with_program = planted.as_ref().map(|a| a.channel).or(loading.as_ref().map(|r| r.channel));
    let Some(number) = alone.or(with_program) else {
        eprintln!("ix-image: this is the dataplane of `ix run`; it cannot be started by hand");
        return 2;
    };
    std::panic::set_hook(Box::new(|info| eprintln!("ix: fault in the dataplane: {info}")));
    // SAFETY: the launcher has given us this descriptor, and nobody else knows of it.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    // It was inherited across the exec of the program, but must not be inherited across the next
    // one.
    // SAFETY: no pointers.
    unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    let channel = Channel::from_fd(fd);
    if alone.is_some() {
        return dataplane::main(channel);
    }
    let arguments = match (planted, loading) {
        (Some(arguments), _) => Ok(arguments),
        (None, Some(request)) => request.load(),
        (None, None) => Err("the image was started by hand".to_owned()),
    };
    let arguments = boot::can_start().and(arguments).and_then(beside::with_library);
    let arguments = arguments.map_err(Failure::from);
    let started = arguments.and_then(|arguments| {
        let address = begin(&channel, &arguments)?;
        Ok((arguments, address))
    });
    match started {
        // SAFETY: the launcher has read both from the stopped process, or we have made both, and no
        // code of the program has run since. The channel stays open.
        Ok((arguments, address)) => unsafe { resume::program(&arguments, address) },
        Err(failure) => {
            // If the broker is gone too, nothing can be reported.
            let _ = channel.send(&failure.told().encode(), &[]);
            1
        }
    }
}

/// Starts the dataplane, now or later; returns the address that the program gets.
fn begin(channel: &Channel, arguments: &Arguments) -> Result<usize, Failure> {
    let reserved = reserved()?;
    // A dataplane in another process may end, and this one then asks for the next.
    if arguments.later || matches!(arguments.domain, Domain::Process) {
        later::prepare(arguments.channel, reserved, arguments.domain.clone());
    }
    if arguments.later {
        reserved.fence().map_err(|e| format!("setrlimit: {e}"))?;
        return Ok((&raw const later::STARTER).addr());
    }
    let header = match &arguments.domain {
        Domain::Process => {
            // For forked children.
            later::prepare(arguments.channel, reserved, arguments.domain.clone());
            program::attach_children_by(later::start_in_child);
            program::attach(channel, reserved, later::STARTER.start)?
        }
        domain => boot::start(channel, reserved, domain, false)?,
    };
    Ok(header.expose_provenance())
}

fn reserved() -> Result<ReservedFds, String> {
    ReservedFds::of_this_process().map_err(|e| format!("getrlimit: {e}"))
}
