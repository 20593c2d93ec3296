//! The `epoll` calls: IX's descriptors and Linux's in the same set.
use crate::epoll_set::{self, NESTED_MAX, ReportedBy, Set};
use crate::fds::{self, Entry};
use crate::lock::{Guard, lock};
use crate::ops::{self, Instead, Outcome, socket_of};
use crate::slab::Id;
use crate::socket::{File, Key, Kind, Watch};
use crate::state::Core;
use crate::wait::{self, Interest, Stop, WaitSpec};
use crate::{cancel, clock, quiet_sets, real, serving, signals};
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, epoll_event};
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// How often Linux's descriptors of a set are checked while IX's are always ready, µs.
const CHECK_US: u64 = 100;

/// Time between looks of a process that has not attached at what others add to a set, if this
/// library reports nothing in it.
const LOOKS: Duration = Duration::from_millis(50);

/// The program has made an epoll set: the real set is under its descriptor.
pub fn set_made(fd: RawFd) {
    if !serving::is_offered() || fd as usize >= fds::FDS_MAX {
        return;
    }
    let Some(real) = fds::copy_out_of_the_way(fd) else { return };
    let mut core = lock();
    let id = core.sets.insert(Set::new(real));
    let before = fds::replace(fd, Entry::Epoll(fds::index_of(id)));
    ops::drop_entry(&mut core, before);
}

/// The set behind a descriptor.
fn set_of(core: &Core, fd: RawFd) -> Outcome<Id> {
    match fds::get(fd) {
        Entry::Epoll(index) => core.sets.id_at(index).ok_or(Instead::Linux),
        _ => Err(Instead::Linux),
    }
}

/// `epoll_ctl`. `on_linux` makes the same call for the real set.
pub fn control(
    set_fd: RawFd,
    op: i32,
    fd: RawFd,
    event: Option<epoll_event>,
    on_linux: impl FnOnce() -> i32,
) -> Outcome<i32> {
    let mut core = lock();
    core.sees_set_changes();
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
            set.notes_linux(event);
        }
        return Err(Instead::Linux);
    };
    let id = socket_of(&mut core, fd)?;
    if core.sockets.get(id).is_some_and(|socket| matches!(socket.kind, Kind::Idle { .. })) {
        // The real set reports it until it is decided whose the socket is.
        ops::use_linux(&mut core, fd)?;
    }
    let Core { sockets, sets, wakeups, .. } = &mut *core;
    let (Some(set), Some(socket)) = (sets.get_mut(set_id), sockets.get_mut(id)) else {
        return Err(libc::EBADF.into());
    };
    let reported_by = match &socket.kind {
        Kind::Linux => {
            set.has_linux |= op == EPOLL_CTL_ADD;
            return Err(Instead::Linux);
        }
        Kind::Idle { .. } => ReportedBy::Linux,
        Kind::Listener(listener) if listener.both => ReportedBy::Both,
        Kind::Datagrams(udp) if udp.both => ReportedBy::Both,
        _ => ReportedBy::Ours,
    };
    let (real_set, is_udp) = (set.real, matches!(socket.kind, Kind::Datagrams(_)));
    let on_linux = || {
        if !is_udp {
            return on_linux();
        }
        let mut event = event.map(epoll_set::but_sending);
        epoll_set::quietly(real_set, op, fd, event.as_mut())
    };
    let key = Key { fd, file: File::Socket(id) };
    let known = set.reported_by(key);
    let ours_only = known.unwrap_or(reported_by) == ReportedBy::Ours;
    let watch = Watch { set: set_id, key };
    let mut says = true;
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
            set.add(key, reported_by, event.events, event.u64);
            // Most sockets are in one set.
            socket.watches.reserve_exact(1);
            socket.watches.push(watch);
        }
        EPOLL_CTL_MOD => {
            let event = event.ok_or(libc::EFAULT)?;
            let known = known.ok_or(libc::ENOENT)?;
            if known != ReportedBy::Ours && on_linux() < 0 {
                return Err(real::errno().into());
            }
            says = !set.is_same(key, (event.events, event.u64));
            set.modify(key, event.events, event.u64);
        }
        EPOLL_CTL_DEL => {
            let known = known.ok_or(libc::ENOENT)?;
            set.forget(key);
            socket.watches.retain(|other| *other != watch);
            if known != ReportedBy::Ours && on_linux() < 0 {
                return Err(real::errno().into());
            }
            core.says_set_change((set_id, op), (id, fd), (0, 0));
            return Ok(0);
        }
        _ => return Err(libc::EINVAL.into()),
    }
    // It may already be ready.
    let now = socket.readiness();
    epoll_set::notify(sets, watch, now, &mut |waiter| wakeups.add(waiter));
    if ours_only && let Some(set) = core.sets.get_mut(set_id) {
        // Threads that wait in the real set alone must also look here now.
        let waiters = core::mem::take(&mut set.waiters);
        waiters.into_iter().for_each(|waiter| core.wakeups.add(waiter));
    }
    let entry = event.map_or((0, 0), |event| (event.events, event.u64));
    if says {
        core.says_set_change((set_id, op), (id, fd), entry);
    }
    Ok(0)
}

