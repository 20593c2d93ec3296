//! Transmit memory of one elastic thread: 2 MB steps from the dataplane, cut into size classes.
//!
//! Allocating and freeing are O(1) without atomics: each class has a free list, kept inside the
//! free blocks themselves, and a run of new blocks. Connections move with their flow groups, so a
//! buffer may be dropped on another Linux thread: then its block is sent home, at a cost that only
//! such buffers pay.
use super::tx_buf::{Shared, TxBuf};
use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ptr::{NonNull, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Block sizes. A step of 4 wastes little and leaves few lists.
pub(super) const CLASS_BYTES: [u32; 5] = [512, 2 << 10, 8 << 10, 32 << 10, 128 << 10];
/// New memory goes to a class in runs of this size.
const RUN_BYTES: u64 = 128 << 10;

/// Memory that is not cut yet: `[next, end)`.
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
    /// The run of new blocks of each class.
    fresh: [Span; CLASS_BYTES.len()],
    /// Steps not cut into runs yet.
    steps: Vec<Span>,
}

/// What another Linux thread did to memory of this home.
pub(super) enum Word {
    /// Gave a block back: address and class.
    Block(u64, usize),
    /// Made one more reference.
    More(NonNull<Shared>),
    /// Dropped a reference.
    Less(NonNull<Shared>),
}

// SAFETY: blocks and shared buffers are only named, not accessed, until the home reads the message.
unsafe impl Send for Word {}

/// Where the blocks of an arena come from and return to. Like the memory itself it is never freed,
/// so a buffer needs no count to refer to it.
pub(super) struct Home {
    /// The Linux thread that owns the state: the last one that used the arena.
    owner: AtomicUsize,
    state: UnsafeCell<State>,
    words: Mutex<Vec<Word>>,
    has_words: AtomicBool,
}

// SAFETY: only the owning Linux thread accesses `state` (`here`); the rest synchronises itself.
unsafe impl Sync for Home {}

/// A number that no other living Linux thread has.
#[inline]
fn here() -> usize {
    thread_local! { static MARK: u8 = const { 0 } }
    MARK.with(|mark| core::ptr::from_ref(mark).addr())
}

impl Home {
    #[inline]
    pub(super) fn is_here(&self) -> bool {
        self.owner.load(Ordering::Relaxed) == here()
    }

    /// The thread that uses the arena owns it. It stays with its Linux thread, unless unsafe code
    /// moves it along with the elastic thread; that code ensures that no thread uses it or drops
    /// its buffers meanwhile.
    #[inline]
    fn claim(&'static self) -> &'static Home {
        if !self.is_here() {
            self.owner.store(here(), Ordering::Relaxed);
        }
        self
    }

    /// The state, for the duration of a closure. Only for the owning thread, and not from within
    /// `touch`.
    #[inline]
    fn with<R>(&self, touch: impl FnOnce(&mut State) -> R) -> R {
        debug_assert!(self.is_here());
        // SAFETY: callers are on the owning thread, and none of the closures below comes back here.
        touch(unsafe { &mut *self.state.get() })
    }

    /// Sends a message to the owning thread, which reads it when it needs memory.
    #[cold]
    pub(super) fn say(&self, word: Word) {
        let mut words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        words.push(word);
        self.has_words.store(true, Ordering::Release);
    }

    /// Handles the messages of other threads.
    #[inline]
    pub(super) fn listen(&self) {
        if self.has_words.load(Ordering::Relaxed) {
            self.hear();
        }
    }

    #[cold]
    fn hear(&self) {
        let words = {
            let mut words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
            self.has_words.store(false, Ordering::Relaxed);
            core::mem::take(&mut *words)
        };
        // A thread that made a reference may have passed it on to another, where it was dropped: so
        // all new references count before any dropped one.
        for word in &words {
            if let Word::More(shared) = *word {
                Shared::more(shared);
            }
        }
        for word in words {
            match word {
                Word::Block(address, class) => self.take_back(address, class),
                Word::Less(shared) => Shared::less(shared),
                Word::More(_) => {}
            }
        }
    }

    fn take_back(&self, address: u64, class: usize) {
        let link = with_exposed_provenance_mut::<u64>(address as usize);
        self.with(|state| {
            // SAFETY: the block is ours, writable, 512-byte aligned, and its buffer is gone.
            unsafe { link.write(state.free[class]) };
            state.free[class] = address;
        });
    }

    #[inline]
    pub(super) fn give_back(&self, address: u64, class: usize) {
        if self.is_here() {
            self.take_back(address, class);
        } else {
            self.say(Word::Block(address, class));
        }
    }

    fn take(&self, class: usize) -> Option<u64> {
        self.take_free(class).or_else(|| {
            self.listen();
            self.take_free(class).or_else(|| self.with(|state| state.take_fresh(class)))
        })
    }

    #[inline]
    fn take_free(&self, class: usize) -> Option<u64> {
        self.with(|state| {
            let head = state.free[class];
            if head == 0 {
                return None;
            }
            let link = with_exposed_provenance_mut::<u64>(head as usize);
            // SAFETY: a free block of ours; `take_back` wrote the link there.
            state.free[class] = unsafe { link.read() };
            Some(head)
        })
    }
}

impl State {
    fn take_fresh(&mut self, class: usize) -> Option<u64> {
        let bytes = CLASS_BYTES[class].into();
        if let Some(base) = self.fresh[class].take(bytes) {
            return Some(base);
        }
        let step = self.steps.iter_mut().find(|step| step.end - step.next >= RUN_BYTES)?;
        let next = step.take(RUN_BYTES)?;
        self.steps.retain(|step| step.end - step.next >= RUN_BYTES);
        self.fresh[class] = Span { next, end: next + RUN_BYTES };
        self.fresh[class].take(bytes)
    }
}

/// Transmit memory of one elastic thread, for the Linux thread that made it. Clones are the same
/// arena; its buffers may move to other threads.
#[derive(Clone, Copy)]
pub struct TxArena {
    home: &'static Home,
    _stays: PhantomData<*const ()>,
}

impl Default for TxArena {
    fn default() -> Self {
        let home = Box::leak(Box::new(Home {
            owner: AtomicUsize::new(here()),
            state: UnsafeCell::default(),
            words: Mutex::default(),
            has_words: AtomicBool::new(false),
        }));
        TxArena { home, _stays: PhantomData }
    }
}

impl TxArena {
    /// The largest block.
    pub const LARGEST_BYTES: u32 = CLASS_BYTES[CLASS_BYTES.len() - 1];

