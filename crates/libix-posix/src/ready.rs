//! Waiting for several descriptors at once, IX's and Linux's together: `epoll`, `poll`, `select`.
use crate::drive::{self, How, Interest, Stop};
use crate::epoll::{Set, Teller};
use crate::fds::{self, Entry};
use crate::ops::{Instead, Outcome, socket_of};
use crate::real;
use crate::signals;
use crate::slab::Id;
use crate::socket::{Kind, Watch};
use crate::state::Core;
use crate::sync::{Guard, lock, out_of_the_way};
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, epoll_event, pollfd};
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// How long Linux's descriptors of a set may go unlooked at while IX's are always ready, µs.
const LOOK_US: u64 = 100;

/// A new epoll set of the program, real under its descriptor.
pub fn set_made(fd: RawFd) {
    if !crate::seat::is_offered() || fd as usize >= fds::FDS_MAX {
        return;
    }
    let Some(real) = out_of_the_way(fd) else { return };
    let mut core = lock();
    let id = core.sets.insert(Set::new(real));
    let before = fds::replace(fd, Entry::Epoll(fds::index_of(id)));
    crate::ops::drop_entry(&mut core, before);
}

/// The set behind a descriptor.
fn set_of(core: &Core, fd: RawFd) -> Outcome<Id> {
    match fds::get(fd) {
        Entry::Epoll(index) => core.sets.id_at(index).ok_or(Instead::Linux),
        _ => Err(Instead::Linux),
    }
}

/// `epoll_ctl`. `on_linux` does the same to the real set.
pub fn control(
    set_fd: RawFd,
    op: i32,
    fd: RawFd,
    event: Option<epoll_event>,
    on_linux: impl FnOnce() -> i32,
) -> Outcome<i32> {
    let mut core = lock();
    let set_id = set_of(&core, set_fd)?;
    let Entry::Socket(_) = fds::get(fd) else {
        if let Some(set) = core.sets.get_mut(set_id) {
            set.has_linux |= op == EPOLL_CTL_ADD;
        }
        return Err(Instead::Linux);
    };
    let id = socket_of(&core, fd)?;
    let Core { sockets, sets, .. } = &mut *core;
    let (Some(set), Some(socket)) = (sets.get_mut(set_id), sockets.get_mut(id)) else {
        return Err(libc::EBADF.into());
    };
    let teller = match &socket.kind {
        Kind::Linux => {
            set.has_linux |= op == EPOLL_CTL_ADD;
            return Err(Instead::Linux);
        }
        Kind::Idle { .. } => Teller::Linux,
        Kind::Listener(listener) if listener.both => Teller::Both,
        _ => Teller::Ours,
    };
    let known = set.teller(fd);
    let ours_only = known.unwrap_or(teller) == Teller::Ours;
    let watch = Watch { set: set_id, fd };
    match op {
        EPOLL_CTL_ADD => {
            let event = event.ok_or(libc::EFAULT)?;
            if known.is_some() {
                return Err(libc::EEXIST.into());
            }
            if !ours_only {
                if on_linux() < 0 {
                    return Err(real::errno().into());
                }
                set.has_linux = true;
            }
            set.add(fd, id, teller, event.events, event.u64);
            socket.watches.push(watch);
        }
        EPOLL_CTL_MOD => {
            let event = event.ok_or(libc::EFAULT)?;
            let known = known.ok_or(libc::ENOENT)?;
            if known != Teller::Ours && on_linux() < 0 {
                return Err(real::errno().into());
            }
            set.modify(fd, event.events, event.u64);
        }
        EPOLL_CTL_DEL => {
            let known = known.ok_or(libc::ENOENT)?;
            set.forget(fd);
            socket.watches.retain(|other| *other != watch);
            if known != Teller::Ours && on_linux() < 0 {
                return Err(real::errno().into());
            }
            return Ok(0);
        }
        _ => return Err(libc::EINVAL.into()),
    }
    // It may be ready already.
    let now = socket.readiness();
    if set.queue(fd, now) {
        let waiters = core::mem::take(&mut set.waiters);
        waiters.into_iter().for_each(|bell| core.ring(bell));
    } else if ours_only {
        // Whoever waits in the real set alone must come and look here as well.
        let waiters = core::mem::take(&mut set.waiters);
        waiters.into_iter().for_each(|bell| core.ring(bell));
    }
    Ok(0)
}

/// `epoll_wait`; `until` `None`: for ever.
pub fn wait_set(
    set_fd: RawFd,
    events: &mut [epoll_event],
    until: Option<Instant>,
) -> Outcome<usize> {
    let mut core = lock();
    let id = set_of(&core, set_fd)?;
    if core.tx.is_none() && core.sockets.len() == 0 {
        // The program uses no sockets that could ever be IX's.
        return Err(Instead::Linux);
    }
    loop {
        let cycle = core.cycle;
        let Some(set) = core.sets.get_mut(id) else { return Err(libc::EBADF.into()) };
        if !set.has_fresh(cycle) && (set.has_ready() || until.is_some_and(is_over)) {
            // What is ready was told in this cycle: time for another one.
            core = drive::poll(core);
        }
        let count = report(&mut core, id, events);
        if count > 0 {
            return Ok(count);
        }
        let Some(set) = core.sets.get(id) else { return Err(libc::EBADF.into()) };
        let drives = set.has_items();
        let linux = set.real;
        let how = How { interest: Interest::Set(id), until, linux: Some(linux), drives };
        let (back, result) = drive::wait(core, how, |core| {
            let Core { sets, sockets, .. } = core;
            match sets.get(id) {
                Some(set) => set.is_ready(sockets).then_some(()),
                None => Some(()),
            }
        });
        core = back;
        match result {
            Ok(()) => {}
            Err(Stop::Linux | Stop::TimedOut) => {
                let count = look_at_linux(&mut core, id, events);
                if count > 0 {
                    return Ok(count);
                }
                if result == Err(Stop::TimedOut) || until.is_some_and(is_over) {
                    return Ok(report(&mut core, id, events));
                }
            }
            Err(Stop::Interrupted) => return Err(libc::EINTR.into()),
        }
    }
}

