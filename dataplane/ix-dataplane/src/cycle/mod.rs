//! The cycle of an elastic thread: its parts, and the six steps that call them.
//!
//! Only this module knows all parts. Each part owns its state, gets a small context and returns a
//! result; this module acts on the result. Nothing here reads a clock or waits: the caller passes
//! the time and decides about sleeping (`run/` on Linux, the simulator in virtual time).
//!
//! `packets.rs` has steps 1 and 2, `calls.rs` step 4. `absent.rs` puts off what needs a process of
//! the program that computes, `non_responsive.rs` serves the network while all do, `moves.rs`
//! carries out what migrations need, and `rest.rs` does what is due when no packet arrives.
mod absent;
mod calls;
#[cfg(test)]
mod looped_tests;
mod moves;
mod non_responsive;
mod packets;
mod rest;
mod thrift;

use crate::context::Context;
use crate::egress::Egress;
use crate::flows::Flows;
use crate::flows::ended::Ended;
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
use crate::shared::mourning::Review;
use crate::tcp::Tcp;
use crate::timers::app::AppTimers;
use absent::{PUT_OFF_US, Returned};
use ix_abi::Event;
use ix_proto::crossing::AttachmentId;
use ix_tcp::udp::UdpTable;
use std::sync::Arc;
use thrift::Thrift;

/// Most timers of flows, and of the application, that one cycle processes: the limit of step 5.
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
    pub(crate) migrations: Migrations,
    returned: Returned,
    /// The thread's part of a capture, if one is running.
    sniffer: Option<Box<Sniffer>>,
    read_on_cpu: ReadOnCpu,
    /// Version of the vNIC's rules that this thread uses.
    rules_version: u64,
    due: Vec<u64>,
    /// The cycle has begun with step 4, and the rest of it follows.
    has_begun: bool,
    housekeeping_us: u64,
    thrift: Thrift,
    /// Grows with each cycle that may have changed what a flow sends.
    pub(crate) changes: u64,
    pub(crate) review: Review,
    pub(crate) ended: Ended,
}

/// The result of one cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CycleReport {
    /// Number of events for the application.
    pub events: usize,
    /// Packets were received or sent, or timers fired.
    pub busy: bool,
}

