//! The connections of one elastic thread, by flow group, and when each has something to do: the
//! list of touched flows, and the wheel.
pub mod ended;
pub mod flow;
pub mod group;
pub mod handle;
pub mod muster;
mod oldest;
pub mod sendq;
pub mod shelf;
mod survey;
pub mod table;
pub mod walk;

use crate::context::Context;
use crate::receive::batch::Work;
use crate::timers::wheel::{SweepCursor, Wheel};
use flow::{Ending, Facts, Flow, Holder, TcpSocket};
use group::{FlowGroup, prefetch_flow};
use handle::FlowId;
use ix_proto::GroupSet;
use ix_wire::{FLOW_GROUPS, FlowTuple, Parsed};
use muster::Muster;
use oldest::Oldest;
use shelf::Kept;
use std::collections::VecDeque;

/// Up to this number flows stay in the cache without prefetching.
const FLOWS_CACHED: usize = 512;

/// A flow is prefetched this many calls or timers before its own.
pub(crate) const FLOWS_AHEAD: usize = 4;

/// The head of a flow is prefetched this many timers before its own.
const HEADS_AHEAD: usize = 16;

/// Most flows of arrived groups that are entered in the wheel between two cycles.
const RELINKS: usize = 255;

/// Most connections in TIME-WAIT that end at once.
const KEPT_AT_ONCE: usize = 64;

/// Most wheel entries that are checked between two cycles for groups that have left.
const SWEEP_ENTRIES: usize = 1024;

/// The flow groups of one elastic thread.
pub(crate) type Groups = Box<[Option<Box<FlowGroup>>]>;

/// The flows of one elastic thread.
pub(crate) struct Flows {
    pub groups: Groups,
    /// Number of flows.
    pub count: usize,
    /// Number of those without a holder that are not in TIME-WAIT.
    pub orphans: usize,
    /// The slot of the last flow that was looked for: that of the next packet, where it comes
    /// alone.
    pub last: u32,
    /// Deadlines of flows.
    pub wheel: Wheel,
    /// Flows that need `output` before this cycle's transmission.
    pub touched: Vec<FlowId>,
    /// Flows that wait for room to send, each for its turn.
    pub crowded: VecDeque<FlowId>,
    /// Where [`crate::tcp::Tcp::muster`] continues, and what it has seen.
    pub muster: Muster,
    /// The group and slot at which [`crate::tcp::Tcp::rest_idle`] continues.
    pub rested: (usize, u32),
    /// The same of [`crate::tcp::Tcp::relieve`].
    pub relieved: (usize, u32),
    oldest: Oldest,
    relink: VecDeque<Relink>,
    sweep: Option<Sweep>,
}

/// A group whose flows are not all entered in this thread's wheel yet. This is done step by step,
/// because a group may have very many flows.
struct Relink {
    group: usize,
    next: u32,
}

/// Removes the entries of groups that have left from the wheel, step by step.
struct Sweep {
    groups: GroupSet,
    cursor: SweepCursor,
}

impl Flows {
    /// No flows, in the groups that are `owned`.
    pub fn new(owned: impl Fn(usize) -> bool, now_us: u64) -> Flows {
        let group = |group: usize| owned(group).then(|| Box::new(FlowGroup::new(group as u16)));
        Flows {
            groups: (0..FLOW_GROUPS).map(group).collect(),
            count: 0,
            orphans: 0,
            last: u32::MAX,
            wheel: Wheel::new(now_us, 4096),
            touched: Vec::with_capacity(1024),
            crowded: VecDeque::with_capacity(1024),
            muster: Muster::default(),
            rested: (0, 0),
            relieved: (0, 0),
            oldest: Oldest::default(),
            relink: VecDeque::new(),
            sweep: None,
        }
    }

    /// The groups of this thread, with those that are leaving.
    pub fn here(&self) -> GroupSet {
        (0..self.groups.len()).filter(|group| self.groups[*group].is_some()).collect()
    }

    /// The flow with a name, if its group is here and the name is not stale.
    #[inline]
    pub fn get(&mut self, id: FlowId) -> Option<&mut Flow> {
        flow_of(&mut self.groups, id)
    }

    /// Number of slots that could be given back.
    pub fn spare(&self) -> usize {
        self.groups.iter().flatten().map(|group| group.spare()).sum()
    }

    /// Gives back the memory of slots that flows have needed.
    #[cold]
    pub fn give_back(&mut self) {
        let spare = self.groups.iter_mut().flatten().filter(|group| group.spare() > 0);
        spare.for_each(|group| group.give_back());
    }

