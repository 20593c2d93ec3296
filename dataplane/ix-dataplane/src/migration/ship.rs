//! Packing and unpacking flow groups: what belongs to them beside the flows themselves.
use super::message::Ship;
use super::record::MigrationRecord;
use crate::cycle::{APP_TIMER, ElasticThread, schedule};
use crate::flows::flow::Waits;
use crate::flows::handle::FlowId;
use crate::group_set::GroupSet;
use crate::receive::forwarding::Forwarded;
use crate::timers::wheel::SweepCursor;
use std::collections::VecDeque;

/// A group whose flows are still to be entered in this thread's wheel. Done bit by bit, for a group may
/// have very many flows.
pub struct Relink {
    group: usize,
    next: u32,
}

impl Relink {
    /// All flows of a group.
    pub fn new(group: usize) -> Relink {
        Relink { group, next: 0 }
    }
}

/// Entries of groups that are gone are taken out of the wheel, bit by bit.
pub struct Sweep {
    groups: GroupSet,
    cursor: SweepCursor,
}

/// Wheel entries that are looked at between two cycles.
const SWEEP_ENTRIES: usize = 1024;

impl ElasticThread {
    /// Takes groups out of this thread.
    pub(super) fn pack(
        &mut self,
        serial: u64,
        groups: GroupSet,
        packets: VecDeque<Forwarded>,
        mut record: MigrationRecord,
    ) -> Ship {
        self.finish_relink(&groups);
        let waiting = self.leave_listeners(&groups);
        let boxes: Vec<_> = groups.iter().filter_map(|group| self.groups[group].take()).collect();
        let flows: usize = boxes.iter().map(|group| group.flows()).sum();
        let time_wait: u32 = boxes.iter().map(|group| group.time_wait).sum();
        record.flows = flows as u32;
        self.count_moved(-(flows as i64), -i64::from(time_wait));
        let of_them = |id: &FlowId| groups.contains(usize::from(id.group));
        let touched = self.touched.extract_if(.., |id| of_them(id)).collect();
        let to_announce = self.to_announce.iter().copied().filter(of_them).collect();
        self.to_announce.retain(|id| !of_them(id));
        let frames: Vec<u32> =
            boxes.iter().map(|group| self.take_frames(usize::from(group.id()))).collect();
        for item in &packets {
            if let Forwarded::Packet { packet, .. } = item {
                self.io.rx_pool.disown(&packet.mbuf);
            }
        }
        self.transmit_all();
        let unsent = self.take_unsent(&groups);
        let fences = self.io.fences();
        let now_us = self.io.now_us;
        let cookies = self.listeners.cookies(now_us);
        Ship {
            serial,
            groups: boxes,
            frames,
            touched,
            to_announce,
            waiting,
            cookies,
            packets,
            fences,
            queued: false,
            unsent,
            record,
            now_us,
        }
    }

    /// Puts groups into this thread.
    pub(super) fn unpack(&mut self, ship: Ship) {
        let flows: usize = ship.groups.iter().map(|group| group.flows()).sum();
        let time_wait: u32 = ship.groups.iter().map(|group| group.time_wait).sum();
        self.count_moved(flows as i64, i64::from(time_wait));
        for (group, frames) in ship.groups.into_iter().zip(ship.frames) {
            let number = usize::from(group.id());
            self.io.flow_frames[number] = frames;
            self.io.rx_pool.adopt_many(frames as usize);
            if let Some(sweep) = &mut self.migrations.sweep {
                sweep.groups.remove(number);
            }
            self.groups[number] = Some(group);
        }
        if self.shared.updates.surveys.is_running() {
            self.shared.updates.order_survey(self.io.index);
        }
        self.join_listeners(&ship.waiting);
        for (addr, port, until_us) in ship.cookies {
            if let Some(slot) = self.listeners.find_exact(addr, port)
                && let Some(listening) = self.listeners.get(slot)
            {
                listening.cookies_until_us = listening.cookies_until_us.max(until_us);
            }
        }
    }

    /// The frames that a group's flows hold go with it.
    fn take_frames(&mut self, group: usize) -> u32 {
        let frames = std::mem::take(&mut self.io.flow_frames[group]);
        self.io.rx_pool.disown_many(frames as usize);
        frames
    }

