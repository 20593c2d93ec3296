//! The connections of one flow group in TIME-WAIT from which nothing more is expected: 64 bytes
//! each and an entry of a table, oldest first. A segment for one makes a whole flow of it again.
use crate::flows::table::FlowTable;
use ix_tcp::TimeWait;
use ix_wire::FlowTuple;
use std::collections::VecDeque;

/// Numbers of connections begin anew after this one: the table's have 32 bits, and not all of them.
const NUMBER_MAX: u32 = (1 << 31) - 1;
/// Room that is kept when a shelf becomes empty, and ended connections that stay in it.
const SPARE: usize = 16;

/// A connection on the shelf.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    /// Its state.
    pub wait: TimeWait,
    /// Its device.
    pub port: u8,
    /// Type of service of its packets, without the ECN bits.
    pub tos: u8,
    /// It has ended, before older ones.
    is_over: bool,
}

impl Kept {
    /// A connection that came through this device.
    pub fn new(wait: TimeWait, port: u8, tos: u8) -> Kept {
        Kept { wait, port, tos, is_over: false }
    }
}

/// Connections in the order in which they end.
pub struct Shelf {
    /// The first and the last one have not ended.
    kept: VecDeque<Kept>,
    /// The number of the first one.
    first: u32,
    /// How many have not ended.
    live: u32,
    /// From hashes to numbers.
    table: FlowTable,
    /// When the wheel will look at the first one (µs; `u64::MAX`: never).
    pub alarm_us: u64,
}

impl Shelf {
    /// An empty one; it allocates when something is laid on it.
    pub fn new() -> Shelf {
        Shelf {
            kept: VecDeque::new(),
            first: 0,
            live: 0,
            table: FlowTable::new(),
            alarm_us: u64::MAX,
        }
    }

    /// How many connections it has.
    #[inline]
    pub fn len(&self) -> usize {
        self.live as usize
    }

    /// Entries to look at with [`Self::nth`].
    pub fn entries(&self) -> usize {
        self.kept.len()
    }

    /// A connection, oldest first; `None`: it has ended.
    pub fn nth(&self, index: usize) -> Option<&Kept> {
        self.kept.get(index).filter(|kept| !kept.is_over)
    }

    /// The oldest one.
    #[inline]
    pub fn oldest(&self) -> Option<&Kept> {
        self.kept.front()
    }

    /// Adds one. False: it ends before the last one, and cannot be kept here.
    pub fn push(&mut self, hash: u64, kept: Kept, now_us: u64) -> bool {
        let last_us = self.kept.back().map_or(0, |last| last.wait.ends_us(now_us));
        if kept.wait.ends_us(now_us) < last_us || self.kept.len() >= NUMBER_MAX as usize {
            return false;
        }
        let number = self.first.wrapping_add(self.kept.len() as u32) & NUMBER_MAX;
        self.table.insert(hash, number);
        self.kept.push_back(kept);
        self.live += 1;
        true
    }

    /// The number of the connection with this tuple.
    #[inline]
    pub fn find(&self, hash: u64, tuple: &FlowTuple) -> Option<u32> {
        if self.live == 0 {
            return None;
        }
        self.table.find(hash, |number| self.get(number).is_some_and(|k| k.wait.tuple() == tuple))
    }

    /// The connection with a number.
    pub fn get(&self, number: u32) -> Option<&Kept> {
        self.nth((number.wrapping_sub(self.first) & NUMBER_MAX) as usize)
    }

    /// Removes the oldest one.
    pub fn pop(&mut self, hash_of: impl Fn(&FlowTuple) -> u64) -> Option<Kept> {
        let hash = hash_of(self.oldest()?.wait.tuple());
        self.take(hash, self.first, hash_of)
    }

    /// Removes the connection with a number, which has this hash.
    pub fn take(
        &mut self,
        hash: u64,
        number: u32,
        hash_of: impl Fn(&FlowTuple) -> u64,
    ) -> Option<Kept> {
        let index = (number.wrapping_sub(self.first) & NUMBER_MAX) as usize;
        let kept = self.kept.get_mut(index).filter(|kept| !kept.is_over)?;
        let taken = core::mem::replace(kept, Kept { is_over: true, ..*kept });
        self.table.remove(hash, number);
        self.live -= 1;
        self.tidy(hash_of);
        Some(taken)
    }