    /// Names of the flows that `wanted` selects.
    pub fn ids_where(&self, wanted: impl Fn(&Flow) -> bool) -> Vec<FlowId> {
        self.groups.iter().flatten().flat_map(|group| group.ids_where(&wanted)).collect()
    }

    /// Names of the flows in these groups that `wanted` selects.
    pub fn ids_in(&self, groups: &GroupSet, wanted: impl Fn(&Flow) -> bool) -> Vec<FlowId> {
        let here = groups.iter().filter_map(|group| self.groups[group].as_ref());
        here.flat_map(|group| group.ids_where(&wanted)).collect()
    }

    /// Puts a flow on the list of those that need `output` in this cycle.
    pub fn touch(&mut self, id: FlowId) {
        let Flows { groups, touched, .. } = self;
        if let Some(flow) = flow_of(groups, id) {
            touch(touched, &mut flow.socket);
        }
    }

    /// Flows of these groups wait for room no longer: they need `output` wherever they are next.
    pub fn leave_crowd(&mut self, groups: &GroupSet) {
        let (left, kept) =
            self.crowded.drain(..).partition(|id| groups.contains(usize::from(id.group)));
        self.crowded = kept;
        let left: VecDeque<FlowId> = left;
        for id in left {
            if let Some(flow) = self.get(id) {
                flow.socket.facts.put(Facts::CROWDED, false);
            }
            self.touch(id);
        }
    }

    /// Adds a new flow; `None` if there are too many.
    #[inline]
    pub fn insert(&mut self, cx: &Context, group: usize, mut flow: Flow) -> Option<FlowId> {
        let config = &cx.shared.config;
        if self.count >= config.flows_max {
            return None;
        }
        if flow.socket.ttl == 0 {
            flow.socket.ttl = cx.hop_limit(flow.tcb.tuple().remote);
        }
        let port = flow.tcb.tuple().local_port;
        let id = self.groups[group].as_mut()?.insert(flow)?;
        cx.shared.claims.flow_begins(port);
        self.count += 1;
        let counters = &cx.metrics.counters;
        counters.flows.set(self.count as u64);
        counters.flows_peak.raise(self.count as u64);
        Some(id)
    }

    /// Removes a flow; its handle is stale from now on.
    pub fn remove(&mut self, cx: &Context, id: FlowId) {
        if id.is_shelf() {
            return self.remove_oldest_kept(cx, id.group);
        }
        let Some(group) = self.groups[usize::from(id.group)].as_mut() else { return };
        let Some(port) = group.get(id).map(|flow| flow.tcb.tuple().local_port) else { return };
        let Some(ending) = group.remove(id) else { return };
        cx.shared.claims.flow_ends(&cx.shared.updates.source, port, cx.now_us);
        self.count_ending(cx, ending, -1);
        let counters = &cx.metrics.counters;
        self.count -= 1;
        counters.flows.set(self.count as u64);
        counters.closed.add(1);
    }

    /// Counts a flow as one without a holder, or in TIME-WAIT. [`Self::remove`] subtracts it again.
    pub fn recount(&mut self, cx: &Context, id: FlowId, ending: Ending) {
        let group = self.groups[usize::from(id.group)].as_mut();
        if let Some(was) = group.and_then(|group| group.recount(id, ending, cx.now_us)) {
            self.count_ending(cx, was, -1);
            self.count_ending(cx, ending, 1);
        }
    }

    #[inline]
    fn count_ending(&mut self, cx: &Context, ending: Ending, by: i64) {
        let counters = &cx.metrics.counters;
        match ending {
            Ending::No => {}
            Ending::Orphan => {
                self.orphans = self.orphans.saturating_add_signed(by as isize);
                counters.orphans.set(self.orphans as u64);
            }
            Ending::TimeWait => {
                counters.time_wait.set(counters.time_wait.get().saturating_add_signed(by));
            }
        }
    }

    /// The flow that has been in TIME-WAIT for longest.
    #[cold]
    pub fn oldest_in_time_wait(&mut self, cx: &Context) -> Option<FlowId> {
        if cx.metrics.counters.time_wait.get() == 0 {
            return None;
        }
        let Flows { groups, oldest, .. } = self;
        let time_wait_us = u64::from(cx.shared.config.tcp.time_wait_us);
        let first_of = |group: &FlowGroup| group.oldest_waiting(time_wait_us, cx.now_us);
        oldest.find(cx.now_us, |group| first_of(groups[group].as_ref()?))
    }

