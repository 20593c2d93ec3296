//! Transmit memory of one elastic thread: 2 MB steps from the dataplane, cut into size classes.
//!
//! Taking and giving back are O(1) without atomics: a free list per class, kept inside the free
//! blocks themselves, and a run of fresh blocks behind it.
use core::cell::RefCell;
use core::fmt;
use core::mem::ManuallyDrop;
use core::ptr::with_exposed_provenance_mut;
use std::rc::Rc;

/// Block sizes. A step of 4 wastes little and leaves few lists.
const CLASS_BYTES: [u32; 5] = [512, 2 << 10, 8 << 10, 32 << 10, 128 << 10];
/// Fresh memory goes to a class in runs of this.
const RUN_BYTES: u64 = 128 << 10;

/// Memory that still has to be cut: `[next, end)`.
#[derive(Clone, Copy, Default)]
struct Span {
    next: u64,
    end: u64,
}

impl Span {
    fn take(&mut self, bytes: u64) -> Option<u64> {
        let base = self.next;
        (self.end - base >= bytes).then(|| {
            self.next += bytes;
            base
        })
    }
}

#[derive(Default)]
struct State {
    /// Address of the first free block of each class, 0: none; its first word is the next address.
    free: [u64; CLASS_BYTES.len()],
    /// The run of fresh blocks of each class.
    fresh: [Span; CLASS_BYTES.len()],
    /// Steps not cut into runs yet.
    steps: Vec<Span>,
}

/// Transmit memory of one elastic thread. Clones are the same arena.
#[derive(Clone, Default)]
pub struct TxArena(Rc<RefCell<State>>);

impl TxArena {
    /// The largest block.
    pub const LARGEST_BYTES: u32 = CLASS_BYTES[CLASS_BYTES.len() - 1];

    /// An empty buffer with room for `bytes`, or for [`TxArena::LARGEST_BYTES`] if that is less.
    /// `None`: out of memory until more is adopted or given back.
    #[inline]
    pub fn alloc(&self, bytes: usize) -> Option<TxBuf> {
        let class = CLASS_BYTES.iter().position(|&size| size as usize >= bytes);
        let class = class.unwrap_or(CLASS_BYTES.len() - 1);
        let address = self.take(class)?;
        let base = with_exposed_provenance_mut(address as usize);
        Some(TxBuf { base, len: 0, class: class as u32, arena: self.clone() })
    }

    /// Whether another step of memory should be asked for, before it is needed.
    #[inline]
    pub fn wants_memory(&self) -> bool {
        let state = self.0.borrow();
        state.steps.iter().map(|step| step.end - step.next).sum::<u64>() < 8 * RUN_BYTES
    }

    /// Adds memory.
    ///
    /// # Safety
    /// `[base, base + bytes)` is writable memory that nobody else uses, for the life of the arena
    /// and all its buffers.
    pub(super) unsafe fn adopt(&self, base: u64, bytes: u64) {
        self.0.borrow_mut().steps.push(Span { next: base, end: base + bytes });
    }

    fn take(&self, class: usize) -> Option<u64> {
        let mut state = self.0.borrow_mut();
        let head = state.free[class];
        if head != 0 {
            let link = with_exposed_provenance_mut::<u64>(head as usize);
            // SAFETY: a free block of ours; `give_back` wrote the link there.
            state.free[class] = unsafe { link.read() };
            return Some(head);
        }
        let bytes = CLASS_BYTES[class].into();
        if let Some(base) = state.fresh[class].take(bytes) {
            return Some(base);
        }
        let step = state.steps.iter_mut().find(|step| step.end - step.next >= RUN_BYTES)?;
        let next = step.take(RUN_BYTES)?;
        state.steps.retain(|step| step.end - step.next >= RUN_BYTES);
        state.fresh[class] = Span { next, end: next + RUN_BYTES };
        state.fresh[class].take(bytes)
    }

