//! Epoll sets: IX's sockets by events, Linux's descriptors by the real set under the descriptor.
//!
//! Readiness is computed from the socket when it is reported, so a spurious entry in the list of
//! the ready costs a look and nothing else.
use crate::lane::Waiter;
use crate::slab::{Id, Slab};
use crate::socket::{Socket, Watch};
use libc::{EPOLLERR, EPOLLET, EPOLLHUP, EPOLLONESHOT, epoll_event};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::os::fd::RawFd;

/// Bits that say how to wait, not what for.
const MODES: u32 =
    EPOLLET as u32 | EPOLLONESHOT as u32 | libc::EPOLLWAKEUP as u32 | libc::EPOLLEXCLUSIVE as u32;

/// Descriptors are small numbers: any spread will do.
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

/// Who tells of a socket in a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Teller {
    /// We do.
    Ours,
    /// The real set, until the socket becomes ours.
    Linux,
    /// Both.
    Both,
}

/// What is in a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A socket.
    Socket(Id),
    /// Another set, and whether something is ready in it.
    Set(Id, bool),
}

/// A descriptor in a set.
struct Item {
    teller: Teller,
    what: What,
    events: u32,
    data: u64,
    /// It stands in the list of the ready.
    queued: bool,
    /// `EPOLLONESHOT` has fired.
    spent: bool,
    /// The cycle in which it was reported last.
    reported: u64,
}

impl Item {
    fn readiness(&self, sockets: &Slab<Socket>) -> u32 {
        match self.what {
            What::Socket(id) => sockets.get(id).map_or(0, Socket::readiness),
            What::Set(_, true) => (libc::EPOLLIN | libc::EPOLLRDNORM) as u32,
            What::Set(_, false) => 0,
        }
    }

    /// What would be reported of it.
    fn wanted(&self, sockets: &Slab<Socket>) -> u32 {
        if self.spent {
            return 0;
        }
        self.readiness(sockets) & self.asked()
    }

    /// The bits that are waited for: errors always are.
    fn asked(&self) -> u32 {
        self.events & !MODES | (EPOLLERR | EPOLLHUP) as u32
    }
}

/// Tells of what is watched: puts it into the list of the ready of its set, and that set into the
/// lists of those that it is in. `ring` hears of threads that should look.
pub fn tell(sets: &mut Slab<Set>, watch: Watch, bits: u32, ring: &mut impl FnMut(Waiter)) {
    fn tell(
        sets: &mut Slab<Set>,
        watch: Watch,
        bits: u32,
        ring: &mut impl FnMut(Waiter),
        depth: u32,
    ) {
        let Some(set) = sets.get_mut(watch.set) else { return };
        if !set.queue(watch.fd, bits) {
            return;
        }
        set.waiters.drain(..).for_each(&mut *ring);
        if depth == 0 || set.watches.is_empty() {
            return;
        }
        for outer in set.watches.clone() {
            tell(sets, outer, (libc::EPOLLIN | libc::EPOLLRDNORM) as u32, ring, depth - 1);
        }
    }
    tell(sets, watch, bits, ring, NESTED_MAX);
}

/// Looks which of the sets in this one have something ready.
pub fn look_into(sets: &mut Slab<Set>, sockets: &Slab<Socket>, id: Id, depth: u32) {
    let Some(set) = sets.get(id) else { return };
    if depth == 0 || set.nested.is_empty() {
        return;
    }
    for (fd, inner) in set.nested.clone() {
        look_into(sets, sockets, inner, depth - 1);
        let is_ready = sets.get(inner).is_some_and(|inner| inner.is_ready(sockets));
        if let Some(set) = sets.get_mut(id) {
            set.look_into(fd, is_ready);
        }
    }
}

/// How deep sets lie in each other at most, as on Linux.
pub const NESTED_MAX: u32 = 5;

/// An epoll set.
pub struct Set {
    /// Descriptors that name it.
    pub fds: u32,
    /// Our own descriptor of the real set.
    pub real: RawFd,
    items: HashMap<RawFd, Item, BuildHasherDefault<FdHasher>>,
    /// How many of them we tell of.
    ours: usize,
    ready: VecDeque<RawFd>,
    /// Sets that this one is in.
    pub watches: Vec<Watch>,
    /// Sets that are in this one.
    pub nested: Vec<(RawFd, Id)>,
    /// There was something in the real set.
    pub has_linux: bool,
    /// Threads that wait.
    pub waiters: Vec<Waiter>,
    /// The elastic thread of whoever waited last.
    pub lane: Option<usize>,
    /// What is known of the real set.
    pub linux: Looks,
}

/// When to look at the real set. That is a call to Linux, so it is not made as long as the set is
/// known to be quiet: nothing was ready there for a while, no call of the program has gone to Linux
/// since, and the helper, which watches it, has not said anything.
#[derive(Clone, Copy, Debug)]
pub struct Looks {
    /// When it was last looked at, µs.
    pub at_us: u64,
    /// Calls that had gone to Linux by then.
    pub calls: u64,
    /// Nothing was ready so many times.
    empty: u32,
    /// The helper watches it.
    watched: bool,
}

/// After so many looks that found nothing the helper watches a set.
const EMPTY_LOOKS: u32 = 4;

