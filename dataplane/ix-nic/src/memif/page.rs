//! The steering page: a region that only IX offers to IX. For each direction it holds the flow-hash
//! key and the redirection table of the *receiver*, which decides, and for each queue of the sender
//! how recent a table that queue uses.
//!
//! A sender that finds a new epoch first publishes what it has sent by the old table, then reads
//! the table, then stores that it has seen the epoch. So when all senders have seen the newest
//! epoch, the packets of a moved flow group that went to its old queue are all in that queue's
//! rings. A sender that goes to sleep has nothing to publish and reads the table when it wakes: it
//! counts as having seen the epoch ([`ASLEEP`]).
//!
//! A client that receives also stores how far it has taken each ring: the protocol shows that to a
//! server only in bursts, and a flow that changes its sending queue needs it ([`crate::Fence`]).
use super::{PAGE_BYTES, QUEUES_MAX};
use ix_sys::Mapping;
use ix_wire::{FLOW_GROUPS, FlowHash};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

/// The part of one direction: what its receiver writes, then a line for each queue of the sender.
#[repr(C, align(64))]
struct Half {
    key: [AtomicU64; 2],
    epoch: AtomicU32,
    table: Line<[AtomicU8; FLOW_GROUPS]>,
    seen: [Line<Seen>; QUEUES_MAX],
    /// For each queue of the receiver: the index up to which it has taken each sender's ring.
    taken: [Line<[AtomicU16; QUEUES_MAX]>; QUEUES_MAX],
}

/// The state of one sender.
#[repr(C)]
struct Seen {
    /// The epoch of the table that it uses, or [`ASLEEP`].
    epoch: AtomicU32,
    /// 1 while it puts packets into rings.
    sending: AtomicU32,
}

/// No epoch.
const ASLEEP: u32 = 0;

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
// SAFETY: as above: nothing but atomics.
unsafe impl Sync for Place {}

impl Place {
    fn of(mapping: &Mapping, direction: Direction) -> Place {
        Place(mapping.at::<Half>((direction as usize * size_of::<Half>()) as u64, 1))
    }

    #[inline]
    fn half(&self) -> &Half {
        // SAFETY: `at` checked bounds and alignment, the maker of the place keeps the mapping, and
        // all fields are atomics.
        unsafe { &*self.0 }
    }
}

/// The receiver's end. `M` keeps the mapping.
pub struct Receiver<M = Mapping> {
    place: Place,
    senders: usize,
    _mapping: M,
}

impl Receiver {
    /// Writes the whole table, for a sender that does not look yet.
    ///
    /// # Panics
    /// When the mapping is shorter than [`PAGE_BYTES`].
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
}

impl<M> Receiver<M> {
    /// Of a page that `new` wrote, in another process.
    ///
    /// # Safety
    /// `keeper` keeps the mapping.
    pub unsafe fn of(
        mapping: &Mapping,
        direction: Direction,
        senders: usize,
        keeper: M,
    ) -> Receiver<M> {
        let senders = senders.min(QUEUES_MAX);
        Receiver { place: Place::of(mapping, direction), senders, _mapping: keeper }
    }

    /// Changes an entry. Any thread may, but only one an entry.
    pub fn set(&self, flow_group: usize, queue: u8) {
        let half = self.place.half();
        half.table.0[flow_group].store(queue, Ordering::Relaxed);
        let next = |epoch: u32| Some(epoch.wrapping_add(1).max(1));
        let _ = half.epoch.fetch_update(Ordering::SeqCst, Ordering::Relaxed, next);
    }

    /// Whether all senders use the table as it is now.
    pub fn settled(&self) -> bool {
        // A sender that wakes says so, then looks at the epoch; here it is the other way round, and
        // one of the two sees the other.
        fence(Ordering::SeqCst);
        self.behind().next().is_none()
    }

    /// Whether a sender that uses an older table is putting packets into rings.
    pub fn is_sending(&self) -> bool {
        self.behind().any(|seen| seen.sending.load(Ordering::Acquire) != 0)
    }

    /// Senders that use an older table.
    fn behind(&self) -> impl Iterator<Item = &Seen> {
        let half = self.place.half();
        let epoch = half.epoch.load(Ordering::Acquire);
        let is_behind = move |seen: &&Seen| {
            let theirs = seen.epoch.load(Ordering::Acquire);
            theirs != epoch && theirs != ASLEEP
        };
        half.seen[..self.senders].iter().map(|line| &line.0).filter(is_behind)
    }
}

/// How far one queue of the receiver has taken its rings. Its maker keeps the mapping.
pub struct Taken {
    place: Place,
    queue: usize,
}

impl Taken {
    /// Of the receiver's queue `queue`.
    ///
    /// # Safety
    /// The mapping outlives the answer.
    pub unsafe fn new(mapping: &Mapping, direction: Direction, queue: usize) -> Taken {
        Taken { place: Place::of(mapping, direction), queue: queue.min(QUEUES_MAX - 1) }
    }

    /// All before `index` of a sender's ring is taken.
    #[inline]
    pub fn set(&self, sender: usize, index: u16) {
        if let Some(taken) = self.place.half().taken[self.queue].0.get(sender) {
            taken.store(index, Ordering::Release);
        }
    }

