//! The new thread's end of a migration.
use super::message::{Forwarded, Message, Ship};
use super::on_cpu::OnCpu;
use super::planted::{self, Bug};
use super::routes::HELD;
use super::unsent::Unsent;
use super::{Action, Migrations, OVERDUE_US, QUIET_US, Sight, since};
use crate::flows::handle::FlowId;
use crate::receive::batch::Via;
use ix_nic::Fence;
use ix_proto::GroupSet;
use ix_proto::{MigrationEnd, MigrationRecord};
use std::collections::VecDeque;

/// Flow groups that arrive.
pub struct Incoming {
    serial: u64,
    from: usize,
    pub groups: GroupSet,
    state: State,
    /// Held packets that the old thread handed over, and those from other threads.
    pub remote: VecDeque<Forwarded>,
    pub local: VecDeque<Forwarded>,
    /// The old thread has reported that no packet comes from it any more, and whether it had to
    /// wait.
    settled: Option<bool>,
    /// It was told of the first packet that arrived here.
    told_first: bool,
    /// The groups, until the event array has room to announce them.
    ship: Option<Box<Ship>>,
    /// What must be done when the groups are opened.
    touched: Vec<FlowId>,
    pub to_announce: Vec<FlowId>,
    /// Until these are passed the flows send nothing, because their packets could overtake earlier
    /// ones.
    fences: Vec<Box<dyn Fence>>,
    /// The old thread still has packets of these groups that wait for room in a device.
    queued: bool,
    /// Packets that the old thread had not sent; they are sent first.
    unsent: Vec<Unsent>,
    shipped_us: u64,
    /// State in the last two cycles before the groups came; the older one is before the last check
    /// for them.
    waited_at: [OnCpu; 2],
    opened_us: u64,
    record: MigrationRecord,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    /// Offered; packets of this thread are still on a way that must be empty first.
    Asked,
    /// Accepted: packets of the groups are held here.
    Agreed,
    /// The groups have arrived.
    Arrived,
    /// The groups belong to this thread, and the application was told. It is waited for until this
    /// time.
    Told { until_us: u64 },
    /// The application has returned.
    Returned,
    /// The groups are open. Packets that the old thread hands over are processed.
    Open,
}

impl Incoming {
    /// Groups of this thread that were to leave and stay. The application is told, and waited for
    /// until this time. The record's end is [`MigrationEnd::Refused`].
    pub fn back(
        here: usize,
        groups: GroupSet,
        (held, to_announce): (VecDeque<Forwarded>, Vec<FlowId>),
        (record, until_us): (MigrationRecord, u64),
    ) -> Incoming {
        Incoming {
            state: State::Told { until_us },
            remote: held,
            to_announce,
            settled: Some(true),
            told_first: true,
            record,
            // No message comes from oneself.
            ..Incoming::offered(0, here, groups, 0)
        }
    }

    fn offered(serial: u64, from: usize, groups: GroupSet, now_us: u64) -> Incoming {
        Incoming {
            serial,
            from,
            groups,
            state: State::Asked,
            remote: VecDeque::new(),
            local: VecDeque::new(),
            settled: None,
            told_first: false,
            ship: None,
            touched: Vec::new(),
            to_announce: Vec::new(),
            fences: Vec::new(),
            queued: false,
            unsent: Vec::new(),
            shipped_us: now_us,
            waited_at: [OnCpu::default(); 2],
            opened_us: now_us,
            record: MigrationRecord::default(),
        }
    }

    /// Whether packets of a group are held here.
    pub fn keeps(&self, group: usize) -> bool {
        self.state >= State::Agreed && self.groups.contains(group)
    }

    /// Whether a group's flows are here, and the program has not named them yet.
    pub fn is_silent(&self, group: usize) -> bool {
        self.keeps(group) && self.state < State::Open
    }

    /// Whether packets from this origin need not wait.
    pub fn is_open_to(&self, from: u8) -> bool {
        let is_next = usize::from(from) == self.from || from == Via::REPLAY;
        self.state == State::Open && (is_next || planted::is(Bug::LocalFirst))
    }

    /// The queue in which packets from this origin wait.
    pub fn queue(&mut self, from: u8) -> &mut VecDeque<Forwarded> {
        if usize::from(from) == self.from { &mut self.remote } else { &mut self.local }
    }

    /// The thread that must be told of the first packet from a device, once.
    pub fn first(&mut self) -> Option<(usize, u64)> {
        (!std::mem::replace(&mut self.told_first, true)).then_some((self.from, self.serial))
    }

    /// Whether cycles are needed even if no packet arrives.
    pub fn is_busy(&self) -> bool {
        matches!(self.state, State::Arrived | State::Returned) || !self.fences.is_empty()
    }

