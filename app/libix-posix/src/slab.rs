//! A table of objects. Indexes are used again, each time with another generation. The table becomes
//! short again when most of its places are free.

/// An object's id. Low half: its index. High half: the generation.
pub type Id = u64;

struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// A table of objects.
pub struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    /// Number of objects.
    count: usize,
    /// Generations above this one were never used in a place that does not exist.
    fresh: u32,
    /// With fewer objects it is tried to shorten the table.
    shortens_below: usize,
    shortened: bool,
}

/// A table of this length stays as it is.
const LENGTH_MIN: usize = 512;

impl<T> Slab<T> {
    /// An empty table.
    pub const fn new() -> Slab<T> {
        Slab {
            slots: Vec::new(),
            free: Vec::new(),
            count: 0,
            fresh: 0,
            shortens_below: 0,
            shortened: false,
        }
    }

    /// Inserts an object. Its id is never 0.
    pub fn insert(&mut self, value: T) -> Id {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: self.fresh, value: None });
            self.shortens_below =
                if self.slots.len() > LENGTH_MIN { self.slots.len() / 4 } else { 0 };
            self.slots.len() as u32 - 1
        });
        self.count += 1;
        let slot = &mut self.slots[index as usize];
        // The upper two bits stay free for cookies, which say there what they name.
        slot.generation = (slot.generation + 1) & 0x3fff_ffff;
        slot.generation = slot.generation.max(1);
        slot.value = Some(value);
        u64::from(slot.generation) << 32 | u64::from(index)
    }

    /// Removes an object.
    pub fn remove(&mut self, id: Id) -> Option<T> {
        self.get_mut(id)?;
        self.free.push(id as u32);
        self.count -= 1;
        let removed = self.slots[id as u32 as usize].value.take();
        if self.count < self.shortens_below {
            self.shorten();
        }
        removed
    }

    /// Gives places behind the last object back, once half of all are there; otherwise tries again
    /// with half as many objects.
    #[cold]
    fn shorten(&mut self) {
        self.shortens_below = self.count / 2;
        let used = self.slots.iter().rposition(|slot| slot.value.is_some());
        let length = used.map_or(0, |last| last + 1).max(LENGTH_MIN);
        if length > self.slots.len() / 2 {
            return;
        }
        let generations = self.slots[length..].iter().map(|slot| slot.generation);
        self.fresh = self.fresh.max(generations.max().unwrap_or(0));
        self.shortened = true;
        self.slots.truncate(length);
        self.slots.shrink_to_fit();
        self.free.retain(|index| (*index as usize) < length);
        self.free.shrink_to_fit();
    }

    /// The object with this id, if it is still there.
    #[inline]
    pub fn get(&self, id: Id) -> Option<&T> {
        let slot = self.slots.get(id as u32 as usize)?;
        if u64::from(slot.generation) != id >> 32 {
            return None;
        }
        slot.value.as_ref()
    }

    /// The object with this id, to be changed.
    #[inline]
    pub fn get_mut(&mut self, id: Id) -> Option<&mut T> {
        let slot = self.slots.get_mut(id as u32 as usize)?;
        if u64::from(slot.generation) != id >> 32 {
            return None;
        }
        slot.value.as_mut()
    }

    /// The id of the object that has this index now.
    #[inline]
    pub fn id_at(&self, index: u32) -> Option<Id> {
        let slot = self.slots.get(index as usize)?;
        slot.value.as_ref()?;
        Some(u64::from(slot.generation) << 32 | u64::from(index))
    }

    /// Whether it has become shorter since this was asked last.
    #[inline]
    pub fn was_shortened(&mut self) -> bool {
        core::mem::take(&mut self.shortened)
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All ids, for who changes the table meanwhile.
    pub fn ids(&self) -> Vec<Id> {
        self.iter().map(|(id, _)| id).collect()
    }

    /// All objects with their ids.
    pub fn iter(&self) -> impl Iterator<Item = (Id, &T)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let id = u64::from(slot.generation) << 32 | index as u64;
            slot.value.as_ref().map(|value| (id, value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_not_used_twice() {
        let mut slab = Slab::new();
        let a = slab.insert('a');
        assert_eq!(slab.remove(a), Some('a'));
        let b = slab.insert('b');
        assert_eq!(a as u32, b as u32);
        assert_ne!(a, b);
        assert_eq!(slab.get(a), None);
        assert_eq!(slab.remove(a), None);
        assert_eq!(slab.get(b), Some(&'b'));
        assert_eq!(slab.ids(), [b]);
        assert!(!slab.is_empty() && Slab::<char>::new().is_empty());
        assert_eq!(slab.iter().collect::<Vec<_>>(), [(b, &'b')]);
    }

    #[test]
    fn a_table_that_was_long_becomes_short_and_its_names_stay_stale() {
        let mut slab = Slab::new();
        let all: Vec<Id> = (0..10_000).map(|n| slab.insert(n)).collect();
        // Each place was used twice.
        all.iter().for_each(|id| _ = slab.remove(*id));
        let again: Vec<Id> = (0..10_000).map(|n| slab.insert(n)).collect();
        let (stay, end) = again.split_at(100);
        let stay = stay.iter().filter(|id| **id as u32 >= 9_900 || (**id as u32) < 100);
        let stay: Vec<Id> = stay.copied().collect();
        end.iter().for_each(|id| _ = slab.remove(*id));
        let long = slab.slots.len();
        again.iter().filter(|id| !stay.contains(id)).for_each(|id| _ = slab.remove(*id));
        stay.iter().for_each(|id| _ = slab.remove(*id));
        assert!(long <= 10_000 && slab.slots.len() <= LENGTH_MIN && slab.is_empty());
        assert!(slab.slots.capacity() <= LENGTH_MIN && slab.free.capacity() <= 2 * LENGTH_MIN);
        let new: Vec<Id> = (0..10_000).map(|n| slab.insert(n)).collect();
        for old in all.iter().chain(&again) {
            assert!(slab.get(*old).is_none(), "{old:x} is an old name");
        }
        assert!(new.iter().all(|id| slab.get(*id).is_some()));
    }
}
