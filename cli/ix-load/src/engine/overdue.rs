//! Requests that are due and cannot be sent yet: a queue for each connection, all in one bounded
//! memory.

/// No node.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Node {
    due_ns: u64,
    next: u32,
}

/// Ends of one connection's queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queue {
    head: u32,
    tail: u32,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue { head: NONE, tail: NONE }
    }
}

#[cfg(test)]
impl Queue {
    fn is_empty(&self) -> bool {
        self.head == NONE
    }
}

/// The memory of all queues.
pub(super) struct Overdue {
    nodes: Vec<Node>,
    free: u32,
    len: usize,
    most: usize,
}

impl Overdue {
    /// Room for `most` requests.
    pub(super) fn new(most: usize) -> Overdue {
        Overdue { nodes: Vec::new(), free: NONE, len: 0, most }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Appends to a queue; returns whether there was room.
    #[inline]
    pub(super) fn push(&mut self, queue: &mut Queue, due_ns: u64) -> bool {
        let node = Node { due_ns, next: NONE };
        let index = if self.free != NONE {
            let index = self.free;
            self.free = self.nodes[index as usize].next;
            self.nodes[index as usize] = node;
            index
        } else if self.nodes.len() < self.most {
            self.nodes.push(node);
            (self.nodes.len() - 1) as u32
        } else {
            return false;
        };
        match queue.tail {
            NONE => queue.head = index,
            tail => self.nodes[tail as usize].next = index,
        }
        queue.tail = index;
        self.len += 1;
        true
    }

    /// Removes the oldest of a queue.
    #[inline]
    pub(super) fn pop(&mut self, queue: &mut Queue) -> Option<u64> {
        let index = queue.head;
        let node = self.nodes.get_mut(index as usize)?;
        let due_ns = node.due_ns;
        queue.head = core::mem::replace(&mut node.next, self.free);
        if queue.head == NONE {
            queue.tail = NONE;
        }
        self.free = index;
        self.len -= 1;
        Some(due_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn queues_like_any_other(steps in prop::collection::vec((0..4usize, any::<bool>()), 0..300)) {
            let mut overdue = Overdue::new(20);
            let mut queues = [Queue::default(); 4];
            let mut model: [VecDeque<u64>; 4] = Default::default();
            for (time, (which, push)) in steps.into_iter().enumerate() {
                let total: usize = model.iter().map(VecDeque::len).sum();
                if push {
                    let fits = overdue.push(&mut queues[which], time as u64);
                    prop_assert_eq!(fits, total < 20);
                    if fits {
                        model[which].push_back(time as u64);
                    }
                } else {
                    prop_assert_eq!(overdue.pop(&mut queues[which]), model[which].pop_front());
                }
                prop_assert_eq!(queues[which].is_empty(), model[which].is_empty());
                prop_assert_eq!(overdue.len(), model.iter().map(VecDeque::len).sum::<usize>());
            }
        }
    }
}