    /// When waiting for the order of packets ends.
    pub fn deadline_us(&self) -> Option<u64> {
        match self.state {
            State::Open => Some(self.opened_us.saturating_add(OVERDUE_US)),
            State::Told { until_us } => Some(until_us),
            _ => None,
        }
    }
}

impl Migrations {
    pub(super) fn hear_offer(&mut self, from: usize, serial: u64, groups: GroupSet, now_us: u64) {
        if !self.takes_groups {
            return self.tell(from, Message::Refuse(serial));
        }
        self.incoming.push(Incoming::offered(serial, from, groups, now_us));
    }

    /// The old thread has waited too long for a reply.
    pub(super) fn hear_withdrawal(&mut self, from: usize, serial: u64) {
        let Some(at) = self.incoming_at(from, serial) else { return };
        let Incoming { groups, state, local, .. } = self.incoming.swap_remove(at);
        if state == State::Asked {
            return;
        }
        groups.iter().for_each(|group| self.routes[group] = from as u16);
        // Packets of several groups, but all on the same way.
        for group in groups.iter() {
            self.sent.insert(group);
        }
        if let Some(group) = groups.iter().next() {
            self.hand_over_all(group, from, local);
        }
    }

    fn incoming_at(&self, from: usize, serial: u64) -> Option<usize> {
        self.incoming.iter().position(|i| i.from == from && i.serial == serial)
    }

    pub(super) fn step_incoming(&mut self, sight: &impl Sight) {
        let now_us = sight.now_us();
        for at in 0..self.incoming.len() {
            match self.incoming[at].state {
                State::Asked => self.agree(at, sight),
                State::Agreed => {
                    let now = sight.on_cpu();
                    let waited_at = &mut self.incoming[at].waited_at;
                    *waited_at = [waited_at[1], now];
                }
                State::Arrived if sight.has_room() => self.tell_arrival(at, sight),
                // Who has not returned hears of nothing else before it has.
                State::Told { until_us } if until_us <= now_us => {
                    self.incoming[at].state = State::Returned;
                }
                _ => {}
            }
        }
        self.open_returned(sight);
        let overdue = |i: &Incoming| {
            i.state == State::Open && i.deadline_us().is_some_and(|until_us| until_us <= now_us)
        };
        for incoming in self.incoming.iter_mut().filter(|i| overdue(i)) {
            incoming.settled = Some(false);
            incoming.record.end = MigrationEnd::Overdue;
        }
        self.end_settled();
    }

    /// Accepts the groups, once all of this thread's packets for them go to the old thread.
    fn agree(&mut self, at: usize, sight: &impl Sight) {
        let incoming = &self.incoming[at];
        let (from, serial, groups) = (incoming.from, incoming.serial, incoming.groups);
        // Messages of different threads overtake each other: the thread that offers groups may have
        // given up since, and the groups may have come here another way. It was their owner when it
        // sent the offer, and the owners that this thread sees are at least as recent.
        if groups.iter().any(|group| sight.owner(group) != from) {
            return;
        }
        self.forget_shipped(&groups);
        let mut waits = false;
        for group in groups.iter() {
            let route = self.routes[group];
            if route == HELD {
                waits = true;
            } else if usize::from(route) != from && self.sent.contains(group) {
                self.switch(group, sight.now_us());
                waits = true;
            } else {
                self.routes[group] = from as u16;
            }
        }
        if waits {
            return;
        }
        self.incoming[at].state = State::Agreed;
        self.incoming[at].waited_at = [sight.on_cpu(); 2];
        groups.iter().for_each(|group| self.routes[group] = HELD);
        self.tell(from, Message::Ready(serial));
    }

    pub(super) fn hear_ship(&mut self, from: usize, mut ship: Box<Ship>) {
        let Some(at) = self.incoming_at(from, ship.serial) else { return };
        let incoming = &mut self.incoming[at];
        incoming.state = State::Arrived;
        incoming.remote = std::mem::take(&mut ship.packets);
        incoming.touched = std::mem::take(&mut ship.touched);
        incoming.to_announce = std::mem::take(&mut ship.to_announce);
        incoming.record = ship.record;
        incoming.fences = std::mem::take(&mut ship.fences);
        incoming.queued = ship.queued;
        incoming.unsent = std::mem::take(&mut ship.unsent);
        incoming.shipped_us = ship.now_us;
        incoming.ship = Some(ship);
    }