    fn count_moved(&mut self, flows: i64, time_wait: i64) {
        self.flows = self.flows.saturating_add_signed(flows as isize);
        let counters = &self.io.metrics.counters;
        counters.flows.set(self.flows as u64);
        counters.flows_peak.raise(self.flows as u64);
        counters.time_wait.set(counters.time_wait.get().saturating_add_signed(time_wait));
    }

    /// Flows that are not accepted yet leave their listeners' backlogs.
    fn leave_listeners(&mut self, groups: &GroupSet) -> Vec<(FlowId, ix_wire::IpAddr, u16)> {
        let mut waiting = Vec::new();
        if !self.listeners.anybody_waits() {
            return waiting;
        }
        for number in groups.iter() {
            let Some(group) = self.groups[number].as_mut() else { continue };
            for id in group.ids_where(|flow| flow.side.waits != Waits::Nowhere) {
                let Some(flow) = group.get(id) else { continue };
                let Some(listening) = self.listeners.get(flow.side.listener) else { continue };
                waiting.push((id, listening.addr, listening.port));
                listening.count_moved(flow.side.waits, false);
            }
        }
        waiting
    }

    /// They wait at this thread's listener of the same address and port. If there is none, they can
    /// still be accepted; those that have not knocked yet will be refused.
    fn join_listeners(&mut self, waiting: &[(FlowId, ix_wire::IpAddr, u16)]) {
        for (id, addr, port) in waiting {
            let slot = self.listeners.find_exact(*addr, *port);
            let Some(flow) = crate::cycle::flow_of(&mut self.groups, *id) else { continue };
            match slot.and_then(|slot| Some((slot, self.listeners.get(slot)?))) {
                Some((slot, listening)) => {
                    flow.side.listener = slot;
                    listening.count_moved(flow.side.waits, true);
                }
                None => {
                    flow.side.listener = u16::MAX;
                    flow.side.waits = Waits::Nowhere;
                }
            }
        }
    }

    /// Enters some flows that have come in the wheel.
    pub(super) fn step_relink(&mut self, mut budget: usize) {
        while budget > 0 {
            let Some(mut relink) = self.migrations.relink.pop_front() else { return };
            if !self.relink(&mut relink, &mut budget) {
                self.migrations.relink.push_front(relink);
            }
        }
    }

    /// Before they leave again.
    fn finish_relink(&mut self, groups: &GroupSet) {
        let relink = std::mem::take(&mut self.migrations.relink);
        for mut relink in relink {
            if groups.contains(relink.group) {
                while !self.relink(&mut relink, &mut usize::MAX.clone()) {}
            } else {
                self.migrations.relink.push_back(relink);
            }
        }
    }

    /// Answers whether all flows of the group are done.
    fn relink(&mut self, relink: &mut Relink, budget: &mut usize) -> bool {
        let ElasticThread { groups, wheel, .. } = self;
        let Some(group) = groups[relink.group].as_mut() else { return true };
        while *budget > 0 && relink.next < group.slots() {
            group.prefetch_slot(relink.next + crate::cycle::FLOWS_AHEAD as u32);
            let id = group.id_of(relink.next);
            if let Some((flow, alarm_us)) = group.get_with_alarm(id) {
                *alarm_us = u64::MAX;
                schedule(wheel, flow, alarm_us);
            }
            relink.next += 1;
            *budget -= 1;
        }
        relink.next >= group.slots()
    }

    /// The wheel's entries of these groups mean nothing any more.
    pub(super) fn begin_sweep(&mut self, groups: GroupSet) {
        let unfinished = self.migrations.sweep.take().map_or(GroupSet::EMPTY, |s| s.groups);
        let groups = groups.iter().chain(unfinished.iter()).collect();
        self.migrations.sweep = Some(Sweep { groups, cursor: SweepCursor::default() });
    }

    pub(super) fn step_sweep(&mut self) {
        let Some(Sweep { groups, cursor }) = &mut self.migrations.sweep else { return };
        let gone = |token: u64| {
            token & APP_TIMER == 0 && groups.contains(usize::from(FlowId::from_handle(token).group))
        };
        if self.wheel.sweep(cursor, SWEEP_ENTRIES, gone) {
            self.migrations.sweep = None;
        }
    }
}
