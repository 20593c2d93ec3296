//! Epoll sets that several processes have: on Linux a set is one for all. The real set is one;
//! what this library reports is each process's own copy, which follows what the others change
//! ([`crate::set_log`]).
use crate::epoll_set::{self, ReportedBy};
use crate::log::{self, Once};
use crate::set_log::{CHANGES_MAX, Change, Found, pair};
use crate::slab::Id;
use crate::socket::{File, Key, Kind, Watch};
use crate::state::Core;
use crate::{clock, holders, pid};
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL};
use std::os::fd::RawFd;

/// A process that has taken a number writes its change within this time, or was killed, µs.
const WRITES_US: u64 = 20_000;

impl Core {
    /// Before a fork: both processes have all sets, and follow each other's changes from now on.
    pub fn share_sets(&mut self) {
        // Places that are taken for the child are not those of earlier changes.
        self.sees_set_changes();
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
            // Another process may add a descriptor of Linux's to the real set.
            set.has_linux = true;
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
        let serial = holders::serial(place);
        log.add(&Change { set: number, op, fd, place, serial, entry, by: pid::own() });
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
        let first = seen.max(next.saturating_sub(CHANGES_MAX as u64));
        if first > seen {
            let text = "an epoll set that several processes have was changed too often for one \
                        that did not wait meanwhile, and may report other sockets there; let each \
                        process make its own set after the fork";
            log::once(Once::SetChanges, text);
        }
        for number in first..next {
            match log.get(number) {
                Found::Whole(change) if change.by != pid::own() => self.follows(&change),
                Found::Whole(_) | Found::Gone => {}
                Found::NotYet if self.may_still_come(number) => {
                    self.sets_seen = Some(number);
                    return self.looks_soon();
                }
                Found::NotYet => {}
            }
        }
        self.sets_seen = Some(next);
    }

    /// Whether a change that is not whole may become so: false if its process was killed.
    fn may_still_come(&mut self, number: u64) -> bool {
        let now_us = clock::now_us();
        match self.set_change_awaited {
            Some((awaited, since_us)) if awaited == number => now_us < since_us + WRITES_US,
            _ => {
                self.set_change_awaited = Some((number, now_us));
                true
            }
        }
    }

    fn follows(&mut self, change: &Change) {
        if change.serial != holders::serial(change.place) {
            // Another socket has its place now.
            return;
        }
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
        if set.reported_by(key) != Some(ReportedBy::Linux) {
            // Threads that wait in the real set alone must also look here now.
            set.waiters.drain(..).for_each(|waiter| wakeups.add(waiter));
        }
        let now = socket.readiness();
        epoll_set::notify(sets, watch, now, &mut |waiter| wakeups.add(waiter));
    }
}
