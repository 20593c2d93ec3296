//! A flow group: all flows with the same RSS index, as one value that an elastic thread owns and
//! that moves to another thread as a whole.
use crate::flows::flow::{Ending, Flow};
use crate::flows::handle::{FlowId, SLOTS_MAX};
use crate::flows::shelf::{Kept, Shelf};
use crate::flows::table::FlowTable;
use ix_mem::prefetch_read;
use ix_wire::FlowTuple;
use std::collections::VecDeque;

/// Slots are made in chunks, so that a flow never moves and a reused slot needs no allocation.
const CHUNK: usize = 16;

/// No slot: the end of the list of free ones.
const NO_SLOT: u32 = u32::MAX;

/// Flows of one group: slots with generations, and the table that finds them by tuple.
pub struct FlowGroup {
    id: u16,
    chunks: Vec<Box<[Slot; CHUNK]>>,
    made: u32,
    /// The first free slot of those made, or [`NO_SLOT`]; each names the next one. And how many
    /// there are.
    free: u32,
    free_count: u32,
    /// The generation of slots that are made: above that of every name that was ever given.
    fresh: u32,
    table: FlowTable,
    /// Number of flows in TIME-WAIT, with those on the shelf.
    pub time_wait: u32,
    /// Number of flows without a holder that are not in TIME-WAIT.
    pub orphans: u32,
    /// The flows that have entered TIME-WAIT, oldest first. Some have ended since.
    waiting: VecDeque<Waiting>,
    shelf: Shelf,
}

/// A flow that has entered TIME-WAIT.
#[derive(Clone, Copy)]
struct Waiting {
    since_us: u64,
    slot: u32,
    generation: u32,
}

/// A slot. Whether a timer is current can be seen without touching the flow.
#[repr(C)]
struct Slot {
    generation: u32,
    /// Of a free slot that was used: the next such one, or [`NO_SLOT`].
    next_free: u32,
    /// When the wheel will check the flow (µs; `u64::MAX`: never).
    alarm_us: u64,
    flow: Option<Flow>,
}

/// Much of what an idle connection costs; a test adds the rest.
const _: () = assert!(size_of::<Slot>() <= 432);

impl Slot {
    const fn free(generation: u32) -> Slot {
        Slot { generation, next_free: NO_SLOT, alarm_us: u64::MAX, flow: None }
    }
}

/// A chunk of free slots; made in place, because it is long.
fn chunk(generation: u32) -> Box<[Slot; CHUNK]> {
    let slots: Box<[Slot]> = (0..CHUNK).map(|_| Slot::free(generation)).collect();
    match slots.try_into() {
        Ok(chunk) => chunk,
        Err(_) => unreachable!("it has that length"),
    }
}

/// Number of cache lines of a flow that are prefetched: those that the common path uses.
const LINES_AHEAD: usize = 7;

/// Prefetches a flow. There need not be one any more.
#[inline]
pub fn prefetch_flow(start: *const u8) {
    for line in 0..LINES_AHEAD {
        prefetch_read(start.wrapping_add(64 * line));
    }
}

impl FlowGroup {
    /// An empty group.
    pub fn new(id: u16) -> FlowGroup {
        FlowGroup {
            id,
            chunks: Vec::new(),
            made: 0,
            free: NO_SLOT,
            free_count: 0,
            fresh: 1,
            table: FlowTable::new(),
            time_wait: 0,
            orphans: 0,
            waiting: VecDeque::new(),
            shelf: Shelf::new(),
        }
    }

    /// Its number.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// Number of flows, with those on the shelf.
    pub fn flows(&self) -> usize {
        (self.made - self.free_count) as usize + self.shelf.len()
    }

    /// All flows are in slots below this number.
    pub fn slots(&self) -> u32 {
        self.made
    }

    /// Number of slots that could be given back: all but one chunk beside those in use, if they are
    /// more than half.
    pub fn spare(&self) -> usize {
        let spare = (self.free_count as usize).saturating_sub(CHUNK);
        if spare > self.flows() { spare } else { 0 }
    }

    /// Gives back the memory of slots behind the last flow. Names of flows that were there stay
    /// stale.
    pub fn give_back(&mut self) {
        let in_use = |chunk: &[Slot]| chunk.iter().any(|slot| slot.flow.is_some());
        let last = self.chunks.iter().rposition(|chunk| in_use(&chunk[..]));
        let kept = last.map_or(0, |last| last + 1);
        for slot in self.chunks[kept..].iter().flat_map(|chunk| chunk.iter()) {
            self.fresh = self.fresh.max(slot.generation);
        }
        self.chunks.truncate(kept);
        self.made = self.made.min((kept * CHUNK) as u32);
        self.chunks.shrink_to_fit();
        self.link_free();
    }

