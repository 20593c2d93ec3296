//! Sockets that the program has closed here and that another of its processes still has, or is to
//! get: a listener that a forked or executed process does not serve yet, and what is on its way
//! over a Unix socket. This process keeps each of them until the other one serves it, or until no
//! process can get it any more.
use crate::slab::Id;
use crate::socket::{Kind, Socket};
use crate::state::Core;
use crate::{clock, holders, in_flight, kin};

/// Time between looks, µs.
const LOOKS_US: u64 = 5_000;

impl Core {
    /// The program has closed its last descriptor of a socket: whether that lives on here.
    pub fn stays_afloat(&mut self, id: Id) -> bool {
        let Some(at) = self.sockets.get_mut(id).and_then(|socket| socket.named) else {
            return self.has_successor(id) && self.floats(id);
        };
        if !self.is_afloat(id, at) && !self.has_successor(id) {
            if let Some(socket) = self.sockets.get_mut(id) {
                socket.named = None;
            }
            holders::leave(at);
            return false;
        }
        self.floats(id)
    }

    fn floats(&mut self, id: Id) -> bool {
        if !self.afloat.contains(&id) {
            self.afloat.push(id);
        }
        self.looks_again_afloat();
        // So that a driver comes out and looks at it.
        self.mark_dirty(id);
        true
    }

    /// Whether it is a listener at whose address another process will listen soon, and none does
    /// yet.
    fn has_successor(&mut self, id: Id) -> bool {
        let Core { sockets, ports, kin_turn, .. } = self;
        let listener = sockets.get_mut(id).and_then(Socket::listener);
        let Some(listener) = listener.filter(|listener| kin::exist() && !listener.shut) else {
            return false;
        };
        let bit = ports.get(listener.port).map(|port| kin::bit(port.at));
        bit.is_some_and(|bit| kin::is_coming(bit) && kin::who_has(bit, kin_turn).is_none())
    }

    /// Says where this process will listen once it waits.
    pub fn says_it_comes(&mut self) {
        if self.has_begun() || !kin::exist() {
            return;
        }
        let mut listens = 0;
        for port in self.ports.ids() {
            let has = self.ports.get(port).filter(|port| !port.members.is_empty());
            listens |= has.map_or(0, |port| kin::bit(port.at));
        }
        if listens != 0 {
            kin::comes(listens);
        }
    }

    fn is_afloat(&mut self, id: Id, at: u32) -> bool {
        let Core { sockets, ports, .. } = self;
        let Some(socket) = sockets.get_mut(id) else { return false };
        let passed = socket.passed;
        let lives = || holders::have_others(at) || passed && in_flight::is_open(at);
        match &socket.kind {
            Kind::Listener(listener) => {
                let bit = ports.get(listener.port).map(|port| kin::bit(port.at));
                // One that listens there by itself may close its own at the same time, and rely on
                // this one.
                let serves = bit.is_some_and(|bit| kin::has_one(holders::others(at), bit));
                !listener.shut && !serves && lives()
            }
            Kind::Datagrams(_) => holders::taker(at, true).is_none() && lives(),
            Kind::Idle { .. } => passed && !holders::have_others(at) && in_flight::is_open(at),
            Kind::Linux | Kind::Stream(_) | Kind::Lost => false,
        }
    }

    fn looks_again_afloat(&mut self) {
        self.looks_us = Some(self.looks_us.map_or(LOOKS_US, |us| us.min(LOOKS_US)));
    }

    /// After a cycle: closes the sockets that another process serves now, and those that no process
    /// can get any more.
    pub fn look_at_afloat(&mut self) {
        if self.afloat.is_empty() {
            return;
        }
        let now_us = clock::now_us();
        if now_us >= self.afloat_again_us {
            self.afloat_again_us = now_us + LOOKS_US;
            for id in core::mem::take(&mut self.afloat) {
                // Notes it again if it stays.
                self.close(id);
            }
        }
        if !self.afloat.is_empty() {
            self.looks_again_afloat();
        }
    }
}

impl Socket {
    /// Where it is noted which processes have it.
    pub fn noted_at(&self) -> Option<u32> {
        match &self.kind {
            Kind::Stream(stream) => stream.shared,
            _ => self.named,
        }
    }
}
