//! Transmit memory of one elastic thread: 2 MB steps from the dataplane, cut into runs of 128 KB,
//! and each run into blocks of one size class.
//!
//! Allocating and freeing are O(1) without atomics: each run has a free list, kept inside the free
//! blocks themselves, and new blocks behind them. A run whose blocks are all free belongs to no
//! class, so that what one class has used is there for the others. Connections move with their flow
//! groups, so a buffer may be dropped on another Linux thread: then its block is sent home, at a
//! cost that only such buffers pay.
use super::tx_buf::{Shared, TxBuf};
use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ptr::{NonNull, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Block sizes. A step of 4 wastes little and leaves few lists.
pub(super) const CLASS_BYTES: [u32; 5] = [512, 2 << 10, 8 << 10, 32 << 10, 128 << 10];
const CLASSES: usize = CLASS_BYTES.len();
/// Memory is cut into runs of this size, at multiples of it.
const RUN_BYTES: u64 = 128 << 10;
/// With fewer free runs than this, more memory should be requested.
const RUNS_MIN: usize = 8;

/// No run.
const NONE: u32 = u32::MAX;

/// A run of blocks of one class.
#[derive(Clone, Copy)]
struct Run {
    /// Address of the first free block, 0: none; its first word is the next address.
    free: u64,
    /// Where blocks begin that were never used, bytes from the run's start.
    fresh: u32,
    /// Blocks in use.
    used: u32,
    /// Its neighbours among the runs of its class that have free blocks.
    before: u32,
    after: u32,
}

impl Run {
    const EMPTY: Run = Run { free: 0, fresh: 0, used: 0, before: NONE, after: NONE };
}

struct State {
    /// The number (address / [`RUN_BYTES`]) of the first of `runs`.
    first: u64,
    /// All runs from there on; also places between steps, which are never used.
    runs: Vec<Run>,
    /// For each class, the first of its runs that have free blocks.
    open: [u32; CLASSES],
    /// Runs of no class.
    empty: Vec<u32>,
    /// How many of them have been used and not given back.
    spare: usize,
    /// How many runs were used again.
    reused: u64,
    /// Bytes in free blocks and empty runs.
    free_bytes: u64,
    /// Bytes in all.
    all_bytes: u64,
}

impl Default for State {
    fn default() -> State {
        State {
            first: 0,
            runs: Vec::new(),
            open: [NONE; CLASSES],
            empty: Vec::new(),
            spare: 0,
            reused: 0,
            free_bytes: 0,
            all_bytes: 0,
        }
    }
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
        // SAFETY: the block is one of `take`, and its buffer is gone.
        self.with(|state| unsafe { state.put(address, class) });
    }

    #[inline]
    pub(super) fn give_back(&self, address: u64, class: usize) {
        if self.is_here() {
            self.take_back(address, class);
        } else {
            self.say(Word::Block(address, class));
        }
    }

    /// A free block of this class or a larger one, and its class.
    fn take(&self, class: usize) -> Option<(u64, usize)> {
        let taken = self.with(|state| state.take(class));
        taken.map(|block| (block, class)).or_else(|| self.take_otherwise(class))
    }

    #[cold]
    fn take_otherwise(&self, class: usize) -> Option<(u64, usize)> {
        self.listen();
        (class..CLASSES).find_map(|class| Some((self.with(|state| state.take(class))?, class)))
    }
}

impl State {
    /// Adds the whole runs of new memory.
    fn adopt(&mut self, base: u64, bytes: u64) {
        let (begin, end) = (base.div_ceil(RUN_BYTES), (base + bytes) / RUN_BYTES);
        if end <= begin {
            return;
        }
        if self.runs.is_empty() {
            self.first = begin;
        }
        if begin < self.first {
            // The numbers of all runs change. Memory comes from the lowest address on, so this is
            // rare.
            let more = (self.first - begin) as u32;
            let up = |run: &mut u32| *run += if *run == NONE { 0 } else { more };
            self.open.iter_mut().chain(&mut self.empty).for_each(up);
            for run in &mut self.runs {
                up(&mut run.before);
                up(&mut run.after);
            }
            self.runs.splice(0..0, core::iter::repeat_n(Run::EMPTY, more as usize));
            self.first = begin;
        }
        let needed = (end - self.first) as usize;
        if self.runs.len() < needed {
            self.runs.resize(needed, Run::EMPTY);
        }
        // The lowest is taken first.
        self.empty.extend((begin..end).rev().map(|number| (number - self.first) as u32));
        self.free_bytes += (end - begin) * RUN_BYTES;
        self.all_bytes += bytes;
    }

