//! The owner of each flow group.
use ix_proto::GroupSet;
use ix_wire::FLOW_GROUPS;

/// The owner of each flow group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan([u16; FLOW_GROUPS]);

impl Plan {
    /// Makes a plan of a function from group to thread.
    pub fn from_fn(thread_of: impl Fn(usize) -> usize) -> Plan {
        Plan(std::array::from_fn(|group| thread_of(group) as u16))
    }

    /// The owner of a group.
    pub fn thread_of(&self, group: usize) -> usize {
        usize::from(self.0[group])
    }

    /// A thread's groups.
    pub fn groups_of(&self, thread: usize) -> GroupSet {
        (0..FLOW_GROUPS).filter(|group| self.thread_of(*group) == thread).collect()
    }

    /// Assigns these groups to a thread.
    pub fn set(&mut self, groups: &GroupSet, thread: usize) {
        groups.iter().for_each(|group| self.0[group] = thread as u16);
    }

    /// The groups whose owner differs from that in another plan.
    pub fn changed_from(&self, other: &Plan) -> GroupSet {
        (0..FLOW_GROUPS).filter(|group| self.0[*group] != other.0[*group]).collect()
    }

    /// Deals out a thread's groups to others, so that their numbers are as equal as possible. A
    /// group goes to its home thread (`group % threads`) if that makes no difference.
    pub fn spread(&mut self, from: usize, over: &[usize], threads: usize) {
        let mut counts: Vec<(usize, usize)> =
            over.iter().map(|thread| (self.groups_of(*thread).len(), *thread)).collect();
        for group in self.groups_of(from).iter() {
            let home = group % threads.max(1);
            let poorest = counts.iter_mut().min_by_key(|(count, thread)| (*count, *thread != home));
            if let Some((count, thread)) = poorest {
                *count += 1;
                self.0[group] = *thread as u16;
            }
        }
    }

    /// Gives a thread its equal share of what these threads have, itself among them: from those
    /// with the most groups, and first groups whose home it is.
    pub fn share(&mut self, to: usize, among: &[usize], threads: usize) {
        let total: usize = among.iter().map(|thread| self.groups_of(*thread).len()).sum();
        let mut missing = (total / among.len().max(1)).saturating_sub(self.groups_of(to).len());
        while missing > 0 {
            let others = among.iter().filter(|thread| **thread != to);
            let Some(&richest) = others.max_by_key(|thread| self.groups_of(**thread).len()) else {
                return;
            };
            let groups = self.groups_of(richest);
            let at_home = groups.iter().find(|group| group % threads.max(1) == to);
            let Some(group) = at_home.or(groups.iter().next()) else { return };
            self.0[group] = to as u16;
            missing -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn counts(plan: &Plan, over: &[usize]) -> Vec<usize> {
        over.iter().map(|thread| plan.groups_of(*thread).len()).collect()
    }

    fn is_even(counts: &[usize]) -> bool {
        let (least, most) = (counts.iter().min(), counts.iter().max());
        most.zip(least).is_none_or(|(most, least)| most - least <= 1)
    }

    #[test]
    fn groups_come_home() {
        let start = Plan::from_fn(|group| group % 2);
        let mut plan = start;
        plan.spread(1, &[0], 2);
        assert_eq!(counts(&plan, &[0, 1]), [FLOW_GROUPS, 0]);
        assert_eq!(plan.changed_from(&start), start.groups_of(1));
        plan.share(1, &[0, 1], 2);
        assert_eq!(plan, start);
        // No thread can take them.
        plan.spread(1, &[], 2);
        assert_eq!(plan, start);
    }

    proptest! {
        #[test]
        fn threads_that_come_and_go_leave_even_shares(
            threads in 1usize..=16,
            steps in prop::collection::vec(0usize..16, 0..40),
        ) {
            let mut plan = Plan::from_fn(|group| group % threads);
            let mut active: Vec<usize> = (0..threads).collect();
            for step in steps {
                let thread = step % threads;
                let before = plan;
                if let Some(at) = active.iter().position(|t| *t == thread) {
                    if active.len() == 1 {
                        continue;
                    }
                    active.remove(at);
                    plan.spread(thread, &active, threads);
                    prop_assert_eq!(plan.changed_from(&before), before.groups_of(thread));
                } else {
                    active.push(thread);
                    plan.share(thread, &active, threads);
                    prop_assert_eq!(plan.changed_from(&before), plan.groups_of(thread));
                }
                prop_assert_eq!(counts(&plan, &active).iter().sum::<usize>(), FLOW_GROUPS);
                prop_assert!(is_even(&counts(&plan, &active)), "{:?}", counts(&plan, &active));
            }
        }
    }
}
