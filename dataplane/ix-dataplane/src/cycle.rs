//! An elastic thread: what it owns, and the six steps of its cycle.
//!
//! Nothing here reads a clock or waits: the caller brings the time and decides about sleeping
//! (`runner.rs` on Linux, the simulator in virtual time).
use crate::away::Away;
use crate::calls::CallArray;
use crate::flows::flow::{Flow, Side};
use crate::flows::group::FlowGroup;
use crate::flows::handle::FlowId;
use crate::io::Io;
use crate::migration::Migrations;
use crate::observe::capture::Capture;
use crate::observe::metrics::Stage;
use crate::raw::PacketQueues;
use crate::receive::Receive;
use crate::receive::edge::Edge;
use crate::receive::forwarding::Forwarding;
use crate::shared::Shared;
use crate::tcp::listeners::Listeners;
use crate::tcp::secrets::Secrets;
use crate::timers::app::AppTimers;
use crate::timers::wheel::Wheel;
use ix_mem::LentFrames;
use ix_tcp::State;
use ix_tcp::udp::UdpTable;
use ix_wire::FLOW_GROUPS;
use std::sync::Arc;

/// Entries that the wheel handles in one cycle at most: the bound of step 5.
const TIMERS_PER_CYCLE: usize = 256;

/// So many flows stay in the cache by themselves.
const FLOWS_CACHED: usize = 512;

/// So many calls or timers before its own a flow is fetched.
pub(crate) const FLOWS_AHEAD: usize = 4;

/// So many timers before its own the head of a flow is fetched.
const HEADS_AHEAD: usize = 16;

/// Between updates of the gauges.
const HOUSEKEEPING_US: u64 = 100_000;

/// Wheel tokens with this bit name application timers, all others are handles.
pub(crate) const APP_TIMER: u64 = 1 << 63;