    /// Makes the list of free slots anew, the first of them first.
    fn link_free(&mut self) {
        (self.free, self.free_count) = (NO_SLOT, 0);
        for slot in (0..self.made).rev() {
            if self.slot(slot).flow.is_none() {
                self.free(slot);
            }
        }
    }

    /// Puts a slot in front of the free ones.
    #[inline]
    fn free(&mut self, slot: u32) {
        let next = self.free;
        if let Some(entry) = self.slot_mut(slot) {
            entry.next_free = next;
            self.free = slot;
            self.free_count += 1;
        }
    }

    /// The slot of the flow with this tuple.
    #[inline]
    pub fn find(&self, hash: u64, tuple: &FlowTuple) -> Option<u32> {
        self.table.find(hash, |slot| {
            self.slot(slot).flow.as_ref().is_some_and(|f| f.tcb.tuple() == tuple)
        })
    }

    /// Prefetches the table's line for this hash.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        self.table.prefetch(hash);
    }

    /// The slot that probably has the flow of this hash, and its address, for prefetching.
    #[inline]
    pub fn guess(&self, hash: u64) -> Option<(u32, *const u8)> {
        let slot = self.table.find(hash, |_| true)?;
        Some((slot, (&raw const *self.slot(slot)).cast()))
    }

    /// Prefetches a slot, if it exists.
    #[inline]
    pub fn prefetch_slot(&self, slot: u32) {
        if let Some(slot) = self.slot_if_any(slot) {
            prefetch_flow((&raw const *slot).cast());
        }
    }

    /// Whether the flow in a slot, if there is one, has this tuple.
    #[inline]
    pub fn is(&self, slot: u32, tuple: &FlowTuple) -> bool {
        let flow = self.slot_if_any(slot).and_then(|slot| slot.flow.as_ref());
        flow.is_some_and(|flow| flow.tcb.tuple() == tuple)
    }

    #[inline]
    fn slot(&self, slot: u32) -> &Slot {
        &self.chunks[slot as usize / CHUNK][slot as usize % CHUNK]
    }

    #[inline]
    fn slot_if_any(&self, slot: u32) -> Option<&Slot> {
        self.chunks.get(slot as usize / CHUNK).map(|chunk| &chunk[slot as usize % CHUNK])
    }

    #[inline]
    fn slot_mut(&mut self, slot: u32) -> Option<&mut Slot> {
        self.chunks.get_mut(slot as usize / CHUNK).map(|chunk| &mut chunk[slot as usize % CHUNK])
    }

    fn free_slot(&mut self) -> Option<u32> {
        if self.free != NO_SLOT {
            let slot = self.free;
            self.free = self.slot(slot).next_free;
            self.free_count -= 1;
            return Some(slot);
        }
        // The last one stands for the shelf.
        if self.made == SLOTS_MAX - 1 {
            return None;
        }
        let slot = self.made;
        if (slot as usize).is_multiple_of(CHUNK) {
            self.chunks.push(chunk(self.fresh));
        }
        self.made += 1;
        Some(slot)
    }

    /// Adds a flow; `None` if the group is full.
    #[inline]
    pub fn insert(&mut self, mut flow: Flow) -> Option<FlowId> {
        let hash = flow.socket.hash();
        let slot = self.free_slot()?;
        let id = self.id_of(slot);
        flow.socket.handle = id.handle();
        let entry = self.slot_mut(slot)?;
        (entry.alarm_us, entry.flow) = (u64::MAX, Some(flow));
        self.table.insert(hash, slot);
        Some(id)
    }

    /// The name of the flow in a slot.
    pub fn id_of(&self, slot: u32) -> FlowId {
        FlowId { group: self.id, slot, generation: self.slot(slot).generation }
    }

    /// The flow in a slot, read-only.
    pub fn peek(&self, slot: u32) -> Option<&Flow> {
        self.slot_if_any(slot)?.flow.as_ref()
    }

    /// The flow in a slot.
    #[inline]
    pub fn at(&mut self, slot: u32) -> Option<&mut Flow> {
        self.slot_mut(slot)?.flow.as_mut()
    }

    /// The flow with a name, unless the name is stale.
    #[inline]
    pub fn get(&mut self, id: FlowId) -> Option<&mut Flow> {
        let slot = self.slot_mut(id.slot)?;
        #[cfg(feature = "planted")]
        if ix_tcp::planted::is(ix_tcp::planted::Bug::StaleHandle) {
            return slot.flow.as_mut();
        }
        if slot.generation != id.generation {
            return None;
        }
        slot.flow.as_mut()
    }

    /// The flow with a name, unless the name is stale, and when the wheel will check it.
    #[inline]
    pub fn get_with_alarm(&mut self, id: FlowId) -> Option<(&mut Flow, &mut u64)> {
        let Slot { generation, alarm_us, flow, .. } = self.slot_mut(id.slot)?;
        if *generation != id.generation {
            return None;
        }
        flow.as_mut().map(|flow| (flow, alarm_us))
    }

    /// Whether the wheel's entry for this name is current at `now_us`. Timers are lazy: an entry
    /// that another one has replaced, or whose flow has ended, is ignored.
    #[inline]
    pub fn is_due(&self, id: FlowId, now_us: u64) -> bool {
        if id.is_shelf() {
            return self.shelf.alarm_us <= now_us;
        }
        let slot = self.slot_if_any(id.slot);
        slot.is_some_and(|s| s.generation == id.generation && s.alarm_us <= now_us)
    }

    /// Prefetches what [`Self::is_due`] reads.
    #[inline]
    pub fn prefetch_head(&self, slot: u32) {
        if let Some(slot) = self.slot_if_any(slot) {
            prefetch_read(slot);
        }
    }

    /// Removes a flow; its name is stale from now on. Returns which count it was in.
    #[inline]
    pub fn remove(&mut self, id: FlowId) -> Option<Ending> {
        let entry = self.slot_mut(id.slot).filter(|entry| entry.generation == id.generation)?;
        // A flow is large: it ends where it is.
        let (hash, ending) = entry.flow.as_ref().map(|f| (f.socket.hash(), f.socket.ending))?;
        entry.flow = None;
        entry.generation = FlowId::next_generation(entry.generation);
        self.table.remove(hash, id.slot);
        self.free(id.slot);
        self.count(ending, -1);
        if ending == Ending::TimeWait {
            self.drop_ended();
        }
        Some(ending)
    }

    #[inline]
    fn count(&mut self, ending: Ending, by: i32) {
        match ending {
            Ending::No => {}
            Ending::Orphan => self.orphans = self.orphans.saturating_add_signed(by),
            Ending::TimeWait => self.time_wait = self.time_wait.saturating_add_signed(by),
        }
    }

    /// Moves a flow to another count; returns the one that it was in.
    #[inline]
    pub fn recount(&mut self, id: FlowId, ending: Ending, now_us: u64) -> Option<Ending> {
        let was = core::mem::replace(&mut self.get(id)?.socket.ending, ending);
        self.count(was, -1);
        self.count(ending, 1);
        if ending == Ending::TimeWait {
            let FlowId { slot, generation, .. } = id;
            self.waiting.push_back(Waiting { since_us: now_us, slot, generation });
        }
        Some(was)
    }

    #[inline]
    fn still_waits(&self, waiting: &Waiting) -> bool {
        self.slot_if_any(waiting.slot).is_some_and(|slot| slot.generation == waiting.generation)
    }

    /// Drops entries of flows that have ended from the front of the list, and from all of it if
    /// they are more than half. (Ports that are used again end their flows in the middle of it.)
    fn drop_ended(&mut self) {
        while let Some(first) = self.waiting.front()
            && !self.still_waits(first)
        {
            self.waiting.pop_front();
        }
        if self.waiting.len() > 2 * self.time_wait as usize + CHUNK {
            let mut waiting = core::mem::take(&mut self.waiting);
            waiting.retain(|one| self.still_waits(one));
            self.waiting = waiting;
        }
        if self.waiting.capacity() > 4 * (self.waiting.len() + CHUNK) {
            self.waiting.shrink_to(2 * self.waiting.len());
        }
    }

    /// The flow that entered TIME-WAIT first, and when. It lasts for `time_wait_us`.
    pub fn oldest_waiting(&self, time_wait_us: u64, now_us: u64) -> Option<(u64, FlowId)> {
        let first = self.waiting.front().filter(|first| self.still_waits(first));
        let whole = first.map(|first| (first.since_us, self.id_of(first.slot)));
        let kept = self.shelf.oldest().map(|kept| {
            let since_us = kept.wait.ends_us(now_us).saturating_sub(time_wait_us);
            (since_us, FlowId::shelf_of(self.id))
        });
        match (whole, kept) {
            (Some(whole), Some(kept)) => Some(if kept.0 < whole.0 { kept } else { whole }),
            (whole, kept) => whole.or(kept),
        }
    }

    /// The connections in TIME-WAIT that need no whole flow.
    #[inline]
    pub fn shelf(&self) -> &Shelf {
        &self.shelf
    }

    /// The same, to be changed.
    #[inline]
    pub fn shelf_mut(&mut self) -> &mut Shelf {
        &mut self.shelf
    }

    /// Lays a flow on the shelf, and removes it: its name is stale from now on. Returns which count
    /// it was in; `None`: it has no place there, and stays as it is.
    pub fn shelve(&mut self, id: FlowId, kept: Kept, now_us: u64) -> Option<Ending> {
        let hash = self.get(id)?.socket.hash();
        if !self.shelf.push(hash, kept, now_us) {
            return None;
        }
        let was = self.remove(id);
        self.count(Ending::TimeWait, 1);
        was
    }

    /// Takes the oldest connection off the shelf.
    pub fn unshelve_oldest(&mut self, hash_of: impl Fn(&FlowTuple) -> u64) -> Option<Kept> {
        let kept = self.shelf.pop(hash_of)?;
        self.count(Ending::TimeWait, -1);
        Some(kept)
    }

    /// Takes a connection off the shelf.
    pub fn unshelve(
        &mut self,
        (hash, number): (u64, u32),
        hash_of: impl Fn(&FlowTuple) -> u64,
    ) -> Option<Kept> {
        let kept = self.shelf.take(hash, number, hash_of)?;
        self.count(Ending::TimeWait, -1);
        Some(kept)
    }

    /// Names of the flows that `wanted` selects.
    pub fn ids_where(&self, wanted: impl Fn(&Flow) -> bool) -> Vec<FlowId> {
        let picked = |slot: &u32| self.slot(*slot).flow.as_ref().is_some_and(&wanted);
        (0..self.made).filter(picked).map(|slot| self.id_of(slot)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flows::flow::Holder;
    use ix_tcp::{Config, Tcb};
    use ix_wire::{IpAddr, Seq};

    /// Enters some flows in TIME-WAIT, and removes them in another order.
    #[test]
    fn the_list_of_those_in_time_wait_becomes_small_again() {
        const FLOWS: u16 = 5_000;
        let mut group = FlowGroup::new(3);
        let config = Config::default();
        for _ in 0..2 {
            let ids: Vec<FlowId> = (0..FLOWS)
                .map(|port| {
                    let addr = IpAddr::v4([10, 0, 0, 1]);
                    let (local, remote) = (addr, addr);
                    let tuple = FlowTuple { local, remote, local_port: 1, remote_port: port };
                    let tcb = Tcb::connect(&config, tuple, Seq(1), 0, 0);
                    let flow = Flow::new(tcb, port.into(), 0, Holder::Orphan, 0);
                    let id = group.insert(flow).expect("room");
                    group.recount(id, Ending::TimeWait, port.into());
                    id
                })
                .collect();
            assert_eq!(group.waiting.len(), usize::from(FLOWS));
            for id in ids.iter().step_by(2).chain(ids.iter().skip(1).step_by(2)) {
                assert!(group.oldest_waiting(0, 0).is_some());
                group.remove(*id);
            }
            assert!(group.oldest_waiting(0, 0).is_none());
            assert!(group.waiting.capacity() < 16 * CHUNK, "{}", group.waiting.capacity());
        }
    }

    fn flow(port: u16) -> Flow {
        let addr = IpAddr::v4([10, 0, 0, 1]);
        let tuple = FlowTuple { local: addr, remote: addr, local_port: 1, remote_port: port };
        let tcb = Tcb::connect(&Config::default(), tuple, Seq(1), 0, 0);
        Flow::new(tcb, port.into(), 0, Holder::Orphan, 0)
    }

    #[test]
    fn slots_that_are_given_back_are_made_anew_and_old_names_stay_stale() {
        let mut group = FlowGroup::new(3);
        let all: Vec<FlowId> =
            (0..1000).map(|port| group.insert(flow(port)).expect("room")).collect();
        assert_eq!(group.spare(), 0);
        let (stay, end) = all.split_at(40);
        end.iter().for_each(|id| _ = group.remove(*id));
        assert!(group.spare() > 900);
        group.give_back();
        assert_eq!((group.spare(), group.slots(), group.flows()), (0, 48, 40));
        assert!(stay.iter().all(|id| group.get(*id).is_some()));
        assert!(all[40..].iter().all(|id| group.get(*id).is_none()));
        for port in 2000..3000 {
            let id = group.insert(flow(port)).expect("room");
            assert!(!all.contains(&id), "{id:?} is an old name");
        }
        assert!(all[40..].iter().all(|id| group.get(*id).is_none()));
        let now: Vec<FlowId> = group.ids_where(|_| true);
        now.into_iter().for_each(|id| _ = group.remove(id));
        group.give_back();
        assert_eq!((group.slots(), group.chunks.capacity(), group.spare()), (0, 0, 0));
    }

    #[test]
    fn a_connection_at_rest_costs_at_most_448_bytes() {
        // A slot, and its share of a table that is half full.
        let bytes = size_of::<Slot>() + 2 * size_of::<u64>();
        assert!(bytes <= 448, "{bytes}");
    }
}
