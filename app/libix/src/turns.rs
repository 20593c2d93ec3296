//! A queue that one step of a turn fills and another one empties. Because it is mostly empty
//! between two turns, a list and a place in it are enough, which takes half of the instructions of
//! a ring.

/// First in, first out.
#[derive(Debug)]
pub(crate) struct Turns<T> {
    all: Vec<T>,
    /// Those before it have left.
    next: usize,
}

/// At most this many that have left stay in the list, or as many as still wait.
const LEFT_MAX: usize = 64;

impl<T: Copy> Turns<T> {
    pub(crate) fn new() -> Self {
        Turns { all: Vec::new(), next: 0 }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.all.len() - self.next
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub(crate) fn push_back(&mut self, value: T) {
        self.all.push(value);
    }

    #[inline]
    pub(crate) fn pop_front(&mut self) -> Option<T> {
        let value = *self.all.get(self.next)?;
        self.next += 1;
        if self.next == self.all.len() {
            self.clear();
        } else if self.next > LEFT_MAX && self.next * 2 > self.all.len() {
            self.forget_left();
        }
        Some(value)
    }

    #[inline]
    pub(crate) fn clear(&mut self) {
        self.all.clear();
        self.next = 0;
    }

    #[cold]
    fn forget_left(&mut self) {
        self.all.drain(..self.next);
        self.next = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn behaves_like_a_deque(steps in prop::collection::vec(0..200u16, 0..2000)) {
            let (mut turns, mut model) = (Turns::new(), VecDeque::new());
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    0 => {
                        turns.clear();
                        model.clear();
                    }
                    1..=105 => {
                        turns.push_back(number);
                        model.push_back(number);
                    }
                    _ => prop_assert_eq!(turns.pop_front(), model.pop_front()),
                }
                prop_assert_eq!((turns.len(), turns.is_empty()), (model.len(), model.is_empty()));
                prop_assert!(turns.all.len() <= 2 * model.len() + LEFT_MAX + 1);
            }
        }
    }
}
