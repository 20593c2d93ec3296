//! The old thread's end of a migration.
use super::incoming::Incoming;
use super::message::{Forwarded, Message};
use super::on_cpu::OnCpu;
use super::planted::{self, Bug};
use super::routes::HELD;
use super::{Action, BOUND_US, Migrations, OFFER_US, OVERDUE_US, Request, Sight, Table, since};
use crate::flows::handle::FlowId;
use ix_proto::GroupSet;
use ix_proto::{MigrationEnd, MigrationRecord};
use std::collections::VecDeque;

/// Number of packets assumed in a queue that cannot tell how many wait; more than any queue holds.
const QUEUE_MAX: usize = 8192;

/// Flow groups that leave.
pub struct Outgoing {
    serial: u64,
    to: usize,
    groups: GroupSet,
    state: State,
    /// Their packets while they are held here.
    pub held: VecDeque<Forwarded>,
    /// Flows with news that may not be announced here any more.
    pub to_announce: Vec<FlowId>,
    /// When they were held, µs.
    held_us: u64,
    held_at: OnCpu,
    /// A packet of the groups has arrived at the new thread.
    first_seen: bool,
    record: MigrationRecord,
}

enum State {
    /// The groups were offered; the target may reply until this time.
    Offered { until_us: u64 },
    /// The target has accepted. The application is told when the event array has room.
    Agreed,
    /// The application was told, and has not returned yet. It is waited for until this time.
    Leaving { until_us: u64 },
    /// The groups have left. Packets of theirs may still be in the devices' old queues, and sent
    /// ones, up to these packets, in front of the devices.
    Shipped { queues: Vec<Queue>, bounded: bool, unsent: Option<Vec<u64>> },
}

/// A device's queue that may hold packets of groups that have left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queue {
    /// The device may put more into it.
    Open,
    /// It holds at most this many.
    Closed(usize),
    /// It holds none.
    Empty,
}

impl Outgoing {
    /// Whether packets of a group are held here.
    pub fn holds(&self, group: usize) -> bool {
        matches!(self.state, State::Leaving { .. }) && self.groups.contains(group)
    }

    /// Whether cycles are needed even if no packet arrives, because devices must be checked.
    pub fn is_busy(&self) -> bool {
        matches!(self.state, State::Shipped { .. } | State::Agreed)
    }

    /// The thread that must be told, once, that these devices were given all that was built for the
    /// groups.
    pub fn has_sent(&mut self, sight: &impl Sight) -> Option<(usize, u64)> {
        let State::Shipped { unsent, .. } = &mut self.state else { return None };
        let given = |(port, upto): (usize, &u64)| sight.handed(port) >= *upto;
        unsent.take_if(|upto| upto.iter().enumerate().all(given)).map(|_| (self.to, self.serial))
    }

    /// When it ends at the latest.
    pub fn deadline_us(&self) -> u64 {
        match self.state {
            State::Offered { until_us } | State::Leaving { until_us } => until_us,
            State::Agreed => u64::MAX,
            State::Shipped { .. } => self.held_us.saturating_add(BOUND_US),
        }
    }
}

impl Migrations {
    /// `got` packets were taken from a device that was asked for up to `asked`.
    #[cold]
    pub fn polled(&mut self, port: usize, asked: usize, got: usize) {
        for outgoing in &mut self.outgoing {
            let State::Shipped { queues, .. } = &mut outgoing.state else { continue };
            let Some(queue) = queues.get_mut(port) else { continue };
            if let Queue::Closed(left) = queue {
                *left = left.saturating_sub(got);
                if *left == 0 || got < asked {
                    *queue = Queue::Empty;
                }
            }
        }
    }
}

impl Migrations {
    /// Offers groups that are all here to the target.
    pub(super) fn offer(&mut self, request: Request, sight: &impl Sight) {
        let now_us = sight.now_us();
        let Request { groups, to, command } = request;
        self.serial += 1;
        let serial = self.serial;
        let record = MigrationRecord {
            command,
            flow_groups: groups,
            from: self.index as u16,
            to: to as u16,
            start_us: now_us,
            end: MigrationEnd::Refused,
            ..MigrationRecord::default()
        };
        if groups.is_empty() {
            return self.records.push(record);
        }
        // A group is in one migration at a time; another request for it is refused now.
        for group in groups.iter() {
            self.promised.insert(group);
        }
        self.outgoing.push(Outgoing {
            serial,
            to,
            groups,
            state: State::Offered { until_us: now_us.saturating_add(OFFER_US) },
            held: VecDeque::new(),
            to_announce: Vec::new(),
            held_us: now_us,
            held_at: OnCpu::default(),
            first_seen: false,
            record,
        });
        self.tell(to, Message::Offer(serial, groups));
    }

