//! Puts off what needs a process of the program that computes.
//!
//! Such a process may be reading its events and writing its calls, so neither array is touched.
//! Packets of its established connections are acknowledged and their data is kept, and their
//! timers retransmit. Everything that needs the process (ends of connections, datagrams, its
//! timers) waits until it returns, and so do the events about received and acknowledged data. Flow
//! control does the rest: data that a process does not take closes the windows. A new connection
//! goes to a process that listens at the same address and is present, if there is one.
//!
//! While all processes compute, the guard runs these turns (`non_responsive.rs`).
use super::ElasticThread;
use crate::attachment::Kept;
use crate::flows::flow::{Flow, Holder};
use crate::flows::flow_of;
use crate::flows::handle::FlowId;
use crate::observe::metrics::LocalDrop;
use crate::receive::batch::{Origin, Via, Work};
use crate::tcp::connections::announce_early_data;
use ix_mem::Mbuf;
use ix_nic::RxPacket;
use ix_proto::crossing::AttachmentId;
use ix_tcp::State;
use ix_tcp::icmp::IcmpError;
use ix_wire::{FlowTuple, Parsed, TcpFlags, TcpPacket, ipv4};
use std::collections::VecDeque;

/// A timer that may end a connection is checked again after this time, µs.
pub(super) const PUT_OFF_US: u64 = 10_000;
/// Flags of segments that may change the state of a connection.
const CHANGES: TcpFlags = TcpFlags(TcpFlags::SYN.0 | TcpFlags::RST.0 | TcpFlags::FIN.0);

/// Packets that have waited for a process that has returned.
#[derive(Default)]
pub(super) struct Returned(pub(super) VecDeque<Kept>);

impl Returned {
    /// True if packets wait.
    #[inline]
    pub fn has_packets(&self) -> bool {
        !self.0.is_empty()
    }

    /// Removes the oldest packet.
    pub fn pop(&mut self) -> Option<Kept> {
        self.0.pop_front()
    }
}

/// What is done with a packet while a process is absent.
enum Turn {
    /// It is processed.
    Now,
    /// It is processed; the events of this flow wait.
    Flow(FlowId),
    /// It waits for this process.
    Later(AttachmentId),
}

/// Whether a connection in this state stays as it is while no segment opens or ends it.
fn goes_on(state: State) -> bool {
    matches!(state, State::Established | State::CloseWait)
}

/// Whether a timer of this flow causes no event.
fn is_harmless(flow: &Flow) -> bool {
    match flow.socket.holder {
        Holder::Orphan => true,
        Holder::Application => goes_on(flow.tcb.state()) && !flow.tcb.may_give_up(),
        Holder::Connecting | Holder::Embryonic | Holder::Knocking => false,
    }
}

impl ElasticThread {
    /// What a process that has returned gets of what was put off; its calls are carried out.
    #[inline]
    pub(super) fn take_up(&mut self, of: AttachmentId) {
        if std::mem::take(&mut self.io.cx.attached[of].was_absent) {
            self.take_up_kept(of);
        }
    }

    fn take_up_kept(&mut self, of: AttachmentId) {
        let now_us = self.io.cx.now_us;
        let attachment = &mut self.io.cx.attached[of];
        attachment.events.write_late();
        // There was no room for all.
        attachment.was_absent = attachment.events.late() > 0;
        if attachment.has_late_news {
            // It hears of moved flow groups first, and names their flows before it hears of these.
            attachment.has_late_news = attachment.events.late() > 0;
            self.io.cx.attached.set_present(of, false);
            return;
        }
        self.returned.0.append(&mut attachment.kept);
        for timer in attachment.timers.drain(..) {
            self.app_timers.resume(timer, now_us);
        }
    }

    /// Whether packets wait for a process, or for this thread since it has returned.
    pub(super) fn keeps_packets(&self) -> bool {
        self.returned.has_packets() || self.io.cx.attached.kept() > 0
    }

