//! Epoll sets. Events report IX's sockets; the *real set*, Linux's under the descriptor, reports
//! Linux's descriptors.
//!
//! Readiness is computed from the socket when it is reported, so an unneeded entry in the ready
//! list costs one check and nothing else.
use crate::slab::{Id, Slab};
use crate::socket::{File, Key, Socket, Watch};
use crate::waiter::Waiter;
use libc::{EPOLLERR, EPOLLET, EPOLLHUP, EPOLLONESHOT, epoll_event};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::os::fd::RawFd;

/// Bits that say how to wait, not for what.
const MODES: u32 =
    EPOLLET as u32 | EPOLLONESHOT as u32 | libc::EPOLLWAKEUP as u32 | libc::EPOLLEXCLUSIVE as u32;

/// What a socket that can send is; `poll` has the same bits.
pub const WRITABLE: u32 = libc::EPOLLOUT as u32 | libc::EPOLLWRNORM as u32;

/// What Linux is asked of a UDP socket that IX has too. Its side can always send; IX says when the
/// program can.
pub fn but_sending(event: epoll_event) -> epoll_event {
    epoll_event { events: event.events & !WRITABLE, ..event }
}

/// `epoll_ctl` for the real set by the system call itself.
pub fn quietly(real: RawFd, op: i32, fd: RawFd, event: Option<&mut epoll_event>) -> i32 {
    let event = event.map_or(core::ptr::null_mut(), |event| &raw mut *event);
    // SAFETY: null, or an event of the caller's.
    unsafe { libc::syscall(libc::SYS_epoll_ctl, real, op, fd, event) as i32 }
}

/// A hash for descriptors: they are small numbers, so any spread will do.
#[derive(Default)]
pub struct FdHasher(u64);

