//! Timers of the application: bounded in number, fired once, named by slot and generation.
//!
//! Programs cancel most of their timers: each request sets one, and its reply cancels it. So these
//! are not in the wheel, in which what was cancelled stays until its time comes, but in a heap from
//! which each can be removed. What is here is what is set, however often a program sets and
//! cancels.
use ix_proto::crossing::AttachmentId;

/// Children of an entry of the heap: four of them are in two cache lines.
const ARITY: usize = 4;
/// Place of a timer that is set and not in the heap.
const OUTSIDE: u32 = u32::MAX;

/// Application timers of one elastic thread.
pub struct AppTimers {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// An implicit heap: the first entry is due first.
    heap: Vec<Entry>,
    /// Number of timers that were ever set: of two that are due together, the older one fires
    /// first.
    serial: u64,
    max: usize,
    armed: usize,
}

struct Slot {
    generation: u32,
    armed: Option<Armed>,
}

/// A timer that is set.
#[derive(Clone, Copy)]
struct Armed {
    owner: AttachmentId,
    cookie: u64,
    /// Its place in the heap, or [`OUTSIDE`] while it is put off.
    at: u32,
}

#[derive(Clone, Copy)]
struct Entry {
    deadline_us: u64,
    serial: u64,
    slot: u32,
}

impl Entry {
    fn is_before(&self, other: &Entry) -> bool {
        (self.deadline_us, self.serial) < (other.deadline_us, other.serial)
    }
}

impl AppTimers {
    /// No timers yet, at most `max`.
    pub fn new(max: usize) -> AppTimers {
        let (slots, free, heap) = (Vec::new(), Vec::new(), Vec::new());
        AppTimers { slots, free, heap, serial: 0, max, armed: 0 }
    }

    /// Number of set timers.
    pub fn armed(&self) -> usize {
        self.armed
    }

    /// Sets a timer of a process; returns its id, or `None` if there are too many.
    pub fn set(&mut self, owner: AttachmentId, cookie: u64, deadline_us: u64) -> Option<u64> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < self.max => {
                self.slots.push(Slot { generation: 1, armed: None });
                self.slots.len() as u32 - 1
            }
            None => return None,
        };
        let slot = &mut self.slots[index as usize];
        slot.armed = Some(Armed { owner, cookie, at: OUTSIDE });
        let id = u64::from(slot.generation) << 24 | u64::from(index);
        self.armed += 1;
        self.push(index, deadline_us);
        Some(id)
    }

    /// Stops a timer; false if the process has no such timer any more.
    pub fn cancel(&mut self, owner: AttachmentId, id: u64) -> bool {
        let Some(armed) = self.find(id).filter(|armed| armed.owner == owner) else { return false };
        self.remove(armed.at);
        self.release(id);
        true
    }

    /// When the next timer is due, µs.
    pub fn next_deadline_us(&self) -> Option<u64> {
        self.heap.first().map(|entry| entry.deadline_us)
    }

    /// The process and the id of the next timer that is due at `now_us`.
    pub fn due(&self, now_us: u64) -> Option<(AttachmentId, u64)> {
        let entry = self.heap.first().filter(|entry| entry.deadline_us <= now_us)?;
        let slot = &self.slots[entry.slot as usize];
        let id = u64::from(slot.generation) << 24 | u64::from(entry.slot);
        Some((slot.armed?.owner, id))
    }

    /// Ends a timer that is due; returns its cookie.
    pub fn fire(&mut self, id: u64) -> Option<u64> {
        let armed = self.find(id)?;
        self.remove(armed.at);
        self.release(id);
        Some(armed.cookie)
    }

    /// Takes a timer out until [`Self::resume`]. It stays set.
    pub fn put_off(&mut self, id: u64) {
        let Some(armed) = self.find(id) else { return };
        self.remove(armed.at);
        self.place_at(id as u32 & 0xff_ffff, OUTSIDE);
    }

    /// Makes a timer that was put off due at `now_us`, if it is still set.
    pub fn resume(&mut self, id: u64, now_us: u64) {
        if self.find(id).is_some_and(|armed| armed.at == OUTSIDE) {
            self.push(id as u32 & 0xff_ffff, now_us);
        }
    }

    /// Stops all timers of a process.
    pub fn clear(&mut self, owner: AttachmentId) {
        for index in 0..self.slots.len() {
            let id = u64::from(self.slots[index].generation) << 24 | index as u64;
            self.cancel(owner, id);
        }
    }

    fn find(&self, id: u64) -> Option<Armed> {
        let slot = self.slots.get((id & 0xff_ffff) as usize)?;
        slot.armed.filter(|_| u64::from(slot.generation) == id >> 24)
    }

    fn release(&mut self, id: u64) {
        let index = id as u32 & 0xff_ffff;
        let slot = &mut self.slots[index as usize];
        slot.armed = None;
        slot.generation = slot.generation.wrapping_add(1).max(1);
        self.free.push(index);
        self.armed -= 1;
    }
}

