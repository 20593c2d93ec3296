//! A queue that mostly holds one element: it stands in place, and only a second one needs the heap.
//!
//! A connection has three of them. With very many connections each is cold when its turn comes, so
//! every block of memory of its own would be one more wait for the cache.
use std::collections::VecDeque;

/// First in, first out.
pub(crate) struct Fifo<T> {
    /// Empty only if the queue is.
    first: Option<T>,
    #[allow(clippy::box_collection)] // 8 bytes in the connection instead of 32
    rest: Option<Box<VecDeque<T>>>,
}

impl<T> Default for Fifo<T> {
    fn default() -> Self {
        Fifo { first: None, rest: None }
    }
}

impl<T> Fifo<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.as_ref().map_or(0, |rest| rest.len())
    }

    #[inline]
    pub(crate) fn push_back(&mut self, value: T) {
        if self.first.is_none() {
            self.first = Some(value);
        } else {
            self.rest.get_or_insert_default().push_back(value);
        }
    }

    #[inline]
    pub(crate) fn pop_front(&mut self) -> Option<T> {
        let next = self.rest.as_mut().and_then(|rest| rest.pop_front());
        core::mem::replace(&mut self.first, next)
    }

    #[inline]
    pub(crate) fn front(&self) -> Option<&T> {
        self.first.as_ref()
    }

    #[inline]
    pub(crate) fn front_mut(&mut self) -> Option<&mut T> {
        self.first.as_mut()
    }

    pub(crate) fn back_mut(&mut self) -> Option<&mut T> {
        match self.rest.as_mut().and_then(|rest| rest.back_mut()) {
            Some(last) => Some(last),
            None => self.first.as_mut(),
        }
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        match index.checked_sub(1) {
            None => self.first.as_ref(),
            Some(index) => self.rest.as_ref()?.get(index),
        }
    }

    /// Elements from number `start` on.
    #[inline]
    pub(crate) fn iter_from(&self, start: usize) -> impl Iterator<Item = &T> {
        // By number: chained iterators cost more than all else when there is but one element.
        let mut index = start;
        core::iter::from_fn(move || {
            let value = self.get(index)?;
            index += 1;
            Some(value)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn behaves_like_a_deque(steps in prop::collection::vec(0..5u8, 0..200)) {
            let (mut fifo, mut model) = (Fifo::default(), VecDeque::new());
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    0 | 1 => {
                        fifo.push_back(number);
                        model.push_back(number);
                    }
                    2 => prop_assert_eq!(fifo.pop_front(), model.pop_front()),
                    3 => {
                        if let Some(last) = fifo.back_mut() { *last += 1000; }
                        if let Some(last) = model.back_mut() { *last += 1000; }
                    }
                    _ => {
                        if let Some(first) = fifo.front_mut() { *first += 1; }
                        if let Some(first) = model.front_mut() { *first += 1; }
                    }
                }
                prop_assert_eq!((fifo.len(), fifo.is_empty()), (model.len(), model.is_empty()));
                prop_assert_eq!(fifo.front(), model.front());
                for start in 0..=model.len() {
                    prop_assert_eq!(fifo.get(start), model.get(start));
                    let all: Vec<_> = fifo.iter_from(start).collect();
                    prop_assert_eq!(all, model.range(start..).collect::<Vec<_>>());
                }
            }
        }
    }
}
