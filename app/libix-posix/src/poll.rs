//! `poll` and `select`: IX's descriptors and Linux's in the same call.
use crate::epoll::is_over;
use crate::epoll_set::{self, NESTED_MAX};
use crate::fds::{self, Entry};
use crate::lock::lock;
use crate::ops::{self, Instead, Outcome};
use crate::slab::Id;
use crate::socket::Kind;
use crate::state::Core;
use crate::wait::{self, Interest, Stop, WaitSpec};
use crate::{filtered, real, signals};
use libc::{EPOLL_CTL_ADD, epoll_event, pollfd};
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// What a socket that can send is.
const WRITABLE: i16 = crate::epoll_set::WRITABLE as i16;
/// Time between looks at Linux's descriptors that nothing can watch.
const UNWATCHED: Duration = Duration::from_millis(10);

/// The descriptors of a `poll`, by owner.
#[derive(Default)]
struct Parts {
    /// Sockets of IX, each with its index in the array.
    ours: Vec<(usize, Id)>,
    sockets: Vec<Id>,
    sets: Vec<Id>,
    /// Epoll sets, each with its index in the array.
    nested: Vec<(usize, Id)>,
    /// Indexes of Linux's descriptors.
    linux: Vec<usize>,
    /// Those of them that can send when IX says so.
    udp: Vec<usize>,
}

/// `poll`. Returns `Linux` if no descriptor is IX's.
pub fn poll(fds: &mut [pollfd], until: Option<Instant>) -> Outcome<usize> {
    if !fds.iter().any(|poll| fds::is_ours(poll.fd)) {
        return Err(Instead::Linux);
    }
    let mut core = lock();
    let parts = parts(&mut core, fds);
    if parts.ours.is_empty() && parts.sets.is_empty() {
        return Err(Instead::Linux);
    }
    let on_linux = |index: &usize| match parts.udp.contains(index) {
        true => pollfd { events: fds[*index].events & !WRITABLE, ..fds[*index] },
        false => fds[*index],
    };
    let mut linux: Vec<pollfd> = parts.linux.iter().map(on_linux).collect();
    let watched = Watched::of(&linux);
    let mut asked = false;
    loop {
        let mut count = ours_ready(&mut core, &parts, fds);
        if count == 0 && !asked {
            // A program that never waits gets a cycle too.
            asked = true;
            if until.is_some_and(is_over) {
                let home = core.home();
                core = wait::poll(core, home);
                count = ours_ready(&mut core, &parts, fds);
            }
        }
        let heard = linux_ready(&mut linux, &parts, fds);
        core.linux_side.news += u64::from(linux.iter().any(|poll| poll.revents != 0));
        count += heard;
        if count > 0 || until.is_some_and(is_over) {
            return Ok(count);
        }
        let interest = Interest::Several(&parts.sockets, &parts.sets);
        let unwatched = !linux.is_empty() && watched.fd().is_none();
        let again = unwatched.then(|| Instant::now() + UNWATCHED);
        let until = until.into_iter().chain(again).min();
        let how = WaitSpec { interest, until, linux: watched.fd(), drives: true };
        let (back, result) =
            wait::wait(core, how, |core| (ours_ready(core, &parts, fds) > 0).then_some(()));
        core = back;
        if result == Err(Stop::Interrupted) {
            return Err(libc::EINTR.into());
        }
    }
}

fn parts(core: &mut Core, fds: &[pollfd]) -> Parts {
    let mut parts = Parts::default();
    let home = core.home();
    for (index, poll) in fds.iter().enumerate() {
        match fds::get(poll.fd) {
            Entry::Socket(socket) => {
                let Some(id) = core.sockets.id_at(socket) else { continue };
                core.sees_what_it_is(id);
                let Some(socket) = core.sockets.get_mut(id) else { continue };
                let is_linux = socket.is_linux();
                socket.is_used();
                let both = socket.listener().is_some_and(|listener| {
                    listener.elastic = Some(home);
                    listener.both
                });
                let is_udp = matches!(&socket.kind, Kind::Datagrams(udp) if udp.both);
                if is_udp {
                    parts.udp.push(index);
                }
                if is_linux || both || is_udp {
                    // If no descriptor is free for a real socket, Linux is asked without one.
                    let _ = ops::use_linux(core, poll.fd);
                    parts.linux.push(index);
                }
                if !is_linux {
                    parts.ours.push((index, id));
                    parts.sockets.push(id);
                }
            }
            Entry::Epoll(set) => {
                parts.linux.push(index);
                if let Some(id) = core.sets.id_at(set) {
                    parts.sets.push(id);
                    parts.nested.push((index, id));
                }
            }
            // The program has closed it; no socket has this id.
            Entry::Kept => parts.ours.push((index, 0)),
            _ => parts.linux.push(index),
        }
    }
    parts
}