    fn outgoing(&mut self, serial: u64) -> Option<&mut Outgoing> {
        self.outgoing.iter_mut().find(|o| o.serial == serial)
    }

    pub(super) fn hear_ready(&mut self, serial: u64) {
        if let Some(outgoing) = self.outgoing(serial)
            && matches!(outgoing.state, State::Offered { .. })
        {
            outgoing.state = State::Agreed;
        }
    }

    pub(super) fn hear_refusal(&mut self, serial: u64, now_us: u64) {
        if let Some(at) = self.outgoing.iter().position(|o| o.serial == serial) {
            let outgoing = self.outgoing.swap_remove(at);
            self.refused(outgoing, now_us);
        }
    }

    pub(super) fn hear_first(&mut self, serial: u64) {
        if let Some(outgoing) = self.outgoing(serial) {
            outgoing.first_seen = true;
        }
    }

    /// The groups stay here.
    fn refused(&mut self, outgoing: Outgoing, now_us: u64) {
        let Outgoing { groups, mut record, .. } = outgoing;
        groups.iter().for_each(|group| self.promised.remove(group));
        record.total_us = since(record.start_us, now_us);
        self.records.push(record);
    }

    pub(super) fn step_outgoing(&mut self, sight: &impl Sight) {
        let now_us = sight.now_us();
        let mut at = 0;
        while let Some(outgoing) = self.outgoing.get_mut(at) {
            match outgoing.state {
                State::Offered { until_us } if until_us <= now_us => {
                    let (to, serial) = (outgoing.to, outgoing.serial);
                    self.tell(to, Message::Withdraw(serial));
                    let outgoing = self.outgoing.swap_remove(at);
                    self.refused(outgoing, now_us);
                    continue;
                }
                State::Agreed if sight.has_room() => self.leave(at, sight),
                State::Leaving { until_us } if until_us <= now_us => {
                    self.stay(at, now_us.saturating_add(sight.patience_us()));
                    continue;
                }
                State::Shipped { .. } => {
                    let settled = self.settle(at, sight);
                    if settled {
                        self.outgoing.swap_remove(at);
                        continue;
                    }
                }
                _ => {}
            }
            at += 1;
        }
    }

    /// From now on holds packets of the groups, steers the groups to the new thread in the devices'
    /// tables, and tells the application. This is the last event about these groups here.
    fn leave(&mut self, at: usize, sight: &impl Sight) {
        let Some(outgoing) = self.outgoing.get_mut(at) else { return };
        // What the cycle has done before this moment is no part of the pause.
        outgoing.held_at = sight.on_cpu();
        outgoing.held_us = outgoing.held_at.wall_us();
        let until_us = sight.now_us().saturating_add(sight.patience_us());
        outgoing.state = State::Leaving { until_us };
        outgoing.record.prepare_us = since(outgoing.record.start_us, outgoing.held_us);
        let (groups, to) = (outgoing.groups, outgoing.to);
        for group in groups.iter() {
            self.routes[group] = HELD;
            self.act(Action::Leaves { group, to });
        }
    }

    /// A process of the program computes for too long, and others wait for its connections' groups:
    /// the groups stay, as if they had come back.
    fn stay(&mut self, at: usize, until_us: u64) {
        let Outgoing { groups, to, serial, held, to_announce, record, .. } =
            self.outgoing.swap_remove(at);
        self.tell(to, Message::Withdraw(serial));
        for group in groups.iter() {
            self.promised.remove(group);
            self.quiet.insert(group);
            self.act(Action::Stays { group, to });
        }
        let back = Incoming::back(self.index, groups, (held, to_announce), (record, until_us));
        self.incoming.push(back);
    }

