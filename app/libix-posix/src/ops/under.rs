//! What of Linux is under the descriptors of sockets: a real socket where Linux was ever asked, and
//! something that keeps the number where it was not. On the path of connections that are IX's from
//! `socket` or `accept` to `close` Linux is not called at all.
use super::drop_entry;
use crate::fds::{self, Entry};
use crate::numbers::{Freed, Linux, Taken};
use crate::options;
use crate::real;
use crate::slab::Id;
use crate::socket::{Kind, Socket, Under};
use crate::state::Core;
use crate::sync::lock;
use core::sync::atomic::{AtomicUsize, Ordering};
use libc::{AF_INET, AF_INET6, SOCK_CLOEXEC, SOCK_DGRAM, SOCK_NONBLOCK, SOCK_STREAM};
use std::os::fd::RawFd;

static FREED: Freed = Freed::new();
/// How many numbers are kept, to be looked at without the lock.
static KEPT: AtomicUsize = AtomicUsize::new(0);

/// Linux, as it makes sockets of one kind.
struct Sockets(i32, i32);

impl Linux for Sockets {
    fn open(&mut self) -> Result<RawFd, i32> {
        // What the program wants to leave to other programs is said when it executes one.
        // SAFETY: no pointers.
        let fd = unsafe { real::socket(self.0, self.1 | SOCK_CLOEXEC, 0) };
        if fd < 0 { Err(real::errno()) } else { Ok(fd) }
    }

    fn close(&mut self, fd: RawFd) {
        // SAFETY: ours alone.
        unsafe { real::close(fd) };
    }
}

/// The program has freed this number on Linux.
pub fn freed(fd: RawFd) {
    FREED.at(fd);
}

/// How many numbers may be kept, from now on: it depends on how many descriptors there may be.
pub fn limit_kept(core: &mut Core) {
    give_back(core, usize::MAX, 0);
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills a local.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    core.numbers.limit(limit.rlim_cur);
}

/// Gives so many kept numbers back to Linux, the lowest from `least` on.
pub fn give_back(core: &mut Core, count: usize, least: RawFd) {
    for _ in 0..count {
        let Some(fd) = core.numbers.give_back(least) else { break };
        give_back_one(fd);
    }
    KEPT.store(core.numbers.len(), Ordering::Release);
}

fn give_back_one(fd: RawFd) {
    // From here on a new descriptor of this number is Linux's.
    fds::replace(fd, Entry::Linux);
    // SAFETY: the program has closed it.
    unsafe { real::close(fd) };
    FREED.at(fd);
}

/// Something is about to take so many numbers from Linux, from `least` on: it finds the lowest.
#[inline]
pub fn make_room(count: usize, least: RawFd) {
    if KEPT.load(Ordering::Relaxed) > 0 {
        give_back(&mut lock(), count, least);
    }
}

/// A descriptor that Linux has just made, or none: at the lowest number that is free for the
/// program. The caller does not have the lock.
pub fn lowest(fd: RawFd, flags: i32) -> RawFd {
    if fd < 0 || KEPT.load(Ordering::Relaxed) == 0 {
        return fd;
    }
    let mut core = lock();
    let Some(to) = core.numbers.lowest().filter(|lowest| *lowest < fd) else { return fd };
    core.numbers.remove(to);
    KEPT.store(core.numbers.len(), Ordering::Release);
    let flags = if flags & SOCK_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
    fds::replace(to, Entry::Linux);
    // SAFETY: no pointers; nobody knows of `fd` yet.
    unsafe {
        real::dup3(fd, to, flags);
        real::close(fd);
    }
    FREED.at(fd);
    to
}

/// Before a `dup2` over this number: if it was kept, it is not any more.
pub fn taken_over(to: RawFd) -> bool {
    if fds::get(to) != Entry::Kept {
        return false;
    }
    let mut core = lock();
    let was_kept = core.numbers.remove(to);
    KEPT.store(core.numbers.len(), Ordering::Release);
    was_kept
}

/// ... and if the `dup2` failed, it is closed.
pub fn not_taken_over(to: RawFd) {
    give_back_one(to);
}

