//! Listeners that several processes of the program have: who accepts a connection.
//!
//! Each process listens by itself, and the dataplane tells one of them of a connection. On Linux
//! there is one queue, and whoever waits accepts. So a process in which no thread waits for the
//! listener gives the connection to one that waits ([`crate::kin`]); if none does, it keeps it, and
//! looks again until one waits or its own threads accept.
use crate::kin;
use crate::slab::Id;
use crate::socket::{Kind, Listener, Socket};
use crate::state::Core;
use crate::stream::{Gift, Phase, Stream};
use crate::wait::Interest;
use libix::Error;
use libix::engine::Ending;
use std::net::SocketAddr;

/// Time between looks at whether another process waits for a connection that is kept here, µs.
const KEEPS_US: u64 = 1_000;

/// How many processes are asked to take a connection whose listener is closed here.
const TRIES_MAX: u32 = 64;

impl Core {
    /// A thread begins to wait: the listeners that it waits for, for [`Core::waits_no_more`].
    pub fn waits_for_listeners(&mut self, interest: Interest<'_>) -> Vec<Id> {
        if !kin::exist() && !self.in_reserve {
            return Vec::new();
        }
        let Core { ports, sockets, sets, .. } = self;
        let mut found = Vec::new();
        for port in ports.ids() {
            let Some(port) = ports.get(port) else { continue };
            for id in &port.members {
                let Some(socket) = sockets.get_mut(*id) else { continue };
                let is_in = |set: Id| {
                    let nests = || sets.get(set).is_some_and(|set| !set.nested.is_empty());
                    !socket.watches.is_empty()
                        && (socket.watches.iter().any(|watch| watch.set == set) || nests())
                };
                let waits = match interest {
                    Interest::Socket(only) => only == *id,
                    Interest::Several(several, sets) => {
                        several.contains(id) || sets.iter().any(|set| is_in(*set))
                    }
                    Interest::Set(set) => is_in(set),
                };
                if let Some(listener) = socket.listener().filter(|_| waits) {
                    listener.waiting += 1;
                    found.push(*id);
                }
            }
        }
        if !found.is_empty() {
            if self.in_reserve {
                self.serves_in_turn();
            }
            self.say_waits();
        }
        found
    }

    /// The thread does something else now.
    pub fn waits_no_more(&mut self, listeners: &[Id]) {
        if listeners.is_empty() {
            return;
        }
        for id in listeners {
            if let Some(listener) = self.sockets.get_mut(*id).and_then(Socket::listener) {
                listener.waiting = listener.waiting.saturating_sub(1);
            }
        }
        self.say_waits();
    }

    /// Tells other processes which listeners this one has and waits for.
    pub fn say_waits(&mut self) {
        if !kin::exist() {
            return;
        }
        let Core { ports, sockets, .. } = self;
        let (mut bits, mut listens) = (0, 0);
        for port in ports.ids() {
            let Some(port) = ports.get(port) else { continue };
            let mut waits = |id: &Id| {
                let listener = sockets.get_mut(*id).and_then(Socket::listener);
                listener.is_some_and(|listener| listener.waiting > 0)
            };
            // Whoever closes its own listener on this account must find this one open.
            if !port.members.is_empty() && port.handles.outcome() == Some(Ok(())) {
                listens |= kin::bit(port.at);
            }
            if port.members.iter().any(&mut waits) {
                bits |= kin::bit(port.at);
            }
        }
        kin::say(bits, listens);
    }

    /// After a cycle: connections that no thread of this process waits for go to a process that
    /// waits. Notes when to look again, if any are left.
    pub fn hand_out(&mut self) {
        self.looks_us = None;
        if !kin::exist() {
            return;
        }
        self.hand_over();
        self.look_at_afloat();
        for port in self.ports.ids() {
            let Some(port) = self.ports.get(port) else { continue };
            let at = port.at;
            for listener in port.members.clone() {
                self.hand_out_of(listener, at);
            }
        }
    }

    fn hand_out_of(&mut self, id: Id, at: SocketAddr) {
        while let Some(listener) = self.sockets.get_mut(id).and_then(Socket::listener)
            && is_unattended(listener)
        {
            let Some(to) = kin::who_waits(kin::bit(at), &mut self.kin_turn) else {
                self.looks_us = Some(KEEPS_US);
                self.leaves_queue_to_kin(id, at);
                return;
            };
            let Some(listener) = self.sockets.get_mut(id).and_then(Socket::listener) else {
                return;
            };
            let Some(given) = listener.queue.pop_front() else { return };
            let Some(stream) = self.sockets.get_mut(given).and_then(Socket::stream) else {
                continue;
            };
            if !may_leave(stream) {
                // It is here only, and so is what is left of it.
                if let Some(listener) = self.sockets.get_mut(id).and_then(Socket::listener) {
                    listener.queue.push_front(given);
                }
                return;
            }
            let token = kin::token_of_listener(at);
            self.gives(given, Gift { to, token, from: Some(id), asked: false, tries: 0 });
        }
    }

