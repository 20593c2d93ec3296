//! Connections that several processes of the program have, since one of them has forked.
//!
//! One of them owns the connection in the dataplane. In the others it is *away*: there is nothing
//! to read and no room to write until one of their calls names it. Then the owner gives it away,
//! together with the bytes that no process has read yet ([`crate::holders`]). It is away in the
//! former owner too as soon as the dataplane is asked to give it. A process that closes a
//! connection which another one still has gives it away, and only the last one ends it.
use crate::slab::Id;
use crate::socket::{Kind, Socket};
use crate::state::Core;
use crate::stream::{Gift, Phase, Stream};
use crate::wait::Interest;
use crate::{clock, holders, in_flight, kin};
use libix::engine::Flow;
use std::net::SocketAddr;

/// In the number that goes with a connection: it is one that several processes have.
const HANDED: u64 = 1 << 62;
/// Time between looks at whether another process uses a connection, µs. That process tells the
/// owner by way of the dataplane (`NUDGE`), unless it does not know the owner yet.
const LOOKS_US: u64 = 5_000;
/// The same when nobody has said anything for [`NEW_US`].
const SELDOM_US: u64 = 50_000;
const NEW_US: u64 = 200_000;
/// How long a connection whose sender over a Unix socket was killed may be on its way, µs.
const KEPT_US: u64 = 1_000_000;
/// Time between looks at whether the others have ended, µs.
const ENDS_US: u64 = 50_000;

impl Core {
    /// Before a fork: what the child has as well.
    pub fn share_connections(&mut self) {
        let may_share = |socket: &mut Socket| {
            let fds = socket.fds;
            let stream = socket.stream()?;
            // One that goes to a process which has it already is the child's all the same.
            let stays = stream.gift.is_none() || stream.shared.is_some();
            (fds > 0 && stream.may_go() && stays).then_some(())
        };
        if kin::exist() {
            self.share_sets();
        }
        let all: Vec<Id> = self.sockets.ids();
        let all =
            all.into_iter().filter(|id| self.sockets.get_mut(*id).and_then(may_share).is_some());
        let all: Vec<Id> = all.collect();
        let is_noted = |id: &Id| {
            let socket = self.sockets.get(*id);
            socket.is_some_and(|socket| {
                let undecided = matches!(socket.kind, Kind::Idle { stream: true, .. });
                let kind = matches!(socket.kind, Kind::Listener(_) | Kind::Datagrams(_));
                socket.fds > 0 && (kind || undecided || socket.named.is_some())
            })
        };
        let others: Vec<Id> = self.sockets.ids().into_iter().filter(is_noted).collect();
        let none = all.is_empty() && others.is_empty();
        if none || !kin::exist() || !holders::before_fork() {
            return;
        }
        for id in others {
            if let Some(socket) = self.sockets.get_mut(id) {
                socket.named = holders::share(socket.named).or(socket.named);
                socket.begins_file_flags();
            }
            self.notes_undecided(id);
        }
        self.looks_soon();
        for id in all {
            let Some(stream) = self.sockets.get_mut(id).and_then(Socket::stream) else { continue };
            stream.shared = holders::share(stream.shared);
            self.leaves_to_others(id);
            self.sockets.get(id).into_iter().for_each(Socket::begins_file_flags);
            let Some(stream) = self.sockets.get_mut(id).and_then(Socket::stream) else { continue };
            if stream.shared.is_some() && !self.handed.contains(&id) {
                self.handed.push(id);
            }
        }
    }

    /// In a forked child: a connection of the parent that this process has as well, and that the
    /// parent owns.
    pub fn away(stream: &Stream) -> Option<Stream> {
        let at = stream.shared?;
        let mut away = Stream::new(Phase::Away, 0, stream.peer, stream.local);
        (away.shared, away.read_shut, away.unsent_low) =
            (Some(at), stream.read_shut, stream.unsent_low);
        (away.was_open, away.announced) = (true, true);
        Some(away)
    }

    /// A thread of the program waits, or does so no more: for what several processes have, so that
    /// one of these gets it for which another one does not wait.
    pub fn watches_handed(&mut self, interest: Interest<'_>, yes: bool) {
        for id in &self.handed {
            let Some(socket) = self.sockets.get(*id) else { continue };
            if interest.is_for(*id, socket) {
                socket.noted_at().into_iter().for_each(|at| holders::watches(at, yes));
            }
        }
    }