/// The heap.
impl AppTimers {
    fn push(&mut self, slot: u32, deadline_us: u64) {
        self.serial += 1;
        self.heap.push(Entry { deadline_us, serial: self.serial, slot });
        self.rise(self.heap.len() - 1);
    }

    /// Removes the entry at a place of the heap; nothing at [`OUTSIDE`].
    fn remove(&mut self, at: u32) {
        let at = at as usize;
        if at >= self.heap.len() {
            return;
        }
        self.heap.swap_remove(at);
        if at < self.heap.len() {
            self.rise(at);
            self.sink(at);
        }
    }

    /// Moves the entry at `at` up until its parent is due before it.
    fn rise(&mut self, mut at: usize) {
        let entry = self.heap[at];
        while at > 0 && entry.is_before(&self.heap[(at - 1) / ARITY]) {
            self.put(at, self.heap[(at - 1) / ARITY]);
            at = (at - 1) / ARITY;
        }
        self.put(at, entry);
    }

    /// Moves the entry at `at` down until it is due before its children.
    fn sink(&mut self, mut at: usize) {
        let entry = self.heap[at];
        loop {
            let first = at * ARITY + 1;
            let children = first..(first + ARITY).min(self.heap.len());
            let next = children.reduce(|a, b| match self.heap[b].is_before(&self.heap[a]) {
                true => b,
                false => a,
            });
            let Some(next) = next.filter(|next| self.heap[*next].is_before(&entry)) else { break };
            self.put(at, self.heap[next]);
            at = next;
        }
        self.put(at, entry);
    }

    fn put(&mut self, at: usize, entry: Entry) {
        self.heap[at] = entry;
        self.place_at(entry.slot, at as u32);
    }