/// A new socket of IX, or one that may become so, gets its number.
pub fn place(core: &mut Core, id: Id, flags: i32) -> Result<RawFd, i32> {
    let Some(socket) = core.sockets.get_mut(id) else { return Err(libc::EBADF) };
    let taken = core.numbers.take(&FREED, &mut linux_kind(socket));
    KEPT.store(core.numbers.len(), Ordering::Release);
    let (fd, under) = match taken? {
        Taken::Opened(fd) => (fd, Under::Untouched),
        Taken::Kept(fd) => (fd, Under::Number),
    };
    if fd as usize >= fds::FDS_MAX {
        // SAFETY: no pointers; nobody knows of it yet.
        unsafe { real::close(fd) };
        let text = format!("sockets have numbers below {}, and all are taken", fds::FDS_MAX);
        crate::log::once(crate::log::Once::Descriptors, &text);
        return Err(libc::EMFILE);
    }
    (socket.fds, socket.number, socket.under) = (1, fd, under);
    socket.nonblocking = flags & SOCK_NONBLOCK != 0;
    socket.close_on_exec = flags & SOCK_CLOEXEC != 0;
    // A number that comes anew from Linux while we still have it was closed behind our back.
    let before = fds::replace(fd, Entry::Socket(fds::index_of(id)));
    drop_entry(core, before);
    Ok(fd)
}

fn linux_kind(socket: &Socket) -> Sockets {
    let domain = if socket.ipv6 { AF_INET6 } else { AF_INET };
    Sockets(domain, if socket.is_tcp() { SOCK_STREAM } else { SOCK_DGRAM })
}

/// Closes a number of ours that is not Linux's; returns what stood there, which the caller drops.
pub fn close_number(core: &mut Core, fd: RawFd) -> Entry {
    let entry = fds::get(fd);
    let begun = core.has_begun();
    let may_be_kept = |socket: &&Socket| {
        let linuxs = matches!(socket.kind, Kind::Linux | Kind::Lost);
        begun && !linuxs && socket.alone && socket.under != Under::Used && socket.fds == 1
    };
    let kept = match entry {
        Entry::Socket(index) => core.sockets.id_at(index).and_then(|id| core.sockets.get(id)),
        _ => None,
    };
    if kept.filter(may_be_kept).is_some() {
        fds::replace(fd, Entry::Kept);
        if let Some(over) = core.numbers.keep(fd) {
            give_back_one(over);
        }
        KEPT.store(core.numbers.len(), Ordering::Release);
    } else {
        fds::replace(fd, Entry::Linux);
        // SAFETY: the program closes it.
        unsafe { real::close(fd) };
        freed(fd);
    }
    entry
}

/// The Linux socket under a descriptor is about to be asked: sees to it that there is one, and that
/// it knows what the program has set so far.
pub fn use_linux(core: &mut Core, fd: RawFd) -> Result<(), i32> {
    let Entry::Socket(index) = fds::get(fd) else { return Ok(()) };
    let Some(id) = core.sockets.id_at(index) else { return Ok(()) };
    let Some(socket) = core.sockets.get_mut(id) else { return Ok(()) };
    if socket.under == Under::Number {
        let new = linux_kind(socket).open()?;
        // SAFETY: no pointers; nobody knows of `new`.
        unsafe {
            real::dup3(new, socket.number, libc::O_CLOEXEC);
            real::close(new);
        }
    }
    if socket.under != Under::Used {
        socket.under = Under::Used;
        options::replay(socket);
    }
    Ok(())
}

/// The same for a call that goes on to Linux as a whole.
pub fn before_linux(fd: RawFd) -> Result<(), i32> {
    match fds::get(fd) {
        Entry::Socket(_) => use_linux(&mut lock(), fd),
        Entry::Kept => Err(libc::EBADF),
        _ => Ok(()),
    }
}

/// Before a fork: what is undecided becomes a real socket, which both will have; what keeps numbers
/// is no longer ours alone.
pub fn before_fork(core: &mut Core) {
    give_back(core, usize::MAX, 0);
    for id in core.sockets.ids() {
        let Some(socket) = core.sockets.get_mut(id) else { continue };
        socket.alone = false;
        let (number, idle) = (socket.number, matches!(socket.kind, Kind::Idle { .. }));
        if idle && socket.fds > 0 {
            // Without room for it the child has one of its own, later.
            let _ = use_linux(core, number);
        }
    }
}

/// Before another program is executed, here or in a child: it finds what it would find on Linux.
pub fn before_exec() {
    let mut core = lock();
    give_back(&mut core, usize::MAX, 0);
    for id in core.sockets.ids() {
        let Some(socket) = core.sockets.get_mut(id) else { continue };
        let differs = !socket.close_on_exec || !socket.alone;
        if socket.fds > 0 && socket.under != Under::Used && differs {
            socket.alone = false;
            let flags = if socket.close_on_exec { libc::FD_CLOEXEC } else { 0 };
            // SAFETY: no pointers.
            unsafe { libc::syscall(libc::SYS_fcntl, socket.number, libc::F_SETFD, flags) };
        }
    }
}
