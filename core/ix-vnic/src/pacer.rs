//! Pacing of single flows. Each flow has its own clock, and packets wait on a wheel of departure
//! times (Saeed et al., *Carousel*, SIGCOMM '17) with slots of 16 µs.
//!
//! A packet may leave when the time that the flow's last packet costs at this rate has passed.
//! After an idle time only one packet may leave at once. A hash into a table of fixed size tells
//! flows apart: two flows with the same entry share one rate. Nothing is allocated after
//! [`Pacer::new`].
use crate::header::Header;
use crate::rate::Rate;

/// One slot of the wheel, ns.
const SLOT_NS: u64 = 1 << 14;
/// One turn of the wheel is 16.8 ms. A packet that leaves later stays for another turn.
const SLOTS: u64 = 1024;
/// Number of flow clocks.
const FLOWS: usize = 4096;
const NONE: u16 = u16::MAX;

/// A rate for each flow of a queue, and the packets that wait for their departure time.
#[derive(Debug)]
pub struct Pacer<T> {
    rate: Rate,
    /// When each flow's next packet may leave, ns.
    clocks: Box<[u64]>,
    /// The slot after that of each flow's last waiting packet. A slot is taken out a little after
    /// the time of its packets; until this slot no other packet of the flow may leave.
    past: Box<[u64]>,
    /// First and last entry of each slot.
    slots: Box<[(u16, u16)]>,
    entries: Box<[Entry<T>]>,
    /// First entry of the list of free entries.
    free: u16,
    waiting: usize,
    /// All slots before this one, counted from time 0, are empty.
    hand: u64,
}

#[derive(Debug)]
struct Entry<T> {
    item: Option<T>,
    /// The slot in which the packet leaves, counted from time 0.
    turn: u64,
    next: u16,
}

impl<T> Pacer<T> {
    /// A pacer without packets, with room for `room` of them (at most 65,535).
    pub fn new(rate: Rate, room: usize, now_ns: u64) -> Pacer<T> {
        let room = room.min(usize::from(NONE)) as u16;
        let next = |i: u16| if i + 1 < room { i + 1 } else { NONE };
        let entry = |i| Entry { item: None, turn: 0, next: next(i) };
        Pacer {
            rate,
            clocks: vec![0; FLOWS].into(),
            past: vec![0; FLOWS].into(),
            slots: vec![(NONE, NONE); SLOTS as usize].into(),
            entries: (0..room).map(entry).collect(),
            free: if room > 0 { 0 } else { NONE },
            waiting: 0,
            hand: now_ns / SLOT_NS,
        }
    }

    /// Number of waiting packets.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Takes a packet of a flow. It may leave now, wait, or be lost because there is no room.
    pub fn offer(&mut self, flow: u64, bytes: usize, now_ns: u64, item: T) -> Offered<T> {
        let flow = flow as usize % FLOWS;
        let clock = &mut self.clocks[flow];
        let due_ns = (*clock).max(now_ns);
        let is_behind = self.waiting > 0 && self.past[flow] > self.hand;
        let is_first = *clock <= now_ns && !is_behind;
        if !is_first && self.free == NONE {
            return Offered::Lost(item);
        }
        *clock = due_ns.saturating_add(cost_ns(self.rate, bytes));
        if is_first {
            return Offered::Leaves(item);
        }
        if self.waiting == 0 {
            self.hand = now_ns / SLOT_NS;
        }
        let index = self.free;
        let earlier = if is_behind { self.past[flow] - 1 } else { 0 };
        let turn = due_ns.div_ceil(SLOT_NS).max(earlier);
        self.past[flow] = turn + 1;
        let entry = &mut self.entries[usize::from(index)];
        self.free = entry.next;
        (entry.item, entry.turn) = (Some(item), turn);
        self.waiting += 1;
        self.append(index);
        Offered::Waits
    }

