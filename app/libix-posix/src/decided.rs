//! Undecided sockets that several processes have. What one process makes of such a socket, a
//! listener or a connection, it is in the others as well: on Linux there is one file. The process
//! notes it beside the socket's place ([`crate::holders`]), and the others look there when they use
//! the socket, and when they are told of news.
use crate::slab::Id;
use crate::socket::{Kind, Socket};
use crate::state::Core;
use crate::{holders, ops, record};

impl Core {
    /// Before a fork: what an undecided socket becomes is noted at its place from now on.
    pub fn notes_undecided(&mut self, id: Id) {
        let Some(socket) = self.sockets.get(id) else { return };
        if let (Kind::Idle { .. }, Some(at)) = (&socket.kind, socket.named)
            && let Some(record) = record::of(socket)
        {
            holders::set_record(at, &record);
            if !self.handed.contains(&id) {
                self.handed.push(id);
            }
        }
    }

    /// This process has made a listener or a connection of a socket that others may have.
    pub fn says_what_it_is(&mut self, id: Id) {
        let Some(socket) = self.sockets.get_mut(id) else { return };
        let Some(at) = socket.named else { return };
        let Some(record) = record::of(socket) else { return };
        holders::set_record(at, &record);
        if let Some(stream) = socket.stream() {
            stream.shared = Some(at);
            socket.named = None;
            self.is_handed(id);
        }
        holders::tell_others(at);
    }

    /// Another process may have made something of a socket that is undecided here.
    #[inline]
    pub fn sees_what_it_is(&mut self, id: Id) {
        if let Some(Socket { kind: Kind::Idle { .. }, named: Some(at), .. }) = self.sockets.get(id)
        {
            let at = *at;
            self.becomes(id, at);
        }
    }

    /// The same of all of them, in a process that no other one can tell.
    pub fn sees_what_all_are(&mut self) {
        self.handed.clone().into_iter().for_each(|id| self.sees_what_it_is(id));
    }

    #[cold]
    fn becomes(&mut self, id: Id, at: u32) {
        let Some((told, what)) = record::read(&holders::record(at), at) else { return };
        let Some(socket) = self.sockets.get_mut(id) else { return };
        match what {
            record::What::Stream(_) => {
                (socket.kind, socket.bound, socket.named) = (told.kind, told.bound, None);
                ops::move_watches(self, id);
                self.is_handed(id);
            }
            record::What::Listener { backlog, both } => {
                socket.bound = told.bound;
                ops::listens(self, id, backlog, both);
            }
            record::What::Datagrams { .. } | record::What::Idle { .. } => {}
        }
    }

    /// The socket with this place that is undecided here, if there is one, becomes what it is.
    pub fn sees_what_is_at(&mut self, at: u32) {
        let is_it =
            |socket: &Socket| socket.named == Some(at) && matches!(socket.kind, Kind::Idle { .. });
        // Undecided sockets that others have are among these.
        let mut undecided = self.handed.iter().copied();
        let found = undecided.find(|id| self.sockets.get(*id).is_some_and(is_it));
        found.into_iter().for_each(|id| self.becomes(id, at));
    }
}