impl Looks {
    /// Whether something may be ready.
    pub fn may_be_ready(&self, calls: u64) -> bool {
        !self.watched || calls != self.calls
    }

    /// It was looked at, and so many were ready. Returns whether the helper should watch it now.
    pub fn looked(&mut self, at_us: u64, calls: u64, ready: usize) -> bool {
        (self.at_us, self.calls) = (at_us, calls);
        self.empty = if ready == 0 { self.empty.saturating_add(1) } else { 0 };
        // It stays ready until the program does something about it.
        self.watched &= ready == 0;
        !self.watched && self.empty >= EMPTY_LOOKS
    }

    /// The helper watches it, until it has said something.
    pub fn watch(&mut self, watched: bool) {
        (self.watched, self.empty) = (watched, 0);
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        if self.real >= 0 {
            crate::sync::close_private(self.real);
        }
    }
}

impl Set {
    /// An empty one over a real one.
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
            lane: None,
            linux: Looks { at_us: 0, calls: 0, empty: 0, watched: false },
        }
    }

    /// In a forked child: nobody watches.
    pub fn unwatched(&mut self) {
        self.linux.watch(false);
    }

    /// Whether sockets of IX are in it.
    pub fn has_items(&self) -> bool {
        self.ours > 0
    }

    /// Who tells of it; `None`: it is not in it.
    pub fn teller(&self, fd: RawFd) -> Option<Teller> {
        self.items.get(&fd).map(|item| item.teller)
    }

    /// A socket that was Linux's is ours now.
    pub fn becomes_ours(&mut self, fd: RawFd) {
        if let Some(item) = self.items.get_mut(&fd) {
            self.ours += usize::from(item.teller == Teller::Linux);
            item.teller = Teller::Ours;
            // SAFETY: no pointers. That it is gone already is as good.
            unsafe {
                libc::syscall(libc::SYS_epoll_ctl, self.real, libc::EPOLL_CTL_DEL, fd, 0);
            }
        }
    }

    /// A socket that was Linux's is served by both now.
    pub fn becomes_both(&mut self, fd: RawFd) {
        if let Some(item) = self.items.get_mut(&fd) {
            self.ours += usize::from(item.teller == Teller::Linux);
            item.teller = Teller::Both;
        }
    }

    /// Puts something in; false: it is there already.
    pub fn add(&mut self, fd: RawFd, what: What, teller: Teller, events: u32, data: u64) -> bool {
        if self.items.contains_key(&fd) {
            return false;
        }
        let (queued, spent, reported) = (false, false, u64::MAX);
        self.ours += usize::from(teller != Teller::Linux);
        self.items.insert(fd, Item { teller, what, events, data, queued, spent, reported });
        if let What::Set(set, _) = what {
            self.nested.push((fd, set));
        }
        true
    }

    /// Whether something is ready in a set that is in this one.
    pub fn look_into(&mut self, fd: RawFd, is_ready: bool) {
        if let Some(Item { what: What::Set(_, ready), .. }) = self.items.get_mut(&fd) {
            *ready = is_ready;
        }
    }

    /// Changes what is waited for; false: it is not there.
    pub fn modify(&mut self, fd: RawFd, events: u32, data: u64) -> bool {
        let Some(item) = self.items.get_mut(&fd) else { return false };
        (item.events, item.data, item.spent, item.reported) = (events, data, false, u64::MAX);
        true
    }

    /// Takes it out; false: it was not there.
    pub fn forget(&mut self, fd: RawFd) -> bool {
        self.nested.retain(|(other, _)| *other != fd);
        // Its entry in the list of the ready is found to be nobody's later.
        let item = self.items.remove(&fd);
        self.ours -= usize::from(item.as_ref().is_some_and(|item| item.teller != Teller::Linux));
        item.is_some()
    }

    /// Something about it has changed: puts it into the list of the ready if these bits are waited
    /// for. Returns whether a waiting thread should look.
    pub fn queue(&mut self, fd: RawFd, bits: u32) -> bool {
        let Some(item) = self.items.get_mut(&fd) else { return false };
        if item.spent || item.asked() & bits == 0 || item.teller == Teller::Linux {
            return false;
        }
        // It is news: to be reported even if it was in this cycle.
        item.reported = u64::MAX;
        if !item.queued {
            item.queued = true;
            self.ready.push_back(fd);
        }
        true
    }

    /// Whether the next to be reported was so in this cycle already. What the program has dealt
    /// with since leaves the list of the ready.
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

    /// Whether something would be reported.
    pub fn is_ready(&self, sockets: &Slab<Socket>) -> bool {
        let mut ready = self.ready.iter().filter_map(|fd| self.items.get(fd));
        ready.any(|item| item.queued && item.wanted(sockets) != 0)
    }

    /// Whether anything stands in the list of the ready.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Reports what is ready; returns how many.
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
                // Level-triggered: it is looked at again.
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
        assert!(set.add(5, What::Socket(id), Teller::Ours, events as u32, 77));
        assert!(!set.add(5, What::Socket(id), Teller::Ours, 0, 0));
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
        set.add(6, What::Socket(id), Teller::Ours, EPOLLIN as u32, 0);
        set.queue(6, EPOLLIN as u32);
        sockets.remove(id);
        assert_eq!(report(&mut set, &sockets), []);
    }
}