/// The same for a set in a set. The real sets are nested in the same way and report Linux's
/// descriptors; our sets report IX's. Linux decides which nestings are allowed.
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
    let Core { sets, sockets, wakeups, .. } = &mut **core;
    let inner_id = sets.id_at(inner).ok_or(libc::EBADF)?;
    let set = sets.get_mut(set_id).ok_or(libc::EBADF)?;
    let key = Key { fd, file: File::Set(inner_id) };
    let watch = Watch { set: set_id, key };
    match (op, event) {
        (EPOLL_CTL_ADD, Some(event)) => {
            set.has_linux = true;
            set.add(key, ReportedBy::Both, event.events, event.u64);
            sets.get_mut(inner_id).ok_or(libc::EBADF)?.watches.push(watch);
        }
        (EPOLL_CTL_MOD, Some(event)) => drop(set.modify(key, event.events, event.u64)),
        _ => {
            set.forget(key);
            sets.get_mut(inner_id).ok_or(libc::EBADF)?.watches.retain(|other| *other != watch);
            return Ok(0);
        }
    }
    epoll_set::refresh_nested(sets, sockets, set_id, NESTED_MAX);
    if sets.get(inner_id).is_some_and(|inner| inner.is_ready(sockets)) {
        epoll_set::notify(sets, watch, libc::EPOLLIN as u32, &mut |waiter| wakeups.add(waiter));
    }
    Ok(0)
}

