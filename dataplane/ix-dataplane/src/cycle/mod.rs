//! The cycle of an elastic thread: its parts, and the six steps that lead through them.
//!
//! Only this module knows all parts. Each part owns its state, is given a small context and returns
//! what came of it; here stands what follows from that. Nothing here reads a clock or waits: the
//! caller brings the time and decides about sleeping (`run/` on Linux, the simulator in virtual
//! time).
//!
//! `packets.rs` has steps 1 and 2, `calls.rs` step 4, `away.rs` what is left out while the
//! application keeps the thread, `moves.rs` what migrations want done, `rest.rs` what is due when
//! nothing comes.
mod away;
mod calls;
mod moves;
mod packets;
mod rest;

use crate::calls::CallArray;
use crate::egress::Egress;
use crate::flows::Flows;
use crate::flows::handle::FlowId;
use crate::forwarding::Forwarding;
use crate::io::Io;
use crate::migration::Migrations;
use crate::migration::on_cpu::{OnCpu, ReadOnCpu};
use crate::observe::capture::Sniffer;
use crate::observe::metrics::Stage;
use crate::raw::PacketQueues;
use crate::receive::Receive;
use crate::receive::admission::Admission;
use crate::receive::edge::Edge;
use crate::shared::Shared;
use crate::tcp::Tcp;
use crate::tcp::connections::announce_early_data;
use crate::timers::APP_TIMER;
use crate::timers::app::AppTimers;
use away::Away;
use ix_abi::Event;
use ix_tcp::udp::UdpTable;
use std::sync::Arc;

/// Entries that the wheel handles in one cycle at most: the bound of step 5.
const TIMERS_PER_CYCLE: usize = 256;

/// One elastic thread.
pub struct ElasticThread {
    pub(crate) shared: Arc<Shared>,
    pub(crate) io: Io,
    pub(crate) egress: Egress,
    pub(crate) receive: Receive,
    pub(crate) forwarding: Forwarding,
    pub(crate) flows: Flows,
    pub(crate) tcp: Tcp,
    pub(crate) udp: UdpTable,
    pub(crate) packets: PacketQueues,
    pub(crate) app_timers: AppTimers,
    pub(crate) calls: CallArray,
    pub(crate) migrations: Migrations,
    away: Away,
    /// Its part of a capture, if there is one.
    sniffer: Option<Box<Sniffer>>,
    read_on_cpu: ReadOnCpu,
    /// Which gate of the board's is in force here.
    gate_version: u64,
    due: Vec<u64>,
    housekeeping_us: u64,
}

/// What one cycle found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CycleReport {
    /// Events that wait for the application.
    pub events: usize,
    /// Packets that came in or went out, or timers that fired: something was done.
    pub busy: bool,
}

impl ElasticThread {
    /// A thread that owns the flow groups which `shared` gives it.
    pub fn new(io: Io, calls: CallArray, forwarding: Forwarding, now_us: u64) -> ElasticThread {
        let (shared, index) = (io.cx.shared.clone(), io.cx.index);
        let config = &shared.config;
        let mut tcp = Tcp::new(config, index);
        let seed = u64::from(tcp.secrets.random());
        let edge = Edge::new(config.mark_queue, config.drop_queue, seed);
        ElasticThread {
            egress: Egress::default(),
            receive: Receive::new(config.batch, edge),
            forwarding,
            flows: Flows::new(|group| shared.owner(group) == index, now_us),
            tcp,
            udp: UdpTable::new(),
            packets: PacketQueues::default(),
            app_timers: AppTimers::new(config.timers_max),
            calls,
            migrations: Migrations::new(index, |group| shared.owner(group)),
            away: Away::default(),
            sniffer: None,
            read_on_cpu: OnCpu::in_virtual_time,
            gate_version: u64::MAX,
            due: Vec::with_capacity(TIMERS_PER_CYCLE),
            housekeeping_us: 0,
            shared,
            io,
        }
    }

    /// The thread runs on Linux, which also runs others.
    pub(crate) fn run_on_linux(&mut self) {
        self.read_on_cpu = OnCpu::on_linux;
    }

    /// Steps 4 to 6 and then 1 and 2: consumes the application's `calls`, and leaves in the event
    /// array what happened since. The application has consumed all earlier events.
    pub fn run_cycle(&mut self, calls: usize, now_us: u64) -> CycleReport {
        self.begin(calls, now_us);
        self.turn(now_us)
    }

    /// The application came back with `calls`: its old events are consumed (step 4).
    pub fn begin(&mut self, calls: usize, now_us: u64) {
        self.io.cx.events.reset();
        self.io.cx.empty_graveyard();
        self.begin_cycle(now_us);
        self.io.cx.metrics.enter(Stage::Calls);
        self.run_calls(calls);
        if self.away.was {
            self.end_away();
        }
        if self.migrations.is_active() {
            self.application_returned();
        }
        announce_early_data(&mut self.io.cx, &mut self.flows);
    }