    /// Up to where a sender's ring is taken.
    pub fn get(&self, sender: usize) -> Option<u16> {
        let taken = self.place.half().taken[self.queue].0.get(sender)?;
        Some(taken.load(Ordering::Acquire))
    }
}

/// A sender's end, of one queue. Its maker keeps the mapping.
pub struct Sender {
    place: Place,
    me: usize,
    queues: u8,
    hash: FlowHash,
    table: [u8; FLOW_GROUPS],
    epoch: u32,
    /// It said that it sleeps.
    asleep: bool,
    /// Packets were put into rings and not shown to the receiver yet.
    unpublished: bool,
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
        let mut sender = Sender {
            place,
            me,
            queues,
            hash,
            table: [0; FLOW_GROUPS],
            epoch: 0,
            asleep: false,
            unpublished: false,
        };
        sender.refresh();
        sender
    }

    /// How far a queue of the receiver is. As long-lived as this sender's mapping.
    pub fn taken_by(&self, queue: usize) -> Taken {
        Taken { place: self.place, queue: queue.min(QUEUES_MAX - 1) }
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
        half.seen[self.me].0.epoch.store(self.epoch, Ordering::Release);
    }

    /// Packets are put into rings from now on. What is under way by an old table must not be more
    /// than this burst.
    #[inline]
    pub fn begin(&mut self) {
        if self.asleep {
            self.wake();
        }
        let half = self.place.half();
        half.seen[self.me].0.sending.store(1, Ordering::Release);
        if !self.unpublished && self.is_stale() {
            self.refresh();
        }
        self.unpublished = true;
    }

    /// All packets were shown to the receiver.
    #[inline]
    pub fn end(&mut self) {
        if std::mem::replace(&mut self.unpublished, false) {
            self.place.half().seen[self.me].0.sending.store(0, Ordering::Release);
        }
        if !self.asleep && self.is_stale() {
            self.refresh();
        }
    }

    /// Nothing more is sent before [`Sender::begin`].
    pub fn sleep(&mut self) {
        if !self.unpublished {
            self.asleep = true;
            self.place.half().seen[self.me].0.epoch.store(ASLEEP, Ordering::Release);
        }
    }

    /// No longer asleep: says so before it looks at the table.
    #[cold]
    pub fn wake(&mut self) {
        self.asleep = false;
        let half = self.place.half();
        half.seen[self.me].0.epoch.store(self.epoch.max(1), Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.refresh();
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
        let fd = ix_sys::fd::sealed_memfd(c"page", PAGE_BYTES, 0).unwrap();
        let map = || Mapping::of_fd(fd.as_fd(), PAGE_BYTES, 0).unwrap();
        let mut table = [0; FLOW_GROUPS];
        table.iter_mut().enumerate().for_each(|(group, queue)| *queue = (group % 3) as u8);
        let receiver = Receiver::new(map(), Direction::ToClient, 2, [1, 2], &table);
        let mapping = map();
        // SAFETY: the mapping outlives the senders.
        let mut senders =
            [0, 1].map(|me| unsafe { Sender::new(&mapping, Direction::ToClient, me, 3) });
        assert_eq!(senders[0].hash.key, [1, 2]);
        assert!(receiver.settled() && !senders[0].is_stale());

        receiver.set(5, 0);
        receiver.set(6, 77);
        assert!(!receiver.settled() && senders[1].is_stale());
        senders[1].begin();
        assert!(!receiver.settled(), "one is missing");
        senders[0].end();
        assert!(receiver.settled());
        (table[5], table[6]) = (0, 77 % 3);
        assert_eq!(senders[0].table, table);
        assert!(senders.iter().all(|sender| sender.table.iter().all(|queue| *queue < 3)));
    }

    /// A sender that is asleep has nothing under way; one in the middle of a burst has.
    #[test]
    fn sleepers_count_as_settled_and_bursts_are_seen() {
        let fd = ix_sys::fd::sealed_memfd(c"page", PAGE_BYTES, 0).unwrap();
        let map = || Mapping::of_fd(fd.as_fd(), PAGE_BYTES, 0).unwrap();
        let table = [0; FLOW_GROUPS];
        let receiver = Receiver::new(map(), Direction::ToServer, 2, [1, 2], &table);
        let mapping = map();
        // SAFETY: the mapping outlives the senders.
        let mut senders =
            [0, 1].map(|me| unsafe { Sender::new(&mapping, Direction::ToServer, me, 2) });
        senders[0].sleep();
        senders[1].begin();
        receiver.set(5, 1);
        assert!(!receiver.settled() && receiver.is_sending());
        senders[1].end();
        assert!(receiver.settled() && !receiver.is_sending());
        receiver.set(6, 1);
        assert!(!receiver.settled() && !receiver.is_sending(), "behind, but not sending");
        senders[1].begin();
        assert_eq!(senders[1].table[6], 1, "a burst begins by the newest table");
        assert!(receiver.settled(), "one has seen it, the other sleeps");
        senders[0].begin();
        assert_eq!((senders[0].table[5], senders[0].table[6]), (1, 1));
        assert!(receiver.settled() && senders.iter().all(|sender| !sender.is_stale()));
    }
}