/// `epoll_wait`. `timeout` is `None` for no limit.
pub fn wait_set(
    set_fd: RawFd,
    events: &mut [epoll_event],
    timeout: Option<Duration>,
) -> Outcome<usize> {
    let polls = timeout == Some(Duration::ZERO);
    // When the wait is over. The clock is read only if the thread has to wait.
    let mut over = None;
    let mut core = lock();
    core.sees_set_changes();
    let id = set_of(&core, set_fd)?;
    loop {
        let Some(set) = core.sets.get(id) else { return Err(libc::EBADF.into()) };
        let (items, is_shared) = (set.items_of_ours(), set.number != 0);
        // In a set that others have, they may add the first socket of IX.
        let drives = items > 0 || is_shared && core.has_begun();
        let home = if drives { core.home() } else { 0 };
        let cycle = core.elastic_threads[home].cycle;
        let Core { sets, sockets, .. } = &mut *core;
        let Some(set) = sets.get_mut(id) else { return Err(libc::EBADF.into()) };
        set.elastic = drives.then_some(home);
        if drives && (set.is_stale(sockets, cycle) || polls && !set.has_ready()) {
            // Everything ready was reported in this cycle, or nothing is ready: runs another cycle.
            core = wait::poll(core, home);
        }
        let count = report(&mut core, id, home, events);
        if count > 0 {
            return Ok(count);
        }
        if polls {
            core.takes_datagrams(Interest::Set(id));
            let ready = may_be_ready(&core, id);
            return if ready { check_linux(&mut core, id, events) } else { Ok(0) };
        }
        let until = match (over, timeout) {
            (None, Some(timeout)) => Instant::now().checked_add(timeout),
            (over, _) => over,
        };
        over = until;
        let Some(set) = core.sets.get(id) else { return Err(libc::EBADF.into()) };
        if set.tells_once && !drives && !is_shared {
            let (back, result) = wait_on_linux(core, id, events, until);
            core = back;
            match result? {
                0 if until.is_some_and(is_over) => return Ok(0),
                0 => continue,
                count => return Ok(count),
            }
        }
        let linux = set.real;
        // No process can tell one that has not attached, so it looks itself.
        let looks = (is_shared && !drives).then(|| Instant::now() + LOOKS);
        let limit = until.into_iter().chain(looks).min();
        let how =
            WaitSpec { interest: Interest::Set(id), until: limit, linux: Some(linux), drives };
        let (back, result) = wait::wait(core, how, |core| {
            let Core { sets, sockets, .. } = core;
            epoll_set::refresh_nested(sets, sockets, id, NESTED_MAX);
            match sets.get(id) {
                // A socket of IX was added, or one has become IX's: the wait starts again, as one
                // that may drive, and that is known to be for a listener.
                Some(set) if set.items_of_ours() > items => Some(()),
                Some(set) => set.is_ready(sockets).then_some(()),
                None => Some(()),
            }
        });
        core = back;
        match result {
            Ok(()) => {}
            Err(Stop::Linux | Stop::TimedOut) => {
                let count = check_linux(&mut core, id, events)?;
                if count > 0 {
                    return Ok(count);
                }
                if until.is_some_and(is_over) {
                    return Ok(report(&mut core, id, home, events));
                }
                core.sees_set_changes();
                if !drives {
                    core.sees_what_all_are();
                }
            }
            Err(Stop::Interrupted) => return Err(libc::EINTR.into()),
        }
    }
}

/// Waits in a set that has descriptors of Linux's alone, by Linux's own call: a look whether the
/// set is ready would take what is told once. Another thread that adds a socket of IX ends it.
fn wait_on_linux(
    mut core: Guard,
    id: Id,
    events: &mut [epoll_event],
    until: Option<Instant>,
) -> (Guard, Outcome<usize>) {
    if signals::interrupted() != 0 || cancel::ends_caller(&mut core) {
        return (core, Err(libc::EINTR.into()));
    }
    let Some(set) = core.sets.get_mut(id) else { return (core, Err(libc::EBADF.into())) };
    let (real, wake_fd) = (set.real, set.begins_to_sleep());
    drop(core);
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    let time = left.map(|left| libc::timespec {
        tv_sec: left.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: left.subsec_nanos().into(),
    });
    let time = time.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    let (at, room) = (events.as_mut_ptr(), events.len().min(i32::MAX as usize) as i32);
    let mut result = Ok(0);
    real::own_call();
    signals::asleep(wake_fd, || {
        let no_mask = core::ptr::null::<libc::sigset_t>();
        // SAFETY: a slice with its length, a time or null, no mask.
        let count =
            unsafe { libc::syscall(libc::SYS_epoll_pwait2, real, at, room, time, no_mask, 8) };
        result = match usize::try_from(count) {
            Err(_) if real::errno() == libc::EINTR => Ok(0),
            count => count.map_err(|_| real::errno().into()),
        };
    });
    let mut core = lock();
    core.linux_side.news += 1;
    if let Some(set) = core.sets.get_mut(id) {
        set.woke_up();
        result = result.map(|count| set.without_alarm(&mut events[..count]));
    }
    (core, result)
}