    /// An empty buffer with room for `bytes`, or for [`TxArena::LARGEST_BYTES`] if that is less.
    /// `None`: out of memory until more is adopted or freed.
    #[inline]
    pub fn alloc(&self, bytes: usize) -> Option<TxBuf> {
        let class = CLASS_BYTES.iter().position(|&size| size as usize >= bytes);
        let class = class.unwrap_or(CLASS_BYTES.len() - 1);
        let address = self.home.claim().take(class)?;
        Some(TxBuf::new(address, class, self.home))
    }

    /// Whether another step of memory should be requested, before it is needed.
    #[inline]
    pub fn wants_memory(&self) -> bool {
        self.home.claim().listen();
        let left = |step: &Span| step.end - step.next;
        self.home.with(|state| state.steps.iter().map(left).sum::<u64>() < 8 * RUN_BYTES)
    }

    /// Adds memory.
    ///
    /// # Safety
    /// `[base, base + bytes)` is writable memory for this arena alone, for the life of the arena
    /// and all its buffers.
    pub(super) unsafe fn adopt(&self, base: u64, bytes: u64) {
        self.home.claim().with(|state| state.steps.push(Span { next: base, end: base + bytes }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn arena(bytes: usize) -> (TxArena, Vec<u128>) {
        let mut memory = vec![0u128; bytes / 16];
        let arena = TxArena::default();
        // SAFETY: the vector is kept beside the arena and has no other user.
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

    #[test]
    fn buffers_that_end_elsewhere_come_home() {
        let (arena, _memory) = arena(2 << 20);
        let largest = TxArena::LARGEST_BYTES as usize;
        for round in 0..50 {
            let mut all: Vec<_> = std::iter::from_fn(|| arena.alloc(largest)).collect();
            assert_eq!(all.len(), 16, "round {round}");
            let shared = all.pop().unwrap().share();
            let here = shared.clone();
            let there = shared.clone();
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    all.iter_mut().for_each(|buf| assert_eq!(buf.extend(b"elsewhere"), 9));
                    all.truncate(round % 16);
                    // Made and dropped where counting needs words.
                    let one_more = there.clone();
                    drop(there);
                    scope.spawn(move || assert!(one_more.is_empty()));
                });
                drop(shared);
            });
            assert!(here.is_empty());
            assert!((0..15).all(|_| arena.alloc(largest).is_some()), "fifteen came home");
            let others: Vec<_> = std::iter::from_fn(|| arena.alloc(largest)).collect();
            assert_eq!(others.len(), 15, "one is still referred to");
        }
    }

    #[test]
    fn a_reference_made_elsewhere_counts_although_its_model_was_dropped_here() {
        let (arena, _memory) = arena(2 << 20);
        for other_first in [false, true] {
            let mut buf = arena.alloc(1).unwrap();
            buf.extend(b"content");
            let first = buf.share();
            let other = first.clone();
            let (first, made) = std::thread::scope(|scope| {
                let made = scope.spawn(move || {
                    let made = if other_first {
                        drop(other);
                        first.clone()
                    } else {
                        let made = first.clone();
                        drop(other);
                        made
                    };
                    (first, made)
                });
                made.join().unwrap()
            });
            drop(first);
            let _ = arena.wants_memory();
            // If it were freed, the next buffers would take its place.
            let others: Vec<_> = (0..4).filter_map(|_| arena.alloc(1)).collect();
            assert!(others.iter().all(|buf| buf.base() != made.as_ptr() as u64));
            assert_eq!(&made[..], b"content");
        }
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