    /// Second pass over a batch: prefetches the flow-table lines of `work`, then the flows.
    pub fn prefetch(&self, work: &mut [Work]) {
        // Of one packet nothing else can be done meanwhile.
        if let [work] = work {
            work.guess = self.last;
            return;
        }
        let group_of = |parsed: &Parsed, group: u8| match parsed {
            Parsed::Tcp(_) => self.groups[usize::from(group)].as_deref(),
            _ => None,
        };
        for work in work.iter() {
            if let Some(group) = group_of(&work.parsed, work.group) {
                group.prefetch(work.hash);
            }
        }
        for work in work {
            let group = group_of(&work.parsed, work.group);
            if let Some((slot, line)) = group.and_then(|group| group.guess(work.hash)) {
                work.guess = slot;
                prefetch_flow(line);
            }
        }
    }

    /// The slot of the flow with this tuple, where none was guessed, or another one.
    #[inline(never)]
    pub fn look_for(&mut self, group: usize, hash: u64, tuple: &FlowTuple) -> Option<u32> {
        let found = self.groups[group].as_ref()?.find(hash, tuple);
        self.last = found.unwrap_or(self.last);
        found
    }

    /// Whether there are so many flows that none stays in the cache.
    #[inline]
    pub fn are_many(&self) -> bool {
        self.count > FLOWS_CACHED
    }

    /// Prefetches the flow of a handle; any number is allowed. With very many flows none is still
    /// in the cache when it is needed.
    #[inline]
    pub fn fetch_ahead(&self, handle: u64) {
        if !self.are_many() {
            return;
        }
        let id = FlowId::from_handle(handle);
        if let Some(Some(group)) = self.groups.get(usize::from(id.group)) {
            group.prefetch_slot(id.slot);
        }
    }

    /// Puts into `due` the current wheel entries that are due, at most `limit` of them. Returns
    /// whether any has fired.
    #[inline]
    pub fn take_due(&mut self, now_us: u64, limit: usize, due: &mut Vec<u64>) -> bool {
        self.wheel.advance(now_us, limit, |token| due.push(token));
        let fired = !due.is_empty();
        if fired {
            self.drop_replaced(due, now_us);
        }
        fired
    }

    /// Drops fired entries that are not current any more. Those are most where timers guard against
    /// rare cases. With very many flows only the heads are prefetched for this.
    fn drop_replaced(&self, due: &mut Vec<u64>, now_us: u64) {
        let group_of = |id: FlowId| self.groups.get(usize::from(id.group))?.as_deref();
        let cached = !self.are_many();
        let mut kept = 0;
        for index in 0..due.len() {
            if !cached && let Some(&ahead) = due.get(index + HEADS_AHEAD) {
                let id = FlowId::from_handle(ahead);
                group_of(id).inspect(|group| group.prefetch_head(id.slot));
            }
            let token = due[index];
            let id = FlowId::from_handle(token);
            if group_of(id).is_some_and(|g| g.is_due(id, now_us)) {
                due[kept] = token;
                kept += 1;
            }
        }
        due.truncate(kept);
    }

    /// Makes the wheel check a flow again at this time.
    pub fn put_off(&mut self, id: FlowId, until_us: u64) {
        if id.is_shelf() {
            let group = self.groups.get_mut(usize::from(id.group)).and_then(Option::as_mut);
            return group.into_iter().for_each(|group| {
                group.shelf_mut().alarm_us = until_us;
                self.wheel.insert(until_us, id.handle());
            });
        }
        if let Some((_, alarm_us)) = flow_and_alarm(&mut self.groups, id) {
            *alarm_us = until_us;
            self.wheel.insert(until_us, id.handle());
        }
    }
}

/// Connections in TIME-WAIT from which nothing more is expected.
impl Flows {
    /// Makes room of a flow that needs no whole flow any more, and has nothing left. Returns
    /// whether it did.
    pub fn shelve(&mut self, cx: &Context, id: FlowId, kept: Kept) -> bool {
        let Flows { groups, wheel, .. } = self;
        let Some(group) = groups[usize::from(id.group)].as_mut() else { return false };
        let Some(was) = group.shelve(id, kept, cx.now_us) else { return false };
        schedule_shelf(wheel, group, cx.now_us);
        if was != Ending::TimeWait {
            self.count_ending(cx, was, -1);
            self.count_ending(cx, Ending::TimeWait, 1);
        }
        true
    }

    /// The connection on the shelf with this tuple, and its number.
    #[inline]
    pub fn kept(&self, group: usize, hash: u64, tuple: &FlowTuple) -> Option<(u32, &Kept)> {
        let shelf = self.groups[group].as_ref()?.shelf();
        let number = shelf.find(hash, tuple)?;
        Some((number, shelf.get(number)?))
    }

