//! Which flow in TIME-WAIT gives way to a new one: the oldest of all groups.
//!
//! Each group has its own in order. To look at the first of every group for each new flow would
//! make a flood of SYNs expensive, so what was seen is kept: all that had entered TIME-WAIT by then
//! leave in order before the groups are looked at again.
use crate::flows::handle::FlowId;
use core::cmp::Reverse;
use ix_wire::FLOW_GROUPS;
use std::collections::BinaryHeap;

/// The order in which flows in TIME-WAIT give way.
#[derive(Default)]
pub struct Oldest {
    /// Groups, by when the oldest flow of each had entered TIME-WAIT when it was looked at.
    groups: BinaryHeap<Reverse<(u64, usize)>>,
    /// When the groups were looked at.
    seen_us: u64,
}

impl Oldest {
    /// The oldest flow. `first_of` says which flow of a group entered TIME-WAIT first, and when.
    pub fn find(
        &mut self,
        now_us: u64,
        first_of: impl Fn(usize) -> Option<(u64, FlowId)>,
    ) -> Option<FlowId> {
        self.next(&first_of).or_else(|| {
            let first = |group| Some(Reverse((first_of(group)?.0, group)));
            self.groups.extend((0..FLOW_GROUPS).filter_map(first));
            self.seen_us = now_us;
            self.next(&first_of)
        })
    }

    /// The oldest flow of those that were in TIME-WAIT when the groups were looked at.
    fn next(&mut self, first_of: &impl Fn(usize) -> Option<(u64, FlowId)>) -> Option<FlowId> {
        while let Some(Reverse((since_us, group))) = self.groups.pop() {
            let Some((first_us, id)) = first_of(group) else { continue };
            if first_us <= self.seen_us {
                self.groups.push(Reverse((first_us, group)));
            }
            if first_us == since_us {
                return Some(id);
            }
        }
        None
    }

    /// Forgets what was seen: a group has arrived.
    pub fn forget(&mut self) {
        self.groups.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::collections::VecDeque;

    /// Flows wait in many groups, and new ones all the time, while others give way: always the
    /// oldest one, and few groups are looked at.
    #[test]
    fn the_oldest_of_all_groups_gives_way() {
        let mut groups = vec![VecDeque::new(); FLOW_GROUPS];
        let (mut oldest, looks, mut drawn) = (Oldest::default(), Cell::new(0), 1u64);
        let mut draw = |below: u64| {
            drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (drawn >> 33) % below
        };
        let mut waiting = 0;
        for now_us in 0..200_000 {
            let group = draw(FLOW_GROUPS as u64) as usize;
            if waiting < 2_000 || draw(2) == 0 {
                groups[group].push_back(now_us);
                waiting += 1;
                continue;
            }
            if draw(8) == 0 {
                // It ends by itself.
                waiting -= usize::from(groups[group].pop_front().is_some());
            }
            let first_of = |group: usize| {
                looks.set(looks.get() + 1);
                let id = FlowId { group: group as u16, slot: 0, generation: 1 };
                groups[group].front().map(|since_us| (*since_us, id))
            };
            let id = oldest.find(now_us, first_of).expect("some wait");
            let first = groups[usize::from(id.group)].pop_front();
            let least = groups.iter().filter_map(|group| group.front()).min();
            assert!(least.is_none_or(|least| Some(*least) > first), "{first:?} {least:?}");
            waiting -= 1;
        }
        assert!(looks.get() < 4 * 100_000, "{} looks", looks.get());
        oldest.forget();
        assert_eq!(oldest.find(0, |_| None), None);
    }
}
