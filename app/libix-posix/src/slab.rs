//! A table of objects. Indexes are used again, each time with another generation.

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
}

impl<T> Slab<T> {
    /// An empty table.
    pub const fn new() -> Slab<T> {
        Slab { slots: Vec::new(), free: Vec::new() }
    }

    /// Inserts an object. Its id is never 0.
    pub fn insert(&mut self, value: T) -> Id {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, value: None });
            self.slots.len() as u32 - 1
        });
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
        self.slots[id as u32 as usize].value.take()
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
        assert_eq!(slab.iter().collect::<Vec<_>>(), [(b, &'b')]);
    }
}
