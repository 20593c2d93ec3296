//! The Linux file under the descriptor of a socket: a real socket once Linux was asked something,
//! otherwise any file that keeps the number. A connection that is IX's from `socket` or `accept` to
//! `close` needs no call to Linux.
use super::drop_entry;
use super::replay::replay;
use crate::fds::{self, Entry};
use crate::lock::lock;
use crate::numbers::{FREED, Linux, Taken, freed};
use crate::placeholder::Connections;
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
        real::close_held(fd);
    }
}

/// Gives a descriptor number to a new socket that is or may become IX's.
pub fn give_number(core: &mut Core, id: Id, flags: i32) -> Result<RawFd, i32> {
    let Some(socket) = core.sockets.get(id) else { return Err(libc::EBADF) };
    let is_connection = matches!(socket.kind, Kind::Stream(_));
    let taken = match is_connection {
        true => core.numbers.take(&FREED, &mut Connections { ipv6: socket.ipv6 }),
        false => core.numbers.take(&FREED, &mut linux_kind(socket)),
    };
    kept_numbers::changed(core);
    let Some(socket) = core.sockets.get_mut(id) else { return Err(libc::EBADF) };
    let (fd, under) = match taken? {
        Taken::Opened(fd) if !is_connection => (fd, Under::Untouched),
        Taken::Opened(fd) | Taken::Kept(fd) => (fd, Under::Number),
    };
    if fd as usize >= fds::FDS_MAX {
        real::close_held(fd);
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
        real::close_held(fd);
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
    if socket.under == Under::Used {
        return Ok(());
    }
    if fds::socket_inode(fd).is_none() {
        // The program has closed the number by a call that is not seen here, and it may name
        // another file now.
        let entry = fds::replace(fd, Entry::Linux);
        drop_entry(core, entry);
        return Ok(());
    }
    // This number names the socket. The one that it was given first may name another file by now.
    socket.number = fd;
    if socket.under == Under::Number {
        let new = linux_kind(socket).open()?;
        // SAFETY: no pointers; only this function knows of `new`, and while the lock is held `fd`
        // names this socket.
        unsafe {
            real::dup3(new, fd, libc::O_CLOEXEC);
            real::close_held(new);
        }
    }
    socket.under = Under::Used;
    replay(socket);
    Ok(())
}

/// An undecided socket has become a connection of IX: its Linux socket, of which the program has
/// asked nothing, is not needed any more.
pub fn needs_number_only(core: &mut Core, fd: RawFd, id: Id) {
    let Some(socket) = core.sockets.get_mut(id) else { return };
    let is_its = fds::get(fd) == Entry::Socket(fds::index_of(id)) && socket.number == fd;
    if !is_its || socket.under != Under::Untouched || !socket.is_tcp() || !socket.alone {
        return;
    }
    // The program may have closed the number by a call that is not seen here, so what is there is a
    // socket, or nothing is replaced. If Linux refuses, the socket stays.
    if fds::socket_inode(fd).is_some() && (Connections { ipv6: socket.ipv6 }).replace(fd).is_ok() {
        socket.under = Under::Number;
    }
}

/// A socket is IX's, and its Linux socket is in an epoll set under a number that no longer names
/// it: the entry can then not be deleted. Puts another file under the numbers that are left, so
/// that the Linux socket ends and its entries with it (epoll(7)).
#[cold]
pub fn replace_linux(core: &mut Core, id: Id) {
    let Some(socket) = core.sockets.get_mut(id) else { return };
    // If no descriptor is free, the program is told of the Linux socket at times.
    let Ok(new) = linux_kind(socket).open() else { return };
    for (fd, entry) in fds::within(0, u32::MAX) {
        if entry != Entry::Socket(fds::index_of(id)) {
            continue;
        }
        let flags = if fds::closes_on_exec(fd) { libc::O_CLOEXEC } else { 0 };
        // SAFETY: no pointers; the number is this socket's, and the lock is held.
        unsafe { real::dup3(new, fd, flags) };
        (socket.number, socket.under) = (fd, Under::Used);
    }
    real::close_held(new);
    replay(socket);
}

/// [`use_linux`] for a call that goes on to Linux as a whole.
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
        if idle && fds::get(number) == Entry::Socket(fds::index_of(id)) {
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
        let is_its = fds::get(socket.number) == Entry::Socket(fds::index_of(id));
        if is_its && socket.under != Under::Used && differs {
            socket.alone = false;
            let flags = if socket.close_on_exec { libc::FD_CLOEXEC } else { 0 };
            // SAFETY: no pointers.
            unsafe { libc::syscall(libc::SYS_fcntl, socket.number, libc::F_SETFD, flags) };
        }
    }
}

