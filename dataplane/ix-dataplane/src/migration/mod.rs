//! Flow-group migration (SoCC '15 section 4.5): moves flow groups from one elastic thread to
//! another while traffic goes on, without losing or reordering a packet.
//!
//! ```text
//!  old thread A                                  new thread B
//!  Offer ──────────────────────────────────────▶ from now on B keeps what comes in for the
//!                                                groups, instead of handing it to A
//!  holds the groups, RETA := B,  ◀────────── Ready
//!  tells its application LEAVES
//! application comes back; Ship ────────────────▶ inserts the groups, tells its application ARRIVED
//! hands over what still comes ─────────────────▶ application comes back: groups are open, first no
//! more can come: Settled ───────────────────▶ for what A held and handed over, then the rest
//! ```
//!
//! Messages and packets travel in the same forwarding rings, in order. So `Ready` proves that B's
//! own packets for A have arrived, and `Settled` that A's have. When A may send `Settled` depends
//! on the device ([`ix_nic::SetReta`]): at once if the device has no table, else after a proof or
//! after a bound.
//!
//! A third thread hands over packets of a group on one way only. When the group has a new owner,
//! the thread asks on the old way (`Where`), holds the packets that arrive meanwhile, and takes the
//! new way when the owner replies (`Here`). So it does not matter how old a way is.
//!
//! Files: `outgoing.rs` and `incoming.rs` have the two ends, `routes.rs` the ways of packets,
//! `ship.rs` packs and unpacks groups, `unsent.rs` has packets that were built and not sent,
//! `message.rs` the messages, `record.rs` the records.
mod incoming;
#[cfg(test)]
mod machine_tests;
pub(crate) mod message;
pub(crate) mod on_cpu;
mod outgoing;
mod planted;
mod record;
mod routes;
pub(crate) mod ship;
#[cfg(test)]
mod test_net;
#[cfg(test)]
mod tests;
pub(crate) mod unsent;

pub(crate) use routes::Way;

use crate::flows::handle::FlowId;
use core::fmt;
use incoming::Incoming;
use ix_nic::RxPacket;
use ix_proto::GroupSet;
use ix_proto::MigrationRecord;
use ix_wire::FLOW_GROUPS;
use message::{Forwarded, Message, Ship};
use on_cpu::OnCpu;
use outgoing::Outgoing;
use record::Records;
use routes::{HELD, Switching};
use std::collections::VecDeque;
use unsent::Unsent;

/// Most requests that wait on one elastic thread.
const REQUESTS_MAX: usize = 64;
/// If the target has not replied within this time, the offer is withdrawn.
const OFFER_US: u64 = 50_000;
/// If a device cannot tell when it uses a changed table, it is assumed to do so after this time.
const BOUND_US: u64 = 1_000;
/// If a peer has not taken what was sent to it within this time, the order is given up.
const QUIET_US: u64 = 10_000;
/// A thread that has sent nothing for this time is in its application: its packets are not waited
/// for any longer.
const OVERDUE_US: u64 = 100_000;

/// Why a migration cannot begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrateError {
    /// There is no such elastic thread, or it already has the groups.
    NoTarget,
    /// Too many requests are waiting.
    Busy,
}

impl fmt::Display for MigrateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MigrateError::NoTarget => "there is no other elastic thread with this number",
            MigrateError::Busy => "too many migrations are waiting; try again later",
        })
    }
}

impl std::error::Error for MigrateError {}

/// A requested migration.
#[derive(Clone, Copy, Debug)]
struct Request {
    groups: GroupSet,
    to: usize,
    command: u64,
}

/// What the state machine is told beside messages ([`Migrations::receive`]), packets
/// ([`Migrations::way`]) and requests.
#[derive(Debug)]
pub(crate) enum Input {
    /// A cycle is over.
    BetweenCycles,
    /// The application has returned, and its calls are carried out.
    Returned,
    /// [`Action::Ship`] was carried out. Packets that were built for the groups and not sent wait
    /// in the devices' queues up to these packets.
    Shipped { serial: u64, unsent: Option<Vec<u64>> },
}

/// What the thread must do next.
pub(crate) enum Action {
    /// Send a message to another thread.
    Tell(usize, Message),
    /// Hand a packet to another thread.
    HandOver { to: usize, port: u8, looped: bool, packet: RxPacket },
    /// Free a packet that no migration waits for.
    Misrouted(RxPacket),
    /// Steer a group to its new thread in the devices' tables, and tell the application.
    Leaves { group: usize, to: usize },
    /// A group that was to leave stays: steer it back, and tell the application.
    Stays { group: usize, to: usize },
    /// Remove groups from this thread and send them by [`Message::Ship`]; then pass
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
    /// Add groups to this thread.
    Unpack(Box<Ship>),
    /// Tell the application that a group has arrived.
    Arrived { group: usize, from: usize },
    /// These flows have something to send.
    Touch(Vec<FlowId>),
    /// These flows have something to announce.
    Announce(Vec<FlowId>),
    /// Send the packets that the old thread had built and not sent.
    Send(Vec<Unsent>),
    /// Enter the flows of these groups in the wheel.
    Relink(GroupSet),
}

