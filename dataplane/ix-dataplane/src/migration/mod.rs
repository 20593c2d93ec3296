//! Flow-group migration (SoCC '15 section 4.5): moves flow groups from one elastic thread to another
//! while traffic goes on, without losing or reordering a packet.
//!
//! ```text
//!  old thread A                                  new thread B
//!  Offer ──────────────────────────────────────▶ from now on B keeps what comes in for the
//!                                                groups, instead of handing it to A
//!  holds the groups, RETA := B,  ◀────────── Ready
//!  tells its application LEAVES
//!  application comes back; Ship ────────────────▶ inserts the groups, tells its application ARRIVED
//!  hands over what still comes ─────────────────▶ application comes back: groups are open, first
//!  no more can come: Settled ───────────────────▶ for what A held and handed over, then the rest
//! ```
//!
//! Everything travels in the forwarding rings, in order with the packets. So `Ready` proves that B's
//! own packets for A are behind it, and `Settled` that A's are. When A may say so depends on the
//! device ([`ix_nic::SetReta`]): at once where it has no table, else by proof or after a bound.
//!
//! A third thread hands packets of a group along one way only. When the group has a new owner it asks
//! along the old way (`Where`), holds what comes meanwhile, and takes the new way when the owner
//! answers (`Here`). So ways may be as stale as they like.
//!
//! Files: `outgoing.rs` and `incoming.rs` have the two ends, `routes.rs` the ways of packets,
//! `ship.rs` what is packed and unpacked, `unsent.rs` what was built and not sent, `message.rs` and `record.rs` what is said and written down.
mod incoming;
mod message;
mod on_cpu;
mod outgoing;
mod record;
mod routes;
mod ship;
#[cfg(test)]
mod testbed;
#[cfg(test)]
mod tests;
mod unsent;

pub use message::Message;
pub use record::{MigrationEnd, MigrationRecord};
pub(crate) use routes::{Origin, Way};

use crate::cycle::ElasticThread;
use crate::flows::handle::FlowId;
use crate::group_set::GroupSet;
use crate::receive::forwarding::Forwarded;
use crate::shared::Shared;
use core::fmt;
use incoming::Incoming;
use ix_wire::FLOW_GROUPS;
use on_cpu::{OnCpu, ReadOnCpu};
use outgoing::Outgoing;
use record::Records;
use routes::{HELD, Switching};
use ship::{Relink, Sweep};
use std::collections::VecDeque;

/// Requests that wait on one elastic thread at most.
const REQUESTS_MAX: usize = 64;
/// A target that has not agreed after this time is not asked any longer.
const OFFER_US: u64 = 50_000;
/// Where a device cannot tell when it uses a changed table, it does so after this time.
const BOUND_US: u64 = 1_000;
/// A peer that has not taken what was sent to it after this time has other worries than order.
const QUIET_US: u64 = 10_000;
/// A thread that says nothing for so long is in its application: its packets' turn is over.
const OVERDUE_US: u64 = 100_000;

/// Why a migration is not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrateError {
    /// There is no such elastic thread, or it is the one that has the groups.
    NoTarget,
    /// Too many requests wait already.
    Busy,
}

impl fmt::Display for MigrateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MigrateError::NoTarget => "there is no such other elastic thread",
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
pub(crate) struct Migrations {
    /// Where packets of each group go: this thread's number, another's, or [`HELD`].
    routes: [u16; FLOW_GROUPS],
    /// Groups of which packets may still be on their way along `routes`.
    sent: GroupSet,
    /// Groups that were offered to another thread.
    promised: GroupSet,
    /// Groups whose flows must not speak yet, and those of them that have something to say.
    quiet: GroupSet,
    quieted: Vec<FlowId>,
    /// Flows that were held have something to do in the next turn.
    stirred: bool,
    /// Something is to be done between two cycles.
    active: bool,
    /// Messages of this cycle, and from whom.
    inbox: Vec<(usize, Message)>,
    requests: VecDeque<Request>,
    outgoing: Vec<Outgoing>,
    incoming: Vec<Incoming>,
    switching: Vec<Switching>,
    /// Packets that were held and may be handled now: before all others.
    replay: VecDeque<Forwarded>,
    /// Migrations that are over once `replay` is empty.
    ending: Vec<(MigrationRecord, u64)>,
    relink: VecDeque<Relink>,
    sweep: Option<Sweep>,
    records: Records,
    serial: u64,
    takes_groups: bool,
    read_on_cpu: ReadOnCpu,
}

impl Migrations {
    /// Nothing moves.
    pub fn new(shared: &Shared) -> Migrations {
        Migrations {
            routes: std::array::from_fn(|group| shared.owner(group) as u16),
            sent: GroupSet::EMPTY,
            promised: GroupSet::EMPTY,
            quiet: GroupSet::EMPTY,
            quieted: Vec::new(),
            stirred: false,
            active: false,
            inbox: Vec::new(),
            requests: VecDeque::new(),
            outgoing: Vec::new(),
            incoming: Vec::new(),
            switching: Vec::new(),
            replay: VecDeque::new(),
            ending: Vec::new(),
            relink: VecDeque::new(),
            sweep: None,
            records: Records::default(),
            serial: 0,
            takes_groups: true,
            read_on_cpu: OnCpu::in_virtual_time,
        }
    }

    /// The thread runs on Linux, which also runs others.
    pub fn run_on_linux(&mut self) {
        self.read_on_cpu = OnCpu::on_linux;
    }

