//! The Linux file under the descriptor of a socket: a real socket once Linux was asked something,
//! otherwise any file that keeps the number. A connection that is IX's from `socket` or `accept` to
//! `close` needs no call to Linux.
use super::drop_entry;
use super::replay::replay;
use crate::fds::{self, Entry};
use crate::lock::lock;
use crate::numbers::{FREED, Linux, Taken, freed};
use crate::slab::Id;
use crate::socket::{Kind, Socket, Under};
use crate::state::Core;
use crate::{kept_numbers, log, real};
use libc::{AF_INET, AF_INET6, SOCK_CLOEXEC, SOCK_DGRAM, SOCK_NONBLOCK, SOCK_STREAM};
use std::os::fd::RawFd;

/// Linux's sockets of one domain and type.
struct Sockets(i32, i32);

impl Linux for Sockets {
    fn open(&mut self) -> Result<RawFd, i32> {
        // Before the program executes another one, sockets that it may inherit lose the flag.
        // SAFETY: no pointers.
        let fd = unsafe { real::socket(self.0, self.1 | SOCK_CLOEXEC, 0) };
        if fd < 0 { Err(real::errno()) } else { Ok(fd) }
    }

    fn close(&mut self, fd: RawFd) {
        // SAFETY: ours alone.
        unsafe { real::close(fd) };
    }
}

/// Gives a descriptor number to a new socket that is or may become IX's.
pub fn give_number(core: &mut Core, id: Id, flags: i32) -> Result<RawFd, i32> {
    let Some(socket) = core.sockets.get(id) else { return Err(libc::EBADF) };
    let mut linux = linux_kind(socket);
    let taken = core.numbers.take(&FREED, &mut linux);
    kept_numbers::changed(core);
    let Some(socket) = core.sockets.get_mut(id) else { return Err(libc::EBADF) };
    let (fd, under) = match taken? {
        Taken::Opened(fd) => (fd, Under::Untouched),
        Taken::Kept(fd) => (fd, Under::Number),
    };
    if fd as usize >= fds::FDS_MAX {
        // SAFETY: no pointers; the program does not know the descriptor yet.
        unsafe { real::close(fd) };
        let text = format!(
            "no descriptor for a socket: its number must be below {}, and all of those are in use",
            fds::FDS_MAX
        );
        log::once(log::Once::Descriptors, &text);
        return Err(libc::EMFILE);
    }
    (socket.fds, socket.number, socket.under) = (1, fd, under);
    socket.nonblocking = flags & SOCK_NONBLOCK != 0;
    socket.close_on_exec = flags & SOCK_CLOEXEC != 0;
    // If the number is still in our table, the program has closed it by a call that is not seen
    // here.
    let before = fds::replace(fd, Entry::Socket(fds::index_of(id)));
    drop_entry(core, before);
    Ok(fd)
}

fn linux_kind(socket: &Socket) -> Sockets {
    let domain = if socket.ipv6 { AF_INET6 } else { AF_INET };
    Sockets(domain, if socket.is_tcp() { SOCK_STREAM } else { SOCK_DGRAM })
}

/// Closes a descriptor that is not simply Linux's. Returns its entry, which the caller drops.
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
            kept_numbers::close(over);
        }
        kept_numbers::changed(core);
    } else {
        fds::replace(fd, Entry::Linux);
        // SAFETY: the program closes it.
        unsafe { real::close(fd) };
        freed(fd);
    }
    entry
}

/// Makes sure that there is a Linux socket under a descriptor, with all options that the program
/// has set so far.
pub fn use_linux(core: &mut Core, fd: RawFd) -> Result<(), i32> {
    let Entry::Socket(index) = fds::get(fd) else { return Ok(()) };
    let Some(id) = core.sockets.id_at(index) else { return Ok(()) };
    let Some(socket) = core.sockets.get_mut(id) else { return Ok(()) };
    if socket.under == Under::Number {
        let new = linux_kind(socket).open()?;
        // SAFETY: no pointers; only this function knows of `new`.
        unsafe {
            real::dup3(new, socket.number, libc::O_CLOEXEC);
            real::close(new);
        }
    }
    if socket.under != Under::Used {
        socket.under = Under::Used;
        replay(socket);
    }
    Ok(())
}

/// The same, for a call that goes on to Linux as a whole.
pub fn before_linux(fd: RawFd) -> Result<(), i32> {
    match fds::get(fd) {
        Entry::Socket(_) => use_linux(&mut lock(), fd),
        Entry::Kept => Err(libc::EBADF),
        _ => Ok(()),
    }
}

/// Before a fork: undecided sockets become real sockets, which both processes will have. Files that
/// keep numbers will be shared.
pub fn before_fork(core: &mut Core) {
    kept_numbers::give_back(core, usize::MAX, 0);
    for id in core.sockets.ids() {
        let Some(socket) = core.sockets.get_mut(id) else { continue };
        socket.alone = false;
        let (number, idle) = (socket.number, matches!(socket.kind, Kind::Idle { .. }));
        if idle && socket.fds > 0 {
            // If no descriptor is free, each process makes one of its own later.
            let _ = use_linux(core, number);
        }
    }
}

/// Before another program is executed, here or in a child: it inherits what it would on Linux.
pub fn before_exec() {
    let mut core = lock();
    kept_numbers::give_back(&mut core, usize::MAX, 0);
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