/// Closes all numbers of the program's on Linux; its sockets stay as they are noted here.
pub fn close_all_but_own() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills a local.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    let end = limit.rlim_cur.min(fds::FDS_MAX as u64) as RawFd;
    let mut first = 0;
    for fd in (0..end).filter(|fd| fds::get(*fd) == Entry::Private).chain([end]) {
        if fd > first {
            // SAFETY: no pointers.
            unsafe { libc::syscall(libc::SYS_close_range, first, fd - 1, 0) };
        }
        first = fd + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::duplicate_over;
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::sync::atomic::{AtomicBool, Ordering};

    fn pipe() -> (OwnedFd, OwnedFd) {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        (reader.into(), writer.into())
    }

    fn is_socket(fd: RawFd) -> bool {
        fds::socket_inode(fd).is_some()
    }

    fn flags(fd: RawFd) -> i32 {
        // SAFETY: no pointers.
        unsafe { libc::fcntl(fd, libc::F_GETFD) }
    }

    /// A socket whose descriptor is a file of Linux's that only keeps the number.
    fn unused(core: &mut Core) -> (Id, RawFd) {
        let idle = Kind::Idle { stream: true, ix: true, both: false };
        let id = core.sockets.insert(Socket::new(idle, false, false));
        let fd = give_number(core, id, 0).expect("a number");
        core.sockets.get_mut(id).expect("it").under = Under::Number;
        (id, fd)
    }

    fn close(fd: RawFd) {
        let mut core = lock();
        let entry = close_number(&mut core, fd);
        drop_entry(&mut core, entry);
    }

    #[test]
    fn a_number_that_names_another_file_by_now_is_left_alone() {
        let (reader, _writer) = pipe();
        let other = reader.as_raw_fd();
        let before = flags(other);
        assert_ne!(before & libc::FD_CLOEXEC, 0);
        let (id, fd) = unused(&mut lock());
        lock().sockets.get_mut(id).expect("it").number = other;
        before_exec();
        assert_eq!(flags(other), before);
        before_fork(&mut lock());
        use_linux(&mut lock(), fd).expect("a Linux socket");
        assert!(is_socket(fd) && !is_socket(other));
        assert_eq!(flags(other), before);
        close(fd);
    }

    #[test]
    fn a_number_that_was_closed_unseen_is_left_alone() {
        let (reader, _writer) = pipe();
        // Held all the time: another test's fork would notice the pipe first.
        let mut core = lock();
        let (_, fd) = unused(&mut core);
        // SAFETY: no pointers. As the C library does inside of its own functions.
        unsafe { libc::syscall(libc::SYS_dup2, reader.as_raw_fd(), fd) };
        use_linux(&mut core, fd).expect("nothing to do");
        drop(core);
        assert!(!is_socket(fd), "the pipe is still there");
        assert_eq!(fds::get(fd), Entry::Linux);
        real::close_held(fd);
    }

    #[test]
    fn a_file_that_replaces_a_socket_stays_while_another_thread_forks() {
        let (reader, _writer) = pipe();
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    before_fork(&mut lock());
                    before_exec();
                }
            });
            for round in 0..5000 {
                let (_, fd) = unused(&mut lock());
                // SAFETY: no pointers.
                let dup = || unsafe {
                    let new = real::dup3(reader.as_raw_fd(), fd, libc::O_CLOEXEC);
                    std::thread::yield_now();
                    new
                };
                let result = duplicate_over(reader.as_raw_fd(), fd, dup);
                let (kept, closes) = (!is_socket(fd), flags(fd) & libc::FD_CLOEXEC != 0);
                real::close_held(fd);
                ends.store(!kept || !closes || round == 4999, Ordering::Relaxed);
                assert_eq!(result, Ok(fd));
                assert!(kept && closes, "round {round}");
            }
        });
    }
}
