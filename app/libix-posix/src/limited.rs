//! Processes that limit themselves: a filter of system calls (seccomp), or a limit of descriptors
//! that leaves none for this library.
//!
//! Such a process attaches before the limit, if it has sockets that could be IX's. A filter is a
//! thread's own, and ends the process at a call that it does not know. So from then on the threads
//! of the program make none for IX but `ppoll`, and reads and writes of descriptors that are open:
//! the helpers, which were started before, drive in their place.
use crate::lock::lock;
use crate::socket::{Kind, Socket};
use crate::state::Core;
use crate::{fds, filtered, serving, wake};
use libc::rlimit;

/// A process of IX needs a limit of at least so many descriptors: a thread polls that many at a
/// time, and Linux refuses to poll more than the limit.
const POLLED_MAX: u64 = 3;
/// With a limit below this one, a process may find no number for a descriptor of this library.
const ENOUGH: u64 = 64;

/// Whether a process has sockets that could be IX's.
fn has_sockets(core: &Core) -> bool {
    let is_ix = |socket: &Socket| match socket.kind {
        Kind::Stream(_) | Kind::Listener(_) | Kind::Datagrams(_) => socket.fds > 0,
        Kind::Linux | Kind::Idle { .. } | Kind::Lost => false,
    };
    core.sockets.ids().into_iter().any(|id| core.sockets.get(id).is_some_and(is_ix))
}

/// Attaches, if this process has sockets that could be IX's. Returns whether it is attached.
fn attach() -> bool {
    if !serving::is_offered() || !serving::is_shared() {
        return false;
    }
    let mut core = lock();
    core.has_begun() || has_sockets(&core) && serving::start(&mut core)
}

/// Attaches, and opens now what cannot be opened behind the limit. Returns whether it is attached.
fn prepare() -> bool {
    let attached = attach();
    if attached {
        wake::own_fd();
        if !filtered::has_come_out() {
            filtered::replace_come_out(wake::new_fd());
        }
    }
    attached
}

/// The calling thread is about to filter its system calls.
pub fn before_filter() {
    if prepare() {
        filtered::set(true);
    }
}

/// The program is about to set a limit of descriptors: the limit that leaves IX what it needs, if
/// that is another one. `needed`: the dataplane's numbers are below this one.
pub fn before_limit(limit: &rlimit, needed: u64) -> Option<rlimit> {
    if limit.rlim_cur < ENOUGH {
        prepare();
    }
    let room = rlimit {
        rlim_cur: limit.rlim_cur.max(POLLED_MAX),
        rlim_max: limit.rlim_max.max(needed).max(POLLED_MAX),
    };
    let is_same = room.rlim_cur == limit.rlim_cur && room.rlim_max == limit.rlim_max;
    (needed > 0 && !is_same).then_some(room)
}

/// In a forked child, whose helpers are not there. Its threads have the filter, too.
pub fn forked() {
    filtered::set(false);
    let fd = filtered::replace_come_out(-1);
    if fd >= 0 {
        fds::close_private(fd);
    }
}
