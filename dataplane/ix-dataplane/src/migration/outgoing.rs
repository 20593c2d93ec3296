//! The old thread's end of a migration.
use super::message::Message;
use super::on_cpu::OnCpu;
use super::record::{MigrationEnd, MigrationRecord};
use super::routes::HELD;
use super::{BOUND_US, Migrations, OFFER_US, OVERDUE_US, Request, since};
use crate::cycle::ElasticThread;
use crate::group_set::GroupSet;
use crate::io::Port;
use crate::receive::forwarding::Forwarded;
use ix_abi::{Event, event_kind, migrated};
use std::collections::VecDeque;

/// Packets of a queue that cannot tell how many wait in it; more than any holds.
const QUEUE_MAX: usize = 8192;

/// Flow groups that leave.
pub struct Outgoing {
    serial: u64,
    to: usize,
    groups: GroupSet,
    state: State,
    /// Their packets while they are held here.
    pub held: VecDeque<Forwarded>,
    /// When they were held, µs.
    held_us: u64,
    held_at: OnCpu,
    /// A packet of theirs has come in at the new thread.
    first_seen: bool,
    record: MigrationRecord,
}

enum State {
    /// The target was asked; until then it may answer.
    Offered { until_us: u64 },
    /// It agreed. The application is told when there is room for it in the event array.
    Agreed,
    /// The application was told, and has not come back yet.
    Leaving,
    /// Gone. What the devices' old queues still hold of them is on its way; so is what was sent, up to
    /// these packets of the devices.
    Shipped { queues: Vec<Queue>, bounded: bool, unsent: Option<Vec<u64>> },
}

/// A device's queue that may hold packets of groups which are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queue {
    /// The device may put more into it.
    Open,
    /// No more than so many are in it.
    Closed(usize),
    /// None is.
    Empty,
}

impl Outgoing {
    /// Whether packets of a group are held here.
    pub fn holds(&self, group: usize) -> bool {
        matches!(self.state, State::Leaving) && self.groups.contains(group)
    }

    /// Whether cycles are needed though no packet comes: devices must be asked.
    pub fn is_busy(&self) -> bool {
        matches!(self.state, State::Shipped { .. } | State::Agreed)
    }

    /// Whom to tell, once, that these devices have been given all that was built for the groups.
    pub fn has_sent(&mut self, ports: &[Port]) -> Option<(usize, u64)> {
        let State::Shipped { unsent, .. } = &mut self.state else { return None };
        let given = |(upto, port): (&u64, &Port)| port.handed >= *upto;
        unsent.take_if(|upto| upto.iter().zip(ports).all(given)).map(|_| (self.to, self.serial))
    }

    /// When it is over at the latest.
    pub fn deadline_us(&self) -> u64 {
        match self.state {
            State::Offered { until_us } => until_us,
            State::Agreed | State::Leaving => u64::MAX,
            State::Shipped { .. } => self.held_us.saturating_add(BOUND_US),
        }
    }
}

impl Migrations {
    /// So many packets were taken from a device that was asked for up to `asked`.
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

impl ElasticThread {
    /// Asks the target whether it takes groups that are all here.
    pub(super) fn offer(&mut self, request: Request, now_us: u64) {
        let Request { groups, to, command } = request;
        let migrations = &mut self.migrations;
        migrations.serial += 1;
        let serial = migrations.serial;
        let record = MigrationRecord {
            command,
            groups,
            from: self.io.index as u16,
            to: to as u16,
            start_us: now_us,
            end: MigrationEnd::Refused,
            ..MigrationRecord::default()
        };
        if groups.is_empty() {
            return migrations.records.push(record);
        }
        // One migration of a group at a time; whoever asks for another one now is refused.
        for group in groups.iter() {
            migrations.promised.insert(group);
        }
        migrations.outgoing.push(Outgoing {
            serial,
            to,
            groups,
            state: State::Offered { until_us: now_us.saturating_add(OFFER_US) },
            held: VecDeque::new(),
            held_us: now_us,
            held_at: OnCpu::default(),
            first_seen: false,
            record,
        });
        self.tell_thread(to, Message::Offer(serial, groups));
    }

    fn outgoing(&mut self, serial: u64) -> Option<&mut Outgoing> {
        self.migrations.outgoing.iter_mut().find(|o| o.serial == serial)
    }

    pub(super) fn hear_ready(&mut self, serial: u64) {
        if let Some(outgoing) = self.outgoing(serial)
            && matches!(outgoing.state, State::Offered { .. })
        {
            outgoing.state = State::Agreed;
        }
    }

    pub(super) fn hear_refusal(&mut self, serial: u64, now_us: u64) {
        if let Some(at) = self.migrations.outgoing.iter().position(|o| o.serial == serial) {
            let outgoing = self.migrations.outgoing.swap_remove(at);
            self.refused(outgoing, now_us);
        }
    }

    pub(super) fn hear_first(&mut self, serial: u64) {
        if let Some(outgoing) = self.outgoing(serial) {
            outgoing.first_seen = true;
        }
    }

    /// The groups stay.
    fn refused(&mut self, outgoing: Outgoing, now_us: u64) {
        let Outgoing { groups, mut record, .. } = outgoing;
        groups.iter().for_each(|group| self.migrations.promised.remove(group));
        record.total_us = since(record.start_us, now_us);
        self.migrations.records.push(record);
    }