    /// The devices have taken what the old thread had built.
    pub(super) fn hear_sent(&mut self, from: usize, serial: u64, fences: Vec<Box<dyn Fence>>) {
        let Some(at) = self.incoming_at(from, serial) else { return };
        let incoming = &mut self.incoming[at];
        incoming.queued = false;
        // Too late: the flows send already.
        let is_quiet = |group| incoming.state < State::Open || self.quiet.contains(group);
        if incoming.groups.iter().next().is_some_and(is_quiet) {
            // The fences that came with the groups are passed.
            incoming.fences = fences;
        }
    }

    fn tell_arrival(&mut self, at: usize, sight: &impl Sight) {
        let until_us = sight.now_us().saturating_add(sight.patience_us());
        let incoming = &mut self.incoming[at];
        let (from, groups) = (incoming.from, incoming.groups);
        incoming.state = State::Told { until_us };
        if let Some(ship) = incoming.ship.take() {
            self.act(Action::Unpack(ship));
        }
        for group in groups.iter() {
            self.quiet.insert(group);
            self.act(Action::Arrived { group, from });
        }
    }

    /// The application has returned with its names of the flows that have arrived.
    pub(super) fn open_told(&mut self, sight: &impl Sight) {
        for incoming in &mut self.incoming {
            if matches!(incoming.state, State::Told { .. }) {
                incoming.state = State::Returned;
            }
        }
        self.open_returned(sight);
        self.end_settled();
    }

    /// From now on packets and timers of arrived groups may cause events.
    fn open_returned(&mut self, sight: &impl Sight) {
        let now_us = sight.now_us();
        let Migrations { incoming, actions, stirred, replay, .. } = self;
        for incoming in incoming {
            // A connection's time must not go back.
            if incoming.state != State::Returned || now_us < incoming.shipped_us {
                continue;
            }
            if incoming.queued && now_us - incoming.shipped_us < QUIET_US {
                continue;
            }
            incoming.state = State::Open;
            incoming.opened_us = now_us;
            let record = &mut incoming.record;
            record.rpc_us = since(incoming.shipped_us, now_us);
            record.packets = incoming.remote.len() as u32;
            let off_ns = incoming.waited_at[0].off_ns(sight.on_cpu(), incoming.shipped_us);
            record.descheduled_us += (off_ns / 1000) as u32;
            record.pause_us = since(record.start_us + u64::from(record.prepare_us), now_us);
            actions.push_back(Action::Touch(std::mem::take(&mut incoming.touched)));
            actions.push_back(Action::Announce(std::mem::take(&mut incoming.to_announce)));
            *stirred = true;
            replay.append(&mut incoming.remote);
        }
        self.end_quiet(now_us);
    }

    /// Lets the flows of arrived groups send as soon as peers have taken what the old thread has
    /// sent.
    fn end_quiet(&mut self, now_us: u64) {
        let Migrations { incoming, quiet, quieted, stirred, actions, index, .. } = self;
        for incoming in incoming.iter_mut().filter(|i| i.state == State::Open) {
            let Some(first) = incoming.groups.iter().next() else { continue };
            incoming.fences.retain(|fence| !fence.passed());
            let overdue = now_us.saturating_sub(incoming.opened_us) >= QUIET_US;
            if !quiet.contains(first) || !(incoming.fences.is_empty() || overdue) {
                continue;
            }
            incoming.fences.clear();
            actions.push_back(Action::Send(std::mem::take(&mut incoming.unsent)));
            incoming.groups.iter().for_each(|group| quiet.remove(group));
            if incoming.from != *index {
                actions.push_back(Action::Relink(incoming.groups));
            }
            actions.push_back(Action::Touch(std::mem::take(quieted)));
            *stirred = true;
        }
    }

    pub(super) fn hear_settled(&mut self, from: usize, serial: u64, early: bool) {
        if let Some(at) = self.incoming_at(from, serial) {
            let incoming = &mut self.incoming[at];
            incoming.settled = Some(early);
            incoming.record.end = if early { MigrationEnd::Early } else { MigrationEnd::Bound };
        }
    }

    /// Ends migrations of open groups whose old way is empty. Packets that have waited for that are
    /// processed next.
    fn end_settled(&mut self) {
        let mut at = 0;
        while let Some(incoming) = self.incoming.get(at) {
            let settled = incoming.settled.is_some() && incoming.fences.is_empty();
            if incoming.state != State::Open || !settled {
                at += 1;
                continue;
            }
            let Incoming { groups, mut local, mut record, opened_us, .. } =
                self.incoming.swap_remove(at);
            record.packets += local.len() as u32;
            self.replay.append(&mut local);
            for group in groups.iter() {
                self.routes[group] = self.index as u16;
                self.sent.remove(group);
            }
            self.ending.push((record, opened_us));
        }
    }
}