    /// Returns the next packet that may leave at `now_ns`.
    pub fn take(&mut self, now_ns: u64) -> Option<T> {
        let now = now_ns / SLOT_NS;
        if self.waiting == 0 {
            self.hand = self.hand.max(now);
            return None;
        }
        while self.hand <= now {
            let slot = (self.hand % SLOTS) as usize;
            let mut index = self.slots[slot].0;
            let mut before = NONE;
            while index != NONE {
                let entry = &mut self.entries[usize::from(index)];
                if entry.turn <= self.hand {
                    let item = entry.item.take();
                    self.unlink(slot, before, index);
                    return item;
                }
                // It stays for another turn of the wheel.
                (before, index) = (index, entry.next);
            }
            if self.hand == now {
                return None;
            }
            self.hand += 1;
        }
        None
    }

    /// Time of the next departure, ns, or a little earlier; `None` if no packet waits.
    pub fn due_ns(&self) -> Option<u64> {
        if self.waiting == 0 {
            return None;
        }
        let full = |n: &u64| self.slots[(n % SLOTS) as usize].0 != NONE;
        let slot = (self.hand..self.hand + SLOTS).find(full)?;
        Some(slot * SLOT_NS)
    }

    /// Returns all waiting packets, in the order of their departure times.
    pub fn drain(&mut self) -> Vec<T> {
        let mut all = Vec::new();
        while self.waiting > 0 {
            let last = self.entries.iter().filter(|e| e.item.is_some()).map(|e| e.turn).max();
            match self.take(last.unwrap_or(0).max(self.hand) * SLOT_NS) {
                Some(item) => all.push(item),
                None => break,
            }
        }
        all
    }

    /// Returns the waiting packets that `wanted` selects, in the order of their departure times.
    /// The others keep theirs.
    pub fn extract(&mut self, wanted: impl Fn(&T) -> bool) -> Vec<T> {
        let hand = self.hand;
        let mut turns: Vec<u64> =
            self.entries.iter().filter(|e| e.item.is_some()).map(|e| e.turn).collect();
        turns.sort_unstable();
        let all = self.drain();
        self.hand = hand;
        let mut out = Vec::new();
        for (turn, item) in turns.into_iter().zip(all) {
            if wanted(&item) {
                out.push(item);
                continue;
            }
            let index = self.free;
            let entry = &mut self.entries[usize::from(index)];
            self.free = entry.next;
            (entry.item, entry.turn) = (Some(item), turn);
            self.waiting += 1;
            self.append(index);
        }
        out
    }

    fn append(&mut self, index: u16) {
        let turn = self.entries[usize::from(index)].turn.max(self.hand);
        let slot = &mut self.slots[(turn % SLOTS) as usize];
        self.entries[usize::from(index)].next = NONE;
        match slot.1 {
            NONE => slot.0 = index,
            last => self.entries[usize::from(last)].next = index,
        }
        slot.1 = index;
    }

    fn unlink(&mut self, slot: usize, before: u16, index: u16) {
        let next = self.entries[usize::from(index)].next;
        match before {
            NONE => self.slots[slot].0 = next,
            before => self.entries[usize::from(before)].next = next,
        }
        if self.slots[slot].1 == index {
            self.slots[slot].1 = before;
        }
        self.entries[usize::from(index)].next = self.free;
        self.free = index;
        self.waiting -= 1;
    }
}

/// The result of [`Pacer::offer`].
#[derive(Debug, PartialEq, Eq)]
pub enum Offered<T> {
    /// It may leave now.
    Leaves(T),
    /// It waits for its departure time.
    Waits,
    /// There is no room for it.
    Lost(T),
}

/// The time that a packet takes at this rate, ns.
fn cost_ns(rate: Rate, bytes: usize) -> u64 {
    let by_bits = rate.bits_per_s.map_or(0, |r| bytes as u64 * 8_000_000_000 / r.max(1));
    by_bits.max(rate.packets_per_s.map_or(0, |r| 1_000_000_000 / r.max(1)))
}

/// A hash of the packet's flow; `None` if it is not TCP or UDP.
pub fn flow_of(header: &Header) -> Option<u64> {
    let ip = header.ip?;
    let (src_port, dst_port) = ip.ports?;
    let half = |ip: u128| (ip >> 64) as u64 ^ ip as u64;
    let mut hash = half(ip.src).rotate_left(32) ^ half(ip.dst);
    hash ^= (u64::from(src_port) << 40 | u64::from(dst_port) << 16 | u64::from(ip.protocol))
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // The finaliser of SplitMix64: every bit of the result depends on every bit of the input.
    hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    Some(hash ^ hash >> 31)
}