    /// Packets of a flow group that begins to leave wait with those that are held for it from now
    /// on, and before them.
    #[cold]
    pub(super) fn hold_kept(&mut self, group: usize) {
        let ElasticThread { io, migrations, returned, .. } = self;
        let first = Kept::take(&mut returned.0, group as u8);
        for Kept { port, looped, packet, .. } in
            first.into_iter().chain(io.cx.attached.take_kept(group as u8))
        {
            migrations.hold(group, Origin { port, from: Via::here(looped) }, packet);
        }
    }

    /// True if more than a quarter of all frames wait.
    pub(super) fn keeps_too_many(&self) -> bool {
        self.io.cx.attached.kept() > self.io.cx.rx_pool.owned() / 4
    }

    #[cold]
    pub(super) fn fire_if_harmless(&mut self, id: FlowId) {
        let attached = &self.io.cx.attached;
        let may = |flow: &mut Flow| attached.is_present(flow.socket.owner) || is_harmless(flow);
        if self.flows.get(id).is_none_or(may) {
            self.fire_flow_timer(id);
        } else {
            self.flows.put_off(id, self.io.cx.now_us + PUT_OFF_US);
        }
    }

    /// Processes a packet, or stores it. A stored packet is counted and captured when it is
    /// processed.
    #[cold]
    pub(super) fn process_or_defer(&mut self, work: &Work, mbuf: Mbuf) {
        match self.turn_of(work, &mbuf) {
            Turn::Now => self.process(work, mbuf),
            Turn::Flow(id) => {
                self.process(work, mbuf);
                self.announce_later(id);
            }
            Turn::Later(owner) => self.keep(owner, work, mbuf),
        }
    }

    fn turn_of(&mut self, work: &Work, mbuf: &Mbuf) -> Turn {
        let owner = match &work.parsed {
            Parsed::Arp(_) | Parsed::Nd(_) => None,
            Parsed::Icmp(packet) => {
                let error = IcmpError::parse(mbuf.bytes(&self.shared.memory), packet);
                error.and_then(|error| self.owner_of_error(work, &error))
            }
            Parsed::Tcp(packet) => return self.turn_of_segment(work, packet),
            Parsed::Udp(packet) => {
                let tuple = packet.tuple();
                let queue = self.packets.owner_of_udp(work.port, tuple.local_port);
                let socket = || self.udp.lookup(tuple.local, tuple.local_port);
                queue.or_else(|| socket().map(|socket| socket.owner))
            }
        };
        match owner.filter(|owner| !self.io.cx.attached.is_present(*owner)) {
            Some(owner) => Turn::Later(owner),
            None => Turn::Now,
        }
    }

    /// The process that is told of an ICMP error.
    fn owner_of_error(&mut self, work: &Work, error: &IcmpError) -> Option<AttachmentId> {
        let tuple = &error.tuple;
        if error.protocol == ipv4::PROTOCOL_UDP {
            return self.udp.lookup(tuple.local, tuple.local_port).map(|socket| socket.owner);
        }
        let hash = self.shared.flow_hash.hash(tuple);
        self.flow_of_tuple(work, hash, tuple).map(|flow| flow.socket.owner)
    }

    fn flow_of_tuple(&mut self, work: &Work, hash: u64, tuple: &FlowTuple) -> Option<&mut Flow> {
        let group = self.flows.groups[usize::from(work.group)].as_mut()?;
        let slot = group.find(hash, tuple)?;
        group.at(slot)
    }