    #[inline]
    fn take(&mut self, class: usize) -> Option<u64> {
        let index = match self.open[class] {
            NONE => self.open_another(class)?,
            index => index,
        };
        let bytes = CLASS_BYTES[class];
        let run = &mut self.runs[index as usize];
        let block = if run.free != 0 {
            let block = run.free;
            let link = with_exposed_provenance_mut::<u64>(block as usize);
            // SAFETY: a free block of ours; `put` wrote the link there.
            run.free = unsafe { link.read() };
            block
        } else {
            run.fresh += bytes;
            (self.first + u64::from(index)) * RUN_BYTES + u64::from(run.fresh - bytes)
        };
        run.used += 1;
        self.free_bytes -= u64::from(bytes);
        if run.free == 0 && u64::from(run.fresh) == RUN_BYTES {
            self.unlink(index, class);
        }
        Some(block)
    }

    /// Gives a class another run.
    #[cold]
    fn open_another(&mut self, class: usize) -> Option<u32> {
        if self.empty.is_empty() {
            // A class may have kept a run that has no block in use.
            for other in 0..CLASSES {
                let kept = self.open[other];
                if kept != NONE && self.runs[kept as usize].used == 0 {
                    self.unlink(kept, other);
                    self.becomes_empty(kept);
                }
            }
        }
        let index = self.empty.pop()?;
        if self.runs[index as usize].fresh > 0 {
            self.spare -= 1;
            self.reused += 1;
        }
        self.runs[index as usize] = Run::EMPTY;
        self.link(index, class);
        Some(index)
    }

    /// Takes a block back.
    ///
    /// # Safety
    /// It was taken with this class, and nothing names it any more.
    #[inline]
    unsafe fn put(&mut self, address: u64, class: usize) {
        let index = (address / RUN_BYTES - self.first) as u32;
        let run = &mut self.runs[index as usize];
        let was_full = run.free == 0 && u64::from(run.fresh) == RUN_BYTES;
        let link = with_exposed_provenance_mut::<u64>(address as usize);
        // SAFETY: the block is ours, writable and 512-byte aligned.
        unsafe { link.write(run.free) };
        run.free = address;
        run.used -= 1;
        let unused = run.used == 0;
        self.free_bytes += u64::from(CLASS_BYTES[class]);
        if was_full {
            self.link(index, class);
        }
        if unused {
            self.close(index, class);
        }
    }

    /// A run has no block in use. A class keeps its last one while there are others: the next block
    /// is soon taken again.
    fn close(&mut self, index: u32, class: usize) {
        let Run { before, after, .. } = self.runs[index as usize];
        if (before, after) == (NONE, NONE) && !self.empty.is_empty() {
            return;
        }
        self.unlink(index, class);
        self.becomes_empty(index);
    }

    /// A run belongs to no class any more.
    fn becomes_empty(&mut self, index: u32) {
        self.empty.push(index);
        self.spare += 1;
    }

    /// The addresses of runs that have been used and are empty. Nothing is in them from now on.
    fn forget_spare(&mut self) -> Vec<u64> {
        let State { first, runs, empty, spare, .. } = self;
        *spare = 0;
        let mut used: Vec<u32> = empty.clone();
        used.retain(|index| runs[*index as usize].fresh > 0);
        for index in &used {
            runs[*index as usize] = Run::EMPTY;
        }
        used.into_iter().map(|index| (*first + u64::from(index)) * RUN_BYTES).collect()
    }

    /// Puts a run in front of those of its class that have free blocks.
    fn link(&mut self, index: u32, class: usize) {
        let after = core::mem::replace(&mut self.open[class], index);
        if let Some(next) = self.runs.get_mut(after as usize) {
            next.before = index;
        }
        let run = &mut self.runs[index as usize];
        (run.before, run.after) = (NONE, after);
    }