    /// Leaves the connections in a listener's queue to another process in case this one is killed.
    /// On Linux the queue belongs to all processes that have the listener.
    fn leaves_queue_to_kin(&mut self, id: Id, at: SocketAddr) {
        let token = kin::token_of_listener(at);
        let queue = self.sockets.get_mut(id).and_then(Socket::listener);
        let queue: Vec<Id> = queue.map_or(Vec::new(), |l| l.queue.iter().copied().collect());
        for waiting in queue {
            let Some(stream) = self.sockets.get_mut(waiting).and_then(Socket::stream) else {
                continue;
            };
            if stream.legacy == 0 && may_leave(stream) {
                stream.legacy = token;
                self.mark_dirty(waiting);
            }
        }
    }

    /// A listener of this port ends, in whose queue the connection is. Whether another process gets
    /// it, which has the listener.
    pub fn leaves_to_kin(&mut self, port: Id, id: Id) -> bool {
        let Some(at) = self.ports.get(port).filter(|_| kin::exist()).map(|port| port.at) else {
            return false;
        };
        let stream = self.sockets.get_mut(id).and_then(Socket::stream);
        if !stream.is_some_and(|stream| may_leave(stream)) {
            return false;
        }
        let Some(to) = kin::who_has(kin::bit(at), &mut self.kin_turn) else { return false };
        let token = kin::token_of_listener(at);
        self.gives(id, Gift { to, token, from: None, asked: false, tries: 0 });
        true
    }

    fn gives(&mut self, id: Id, gift: Gift) {
        let Some(stream) = self.sockets.get_mut(id).and_then(Socket::stream) else { return };
        (stream.queued_at, stream.gift) = (None, Some(Box::new(gift)));
        self.leaves_queue(id);
        self.mark_dirty(id);
    }

    /// The answer to `GIVE`: the connection is another process's now, or still this one's.
    pub fn gave(&mut self, id: Id, answer: Result<u64, Error>) {
        let Some(stream) = self.sockets.get_mut(id).and_then(Socket::stream) else { return };
        let Some(gift) = stream.gift.take().map(|gift| *gift) else { return };
        if stream.shared.is_some() {
            return self.handed(id, answer.is_ok());
        }
        let is_dead = stream.phase == Phase::Dead;
        if answer.is_ok() || is_dead {
            // Unread bytes are announced to the other process.
            stream.flow_is_forgotten();
            self.sockets.remove(id);
            return;
        }
        if matches!(answer, Err(Error::Invalid)) {
            kin::is_gone(gift.to);
        }
        let from = gift
            .from
            .filter(|from| self.sockets.get_mut(*from).and_then(Socket::listener).is_some());
        let Some(stream) = self.sockets.get_mut(id).and_then(Socket::stream) else { return };
        stream.queued_at = from;
        match from {
            Some(from) => {
                if let Some(listener) = self.sockets.get_mut(from).and_then(Socket::listener) {
                    listener.queue.push_front(id);
                }
                self.notify(from, libc::EPOLLIN | libc::EPOLLRDNORM);
            }
            // The listener was closed meanwhile.
            None => self.leaves_to_another(id, gift),
        }
    }

    /// A process could not be given a connection whose listener is closed here: the next one gets
    /// it, or nobody.
    fn leaves_to_another(&mut self, id: Id, gift: Gift) {
        let to = kin::who_has(kin::bit_of(gift.token), &mut self.kin_turn);
        match to.filter(|_| gift.tries < TRIES_MAX) {
            Some(to) => {
                let tries = gift.tries + 1;
                self.gives(id, Gift { to, asked: false, from: None, tries, ..gift });
            }
            None => {
                if let Some(stream) = self.sockets.get_mut(id).and_then(Socket::stream) {
                    stream.flow.ending = Ending::Abort;
                }
                self.mark_dirty(id);
            }
        }
    }

    /// Another process gives a connection to this one.
    pub fn given(
        &mut self,
        elastic: usize,
        token: u64,
        (handle, returned): (u64, u64),
        peer: SocketAddr,
    ) {
        if self.takes_over(elastic, token, (handle, returned), peer) {
            return;
        }
        let is_its = |port: &Id| {
            let port = self.ports.get(*port);
            port.is_some_and(|port| kin::token_of_listener(port.at) == token)
        };
        match self.ports.ids().into_iter().find(is_its) {
            Some(port) => self.arrives(elastic, port, None, handle, peer),
            // It was closed here meanwhile.
            None => {
                let stream = Stream::new(Phase::ToAccept, handle, peer, None);
                let socket = Socket::new(Kind::Stream(Box::new(stream)), false, false);
                let id = self.sockets.insert(Socket { elastic, ..socket });
                let gift = Gift { to: 0, token, from: None, asked: false, tries: 0 };
                self.leaves_to_another(id, gift);
            }
        }
    }
}

/// Whether a connection that waits to be accepted can go to another process.
fn may_leave(stream: &Stream) -> bool {
    stream.phase != Phase::Dead && stream.local_peer.is_none()
}

/// Whether connections wait at a listener that no thread of this process waits for.
fn is_unattended(listener: &Listener) -> bool {
    listener.waiting == 0 && !listener.shut && !listener.queue.is_empty()
}