    /// After a cycle: gives away what other processes use, and hears of what has ended.
    pub fn hand_over(&mut self) {
        self.sees_set_changes();
        if self.handed.is_empty() {
            return;
        }
        // Others may have ended without a word.
        let (changes, now_us) = (holders::changes(), clock::now_us());
        let has_changed = changes != self.holders_seen || self.holders_again_us == 0;
        if has_changed {
            self.holders_news_us = now_us;
        }
        if has_changed || now_us >= self.holders_again_us {
            (self.holders_seen, self.holders_again_us) = (changes, now_us + ENDS_US);
            self.handed_looks = false;
            for id in core::mem::take(&mut self.handed) {
                let handed = self.look_at(id);
                self.handed_looks |= matches!(handed, Handed::Looks);
                if !matches!(handed, Handed::Not) {
                    self.handed.push(id);
                }
            }
        }
        if self.handed_looks {
            let is_new = now_us < self.holders_news_us + NEW_US;
            let looks_us = if is_new { LOOKS_US } else { SELDOM_US };
            self.looks_us = Some(self.looks_us.map_or(looks_us, |us| us.min(looks_us)));
        }
    }

    /// If this process is killed, who else has the connection goes on with it.
    fn leaves_to_others(&mut self, id: Id) {
        let Some(stream) = self.sockets.get_mut(id).and_then(Socket::stream) else { return };
        stream.legacy = stream.shared.map_or(0, |at| HANDED | u64::from(at));
        if stream.phase != Phase::Away {
            stream.says_consumed();
            stream.shared.into_iter().for_each(holders::owns);
        }
        if stream.legacy != stream.legacy_told && stream.phase != Phase::Away {
            self.mark_dirty(id);
        }
    }

    /// Other processes may have this connection from now on.
    pub fn is_handed(&mut self, id: Id) {
        self.leaves_to_others(id);
        if !self.handed.contains(&id) {
            self.handed.push(id);
        }
        self.looks_soon();
    }

    /// The next cycle looks at connections that several processes have.
    pub fn looks_soon(&mut self) {
        (self.looks_us, self.holders_again_us) = (Some(LOOKS_US), 0);
    }

    fn look_at(&mut self, id: Id) -> Handed {
        // A program that is being executed finds a connection by its place, so that stays.
        let executing = self.executing;
        self.sees_what_it_is(id);
        let Some(socket) = self.sockets.get_mut(id) else { return Handed::Not };
        if matches!(socket.kind, Kind::Idle { .. }) && socket.named.is_some() && socket.fds > 0 {
            return Handed::Looks;
        }
        let (is_closed, passed) = (socket.fds == 0, socket.passed);
        if socket.sees_file_flags() {
            self.mark_dirty(id);
            self.notify(id, libc::EPOLLOUT | libc::EPOLLWRNORM);
        }
        let Some(socket) = self.sockets.get_mut(id) else { return Handed::Not };
        let Some(stream) = socket.stream() else { return Handed::Not };
        let Some(at) = stream.shared else { return Handed::Not };
        match stream.phase {
            _ if stream.gift.is_some() => {
                // It goes once all that was written is sent.
                if stream.gift.as_ref().is_some_and(|gift| !gift.asked) {
                    self.mark_dirty(id);
                }
                Handed::Looks
            }
            Phase::Dead => {
                holders::ends(at, socket.error);
                if is_closed {
                    self.unwatch(id);
                    self.sockets.remove(id);
                    return Handed::Not;
                }
                Handed::Quiet
            }
            Phase::Away if is_closed => {
                // What this process has sent is not acknowledged yet.
                if stream.flow.send.len() > 0 {
                    return Handed::Quiet;
                }
                // Its place has stayed if it was in flight.
                holders::leave(at);
                self.unwatch(id);
                self.sockets.remove(id);
                Handed::Not
            }
            Phase::Away => {
                if let Some(errno) = holders::end_of(at) {
                    self.died(id, errno);
                }
                Handed::Looks
            }
            // What a killed process has read comes first, or it would count as unread at the end.
            _ if is_closed && stream.skips() => Handed::Looks,
            _ => {
                let has_news = stream.unread() > 0 || stream.eof;
                let watcher = || holders::watcher(at).filter(|_| has_news);
                if let Some(to) = holders::taker(at, is_closed).or_else(watcher) {
                    let token = HANDED | u64::from(at);
                    let gift = Gift { to, token, from: None, asked: false, tries: 0 };
                    stream.gift = Some(Box::new(gift));
                    self.mark_dirty(id);
                } else if !(executing
                    || clock::now_us() < stream.kept_until_us
                    || holders::have_others(at)
                    || passed && in_flight::is_open(at))
                {
                    stream.shared = None;
                    holders::leave(at);
                    self.leaves_to_others(id);
                    if is_closed {
                        self.close(id);
                    }
                    return Handed::Not;
                }
                Handed::Looks
            }
        }
    }

    /// Whether this process owns a connection that goes on in another one.
    pub fn goes_on_here(&self, id: Id) -> bool {
        let Some(Socket { kind: Kind::Stream(stream), .. }) = self.sockets.get(id) else {
            return false;
        };
        let is_owned = !matches!(stream.phase, Phase::Away | Phase::Dead);
        is_owned && stream.shared.is_some_and(holders::have_others)
    }

