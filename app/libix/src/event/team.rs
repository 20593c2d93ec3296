//! Loops of one service on several elastic threads, which hand connections to each other.
use super::connection::Connection;
use crate::raw::Event;
use crate::raw::call::Batched;
use ix_abi::Cookie;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The loops of a service whose connections may move from one to the other: each is made by
/// [`super::EventLoop::in_team`]. Clones are the same team.
///
/// `S` is the state of a connection. It goes along, so it must be `Send` for the team to reach
/// several threads.
pub struct Team<S>(Arc<[Mailbox<S>]>);

type Mailbox<S> = Mutex<Vec<Parcel<S>>>;

impl<S> Clone for Team<S> {
    fn clone(&self) -> Self {
        Team(Arc::clone(&self.0))
    }
}

impl<S> Team<S> {
    /// For the elastic threads 0 to `threads` - 1.
    pub fn new(threads: u32) -> Team<S> {
        Team((0..threads).map(|_| Mailbox::default()).collect())
    }

    fn mailbox(&self, thread: u32) -> Option<MutexGuard<'_, Vec<Parcel<S>>>> {
        let mailbox = self.0.get(thread as usize)?;
        Some(mailbox.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// All that a loop has of a flow group, on its way to another loop.
pub(super) struct Parcel<S> {
    pub(super) group: u32,
    pub(super) connections: Vec<Moved<S>>,
    /// Calls that the old thread's array had no room for.
    pub(super) calls: Vec<Batched>,
}

/// A connection on its way.
pub(super) struct Moved<S> {
    /// The dataplane's cookie of it; `None`: it was not accepted yet.
    pub(super) cookie: Option<Cookie>,
    pub(super) connection: Connection<S>,
}

/// One loop's place in a team.
pub(super) struct Member<S> {
    pub(super) team: Team<S>,
    pub(super) groups: Groups,
    /// Connections that moved here, by their old cookies: while the call that changes it waits for
    /// room, events still carry that.
    pub(super) renaming: HashMap<Cookie, Cookie>,
}

impl<S> Member<S> {
    pub(super) fn new(team: &Team<S>) -> Member<S> {
        Member { team: team.clone(), groups: Groups::default(), renaming: HashMap::new() }
    }

    pub(super) fn has_peer(&self, thread: u32) -> bool {
        (thread as usize) < self.team.0.len()
    }

    pub(super) fn post(&self, to: u32, parcel: Parcel<S>) {
        if let Some(mut mailbox) = self.team.mailbox(to) {
            mailbox.push(parcel);
        }
    }

    /// What came for a flow group to this thread.
    pub(super) fn receive(&self, here: u32, group: u32) -> Vec<Parcel<S>> {
        let Some(mut mailbox) = self.team.mailbox(here) else { return Vec::new() };
        mailbox.extract_if(.., |parcel| parcel.group == group).collect()
    }

    /// The event, with the connection's cookie of this thread.
    pub(super) fn renamed(&self, mut event: Event) -> Event {
        if !self.renaming.is_empty()
            && let Some(cookie) = event.flow_cookie_mut()
            && let Some(new) = self.renaming.get(cookie)
        {
            *cookie = *new;
        }
        event
    }
}

/// Which connections belong to which flow group, so that a migration need not ask all of them.
///
/// To leave costs nothing but a count: ids of connections that are gone stay until they are many.
#[derive(Default)]
pub(super) struct Groups(Vec<Group>);

#[derive(Default)]
struct Group {
    ids: Vec<u64>,
    gone: usize,
}

/// So many ids may be in vain.
const GONE: usize = 16;

impl Groups {
    fn of(&mut self, group: u32) -> &mut Group {
        let group = group as usize;
        if group >= self.0.len() {
            self.0.resize_with(group + 1, Group::default);
        }
        &mut self.0[group]
    }

    pub(super) fn joined(&mut self, group: u32, id: u64) {
        self.of(group).ids.push(id);
    }

    /// A connection of the group is gone; `lives` says which are not.
    pub(super) fn left(&mut self, group: u32, lives: impl Fn(u64) -> bool) {
        let group = self.of(group);
        group.gone += 1;
        if group.gone > GONE + group.ids.len() / 2 {
            group.ids.retain(|&id| lives(id));
            group.gone = 0;
        }
    }

    /// The ids of a group, of which some may be gone; it has none afterwards.
    pub(super) fn take(&mut self, group: u32) -> Vec<u64> {
        core::mem::take(self.of(group)).ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn groups_know_who_lives(steps in prop::collection::vec((0..8u8, 0..4u32), 1..2000)) {
            let (mut groups, mut next) = (Groups::default(), 0);
            let mut model = vec![BTreeSet::new(); 4];
            for (what, group) in steps {
                let living = &mut model[group as usize];
                match what {
                    0..4 => {
                        next += 1;
                        groups.joined(group, next);
                        living.insert(next);
                    }
                    4..7 => {
                        if let Some(id) = living.pop_first() {
                            groups.left(group, |id| living.contains(&id));
                            prop_assert!(!living.contains(&id));
                        }
                    }
                    _ => {
                        let ids = groups.take(group);
                        prop_assert!(ids.len() <= 2 * living.len() + 2 * GONE + 2);
                        let ids: BTreeSet<_> = ids.into_iter().collect();
                        prop_assert!(living.is_subset(&ids));
                        living.clear();
                    }
                }
            }
        }
    }
}