/// Whether a wait is over.
pub fn is_over(until: Instant) -> bool {
    until <= Instant::now()
}

/// Reports what is ready on IX, and on Linux if it was not checked for a while.
fn report(core: &mut Guard, id: Id, home: usize, events: &mut [epoll_event]) -> usize {
    let Core { sets, sockets, elastic_threads, .. } = &mut **core;
    epoll_set::refresh_nested(sets, sockets, id, NESTED_MAX);
    let Some(set) = sets.get_mut(id) else { return 0 };
    let count = set.report(sockets, elastic_threads[home].cycle, events);
    if count == 0 || count == events.len() || !may_be_ready(core, id) {
        return count;
    }
    let checked_us = core.sets.get(id).map_or(0, |set| set.linux.at_us);
    if clock::now_us() < checked_us + CHECK_US {
        return count;
    }
    // An error is one of the call that finds nothing else.
    count + check_linux(core, id, &mut events[count..]).unwrap_or(0)
}

/// Reports what is ready in the real set. An error, such as memory that cannot be written, is the
/// call's: what is ready stays so, and a further wait would end at once, again and again.
fn check_linux(core: &mut Guard, id: Id, events: &mut [epoll_event]) -> Outcome<usize> {
    let now_us = clock::now_us();
    let Some(set) = core.sets.get_mut(id) else { return Ok(0) };
    if !set.has_linux {
        return Ok(0);
    }
    let (fd, room) = (set.real, events.len().min(i32::MAX as usize));
    let at = events.as_mut_ptr();
    // The C library's call is a cancellation point, and the lock is held.
    // SAFETY: a slice with its length, and no mask.
    let count = unsafe { libc::syscall(libc::SYS_epoll_wait, fd, at, room as i32, 0) };
    let count = usize::try_from(count).map_err(|_| real::errno())?;
    core.linux_side.news += u64::from(count > 0);
    let Some(set) = core.sets.get_mut(id) else { return Ok(0) };
    let count = set.without_alarm(&mut events[..count]);
    if set.linux.checked(now_us, real::calls(), count)
        && !set.tells_once
        && let Some(quiet_sets) = core.quiet_sets
    {
        quiet_sets::watch(core, quiet_sets, id);
    }
    Ok(count)
}

/// Whether something of Linux's may be ready in a set.
fn may_be_ready(core: &Core, id: Id) -> bool {
    core.sets.get(id).is_some_and(|set| set.has_linux && set.linux.may_be_ready(real::calls()))
}