    /// Drops those that have ended from the ends, and from all of it if they are more than the
    /// others.
    fn tidy(&mut self, hash_of: impl Fn(&FlowTuple) -> u64) {
        while self.kept.front().is_some_and(|kept| kept.is_over) {
            self.kept.pop_front();
            self.first = self.first.wrapping_add(1) & NUMBER_MAX;
        }
        while self.kept.back().is_some_and(|kept| kept.is_over) {
            self.kept.pop_back();
        }
        if self.kept.is_empty() {
            // A timer that is set stays so.
            *self = Shelf { alarm_us: self.alarm_us, first: self.first, ..Shelf::new() };
            return;
        }
        if self.kept.len() > 2 * self.live as usize + SPARE {
            self.kept.retain(|kept| !kept.is_over);
            self.table = FlowTable::new();
            for (number, kept) in (self.first..).zip(&self.kept) {
                self.table.insert(hash_of(kept.wait.tuple()), number & NUMBER_MAX);
            }
        }
        if self.kept.capacity() > 4 * (self.kept.len() + SPARE) {
            self.kept.shrink_to(2 * self.kept.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flows::flow::Payload;
    use ix_tcp::fuzzing::in_time_wait;
    use ix_wire::IpAddr;
    use std::collections::VecDeque;

    fn tuple(number: u16) -> FlowTuple {
        let addr = IpAddr::v4([10, 0, 0, 1]);
        FlowTuple { local: addr, remote: addr, local_port: 1, remote_port: number }
    }

    fn hash_of(tuple: &FlowTuple) -> u64 {
        u64::from(tuple.remote_port).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }

    fn kept(number: u16, ends_us: u64) -> Kept {
        let tcb = in_time_wait::<Payload>(tuple(number), ends_us);
        Kept::new(tcb.time_wait().expect("it has nothing to do"), 0, 0)
    }

    #[test]
    fn a_connection_in_time_wait_costs_64_bytes() {
        assert_eq!(size_of::<Kept>(), 64);
    }

    /// Some end in order, others in the middle; what is there is always found, and nothing else.
    #[test]
    fn a_shelf_is_a_queue_with_names() {
        let (mut shelf, mut model) = (Shelf::new(), VecDeque::new());
        shelf.first = NUMBER_MAX - 500;
        let (mut drawn, mut next) = (1u64, 0u16);
        let mut draw = |below: usize| {
            drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (drawn >> 33) as usize % below
        };
        for step in 0..20_000u64 {
            match draw(5) {
                0 | 1 => {
                    let number = next;
                    next = next.wrapping_add(1);
                    assert!(shelf.push(hash_of(&tuple(number)), kept(number, step << 11), 0));
                    model.push_back(number);
                }
                2 if !model.is_empty() => {
                    let number = model.pop_front().expect("one");
                    let taken = shelf.pop(hash_of).expect("one");
                    assert_eq!(*taken.wait.tuple(), tuple(number));
                }
                3 if !model.is_empty() => {
                    let number = model.remove(draw(model.len())).expect("one");
                    let hash = hash_of(&tuple(number));
                    let at = shelf.find(hash, &tuple(number)).expect("it is there");
                    assert!(shelf.take(hash, at, hash_of).is_some());
                    assert!(shelf.find(hash, &tuple(number)).is_none());
                }
                _ => {}
            }
            assert_eq!(shelf.len(), model.len());
            assert!(shelf.entries() <= 2 * model.len() + SPARE);
            let oldest = shelf.oldest().map(|kept| *kept.wait.tuple());
            assert_eq!(oldest, model.front().map(|number| tuple(*number)));
        }
        for number in &model {
            assert!(shelf.find(hash_of(&tuple(*number)), &tuple(*number)).is_some());
        }
        while shelf.pop(hash_of).is_some() {}
        assert!(shelf.kept.capacity() == 0 && shelf.table.is_empty());
    }

    #[test]
    fn one_that_ends_before_the_last_is_not_taken() {
        let mut shelf = Shelf::new();
        assert!(shelf.push(1, kept(1, 50_000), 0));
        assert!(!shelf.push(2, kept(2, 20_000), 0));
        assert_eq!(shelf.len(), 1);
    }
}
