//! `epoll`: IX's descriptors and Linux's in the same set.
use crate::drive::{self, How, Interest, Stop};
use crate::epoll::{self, NESTED_MAX, Set, Teller, What};
use crate::fds::{self, Entry};
use crate::ops::{Instead, Outcome, socket_of};
use crate::real;
use crate::slab::Id;
use crate::socket::{Kind, Watch};
use crate::state::Core;
use crate::sync::{Guard, lock, out_of_the_way};
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, epoll_event};
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
    if let Entry::Epoll(inner) = fds::get(fd) {
        return control_nested(&mut core, set_id, op, (fd, inner), event, on_linux);
    }
    let Entry::Socket(_) = fds::get(fd) else {
        if fds::get(fd) == Entry::Kept {
            return Err(libc::EBADF.into());
        }
        if let Some(set) = core.sets.get_mut(set_id) {
            set.has_linux |= op == EPOLL_CTL_ADD;
        }
        return Err(Instead::Linux);
    };
    let id = socket_of(&core, fd)?;
    if core.sockets.get(id).is_some_and(|socket| matches!(socket.kind, Kind::Idle { .. })) {
        // The real set has it until it is decided whose it is.
        crate::ops::use_linux(&mut core, fd)?;
    }
    let Core { sockets, sets, called, .. } = &mut *core;
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
            set.add(fd, What::Socket(id), teller, event.events, event.u64);
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
    epoll::tell(sets, watch, now, &mut |waiter| called.add(waiter));
    if ours_only && let Some(set) = core.sets.get_mut(set_id) {
        // Whoever waits in the real set alone must come and look here as well.
        let waiters = core::mem::take(&mut set.waiters);
        waiters.into_iter().for_each(|waiter| core.called.add(waiter));
    }
    Ok(0)
}

/// The same for a set in a set: Linux's descriptors in it are told of by the real sets, which lie
/// in each other in the same way, and ours by ours. Linux knows which nestings there may be.
fn control_nested(
    core: &mut Guard,
    set_id: Id,
    op: i32,
    (fd, inner): (RawFd, u32),
    event: Option<epoll_event>,
    on_linux: impl FnOnce() -> i32,
) -> Outcome<i32> {
    if on_linux() < 0 {
        return Err(real::errno().into());
    }
    let Core { sets, sockets, called, .. } = &mut **core;
    let inner_id = sets.id_at(inner).ok_or(libc::EBADF)?;
    let set = sets.get_mut(set_id).ok_or(libc::EBADF)?;
    let watch = Watch { set: set_id, fd };
    match (op, event) {
        (EPOLL_CTL_ADD, Some(event)) => {
            set.has_linux = true;
            set.add(fd, What::Set(inner_id, false), Teller::Both, event.events, event.u64);
            sets.get_mut(inner_id).ok_or(libc::EBADF)?.watches.push(watch);
        }
        (EPOLL_CTL_MOD, Some(event)) => drop(set.modify(fd, event.events, event.u64)),
        _ => {
            set.forget(fd);
            sets.get_mut(inner_id).ok_or(libc::EBADF)?.watches.retain(|other| *other != watch);
            return Ok(0);
        }
    }
    epoll::look_into(sets, sockets, set_id, NESTED_MAX);
    if sets.get(inner_id).is_some_and(|inner| inner.is_ready(sockets)) {
        epoll::tell(sets, watch, libc::EPOLLIN as u32, &mut |waiter| called.add(waiter));
    }
    Ok(0)
}