    fn unlink(&mut self, index: u32, class: usize) {
        let Run { before, after, .. } = self.runs[index as usize];
        match self.runs.get_mut(before as usize) {
            Some(run) => run.after = after,
            None => self.open[class] = after,
        }
        if let Some(run) = self.runs.get_mut(after as usize) {
            run.before = before;
        }
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

    /// The sizes of blocks, smallest first.
    pub const SIZES: [u32; CLASSES] = CLASS_BYTES;

    /// An empty buffer with room for `bytes`, or for [`TxArena::LARGEST_BYTES`] if that is less.
    /// `None`: out of memory until more is adopted or freed.
    #[inline]
    pub fn alloc(&self, bytes: usize) -> Option<TxBuf> {
        let class = CLASS_BYTES.iter().position(|&size| size as usize >= bytes);
        let class = class.unwrap_or(CLASS_BYTES.len() - 1);
        let (address, class) = self.home.claim().take(class)?;
        Some(TxBuf::new(address, class, self.home))
    }

    /// The same, but with less room where there is no such block.
    pub fn alloc_some(&self, bytes: usize) -> Option<TxBuf> {
        self.alloc(bytes).or_else(|| {
            CLASS_BYTES.iter().rev().find_map(|&size| {
                if (size as usize) < bytes { self.alloc(size as usize) } else { None }
            })
        })
    }

    /// Bytes that are not in use.
    #[inline]
    pub fn free_bytes(&self) -> u64 {
        self.home.claim().listen();
        self.home.with(|state| state.free_bytes)
    }

    /// Number of runs of 128 KB that were used and are empty, and how often one was used again.
    #[inline]
    pub fn spare(&self) -> (usize, u64) {
        self.home.claim().with(|state| (state.spare, state.reused))
    }

    /// Gives the pages of such runs back to Linux.
    pub fn give_back(&self) {
        for address in self.home.claim().with(State::forget_spare) {
            let at = with_exposed_provenance_mut(address as usize);
            // SAFETY: writable memory of this arena of which nothing is in use; it reads as zeroes
            // afterwards. An error only means that the pages stay.
            unsafe { libc::madvise(at, RUN_BYTES as usize, libc::MADV_REMOVE) };
        }
    }

    /// Bytes that the dataplane has given it.
    pub fn all_bytes(&self) -> u64 {
        self.home.claim().with(|state| state.all_bytes)
    }

    /// Whether another step of memory should be requested, before it is needed.
    #[inline]
    pub fn wants_memory(&self) -> bool {
        self.home.claim().listen();
        self.home.with(|state| state.empty.len() < RUNS_MIN)
    }

    /// Adds memory.
    ///
    /// # Safety
    /// `[base, base + bytes)` is writable memory for this arena alone, for the life of the arena
    /// and all its buffers.
    pub(super) unsafe fn adopt(&self, base: u64, bytes: u64) {
        self.home.claim().with(|state| state.adopt(base, bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn arena(bytes: usize) -> (TxArena, Vec<u128>) {
        let mut memory = vec![0u128; (bytes + RUN_BYTES as usize) / 16];
        let arena = TxArena::default();
        let at = memory.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: the vector is kept beside the arena and has no other user.
        unsafe { arena.adopt(at.next_multiple_of(RUN_BYTES), bytes as u64) };
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
    fn what_one_class_has_used_is_there_for_the_others() {
        let (arena, _memory) = arena(2 << 20);
        let sizes = CLASS_BYTES.into_iter().chain(CLASS_BYTES.into_iter().rev());
        for bytes in sizes.map(|bytes| bytes as usize) {
            let all: Vec<_> = std::iter::from_fn(|| arena.alloc(bytes)).collect();
            assert_eq!(all.len() * bytes, 2 << 20);
            assert_eq!(arena.free_bytes(), 0);
            assert!(arena.alloc(1).is_none() && arena.alloc_some(usize::MAX).is_none());
            drop(all);
            assert_eq!(arena.free_bytes(), arena.all_bytes());
        }
    }

    #[test]
    fn where_no_block_of_a_size_is_left_there_are_others() {
        let (arena, _memory) = arena(1 << 20);
        let mut all: Vec<_> = std::iter::from_fn(|| arena.alloc(2048)).collect();
        drop(all.pop());
        assert!(arena.alloc(4096).is_none());
        let large = arena.alloc_some(usize::MAX).unwrap();
        assert_eq!(large.capacity(), 2048);
        drop(large);
        assert_eq!(arena.alloc(1).unwrap().capacity(), 2048);
    }

    #[test]
    fn memory_may_come_from_below() {
        let (mut memory, run) = (vec![0u128; (4 * RUN_BYTES) as usize / 16], RUN_BYTES);
        let arena = TxArena::default();
        let base = (memory.as_mut_ptr().expose_provenance() as u64).next_multiple_of(run);
        // SAFETY: the vector outlives the arena's buffers and has no other user.
        unsafe { arena.adopt(base + 2 * run, run) };
        let above: Vec<_> = (0..3).filter_map(|_| arena.alloc(512)).collect();
        // SAFETY: as above.
        unsafe { arena.adopt(base, run) };
        let rest: Vec<_> = std::iter::from_fn(|| arena.alloc(512)).collect();
        assert_eq!(rest.len(), 2 * 256 - 3);
        assert!(rest.iter().chain(&above).all(|buf| (buf.base() - base) / run != 1));
        drop((above, rest));
        assert_eq!(arena.free_bytes(), 2 * run);
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
