//! Carries out the actions that the state machine of migrations returns.
use super::ElasticThread;
use crate::context::Context;
use crate::io::Io;
use crate::migration::message::Message;
use crate::migration::on_cpu::{OnCpu, ReadOnCpu};
use crate::migration::{Action, Input, MigrateError, Sight, Table, Way, ship, unsent};
use crate::ports::{self, Port};
use crate::receive::batch::{Origin, Via};
use ix_abi::Event;
use ix_nic::RxPacket;
use ix_proto::GroupSet;
use ix_proto::MigrationRecord;
use ix_proto::crossing::AttachmentId;

/// The thread, as the state machine sees it.
struct View<'a> {
    cx: &'a Context,
    ports: &'a [Port],
    read_on_cpu: ReadOnCpu,
}

impl Sight for View<'_> {
    fn now_us(&self) -> u64 {
        self.cx.now_us
    }

    fn on_cpu(&self) -> OnCpu {
        (self.read_on_cpu)(self.cx.now_us)
    }

    fn owner(&self, group: usize) -> usize {
        self.cx.shared.owner(group)
    }

    fn has_room(&self) -> bool {
        self.cx.attached.has_room()
    }

    fn patience_us(&self) -> u64 {
        let nonresponsive_us = self.cx.shared.config.nonresponsive_us;
        let is_bounded = self.cx.attached.are_several() && nonresponsive_us > 0;
        if is_bounded { nonresponsive_us } else { u64::MAX }
    }

    fn ports(&self) -> usize {
        self.ports.len()
    }

    fn table(&self, port: usize) -> Option<Table> {
        let reta = self.ports[port].reta.as_ref()?;
        let (settled, in_order) = (reta.settled(), reta.in_order());
        Some(Table { settled, in_order, is_sending: reta.is_sending() })
    }

    fn waiting(&self, port: usize) -> Option<usize> {
        self.ports[port].nic.waiting()
    }

    fn handed(&self, port: usize) -> u64 {
        self.ports[port].handed
    }
}

/// Methods for the owner of the thread.
impl ElasticThread {
    /// Moves flow groups of this thread to another one. Called on this thread, between two cycles.
    ///
    /// This takes some cycles of both threads, and the return of both applications. Groups that are
    /// still on their way to this thread are waited for; other groups that are not here are left
    /// out. The result is exactly one record with this `command`
    /// ([`ElasticThread::take_migration`]): on the target when the groups have moved, or on this
    /// thread if nothing has moved ([`crate::MigrationEnd::Refused`]).
    pub fn migrate(
        &mut self,
        groups: GroupSet,
        to: usize,
        command: u64,
    ) -> Result<(), MigrateError> {
        if to >= self.shared.threads() || to == self.io.cx.index {
            return Err(MigrateError::NoTarget);
        }
        self.migrations.request(groups, to, command)
    }

    /// The oldest record not taken yet of the migrations that ended on this thread.
    pub fn take_migration(&mut self) -> Option<MigrationRecord> {
        self.migrations.take_record()
    }

    /// The flow groups of this thread, with those that are leaving.
    pub fn groups_here(&self) -> GroupSet {
        self.flows.here()
    }

    /// True if no group arrives or leaves. If the thread also has no groups, it may be parked.
    pub fn at_rest(&self) -> bool {
        !self.migrations.is_active()
            && !self.flows.is_unsettled()
            && !self.forwarding.has_backlog()
            && !self.keeps_packets()
            && self.io.cx.looped.is_empty()
    }

    /// Sets whether this thread accepts flow groups. It does at first. A thread that is to be
    /// parked first stops accepting them, then sends its groups away.
    pub fn set_takes_groups(&mut self, takes_groups: bool) {
        self.migrations.set_takes_groups(takes_groups);
    }
}

impl ElasticThread {
    /// Does what migrations need between two cycles.
    #[cold]
    pub(super) fn step_migrations(&mut self) {
        self.step(Input::BetweenCycles);
        self.flows.settle(self.io.cx.now_us);
    }

    /// To be called when the application has returned and its calls are carried out.
    #[cold]
    pub(crate) fn application_returned(&mut self) {
        self.step(Input::Returned);
    }

    /// A process leaves this thread: no migration waits for its return any more.
    pub(crate) fn owes_no_return(&mut self, who: AttachmentId) {
        self.io.cx.attached[who].owes_return = false;
        if self.migrations.is_active() && !self.io.cx.attached.owes_any_return() {
            self.application_returned();
        }
    }