    /// Makes a whole flow of a connection on the shelf again. It may be one more than `flows_max`
    /// for the moment, and takes no other's place.
    #[cold]
    pub fn revive(&mut self, cx: &Context, group: usize, at: (u64, u32)) -> Option<FlowId> {
        let group = self.groups[group].as_mut()?;
        let Kept { wait, port, tos, .. } = *group.shelf().get(at.1)?;
        let tcb = wait.revive(&cx.shared.config.tcp, cx.now_us);
        let mut flow = Flow::new(tcb, at.0, port, Holder::Orphan, cx.now_us);
        flow.socket.ttl = cx.hop_limit(wait.tuple().remote);
        flow.socket.tos = tos;
        let id = group.insert(flow)?;
        group.unshelve(at, |tuple| cx.shared.flow_hash.hash(tuple));
        group.recount(id, Ending::TimeWait, cx.now_us);
        Some(id)
    }

    /// Ends a connection on the shelf.
    pub fn remove_kept(&mut self, cx: &Context, group: usize, at: (u64, u32)) {
        let hash_of = |tuple: &FlowTuple| cx.shared.flow_hash.hash(tuple);
        let group = self.groups[group].as_mut();
        let kept = group.and_then(|group| group.unshelve(at, hash_of));
        self.count_kept_out(cx, kept);
    }

    fn remove_oldest_kept(&mut self, cx: &Context, group: u16) {
        let hash_of = |tuple: &FlowTuple| cx.shared.flow_hash.hash(tuple);
        let group = self.groups[usize::from(group)].as_mut();
        let kept = group.and_then(|group| group.unshelve_oldest(hash_of));
        self.count_kept_out(cx, kept);
    }

    fn count_kept_out(&mut self, cx: &Context, kept: Option<Kept>) {
        let Some(kept) = kept else { return };
        let port = kept.wait.tuple().local_port;
        cx.shared.claims.flow_ends(&cx.shared.updates.source, port, cx.now_us);
        self.count_ending(cx, Ending::TimeWait, -1);
        let counters = &cx.metrics.counters;
        self.count -= 1;
        counters.flows.set(self.count as u64);
        counters.closed.add(1);
    }

    /// The wheel has come to a shelf: ends those whose time has come, some of them.
    pub fn end_kept(&mut self, cx: &Context, id: FlowId) {
        let number = usize::from(id.group);
        if self.groups.get(number).is_none_or(Option::is_none) {
            return;
        }
        for _ in 0..KEPT_AT_ONCE {
            let oldest = self.groups[number].as_ref().and_then(|group| group.shelf().oldest());
            if oldest.is_none_or(|kept| kept.wait.ends_us(cx.now_us) > cx.now_us) {
                break;
            }
            self.remove_oldest_kept(cx, id.group);
        }
        let Flows { groups, wheel, .. } = self;
        if let Some(group) = groups[number].as_mut() {
            group.shelf_mut().alarm_us = u64::MAX;
            schedule_shelf(wheel, group, cx.now_us);
        }
    }
}

/// Makes sure that the wheel looks at the shelf when its oldest connection ends, at the latest.
fn schedule_shelf(wheel: &mut Wheel, group: &mut FlowGroup, now_us: u64) {
    let id = FlowId::shelf_of(group.id());
    let shelf = group.shelf_mut();
    let Some(ends_us) = shelf.oldest().map(|kept| kept.wait.ends_us(now_us)) else { return };
    if ends_us < shelf.alarm_us {
        shelf.alarm_us = ends_us;
        wheel.insert(ends_us, id.handle());
    }
}

/// Groups that arrive and leave.
impl Flows {
    /// Counts flows that arrive or leave with their groups.
    fn count_moved(&mut self, cx: &Context, flows: i64, orphans: i64, time_wait: i64) {
        self.count = self.count.saturating_add_signed(flows as isize);
        self.count_ending(cx, Ending::Orphan, orphans);
        self.count_ending(cx, Ending::TimeWait, time_wait);
        let counters = &cx.metrics.counters;
        counters.flows.set(self.count as u64);
        counters.flows_peak.raise(self.count as u64);
    }

    /// Removes groups.
    #[allow(clippy::vec_box, reason = "threads own groups as boxes, which move")]
    pub fn take_groups(&mut self, cx: &Context, groups: &GroupSet) -> Vec<Box<FlowGroup>> {
        let boxes: Vec<_> = groups.iter().filter_map(|group| self.groups[group].take()).collect();
        let flows: usize = boxes.iter().map(|group| group.flows()).sum();
        let time_wait: u32 = boxes.iter().map(|group| group.time_wait).sum();
        let orphans: u32 = boxes.iter().map(|group| group.orphans).sum();
        self.count_moved(cx, -(flows as i64), -i64::from(orphans), -i64::from(time_wait));
        boxes
    }