impl Hasher for FdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_i32(i32::from(*byte)));
    }

    fn write_i32(&mut self, number: i32) {
        self.0 = (self.0 ^ number as u32 as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// What reports that a descriptor in a set is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportedBy {
    /// This library.
    Ours,
    /// The real set, until the socket becomes IX's.
    Linux,
    /// Both.
    Both,
}

/// An entry of a set.
struct Item {
    reported_by: ReportedBy,
    /// If it is a set: something in that is ready.
    nested_ready: bool,
    events: u32,
    data: u64,
    /// Its places in the ready list have this number. What was added again has another one.
    serial: u64,
    /// It is in the ready list.
    queued: bool,
    /// `EPOLLONESHOT` has fired.
    spent: bool,
    /// The cycle in which it was reported last.
    reported: u64,
}

impl Item {
    fn readiness(&self, file: File, sockets: &Slab<Socket>) -> u32 {
        match file {
            File::Socket(id) => sockets.get(id).map_or(0, Socket::readiness),
            File::Set(_) if self.nested_ready => (libc::EPOLLIN | libc::EPOLLRDNORM) as u32,
            File::Set(_) => 0,
        }
    }

    /// The bits to report of `file`, which the entry is of.
    fn wanted(&self, file: File, sockets: &Slab<Socket>) -> u32 {
        if self.spent {
            return 0;
        }
        self.readiness(file, sockets) & self.asked()
    }

    /// The bits that the program waits for. Errors are always among them.
    fn asked(&self) -> u32 {
        self.events & !MODES | (EPOLLERR | EPOLLHUP) as u32
    }
}

/// Something watched has changed: puts it into the ready list of its set, and that set into those
/// of the sets that it is in. Calls `wake` for each thread that should look.
pub fn notify(sets: &mut Slab<Set>, watch: Watch, bits: u32, wake: &mut impl FnMut(Waiter)) {
    fn notify(
        sets: &mut Slab<Set>,
        watch: Watch,
        bits: u32,
        wake: &mut impl FnMut(Waiter),
        depth: u32,
    ) {
        let Some(set) = sets.get_mut(watch.set) else { return };
        if !set.queue(watch.key, bits) {
            return;
        }
        set.waiters.drain(..).for_each(&mut *wake);
        if depth == 0 || set.watches.is_empty() {
            return;
        }
        for outer in set.watches.clone() {
            notify(sets, outer, (libc::EPOLLIN | libc::EPOLLRDNORM) as u32, wake, depth - 1);
        }
    }
    notify(sets, watch, bits, wake, NESTED_MAX);
}

/// Checks which of the sets in this one have something ready.
pub fn refresh_nested(sets: &mut Slab<Set>, sockets: &Slab<Socket>, id: Id, depth: u32) {
    let Some(set) = sets.get(id) else { return };
    if depth == 0 || set.nested.is_empty() {
        return;
    }
    for key in set.nested.clone() {
        let File::Set(inner) = key.file else { continue };
        refresh_nested(sets, sockets, inner, depth - 1);
        let is_ready = sets.get(inner).is_some_and(|inner| inner.is_ready(sockets));
        if let Some(set) = sets.get_mut(id) {
            set.refresh_nested(key, is_ready);
        }
    }
}

/// Greatest depth of sets in sets, as on Linux.
pub const NESTED_MAX: u32 = 5;

/// An epoll set.
pub struct Set {
    /// How many descriptors name it.
    pub fds: u32,
    /// Our own descriptor of the real set.
    pub real: RawFd,
    /// Its name in [`crate::set_log`]; 0: no other process has it.
    pub number: u64,
    items: HashMap<Key, Item, BuildHasherDefault<FdHasher>>,
    /// How many of them this library reports.
    ours: usize,
    /// Each with its item's serial. Places whose item has gone are dropped when they are next seen.
    ready: VecDeque<(Key, u64)>,
    /// The serial of the item that was added last.
    serial: u64,
    /// Sets that this one is in.
    pub watches: Vec<Watch>,
    /// Sets that are in this one.
    pub nested: Vec<Key>,
    /// Something was added to the real set.
    pub has_linux: bool,
    /// Threads that wait.
    pub waiters: Vec<Waiter>,
    /// The elastic thread of the thread that waited last.
    pub elastic: Option<usize>,
    /// What is known of the real set.
    pub linux: LinuxChecks,
    /// Something in the real set may be told once (`EPOLLPRI`): `/proc/self/mounts` tells each of
    /// its readers of a change at the first look, and a look at the set is one.
    pub tells_once: bool,
    alarm: Option<Alarm>,
}

/// An eventfd in the real set, which wakes threads that wait there by Linux's own call.
struct Alarm {
    fd: RawFd,
    sleepers: usize,
}

/// The name of an [`Alarm`] in its set: no address.
const ALARM: u64 = 0xf1ea_a1a2_0d0e_0a11;

/// When to check the real set. A check is a call to Linux, so there is none while the set is known
/// to be quiet: the last checks found nothing, no call of the program has gone to Linux since, and
/// the helper, which watches the set, has reported nothing.
#[derive(Clone, Copy, Debug)]
pub struct LinuxChecks {
    /// Time of the last check, µs.
    pub at_us: u64,
    /// How many calls had gone to Linux by then.
    pub calls: u64,
    /// How many checks in a row found nothing.
    empty: u32,
    /// The helper watches it.
    watched: bool,
}

/// After this many checks that found nothing, the helper watches a set.
const EMPTY_CHECKS: u32 = 4;

impl LinuxChecks {
    /// Whether something may be ready.
    pub fn may_be_ready(&self, calls: u64) -> bool {
        !self.watched || calls != self.calls
    }

    /// A check found `ready` descriptors. Returns whether the helper should watch the set now.
    pub fn checked(&mut self, at_us: u64, calls: u64, ready: usize) -> bool {
        (self.at_us, self.calls) = (at_us, calls);
        self.empty = if ready == 0 { self.empty.saturating_add(1) } else { 0 };
        // A ready descriptor stays ready until the program reads it.
        self.watched &= ready == 0;
        !self.watched && self.empty >= EMPTY_CHECKS
    }

    /// Whether the helper watches the set; it stops when it has reported something.
    pub fn watch(&mut self, watched: bool) {
        (self.watched, self.empty) = (watched, 0);
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        if self.real >= 0 {
            crate::fds::close_private(self.real);
        }
        if let Some(alarm) = &self.alarm {
            crate::fds::close_private(alarm.fd);
        }
    }
}

impl Set {
    /// An empty set over a real one.
    pub fn new(real: RawFd) -> Set {
        Set {
            fds: 1,
            real,
            number: 0,
            items: HashMap::default(),
            ours: 0,
            ready: VecDeque::new(),
            serial: 0,
            watches: Vec::new(),
            nested: Vec::new(),
            has_linux: false,
            waiters: Vec::new(),
            elastic: None,
            linux: LinuxChecks { at_us: 0, calls: 0, empty: 0, watched: false },
            tells_once: false,
            alarm: None,
        }
    }

    /// The program adds or changes an entry of Linux's.
    pub fn notes_linux(&mut self, event: Option<epoll_event>) {
        let data = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDNORM | libc::EPOLLWRNORM) as u32;
        let is_once = |event: epoll_event| {
            event.events & libc::EPOLLPRI as u32 != 0 || event.events & data == 0
        };
        self.tells_once |= event.is_some_and(is_once);
    }

    /// The calling thread waits in the real set. Returns what wakes it.
    pub fn begins_to_sleep(&mut self) -> RawFd {
        let real = self.real;
        let alarm = self.alarm.get_or_insert_with(|| {
            let fd = crate::wake::new_fd();
            let mut event = epoll_event { events: libc::EPOLLIN as u32, u64: ALARM };
            quietly(real, libc::EPOLL_CTL_ADD, fd, Some(&mut event));
            Alarm { fd, sleepers: 0 }
        });
        alarm.sleepers += 1;
        self.waiters.push(Waiter::Sleeper(alarm.fd, 0));
        alarm.fd
    }

    /// It does not any more.
    pub fn woke_up(&mut self) {
        let Some(alarm) = &mut self.alarm else { return };
        alarm.sleepers = alarm.sleepers.saturating_sub(1);
        let own = Waiter::Sleeper(alarm.fd, 0);
        if let Some(at) = self.waiters.iter().position(|waiter| *waiter == own) {
            self.waiters.remove(at);
        }
    }

    /// Takes the alarm out of what Linux has reported; returns the number of the other events.
    pub fn without_alarm(&mut self, events: &mut [epoll_event]) -> usize {
        let Some(alarm) = &self.alarm else { return events.len() };
        let Some(at) = events.iter().position(|event| event.u64 == ALARM) else {
            return events.len();
        };
        events.copy_within(at + 1.., at);
        crate::wake::clear(alarm.fd);
        if alarm.sleepers > 0 {
            // It was rung for all of them.
            crate::wake::wake(alarm.fd);
        }
        events.len() - 1
    }

    /// In a forked child, which has no helper.
    pub fn unwatched(&mut self) {
        self.linux.watch(false);
    }

    /// What is in it.
    pub fn keys(&self) -> Vec<Key> {
        self.items.keys().copied().collect()
    }

    /// How much in it this library reports.
    pub fn items_of_ours(&self) -> usize {
        self.ours
    }

    /// What reports an entry; `None` if it is not in the set.
    pub fn reported_by(&self, key: Key) -> Option<ReportedBy> {
        self.items.get(&key).map(|item| item.reported_by)
    }

    /// A socket that was Linux's has become IX's. Returns whether its entry in the real set can
    /// still be deleted: `is_named` says whether the entry's number names the socket.
    #[must_use]
    pub fn becomes_ours(&mut self, key: Key, is_named: bool) -> bool {
        let Some(item) = self.items.get_mut(&key) else { return true };
        let was = core::mem::replace(&mut item.reported_by, ReportedBy::Ours);
        self.ours += usize::from(was == ReportedBy::Linux);
        if was != ReportedBy::Ours && is_named {
            // SAFETY: no pointers. If it is not in the real set any more, nothing is to be done.
            unsafe {
                libc::syscall(libc::SYS_epoll_ctl, self.real, libc::EPOLL_CTL_DEL, key.fd, 0);
            }
        }
        was == ReportedBy::Ours || is_named
    }

    /// A socket that was Linux's is served by IX and Linux now.
    pub fn becomes_both(&mut self, key: Key) {
        if let Some(item) = self.items.get_mut(&key) {
            self.ours += usize::from(item.reported_by == ReportedBy::Linux);
            item.reported_by = ReportedBy::Both;
        }
    }

    /// What the real set is to report of a UDP socket of both sides.
    pub fn on_linux(&self, key: Key) -> Option<epoll_event> {
        let item = self.items.get(&key).filter(|item| item.reported_by == ReportedBy::Both)?;
        Some(but_sending(epoll_event { events: item.events, u64: item.data }))
    }

    /// Adds an entry. Returns false if it is there already.
    pub fn add(&mut self, key: Key, reported_by: ReportedBy, events: u32, data: u64) -> bool {
        if self.items.contains_key(&key) {
            return false;
        }
        self.ours += usize::from(reported_by != ReportedBy::Linux);
        self.serial += 1;
        let item = Item {
            serial: self.serial,
            reported_by,
            nested_ready: false,
            events,
            data,
            queued: false,
            spent: false,
            reported: u64::MAX,
        };
        self.items.insert(key, item);
        if matches!(key.file, File::Set(_)) {
            self.nested.push(key);
        }
        true
    }

    /// Notes whether something is ready in a set that is in this one.
    pub fn refresh_nested(&mut self, key: Key, is_ready: bool) {
        if let Some(item) = self.items.get_mut(&key) {
            item.nested_ready = is_ready;
        }
    }

    /// Changes what the program waits for. Returns false if the entry is not there.
    pub fn modify(&mut self, key: Key, events: u32, data: u64) -> bool {
        let Some(item) = self.items.get_mut(&key) else { return false };
        (item.events, item.data, item.spent, item.reported) = (events, data, false, u64::MAX);
        true
    }

    /// Whether all processes that have the set have this entry already: the program only wants to
    /// hear of it again, as it does after each event with `EPOLLONESHOT`.
    pub fn is_same(&self, key: Key, entry: (u32, u64)) -> bool {
        self.items.get(&key).is_some_and(|item| {
            // One that has not fired here may have fired in another process.
            let is_spent_here = item.spent || item.events & EPOLLONESHOT as u32 == 0;
            is_spent_here && (item.events, item.data) == entry
        })
    }

    /// Removes an entry. Returns false if it was not there.
    pub fn forget(&mut self, key: Key) -> bool {
        self.nested.retain(|other| *other != key);
        // Its place in the ready list is dropped when it is next seen.
        let item = self.items.remove(&key);
        self.ours -=
            usize::from(item.as_ref().is_some_and(|item| item.reported_by != ReportedBy::Linux));
        item.is_some()
    }

    /// A descriptor has changed: puts it into the ready list if the program waits for one of these
    /// bits. Returns whether a waiting thread should look.
    pub fn queue(&mut self, key: Key, bits: u32) -> bool {
        let Some(item) = self.items.get_mut(&key) else { return false };
        if item.spent || item.asked() & bits == 0 || item.reported_by == ReportedBy::Linux {
            return false;
        }
        // A change is reported even if the descriptor was reported in this cycle.
        item.reported = u64::MAX;
        if !item.queued {
            item.queued = true;
            self.ready.push_back((key, item.serial));
            // Each item has one place that counts: a program that adds and deletes without waiting
            // leaves no more than as many others.
            if self.ready.len() > 2 * self.items.len() + 16 {
                let items = &self.items;
                self.ready.retain(|(key, serial)| {
                    items.get(key).is_some_and(|item| item.serial == *serial)
                });
            }
        }
        true
    }

    /// Whether the next descriptor to be reported was reported in this cycle already. Descriptors
    /// that are no longer ready leave the ready list.
    pub fn is_stale(&mut self, sockets: &Slab<Socket>, cycle: u64) -> bool {
        while let Some((key, serial)) = self.ready.front() {
            match self.items.get_mut(key).filter(|item| item.serial == *serial) {
                Some(item) if item.reported != cycle => return false,
                Some(item) if item.queued && item.wanted(key.file, sockets) != 0 => return true,
                Some(item) => item.queued = false,
                None => {}
            }
            self.ready.pop_front();
        }
        false
    }

    /// Whether there is something to report.
    pub fn is_ready(&self, sockets: &Slab<Socket>) -> bool {
        self.ready.iter().any(|(key, serial)| {
            let item = self.items.get(key).filter(|item| item.serial == *serial && item.queued);
            item.is_some_and(|item| item.wanted(key.file, sockets) != 0)
        })
    }

    /// Whether the ready list has entries.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Reports what is ready. Returns how many events.
    pub fn report(&mut self, sockets: &Slab<Socket>, cycle: u64, to: &mut [epoll_event]) -> usize {
        let mut count = 0;
        for _ in 0..self.ready.len() {
            if count == to.len() {
                break;
            }
            let Some((key, serial)) = self.ready.pop_front() else { break };
            let counts = |item: &&mut Item| item.queued && item.serial == serial;
            let Some(item) = self.items.get_mut(&key).filter(counts) else { continue };
            let bits = item.wanted(key.file, sockets);
            if bits == 0 {
                item.queued = false;
                continue;
            }
            to[count] = epoll_event { events: bits, u64: item.data };
            count += 1;
            item.reported = cycle;
            item.spent = item.events & EPOLLONESHOT as u32 != 0;
            if item.spent || item.events & EPOLLET as u32 != 0 {
                item.queued = false;
            } else {
                // Level-triggered: it is checked again next time.
                self.ready.push_back((key, serial));
            }
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::{Datagrams, Kind};
    use libc::{EPOLLIN, EPOLLOUT};

    fn one(events: i32) -> (Slab<Socket>, Set, Key) {
        let mut sockets = Slab::new();
        let udp = Box::new(Datagrams::default());
        let id = sockets.insert(Socket::new(Kind::Datagrams(udp), false, false));
        let mut set = Set::new(-1);
        let key = Key { fd: 5, file: File::Socket(id) };
        assert!(set.add(key, ReportedBy::Ours, events as u32, 77));
        assert!(!set.add(key, ReportedBy::Ours, 0, 0));
        (sockets, set, key)
    }

    fn report(set: &mut Set, sockets: &Slab<Socket>) -> Vec<u32> {
        let mut to = [epoll_event { events: 0, u64: 0 }; 4];
        let n = set.report(sockets, 1, &mut to);
        to[..n].iter().map(|event| event.events).collect()
    }

    #[test]
    fn level_edge_and_oneshot() {
        let out = EPOLLOUT as u32;
        let (sockets, mut set, key) = one(EPOLLOUT);
        assert_eq!(report(&mut set, &sockets), []);
        assert!(set.queue(key, out));
        assert_eq!(report(&mut set, &sockets), [out]);
        assert!(set.is_stale(&sockets, 1) && !set.is_stale(&sockets, 2));
        assert_eq!(report(&mut set, &sockets), [out]);

        let (sockets, mut set, key) = one(EPOLLOUT | EPOLLET);
        set.queue(key, out);
        set.queue(key, out);
        assert_eq!(report(&mut set, &sockets), [out]);
        assert_eq!(report(&mut set, &sockets), []);

        let (sockets, mut set, key) = one(EPOLLOUT | EPOLLONESHOT);
        set.queue(key, out);
        assert_eq!(report(&mut set, &sockets), [out]);
        assert!(!set.queue(key, out));
        let oneshot = out | EPOLLONESHOT as u32;
        assert!(set.is_same(key, (oneshot, 77)) && !set.is_same(key, (oneshot, 78)));
        assert!(set.modify(key, oneshot, 77));
        assert!(!set.is_same(key, (oneshot, 77)), "another process's copy may have fired");
        assert!(set.modify(key, out, 78) && set.queue(key, out));
        assert_eq!(report(&mut set, &sockets), [out]);
    }

    #[test]
    fn what_was_deleted_and_added_again_is_reported_once() {
        let (sockets, mut set, key) = one(EPOLLOUT);
        for _ in 0..100 {
            assert!(set.queue(key, EPOLLOUT as u32) && set.forget(key));
            assert!(set.add(key, ReportedBy::Ours, EPOLLOUT as u32, 77));
        }
        assert!(set.ready.len() < 30, "{}", set.ready.len());
        assert!(set.queue(key, EPOLLOUT as u32));
        assert_eq!(report(&mut set, &sockets), [EPOLLOUT as u32]);
    }

    #[test]
    fn what_is_not_waited_for_or_no_longer_so_is_not_reported() {
        let (mut sockets, mut set, key) = one(EPOLLIN);
        assert!(!set.queue(key, EPOLLOUT as u32));
        assert!(set.queue(key, EPOLLIN as u32));
        assert_eq!(report(&mut set, &sockets), [], "nothing to read after all");
        assert!(!set.has_ready());
        set.queue(key, EPOLLIN as u32);
        assert!(set.forget(key) && !set.forget(key));
        assert_eq!(report(&mut set, &sockets), []);
        let twin = Key { fd: 6, ..key };
        set.add(twin, ReportedBy::Ours, EPOLLIN as u32, 0);
        set.queue(twin, EPOLLIN as u32);
        let File::Socket(id) = key.file else { unreachable!() };
        sockets.remove(id);
        assert_eq!(report(&mut set, &sockets), []);
    }
}
