//! Flow-group migration (SoCC '15 section 4.5): moves flow groups from one elastic thread to
//! another while traffic goes on, without losing or reordering a packet.
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
//! Everything travels in the forwarding rings, in order with the packets. So `Ready` proves that
//! B's own packets for A are behind it, and `Settled` that A's are. When A may say so depends on
//! the device ([`ix_nic::SetReta`]): at once where it has no table, else by proof or after a bound.
//!
//! A third thread hands packets of a group along one way only. When the group has a new owner it
//! asks along the old way (`Where`), holds what comes meanwhile, and takes the new way when the
//! owner answers (`Here`). So ways may be as stale as they like.
//!
//! Files: `outgoing.rs` and `incoming.rs` have the two ends, `routes.rs` the ways of packets,
//! `ship.rs` what is packed and unpacked, `unsent.rs` what was built and not sent, `message.rs` and
//! `record.rs` what is said and written down.
mod incoming;
#[cfg(test)]
mod machine_tests;
pub(crate) mod message;
pub(crate) mod on_cpu;
mod outgoing;
mod record;
mod routes;
pub(crate) mod ship;
#[cfg(test)]
mod testbed;
#[cfg(test)]
mod tests;
pub(crate) mod unsent;

pub(crate) use routes::Way;

use crate::flows::handle::FlowId;
use crate::observe::migration::MigrationRecord;
use core::fmt;
use incoming::Incoming;
use ix_nic::RxPacket;
use ix_proto::GroupSet;
use ix_wire::FLOW_GROUPS;
use message::{Forwarded, Message, Ship};
use on_cpu::OnCpu;
use outgoing::Outgoing;
use record::Records;
use routes::{HELD, Switching};
use std::collections::VecDeque;
use unsent::Unsent;

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

/// What one elastic thread's part in migrations is told, beside messages ([`Migrations::receive`]),
/// packets ([`Migrations::way`]) and requests.
#[derive(Debug)]
pub(crate) enum Input {
    /// A cycle is over.
    BetweenCycles,
    /// The application has come back, and its calls are carried out.
    Returned,
    /// [`Action::Ship`] is done. What was built for the groups and not sent waits in the devices'
    /// queues up to these packets.
    Shipped { serial: u64, unsent: Option<Vec<u64>> },
}

/// What the thread is to do next.
pub(crate) enum Action {
    /// Send a message to another thread.
    Tell(usize, Message),
    /// Hand a packet to another thread.
    HandOver { to: usize, port: u8, packet: RxPacket },
    /// Free a packet that no migration waits for.
    Misrouted(RxPacket),
    /// Point the devices' tables to the new thread of a group, and tell the application.
    Leaves { group: usize, to: usize },
    /// Take groups out of this thread and send them with [`Message::Ship`]; then say
    /// [`Input::Shipped`].
    Ship {
        to: usize,
        serial: u64,
        groups: GroupSet,
        held: VecDeque<Forwarded>,
        record: MigrationRecord,
    },
    /// Send [`Message::Sent`] with the fences of the devices.
    TellSent { to: usize, serial: u64 },
    /// Put groups into this thread.
    Unpack(Box<Ship>),
    /// Tell the application that a group has come.
    Arrived { group: usize, from: usize },
    /// These flows have something to send.
    Touch(Vec<FlowId>),
    /// These flows have something to announce.
    Announce(Vec<FlowId>),
    /// Send what the old thread had built and not sent.
    Send(Vec<Unsent>),
    /// Enter the flows of these groups in the wheel.
    Relink(GroupSet),
}

/// What a device says of its redirection table.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Table {
    /// No packet is on its way to an old queue any more.
    pub settled: bool,
    /// A packet in the new queue proves that none is left in the old one.
    pub in_order: bool,
    /// A change is still on its way to the device.
    pub is_sending: bool,
}

/// What a step may look at.
pub(crate) trait Sight {
    /// Time of this cycle, µs.
    fn now_us(&self) -> u64;
    /// This moment, in time that passes and in time that the thread ran.
    fn on_cpu(&self) -> OnCpu;
    /// The elastic thread that owns a group.
    fn owner(&self, group: usize) -> usize;
    /// Whether the event array has room.
    fn has_room(&self) -> bool;
    /// Whether packets wait here that are in no device's queue any more.
    fn keeps_packets(&self) -> bool;
    /// How many devices there are.
    fn ports(&self) -> usize;
    /// The redirection table of a device, if this process can write it.
    fn table(&self, port: usize) -> Option<Table>;
    /// How many packets wait in a device's receive queue, if it can tell.
    fn waiting(&self, port: usize) -> Option<usize>;
    /// How many packets a device was given so far.
    fn handed(&self, port: usize) -> u64;
}

