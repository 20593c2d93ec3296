//! Flow-group migration (SoCC '15 section 4.5): moves flow groups from one elastic thread to another
//! while traffic goes on, without losing or reordering a packet.
mod record;

pub use record::{MigrationEnd, MigrationRecord};

use crate::group_set::GroupSet;
use crate::thread::ElasticThread;
use core::fmt;
use record::Records;
use std::collections::VecDeque;

/// Requests that wait on one elastic thread at most.
const REQUESTS_MAX: usize = 64;

/// Why a migration is not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrateError {
    /// There is no such elastic thread, or it is the one that has the groups.
    NoTarget,
    /// No group of the set is this thread's, nor on its way to it.
    NotHere,
    /// Too many requests wait already.
    Busy,
}

impl fmt::Display for MigrateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MigrateError::NoTarget => "there is no such other elastic thread",
            MigrateError::NotHere => "the flow groups are another thread's",
            MigrateError::Busy => "too many migrations wait; try again later",
        })
    }
}

impl std::error::Error for MigrateError {}

/// What somebody wants moved.
#[derive(Clone, Copy, Debug)]
struct Request {
    groups: GroupSet,
    to: usize,
    command: u64,
}

/// One elastic thread's part in migrations.
pub struct Migrations {
    requests: VecDeque<Request>,
    records: Records,
    takes_groups: bool,
}

impl Migrations {
    /// Nothing moves.
    pub fn new() -> Migrations {
        Migrations { requests: VecDeque::new(), records: Records::default(), takes_groups: true }
    }
}

impl ElasticThread {
    /// Sends flow groups that this thread owns to another; called on this thread, between two cycles.
    ///
    /// It takes some cycles of both threads, and their applications' return. Groups that are still on
    /// their way here are waited for; others that are not here are left out. Exactly one record with
    /// this `command` comes of it ([`ElasticThread::take_migration`]): on the target when the groups
    /// have moved, on this thread when nothing moved ([`MigrationEnd::Refused`]).
    pub fn migrate(
        &mut self,
        groups: GroupSet,
        to: usize,
        command: u64,
    ) -> Result<(), MigrateError> {
        if to >= self.shared.threads() || to == self.io.index {
            return Err(MigrateError::NoTarget);
        }
        if self.migrations.requests.len() >= REQUESTS_MAX {
            return Err(MigrateError::Busy);
        }
        self.migrations.requests.push_back(Request { groups, to, command });
        Ok(())
    }

    /// The oldest record that nobody has taken yet, of migrations that ended on this thread.
    pub fn take_migration(&mut self) -> Option<MigrationRecord> {
        self.migrations.records.pop()
    }

    /// Flow groups that this thread has, those on their way to another one included.
    pub fn groups_here(&self) -> GroupSet {
        (0..self.groups.len()).filter(|group| self.groups[*group].is_some()).collect()
    }

    /// Whether nothing comes here or leaves: with no groups here either, the thread may be parked.
    pub fn at_rest(&self) -> bool {
        self.migrations.requests.is_empty()
    }

    /// Whether this thread agrees to take flow groups; at first it does. A thread that is to be parked
    /// first says no here, then sends its groups away.
    pub fn set_takes_groups(&mut self, takes_groups: bool) {
        self.migrations.takes_groups = takes_groups;
    }
}