    /// Whether something moves, or was just moved, here.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.active
    }

    /// Whether a flow must not speak yet; it will when it may.
    pub fn quiets(&mut self, id: FlowId) -> bool {
        let quiet = self.quiet.contains(usize::from(id.group));
        if quiet {
            self.quieted.push(id);
        }
        quiet
    }

    /// Whether cycles are needed though no packet comes.
    pub fn is_busy(&self) -> bool {
        self.active
            && (self.stirred
                || !self.replay.is_empty()
                || !self.inbox.is_empty()
                || !self.requests.is_empty() && self.incoming.is_empty()
                || self.incoming.iter().any(Incoming::is_busy)
                || !self.relink.is_empty()
                || self.sweep.is_some()
                || self.outgoing.iter().any(Outgoing::is_busy))
    }

    /// When something is over, µs.
    pub fn deadline_us(&self) -> Option<u64> {
        let outgoing = self.outgoing.iter().map(Outgoing::deadline_us);
        let incoming = self.incoming.iter().filter_map(Incoming::deadline_us);
        let switching = self.switching.iter().map(|switching| switching.until_us);
        outgoing.chain(incoming).chain(switching).min()
    }

    fn must_go_on(&self) -> bool {
        self.stirred
            || !(self.inbox.is_empty()
                && self.requests.is_empty()
                && self.outgoing.is_empty()
                && self.incoming.is_empty()
                && self.switching.is_empty()
                && self.replay.is_empty()
                && self.ending.is_empty()
                && self.relink.is_empty()
                && self.sweep.is_none())
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
        self.migrations.active = true;
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
        !self.migrations.active && !self.receive.has_backlog() && !self.away.has_kept()
    }

    /// Whether this thread agrees to take flow groups; at first it does. A thread that is to be parked
    /// first says no here, then sends its groups away.
    pub fn set_takes_groups(&mut self, takes_groups: bool) {
        self.migrations.takes_groups = takes_groups;
    }

    /// What migrations need between two cycles.
    #[cold]
    pub(crate) fn step_migrations(&mut self) {
        let now_us = self.io.now_us;
        self.migrations.stirred = false;
        let mut inbox = std::mem::take(&mut self.migrations.inbox);
        for (from, message) in inbox.drain(..) {
            self.hear(from, message, now_us);
        }
        self.migrations.inbox = inbox;
        self.give_up_switching(now_us);
        self.step_incoming(now_us);
        self.begin_requests(now_us);
        self.step_unsent();
        self.step_outgoing(now_us);
        self.end_replayed(now_us);
        self.step_relink(usize::from(u8::MAX));
        self.step_sweep();
        self.migrations.active = self.migrations.must_go_on();
    }

    /// The application has come back, and its calls are carried out.
    #[cold]
    pub(crate) fn application_returned(&mut self) {
        let now_us = self.io.now_us;
        self.ship_leaving(now_us);
        self.open_told(now_us);
    }

    fn hear(&mut self, from: usize, message: Message, now_us: u64) {
        match message {
            Message::Offer(serial, groups) => self.hear_offer(from, serial, groups, now_us),
            Message::Ready(serial) => self.hear_ready(serial),
            Message::Refuse(serial) => self.hear_refusal(serial, now_us),
            Message::Withdraw(serial) => self.hear_withdrawal(from, serial),
            Message::Ship(ship) => self.hear_ship(from, ship),
            Message::Sent(serial, fences) => self.hear_sent(from, serial, fences),
            Message::First(serial) => self.hear_first(serial),
            Message::Settled(serial, early) => self.hear_settled(from, serial, early),
            Message::Where { group, asks } => self.hear_question(group, asks, from, now_us),
            Message::Here { group } => self.hear_answer(group, from),
            Message::Signal(value) => self.io.hear_signal(from, value),
        }
    }

    /// Groups that nothing is planned with, of a set.
    fn groups_at_home(&self, groups: &GroupSet) -> GroupSet {
        let (home, migrations) = (self.io.index, &self.migrations);
        let free = |group: &usize| {
            migrations.is_home(*group, home) && !migrations.promised.contains(*group)
        };
        groups.iter().filter(free).collect()
    }

    /// Begins with requests whose groups are all here, or will not come.
    fn begin_requests(&mut self, now_us: u64) {
        for _ in 0..self.migrations.requests.len() {
            let Some(request) = self.migrations.requests.pop_front() else { return };
            let coming = self.migrations.incoming.iter();
            if coming.flat_map(|i| i.groups.iter()).any(|group| request.groups.contains(group)) {
                self.migrations.requests.push_back(request);
                continue;
            }
            let groups = self.groups_at_home(&request.groups);
            self.offer(Request { groups, ..request }, now_us);
        }
    }

    /// Migrations whose last held packets have been handled are over.
    fn end_replayed(&mut self, now_us: u64) {
        if !self.migrations.replay.is_empty() {
            return;
        }
        let mut ending = std::mem::take(&mut self.migrations.ending);
        for (mut record, opened_us) in ending.drain(..) {
            record.deferred_us = since(opened_us, now_us);
            record.total_us = since(record.start_us, now_us);
            self.migrations.records.push(record);
        }
        self.migrations.ending = ending;
    }
}

/// From then until now, µs; the threads' clocks may differ by a few.
fn since(then_us: u64, now_us: u64) -> u32 {
    now_us.saturating_sub(then_us).min(u64::from(u32::MAX)) as u32
}

const _: () = assert!(HELD as usize > FLOW_GROUPS);
