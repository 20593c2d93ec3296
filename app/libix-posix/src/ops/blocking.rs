//! Calls that block, and `O_NONBLOCK`.
use super::{Instead, Outcome, socket_of};
use crate::lock::{Guard, lock};
use crate::signals;
use crate::slab::Id;
use crate::socket::Socket;
use crate::state::Core;
use crate::wait::{self, Interest, Stop, WaitSpec};
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// Waits as a blocking call on a socket does, until `attempt` returns something.
pub fn block<T>(
    mut core: Guard,
    id: Id,
    timeout: Option<Duration>,
    mut attempt: impl FnMut(&mut Core) -> Option<Result<T, i32>>,
) -> Result<T, i32> {
    let until = timeout.map(|timeout| Instant::now() + timeout);
    let how = WaitSpec { interest: Interest::Socket(id), until, linux: None, drives: true };
    loop {
        let (back, result) = wait::wait(core, how, &mut attempt);
        match result {
            Ok(result) => return result,
            Err(Stop::TimedOut) => return Err(libc::EAGAIN),
            Err(Stop::Linux) => {}
            // A call with a timeout is never restarted (signal(7)).
            Err(Stop::Interrupted) if signals::interrupted() == 1 && timeout.is_none() => {
                signals::reset();
            }
            Err(Stop::Interrupted) => {
                signals::ends_call(timeout);
                return Err(libc::EINTR);
            }
        }
        core = back;
    }
}

/// Sets `O_NONBLOCK` of a socket, if it is ours.
pub fn set_nonblocking(fd: RawFd, on: bool) {
    let mut core = lock();
    if let Ok(id) = socket_of(&mut core, fd) {
        core.change_file_flags(id, |core| {
            core.sockets.get_mut(id).into_iter().for_each(|socket| socket.nonblocking = on);
        });
    }
}

/// Whether a socket has `O_NONBLOCK`; `Linux` if the Linux socket under the descriptor has the
/// flag.
pub fn is_nonblocking(fd: RawFd) -> Outcome<bool> {
    let mut core = lock();
    let id = socket_of(&mut core, fd)?;
    core.sees_file_flags(id);
    core.sockets.get(id).map(|socket: &Socket| socket.nonblocking).ok_or(Instead::Linux)
}
