//! Sharing of cores that several dataplanes could use, without oscillation.
//!
//! A core belongs to the dataplane with an elastic thread on it. A free core goes to the first
//! dataplane that needs it; if several need it in the same tick, to the one that has least for its
//! weight. If none is free, a dataplane gives up a core to one that would still have less for its
//! weight afterwards: so a core never moves back and forth, whatever the loads.
use crate::{DataplaneId, Machine, Observation};
use std::collections::{BTreeMap, BTreeSet};

/// What one dataplane has and could have.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Share {
    /// Cores with a thread of its own.
    pub(super) candidates: BTreeSet<usize>,
    /// Those of them that it runs on and may keep.
    pub(super) held: BTreeSet<usize>,
    /// Its weight.
    weight: f64,
}

/// The shares of all dataplanes at one tick.
#[derive(Clone, Debug, Default)]
pub(super) struct Shares {
    shares: BTreeMap<DataplaneId, Share>,
    /// Cores that no dataplane runs on.
    free: BTreeSet<usize>,
}

impl Shares {
    /// `observations` are in order of arrival: if two dataplanes run on one core, the first keeps
    /// it, unless the other has no other. `reserved` are cores of dataplanes that are silent at
    /// present.
    pub(super) fn of(
        observations: &[(&Observation, f64)],
        machine: &Machine,
        reserved: BTreeSet<usize>,
    ) -> Shares {
        let mut shares = Shares::default();
        let mut taken = reserved;
        let mut displaced = Vec::new();
        for (seen, weight) in observations {
            let core = |thread: usize| machine.core_of(seen.threads[thread].cpu);
            let ours = (0..seen.threads.len()).filter(|thread| seen.threads[*thread].is_ours());
            let candidates: BTreeSet<usize> = ours.filter_map(core).collect();
            let runs: BTreeSet<usize> = seen.elastic().filter_map(core).collect();
            let held: BTreeSet<usize> = runs.difference(&taken).copied().collect();
            if held.is_empty() {
                displaced.push((seen.dataplane, runs));
            }
            taken.extend(held.iter().copied());
            let share = Share { candidates, held, weight: *weight };
            shares.shares.insert(seen.dataplane, share);
        }
        let all = shares.shares.values().flat_map(|share| &share.candidates);
        shares.free = all.filter(|core| !taken.contains(core)).copied().collect();
        shares.settle(displaced);
        shares
    }

    /// A dataplane that runs only on cores of others gets a free one, as long as there are any;
    /// otherwise it stays where it runs.
    fn settle(&mut self, displaced: Vec<(DataplaneId, BTreeSet<usize>)>) {
        for (id, runs) in displaced {
            let Some(share) = self.shares.get_mut(&id) else { continue };
            match share.candidates.intersection(&self.free).next().copied() {
                Some(core) => {
                    self.free.remove(&core);
                    share.held = BTreeSet::from([core]);
                }
                None => share.held = runs,
            }
        }
    }

    /// The order of decisions: the dataplane with least for its weight first.
    pub(super) fn order(&self) -> Vec<DataplaneId> {
        let mut order: Vec<_> = self.shares.iter().collect();
        order.sort_by(|(_, a), (_, b)| a.for_weight(0).total_cmp(&b.for_weight(0)));
        order.into_iter().map(|(id, _)| *id).collect()
    }

    /// Cores that a dataplane has or could have now; at most `most`, its own first.
    pub(super) fn usable(&self, id: DataplaneId, most: Option<usize>) -> BTreeSet<usize> {
        let Some(share) = self.shares.get(&id) else { return BTreeSet::new() };
        let free = share.candidates.intersection(&self.free);
        let own_first = share.held.iter().chain(free).copied();
        own_first.take(most.unwrap_or(usize::MAX).max(1)).collect()
    }

    /// Whether a dataplane could have more cores if others had less.
    pub(super) fn contends(&self, id: DataplaneId) -> bool {
        let free = |core: &usize| self.free.contains(core);
        let own = |share: &Share, core: &usize| share.held.contains(core);
        let share = self.shares.get(&id);
        share.is_some_and(|s| s.candidates.iter().any(|core| !free(core) && !own(s, core)))
    }

