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
use crate::verdict::{self, FILTER_MAX};
use crate::{fds, filtered, log, mem, serving, wake};
use core::sync::atomic::{AtomicBool, Ordering};
use libc::{c_long, rlimit, sock_filter};

/// Smallest limit on descriptors with which a process can use IX: a thread polls up to three at
/// a time, and Linux refuses to poll more than the limit.
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

/// What a thread is about to have said of its system calls.
#[derive(Clone, Copy)]
pub enum Filter<'a> {
    /// Nothing but reading, writing and its end (`SECCOMP_MODE_STRICT`).
    Strict,
    /// A filter.
    Program(&'a [sock_filter]),
    /// Something that another library will build.
    Unknown,
}

/// How [`libc::prctl`] and `seccomp` number them, and what they pass.
///
/// # Safety
/// `program` is null, or a filter of the program's that does not change during `'a`.
pub unsafe fn filter<'a>(is_strict: bool, program: *const libc::sock_fprog) -> Filter<'a> {
    if is_strict {
        return Filter::Strict;
    }
    if !mem::is_possible(program, size_of::<libc::sock_fprog>()) {
        return Filter::Unknown;
    }
    // SAFETY: the caller's promise.
    unsafe {
        let libc::sock_fprog { len, filter } = program.read_unaligned();
        let len = usize::from(len).min(FILTER_MAX);
        if !mem::is_possible(filter.cast_const(), len * size_of::<sock_filter>()) {
            return Filter::Unknown;
        }
        Filter::Program(core::slice::from_raw_parts(filter, len))
    }
}

/// Calls that threads with a filter make for IX, and those that a trapped call needs beside.
const NEEDED: [(c_long, &str); 6] = [
    (libc::SYS_ppoll, "ppoll"),
    (libc::SYS_read, "read"),
    (libc::SYS_write, "write"),
    (libc::SYS_futex, "futex"),
    (libc::SYS_rt_sigprocmask, "rt_sigprocmask"),
    (libc::SYS_rt_sigreturn, "rt_sigreturn"),
];
/// How many of them are for traps only.
const FOR_TRAPS: usize = 2;

impl Filter<'_> {
    /// The first call that IX needs and that is refused; `None`: not known of any.
    fn refuses(&self, traps: bool) -> Option<&'static str> {
        let needed = &NEEDED[..NEEDED.len() - if traps { 0 } else { FOR_TRAPS }];
        let is_refused = |number: c_long| match self {
            Filter::Strict => number != libc::SYS_read && number != libc::SYS_write,
            Filter::Program(filter) => verdict::allows(filter, number as u32) == Some(false),
            Filter::Unknown => false,
        };
        needed.iter().find(|(number, _)| is_refused(*number)).map(|(_, name)| *name)
    }
}

/// A thread of the process has a filter.
static HAS_FILTER: AtomicBool = AtomicBool::new(false);

/// Whether a thread of the process may have set itself a filter.
pub fn has_filter() -> bool {
    HAS_FILTER.load(Ordering::Relaxed)
}

/// The calling thread is about to filter its system calls. `traps`: its calls come by signals.
pub fn before_filter(filter: Filter<'_>, traps: bool) {
    HAS_FILTER.store(true, Ordering::Relaxed);
    if prepare() {
        filtered::set(true);
        if let Some(name) = filter.refuses(traps) {
            log::once(
                log::Once::Filter,
                &format!(
                    "the program forbids itself the system call {name} (seccomp), which IX needs \
                     in its process: its sockets of IX fail from here on; let its filter allow \
                     {name}, or run it with --posix off"
                ),
            );
        }
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
