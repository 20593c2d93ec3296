//! Loops of one service on several elastic threads, between which connections move.
use crate::engine::Parcel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The loops of a service between which connections may move; [`super::EventLoop::in_team`] makes
/// each. Clones are the same team.
///
/// `S` is the state of a connection. It moves along, so it must be `Send` if the team has several
/// threads.
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

    pub(super) fn has(&self, thread: u32) -> bool {
        (thread as usize) < self.0.len()
    }

    pub(super) fn post(&self, to: u32, parcel: Parcel<S>) {
        if let Some(mut mailbox) = self.mailbox(to) {
            mailbox.push(parcel);
        }
    }

    /// Takes all connections that were sent to this thread.
    pub(super) fn receive_all(&self, here: u32) -> Vec<Parcel<S>> {
        self.mailbox(here).map(|mut mailbox| core::mem::take(&mut *mailbox)).unwrap_or_default()
    }

    /// Takes the connections of a flow group that were sent to this thread.
    pub(super) fn receive(&self, here: u32, group: u32) -> Vec<Parcel<S>> {
        let Some(mut mailbox) = self.mailbox(here) else { return Vec::new() };
        mailbox.extract_if(.., |parcel| parcel.group == group).collect()
    }
}
