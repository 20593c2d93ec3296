//! Serves the network while the application is non-responsive.
//!
//! The guard (`run/guard.rs`) runs these turns for the thread. They are the cycle with fewer parts.
//! The application may be reading its events and writing its calls, so neither array is touched.
//! Packets of established connections are acknowledged and their data is kept, timers retransmit,
//! ARP and echo requests get replies, and the receive ring is refilled. Everything that needs the
//! application (new connections, ends of connections, datagrams, its timers) waits, and so do the
//! events about received and acknowledged data. Flow control does the rest: data that the
//! application does not take closes the windows. Commands of the broker are read, because new rules
//! of the vNIC take effect in the next cycle; threads carry out other commands when the application
//! has returned.
use super::ElasticThread;
use crate::flows::Flows;
use crate::flows::flow::{Flow, Holder};
use crate::flows::handle::FlowId;
use crate::observe::metrics::Stage;
use crate::observe::survey::SLICE;
use crate::receive::batch::Work;
use ix_mem::{Mbuf, PacketMemory};
use ix_nic::RxPacket;
use ix_tcp::State;
use ix_tcp::icmp::IcmpError;
use ix_wire::{Parsed, TcpFlags, TcpPacket};
use std::collections::VecDeque;

/// Most batches in one turn.
const BATCHES_MAX: usize = 16;
/// A timer that may end a connection is checked again after this time, µs.
const PUT_OFF_US: u64 = 10_000;
/// Flags of segments that may change the state of a connection.
const CHANGES: TcpFlags = TcpFlags(TcpFlags::SYN.0 | TcpFlags::RST.0 | TcpFlags::FIN.0);

/// What waits for the application to return.
#[derive(Default)]
pub(super) struct Deferred {
    /// Whether something may wait.
    pub may_wait: bool,
    /// Packets, each with its device.
    kept: VecDeque<(u8, RxPacket)>,
    /// Fired timers of the application, by their names in the wheel.
    timers: Vec<u64>,
}

impl Deferred {
    /// True if packets wait.
    pub fn has_kept(&self) -> bool {
        !self.kept.is_empty()
    }

    /// True if more than a quarter of `owned` frames wait.
    pub fn is_full(&self, owned: usize) -> bool {
        self.kept.len() > owned / 4
    }

    /// Removes the oldest packet.
    pub fn pop(&mut self) -> Option<(u8, RxPacket)> {
        self.kept.pop_front()
    }

    /// Stores a timer, which the application gets when it returns.
    pub fn put_off_timer(&mut self, token: u64) {
        self.timers.push(token);
    }
}

/// What is done with a packet while the application is non-responsive.
enum Turn {
    /// It is processed.
    Now,
    /// It is processed; the events of this flow wait.
    Flow(FlowId),
    /// It waits.
    Later,
}

impl Turn {
    fn of(flows: &mut Flows, memory: &PacketMemory, work: &Work, mbuf: &Mbuf) -> Turn {
        match &work.parsed {
            Parsed::Arp(_) => Turn::Now,
            Parsed::Icmp(packet) => {
                let is_error = IcmpError::parse(mbuf.bytes(memory), packet).is_some();
                if is_error { Turn::Later } else { Turn::Now }
            }
            Parsed::Tcp(packet) => match goes_on_with(flows, work, packet) {
                Some(id) => Turn::Flow(id),
                None => Turn::Later,
            },
            Parsed::Udp(_) => Turn::Later,
        }
    }
}

/// The connection of a segment that neither opens nor ends it, if the application has accepted it.
fn goes_on_with(flows: &mut Flows, work: &Work, packet: &TcpPacket) -> Option<FlowId> {
    if packet.header.flags.0 & CHANGES.0 != 0 {
        return None;
    }
    let group = flows.groups[usize::from(work.group)].as_mut()?;
    let slot = group.find(work.hash, &packet.tuple())?;
    let flow = group.at(slot)?;
    let goes_on = flow.socket.holder == Holder::Application && goes_on(flow.tcb.state());
    goes_on.then_some(flow.socket.id)
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
    /// Serves the network while the application has this thread. Only the caller uses the thread
    /// meanwhile.
    #[cold]
    pub fn turn_non_responsive(&mut self, now_us: u64) {
        self.io.cx.metrics.enter(Stage::Poll);
        // What may not be sent any more may not be sent by the guard either.
        self.io.read_updates(now_us);
        self.begin_cycle(now_us);
        self.deferred.may_wait = true;
        self.io.cx.events.set_muted(true);
        for batch in 0..=BATCHES_MAX {
            self.send::<false>(now_us);
            self.io.cx.metrics.enter(Stage::Poll);
            if batch == BATCHES_MAX || self.receive_batch::<false>() == 0 {
                break;
            }
            self.flush_handover();
        }
        if self.shared.updates.is_surveyed(self.io.cx.index) {
            self.attend_survey(BATCHES_MAX * SLICE, now_us);
        }
        self.io.cx.events.set_muted(false);
        self.io.cx.metrics.counters.away_turns.add(1);
        self.io.cx.metrics.enter(Stage::App);
    }

    /// To be called when the application has returned and its calls are carried out: processes what
    /// has waited.
    #[cold]
    pub(super) fn process_deferred(&mut self) {
        self.deferred.may_wait = false;
        self.io.cx.events.unmute_all();
        let now_us = self.io.cx.now_us;
        for token in std::mem::take(&mut self.deferred.timers) {
            self.flows.wheel.insert(now_us, token);
        }
    }

    #[cold]
    pub(super) fn fire_flow_timer_non_responsive(&mut self, id: FlowId) {
        if self.flows.get(id).is_none_or(|flow| is_harmless(flow)) {
            self.tcp.fire(&mut self.io, &mut self.flows, id);
        } else {
            self.flows.put_off(id, self.io.cx.now_us + PUT_OFF_US);
        }
    }

    /// Processes a packet, or stores it. A stored packet is counted and captured when it is
    /// processed.
    #[cold]
    pub(super) fn process_or_defer(&mut self, work: &Work, mbuf: Mbuf) {
        match Turn::of(&mut self.flows, &self.shared.memory, work, &mbuf) {
            Turn::Now => self.process(work, mbuf),
            Turn::Flow(id) => {
                self.process(work, mbuf);
                self.announce_later(id);
            }
            Turn::Later => self.keep(work, mbuf),
        }
    }

    /// Stores that this flow has events for the application.
    fn announce_later(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get(id) else { return };
        if flow.socket.has_news() && !flow.socket.announce_later {
            flow.socket.announce_later = true;
            self.flows.to_announce.push_back(id);
        }
    }

    fn keep(&mut self, work: &Work, mbuf: Mbuf) {
        let port = work.port;
        self.deferred.kept.push_back((port, RxPacket { mbuf, more: work.tails > 0 }));
        for left in (0..work.tails).rev() {
            let Some(mbuf) = self.receive.batch.pop_tail() else { break };
            self.deferred.kept.push_back((port, RxPacket { mbuf, more: left > 0 }));
        }
    }
}