    fn place_at(&mut self, slot: u32, at: u32) {
        if let Some(armed) = &mut self.slots[slot as usize].armed {
            armed.at = at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn ids_go_stale_and_the_number_is_bounded() {
        let mut timers = AppTimers::new(2);
        let a = timers.set(0, 7, 10).unwrap();
        let b = timers.set(1, 8, 10).unwrap();
        assert_eq!(timers.set(0, 9, 10), None);
        assert!(!timers.cancel(1, a), "of another process");
        assert!(timers.cancel(0, a) && !timers.cancel(0, a));
        let c = timers.set(0, 9, 10).unwrap();
        assert_ne!(a, c);
        assert_eq!((timers.fire(a), timers.fire(c), timers.fire(c)), (None, Some(9), None));
        assert_eq!((timers.due(9), timers.due(10)), (None, Some((1, b))));
        assert_eq!(timers.fire(b), Some(8));
        for hostile in [0, 1, u64::MAX, 1 << 24, 0xff_ffff] {
            assert!(!timers.cancel(0, hostile));
        }
        assert_eq!((timers.armed(), timers.next_deadline_us()), (0, None));
        let d = timers.set(0, 7, 10).unwrap();
        let e = timers.set(1, 7, 10).unwrap();
        timers.clear(0);
        assert_eq!((timers.armed(), timers.fire(d)), (1, None));
        assert!(timers.set(0, 7, 10).is_some() && timers.fire(e).is_some());
    }

    #[test]
    fn what_is_put_off_is_set_and_not_due() {
        let mut timers = AppTimers::new(2);
        let a = timers.set(0, 7, 10).unwrap();
        timers.put_off(a);
        assert_eq!((timers.armed(), timers.due(99), timers.next_deadline_us()), (1, None, None));
        timers.resume(a, 50);
        timers.resume(a, 60);
        assert_eq!((timers.due(49), timers.due(50)), (None, Some((0, a))));
        timers.put_off(a);
        assert!(timers.cancel(0, a));
        timers.resume(a, 50);
        assert_eq!((timers.armed(), timers.due(99)), (0, None));
    }

    /// A program sets and cancels as often as it likes: nothing of that stays.
    #[test]
    fn cancelled_timers_leave_nothing() {
        let mut timers = AppTimers::new(100);
        let kept = timers.set(0, 1, 1_000).unwrap();
        for far_us in 0..100_000 {
            let id = timers.set(0, 2, u64::MAX - far_us).unwrap();
            assert!(timers.cancel(0, id));
        }
        assert_eq!((timers.heap.len(), timers.slots.len()), (1, 2));
        assert_eq!(timers.due(1_000), Some((0, kept)));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Set(u64),
        Cancel(usize),
        PutOff(usize),
        Resume(usize, u64),
        Fire(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0u64..50).prop_map(Step::Set),
            2 => any::<usize>().prop_map(Step::Cancel),
            1 => any::<usize>().prop_map(Step::PutOff),
            1 => (any::<usize>(), 0u64..50).prop_map(|(which, at)| Step::Resume(which, at)),
            3 => (0u64..50).prop_map(Step::Fire),
        ]
    }

    proptest! {
        /// Fires what a sorted map of (deadline, order of setting) would fire.
        #[test]
        fn does_what_a_sorted_map_does(steps in prop::collection::vec(step(), 1..200)) {
            let mut timers = AppTimers::new(30);
            let mut map = BTreeMap::new();
            let mut off = Vec::new();
            let mut serial = 0;
            for step in steps {
                serial += 1;
                let nth = |which: usize| map.iter().nth(which % map.len().max(1));
                match step {
                    Step::Set(at) => match timers.set(3, serial, at) {
                        Some(id) => drop(map.insert((at, serial), id)),
                        None => prop_assert_eq!(map.len() + off.len(), 30),
                    },
                    Step::Cancel(which) => {
                        if let Some((&key, &id)) = nth(which) {
                            prop_assert!(timers.cancel(3, id));
                            map.remove(&key);
                        }
                    }
                    Step::PutOff(which) => {
                        if let Some((&key, &id)) = nth(which) {
                            timers.put_off(id);
                            map.remove(&key);
                            off.push(id);
                        }
                    }
                    Step::Resume(which, at) if !off.is_empty() => {
                        let id = off.swap_remove(which % off.len());
                        timers.resume(id, at);
                        map.insert((at, serial), id);
                    }
                    Step::Resume(..) => {}
                    Step::Fire(at) => {
                        while let Some((owner, id)) = timers.due(at) {
                            prop_assert_eq!(owner, 3);
                            prop_assert_eq!(map.pop_first().map(|(_, id)| id), Some(id));
                            prop_assert!(timers.fire(id).is_some());
                        }
                        prop_assert!(map.first_key_value().is_none_or(|((due, _), _)| *due > at));
                    }
                }
                prop_assert_eq!(timers.armed(), map.len() + off.len());
                let next = map.first_key_value().map(|((due, _), _)| *due);
                prop_assert_eq!(timers.next_deadline_us(), next);
            }
        }
    }
}