    /// Steps 5, 6, 1 and 2, without new calls. May be repeated while there are no events.
    pub fn turn(&mut self, now_us: u64) -> CycleReport {
        self.begin_cycle(now_us);
        let (sent, fired) = self.send::<true>(now_us);
        self.receive_and_report(sent, fired)
    }

    /// Steps 1 and 2 alone, when a turn that found nothing to do came just before: a packet that
    /// has come since is not to wait for steps 5 and 6.
    pub fn turn_to_receive(&mut self, now_us: u64) -> CycleReport {
        self.begin_cycle(now_us);
        self.receive_and_report(0, false)
    }

    /// The time of the cycle that begins; takes over what other threads and the control plane
    /// changed.
    pub(crate) fn begin_cycle(&mut self, now_us: u64) {
        let Io { cx, ports, neighbors, .. } = &mut self.io;
        cx.now_us = now_us;
        neighbors.check(cx, ports);
        if self.shared.gate.version() != self.gate_version {
            self.renew_gate();
        }
    }

    /// Takes the gate over that the board has.
    #[cold]
    fn renew_gate(&mut self) {
        self.gate_version = self.shared.gate.version();
        let gate = self.shared.gate.get();
        let Io { cx, ports, .. } = &mut self.io;
        self.egress.qdisc.renew(&gate, cx, ports);
        self.receive.admission =
            Admission::new(&gate, cx.index, cx.shared.threads(), cx.now_us * 1000);
    }

    /// Steps 5 and 6. `HERE`: the application waits for events; if not, it keeps the thread, and
    /// what only it can go on with is put off. Returns how many packets were sent, and whether
    /// timers fired.
    #[inline]
    fn send<const HERE: bool>(&mut self, now_us: u64) -> (usize, bool) {
        self.flush_touched();
        self.io.cx.metrics.enter(Stage::Timers);
        let fired = self.run_timers::<HERE>(now_us);
        self.flush_touched();
        self.io.cx.metrics.enter(Stage::Transmit);
        let sent = self.transmit();
        self.shared.spare.balance(&mut self.io.cx.rx_pool);
        (sent, fired)
    }

    /// Step 6.
    #[inline]
    fn transmit(&mut self) -> usize {
        let Io { cx, ports, .. } = &mut self.io;
        self.egress.transmit(cx, ports, self.sniffer.as_deref_mut())
    }

    /// Steps 1 and 2, and the end of a cycle that has sent so many packets and perhaps fired
    /// timers.
    #[inline]
    fn receive_and_report(&mut self, sent: usize, fired: bool) -> CycleReport {
        self.io.cx.metrics.enter(Stage::Poll);
        let received = self.receive_batch::<true>();
        if self.migrations.is_active() || self.flows.is_unsettled() {
            self.step_migrations();
        }
        self.flush_handover();
        let events = self.io.cx.events.count();
        self.io.cx.metrics.cycle_done(received, sent, fired || events > 0);
        CycleReport { events, busy: received + sent > 0 || fired }
    }

    /// Sends what the touched flows have to send, arms their timers, buries the dead.
    pub(crate) fn flush_touched(&mut self) {
        let ElasticThread { io, flows, tcp, migrations, .. } = self;
        let may_be_quiet = migrations.is_active();
        tcp.flush(io, flows, |id| may_be_quiet && migrations.quiets(id));
    }

    /// Step 5.
    fn run_timers<const HERE: bool>(&mut self, now_us: u64) -> bool {
        if HERE && !self.io.cx.events.has_room() {
            return false;
        }
        let mut due = std::mem::take(&mut self.due);
        let fired = self.flows.take_due(now_us, TIMERS_PER_CYCLE, &mut due);
        for index in 0..due.len() {
            if let Some(&ahead) = due.get(index + crate::flows::FLOWS_AHEAD) {
                self.flows.fetch_ahead(ahead);
            }
            let token = due[index];
            match (token & APP_TIMER != 0, HERE) {
                (true, true) => self.fire_app_timer(token & !APP_TIMER),
                (true, false) => self.away.put_off_timer(token),
                (false, true) => self.fire_flow_timer(FlowId::from_handle(token)),
                (false, false) => self.fire_flow_timer_away(FlowId::from_handle(token)),
            }
        }
        due.clear();
        self.due = due;
        let Io { cx, ports, neighbors, .. } = &mut self.io;
        neighbors.run_timers(cx, ports);
        if HERE {
            self.run_housekeeping(now_us, false);
        }
        fired
    }

    fn fire_flow_timer(&mut self, id: FlowId) {
        self.tcp.fire(&mut self.io, &mut self.flows, id);
    }

    fn fire_app_timer(&mut self, id: u64) {
        if let Some(cookie) = self.app_timers.fire(id) {
            self.io.cx.events.push(Event::Timer { cookie });
        }
    }
}
