//! The single-producer single-consumer rings of AF_XDP, one end of each.
//!
//! The kernel and this process share two free-running 32-bit indices, a flags word and an array of
//! entries, whose number is a power of two. The producer writes entries and then its index
//! (release). The consumer reads that index (acquire), then the entries, then writes its own index.
//! Each end keeps a copy of its own index and the last value of the other's. An index of the other
//! side that claims more entries than the ring has counts as "nothing new": a corrupt ring stalls,
//! but never makes this process read or overwrite memory that is not its own.
use crate::Fence;
use ix_sys::Mapping;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The indices and entries of one ring.
struct Shared<T> {
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    size: u32,
    /// Keeps the mapping that the pointers point into.
    mapping: Arc<Mapping>,
}

// SAFETY: the pointers lead into `mapping`, which the ring keeps and which has no thread affinity.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T: Copy> Shared<T> {
    /// Finds the parts of a ring of `size` entries at these offsets of a mapping.
    ///
    /// # Panics
    /// If the offsets are outside of the mapping or `size` is not a power of two.
    fn new(mapping: Mapping, offsets: &libc::xdp_ring_offset, size: u32) -> Shared<T> {
        assert!(size.is_power_of_two());
        let part = |p: *mut AtomicU32| NonNull::new(p).expect("within a mapping");
        Shared {
            producer: part(mapping.at(offsets.producer, 1)),
            consumer: part(mapping.at(offsets.consumer, 1)),
            flags: part(mapping.at(offsets.flags, 1)),
            entries: NonNull::new(mapping.at(offsets.desc, size as usize)).expect("as above"),
            size,
            mapping: Arc::new(mapping),
        }
    }

    #[inline]
    fn producer(&self) -> &AtomicU32 {
        // SAFETY: aligned and within the mapping that `self` owns; the kernel uses atomics too.
        unsafe { self.producer.as_ref() }
    }

    #[inline]
    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as in `producer`.
        unsafe { self.consumer.as_ref() }
    }

    #[inline]
    fn entry(&self, index: u32) -> *mut T {
        // SAFETY: the mask keeps the offset below `size` entries, which lie within the mapping.
        unsafe { self.entries.as_ptr().add((index & (self.size - 1)) as usize) }
    }

    #[inline]
    fn needs_wakeup(&self) -> bool {
        // SAFETY: as in `producer`.
        let flags = unsafe { self.flags.as_ref() };
        flags.load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// The producing end of a ring: of the fill ring and the transmit ring.
pub(crate) struct Producer<T> {
    shared: Shared<T>,
    /// The next entry to write. It is ahead of the shared index by the entries that are not
    /// submitted yet.
    next: u32,
    consumer_seen: u32,
}

impl<T: Copy> Producer<T> {
    /// The producing end of the ring in this mapping.
    pub fn new(mapping: Mapping, offsets: &libc::xdp_ring_offset, size: u32) -> Producer<T> {
        let shared = Shared::new(mapping, offsets, size);
        let next = shared.producer().load(Ordering::Relaxed);
        let consumer_seen = shared.consumer().load(Ordering::Acquire);
        Producer { shared, next, consumer_seen }
    }

    /// Number of entries that can be pushed now. The other side's index is read only if fewer than
    /// `wanted` are known to be free.
    #[inline]
    pub fn room(&mut self, wanted: u32) -> u32 {
        let room = self.known_room();
        if room >= wanted {
            return room;
        }
        let seen = self.shared.consumer().load(Ordering::Acquire);
        if self.next.wrapping_sub(seen) <= self.shared.size {
            self.consumer_seen = seen;
        }
        self.known_room()
    }

    #[inline]
    fn known_room(&self) -> u32 {
        self.shared.size - self.next.wrapping_sub(self.consumer_seen)
    }

    /// Writes an entry, which the other side sees after [`Producer::submit`]. False if the ring is
    /// full.
    #[inline]
    pub fn push(&mut self, value: T) -> bool {
        if self.room(1) == 0 {
            return false;
        }
        // SAFETY: the entry is within the mapping, and the consumer has released it (`room`).
        unsafe { self.shared.entry(self.next).write(value) };
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Makes the pushed entries visible to the other side.
    #[inline]
    pub fn submit(&mut self) {
        self.shared.producer().store(self.next, Ordering::Release);
    }

    /// The consumer's index, to test whether it moves.
    pub fn consumed(&self) -> u32 {
        self.shared.consumer().load(Ordering::Relaxed)
    }

    /// A fence that is passed when the consumer has taken all that is submitted now; `None` if it
    /// already has.
    pub fn fence(&self) -> Option<RingFence> {
        let upto = self.shared.producer().load(Ordering::Relaxed);
        let fence = RingFence {
            consumer: self.shared.consumer,
            upto,
            _mapping: self.shared.mapping.clone(),
        };
        (!fence.passed()).then_some(fence)
    }

    /// True if the kernel needs a system call before it looks at the ring.
    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        self.shared.needs_wakeup()
    }
}

/// The state of a ring at [`Producer::fence`]. It may outlive the ring.
pub(crate) struct RingFence {
    consumer: NonNull<AtomicU32>,
    upto: u32,
    /// Keeps the mapping that the pointer points into.
    _mapping: Arc<Mapping>,
}

// SAFETY: the pointer leads into `_mapping`, which the fence keeps; only atomic reads go through
// it.
unsafe impl Send for RingFence {}

impl Fence for RingFence {
    fn passed(&self) -> bool {
        // SAFETY: aligned and within the mapping that `self` keeps; the kernel uses atomics too.
        let consumed = unsafe { self.consumer.as_ref() }.load(Ordering::Acquire);
        consumed.wrapping_sub(self.upto) as i32 >= 0
    }
}

/// The consuming end of a ring: of the receive ring and the completion ring.
pub(crate) struct Consumer<T> {
    shared: Shared<T>,
    next: u32,
}

impl<T: Copy> Consumer<T> {
    /// The consuming end of the ring in this mapping.
    pub fn new(mapping: Mapping, offsets: &libc::xdp_ring_offset, size: u32) -> Consumer<T> {
        let shared = Shared::new(mapping, offsets, size);
        let next = shared.consumer().load(Ordering::Relaxed);
        Consumer { shared, next }
    }

    /// Number of waiting entries.
    #[inline]
    pub fn waiting(&self) -> u32 {
        let produced = self.shared.producer().load(Ordering::Acquire);
        let n = produced.wrapping_sub(self.next);
        if n <= self.shared.size { n } else { 0 }
    }

    /// The `i`th waiting entry; `i` must be below what [`Consumer::waiting`] has returned.
    #[inline]
    pub fn peek(&self, i: u32) -> T {
        // SAFETY: within the mapping, and produced (acquired in `waiting`) but not released.
        unsafe { self.shared.entry(self.next.wrapping_add(i)).read() }
    }

    /// Returns the first `n` entries to the producer.
    #[inline]
    pub fn release(&mut self, n: u32) {
        self.next = self.next.wrapping_add(n);
        self.shared.consumer().store(self.next, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const OFFSETS: libc::xdp_ring_offset =
        libc::xdp_ring_offset { producer: 0, consumer: 64, flags: 128, desc: 192 };

    /// Both ends over the same memory, starting near the wrap of the indices.
    fn pair(size: u32, start: u32) -> (Producer<u64>, Consumer<u64>) {
        let mapping = Mapping::anonymous(192 + 8 * size as usize).unwrap();
        for offset in [OFFSETS.producer, OFFSETS.consumer] {
            // SAFETY: in bounds (checked by `at`), fresh memory.
            unsafe { mapping.at::<u32>(offset, 1).write(start) };
        }
        let alias = Shared::<u64>::new(mapping, &OFFSETS, size);
        let copy = Shared {
            producer: alias.producer,
            consumer: alias.consumer,
            flags: alias.flags,
            entries: alias.entries,
            size,
            mapping: alias.mapping.clone(),
        };
        let producer = Producer { shared: copy, next: start, consumer_seen: start };
        (producer, Consumer { shared: alias, next: start })
    }

    proptest! {
        /// Any sequence of operations behaves as a bounded queue, across the indices' wrap.
        #[test]
        fn behaves_as_a_bounded_queue(
            ops in prop::collection::vec((0..4u8, 1..9u32), 1..200),
            start in prop_oneof![Just(0u32), Just(u32::MAX - 3)],
        ) {
            let (mut producer, mut consumer) = pair(8, start);
            let (mut pushed, mut visible) = (VecDeque::new(), VecDeque::new());
            let mut value = 0u64;
            for (op, n) in ops {
                match op {
                    0 | 1 => for _ in 0..n {
                        let fits = pushed.len() + visible.len() < 8;
                        prop_assert_eq!(producer.push(value), fits);
                        if fits { pushed.push_back(value); }
                        value += 1;
                    },
                    2 => { producer.submit(); visible.append(&mut pushed); }
                    _ => {
                        prop_assert_eq!(consumer.waiting() as usize, visible.len());
                        let n = n.min(consumer.waiting());
                        for i in 0..n {
                            prop_assert_eq!(Some(consumer.peek(i)), visible.pop_front());
                        }
                        consumer.release(n);
                    }
                }
                let room = 8 - (pushed.len() + visible.len()) as u32;
                prop_assert_eq!(producer.room(8), room);
            }
        }
    }

    #[test]
    fn a_lying_index_of_the_other_side_changes_nothing() {
        let (mut producer, consumer) = pair(8, 0);
        assert!(producer.push(1));
        producer.submit();
        consumer.shared.producer().store(1000, Ordering::Relaxed);
        assert_eq!(consumer.waiting(), 0);
        producer.shared.consumer().store(77, Ordering::Relaxed);
        assert_eq!(producer.room(8), 7, "as before");
    }

    #[test]
    fn a_fence_is_passed_when_the_consumer_has_come_so_far() {
        let (mut producer, mut consumer) = pair(8, u32::MAX - 1);
        assert!(producer.fence().is_none(), "nothing to wait for");
        (0..3).for_each(|value| assert!(producer.push(value)));
        producer.submit();
        let fence = producer.fence().unwrap();
        assert!(producer.push(3));
        producer.submit();
        drop(producer);
        for passed in [false, false, true] {
            consumer.release(1);
            assert_eq!(fence.passed(), passed);
        }
    }

    #[test]
    fn hands_values_between_threads_in_order() {
        const VALUES: u64 = 200_000;
        let (mut producer, mut consumer) = pair(64, u32::MAX - 100);
        let filler = std::thread::spawn(move || {
            for value in 0..VALUES {
                while !producer.push(value) {
                    producer.submit();
                    std::thread::yield_now();
                }
                producer.submit();
            }
            producer
        });
        let mut expected = 0;
        while expected < VALUES {
            let n = consumer.waiting();
            for i in 0..n {
                assert_eq!(consumer.peek(i), expected);
                expected += 1;
            }
            consumer.release(n);
            if n == 0 {
                std::thread::yield_now();
            }
        }
        drop(filler.join().unwrap());
    }
}