    /// A dataplane takes these cores in this tick.
    pub(super) fn take(&mut self, id: DataplaneId, cores: &BTreeSet<usize>) {
        self.free.retain(|core| !cores.contains(core));
        if let Some(share) = self.shares.get_mut(&id) {
            share.held.extend(cores);
        }
    }

    /// The dataplane that gives a core to one that needs it, and the number of cores that it keeps.
    pub(super) fn giver(&self, hungry: DataplaneId) -> Option<(DataplaneId, usize)> {
        let needs = self.shares.get(&hungry)?;
        let could_give = |share: &Share| {
            let useful = share.held.intersection(&needs.candidates).next().is_some();
            useful && share.held.len() > 1 && share.for_weight(-1) >= needs.for_weight(1)
        };
        let givers = self.shares.iter().filter(|(id, share)| **id != hungry && could_give(share));
        let (id, share) =
            givers.max_by(|(_, a), (_, b)| a.for_weight(0).total_cmp(&b.for_weight(0)))?;
        Some((*id, share.held.len() - 1))
    }
}

impl Share {
    fn for_weight(&self, more: isize) -> f64 {
        self.held.len().saturating_add_signed(more) as f64 / self.weight
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{machine, observation};
    use proptest::prelude::*;

    const A: DataplaneId = DataplaneId(1);
    const B: DataplaneId = DataplaneId(2);

    #[test]
    fn who_runs_on_a_core_has_it_and_the_first_comer_keeps_it() {
        let machine = machine(4, 1);
        let a = observation(1, &[0, 1, 2, 3], &[0, 1]);
        let b = observation(2, &[0, 1, 2, 3], &[1, 2]);
        let shares = Shares::of(&[(&a, 1.0), (&b, 1.0)], &machine, BTreeSet::new());
        assert_eq!(shares.usable(A, None), BTreeSet::from([0, 1, 3]));
        assert_eq!(shares.usable(B, None), BTreeSet::from([2, 3]));
        assert_eq!(shares.order(), [B, A], "who has less decides first");
        // A dataplane that runs only on cores of others gets a free one, and stays where it is
        // without.
        let b = observation(2, &[0, 1, 2], &[0, 1]);
        let shares = Shares::of(&[(&a, 1.0), (&b, 1.0)], &machine, BTreeSet::new());
        assert_eq!(shares.usable(A, None), BTreeSet::from([0, 1, 3]));
        assert_eq!(shares.usable(B, None), BTreeSet::from([2]));
        let b = observation(2, &[1], &[0]);
        let shares = Shares::of(&[(&a, 1.0), (&b, 1.0)], &machine, BTreeSet::new());
        assert_eq!(shares.usable(B, None), BTreeSet::from([1]));
    }

    #[test]
    fn cores_of_ones_own_are_nobody_elses_affair() {
        let machine = machine(4, 1);
        let a = observation(1, &[0, 1], &[0]);
        let b = observation(2, &[2, 3], &[0, 1]);
        let shares = Shares::of(&[(&a, 1.0), (&b, 1.0)], &machine, BTreeSet::new());
        assert_eq!(shares.usable(A, None), BTreeSet::from([0, 1]));
        assert!(!shares.contends(A) && !shares.contends(B));
        assert_eq!(shares.giver(A), None);
    }

    proptest! {
        /// Two that always want more: each core moves at most once, until neither can claim any.
        #[test]
        fn giving_comes_to_an_end(
            first in 1usize..12,
            weights in (0.1f64..10.0, 0.1f64..10.0),
        ) {
            let machine = machine(12, 1);
            let cpus: Vec<u32> = (0..12).collect();
            let mut held = first;
            let mut moves = 0;
            loop {
                let of = |range: std::ops::Range<u16>| range.collect::<Vec<_>>();
                let a = observation(1, &cpus, &of(0..held as u16));
                let b = observation(2, &cpus, &of(held as u16..12));
                let shares = Shares::of(&[(&a, weights.0), (&b, weights.1)], &machine, BTreeSet::new());
                let (to_a, to_b) = (shares.giver(A), shares.giver(B));
                prop_assert!(to_a.is_none() || to_b.is_none(), "both at once");
                held = match (to_a, to_b) {
                    (Some((B, keeps)), _) => 12 - keeps,
                    (_, Some((A, keeps))) => keeps,
                    _ => break,
                };
                moves += 1;
                prop_assert!(moves <= 12);
                prop_assert!((1..12).contains(&held));
            }
        }
    }
}