/// One elastic thread.
pub struct ElasticThread {
    pub(crate) shared: Arc<Shared>,
    pub(crate) io: Io,
    pub(crate) calls: CallArray,
    pub(crate) groups: Box<[Option<Box<FlowGroup>>]>,
    pub(crate) flows: usize,
    pub(crate) wheel: Wheel,
    pub(crate) app_timers: AppTimers,
    pub(crate) listeners: Listeners,
    pub(crate) secrets: Secrets,
    pub(crate) udp: UdpTable,
    pub(crate) packets: PacketQueues,
    /// Received datagrams and frames of packet queues that the application holds.
    pub(crate) lent: LentFrames,
    pub(crate) receive: Receive,
    /// Flows that need `output` before this cycle's transmission.
    pub(crate) touched: Vec<FlowId>,
    /// Accepted flows whose early data is not announced yet.
    pub(crate) to_announce: std::collections::VecDeque<FlowId>,
    pub(crate) migrations: Migrations,
    pub(crate) away: Away,
    /// Its part of a capture, if there is one.
    pub(crate) capture: Option<Box<Capture>>,
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
        let owned = |group: usize| io.shared.owner(group) == io.index;
        let groups = (0..FLOW_GROUPS)
            .map(|group| owned(group).then(|| Box::new(FlowGroup::new(group as u16))))
            .collect();
        let steering: Vec<_> = io.ports.iter().map(|port| port.info.steering.clone()).collect();
        let timers_max = io.shared.config.timers_max;
        let mut secrets = Secrets::new(&io.shared.config, io.index);
        let seed = u64::from(secrets.random());
        let edge = Edge::new(io.shared.config.mark_queue, io.shared.config.drop_queue, seed);
        ElasticThread {
            calls,
            groups,
            flows: 0,
            wheel: Wheel::new(now_us, 4096),
            app_timers: AppTimers::new(timers_max),
            listeners: Listeners::default(),
            secrets,
            udp: UdpTable::new(),
            packets: PacketQueues::default(),
            lent: LentFrames::new(&io.shared.memory),
            receive: Receive::new(io.shared.config.batch, forwarding, &steering, edge),
            touched: Vec::with_capacity(1024),
            to_announce: Default::default(),
            migrations: Migrations::new(&io.shared),
            away: Away::default(),
            capture: None,
            due: Vec::with_capacity(TIMERS_PER_CYCLE),
            housekeeping_us: 0,
            shared: io.shared.clone(),
            io,
        }
    }

    /// Steps 4 to 6 and then 1 and 2: consumes the application's `calls`, and leaves in the event
    /// array what happened since. The application has consumed all earlier events.
    pub fn run_cycle(&mut self, calls: usize, now_us: u64) -> CycleReport {
        self.begin(calls, now_us);
        self.turn(now_us)
    }

    /// The application came back with `calls`: its old events are consumed (step 4).
    pub fn begin(&mut self, calls: usize, now_us: u64) {
        self.io.events.reset();
        self.io.empty_graveyard();
        self.io.begin_cycle(now_us);
        self.io.metrics.enter(Stage::Calls);
        self.run_calls(calls);
        if self.away.was {
            self.end_away();
        }
        if self.migrations.is_active() {
            self.application_returned();
        }
        self.announce_early_data();
    }

    /// Steps 5, 6, 1 and 2, without new calls. May be repeated while there are no events.
    pub fn turn(&mut self, now_us: u64) -> CycleReport {
        self.io.begin_cycle(now_us);
        self.flush_touched();
        self.io.metrics.enter(Stage::Timers);
        let fired = self.run_timers(now_us);
        self.flush_touched();
        self.io.metrics.enter(Stage::Transmit);
        let sent = match self.capture {
            None => self.io.transmit(),
            Some(_) => self.transmit_captured(),
        };
        self.shared.spare.balance(&mut self.io.rx_pool);
        self.io.metrics.counters.tx_packets.add(sent as u64);
        self.receive_and_report(sent, fired)
    }

    /// Steps 1 and 2 alone, when a turn that found nothing to do came just before: a packet that has
    /// come since is not to wait for steps 5 and 6.
    pub fn turn_to_receive(&mut self, now_us: u64) -> CycleReport {
        self.io.begin_cycle(now_us);
        self.receive_and_report(0, false)
    }

    /// Steps 1 and 2, and the end of a cycle that has sent so many packets and perhaps fired timers.
    #[inline]
    fn receive_and_report(&mut self, sent: usize, fired: bool) -> CycleReport {
        self.io.metrics.enter(Stage::Poll);
        let received = self.receive_batch();
        if self.migrations.is_active() {
            self.step_migrations();
        }
        self.flush_handover();
        let events = self.io.events.count();
        self.io.metrics.cycle_done(received, sent, fired || events > 0);
        CycleReport { events, busy: received + sent > 0 || fired }
    }

    /// Sends what the touched flows have to send, arms their timers, buries the dead.
    pub(crate) fn flush_touched(&mut self) {
        let mut touched = std::mem::take(&mut self.touched);
        let may_be_quiet = self.migrations.is_active();
        for id in touched.drain(..) {
            if !may_be_quiet || !self.migrations.quiets(id) {
                self.flush_flow(id);
            }
        }
        self.touched = touched;
    }

    fn flush_flow(&mut self, id: FlowId) {
        let ElasticThread { shared, groups, io, wheel, .. } = self;
        let Some((flow, alarm_us)) = flow_and_alarm(groups, id) else { return };
        flow.side.touched = false;
        flow.tcb.output(&shared.config.tcp, io.now_us, &mut io.of(&mut flow.side));
        if flow.tcb.is_dead() {
            self.remove_flow(id);
        } else {
            let newly_waits = flow.tcb.state() == State::TimeWait && !flow.side.in_time_wait;
            flow.side.in_time_wait |= newly_waits;
            schedule(wheel, flow, alarm_us);
            if newly_waits {
                self.count_time_wait(id);
            }
        }
    }

    /// Keeps the gauges of flows in TIME-WAIT; `remove_flow` takes them out again.
    fn count_time_wait(&mut self, id: FlowId) {
        if let Some(group) = self.groups[usize::from(id.group)].as_mut() {
            group.time_wait += 1;
        }
        self.io.metrics.counters.time_wait.add(1);
    }

    fn run_timers(&mut self, now_us: u64) -> bool {
        if !self.io.events.has_room() {
            return false;
        }
        let mut due = std::mem::take(&mut self.due);
        self.wheel.advance(now_us, TIMERS_PER_CYCLE, |token| due.push(token));
        let fired = !due.is_empty();
        self.drop_replaced(&mut due, now_us);
        for index in 0..due.len() {
            if let Some(&ahead) = due.get(index + FLOWS_AHEAD) {
                self.fetch_ahead(ahead);
            }
            let token = due[index];
            if token & APP_TIMER != 0 {
                self.fire_app_timer(token & !APP_TIMER);
            } else {
                self.fire_flow_timer(FlowId::from_handle(token), now_us);
            }
        }
        due.clear();
        self.due = due;
        self.io.run_neighbor_timers();
        self.run_housekeeping(now_us, false);
        fired
    }

    /// Entries of the wheel that are due and mean something, for [`Self::give_due_back`].
    pub(crate) fn take_due(&mut self, now_us: u64) -> Vec<u64> {
        let mut due = std::mem::take(&mut self.due);
        self.wheel.advance(now_us, TIMERS_PER_CYCLE, |token| due.push(token));
        self.drop_replaced(&mut due, now_us);
        due
    }

    /// The list, for the next time.
    pub(crate) fn give_due_back(&mut self, due: Vec<u64>) {
        self.due = due;
    }

    /// The wheel looks at a flow again at this time.
    pub(crate) fn put_off(&mut self, id: FlowId, until_us: u64) {
        if let Some((_, alarm_us)) = flow_and_alarm(&mut self.groups, id) {
            *alarm_us = until_us;
            self.wheel.insert(until_us, id.handle());
        }
    }

    /// Of entries that have fired, drops those that mean nothing any more: most, where timers guard
    /// against what seldom happens. Of very many flows only the heads are fetched for that.
    fn drop_replaced(&self, due: &mut Vec<u64>, now_us: u64) {
        let group_of = |id: FlowId| self.groups.get(id.group as usize)?.as_deref();
        let cached = self.flows <= FLOWS_CACHED;
        let mut kept = 0;
        for index in 0..due.len() {
            if !cached && let Some(&ahead) = due.get(index + HEADS_AHEAD) {
                let id = FlowId::from_handle(ahead);
                group_of(id).inspect(|group| group.prefetch_head(id.slot));
            }
            let token = due[index];
            let id = FlowId::from_handle(token);
            if token & APP_TIMER != 0 || group_of(id).is_some_and(|g| g.is_due(id, now_us)) {
                due[kept] = token;
                kept += 1;
            }
        }
        due.truncate(kept);
    }

    /// Fetches the flow of a handle (any number will do) into the cache: of very many, each is out of
    /// it when its turn comes.
    #[inline]
    pub(crate) fn fetch_ahead(&self, handle: u64) {
        if self.flows <= FLOWS_CACHED {
            return;
        }
        let id = FlowId::from_handle(handle);
        if let Some(Some(group)) = self.groups.get(id.group as usize) {
            group.prefetch_slot(id.slot);
        }
    }

    pub(crate) fn fire_flow_timer(&mut self, id: FlowId, now_us: u64) {
        let ElasticThread { shared, groups, io, wheel, .. } = self;
        let Some((flow, alarm_us)) = flow_and_alarm(groups, id) else { return };
        // Another entry of this cycle may have seen to it.
        if *alarm_us > now_us {
            return;
        }
        *alarm_us = u64::MAX;
        let out = &mut io.of(&mut flow.side);
        if flow.tcb.deadline() > now_us
            || flow.tcb.acknowledge_late(&shared.config.tcp, now_us, out)
        {
            schedule(wheel, flow, alarm_us);
            return;
        }
        flow.tcb.timer(&shared.config.tcp, now_us, out);
        self.touch(id);
    }

    /// Puts a flow on the list of those that need `output` in this cycle.
    pub(crate) fn touch(&mut self, id: FlowId) {
        let Some(flow) = flow_of(&mut self.groups, id) else { return };
        touch(&mut self.touched, &mut flow.side);
    }

    /// Gauges and the devices' own counters, every 100 ms and before sleep.
    pub(crate) fn run_housekeeping(&mut self, now_us: u64, force: bool) {
        if now_us < self.housekeeping_us && !force {
            return;
        }
        self.housekeeping_us = now_us + HOUSEKEEPING_US;
        self.expire_fragments();
        let io = &mut self.io;
        let counters = &io.metrics.counters;
        counters.rx_frames_in_use.set(io.rx_pool.in_use() as u64);
        counters.rx_frames_owned.set(io.rx_pool.owned() as u64);
        counters.tx_frames_in_use.set(io.tx_pool.in_use() as u64);
        counters.app_timers.set(self.app_timers.armed() as u64);
        counters.wheel_entries.set(self.wheel.len() as u64);
        counters.half_open.set(self.listeners.half_open());
        let (mut overrun, mut invalid, mut failed) = (0, 0, 0);
        let (mut rx_held, mut tx_held) = (0, 0);
        for port in &mut io.ports {
            let drops = port.nic.drops();
            overrun += drops.rx_overrun;
            invalid += drops.rx_invalid;
            failed += drops.tx_failed;
            let held = port.nic.frames_held();
            rx_held += held.0;
            tx_held += held.1;
        }
        counters.rx_frames_in_device.set(rx_held as u64);
        counters.tx_frames_in_device.set(tx_held as u64);
        counters.device_rx_overrun.set(overrun);
        counters.device_rx_invalid.set(invalid);
        counters.device_tx_failed.set(failed);
    }

    /// Whether a turn may find something to do that no deadline tells of.
    pub fn has_work(&self) -> bool {
        self.io.ports.iter().any(|port| port.nic.pending() || !port.queue.is_empty())
            || self.receive.has_backlog()
            || self.away.has_kept()
            || !self.to_announce.is_empty()
            || self.migrations.is_busy()
            || self.io.neighbors_changed()
            || self.shared.updates.waits(self.io.index)
            || self.shared.wakers[self.io.index].is_kicked()
    }

    /// Whether the kernel is still sending packets of ours. A peer that takes them out of our memory
    /// itself is none of its business.
    pub fn is_transmitting(&self) -> bool {
        let mut by_kernel = self.io.ports.iter().filter(|port| !port.info.shared_frames);
        by_kernel.any(|port| port.nic.frames_held().1 > 0)
    }

    /// Whether nothing waits that no doorbell will ring for. Arms the devices' doorbells.
    pub fn may_sleep(&mut self) -> bool {
        let unsent = self.io.ports.iter().any(|port| !port.queue.is_empty());
        let waits = self.receive.has_backlog() || self.migrations.is_busy() || self.away.has_kept();
        if unsent || waits || !self.to_announce.is_empty() {
            return false;
        }
        self.io.ports.iter_mut().all(|port| port.nic.arm())
    }

    /// When the wheel or a neighbour has something to do next, µs.
    pub fn next_deadline_us(&self) -> Option<u64> {
        let neighbors = self.io.neighbor_deadline_us();
        let migrations =
            if self.migrations.is_active() { self.migrations.deadline_us() } else { None };
        let fragments = self.receive.under_way.deadline_us().map(|us| us.max(self.housekeeping_us));
        let all = [self.wheel.next_deadline_us(), neighbors, migrations, fragments];
        let due_us = all.into_iter().flatten().min();
        match self.io.gate.due_us() {
            None => due_us,
            Some(paced_us) => Some(due_us.map_or(paced_us, |due_us| due_us.min(paced_us))),
        }
    }
}

