//! The steering page: a region that only IX offers to IX. For each direction it holds the flow-hash
//! key and the redirection table of the *receiver*, whose word counts; and for each queue of the
//! sender how recent a table it uses.
//!
//! A sender that finds a new epoch first publishes what it sent by the old table, then reads the
//! table, then says that it has seen the epoch. So when all senders have seen the newest epoch, the
//! packets of a moved flow group that went to its old queue are all in that queue's rings.
use super::spec::QUEUES_MAX;
use crate::sys::Mapping;
use ix_wire::{FLOW_GROUPS, FlowHash};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Bytes of the region.
pub const PAGE_BYTES: usize = 4096;

/// The half of a direction: what its receiver writes, then a line for each queue of the sender.
#[repr(C, align(64))]
struct Half {
    key: [AtomicU64; 2],
    epoch: AtomicU32,
    table: Line<[AtomicU8; FLOW_GROUPS]>,
    seen: [Line<AtomicU32>; QUEUES_MAX],
}

#[repr(C, align(64))]
struct Line<T>(T);

const _: () = assert!(2 * size_of::<Half>() <= PAGE_BYTES);

/// Which way packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The server receives.
    ToServer = 0,
    /// The client receives.
    ToClient = 1,
}

/// One direction of a mapped page.
#[derive(Clone, Copy)]
struct Place(*const Half);

// SAFETY: atomics in shared memory, without thread affinity.
unsafe impl Send for Place {}

impl Place {
    fn of(mapping: &Mapping, direction: Direction) -> Place {
        Place(mapping.at::<Half>((direction as usize * size_of::<Half>()) as u64, 1))
    }

    #[inline]
    fn half(&self) -> &Half {
        // SAFETY: `at` checked bounds and alignment, whoever made the place keeps the mapping, and
        // all fields are atomics.
        unsafe { &*self.0 }
    }
}

/// The receiver's end: it has the mapping.
pub struct Receiver {
    place: Place,
    senders: usize,
    _mapping: Mapping,
}

impl Receiver {
    /// Writes the whole table, for a sender that does not look yet.
    pub fn new(
        mapping: Mapping,
        direction: Direction,
        senders: usize,
        key: [u64; 2],
        table: &[u8; FLOW_GROUPS],
    ) -> Receiver {
        let place = Place::of(&mapping, direction);
        let half = place.half();
        half.key.iter().zip(key).for_each(|(to, word)| to.store(word, Ordering::Relaxed));
        half.table.0.iter().zip(table).for_each(|(to, queue)| to.store(*queue, Ordering::Relaxed));
        half.epoch.store(1, Ordering::Release);
        Receiver { place, senders: senders.min(QUEUES_MAX), _mapping: mapping }
    }

    /// Changes an entry. `epoch` is larger each time.
    pub fn set(&self, flow_group: usize, queue: u8, epoch: u32) {
        let half = self.place.half();
        half.table.0[flow_group].store(queue, Ordering::Relaxed);
        half.epoch.store(epoch, Ordering::Release);
    }

    /// Whether all senders have seen this epoch.
    pub fn seen(&self, epoch: u32) -> bool {
        let seen = &self.place.half().seen[..self.senders];
        seen.iter().all(|line| line.0.load(Ordering::Acquire) == epoch)
    }
}

/// A sender's end, of one queue. Whoever makes it keeps the mapping.
pub struct Sender {
    place: Place,
    me: usize,
    queues: u8,
    hash: FlowHash,
    table: [u8; FLOW_GROUPS],
    epoch: u32,
}

impl Sender {
    /// For our queue `me`, towards a receiver of `queues` queues.
    ///
    /// # Safety
    /// The mapping outlives the answer.
    pub unsafe fn new(mapping: &Mapping, direction: Direction, me: usize, queues: usize) -> Sender {
        let place = Place::of(mapping, direction);
        let key = [0, 1].map(|i: usize| place.half().key[i].load(Ordering::Relaxed));
        let (hash, queues) = (FlowHash::new(key), queues.min(QUEUES_MAX) as u8);
        let mut sender = Sender { place, me, queues, hash, table: [0; FLOW_GROUPS], epoch: 0 };
        sender.refresh();
        sender
    }

    /// Whether the receiver has changed its table since [`Sender::refresh`].
    #[inline]
    pub fn is_stale(&self) -> bool {
        self.place.half().epoch.load(Ordering::Relaxed) != self.epoch
    }

    /// Takes over the receiver's table, and tells it so. What was sent by the old one must have
    /// been published.
    pub fn refresh(&mut self) {
        let half = self.place.half();
        self.epoch = half.epoch.load(Ordering::Acquire);
        for (to, from) in self.table.iter_mut().zip(&half.table.0) {
            // What names no queue is the peer's mistake, and goes anywhere.
            *to = from.load(Ordering::Relaxed) % self.queues;
        }
        half.seen[self.me].0.store(self.epoch, Ordering::Release);
    }

    /// The receiver's queue for a frame.
    #[inline]
    pub fn queue_of(&self, frame: &[u8]) -> usize {
        usize::from(self.table[crate::frame_flow_group(&self.hash, frame)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_sender_takes_over_the_table_and_says_so() {
        let fd = ix_mem::sealed_memfd(c"page", PAGE_BYTES, 0).unwrap();
        let map = || Mapping::of_fd(fd.as_fd(), PAGE_BYTES, 0).unwrap();
        let mut table = [0; FLOW_GROUPS];
        table.iter_mut().enumerate().for_each(|(group, queue)| *queue = (group % 3) as u8);
        let receiver = Receiver::new(map(), Direction::ToClient, 2, [1, 2], &table);
        let mapping = map();
        // SAFETY: the mapping outlives the senders.
        let mut senders =
            [0, 1].map(|me| unsafe { Sender::new(&mapping, Direction::ToClient, me, 3) });
        assert_eq!(senders[0].hash.key, [1, 2]);
        assert!(receiver.seen(1) && !senders[0].is_stale());

        receiver.set(5, 0, 2);
        receiver.set(6, 77, 3);
        assert!(!receiver.seen(3) && senders[1].is_stale());
        senders[1].refresh();
        assert!(!receiver.seen(3), "one is missing");
        senders[0].refresh();
        assert!(receiver.seen(3));
        (table[5], table[6]) = (0, 77 % 3);
        assert_eq!(senders[0].table, table);
        assert!(senders.iter().all(|sender| sender.table.iter().all(|queue| *queue < 3)));
    }
}