    fn turn_of_segment(&mut self, work: &Work, packet: &TcpPacket) -> Turn {
        let tuple = packet.tuple();
        let changes = packet.header.flags.0 & CHANGES.0 != 0;
        if self.flows.kept(usize::from(work.group), work.hash, &tuple).is_some() {
            return Turn::Now;
        }
        let Some(flow) = self.flow_of_tuple(work, work.hash, &tuple) else {
            let slot = self.tcp.listeners.find(tuple.local, tuple.local_port);
            return slot.map_or(Turn::Now, |slot| self.turn_of_listener(slot));
        };
        let (socket, state) = (&flow.socket, flow.tcb.state());
        let (id, owner, listener) = (socket.id(), socket.owner, socket.listener);
        let holder = socket.holder;
        match holder {
            Holder::Orphan => Turn::Now,
            _ if self.io.cx.attached.is_present(owner) => Turn::Now,
            Holder::Embryonic | Holder::Knocking => self.turn_of_listener(listener),
            Holder::Application if !changes && goes_on(state) => Turn::Flow(id),
            Holder::Application | Holder::Connecting => Turn::Later(owner),
        }
    }

    /// For a segment of a connection that nobody has accepted.
    fn turn_of_listener(&self, slot: u16) -> Turn {
        let listeners = &self.tcp.listeners;
        match listeners.owner_of(slot) {
            // What waits there waits for nobody.
            _ if listeners.ends(slot) => Turn::Now,
            Some(owner) if !listeners.is_any_present(slot, &self.io.cx.attached) => {
                Turn::Later(owner)
            }
            _ => Turn::Now,
        }
    }

    /// Stores that this flow has events for its process.
    fn announce_later(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get(id) else { return };
        if flow.socket.has_news() && !flow.socket.announce_later {
            flow.socket.announce_later = true;
            self.io.cx.attached[flow.socket.owner].to_announce.push_back(id.handle());
        }
    }

    /// A flow has news that its process was not told of.
    pub(super) fn announce_soon(&mut self, id: FlowId) {
        let Some(flow) = flow_of(&mut self.flows.groups, id) else { return };
        let owner = &mut self.io.cx.attached[flow.socket.owner];
        // Nobody reads the list of a process that has ended.
        if flow.socket.holder == Holder::Application && !owner.has_ended() {
            owner.to_announce.push_back(id.handle());
        }
    }

    /// Announces to all that are present what they were not told of.
    #[cold]
    pub(super) fn announce_to_present(&mut self) {
        if !self.io.cx.attached.is_any_to_tell() {
            return;
        }
        for number in self.io.cx.attached.numbers() {
            if self.io.cx.attached.is_present(number) {
                self.announce_to(number);
            }
        }
    }

    /// Announces to a process what it was not told of. News of flows that are moving are kept until
    /// it knows their new names.
    pub(super) fn announce_to(&mut self, number: AttachmentId) {
        let ElasticThread { io, flows, migrations, .. } = self;
        if migrations.is_active() {
            let may_hear = |handle: &u64| !migrations.keep_news(FlowId::from_handle(*handle));
            io.cx.attached[number].to_announce.retain(may_hear);
        }
        announce_early_data(&mut io.cx, flows, number);
    }

    /// Keeps a packet for a process, unless it keeps more than its part: then the packet is lost,
    /// as for a socket that nobody reads.
    fn keep(&mut self, owner: AttachmentId, work: &Work, mbuf: Mbuf) {
        let cx = &mut self.io.cx;
        let (own, all, owned) =
            (cx.attached[owner].kept.len(), cx.attached.kept(), cx.rx_pool.owned());
        // Where there is only one, the devices keep the packets instead.
        if !cx.attached.is_alone(owner) && (own > owned / 8 || all > owned / 4) {
            cx.metrics.drop_local(LocalDrop::RxPressure);
            return self.receive.batch.give_back(&mut cx.rx_pool, work, mbuf);
        }
        let has_group = matches!(work.parsed, Parsed::Tcp(_) | Parsed::Udp(_));
        let (port, group) = (work.port, has_group.then_some(work.group));
        let looped = work.from.is_looped();
        let kept = &mut cx.attached[owner].kept;
        let mut keep = |mbuf, more| {
            kept.push_back(Kept { port, looped, group, packet: RxPacket { mbuf, more } });
        };
        keep(mbuf, work.tails > 0);
        for left in (0..work.tails).rev() {
            let Some(mbuf) = self.receive.batch.pop_tail() else { break };
            keep(mbuf, left > 0);
        }
    }
}