/// Puts a flow on the list of those that need `output` in this cycle.
#[inline]
pub(crate) fn touch(touched: &mut Vec<FlowId>, side: &mut Side) {
    if !side.touched {
        side.touched = true;
        touched.push(side.id);
    }
}

/// The flow of a name, if its group is here and the name is not stale.
#[inline]
pub(crate) fn flow_of(groups: &mut [Option<Box<FlowGroup>>], id: FlowId) -> Option<&mut Flow> {
    groups.get_mut(id.group as usize)?.as_mut()?.get(id)
}

/// The same, and when the wheel will look at it.
#[inline]
fn flow_and_alarm(
    groups: &mut [Option<Box<FlowGroup>>],
    id: FlowId,
) -> Option<(&mut Flow, &mut u64)> {
    groups.get_mut(id.group as usize)?.as_mut()?.get_with_alarm(id)
}

/// Sees to it that the wheel looks at the flow no later than its earliest deadline.
#[inline]
pub(crate) fn schedule(wheel: &mut Wheel, flow: &Flow, alarm_us: &mut u64) {
    let deadline_us = flow.tcb.deadline();
    if deadline_us < *alarm_us {
        *alarm_us = deadline_us;
        #[cfg(feature = "planted")]
        if deadline_us.is_multiple_of(16) && ix_tcp::planted::is(ix_tcp::planted::Bug::LostTimer) {
            return;
        }
        wheel.insert(deadline_us, flow.side.id.handle());
    }
}