fn ours_ready(core: &mut Core, parts: &Parts, fds: &mut [pollfd]) -> usize {
    const ALWAYS: i16 = libc::POLLERR | libc::POLLHUP;
    for (index, id) in &parts.ours {
        let poll = &mut fds[*index];
        let bits = core.sockets.get(*id).map_or(libc::POLLNVAL, |s| s.readiness() as i16);
        poll.revents = bits & (poll.events | ALWAYS | libc::POLLNVAL);
    }
    for (index, id) in &parts.nested {
        epoll_set::refresh_nested(&mut core.sets, &core.sockets, *id, NESTED_MAX);
        let ready = core.sets.get(*id).is_some_and(|set| set.is_ready(&core.sockets));
        let poll = &mut fds[*index];
        poll.revents = if ready { poll.events & libc::POLLIN } else { 0 };
    }
    let both = parts.ours.iter().chain(&parts.nested);
    both.filter(|(index, _)| fds[*index].revents != 0).count()
}

fn linux_ready(linux: &mut [pollfd], parts: &Parts, fds: &mut [pollfd]) -> usize {
    if linux.is_empty() {
        return 0;
    }
    real::own_call();
    // SAFETY: a slice with its length; the system call itself, which no library can replace.
    let ready = unsafe { libc::syscall(libc::SYS_poll, linux.as_mut_ptr(), linux.len(), 0) };
    let mut count = 0;
    for (poll, index) in linux.iter().zip(&parts.linux) {
        let mut both = parts.ours.iter().chain(&parts.nested);
        let ours = both.any(|(other, _)| other == index);
        let news = if ready > 0 { poll.revents } else { 0 };
        let before = if ours { fds[*index].revents } else { 0 };
        fds[*index].revents = before | news;
        count += usize::from(before == 0 && news != 0);
    }
    count
}

/// A descriptor that is readable when one of Linux's descriptors is ready.
enum Watched {
    Nothing,
    /// The only one, if the program waits to read it.
    One(RawFd),
    /// An epoll set of them, which is ours.
    Set(RawFd),
}

impl Watched {
    fn of(linux: &[pollfd]) -> Watched {
        let mut some = linux.iter().filter(|poll| poll.fd >= 0);
        match (some.next(), some.next()) {
            (None, _) => return Watched::Nothing,
            (Some(only), None) if only.events == libc::POLLIN => return Watched::One(only.fd),
            _ => {}
        }
        if filtered::is_filtered() {
            return Watched::Nothing;
        }
        // SAFETY: no pointers, then events of ours. A descriptor that cannot be watched (a file) is
        // always ready, which the first check has reported.
        unsafe {
            let set = libc::syscall(libc::SYS_epoll_create1, libc::EPOLL_CLOEXEC) as RawFd;
            for poll in linux.iter().filter(|poll| poll.fd >= 0) {
                let mut event = epoll_event { events: poll.events as u16 as u32, u64: 0 };
                libc::syscall(libc::SYS_epoll_ctl, set, EPOLL_CTL_ADD, poll.fd, &raw mut event);
            }
            if set < 0 { Watched::Nothing } else { Watched::Set(set) }
        }
    }

    fn fd(&self) -> Option<RawFd> {
        match self {
            Watched::Nothing => None,
            Watched::One(fd) | Watched::Set(fd) => Some(*fd),
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Watched::Set(fd) = self {
            // SAFETY: ours alone.
            unsafe { libc::syscall(libc::SYS_close, *fd) };
        }
    }
}

/// `select`, by `poll`. The sets have a bit for each descriptor below `count`.
pub fn select(
    count: i32,
    read: &mut [u64],
    write: &mut [u64],
    except: &mut [u64],
    until: Option<Instant>,
) -> Outcome<usize> {
    use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, POLLPRI, POLLRDHUP};
    let has = |bits: &[u64], fd: i32| {
        bits.get(fd as usize / 64).is_some_and(|word| word >> (fd % 64) & 1 != 0)
    };
    let mut polls = Vec::new();
    for fd in 0..count {
        let mut events = 0;
        events |= if has(read, fd) { POLLIN | POLLRDHUP } else { 0 };
        events |= if has(write, fd) { POLLOUT } else { 0 };
        events |= if has(except, fd) { POLLPRI } else { 0 };
        if events != 0 {
            polls.push(pollfd { fd, events, revents: 0 });
        }
    }
    signals::reset();
    poll(&mut polls, until)?;
    if polls.iter().any(|poll| poll.revents & libc::POLLNVAL != 0) {
        return Err(libc::EBADF.into());
    }
    [&mut *read, &mut *write, &mut *except].into_iter().for_each(|bits| bits.fill(0));
    let mut ready = 0;
    let mut set = |bits: &mut [u64], fd: i32| {
        bits[fd as usize / 64] |= 1 << (fd % 64);
        ready += 1;
    };
    for poll in &polls {
        let on = |mask| poll.revents & mask != 0;
        if poll.events & POLLIN != 0 && on(POLLIN | POLLHUP | POLLERR | POLLRDHUP) {
            set(read, poll.fd);
        }
        if poll.events & POLLOUT != 0 && on(POLLOUT | POLLERR) {
            set(write, poll.fd);
        }
        if poll.events & POLLPRI != 0 && on(POLLPRI) {
            set(except, poll.fd);
        }
    }
    Ok(ready)
}