    /// The program has closed its last descriptor of a connection: true if it lives on, because
    /// another process has it.
    pub fn closes_handed(&mut self, id: Id) -> bool {
        let Some(socket) = self.sockets.get_mut(id) else { return false };
        let passed = socket.passed;
        let Some(stream) = socket.stream() else { return false };
        let Some(at) = stream.shared else { return false };
        // Nobody may have it yet who is to get it: then its place stays.
        let is_in_flight = passed && !holders::have_others(at) && in_flight::is_open(at);
        let goes_on = stream.phase != Phase::Dead && (is_in_flight || holders::have_others(at));
        // The owner has its place until it has given the connection away: who has it now may send
        // it on, over a Unix socket, to a process that finds it by the place.
        let is_owner = goes_on && stream.phase != Phase::Away;
        if !is_in_flight && !is_owner {
            holders::leave(at);
        }
        if stream.phase == Phase::Away {
            if stream.flow.send.len() == 0 {
                self.sockets.remove(id);
            }
            return true;
        }
        if !goes_on {
            stream.shared = None;
            return false;
        }
        // So that a driver comes out and looks at it.
        self.looks_soon();
        self.mark_dirty(id);
        true
    }

    /// The dataplane has answered whether a connection that several have is another process's now.
    pub fn handed(&mut self, id: Id, gave: bool) {
        self.looks_soon();
        let Some(socket) = self.sockets.get_mut(id) else { return };
        let Some(stream) = socket.stream().filter(|stream| gave && stream.phase != Phase::Dead)
        else {
            // It is still this process's.
            return self.notify(id, libc::EPOLLIN | libc::EPOLLOUT);
        };
        stream.phase = Phase::Away;
        // What was sent stays until it is acknowledged; what was received is the other process's.
        let send = core::mem::take(&mut stream.flow.send);
        stream.flow = Flow::default();
        stream.flow.send = send;
        stream.eof = false;
    }

    /// Another process gives a connection that several have; false: it is another one.
    pub fn takes_over(
        &mut self,
        elastic: usize,
        token: u64,
        (handle, returned): (u64, u64),
        peer: SocketAddr,
    ) -> bool {
        if token & HANDED == 0 || token >> 63 != 0 {
            return false;
        }
        let at = (token & !HANDED) as u32;
        self.sees_what_is_at(at);
        holders::took(at);
        let is_it = |core: &mut Core, id: Id| {
            let stream = core.sockets.get_mut(id).and_then(Socket::stream);
            stream.is_some_and(|stream| stream.shared == Some(at) && stream.phase == Phase::Away)
        };
        let known = self.handed.clone().into_iter().find(|id| is_it(self, *id));
        let id = known.unwrap_or_else(|| {
            // It was closed here meanwhile, and goes on to another one.
            let mut stream = Stream::new(Phase::Away, 0, peer, None);
            stream.shared = Some(at);
            // Or it is on its way over a Unix socket, and its sender was killed.
            if holders::was_passed(at) && holders::hold(Some(at)).is_some() {
                stream.kept_until_us = clock::now_us() + KEPT_US;
            }
            let id = self.sockets.insert(Socket::new(Kind::Stream(Box::new(stream)), false, false));
            self.handed.push(id);
            id
        });
        let Some(socket) = self.sockets.get_mut(id) else { return true };
        (socket.elastic, socket.dirty) = (elastic, false);
        let Some(stream) = socket.stream() else { return true };
        (stream.flow.handle, stream.phase) = (handle, Phase::ToAccept);
        (stream.told, stream.options_changed) = (Default::default(), true);
        (stream.legacy, stream.legacy_told) = (token, 0);
        // Who was killed may have read bytes that it has not returned.
        stream.goes_on_at(returned, holders::consumed(at));
        self.mark_dirty(id);
        true
    }
}

/// What is to be done with a connection that several processes have.
enum Handed {
    /// It is none any more.
    Not,
    /// Nothing.
    Quiet,
    /// It is looked at again soon.
    Looks,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pid;

    #[test]
    fn the_place_of_what_an_executed_program_inherits_stays() {
        let _one = holders::ONE_TEST.lock();
        holders::begin_run();
        pid::note();
        assert!(holders::begin(), "there is a place");
        let at = holders::hold(None).expect("a place");
        let mut core = Core::new();
        let mut stream = Stream::new(Phase::Open, 1, "10.0.0.1:80".parse().unwrap(), None);
        stream.shared = Some(at);
        let kind = Kind::Stream(Box::new(stream));
        let id = core.sockets.insert(Socket { fds: 1, ..Socket::new(kind, false, false) });
        let mut place_after_a_look = |executing| {
            core.executing = executing;
            core.is_handed(id);
            core.hand_over();
            core.sockets.get(id).and_then(Socket::noted_at)
        };
        assert_eq!(place_after_a_look(true), Some(at), "no other process has it yet");
        assert_eq!(place_after_a_look(false), None, "none has it");
    }
}