fn is_over(until: Instant) -> bool {
    until <= Instant::now()
}

/// Reports what is ready on IX, and on Linux if nobody has looked there for long.
fn report(core: &mut Guard, id: Id, events: &mut [epoll_event]) -> usize {
    let Core { sets, sockets, cycle, .. } = &mut **core;
    let Some(set) = sets.get_mut(id) else { return 0 };
    let count = set.report(sockets, *cycle, events);
    let due = set.has_linux && drive::now_us() >= set.looked_us + LOOK_US;
    if count == 0 || !due || count == events.len() {
        return count;
    }
    count + look_at_linux(core, id, &mut events[count..])
}

/// What the real set has.
fn look_at_linux(core: &mut Guard, id: Id, events: &mut [epoll_event]) -> usize {
    let now_us = drive::now_us();
    let Some(set) = core.sets.get_mut(id) else { return 0 };
    if !set.has_linux {
        return 0;
    }
    set.looked_us = now_us;
    let (fd, room) = (set.real, events.len().min(i32::MAX as usize));
    // SAFETY: a slice with its length.
    let count =
        unsafe { real::epoll_pwait(fd, events.as_mut_ptr(), room as i32, 0, core::ptr::null()) };
    count.max(0) as usize
}

/// Parts of a `poll` by whose they are.
#[derive(Default)]
struct Parts {
    /// Sockets of IX: index in the array, name.
    ours: Vec<(usize, Id)>,
    sockets: Vec<Id>,
    sets: Vec<Id>,
    /// Epoll sets: index in the array, name.
    nested: Vec<(usize, Id)>,
    /// Indexes of Linux's.
    linux: Vec<usize>,
}

/// `poll`. `Linux`: none of the descriptors is IX's.
pub fn poll(fds: &mut [pollfd], until: Option<Instant>) -> Outcome<usize> {
    if !fds.iter().any(|poll| fds::is_ours(poll.fd)) {
        return Err(Instead::Linux);
    }
    let mut core = lock();
    let parts = parts(&core, fds);
    if parts.ours.is_empty() && parts.sets.is_empty() {
        return Err(Instead::Linux);
    }
    let mut linux: Vec<pollfd> = parts.linux.iter().map(|index| fds[*index]).collect();
    let watched = Watched::of(&linux);
    let mut asked = false;
    loop {
        let mut count = ours_ready(&core, &parts, fds);
        if count == 0 && !asked {
            // One that never waits gets a cycle, too.
            asked = true;
            if until.is_some_and(is_over) {
                core = drive::poll(core);
                count = ours_ready(&core, &parts, fds);
            }
        }
        count += linux_ready(&mut linux, &parts, fds);
        if count > 0 || until.is_some_and(is_over) {
            return Ok(count);
        }
        let interest = Interest::Several(&parts.sockets, &parts.sets);
        let how = How { interest, until, linux: watched.fd(), drives: true };
        let (back, result) =
            drive::wait(core, how, |core| (ours_ready(core, &parts, fds) > 0).then_some(()));
        core = back;
        if result == Err(Stop::Interrupted) {
            return Err(libc::EINTR.into());
        }
    }
}

fn parts(core: &Core, fds: &[pollfd]) -> Parts {
    let mut parts = Parts::default();
    for (index, poll) in fds.iter().enumerate() {
        match fds::get(poll.fd) {
            Entry::Socket(socket) => {
                let Some(id) = core.sockets.id_at(socket) else { continue };
                let Some(socket) = core.sockets.get(id) else { continue };
                let both = matches!(&socket.kind, Kind::Listener(listener) if listener.both);
                if socket.is_linux() || both {
                    parts.linux.push(index);
                }
                if !socket.is_linux() {
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
            _ => parts.linux.push(index),
        }
    }
    parts
}

fn ours_ready(core: &Core, parts: &Parts, fds: &mut [pollfd]) -> usize {
    const ALWAYS: i16 = libc::POLLERR | libc::POLLHUP;
    for (index, id) in &parts.ours {
        let poll = &mut fds[*index];
        let bits = core.sockets.get(*id).map_or(libc::POLLNVAL, |s| s.readiness() as i16);
        poll.revents = bits & (poll.events | ALWAYS | libc::POLLNVAL);
    }
    for (index, id) in &parts.nested {
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
    // SAFETY: a slice with its length; the bare call, that no other layer may change.
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

/// Something that is readable when one of Linux's descriptors is ready.
enum Watched {
    Nothing,
    /// The only one, and it is to be read.
    One(RawFd),
    /// An epoll set of them, ours alone.
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
        // SAFETY: no pointers, then events of ours. A descriptor that cannot be watched (a file) is
        // always ready, and the first look has said so.
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

/// `select` by way of `poll`: the sets hold a bit for each descriptor below `count`.
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

/// The time after which a wait of `timeout_ms` is over; negative: never.
pub fn until_ms(timeout_ms: i32) -> Option<Instant> {
    let time = u64::try_from(timeout_ms).ok()?;
    Some(Instant::now() + Duration::from_millis(time))
}