    fn step(&mut self, input: Input) {
        let view = View { cx: &self.io.cx, ports: &self.io.ports, read_on_cpu: self.read_on_cpu };
        self.migrations.step(input, &view);
        self.act();
    }

    /// What to do with a packet whose group may not be this thread's.
    #[cold]
    pub(super) fn way(&mut self, group: usize, from: Via) -> Way {
        let view = View { cx: &self.io.cx, ports: &self.io.ports, read_on_cpu: self.read_on_cpu };
        let way = self.migrations.way(group, from.number(), &view);
        self.act();
        way
    }

    /// Sends a packet on its way, which is not [`Way::Here`].
    pub(super) fn send_on(&mut self, way: Way, group: usize, origin: Origin, packet: RxPacket) {
        match way {
            Way::To(thread) => {
                self.hand_over(thread, (origin.port, origin.from.is_looped()), packet)
            }
            Way::Here | Way::Hold => {
                self.migrations.hold(group, origin, packet);
                self.act();
            }
        }
    }

    fn act(&mut self) {
        while let Some(action) = self.migrations.next_action() {
            self.carry_out(action);
        }
    }

    #[cold]
    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Tell(to, message) => self.tell_thread(to, message),
            Action::HandOver { to, port, looped, packet } => {
                self.hand_over(to, (port, looped), packet)
            }
            Action::Misrouted(packet) => {
                self.io.cx.metrics.counters.misrouted.add(1);
                self.io.cx.rx_pool.put(packet.mbuf);
            }
            Action::Leaves { group, to } => {
                for reta in self.io.ports.iter().filter_map(|port| port.reta.as_ref()) {
                    // If a table cannot be written, packets still arrive here and are handed over.
                    let _ = reta.set(group, to);
                }
                self.hold_kept(group);
                let event = Event::GroupLeaves { group: group as u32, to: to as u32 };
                self.io.cx.attached.tell_of_groups(event);
            }
            Action::Stays { group, to } => {
                for reta in self.io.ports.iter().filter_map(|port| port.reta.as_ref()) {
                    // Where that fails, the other thread hands packets over.
                    let _ = reta.set(group, self.io.cx.index);
                }
                let event = Event::GroupArrived { group: group as u32, from: to as u32 };
                self.io.cx.attached.tell_of_groups(event);
            }
            Action::Ship { to, serial, groups, held, record } => {
                self.end_waits_in(&groups);
                let ElasticThread { io, flows, tcp, .. } = self;
                let (cx, listeners) = (&mut io.cx, &mut tcp.listeners);
                let mut ship = ship::pack(cx, flows, listeners, (serial, &groups), held, record);
                self.transmit_all();
                ship.unsent = unsent::take(&groups, &mut self.io, &mut self.egress.qdisc);
                ship.fences = ports::fences(&mut self.io.ports);
                let unsent = ports::unsent(&self.io.ports);
                ship.queued = unsent.is_some();
                groups.iter().for_each(|group| self.shared.set_owner(group, to));
                self.tell_thread(to, Message::Ship(Box::new(ship)));
                self.flows.begin_sweep(&groups);
                self.step(Input::Shipped { serial, unsent });
            }
            Action::TellSent { to, serial } => {
                let fences = ports::fences(&mut self.io.ports);
                self.tell_thread(to, Message::Sent(serial, fences));
            }
            Action::Unpack(ship) => {
                let mut ship = ship;
                // Until flows of processes that have ended are closed.
                let _under_way = ship.under_way.take();
                let ElasticThread { io, flows, tcp, .. } = self;
                let groups = ship.groups.iter().map(|group| usize::from(group.id())).collect();
                ship::unpack(&mut io.cx, flows, &mut tcp.listeners, *ship);
                self.changes += 1;
                if self.may_get_flows_of_ended() {
                    self.close_ended(&groups);
                }
            }
            Action::Arrived { group, from } => {
                let event = Event::GroupArrived { group: group as u32, from: from as u32 };
                self.io.cx.attached.tell_of_groups(event);
            }
            Action::Touch(ids) => self.flows.touched.extend(ids),
            Action::Announce(ids) => ids.into_iter().for_each(|id| self.announce_soon(id)),
            Action::Send(unsent) => unsent::send(&mut self.io, unsent),
            Action::Relink(groups) => self.flows.relink(&groups),
        }
    }

    /// Gives the devices all that they accept now.
    fn transmit_all(&mut self) {
        loop {
            let sent = self.transmit();
            let Io { ports, .. } = &self.io;
            if sent == 0 || ports.iter().all(|port| port.queue.is_empty()) {
                return;
            }
        }
    }
}