    /// Adds a group.
    pub fn put_group(&mut self, cx: &Context, group: Box<FlowGroup>) {
        let (orphans, time_wait) = (i64::from(group.orphans), i64::from(group.time_wait));
        self.count_moved(cx, group.flows() as i64, orphans, time_wait);
        let number = usize::from(group.id());
        if let Some(sweep) = &mut self.sweep {
            sweep.groups.remove(number);
        }
        self.oldest.forget();
        self.groups[number] = Some(group);
    }

    /// Whether flows that have arrived, or entries of those that have left, need further steps.
    #[inline]
    pub fn is_unsettled(&self) -> bool {
        self.sweep.is_some() || !self.relink.is_empty()
    }

    /// Starts entering the flows of these groups in the wheel.
    pub fn relink(&mut self, groups: &GroupSet) {
        self.relink.extend(groups.iter().map(|group| Relink { group, next: 0 }));
    }

    /// Enters some arrived flows in the wheel, and removes some entries of flows that have left.
    #[cold]
    pub fn settle(&mut self, now_us: u64) {
        let mut budget = RELINKS;
        while budget > 0 {
            let Some(mut relink) = self.relink.pop_front() else { break };
            if !self.relink_some(&mut relink, &mut budget, now_us) {
                self.relink.push_front(relink);
            }
        }
        let Some(Sweep { groups, cursor }) = &mut self.sweep else { return };
        let gone = |token: u64| groups.contains(usize::from(FlowId::from_handle(token).group));
        if self.wheel.sweep(cursor, SWEEP_ENTRIES, gone) {
            self.sweep = None;
        }
    }

    /// To be called when groups leave again: enters their flows in the wheel at once.
    pub fn finish_relink(&mut self, groups: &GroupSet, now_us: u64) {
        for mut relink in std::mem::take(&mut self.relink) {
            if groups.contains(relink.group) {
                while !self.relink_some(&mut relink, &mut usize::MAX.clone(), now_us) {}
            } else {
                self.relink.push_back(relink);
            }
        }
    }

    /// Returns whether all flows of the group are done.
    fn relink_some(&mut self, relink: &mut Relink, budget: &mut usize, now_us: u64) -> bool {
        let Flows { groups, wheel, .. } = self;
        let Some(group) = groups[relink.group].as_mut() else { return true };
        if relink.next == 0 {
            group.shelf_mut().alarm_us = u64::MAX;
            schedule_shelf(wheel, group, now_us);
        }
        while *budget > 0 && relink.next < group.slots() {
            group.prefetch_slot(relink.next + FLOWS_AHEAD as u32);
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

    /// Starts removing the wheel's entries of these groups.
    pub fn begin_sweep(&mut self, groups: &GroupSet) {
        let unfinished = self.sweep.take().map_or(GroupSet::EMPTY, |sweep| sweep.groups);
        let groups = groups.iter().chain(unfinished.iter()).collect();
        self.sweep = Some(Sweep { groups, cursor: SweepCursor::default() });
    }
}

/// Puts a flow on the list of those that need `output` in this cycle.
#[inline]
pub(crate) fn touch(touched: &mut Vec<FlowId>, socket: &mut TcpSocket) {
    if !socket.touched {
        socket.touched = true;
        touched.push(socket.id());
    }
}

/// The flow with a name, if its group is here and the name is not stale.
#[inline]
pub(crate) fn flow_of(groups: &mut [Option<Box<FlowGroup>>], id: FlowId) -> Option<&mut Flow> {
    groups.get_mut(usize::from(id.group))?.as_mut()?.get(id)
}

/// The same, and when the wheel will check it.
#[inline]
pub(crate) fn flow_and_alarm(
    groups: &mut [Option<Box<FlowGroup>>],
    id: FlowId,
) -> Option<(&mut Flow, &mut u64)> {
    groups.get_mut(usize::from(id.group))?.as_mut()?.get_with_alarm(id)
}

/// Makes sure that the wheel checks the flow at its earliest deadline at the latest.
#[inline]
pub(crate) fn schedule(wheel: &mut Wheel, flow: &Flow, alarm_us: &mut u64) {
    let deadline_us = flow.tcb.deadline();
    if deadline_us < *alarm_us {
        *alarm_us = deadline_us;
        #[cfg(feature = "planted")]
        if deadline_us.is_multiple_of(16) && ix_tcp::planted::is(ix_tcp::planted::Bug::LostTimer) {
            return;
        }
        wheel.insert(deadline_us, flow.socket.handle);
    }
}