/// One elastic thread's part in migrations: a state machine. It looks at its thread through
/// [`Sight`] and says what is to be done ([`Action`]).
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
    records: Records,
    serial: u64,
    takes_groups: bool,
    /// Number of this elastic thread.
    index: usize,
    /// What is to be done, in this order.
    actions: VecDeque<Action>,
}

impl Migrations {
    /// Of thread `index`: nothing moves.
    pub fn new(index: usize, owner: impl Fn(usize) -> usize) -> Migrations {
        Migrations {
            routes: std::array::from_fn(|group| owner(group) as u16),
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
            records: Records::default(),
            serial: 0,
            takes_groups: true,
            index,
            actions: VecDeque::new(),
        }
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
                && self.ending.is_empty())
    }
}

impl Migrations {
    /// Takes a request: [`crate::ElasticThread::migrate`] says what comes of it.
    pub fn request(
        &mut self,
        groups: GroupSet,
        to: usize,
        command: u64,
    ) -> Result<(), MigrateError> {
        if self.requests.len() >= REQUESTS_MAX {
            return Err(MigrateError::Busy);
        }
        self.requests.push_back(Request { groups, to, command });
        self.active = true;
        Ok(())
    }

    /// The oldest record that was not taken yet.
    pub fn take_record(&mut self) -> Option<MigrationRecord> {
        self.records.pop()
    }

    /// Whether this thread agrees to take flow groups; at first it does.
    pub fn set_takes_groups(&mut self, takes_groups: bool) {
        self.takes_groups = takes_groups;
    }

    /// Goes on with what `input` says. What comes of it is taken with [`Self::next_action`].
    #[cold]
    pub fn step(&mut self, input: Input, sight: &impl Sight) {
        match input {
            Input::BetweenCycles => self.step_all(sight),
            Input::Returned => {
                self.ship_leaving(sight);
                self.open_told(sight);
            }
            Input::Shipped { serial, unsent } => self.hear_shipped(serial, unsent),
        }
    }

    /// What is to be done next.
    #[inline]
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    fn tell(&mut self, to: usize, message: Message) {
        self.act(Action::Tell(to, message));
    }

    fn step_all(&mut self, sight: &impl Sight) {
        self.stirred = false;
        let mut inbox = std::mem::take(&mut self.inbox);
        for (from, message) in inbox.drain(..) {
            self.hear(from, message, sight.now_us());
        }
        self.inbox = inbox;
        self.give_up_switching(sight);
        self.step_incoming(sight);
        self.begin_requests(sight);
        self.step_unsent(sight);
        self.step_outgoing(sight);
        self.end_replayed(sight.now_us());
        self.active = self.must_go_on();
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
            Message::Where { group, asks } => self.hear_question(group, asks, from),
            Message::Here { group } => self.hear_answer(group, from),
            // No step of a migration: the cycle passes it on.
            Message::Signal(_) => {}
        }
    }

    /// Groups that nothing is planned with, of a set.
    fn groups_at_home(&self, groups: &GroupSet) -> GroupSet {
        let free = |group: &usize| self.is_home(*group) && !self.promised.contains(*group);
        groups.iter().filter(free).collect()
    }

    /// Begins with requests whose groups are all here, or will not come.
    fn begin_requests(&mut self, sight: &impl Sight) {
        for _ in 0..self.requests.len() {
            let Some(request) = self.requests.pop_front() else { return };
            let coming = self.incoming.iter();
            if coming.flat_map(|i| i.groups.iter()).any(|group| request.groups.contains(group)) {
                self.requests.push_back(request);
                continue;
            }
            let groups = self.groups_at_home(&request.groups);
            self.offer(Request { groups, ..request }, sight);
        }
    }

    /// Migrations whose last held packets have been handled are over.
    fn end_replayed(&mut self, now_us: u64) {
        if !self.replay.is_empty() {
            return;
        }
        for (mut record, opened_us) in self.ending.drain(..) {
            record.deferred_us = since(opened_us, now_us);
            record.total_us = since(record.start_us, now_us);
            self.records.push(record);
        }
    }
}

/// From then until now, µs; the threads' clocks may differ by a few.
fn since(then_us: u64, now_us: u64) -> u32 {
    now_us.saturating_sub(then_us).min(u64::from(u32::MAX)) as u32
}

const _: () = assert!(HELD as usize > FLOW_GROUPS);
