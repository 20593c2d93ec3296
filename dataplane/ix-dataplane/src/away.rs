//! An application keeps its elastic thread for too long: the network is served meanwhile.
//!
//! The guard (`guard.rs`) runs these turns on the thread's behalf. The application may be reading its
//! events and writing its calls, so both arrays are left alone: packets of connections that are
//! established are acknowledged and their data kept, timers retransmit, ARP and echo requests are
//! answered, and the receive ring is refilled. Everything that only the application can go on with
//! (new connections, ends of connections, datagrams, its timers) waits, and so does the word of what was
//! received and sent. Flow control does the rest: what nobody takes closes the windows. What the broker
//! says is heard, for another gate holds from the next cycle on; what it asks of threads they do when they
//! are back.
use crate::cycle::{APP_TIMER, ElasticThread, flow_of};
use crate::flows::flow::Holder;
use crate::flows::handle::FlowId;
use crate::observe::metrics::Stage;
use crate::observe::survey::SLICE;
use crate::receive::Work;
use ix_mem::Mbuf;
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
pub(crate) struct Away {
    /// Something may wait.
    pub was: bool,
    /// Packets, each with its device.
    kept: VecDeque<(u8, RxPacket)>,
    /// Application timers that have fired.
    timers: Vec<u64>,
}

impl Away {
    /// Whether packets wait.
    pub fn has_kept(&self) -> bool {
        !self.kept.is_empty()
    }

    /// The packet that came first.
    pub fn pop(&mut self) -> Option<(u8, RxPacket)> {
        self.kept.pop_front()
    }
}

impl ElasticThread {
    /// Serves the network while the application has this thread. Nobody else uses it meanwhile.
    #[cold]
    pub fn turn_while_away(&mut self, now_us: u64) {
        self.io.metrics.enter(Stage::Poll);
        // What may not leave any more does not leave from here either.
        self.io.read_updates(now_us);
        self.io.begin_cycle(now_us);
        self.away.was = true;
        self.io.events.set_muted(true);
        self.run_timers_away(now_us);
        for _ in 0..BATCHES_MAX {
            let polled = self.receive_away();
            self.flush_touched();
            self.flush_handover();
            let sent = match self.capture {
                None => self.io.transmit(),
                Some(_) => self.transmit_captured(),
            };
            self.io.metrics.counters.tx_packets.add(sent as u64);
            self.shared.spare.balance(&mut self.io.rx_pool);
            if polled == 0 {
                break;
            }
        }
        if self.shared.updates.is_surveyed(self.io.index) {
            self.attend_survey(BATCHES_MAX * SLICE, now_us);
        }
        self.io.events.set_muted(false);
        self.io.metrics.counters.away_turns.add(1);
        self.io.metrics.enter(Stage::App);
    }

    /// The application has come back, and its calls are carried out: what waited goes on.
    #[cold]
    pub(crate) fn end_away(&mut self) {
        self.away.was = false;
        self.io.events.unmute_all();
        let now_us = self.io.now_us;
        for id in std::mem::take(&mut self.away.timers) {
            self.wheel.insert(now_us, id | APP_TIMER);
        }
    }

    fn run_timers_away(&mut self, now_us: u64) {
        let mut due = self.take_due(now_us);
        for token in due.drain(..) {
            let id = FlowId::from_handle(token);
            if token & APP_TIMER != 0 {
                self.away.timers.push(token & !APP_TIMER);
            } else if self.is_harmless(id) {
                self.fire_flow_timer(id, now_us);
            } else {
                self.put_off(id, now_us + PUT_OFF_US);
            }
        }
        self.give_due_back(due);
        self.io.run_neighbor_timers();
    }

    /// Whether a timer of this flow says nothing to the application.
    fn is_harmless(&mut self, id: FlowId) -> bool {
        flow_of(&mut self.groups, id).is_none_or(|flow| match flow.side.holder {
            Holder::Orphan => true,
            Holder::Application => goes_on(flow.tcb.state()) && !flow.tcb.may_give_up(),
            Holder::Connecting | Holder::Embryonic | Holder::Knocking => false,
        })
    }

    fn receive_away(&mut self) -> usize {
        if self.away.kept.len() > self.io.rx_pool.owned() / 4 || self.holds_too_many() {
            return 0;
        }
        let polled = self.poll_devices();
        if polled == 0 {
            return 0;
        }
        self.receive.pressure = self.io.rx_pressure(polled);
        self.parse_burst();
        let (mut work, mut mbufs) = self.receive.take_batch();
        for (work, mbuf) in work.iter().zip(mbufs.drain(..)) {
            self.handle_away(work, mbuf);
        }
        work.clear();
        self.receive.give_batch_back(work, mbufs);
        polled
    }

    fn handle_away(&mut self, work: &Work, mbuf: Mbuf) {
        match &work.parsed {
            Parsed::Arp(_) => return self.handle_and_capture(work, mbuf),
            Parsed::Icmp(packet) => {
                let is_error = IcmpError::parse(mbuf.bytes(&self.shared.memory), packet).is_some();
                if !is_error {
                    return self.handle_and_capture(work, mbuf);
                }
            }
            Parsed::Tcp(packet) => {
                if let Some(id) = self.goes_on_with(work, packet) {
                    self.handle_and_capture(work, mbuf);
                    self.announce_later(id);
                    return;
                }
            }
            Parsed::Udp(_) => {}
        }
        self.keep(work, mbuf);
    }

    /// What is kept is captured when it is handled.
    fn handle_and_capture(&mut self, work: &Work, mbuf: Mbuf) {
        match self.capture {
            None => self.handle(work, mbuf),
            Some(_) => self.handle_captured(work, mbuf),
        }
    }

    /// The connection that a segment neither opens nor ends, if it is the application's.
    fn goes_on_with(&mut self, work: &Work, packet: &TcpPacket) -> Option<FlowId> {
        if packet.header.flags.0 & CHANGES.0 != 0 {
            return None;
        }
        let group = self.groups[usize::from(work.group)].as_mut()?;
        let slot = group.find(work.hash, &packet.tuple())?;
        let flow = group.at(slot)?;
        let goes_on = flow.side.holder == Holder::Application && goes_on(flow.tcb.state());
        goes_on.then_some(flow.side.id)
    }

    /// The application hears what is new of a flow when it is back.
    fn announce_later(&mut self, id: FlowId) {
        let Some(flow) = flow_of(&mut self.groups, id) else { return };
        if flow.side.has_news() && !flow.side.announce_later {
            flow.side.announce_later = true;
            self.to_announce.push_back(id);
        }
    }

    fn keep(&mut self, work: &Work, mbuf: Mbuf) {
        let port = work.port;
        self.away.kept.push_back((port, RxPacket { mbuf, more: work.tails > 0 }));
        for left in (0..work.tails).rev() {
            let Some(mbuf) = self.receive.pop_tail() else { break };
            self.away.kept.push_back((port, RxPacket { mbuf, more: left > 0 }));
        }
    }
}

/// Whether a connection in this state goes on as it is for as long as nobody opens or ends anything.
fn goes_on(state: State) -> bool {
    matches!(state, State::Established | State::CloseWait)
}
