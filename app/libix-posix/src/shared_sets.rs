//! Epoll sets that several processes have: on Linux a set is one for all. The real set is one;
//! what this library reports is each process's own copy, which follows what the others change
//! ([`crate::set_log`]).
use crate::epoll_set::{self, ReportedBy};
use crate::set_log::{CHANGES_MAX, Change, pair};
use crate::slab::Id;
use crate::socket::{File, Key, Kind, Watch};
use crate::state::Core;
use crate::{holders, pid};
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL};
use std::os::fd::RawFd;

impl Core {
    /// Before a fork: both processes have all sets, and follow each other's changes from now on.
    pub fn share_sets(&mut self) {
        let Some(log) = holders::set_log() else { return };
        if self.sets.ids().is_empty() {
            return;
        }
        if self.sets_seen.is_none() {
            self.sets_seen = Some(log.next());
        }
        for id in self.sets.ids() {
            let Some(set) = self.sets.get_mut(id).filter(|set| set.number == 0) else { continue };
            self.set_numbers += 1;
            set.number = pair(pid::own() as u32, self.set_numbers);
        }
    }

    /// The program has changed a set, for a socket of IX.
    pub fn says_set_change(
        &mut self,
        (set, op): (Id, i32),
        (id, fd): (Id, RawFd),
        entry: (u32, u64),
    ) {
        if self.sets_seen.is_none() {
            return;
        }
        let number = self.sets.get(set).map_or(0, |set| set.number);
        let place = self.sockets.get(id).and_then(|socket| socket.noted_at());
        let (Some(place), Some(log)) = (place.filter(|_| number != 0), holders::set_log()) else {
            return;
        };
        log.add(&Change { set: number, op, fd, place, entry, by: pid::own() });
        holders::tell_others(place);
    }

    /// Follows what other processes have changed.
    #[inline]
    pub fn sees_set_changes(&mut self) {
        if let Some(seen) = self.sets_seen {
            self.follow_set_changes(seen);
        }
    }

    #[cold]
    fn follow_set_changes(&mut self, seen: u64) {
        let Some(log) = holders::set_log() else { return };
        let next = log.next();
        self.sets_seen = Some(next);
        let first = seen.max(next.saturating_sub(CHANGES_MAX as u64));
        for number in first..next {
            if let Some(change) = log.get(number).filter(|change| change.by != pid::own()) {
                self.follows(&change);
            }
        }
    }

    fn follows(&mut self, change: &Change) {
        let is_it = |id: &Id| self.sets.get(*id).is_some_and(|set| set.number == change.set);
        let Some(set_id) = self.sets.ids().into_iter().find(is_it) else { return };
        let is_it = |id: &Id| {
            let socket = self.sockets.get(*id);
            socket.is_some_and(|socket| socket.noted_at() == Some(change.place))
        };
        let Some(id) = self.sockets.ids().into_iter().find(is_it) else { return };
        let Core { sets, sockets, wakeups, .. } = self;
        let (Some(set), Some(socket)) = (sets.get_mut(set_id), sockets.get_mut(id)) else { return };
        let key = Key { fd: change.fd, file: File::Socket(id) };
        let watch = Watch { set: set_id, key };
        let (events, data) = change.entry;
        match change.op {
            EPOLL_CTL_DEL => {
                set.forget(key);
                socket.watches.retain(|other| *other != watch);
                return;
            }
            EPOLL_CTL_ADD => {
                let reported_by = match &socket.kind {
                    Kind::Linux | Kind::Idle { .. } | Kind::Lost => ReportedBy::Linux,
                    Kind::Listener(listener) if listener.both => ReportedBy::Both,
                    Kind::Datagrams(udp) if udp.both => ReportedBy::Both,
                    _ => ReportedBy::Ours,
                };
                if set.add(key, reported_by, events, data) {
                    socket.watches.push(watch);
                }
                set.has_linux |= reported_by != ReportedBy::Ours;
            }
            _ => drop(set.modify(key, events, data)),
        }
        let now = socket.readiness();
        epoll_set::notify(sets, watch, now, &mut |waiter| wakeups.add(waiter));
    }
}
