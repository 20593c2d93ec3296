//! A bounded ring between one producing and one consuming thread.
use crate::sync::{Arc, AtomicUsize, Ordering, Slot};

#[repr(align(128))]
struct Padded<T>(T);

struct Shared<T> {
    head: Padded<AtomicUsize>,
    tail: Padded<AtomicUsize>,
    slots: Box<[Slot<T>]>,
}

// SAFETY: a slot is touched by the producer only while it is free and by the consumer only while it
// is full; `head` and `tail` hand it over with release/acquire.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: the values may move between threads because T is Send.
unsafe impl<T: Send> Send for Shared<T> {}

/// The sending end.
pub struct Producer<T> {
    shared: Arc<Shared<T>>,
    tail: usize,
    head_seen: usize,
}

/// The receiving end.
pub struct Consumer<T> {
    shared: Arc<Shared<T>>,
    head: usize,
    tail_seen: usize,
}

/// A ring of `capacity` slots (rounded up to a power of two).
pub fn ring<T: Send>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    let capacity = capacity.next_power_of_two();
    let slots = (0..capacity).map(|_| Slot::empty()).collect();
    let shared = Arc::new(Shared {
        head: Padded(AtomicUsize::new(0)),
        tail: Padded(AtomicUsize::new(0)),
        slots,
    });
    let consumer = Consumer { shared: shared.clone(), head: 0, tail_seen: 0 };
    (Producer { shared, tail: 0, head_seen: 0 }, consumer)
}

impl<T: Send> Producer<T> {
    /// Appends a value; returns it if the ring is full.
    pub fn push(&mut self, value: T) -> Result<(), T> {
        let slots = &self.shared.slots;
        if self.tail - self.head_seen == slots.len() {
            self.head_seen = self.shared.head.0.load(Ordering::Acquire);
            if self.tail - self.head_seen == slots.len() {
                return Err(value);
            }
        }
        let slot = &slots[self.tail & (slots.len() - 1)];
        // SAFETY: the consumer has released this slot (checked against `head`), and we are the only
        // producer.
        unsafe { slot.fill(value) };
        self.tail += 1;
        self.shared.tail.0.store(self.tail, Ordering::Release);
        Ok(())
    }
}

impl<T: Send> Consumer<T> {
    /// Removes the oldest value.
    pub fn pop(&mut self) -> Option<T> {
        if self.head == self.tail_seen {
            self.tail_seen = self.shared.tail.0.load(Ordering::Acquire);
            if self.head == self.tail_seen {
                return None;
            }
        }
        let slots = &self.shared.slots;
        let slot = &slots[self.head & (slots.len() - 1)];
        // SAFETY: the producer has filled this slot (checked against `tail`), and we are the only
        // consumer; the head moves on, so it is read once.
        let value = unsafe { slot.take() };
        self.head += 1;
        self.shared.head.0.store(self.head, Ordering::Release);
        Some(value)
    }

    /// True if the ring is empty.
    pub fn is_empty(&self) -> bool {
        self.head == self.shared.tail.0.load(Ordering::Acquire)
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // No thread uses the ring any more.
        let (head, tail) =
            (self.head.0.load(Ordering::Relaxed), self.tail.0.load(Ordering::Relaxed));
        for i in head..tail {
            let slot = &self.slots[i & (self.slots.len() - 1)];
            // SAFETY: slots between head and tail are full and nobody uses the ring any more.
            drop(unsafe { slot.take() });
        }
    }
}
