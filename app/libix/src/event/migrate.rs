//! Connections that move with their flow group, from the loop of one elastic thread to another's.
//!
//! On the old thread `MIGRATED` (`LEAVES`) is the last word on the group. Before the next cycle its
//! connections leave with all they have: the service's state, what is to be sent and its memory, what
//! was received and not given back. Nothing of it is in a call by then but what the array already
//! had. On the new thread `MIGRATED` (`ARRIVED`) brings them in under new ids.
use super::batch::Pending;
use super::team::{Moved, Parcel};
use super::{EventLoop, FETCH_AHEAD, Handler, Io};
use crate::error::{Dead, Error};
use crate::raw::call;
use ix_abi::{Cookie, group_of};
use std::collections::HashMap;

impl<H: Handler> EventLoop<H> {
    pub(super) fn group_leaves(&mut self, group: u32, to: u32) {
        // Whom a call was refused on stays here, with the reset that follows from it.
        self.report_failures();
        let Some(ids) = self.io.group_members(group, to) else {
            return self.reset_group(group);
        };
        for (at, &id) in ids.iter().enumerate() {
            if let Some(&ahead) = ids.get(at + FETCH_AHEAD) {
                self.io.prefetch(ahead);
            }
            self.tell(id, |handler, conn| handler.on_migrate_out(conn, to));
        }
        self.io.send_group(group, to, ids);
    }

    /// Nobody on the other thread would know these connections.
    fn reset_group(&mut self, group: u32) {
        for id in self.io.connections.ids().collect::<Vec<_>>() {
            if let Some(connection) = self.io.connections.get(id)
                && connection.handle != 0
                && group_of(connection.handle) == group
            {
                self.io.batch.push(call::abort(connection.handle), Pending::Nothing);
                self.io.failed.push((id, Dead::Failed(Error::Moved)));
            }
        }
        self.report_failures();
    }

    pub(super) fn group_arrived(&mut self, group: u32, from: u32) {
        let here = self.io.thread_index();
        let parcels = self.io.member.as_ref().map(|member| member.receive(here, group));
        for Parcel { connections, calls, .. } in parcels.into_iter().flatten() {
            let ids: Vec<_> =
                connections.into_iter().map(|moved| self.io.take_in(group, moved)).collect();
            for call in calls {
                self.io.batch.push(call, Pending::Nothing);
            }
            for id in ids {
                self.tell(id, |handler, conn| handler.on_migrate_in(conn, from));
            }
        }
    }
}

impl<S> Io<S> {
    /// Connections of a group, some of which may be gone; `None`: they cannot go there.
    fn group_members(&mut self, group: u32, to: u32) -> Option<Vec<u64>> {
        let member = self.member.as_mut()?;
        member.has_peer(to).then(|| member.groups.take(group))
    }

    /// Puts connections into the other loop's mailbox.
    fn send_group(&mut self, group: u32, to: u32, ids: Vec<u64>) {
        let Some(member) = &mut self.member else { return };
        let mut calls = Vec::new();
        // Cookies other than the id here.
        let mut cookies: HashMap<u64, Option<Cookie>> = HashMap::new();
        for (call, pending) in self.batch.take_from_backlog(group) {
            match pending {
                Pending::Accept(id) => drop(cookies.insert(id, None)),
                Pending::Rename(id, old) => {
                    member.renaming.remove(&old);
                    cookies.insert(id, Some(old));
                }
                _ => calls.push(call),
            }
        }
        let mut connections = Vec::with_capacity(ids.len());
        for (at, &id) in ids.iter().enumerate() {
            if let Some(&ahead) = ids.get(at + FETCH_AHEAD) {
                self.connections.prefetch(ahead);
            }
            if let Some(connection) = self.connections.remove(id) {
                let cookie = cookies.get(&id).copied().unwrap_or(Some(id));
                connections.push(Moved { cookie, connection });
            }
        }
        if !connections.is_empty() || !calls.is_empty() {
            member.post(to, Parcel { group, connections, calls });
        }
    }

    /// A connection that came from another thread gets an id here, and the dataplane hears it.
    fn take_in(&mut self, group: u32, moved: Moved<S>) -> u64 {
        let Moved { cookie, mut connection } = moved;
        connection.dirty = false;
        let handle = connection.handle;
        // Transmit memory may have been missing there: no event says that there is some here.
        let starves = connection.wants_room && connection.out.len() <= self.send_limit / 2;
        let id = self.connections.insert(connection);
        if starves {
            self.starved.push(id);
        }
        if let Some(member) = &mut self.member {
            member.groups.joined(group, id);
            match cookie {
                None => drop(self.batch.push(call::accept(handle, id), Pending::Accept(id))),
                Some(old) => {
                    let rename = call::set_cookie(handle, id);
                    if !self.batch.push(rename, Pending::Rename(id, old)) {
                        member.renaming.insert(old, id);
                    }
                }
            }
        }
        self.touch(id);
        id
    }

    /// The dataplane has said what became of a new name.
    pub(super) fn renamed(&mut self, id: u64, old: Cookie, answer: Result<u64, Error>) {
        if let Some(member) = &mut self.member {
            member.renaming.remove(&old);
        }
        if answer.is_err() {
            // The call that accepted it on the old thread was refused.
            self.failed.push((id, Dead::Reset));
        }
    }
}
