//! Connections that move with their flow group, from one thread's engine to another's.
//!
//! On the old thread `MIGRATED` (`LEAVES`) is the last word on the group. Before the next cycle its
//! connections leave with all they have: what the user attached, what is to be sent and its memory,
//! what was received and not given back. Nothing of it is in a call by then but what the array
//! already had. On the new thread `MIGRATED` (`ARRIVED`) brings them in under new cookies.
use super::groups::Groups;
use super::{Connection, Engine, FETCH_AHEAD, Pending, SendLimit, User};
use crate::error::{Dead, Error};
use crate::raw::Event;
use crate::raw::call::{self, Batched};
use ix_abi::{Cookie, group_of};
use std::collections::HashMap;

/// All that an engine has of a flow group, on its way to another one.
pub(crate) struct Parcel<S> {
    pub(crate) group: u32,
    connections: Vec<Moved<S>>,
    /// Calls that the old thread's array had no room for.
    calls: Vec<Batched>,
}

impl<S> Parcel<S> {
    /// The connections alone.
    pub(super) fn into_connections(self) -> impl Iterator<Item = Connection<S>> {
        self.connections.into_iter().map(|moved| moved.connection)
    }
}

/// A connection on its way.
struct Moved<S> {
    /// The dataplane's cookie of it; `None`: it was not accepted yet.
    cookie: Option<Cookie>,
    connection: Connection<S>,
}

impl<U: User> Engine<U> {
    /// From now on connections can move: which ones are in a flow group is remembered. There is
    /// none yet.
    pub(crate) fn remember_groups(&mut self) {
        self.groups = Some(Box::default());
    }

    /// Connections of a flow group that leaves, some of which may be gone; it has none afterwards.
    pub(crate) fn take_group(&mut self, group: u32) -> Vec<Cookie> {
        self.groups.as_mut().map(|groups| Groups::take(groups, group)).unwrap_or_default()
    }

    /// Resets the connections of a group that leaves. They are dead with the next failures that are
    /// told.
    pub(crate) fn reset_group(&mut self, group: u32) {
        for cookie in self.connections.ids().collect::<Vec<_>>() {
            if let Some(connection) = self.connections.get(cookie)
                && connection.flow.handle != 0
                && group_of(connection.flow.handle) == group
            {
                let abort = call::abort(connection.flow.handle);
                self.push_quietly(abort);
                self.failed.push((cookie, Dead::Failed(Error::Moved)));
            }
        }
    }

    /// Takes these connections of a group out; `None`: there is nothing to be sent on.
    pub(crate) fn pack(&mut self, group: u32, cookies: &[Cookie]) -> Option<Parcel<U::Connection>> {
        let mut calls = Vec::new();
        // Cookies other than the one here.
        let mut others: HashMap<Cookie, Option<Cookie>> = HashMap::new();
        for (call, pending) in self.batch.take_from_backlog(group) {
            match pending {
                Pending::Accept(cookie) => drop(others.insert(cookie, None)),
                Pending::Rename(cookie, old) => {
                    self.renaming.remove(&old);
                    others.insert(cookie, Some(old));
                }
                _ => calls.push(call),
            }
        }
        let mut connections = Vec::with_capacity(cookies.len());
        for (at, &id) in cookies.iter().enumerate() {
            if let Some(&ahead) = cookies.get(at + FETCH_AHEAD) {
                self.connections.prefetch(ahead);
            }
            if let Some(connection) = self.connections.remove(id) {
                let cookie = others.get(&id).copied().unwrap_or(Some(id));
                connections.push(Moved { cookie, connection });
            }
        }
        let any = !connections.is_empty() || !calls.is_empty();
        any.then_some(Parcel { group, connections, calls })
    }

    /// Takes the connections of a parcel in, each under a new cookie, of which the dataplane hears.
    /// Those with room for bytes that were refused on the old thread, `send_limit` being the most
    /// that a connection holds, starve here.
    pub(crate) fn unpack(
        &mut self,
        parcel: Parcel<U::Connection>,
        send_limit: SendLimit,
    ) -> Vec<Cookie> {
        let Parcel { group, connections, calls } = parcel;
        let moved = connections.into_iter().map(|moved| self.unpack_one(group, moved, send_limit));
        let cookies = moved.collect();
        calls.into_iter().for_each(|call| self.push_quietly(call));
        cookies
    }

    fn unpack_one(
        &mut self,
        group: u32,
        moved: Moved<U::Connection>,
        send_limit: SendLimit,
    ) -> Cookie {
        let Moved { cookie: old, mut connection } = moved;
        connection.dirty = false;
        let handle = connection.flow.handle;
        // Transmit memory may have been missing there: no event says that there is some here.
        let starves = connection.wants_room && connection.has_room(send_limit, self.tx());
        let cookie = self.connections.insert(connection);
        if starves {
            self.starved.push(cookie);
        }
        if let Some(groups) = &mut self.groups {
            groups.joined(group, cookie);
        }
        match old {
            None => self.make(call::accept(handle, cookie), Pending::Accept(cookie)),
            Some(old) => {
                let rename = call::set_cookie(handle, cookie);
                let pending = Pending::Rename(cookie, old);
                if !self.batch.push(&mut self.thread, rename, pending) {
                    self.renaming.insert(old, cookie);
                }
            }
        }
        self.touch(cookie);
        cookie
    }

    /// The dataplane has said what became of a new cookie.
    pub(super) fn renamed(&mut self, cookie: Cookie, old: Cookie, answer: Result<u64, Error>) {
        self.renaming.remove(&old);
        if answer.is_err() {
            // The call that accepted it on the old thread was refused.
            self.failed.push((cookie, Dead::Reset));
        }
    }

    /// Gives an event the connection's cookie of this thread.
    #[cold]
    pub(super) fn rename(&self, event: &mut Event) {
        if let Some(cookie) = event.flow_cookie_mut()
            && let Some(new) = self.renaming.get(cookie)
        {
            *cookie = *new;
        }
    }
}
