//! What is due when no packet arrives: gauges, whether the thread may sleep, and until when.
use super::ElasticThread;

/// Time between two updates of the gauges, µs.
const HOUSEKEEPING_US: u64 = 100_000;
/// The same while more is left of processes that have ended than one cycle looks at.
const MOURNING_US: u64 = 1_000;

impl ElasticThread {
    /// Updates gauges and the devices' own counters, every 100 ms and before sleep.
    pub(crate) fn run_housekeeping(&mut self, now_us: u64, force: bool) {
        if now_us < self.housekeeping_us && !force {
            return;
        }
        self.receive.under_way.expire(&mut self.io);
        self.tcp.rest_idle(&mut self.io, &mut self.flows);
        let pause_us = if self.mourn() { MOURNING_US } else { HOUSEKEEPING_US };
        self.housekeeping_us = now_us + pause_us;
        let io = &mut self.io;
        let counters = &io.cx.metrics.counters;
        counters.rx_frames_in_use.set(io.cx.rx_pool.in_use() as u64);
        counters.rx_frames_owned.set(io.cx.rx_pool.owned() as u64);
        counters.tx_frames_in_use.set(io.cx.tx_pool.in_use() as u64);
        counters.app_timers.set(self.app_timers.armed() as u64);
        counters.wheel_entries.set(self.flows.wheel.len() as u64);
        counters.half_open.set(self.tcp.listeners.half_open());
        let (mut overrun, mut invalid, mut foreign, mut failed) = (0, 0, 0, 0);
        let (mut rx_held, mut tx_held) = (0, 0);
        for port in &mut io.ports {
            let drops = port.nic.drops();
            overrun += drops.rx_overrun;
            invalid += drops.rx_invalid;
            foreign += drops.rx_other_vlan;
            failed += drops.tx_failed;
            let held = port.nic.frames_held();
            rx_held += held.0;
            tx_held += held.1;
        }
        counters.rx_frames_in_device.set(rx_held as u64);
        counters.tx_frames_in_device.set(tx_held as u64);
        counters.device_rx_overrun.set(overrun);
        counters.device_rx_invalid.set(invalid);
        counters.device_rx_other_vlan.set(foreign);
        counters.device_tx_failed.set(failed);
        self.give_memory_back(now_us);
    }

    /// There is something to look at that no packet announces.
    pub(crate) fn keep_house_soon(&mut self, now_us: u64) {
        self.housekeeping_us = self.housekeeping_us.min(now_us + MOURNING_US);
    }

    /// Whether something is left of processes that have ended which was not looked at yet.
    pub(crate) fn mourns(&self) -> bool {
        self.review.is_under_way()
    }

    /// Whether a turn may find work that no deadline announces.
    pub fn has_work(&self) -> bool {
        self.has_packets() || self.has_rare_work()
    }

    /// Whether packets wait in a device, or between threads: what is most urgent.
    #[inline]
    pub(crate) fn has_packets(&self) -> bool {
        self.io.ports.iter().any(|port| port.nic.pending() || !port.queue.is_empty())
            || self.forwarding.has_backlog()
    }

    /// [`Self::has_work`] without [`Self::has_packets`].
    #[inline(never)]
    pub(crate) fn has_rare_work(&self) -> bool {
        !self.io.cx.looped.is_empty()
            || self.returned.has_packets()
            || self.io.cx.attached.is_any_to_tell()
            || self.migrations.is_busy()
            || self.flows.is_unsettled()
            || self.is_crowd_to_move()
            || self.io.neighbors.is_stale(&self.io.cx)
            || self.shared.updates.waits(self.io.cx.index)
            || self.shared.wakers[self.io.cx.index].is_kicked()
    }

    /// Whether the kernel is still sending packets of this thread. Packets that a peer takes out of
    /// shared memory do not count.
    pub fn is_transmitting(&self) -> bool {
        let mut by_kernel = self.io.ports.iter().filter(|port| !port.info.shared_frames);
        by_kernel.any(|port| port.nic.frames_held().1 > 0)
    }

    /// Whether flows wait for room that there is, or that the kernel is about to make.
    fn is_crowd_to_move(&self) -> bool {
        let has_room = |port| self.io.has_room(port as u8);
        !self.flows.crowded.is_empty()
            && (self.is_transmitting() || (0..self.io.ports.len()).any(has_room))
    }

    /// Whether the thread may sleep: nothing waits for which no doorbell would ring. Arms the
    /// devices' doorbells.
    pub fn may_sleep(&mut self) -> bool {
        let unsent = self.io.ports.iter().any(|port| !port.queue.is_empty());
        let moves = self.migrations.is_busy() || self.flows.is_unsettled();
        let waits = self.forwarding.has_backlog() || moves || self.returned.has_packets();
        let waits = waits || !self.io.cx.looped.is_empty();
        let crowd = self.is_crowd_to_move();
        if unsent || waits || crowd || self.io.cx.attached.is_any_to_tell() {
            return false;
        }
        self.io.ports.iter_mut().all(|port| port.nic.arm())
    }

    /// When a timer or a next hop has something to do, µs.
    pub fn next_deadline_us(&self) -> Option<u64> {
        let neighbors = self.io.neighbors.deadline_us(&self.io.cx);
        let migrations =
            if self.migrations.is_active() { self.migrations.deadline_us() } else { None };
        let fragments = self.receive.under_way.deadline_us().map(|us| us.max(self.housekeeping_us));
        let (flows, own) = (&self.flows.wheel, &self.app_timers);
        let timers = [flows.next_deadline_us(), own.next_deadline_us()];
        let mourning = match self.ended.is_any() || self.tcp.listeners.is_any_ending() {
            true => Some(self.io.cx.now_us),
            false => self.mourns().then_some(self.housekeeping_us),
        };
        let thrift = self.thrift_deadline_us();
        // One thread looks for all.
        let claims = &self.shared.claims;
        let ports =
            if self.io.cx.index == 0 { claims.look_again_us(self.io.cx.now_us) } else { None };
        let others = [neighbors, migrations, fragments, mourning, thrift, ports];
        let all = timers.into_iter().chain(others);
        let due_us = all.flatten().min();
        match self.egress.qdisc.due_us() {
            None => due_us,
            Some(paced_us) => Some(due_us.map_or(paced_us, |due_us| due_us.min(paced_us))),
        }
    }
}
