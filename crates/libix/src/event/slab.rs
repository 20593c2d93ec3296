//! Slots with generations: an id of a slot that is used again is an id of nothing.

/// Values under ids that are never used twice (the generation wraps after 2^32 uses of one slot).
pub(super) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(super) fn insert(&mut self, value: T) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, value: None });
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.value = Some(value);
        u64::from(slot.generation) << 32 | u64::from(index)
    }

    #[inline]
    pub(super) fn get(&self, id: u64) -> Option<&T> {
        let slot = self.slots.get(id as u32 as usize)?;
        if slot.generation == (id >> 32) as u32 { slot.value.as_ref() } else { None }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut T> {
        let slot = self.slots.get_mut(id as u32 as usize)?;
        if slot.generation == (id >> 32) as u32 { slot.value.as_mut() } else { None }
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<T> {
        self.get(id)?;
        self.free.push(id as u32);
        self.slots[id as u32 as usize].value.take()
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = u64> {
        let id = |(index, slot): (usize, &Slot<T>)| {
            slot.value.as_ref().map(|_| u64::from(slot.generation) << 32 | index as u64)
        };
        self.slots.iter().enumerate().filter_map(id)
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn behaves_like_a_map_with_fresh_keys(
            steps in prop::collection::vec(any::<(bool, u16)>(), 200),
        ) {
            let mut slab = Slab::default();
            let mut model = HashMap::new();
            let mut gone = Vec::new();
            for (insert, value) in steps {
                if insert || model.is_empty() {
                    let id = slab.insert(value);
                    prop_assert!(!gone.contains(&id));
                    prop_assert_eq!(model.insert(id, value), None);
                } else {
                    let id = *model.keys().nth(value as usize % model.len()).unwrap();
                    prop_assert_eq!(slab.remove(id), model.remove(&id));
                    gone.push(id);
                }
                prop_assert_eq!(slab.len(), model.len());
                prop_assert!(slab.ids().all(|id| model.contains_key(&id)));
                prop_assert_eq!(slab.ids().count(), model.len());
                prop_assert!(model.iter().all(|(id, value)| slab.get(*id) == Some(value)));
                prop_assert!(gone.iter().all(|id| slab.get_mut(*id).is_none()));
            }
        }
    }
}