/// The state of a device's redirection table.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Table {
    /// No packet is on its way to an old queue any more.
    pub settled: bool,
    /// A packet in the new queue proves that none is left in the old one.
    pub in_order: bool,
    /// A change is still on its way to the device.
    pub is_sending: bool,
}

/// What a step may read of its thread.
pub(crate) trait Sight {
    /// Time of this cycle, µs.
    fn now_us(&self) -> u64;
    /// This moment, as wall time and as time on the CPU.
    fn on_cpu(&self) -> OnCpu;
    /// The elastic thread that owns a group.
    fn owner(&self, group: usize) -> usize;
    /// Whether the event array has room.
    fn has_room(&self) -> bool;
    /// How long a migration waits for the program's return, µs, because others wait for it as well.
    fn patience_us(&self) -> u64;
    /// Number of devices.
    fn ports(&self) -> usize;
    /// The redirection table of a device, if this process can write it.
    fn table(&self, port: usize) -> Option<Table>;
    /// Number of packets that wait in a device's receive queue, if it can tell.
    fn waiting(&self, port: usize) -> Option<usize>;
    /// Number of packets that a device was given so far.
    fn handed(&self, port: usize) -> u64;
}

/// One elastic thread's part in migrations: a state machine. It reads its thread through [`Sight`]
/// and returns what must be done ([`Action`]).
pub(crate) struct Migrations {
    /// Where packets of each group go: this thread's number, another's, or [`HELD`].
    routes: [u16; FLOW_GROUPS],
    /// Groups of which packets may still be on their way along `routes`.
    sent: GroupSet,
    /// Groups that were offered to another thread.
    promised: GroupSet,
    /// Groups whose flows must not send yet, and those of them that have something to send.
    quiet: GroupSet,
    quieted: Vec<FlowId>,
    /// Flows that were held have something to do in the next turn.
    stirred: bool,
    /// Something must be done between two cycles.
    active: bool,
    /// Messages of this cycle, each with its sender.
    inbox: Vec<(usize, Message)>,
    requests: VecDeque<Request>,
    outgoing: Vec<Outgoing>,
    incoming: Vec<Incoming>,
    switching: Vec<Switching>,
    /// Packets that were held and may be processed now, before all others.
    replay: VecDeque<Forwarded>,
    /// Migrations that end once `replay` is empty.
    ending: Vec<(MigrationRecord, u64)>,
    records: Records,
    serial: u64,
    takes_groups: bool,
    /// Number of this elastic thread.
    index: usize,
    /// What must be done, in this order.
    actions: VecDeque<Action>,
}

impl Migrations {
    /// The state machine of thread `index`, without migrations.
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

    /// Whether a migration is in progress here, or has just ended.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.active
    }

    /// Whether a flow must not send yet. It will when it may.
    pub fn quiets(&mut self, id: FlowId) -> bool {
        let quiet = self.quiet.contains(usize::from(id.group));
        if quiet {
            self.quieted.push(id);
        }
        quiet
    }

    /// Whether cycles are needed even if no packet arrives.
    pub fn is_busy(&self) -> bool {
        self.active
            && (self.stirred
                || !self.replay.is_empty()
                || !self.inbox.is_empty()
                || !self.requests.is_empty() && self.incoming.is_empty()
                || self.incoming.iter().any(Incoming::is_busy)
                || self.outgoing.iter().any(Outgoing::is_busy))
    }

    /// When the next wait ends, µs.
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
    /// Accepts a request; see [`crate::ElasticThread::migrate`].
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

    /// Sets whether this thread accepts flow groups. At first it does.
    pub fn set_takes_groups(&mut self, takes_groups: bool) {
        self.takes_groups = takes_groups;
    }

    /// Processes `input`. [`Self::next_action`] then returns what must be done.
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

    /// The next action.
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
            // Not a step of a migration: the cycle passes it on.
            Message::Signal { .. } => {}
        }
    }

    /// The groups of a set that are in no migration.
    fn groups_at_home(&self, groups: &GroupSet) -> GroupSet {
        let free = |group: &usize| self.is_home(*group) && !self.promised.contains(*group);
        groups.iter().filter(free).collect()
    }

    /// Begins requests whose groups are all here, or will not come.
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

    /// Ends migrations whose last held packets were processed.
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

/// The time from then until now, µs. The threads' clocks may differ by a few µs.
fn since(then_us: u64, now_us: u64) -> u32 {
    now_us.saturating_sub(then_us).min(u64::from(u32::MAX)) as u32
}

const _: () = assert!(HELD as usize > FLOW_GROUPS);