    /// The application has returned, and all its calls for the groups are carried out.
    pub(super) fn ship_leaving(&mut self, sight: &impl Sight) {
        let now_us = sight.now_us();
        for at in 0..self.outgoing.len() {
            let Some(outgoing) = self.outgoing.get_mut(at) else { return };
            if !matches!(outgoing.state, State::Leaving { .. }) {
                continue;
            }
            outgoing.record.wait_us = since(outgoing.held_us, now_us);
            outgoing.record.descheduled_us =
                (outgoing.held_at.off_ns(sight.on_cpu(), 0) / 1000) as u32;
            let (groups, to, serial) = (outgoing.groups, outgoing.to, outgoing.serial);
            let (held, record) = (std::mem::take(&mut outgoing.held), outgoing.record);
            let to_announce = std::mem::take(&mut outgoing.to_announce);
            let queues = (0..sight.ports()).map(|port| Queue::of(sight.table(port))).collect();
            outgoing.state = State::Shipped { queues, bounded: false, unsent: None };
            for group in groups.iter() {
                self.routes[group] = to as u16;
                self.promised.remove(group);
                self.sent.remove(group);
            }
            // They are packed with all else that is to be announced.
            self.act(Action::Announce(to_announce));
            self.act(Action::Ship { to, serial, groups, held, record });
        }
    }

    /// The groups were sent. Packets that were built for them wait for room in the devices up to
    /// these packets.
    pub(super) fn hear_shipped(&mut self, serial: u64, upto: Option<Vec<u64>>) {
        if let Some(outgoing) = self.outgoing(serial)
            && let State::Shipped { unsent, .. } = &mut outgoing.state
        {
            *unsent = upto;
        }
    }

    /// Tells the new thread when the devices have taken the last packet that was built here for the
    /// groups.
    pub(super) fn step_unsent(&mut self, sight: &impl Sight) {
        for at in 0..self.outgoing.len() {
            if let Some((to, serial)) = self.outgoing[at].has_sent(sight) {
                self.act(Action::TellSent { to, serial });
            }
        }
    }

    /// Whether no packet of groups that have left can come out of this thread's queues any more. If
    /// so, the new thread is told.
    fn settle(&mut self, at: usize, sight: &impl Sight) -> bool {
        let now_us = sight.now_us();
        let Some(outgoing) = self.outgoing.get_mut(at) else { return true };
        let State::Shipped { queues, bounded, unsent } = &mut outgoing.state else { return false };
        let waited_us = now_us.saturating_sub(outgoing.held_us);
        if unsent.is_some() && waited_us < OVERDUE_US {
            return false;
        }
        for (port, queue) in queues.iter_mut().enumerate() {
            if *queue != Queue::Open {
                continue;
            }
            let Some(table) = sight.table(port) else {
                *queue = Queue::Empty;
                continue;
            };
            let early = table.settled || outgoing.first_seen && table.in_order;
            let bound = waited_us >= BOUND_US && (!table.is_sending || waited_us >= OVERDUE_US);
            if early || bound || planted::is(Bug::NoBound) {
                *bounded |= !early;
                *queue = Queue::closed(sight.waiting(port));
            }
        }
        if queues.iter().any(|queue| *queue != Queue::Empty) {
            return false;
        }
        let (to, serial, early) = (outgoing.to, outgoing.serial, !*bounded);
        self.tell(to, Message::Settled(serial, early));
        true
    }

    /// Groups that left have come back: their last packets here do not matter any more.
    pub(super) fn forget_shipped(&mut self, groups: &GroupSet) {
        let mut at = 0;
        while let Some(Outgoing { state, groups: theirs, to, serial, .. }) = self.outgoing.get(at) {
            let back = theirs.iter().any(|group| groups.contains(group));
            if !back || !matches!(state, State::Shipped { .. }) {
                at += 1;
                continue;
            }
            let (to, serial) = (*to, *serial);
            self.outgoing.swap_remove(at);
            self.tell(to, Message::Settled(serial, false));
        }
    }
}

impl Queue {
    fn of(table: Option<Table>) -> Queue {
        if table.is_some() { Queue::Open } else { Queue::Empty }
    }

    /// Nothing more is put into the queue; what is in it may belong to the groups.
    fn closed(waiting: Option<usize>) -> Queue {
        match waiting {
            Some(0) => Queue::Empty,
            Some(waiting) => Queue::Closed(waiting),
            None => Queue::Closed(QUEUE_MAX),
        }
    }
}
