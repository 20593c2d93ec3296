//! Future events, ordered by virtual time. Events of the same time keep the order of entry.
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A queue of events.
pub struct Agenda<T> {
    now_us: u64,
    serial: u64,
    heap: BinaryHeap<Reverse<Entry<T>>>,
}

struct Entry<T> {
    key: (u64, u64),
    what: T,
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}
impl<T> Eq for Entry<T> {}
impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

impl<T> Agenda<T> {
    /// An empty queue, at this time.
    pub fn new(now_us: u64) -> Agenda<T> {
        Agenda { now_us, serial: 0, heap: BinaryHeap::new() }
    }

    /// Virtual time: the time of the latest event.
    pub fn now_us(&self) -> u64 {
        self.now_us
    }

    /// Enters an event; one in the past happens now.
    pub fn at(&mut self, at_us: u64, what: T) {
        self.serial += 1;
        self.heap.push(Reverse(Entry { key: (at_us.max(self.now_us), self.serial), what }));
    }

    /// The next event at or before `until_us`; advances the time to it.
    pub fn next(&mut self, until_us: u64) -> Option<T> {
        if self.heap.peek()?.0.key.0 > until_us {
            return None;
        }
        let Reverse(entry) = self.heap.pop()?;
        self.now_us = entry.key.0;
        Some(entry.what)
    }

    /// Number of future events.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether there are no future events.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_then_order_of_entry() {
        let mut agenda = Agenda::new(100);
        for (at, what) in [(300, 'c'), (200, 'a'), (200, 'b'), (50, '0')] {
            agenda.at(at, what);
        }
        let order: String = std::iter::from_fn(|| agenda.next(250)).collect();
        assert_eq!((order.as_str(), agenda.now_us(), agenda.len()), ("0ab", 200, 1));
        assert_eq!(agenda.next(300), Some('c'));
        assert!(agenda.is_empty());
    }
}
