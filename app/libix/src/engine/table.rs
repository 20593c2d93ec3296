//! Slots with generations: an id of a slot that is used again is an id of nothing, and so is one of
//! another elastic thread's slots.

use crate::raw::huge;

/// Slots of the first chunk: a power of two.
const FIRST_CHUNK: usize = 64;
/// Places for chunks. A chunk's place is the binary logarithm of its length, so those before
/// `FIRST_CHUNK`'s stay empty.
const CHUNKS: usize = 32;
/// Bits of an id that number the slot; those above, up to the generation, name the thread.
const INDEX_BITS: u32 = 24;

/// Values under ids that are never used twice (the generation wraps after 2^32 uses of one slot),
/// nor by two of the first 256 elastic threads.
///
/// Chunks double in size, so that nothing ever moves: to copy very many connections would stop the
/// service for as long as it takes.
pub(crate) struct Table<T> {
    chunks: [Box<[Slot<T>]>; CHUNKS],
    made: usize,
    free: Vec<u32>,
    /// What the ids of this thread's slots have above the number of the slot.
    tag: u32,
}

#[repr(C, align(64))]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table::new(0)
    }
}

/// Where a value of a [`Table`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    chunk: usize,
    at: usize,
}

/// Chunk of a slot (below [`CHUNKS`]), and its place there.
#[inline]
fn place(index: u32) -> (usize, usize) {
    let beyond = index as usize + FIRST_CHUNK;
    let log2 = beyond.ilog2();
    // Only an index that no table has is beyond the last chunk: it leads to an empty one.
    (log2 as usize % CHUNKS, beyond ^ 1 << log2)
}

impl<T> Table<T> {
    /// For an elastic thread.
    pub(crate) fn new(thread: u32) -> Self {
        let chunks = core::array::from_fn(|_| Box::default());
        Table { chunks, made: 0, free: Vec::new(), tag: thread << INDEX_BITS }
    }

    /// The number of the slot; far beyond all slots for an id of another thread.
    #[inline]
    fn index(&self, id: u64) -> u32 {
        id as u32 ^ self.tag
    }

    fn id(&self, generation: u32, index: u32) -> u64 {
        u64::from(generation) << 32 | u64::from(index | self.tag)
    }

    /// # Panics
    /// With 2^24 values: a dataplane has no room for as many connections.
    pub(crate) fn insert(&mut self, value: T) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| self.fresh());
        let (chunk, at) = place(index);
        let slot = &mut self.chunks[chunk][at];
        slot.generation = slot.generation.wrapping_add(1);
        slot.value = Some(value);
        let generation = slot.generation;
        self.id(generation, index)
    }

    fn fresh(&mut self) -> u32 {
        assert!(self.made < 1 << INDEX_BITS, "too many connections, listeners or timers");
        let index = self.made as u32;
        let (chunk, _) = place(index);
        if self.chunks[chunk].is_empty() {
            let slots = (0..1 << chunk).map(|_| Slot { generation: 0, value: None });
            self.chunks[chunk] = huge::boxed(slots);
        }
        self.made += 1;
        index
    }

    #[inline]
    fn slot(&self, index: u32) -> Option<&Slot<T>> {
        let (chunk, at) = place(index);
        self.chunks[chunk].get(at)
    }

    #[inline]
    pub(crate) fn get(&self, id: u64) -> Option<&T> {
        let slot = self.slot(self.index(id))?;
        if slot.generation == (id >> 32) as u32 { slot.value.as_ref() } else { None }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut T> {
        let (chunk, at) = place(self.index(id));
        let slot = self.chunks[chunk].get_mut(at)?;
        if slot.generation == (id >> 32) as u32 { slot.value.as_mut() } else { None }
    }

    /// Where the value is, for several looks at it. It stays there until it is removed; another one
    /// may be there then.
    #[inline]
    pub(crate) fn find(&self, id: u64) -> Option<Place> {
        let (chunk, at) = place(self.index(id));
        let slot = self.chunks[chunk].get(at)?;
        let is_there = slot.generation == (id >> 32) as u32 && slot.value.is_some();
        is_there.then_some(Place { chunk, at })
    }

    /// The value at a place.
    #[inline]
    pub(crate) fn at(&self, Place { chunk, at }: Place) -> Option<&T> {
        self.chunks[chunk % CHUNKS].get(at)?.value.as_ref()
    }

    /// The same, to be changed.
    #[inline]
    pub(crate) fn at_mut(&mut self, Place { chunk, at }: Place) -> Option<&mut T> {
        self.chunks[chunk % CHUNKS].get_mut(at)?.value.as_mut()
    }

    /// Asks for the cache lines of a value that will be looked at soon.
    #[inline]
    pub(crate) fn prefetch(&self, id: u64) {
        if let Some(slot) = self.slot(self.index(id)) {
            huge::prefetch(slot);
        }
    }

    pub(crate) fn remove(&mut self, id: u64) -> Option<T> {
        self.get(id)?;
        self.free.push(self.index(id));
        let (chunk, at) = place(self.index(id));
        self.chunks[chunk][at].value.take()
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = u64> {
        let id = move |(index, slot): (usize, &Slot<T>)| {
            slot.value.as_ref().map(|_| self.id(slot.generation, index as u32))
        };
        self.chunks.iter().flat_map(|chunk| chunk.iter()).enumerate().filter_map(id)
    }

    pub(crate) fn len(&self) -> usize {
        self.made - self.free.len()
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
            let (mut slab, mut other) = (Table::new(3), Table::new(250));
            let mut model = HashMap::new();
            let mut gone = Vec::new();
            for (insert, value) in steps {
                if insert || model.is_empty() {
                    let id = slab.insert(value);
                    prop_assert!(!gone.contains(&id));
                    prop_assert!(slab.get_mut(other.insert(value)).is_none());
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
                prop_assert!(gone.iter().all(|id| slab.find(*id).is_none()));
                for (id, value) in &mut model {
                    let place = slab.find(*id).unwrap();
                    prop_assert_eq!(slab.at(place), Some(&*value));
                    prop_assert_eq!(slab.at_mut(place), Some(value));
                }
            }
        }
    }
}