/// `epoll_wait`; `timeout` `None`: for ever.
pub fn wait_set(
    set_fd: RawFd,
    events: &mut [epoll_event],
    timeout: Option<Duration>,
) -> Outcome<usize> {
    let polls = timeout == Some(Duration::ZERO);
    // When it is over; the clock is read only by those who wait.
    let mut over = None;
    let mut core = lock();
    let id = set_of(&core, set_fd)?;
    loop {
        let drives = core.sets.get(id).is_some_and(Set::has_items);
        let home = if drives { core.home() } else { 0 };
        let cycle = core.lanes[home].cycle;
        let Core { sets, sockets, .. } = &mut *core;
        let Some(set) = sets.get_mut(id) else { return Err(libc::EBADF.into()) };
        set.lane = drives.then_some(home);
        if drives && (set.is_stale(sockets, cycle) || polls && !set.has_ready()) {
            // What is ready was told in this cycle, or nothing is: time for another one.
            core = drive::poll(core, home);
        }
        let count = report(&mut core, id, home, events);
        if count > 0 {
            return Ok(count);
        }
        if polls {
            let ready = may_be_ready(&core, id);
            return Ok(if ready { look_at_linux(&mut core, id, events) } else { 0 });
        }
        let until = match (over, timeout) {
            (None, Some(timeout)) => Instant::now().checked_add(timeout),
            (over, _) => over,
        };
        over = until;
        let Some(set) = core.sets.get(id) else { return Err(libc::EBADF.into()) };
        let linux = set.real;
        let how = How { interest: Interest::Set(id), until, linux: Some(linux), drives };
        let (back, result) = drive::wait(core, how, |core| {
            let Core { sets, sockets, .. } = core;
            epoll::look_into(sets, sockets, id, NESTED_MAX);
            match sets.get(id) {
                // With the first socket of IX in it the wait is another one.
                Some(set) if !drives && set.has_items() => Some(()),
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
                    return Ok(report(&mut core, id, home, events));
                }
            }
            Err(Stop::Interrupted) => return Err(libc::EINTR.into()),
        }
    }
}

/// Whether a wait is over.
pub fn is_over(until: Instant) -> bool {
    until <= Instant::now()
}

/// Reports what is ready on IX, and on Linux if nobody has looked there for long.
fn report(core: &mut Guard, id: Id, home: usize, events: &mut [epoll_event]) -> usize {
    let Core { sets, sockets, lanes, .. } = &mut **core;
    epoll::look_into(sets, sockets, id, NESTED_MAX);
    let Some(set) = sets.get_mut(id) else { return 0 };
    let count = set.report(sockets, lanes[home].cycle, events);
    if count == 0 || count == events.len() || !may_be_ready(core, id) {
        return count;
    }
    let looked_us = core.sets.get(id).map_or(0, |set| set.linux.at_us);
    if drive::now_us() < looked_us + LOOK_US {
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
    let (fd, room) = (set.real, events.len().min(i32::MAX as usize));
    // SAFETY: a slice with its length.
    let count =
        unsafe { real::epoll_pwait(fd, events.as_mut_ptr(), room as i32, 0, core::ptr::null()) };
    let count = count.max(0) as usize;
    if set.linux.looked(now_us, real::calls(), count)
        && let Some(quiet_sets) = core.quiet_sets
    {
        watch_quiet(core, quiet_sets, id);
    }
    count
}

/// Whether something of Linux's may be ready in a set.
fn may_be_ready(core: &Core, id: Id) -> bool {
    core.sets.get(id).is_some_and(|set| set.has_linux && set.linux.may_be_ready(real::calls()))
}

/// Has the helper watch a real set until something is ready there.
fn watch_quiet(core: &mut Core, quiet_sets: RawFd, id: Id) {
    let Some(set) = core.sets.get_mut(id) else { return };
    let real_set = set.real;
    let events = (libc::EPOLLIN | libc::EPOLLONESHOT) as u32;
    let mut event = epoll_event { events, u64: id };
    real::own_call();
    let mut control = |op: i32| {
        let call = libc::SYS_epoll_ctl;
        // SAFETY: reads a local; both descriptors are ours.
        unsafe { libc::syscall(call, quiet_sets, op, real_set, &raw mut event) == 0 }
    };
    // What cannot be watched is looked at now and then.
    let watched = control(EPOLL_CTL_MOD) || control(EPOLL_CTL_ADD);
    set.linux.watch(watched);
}

/// The helper has been told of quiet sets: they are not quiet any more.
pub fn hear_of_sets(core: &mut Core) {
    let Some(quiet_sets) = core.quiet_sets else { return };
    let mut events = [epoll_event { events: 0, u64: 0 }; 16];
    real::own_call();
    // SAFETY: room of ours for so many.
    let count =
        unsafe { libc::syscall(libc::SYS_epoll_wait, quiet_sets, events.as_mut_ptr(), 16, 0) };
    for event in &events[..count.clamp(0, 16) as usize] {
        if let Some(set) = core.sets.get_mut(event.u64) {
            set.linux.watch(false);
        }
    }
}

/// The time after which a wait of `timeout_ms` is over; negative: never.
pub fn until_ms(timeout_ms: i32) -> Option<Instant> {
    let time = u64::try_from(timeout_ms).ok()?;
    Some(Instant::now() + Duration::from_millis(time))
}
