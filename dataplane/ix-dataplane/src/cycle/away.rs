//! An application keeps its elastic thread for too long: the network is served meanwhile.
//!
//! The guard (`run/guard.rs`) runs these turns on the thread's behalf. They are the cycle with
//! fewer parts. The application may be reading its events and writing its calls, so both arrays are
//! left alone: packets of connections that are established are acknowledged and their data kept,
//! timers retransmit, ARP and echo requests are answered, and the receive ring is refilled.
//! Everything that only the application can go on with (new connections, ends of connections,
//! datagrams, its timers) waits, and so does the word of what was received and sent. Flow control
//! does the rest: data that the application does not take closes the windows. What the broker says
//! is heard, for another gate holds from the next cycle on; what it asks of threads they do when
//! they are back.
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

/// Batches in one turn, at most.
const BATCHES_MAX: usize = 16;
/// A timer that may end a connection is looked at again after this time, µs.
const PUT_OFF_US: u64 = 10_000;
/// Bits of segments that may change what a connection is.
const CHANGES: TcpFlags = TcpFlags(TcpFlags::SYN.0 | TcpFlags::RST.0 | TcpFlags::FIN.0);

/// What waits for the application to come back.
#[derive(Default)]
pub(super) struct Away {
    /// Something may wait.
    pub was: bool,
    /// Packets, each with its device.
    kept: VecDeque<(u8, RxPacket)>,
    /// Application timers that have fired, as the wheel names them.
    timers: Vec<u64>,
}

impl Away {
    /// Whether packets wait.
    pub fn has_kept(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Whether more than a quarter of so many frames waits.
    pub fn is_full(&self, owned: usize) -> bool {
        self.kept.len() > owned / 4
    }

    /// The packet that came first.
    pub fn pop(&mut self) -> Option<(u8, RxPacket)> {
        self.kept.pop_front()
    }

    /// The application hears of this timer when it is back.
    pub fn put_off_timer(&mut self, token: u64) {
        self.timers.push(token);
    }
}

/// What becomes of a packet while the application is away.
enum Turn {
    /// It is handled.
    Now,
    /// It is handled; the application hears of this flow later.
    Flow(FlowId),
    /// It is kept.
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

/// The connection that a segment neither opens nor ends, if it is the application's.
fn goes_on_with(flows: &mut Flows, work: &Work, packet: &TcpPacket) -> Option<FlowId> {
    if packet.header.flags.0 & CHANGES.0 != 0 {
        return None;
    }
    let group = flows.groups[usize::from(work.group)].as_mut()?;
    let slot = group.find(work.hash, &packet.tuple())?;
    let flow = group.at(slot)?;
    let goes_on = flow.side.holder == Holder::Application && goes_on(flow.tcb.state());
    goes_on.then_some(flow.side.id)
}

/// Whether a connection in this state goes on as it is while no segment opens or ends anything.
fn goes_on(state: State) -> bool {
    matches!(state, State::Established | State::CloseWait)
}

/// Whether a timer of this flow says nothing to the application.
fn is_harmless(flow: &Flow) -> bool {
    match flow.side.holder {
        Holder::Orphan => true,
        Holder::Application => goes_on(flow.tcb.state()) && !flow.tcb.may_give_up(),
        Holder::Connecting | Holder::Embryonic | Holder::Knocking => false,
    }
}

impl ElasticThread {
    /// Serves the network while the application has this thread. Only the caller uses it meanwhile.
    #[cold]
    pub fn turn_while_away(&mut self, now_us: u64) {
        self.io.cx.metrics.enter(Stage::Poll);
        // What may not leave any more does not leave from here either.
        self.io.read_updates(now_us);
        self.begin_cycle(now_us);
        self.away.was = true;
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

    /// The application has come back, and its calls are carried out: what waited goes on.
    #[cold]
    pub(super) fn end_away(&mut self) {
        self.away.was = false;
        self.io.cx.events.unmute_all();
        let now_us = self.io.cx.now_us;
        for token in std::mem::take(&mut self.away.timers) {
            self.flows.wheel.insert(now_us, token);
        }
    }

    #[cold]
    pub(super) fn fire_flow_timer_away(&mut self, id: FlowId) {
        if self.flows.get(id).is_none_or(|flow| is_harmless(flow)) {
            self.tcp.fire(&mut self.io, &mut self.flows, id);
        } else {
            self.flows.put_off(id, self.io.cx.now_us + PUT_OFF_US);
        }
    }

    /// Handles a packet, or keeps it. One that is kept is counted and captured when it is handled.
    #[cold]
    pub(super) fn process_away(&mut self, work: &Work, mbuf: Mbuf) {
        match Turn::of(&mut self.flows, &self.shared.memory, work, &mbuf) {
            Turn::Now => self.process(work, mbuf),
            Turn::Flow(id) => {
                self.process(work, mbuf);
                self.announce_later(id);
            }
            Turn::Later => self.keep(work, mbuf),
        }
    }

    /// The application hears what is new of a flow when it is back.
    fn announce_later(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get(id) else { return };
        if flow.side.has_news() && !flow.side.announce_later {
            flow.side.announce_later = true;
            self.flows.to_announce.push_back(id);
        }
    }

    fn keep(&mut self, work: &Work, mbuf: Mbuf) {
        let port = work.port;
        self.away.kept.push_back((port, RxPacket { mbuf, more: work.tails > 0 }));
        for left in (0..work.tails).rev() {
            let Some(mbuf) = self.receive.batch.pop_tail() else { break };
            self.away.kept.push_back((port, RxPacket { mbuf, more: left > 0 }));
        }
    }
}
