//! The dataplane has ended, and another one takes its place ([`Error::Lost`]).
//!
//! Flows and what waits for them are gone. Listeners and UDP sockets keep their ids: they are asked
//! for again with the first batch. Transmit memory stays.
use super::migrate::Parcel;
use super::{Engine, Memory, Pending, User};
use crate::error::{Dead, Error};
use crate::raw::call;
use ix_abi::Cookie;

impl<U: User> Engine<U> {
    /// The dataplane has ended. Every connection is dead with the next failures that are told, and
    /// what was received on it can be read until then. Calls that are made from now on wait for
    /// [`Engine::renew`].
    pub(crate) fn lose(&mut self) {
        (self.events, self.told, self.unfinished) = (0, 0, false);
        self.batch.hold();
        self.memory = Memory::new();
        self.dirty.clear();
        self.starved.clear();
        self.renaming.clear();
        self.failed.clear();
        if let Some(groups) = &mut self.groups {
            **groups = Default::default();
        }
        for cookie in self.connections.ids().collect::<Vec<_>>() {
            self.lose_connection(cookie);
        }
        self.asks_for_port = true;
        for id in self.listeners.ids().collect::<Vec<_>>() {
            let Some(listener) = self.listeners.get_mut(id) else { continue };
            if !matches!(listener.name, Some(Err(_))) {
                listener.name = None;
                let listen = call::listen(listener.at, listener.backlog, id);
                self.make(listen, Pending::Listen(id));
            }
        }
        for (id, at) in self.udp.lose() {
            self.make(call::udp_bind(at, id), Pending::UdpBind(id));
        }
    }

    /// Gets another dataplane, and carries on with the next cycle.
    pub(crate) fn renew(&mut self) -> Result<(), Error> {
        self.thread.renew()?;
        self.batch.resume();
        Ok(())
    }

    /// Takes connections in that were on their way from another thread when the dataplane ended, to
    /// tell of their end. `is_new`: there is another dataplane, so what they had received is gone.
    pub(crate) fn unpack_lost(
        &mut self,
        parcel: Parcel<U::Connection>,
        is_new: bool,
    ) -> Vec<Cookie> {
        let mut cookies = Vec::new();
        for mut connection in parcel.into_connections() {
            if is_new {
                connection.flow.receive = Default::default();
            }
            let cookie = self.connections.insert(connection);
            self.lose_connection(cookie);
            cookies.push(cookie);
        }
        cookies
    }

    fn lose_connection(&mut self, cookie: Cookie) {
        let Some(connection) = self.connections.get_mut(cookie) else { return };
        // The next dataplane may have a flow of this name.
        connection.flow.handle = 0;
        let why = match connection.flow.established {
            true => Dead::Failed(Error::Lost),
            false => Dead::NotConnected(Error::Lost),
        };
        self.failed.push((cookie, why));
    }
}
