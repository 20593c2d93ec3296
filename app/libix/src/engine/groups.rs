//! Which connections belong to which flow group.

/// Which connections belong to which flow group, so that a migration need not ask all of them.
///
/// To leave costs nothing but a count: ids of connections that are gone stay until they are many.
#[derive(Default)]
pub(crate) struct Groups(Vec<Group>);

#[derive(Default)]
struct Group {
    ids: Vec<u64>,
    gone: usize,
}

/// Ids of connections that are gone, at most, beside half of those that live.
const GONE: usize = 16;

impl Groups {
    fn of(&mut self, group: u32) -> &mut Group {
        let group = group as usize;
        if group >= self.0.len() {
            self.0.resize_with(group + 1, Group::default);
        }
        &mut self.0[group]
    }

    pub(crate) fn joined(&mut self, group: u32, id: u64) {
        self.of(group).ids.push(id);
    }

    /// A connection of the group is gone; `lives` says which are not.
    pub(crate) fn left(&mut self, group: u32, lives: impl Fn(u64) -> bool) {
        let group = self.of(group);
        group.gone += 1;
        if group.gone > GONE + group.ids.len() / 2 {
            group.ids.retain(|&id| lives(id));
            group.gone = 0;
        }
    }

    /// The ids of a group, of which some may be gone; it has none afterwards.
    pub(crate) fn take(&mut self, group: u32) -> Vec<u64> {
        core::mem::take(self.of(group)).ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn groups_know_who_lives(steps in prop::collection::vec((0..8u8, 0..4u32), 1..2000)) {
            let (mut groups, mut next) = (Groups::default(), 0);
            let mut model = vec![BTreeSet::new(); 4];
            for (what, group) in steps {
                let living = &mut model[group as usize];
                match what {
                    0..4 => {
                        next += 1;
                        groups.joined(group, next);
                        living.insert(next);
                    }
                    4..7 => {
                        if let Some(id) = living.pop_first() {
                            groups.left(group, |id| living.contains(&id));
                            prop_assert!(!living.contains(&id));
                        }
                    }
                    _ => {
                        let ids = groups.take(group);
                        prop_assert!(ids.len() <= 2 * living.len() + 2 * GONE + 2);
                        let ids: BTreeSet<_> = ids.into_iter().collect();
                        prop_assert!(living.is_subset(&ids));
                        living.clear();
                    }
                }
            }
        }
    }
}