/// When a wait of `timeout_ms` is over; `None` (never) if it is negative.
pub fn until_ms(timeout_ms: i32) -> Option<Instant> {
    let time = u64::try_from(timeout_ms).ok()?;
    Some(Instant::now() + Duration::from_millis(time))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ix_skip::{Need, skip};
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    use std::sync::mpsc;

    /// A mount namespace of this thread and those that it starts; false: Linux refuses it.
    fn has_own_mounts() -> bool {
        let (none, root) = (core::ptr::null(), c"/".as_ptr());
        let flags = libc::MS_REC | libc::MS_PRIVATE;
        // SAFETY: strings, and pointers that may be null.
        unsafe {
            libc::unshare(libc::CLONE_FS | libc::CLONE_NEWNS) == 0
                && libc::mount(none, root, none, flags, core::ptr::null()) == 0
        }
    }

    fn mount_and_unmount() {
        let (place, kind) = (c"/proc/1/task".as_ptr(), c"tmpfs".as_ptr());
        // SAFETY: strings, and a pointer that may be null.
        unsafe {
            assert_eq!(libc::mount(kind, place, kind, 0, core::ptr::null()), 0);
            assert_eq!(libc::umount2(place, libc::MNT_DETACH), 0);
        }
    }

    /// A set, with its entry in the table.
    struct Own(OwnedFd, Id);

    impl AsRawFd for Own {
        fn as_raw_fd(&self) -> RawFd {
            self.0.as_raw_fd()
        }
    }

    impl Drop for Own {
        fn drop(&mut self) {
            fds::replace(self.as_raw_fd(), Entry::Linux);
            drop(lock().sets.remove(self.1));
        }
    }

    /// A set of Linux's descriptors alone.
    fn set_of_linux(fd: RawFd, events: u32) -> Own {
        // SAFETY: no pointers; the descriptor is this value's.
        let set = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
        let real = fds::copy_out_of_the_way(set.as_raw_fd()).expect("a descriptor");
        let id = lock().sets.insert(Set::new(real));
        fds::replace(set.as_raw_fd(), Entry::Epoll(fds::index_of(id)));
        let event = epoll_event { events, u64: 7 };
        let added = control(set.as_raw_fd(), EPOLL_CTL_ADD, fd, Some(event), || 0);
        assert!(matches!(added, Err(Instead::Linux)));
        let mut event = event;
        let added = epoll_set::quietly(set.as_raw_fd(), EPOLL_CTL_ADD, fd, Some(&mut event));
        assert_eq!(added, 0);
        Own(set, id)
    }

    /// The number of events, and the first one.
    fn wait_for(set: &Own, limit: Duration) -> (usize, u64, u32) {
        let mut events = [epoll_event { events: 0, u64: 0 }; 4];
        let count = wait_set(set.as_raw_fd(), &mut events, Some(limit)).expect("no errno");
        (count, events[0].u64, events[0].events)
    }

    #[test]
    fn what_is_told_once_is_reported() {
        let test = || {
            if !has_own_mounts() {
                let test = "what_is_told_once_is_reported";
                return skip(test, Need::Root, "no namespace of mounts");
            }
            let mounts = std::fs::File::open("/proc/thread-self/mounts").expect("mounts");
            let set = set_of_linux(mounts.as_raw_fd(), libc::EPOLLPRI as u32);
            assert_eq!(wait_for(&set, Duration::from_millis(50)).0, 0);
            let change = std::thread::spawn(|| {
                std::thread::sleep(Duration::from_millis(100));
                mount_and_unmount();
            });
            let (count, data, events) = wait_for(&set, Duration::from_secs(20));
            assert_eq!((count, data), (1, 7));
            assert!(events & libc::EPOLLPRI as u32 != 0);
            change.join().expect("mounts");
        };
        std::thread::spawn(test).join().expect("no fault");
    }

    #[test]
    fn all_that_wait_by_linuxs_call_are_woken() {
        let (reader, _writer) = std::io::pipe().expect("a pipe");
        let set = set_of_linux(reader.as_raw_fd(), (libc::EPOLLIN | libc::EPOLLPRI) as u32);
        let (said, heard) = mpsc::channel();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let (set, said) = (&set, said.clone());
                scope.spawn(move || {
                    let mut core = lock();
                    let id = set_of(&core, set.as_raw_fd()).expect("a set");
                    let mut events = [epoll_event { events: 0, u64: 0 }; 4];
                    let result;
                    (core, result) = wait_on_linux(core, id, &mut events, None);
                    drop(core);
                    said.send(result.expect("no errno")).expect("heard");
                });
            }
            std::thread::sleep(Duration::from_millis(100));
            let mut core = lock();
            let id = set_of(&core, set.as_raw_fd()).expect("a set");
            let Core { sets, wakeups, .. } = &mut *core;
            let waiters =
                sets.get_mut(id).map_or(Vec::new(), |set| set.waiters.drain(..).collect());
            assert_eq!(waiters.len(), 3);
            waiters.into_iter().for_each(|waiter| wakeups.add(waiter));
            drop(core);
            for _ in 0..3 {
                assert_eq!(heard.recv_timeout(Duration::from_secs(20)), Ok(0));
            }
        });
        assert_eq!(wait_for(&set, Duration::from_millis(20)).0, 0);
    }
}