    fn give_back(&self, address: u64, class: usize) {
        let mut state = self.0.borrow_mut();
        let link = with_exposed_provenance_mut::<u64>(address as usize);
        // SAFETY: the block is ours, writable, 512-byte aligned, and its buffer is gone.
        unsafe { link.write(state.free[class]) };
        state.free[class] = address;
    }
}

/// A buffer in transmit memory: filled by the application, sent without a copy.
pub struct TxBuf {
    base: *mut u8,
    len: u32,
    class: u32,
    arena: TxArena,
}

impl TxBuf {
    /// Bytes it can hold.
    #[inline]
    pub fn capacity(&self) -> usize {
        CLASS_BYTES[self.class as usize] as usize
    }

    /// Appends as much of `data` as fits; answers how much that was.
    #[inline]
    pub fn extend(&mut self, data: &[u8]) -> usize {
        let n = data.len().min(self.capacity() - self.len as usize);
        // SAFETY: the `n` bytes after `len` are within the block, which is ours alone; `data` is
        // a Rust slice and so cannot overlap memory that only this buffer hands out mutably.
        unsafe { self.base.add(self.len as usize).copy_from_nonoverlapping(data.as_ptr(), n) };
        self.len += n as u32;
        n
    }

    /// Forgets the content.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Address of the first byte, for a scatter-gather entry.
    #[inline]
    pub fn base(&self) -> u64 {
        self.base.expose_provenance() as u64
    }

    /// The block itself, never to be given back.
    pub(super) fn into_raw(self) -> *mut u8 {
        ManuallyDrop::new(self).base
    }
}

impl core::ops::Deref for TxBuf {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes were written, the block is ours, and the dataplane never writes it.
        unsafe { core::slice::from_raw_parts(self.base, self.len as usize) }
    }
}

impl core::ops::DerefMut for TxBuf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes it the only access.
        unsafe { core::slice::from_raw_parts_mut(self.base, self.len as usize) }
    }
}

impl fmt::Debug for TxBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TxBuf({} of {} bytes at {:p})", self.len, self.capacity(), self.base)
    }
}

impl Drop for TxBuf {
    #[inline]
    fn drop(&mut self) {
        self.arena.give_back(self.base(), self.class as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn arena(bytes: usize) -> (TxArena, Vec<u128>) {
        let mut memory = vec![0u128; bytes / 16];
        let arena = TxArena::default();
        // SAFETY: the vector is kept beside the arena and used by nobody else.
        unsafe { arena.adopt(memory.as_mut_ptr().expose_provenance() as u64, bytes as u64) };
        (arena, memory)
    }

    #[test]
    fn runs_out_and_recovers() {
        let (arena, _memory) = arena(2 << 20);
        let all: Vec<_> = std::iter::from_fn(|| arena.alloc(1 << 20)).collect();
        assert_eq!(all.len(), 16);
        assert!(arena.wants_memory());
        assert!(arena.alloc(1).is_none());
        drop(all);
        assert!(arena.alloc(usize::MAX).is_some());
    }

    proptest! {
        #[test]
        fn buffers_never_overlap(
            steps in prop::collection::vec((any::<bool>(), 1..40_000usize), 300),
        ) {
            let (arena, _memory) = arena(4 << 20);
            let mut live: Vec<(TxBuf, u8)> = Vec::new();
            for (i, (free, bytes)) in steps.into_iter().enumerate() {
                if free && !live.is_empty() {
                    live.swap_remove(bytes % live.len());
                } else if let Some(mut buf) = arena.alloc(bytes) {
                    prop_assert!(buf.capacity() >= bytes && buf.is_empty());
                    prop_assert_eq!(buf.extend(&vec![i as u8; bytes]), bytes);
                    live.push((buf, i as u8));
                }
            }
            for (buf, mark) in &live {
                prop_assert!(buf.iter().all(|byte| byte == mark));
            }
        }
    }
}
