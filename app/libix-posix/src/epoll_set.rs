//! Epoll sets. Events report IX's sockets; the *real set*, Linux's under the descriptor, reports
//! Linux's descriptors.
//!
//! Readiness is computed from the socket when it is reported, so an unneeded entry in the ready
//! list costs one check and nothing else.
use crate::slab::{Id, Slab};
use crate::socket::{Socket, Watch};
use crate::waiter::Waiter;
use libc::{EPOLLERR, EPOLLET, EPOLLHUP, EPOLLONESHOT, epoll_event};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::os::fd::RawFd;

/// Bits that say how to wait, not for what.
const MODES: u32 =
    EPOLLET as u32 | EPOLLONESHOT as u32 | libc::EPOLLWAKEUP as u32 | libc::EPOLLEXCLUSIVE as u32;

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

/// What a descriptor in a set names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A socket.
    Socket(Id),
    /// Another set, and whether something in it is ready.
    Set(Id, bool),
}

/// A descriptor in a set.
struct Item {
    reported_by: ReportedBy,
    what: Target,
    events: u32,
    data: u64,
    /// It is in the ready list.
    queued: bool,
    /// `EPOLLONESHOT` has fired.
    spent: bool,
    /// The cycle in which it was reported last.
    reported: u64,
}

impl Item {
    fn readiness(&self, sockets: &Slab<Socket>) -> u32 {
        match self.what {
            Target::Socket(id) => sockets.get(id).map_or(0, Socket::readiness),
            Target::Set(_, true) => (libc::EPOLLIN | libc::EPOLLRDNORM) as u32,
            Target::Set(_, false) => 0,
        }
    }