    pub(super) fn step_outgoing(&mut self, now_us: u64) {
        let mut at = 0;
        while let Some(outgoing) = self.migrations.outgoing.get_mut(at) {
            match outgoing.state {
                State::Offered { until_us } if until_us <= now_us => {
                    let (to, serial) = (outgoing.to, outgoing.serial);
                    self.tell_thread(to, Message::Withdraw(serial));
                    let outgoing = self.migrations.outgoing.swap_remove(at);
                    self.refused(outgoing, now_us);
                    continue;
                }
                State::Agreed if self.io.events.has_room() => self.leave(at, now_us),
                State::Shipped { .. } => {
                    let settled = self.settle(at, now_us);
                    if settled {
                        self.migrations.outgoing.swap_remove(at);
                        continue;
                    }
                }
                _ => {}
            }
            at += 1;
        }
    }

    /// Holds the groups from now on, points the devices' tables to the new thread, and tells the
    /// application: the last that it hears of these groups here.
    fn leave(&mut self, at: usize, now_us: u64) {
        let read_on_cpu = self.migrations.read_on_cpu;
        let Some(outgoing) = self.migrations.outgoing.get_mut(at) else { return };
        outgoing.state = State::Leaving;
        // What the cycle did before this moment was no pause.
        outgoing.held_at = read_on_cpu(now_us);
        outgoing.held_us = outgoing.held_at.wall_us();
        outgoing.record.prepare_us = since(outgoing.record.start_us, outgoing.held_us);
        let (groups, to) = (outgoing.groups, outgoing.to);
        for group in groups.iter() {
            self.migrations.routes[group] = HELD;
            for reta in self.io.ports.iter().filter_map(|port| port.reta.as_ref()) {
                // A table that cannot be written leaves the packets where they were: they are handed
                // over.
                let _ = reta.set(group, to);
            }
            let (kind, code) = (event_kind::MIGRATED, migrated::LEAVES);
            let (len, data) = (group as u32, to as u64);
            self.io.events.push(Event { kind, code, len, data, ..Event::default() });
        }
    }

    /// The application has come back, and all its calls on the groups are carried out.
    pub(super) fn ship_leaving(&mut self, now_us: u64) {
        let read_on_cpu = self.migrations.read_on_cpu;
        for at in 0..self.migrations.outgoing.len() {
            let Some(outgoing) = self.migrations.outgoing.get_mut(at) else { return };
            if !matches!(outgoing.state, State::Leaving) {
                continue;
            }
            let queues = self.io.ports.iter().map(Queue::of).collect();
            outgoing.record.wait_us = since(outgoing.held_us, now_us);
            outgoing.record.descheduled_us =
                (outgoing.held_at.off_ns(read_on_cpu(now_us), 0) / 1000) as u32;
            let (groups, to, serial) = (outgoing.groups, outgoing.to, outgoing.serial);
            let held = std::mem::take(&mut outgoing.held);
            let record = outgoing.record;
            let mut ship = self.pack(serial, groups, held, record);
            let unsent = self.io.unsent();
            ship.queued = unsent.is_some();
            if let Some(outgoing) = self.migrations.outgoing.get_mut(at) {
                outgoing.state = State::Shipped { queues, bounded: false, unsent };
            }
            for group in groups.iter() {
                self.migrations.routes[group] = to as u16;
                self.migrations.promised.remove(group);
                self.migrations.sent.remove(group);
                self.shared.set_owner(group, to);
            }
            self.tell_thread(to, Message::Ship(Box::new(ship)));
            self.begin_sweep(groups);
        }
    }

    /// Whether no packet of groups that are gone can come out of this thread's queues any more; then
    /// the new thread is told.
    fn settle(&mut self, at: usize, now_us: u64) -> bool {
        let Some(outgoing) = self.migrations.outgoing.get_mut(at) else { return true };
        let State::Shipped { queues, bounded, unsent } = &mut outgoing.state else { return false };
        // What came while the application was away is no longer in a queue, and not handed over yet.
        if self.away.has_kept() {
            return false;
        }
        let waited_us = now_us.saturating_sub(outgoing.held_us);
        if unsent.is_some() && waited_us < OVERDUE_US {
            return false;
        }
        for (queue, port) in queues.iter_mut().zip(&self.io.ports) {
            if *queue != Queue::Open {
                continue;
            }
            let Some(reta) = &port.reta else {
                *queue = Queue::Empty;
                continue;
            };
            let early = reta.settled() || outgoing.first_seen && reta.in_order();
            let bound = waited_us >= BOUND_US && (!reta.is_sending() || waited_us >= OVERDUE_US);
            if early || bound {
                *bounded |= !early;
                *queue = Queue::closed(port);
            }
        }
        if queues.iter().any(|queue| *queue != Queue::Empty) {
            return false;
        }
        let (to, serial, early) = (outgoing.to, outgoing.serial, !*bounded);
        self.tell_thread(to, Message::Settled(serial, early));
        true
    }

    /// Groups that left come back: what became of their last packets here does not matter any more.
    pub(super) fn forget_shipped(&mut self, groups: &GroupSet) {
        let mut at = 0;
        while let Some(Outgoing { state, groups: theirs, to, serial, .. }) =
            self.migrations.outgoing.get(at)
        {
            let back = theirs.iter().any(|group| groups.contains(group));
            if !back || !matches!(state, State::Shipped { .. }) {
                at += 1;
                continue;
            }
            let (to, serial) = (*to, *serial);
            self.migrations.outgoing.swap_remove(at);
            self.tell_thread(to, Message::Settled(serial, false));
        }
    }
}

impl Queue {
    fn of(port: &Port) -> Queue {
        if port.reta.is_some() { Queue::Open } else { Queue::Empty }
    }

    /// Nothing more goes in; what is in there may be ours.
    fn closed(port: &Port) -> Queue {
        match port.nic.waiting() {
            Some(0) => Queue::Empty,
            Some(waiting) => Queue::Closed(waiting),
            None => Queue::Closed(QUEUE_MAX),
        }
    }
}
