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
            return false;
        };
        if !self.is_afloat(id, at) {
            if let Some(socket) = self.sockets.get_mut(id) {
                socket.named = None;
            }
            holders::leave(at);
            return false;
        }
        if !self.afloat.contains(&id) {
            self.afloat.push(id);
        }
        self.looks_again_afloat();
        // So that a driver comes out and looks at it.
        self.mark_dirty(id);
        true
    }

    fn is_afloat(&mut self, id: Id, at: u32) -> bool {
        let Core { sockets, ports, kin_turn, .. } = self;
        let Some(socket) = sockets.get_mut(id) else { return false };
        let passed = socket.passed;
        let lives = || holders::have_others(at) || passed && in_flight::is_open(at);
        match &socket.kind {
            Kind::Listener(listener) => {
                let bit = ports.get(listener.port).map(|port| kin::bit(port.at));
                let serves = bit.is_some_and(|bit| kin::who_has(bit, kin_turn).is_some());
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