impl ElasticThread {
    /// A thread that owns the flow groups that `shared` assigns to it.
    pub fn new(io: Io, forwarding: Forwarding, now_us: u64) -> ElasticThread {
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
            migrations: Migrations::new(index, |group| shared.owner(group)),
            returned: Returned::default(),
            sniffer: None,
            read_on_cpu: OnCpu::in_virtual_time,
            rules_version: u64::MAX,
            due: Vec::with_capacity(TIMERS_PER_CYCLE),
            has_begun: false,
            housekeeping_us: 0,
            thrift: Thrift::default(),
            changes: 0,
            review: Review::default(),
            ended: Ended::default(),
            shared,
            io,
        }
    }

    /// Declares that the thread runs on Linux, beside other processes.
    pub(crate) fn run_on_linux(&mut self) {
        self.read_on_cpu = OnCpu::on_linux;
    }

    /// Steps 4 to 6, then 1 and 2: carries out `calls` calls and fills the event array. The
    /// application has processed all earlier events.
    pub fn run_cycle(&mut self, calls: usize, now_us: u64) -> CycleReport {
        self.begin(calls, now_us);
        self.turn(now_us)
    }

    /// Step 4: the program's only process has returned with `calls` calls.
    pub fn begin(&mut self, calls: usize, now_us: u64) {
        self.begin_for(0, calls, now_us);
    }

    /// Step 4: a process of the program has returned with `calls` calls, so its old events are
    /// processed. It is present from now on.
    pub fn begin_for(&mut self, caller: AttachmentId, calls: usize, now_us: u64) {
        let cx = &mut self.io.cx;
        cx.caller = caller;
        cx.attached.set_present(caller, true);
        let attachment = &mut cx.attached[caller];
        cx.shift = attachment.shift;
        attachment.events.reset();
        // One packet may cause more events than the array holds.
        attachment.was_absent |= attachment.events.late() > 0;
        attachment.empty_graveyard(&cx.shared.memory, &mut cx.rx_pool);
        attachment.returned();
        self.begin_cycle(now_us);
        self.has_begun = true;
        self.changes += 1;
        self.io.cx.metrics.enter(Stage::Calls);
        self.run_calls(calls);
        self.take_up(caller);
        if self.migrations.is_active() && !self.io.cx.attached.owes_any_return() {
            self.application_returned();
        }
        let attached = &self.io.cx.attached;
        if !attached[caller].to_announce.is_empty() && attached.is_present(caller) {
            self.announce_to(caller);
        }
    }

    /// Begins a cycle without a process of the program: nobody runs this thread, and all events
    /// count as processed.
    pub(crate) fn begin_alone(&mut self, now_us: u64) {
        self.begin_cycle(now_us);
        self.io.cx.metrics.enter(Stage::Calls);
        for number in self.io.cx.attached.numbers() {
            let Context { attached, shared, rx_pool, .. } = &mut self.io.cx;
            let attachment = &mut attached[number];
            attachment.events.reset();
            attachment.empty_graveyard(&shared.memory, rx_pool);
            (attachment.owes_return, attachment.has_late_news) = (false, false);
            self.take_up(number);
        }
        if self.migrations.is_active() {
            self.application_returned();
        }
        self.announce_to_present();
    }

    /// Steps 5, 6, 1 and 2, without new calls. May be repeated while there are no events.
    pub fn turn(&mut self, now_us: u64) -> CycleReport {
        if !self.has_begun || self.io.cx.now_us != now_us {
            self.begin_cycle(now_us);
        }
        self.has_begun = false;
        let (sent, fired) = self.send::<true>(now_us);
        self.receive_and_report(sent, fired)
    }

    /// Steps 1 and 2 alone, after a turn that found nothing to do: a packet that has arrived since
    /// does not wait for steps 5 and 6.
    pub fn turn_to_receive(&mut self, now_us: u64) -> CycleReport {
        self.begin_cycle(now_us);
        self.receive_and_report(0, false)
    }

    /// Starts a cycle at this time. Applies what other threads and the control plane have changed.
    pub(crate) fn begin_cycle(&mut self, now_us: u64) {
        self.has_begun = false;
        let Io { cx, ports, neighbors, .. } = &mut self.io;
        cx.now_us = now_us;
        neighbors.check(cx, ports);
        if self.shared.vnic_rules.version() != self.rules_version {
            self.renew_rules();
        }
    }

    /// Applies the vNIC's newest rules.
    #[cold]
    fn renew_rules(&mut self) {
        self.rules_version = self.shared.vnic_rules.version();
        let rules = self.shared.vnic_rules.get();
        let Io { cx, ports, .. } = &mut self.io;
        self.egress.qdisc.renew(&rules, cx, ports);
        self.receive.admission =
            Admission::new(&rules, cx.index, cx.shared.threads(), cx.now_us * 1000);
    }

    /// Steps 5 and 6. `HERE`: a process of the program waits for events; otherwise all compute, and
    /// what needs them is put off. Returns the number of sent packets, and whether timers fired.
    #[inline]
    fn send<const HERE: bool>(&mut self, now_us: u64) -> (usize, bool) {
        // Peers wait for what the calls have caused, and for no timer: it leaves first.
        let leaves = self.flush_touched();
        let mut sent = 0;
        if leaves {
            self.io.cx.metrics.enter(Stage::Transmit);
            sent = self.transmit();
        }
        self.io.cx.metrics.enter(Stage::Timers);
        let fired = self.run_timers::<HERE>(now_us);
        if self.ended.is_any() || self.tcp.listeners.is_any_ending() {
            self.end_some();
        }
        self.flush_touched();
        let is_queued = self.io.ports.iter().any(|port| !port.queue.is_empty());
        if is_queued || !leaves && self.egress.holds_back() {
            self.io.cx.metrics.enter(Stage::Transmit);
            sent += self.transmit();
        } else if !leaves {
            self.egress.kick(&mut self.io.cx, &mut self.io.ports);
        }
        self.shared.spare.balance(&mut self.io.cx.rx_pool);
        (sent, fired)
    }

    /// Step 6.
    #[inline]
    fn transmit(&mut self) -> usize {
        let Io { cx, ports, .. } = &mut self.io;
        self.egress.transmit(cx, ports, self.sniffer.as_deref_mut())
    }

    /// Steps 1 and 2, and the end of a cycle that has sent `sent` packets; `fired`: timers have
    /// fired.
    #[inline]
    fn receive_and_report(&mut self, sent: usize, fired: bool) -> CycleReport {
        self.io.cx.metrics.enter(Stage::Poll);
        let received = self.receive_batch::<true>();
        if self.migrations.is_active() || self.flows.is_unsettled() {
            self.step_migrations();
            self.announce_to_present();
        }
        self.flush_handover();
        let events = self.io.cx.attached.events();
        self.io.cx.metrics.cycle_done(received, sent, fired || events > 0);
        let busy = received + sent > 0 || fired;
        self.changes += u64::from(busy);
        CycleReport { events, busy }
    }

    /// Sends what the touched flows have to send, sets their timers and removes those that have
    /// ended. Returns whether there were any.
    #[inline(always)]
    pub(crate) fn flush_touched(&mut self) -> bool {
        let is_any = !self.flows.touched.is_empty() || !self.flows.crowded.is_empty();
        if is_any {
            self.flush_some();
        }
        is_any
    }

    #[inline(never)]
    fn flush_some(&mut self) {
        let ElasticThread { io, flows, tcp, migrations, .. } = self;
        let may_be_quiet = migrations.is_active();
        tcp.flush(io, flows, |id| may_be_quiet && migrations.quiets(id));
    }

    /// Step 5.
    fn run_timers<const HERE: bool>(&mut self, now_us: u64) -> bool {
        if HERE && !self.io.cx.attached.has_room() {
            return false;
        }
        let fired = !self.flows.wheel.is_quiet(now_us) && self.fire_flow_timers::<HERE>(now_us);
        let fired = self.fire_app_timers(now_us) || fired;
        let Io { cx, ports, neighbors, .. } = &mut self.io;
        neighbors.run_timers(cx, ports);
        if !cx.without_hop.is_empty() {
            self.tcp.end_without_hop(&mut self.io, &mut self.flows);
        }
        if HERE {
            self.run_housekeeping(now_us, false);
        }
        fired
    }

    /// Processes the timers of flows that are due. Returns whether there were any.
    #[inline(never)]
    fn fire_flow_timers<const HERE: bool>(&mut self, now_us: u64) -> bool {
        let mut due = std::mem::take(&mut self.due);
        let all_here = HERE && !self.io.cx.attached.is_any_absent();
        let fired = self.flows.take_due(now_us, TIMERS_PER_CYCLE, &mut due);
        for index in 0..due.len() {
            if let Some(&ahead) = due.get(index + crate::flows::FLOWS_AHEAD) {
                self.flows.fetch_ahead(ahead);
            }
            let id = FlowId::from_handle(due[index]);
            match all_here {
                true => self.fire_flow_timer(id),
                false => self.fire_if_harmless(id),
            }
        }
        due.clear();
        self.due = due;
        fired
    }

    fn fire_flow_timer(&mut self, id: FlowId) {
        if self.migrations.is_active() && self.migrations.is_silent(usize::from(id.group)) {
            return self.flows.put_off(id, self.io.cx.now_us + PUT_OFF_US);
        }
        self.tcp.fire(&mut self.io, &mut self.flows, id);
    }

    /// Fires the application's timers that are due; those of absent processes are put off. Returns
    /// whether there were any.
    #[inline]
    fn fire_app_timers(&mut self, now_us: u64) -> bool {
        let attached = &mut self.io.cx.attached;
        for fired in 0..TIMERS_PER_CYCLE {
            let Some((owner, id)) = self.app_timers.due(now_us) else { return fired > 0 };
            if !attached.is_present(owner) {
                self.app_timers.put_off(id);
                attached[owner].timers.push(id);
            } else if let Some(cookie) = self.app_timers.fire(id) {
                attached.push(owner, Event::Timer { cookie });
            }
        }
        true
    }
}