    /// The bits to report.
    fn wanted(&self, sockets: &Slab<Socket>) -> u32 {
        if self.spent {
            return 0;
        }
        self.readiness(sockets) & self.asked()
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
        if !set.queue(watch.fd, bits) {
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
    for (fd, inner) in set.nested.clone() {
        refresh_nested(sets, sockets, inner, depth - 1);
        let is_ready = sets.get(inner).is_some_and(|inner| inner.is_ready(sockets));
        if let Some(set) = sets.get_mut(id) {
            set.refresh_nested(fd, is_ready);
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
    items: HashMap<RawFd, Item, BuildHasherDefault<FdHasher>>,
    /// How many of them this library reports.
    ours: usize,
    ready: VecDeque<RawFd>,
    /// Sets that this one is in.
    pub watches: Vec<Watch>,
    /// Sets that are in this one.
    pub nested: Vec<(RawFd, Id)>,
    /// Something was added to the real set.
    pub has_linux: bool,
    /// Threads that wait.
    pub waiters: Vec<Waiter>,
    /// The elastic thread of the thread that waited last.
    pub elastic: Option<usize>,
    /// What is known of the real set.
    pub linux: LinuxChecks,
}

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
    }
}

impl Set {
    /// An empty set over a real one.
    pub fn new(real: RawFd) -> Set {
        Set {
            fds: 1,
            real,
            items: HashMap::default(),
            ours: 0,
            ready: VecDeque::new(),
            watches: Vec::new(),
            nested: Vec::new(),
            has_linux: false,
            waiters: Vec::new(),
            elastic: None,
            linux: LinuxChecks { at_us: 0, calls: 0, empty: 0, watched: false },
        }
    }

    /// In a forked child, which has no helper.
    pub fn unwatched(&mut self) {
        self.linux.watch(false);
    }

    /// Whether this library reports anything in it.
    pub fn has_items(&self) -> bool {
        self.ours > 0
    }

    /// What reports a descriptor; `None` if it is not in the set.
    pub fn reported_by(&self, fd: RawFd) -> Option<ReportedBy> {
        self.items.get(&fd).map(|item| item.reported_by)
    }

    /// A socket that was Linux's has become IX's.
    pub fn becomes_ours(&mut self, fd: RawFd) {
        if let Some(item) = self.items.get_mut(&fd) {
            self.ours += usize::from(item.reported_by == ReportedBy::Linux);
            item.reported_by = ReportedBy::Ours;
            // SAFETY: no pointers. If it is not in the real set any more, nothing is to be done.
            unsafe {
                libc::syscall(libc::SYS_epoll_ctl, self.real, libc::EPOLL_CTL_DEL, fd, 0);
            }
        }
    }

    /// A socket that was Linux's is served by IX and Linux now.
    pub fn becomes_both(&mut self, fd: RawFd) {
        if let Some(item) = self.items.get_mut(&fd) {
            self.ours += usize::from(item.reported_by == ReportedBy::Linux);
            item.reported_by = ReportedBy::Both;
        }
    }

    /// Adds a descriptor. Returns false if it is there already.
    pub fn add(
        &mut self,
        fd: RawFd,
        what: Target,
        reported_by: ReportedBy,
        events: u32,
        data: u64,
    ) -> bool {
        if self.items.contains_key(&fd) {
            return false;
        }
        let (queued, spent, reported) = (false, false, u64::MAX);
        self.ours += usize::from(reported_by != ReportedBy::Linux);
        self.items.insert(fd, Item { reported_by, what, events, data, queued, spent, reported });
        if let Target::Set(set, _) = what {
            self.nested.push((fd, set));
        }
        true
    }

    /// Notes whether something is ready in a set that is in this one.
    pub fn refresh_nested(&mut self, fd: RawFd, is_ready: bool) {
        if let Some(Item { what: Target::Set(_, ready), .. }) = self.items.get_mut(&fd) {
            *ready = is_ready;
        }
    }

    /// Changes what the program waits for. Returns false if the descriptor is not there.
    pub fn modify(&mut self, fd: RawFd, events: u32, data: u64) -> bool {
        let Some(item) = self.items.get_mut(&fd) else { return false };
        (item.events, item.data, item.spent, item.reported) = (events, data, false, u64::MAX);
        true
    }

    /// Removes a descriptor. Returns false if it was not there.
    pub fn forget(&mut self, fd: RawFd) -> bool {
        self.nested.retain(|(other, _)| *other != fd);
        // Its entry in the ready list is dropped when it is next seen.
        let item = self.items.remove(&fd);
        self.ours -=
            usize::from(item.as_ref().is_some_and(|item| item.reported_by != ReportedBy::Linux));
        item.is_some()
    }

    /// A descriptor has changed: puts it into the ready list if the program waits for one of these
    /// bits. Returns whether a waiting thread should look.
    pub fn queue(&mut self, fd: RawFd, bits: u32) -> bool {
        let Some(item) = self.items.get_mut(&fd) else { return false };
        if item.spent || item.asked() & bits == 0 || item.reported_by == ReportedBy::Linux {
            return false;
        }
        // A change is reported even if the descriptor was reported in this cycle.
        item.reported = u64::MAX;
        if !item.queued {
            item.queued = true;
            self.ready.push_back(fd);
        }
        true
    }

    /// Whether the next descriptor to be reported was reported in this cycle already. Descriptors
    /// that are no longer ready leave the ready list.
    pub fn is_stale(&mut self, sockets: &Slab<Socket>, cycle: u64) -> bool {
        while let Some(fd) = self.ready.front() {
            match self.items.get_mut(fd) {
                Some(item) if item.reported != cycle => return false,
                Some(item) if item.queued && item.wanted(sockets) != 0 => return true,
                Some(item) => item.queued = false,
                None => {}
            }
            self.ready.pop_front();
        }
        false
    }

    /// Whether there is something to report.
    pub fn is_ready(&self, sockets: &Slab<Socket>) -> bool {
        let mut ready = self.ready.iter().filter_map(|fd| self.items.get(fd));
        ready.any(|item| item.queued && item.wanted(sockets) != 0)
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
            let Some(fd) = self.ready.pop_front() else { break };
            let Some(item) = self.items.get_mut(&fd).filter(|item| item.queued) else { continue };
            let bits = item.wanted(sockets);
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
                self.ready.push_back(fd);
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

    fn one(events: i32) -> (Slab<Socket>, Set, Id) {
        let mut sockets = Slab::new();
        let udp = Box::new(Datagrams::default());
        let id = sockets.insert(Socket::new(Kind::Datagrams(udp), false, false));
        let mut set = Set::new(-1);
        assert!(set.add(5, Target::Socket(id), ReportedBy::Ours, events as u32, 77));
        assert!(!set.add(5, Target::Socket(id), ReportedBy::Ours, 0, 0));
        (sockets, set, id)
    }

    fn report(set: &mut Set, sockets: &Slab<Socket>) -> Vec<u32> {
        let mut to = [epoll_event { events: 0, u64: 0 }; 4];
        let n = set.report(sockets, 1, &mut to);
        to[..n].iter().map(|event| event.events).collect()
    }

    #[test]
    fn level_edge_and_oneshot() {
        let out = EPOLLOUT as u32;
        let (sockets, mut set, _) = one(EPOLLOUT);
        assert_eq!(report(&mut set, &sockets), []);
        assert!(set.queue(5, out));
        assert_eq!(report(&mut set, &sockets), [out]);
        assert!(set.is_stale(&sockets, 1) && !set.is_stale(&sockets, 2));
        assert_eq!(report(&mut set, &sockets), [out]);

        let (sockets, mut set, _) = one(EPOLLOUT | EPOLLET);
        set.queue(5, out);
        set.queue(5, out);
        assert_eq!(report(&mut set, &sockets), [out]);
        assert_eq!(report(&mut set, &sockets), []);

        let (sockets, mut set, _) = one(EPOLLOUT | EPOLLONESHOT);
        set.queue(5, out);
        assert_eq!(report(&mut set, &sockets), [out]);
        assert!(!set.queue(5, out));
        assert!(set.modify(5, out, 78) && set.queue(5, out));
        assert_eq!(report(&mut set, &sockets), [out]);
    }

    #[test]
    fn what_is_not_waited_for_or_no_longer_so_is_not_reported() {
        let (mut sockets, mut set, id) = one(EPOLLIN);
        assert!(!set.queue(5, EPOLLOUT as u32));
        assert!(set.queue(5, EPOLLIN as u32));
        assert_eq!(report(&mut set, &sockets), [], "nothing to read after all");
        assert!(!set.has_ready());
        set.queue(5, EPOLLIN as u32);
        assert!(set.forget(5) && !set.forget(5));
        assert_eq!(report(&mut set, &sockets), []);
        set.add(6, Target::Socket(id), ReportedBy::Ours, EPOLLIN as u32, 0);
        set.queue(6, EPOLLIN as u32);
        sockets.remove(id);
        assert_eq!(report(&mut set, &sockets), []);
    }
}
