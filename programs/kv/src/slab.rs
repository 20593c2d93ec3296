//! Memory for items: pages, cut into chunks of one size class each, as in memcached.
//!
//! A class without free memory finds some by a clock over its pages (Corbató, "A paging experiment
//! with the Multics system", 1968): an item that was used since the hand last passed is spared
//! once. So reading an item changes only one bit, and rarely.
use crate::item::{Item, NIL};
use crate::words::Words;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Smallest chunk.
const CHUNK_BYTES_MIN: u64 = 96;
/// Chunks that the hand passes before it gives up; in small classes it has gone around by then.
const HAND_STEPS: usize = 1024;
/// Pages of other classes that are tried for a class without any.
const PAGE_TRIES: usize = 16;
/// The first page does not begin at word 0, which belongs to no item.
const FIRST_WORD: usize = 8;

/// The hand's verdict about an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its memory is free: it can no longer be found, and has no user.
    Freed,
    /// It stays this time.
    Spared,
    /// It is in use.
    Busy,
}

struct Class {
    chunk_words: usize,
    /// First chunk of the free list.
    free: u32,
    free_count: usize,
    /// Rest of the last page, not cut yet.
    fresh: core::ops::Range<usize>,
    pages: Vec<usize>,
    hand: usize,
}

struct Inner {
    classes: Vec<Class>,
    /// Pages without a class.
    pages: Vec<usize>,
}

/// The allocator.
pub struct Slabs {
    words: Words,
    page_words: usize,
    /// Chunk sizes, ascending.
    sizes: Vec<u64>,
    inner: Mutex<Inner>,
}

/// Numbers of one class.
#[derive(Clone, Copy, Debug)]
pub struct ClassStats {
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// Chunks of a page.
    pub per_page: u64,
    /// Pages it has.
    pub pages: u64,
    /// Chunks that hold an item.
    pub used: u64,
}

impl Slabs {
    /// Cuts memory into pages of `page_bytes`; chunk sizes grow by `factor`.
    pub fn new(words: Words, page_bytes: u64, factor: f64) -> Slabs {
        let page_words = (page_bytes / 8) as usize;
        let sizes = chunk_sizes(page_bytes, factor);
        let class = |bytes: &u64| Class {
            chunk_words: (bytes / 8) as usize,
            free: NIL,
            free_count: 0,
            fresh: 0..0,
            pages: Vec::new(),
            hand: 0,
        };
        let classes = sizes.iter().map(class).collect();
        let count = words.len().saturating_sub(FIRST_WORD) / page_words;
        let pages = (0..count).rev().map(|page| FIRST_WORD + page * page_words).collect();
        Slabs { words, page_words, sizes, inner: Mutex::new(Inner { classes, pages }) }
    }

    /// The class of items of this many bytes; `None`: too large for any.
    pub fn class_of(&self, bytes: u64) -> Option<u8> {
        let class = self.sizes.partition_point(|&size| size < bytes);
        (class < self.sizes.len()).then_some(class as u8)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates a chunk; if none is free, at the cost of items that `judge` gives up.
    pub fn allocate(&self, class: u8, mut judge: impl FnMut(Item) -> Verdict) -> Option<Item> {
        let mut inner = self.inner();
        let class = class as usize;
        let at = self
            .take(&mut inner, class)
            .or_else(|| self.turn_hand(&mut inner, class, &mut judge))
            .or_else(|| {
                self.rob(&mut inner, class, &mut judge)?;
                self.take(&mut inner, class)
            })?;
        let item = Item::new(self.words, at);
        // Before the lock is released: the old content must not make it look free.
        item.set_taken(class as u8);
        Some(item)
    }

    /// Frees a chunk.
    pub fn free(&self, item: Item) {
        let class = item.shape().class();
        let mut inner = self.inner();
        if let Some(class) = inner.classes.get_mut(class) {
            class.push(item);
        }
    }

    fn take(&self, inner: &mut Inner, class: usize) -> Option<u32> {
        let Inner { classes, pages } = inner;
        let class = &mut classes[class];
        if class.free != NIL {
            let item = Item::new(self.words, class.free);
            class.free = item.link().0;
            class.free_count -= 1;
            return Some(item.at);
        }
        if class.fresh.len() < class.chunk_words {
            let page = pages.pop()?;
            class.pages.push(page);
            class.fresh = page..page + self.page_words;
        }
        let at = class.fresh.start;
        class.fresh.start += class.chunk_words;
        Some(at as u32)
    }

    fn turn_hand(
        &self,
        inner: &mut Inner,
        number: usize,
        judge: &mut impl FnMut(Item) -> Verdict,
    ) -> Option<u32> {
        let class = &mut inner.classes[number];
        let per_page = self.page_words / class.chunk_words;
        let chunks = class.pages.len() * per_page;
        for _ in 0..HAND_STEPS.min(2 * chunks) {
            let at = class.pages[class.hand / per_page] + class.hand % per_page * class.chunk_words;
            class.hand = (class.hand + 1) % chunks;
            let item = Item::new(self.words, at as u32);
            if item.shape().is_linked() && judge(item) == Verdict::Freed {
                return Some(item.at);
            }
        }
        None
    }

    /// Takes a page from another class, of those that have most, for a class that found nothing.
    #[cold]
    fn rob(
        &self,
        inner: &mut Inner,
        class: usize,
        judge: &mut impl FnMut(Item) -> Verdict,
    ) -> Option<()> {
        let Inner { classes, pages } = inner;
        let others = |number: &usize| *number != class && !classes[*number].pages.is_empty();
        let mut victims: Vec<usize> = (0..classes.len()).filter(others).collect();
        victims.sort_by_key(|&number| core::cmp::Reverse(classes[number].pages.len()));
        let mut tries = PAGE_TRIES;
        for number in victims {
            let victim = &mut classes[number];
            for _ in 0..victim.pages.len().min(tries) {
                tries -= 1;
                let page = victim.pages.remove(0);
                if self.empty(victim, number as u8, page, judge) {
                    pages.push(page);
                    return Some(());
                }
                victim.pages.push(page);
            }
        }
        None
    }

    /// Removes all items of a page; returns whether none of its chunks is in use.
    fn empty(
        &self,
        class: &mut Class,
        number: u8,
        page: usize,
        judge: &mut impl FnMut(Item) -> Verdict,
    ) -> bool {
        let whole = page..page + self.page_words;
        let cut_here = whole.contains(&class.fresh.start);
        let cut = if cut_here { class.fresh.start } else { whole.end };
        let chunks = (page..).step_by(class.chunk_words);
        let mut empty = true;
        for at in chunks.take(self.page_words / class.chunk_words).take_while(|at| *at < cut) {
            let item = Item::new(self.words, at as u32);
            if !item.shape().is_linked() {
                empty &= item.shape().is_free();
                continue;
            }
            // Spared the first time, which removes the mark.
            let freed = match judge(item) {
                Verdict::Spared => judge(item) == Verdict::Freed,
                verdict => verdict == Verdict::Freed,
            };
            if freed {
                class.keep(item, number);
            }
            empty &= freed;
        }
        if empty {
            class.forget(self.words, &whole);
            class.hand = 0;
            if cut_here {
                class.fresh = 0..0;
            }
        }
        empty
    }

    /// Numbers of each class.
    pub fn stats(&self) -> Vec<ClassStats> {
        let inner = self.inner();
        let stats = |class: &Class| {
            let per_page = (self.page_words / class.chunk_words) as u64;
            let (pages, fresh) = (class.pages.len() as u64, class.fresh.len() / class.chunk_words);
            let used = pages * per_page - class.free_count as u64 - fresh as u64;
            let chunk_bytes = class.chunk_words as u64 * 8;
            ClassStats { chunk_bytes, per_page, pages, used }
        };
        inner.classes.iter().map(stats).collect()
    }

    /// Bytes of pages in classes.
    pub fn used_bytes(&self) -> u64 {
        let pages: usize = self.inner().classes.iter().map(|class| class.pages.len()).sum();
        (pages * self.page_words * 8) as u64
    }
}

impl Class {
    fn push(&mut self, item: Item) {
        let class = item.shape().class() as u8;
        self.keep(item, class);
    }

    fn keep(&mut self, item: Item, class: u8) {
        item.set_free(class);
        item.set_next(self.free);
        self.free = item.at;
        self.free_count += 1;
    }

    /// Removes the chunks of a page from the free list.
    fn forget(&mut self, words: Words, page: &core::ops::Range<usize>) {
        let mut at = core::mem::replace(&mut self.free, NIL);
        self.free_count = 0;
        while at != NIL {
            let item = Item::new(words, at);
            at = item.link().0;
            if !page.contains(&(item.at as usize)) {
                item.set_next(self.free);
                self.free = item.at;
                self.free_count += 1;
            }
        }
    }
}

fn chunk_sizes(page_bytes: u64, factor: f64) -> Vec<u64> {
    let mut sizes = Vec::new();
    let mut size = CHUNK_BYTES_MIN;
    while size < page_bytes / 2 && sizes.len() < 200 {
        sizes.push(size);
        size = ((size as f64 * factor) as u64).next_multiple_of(8).max(size + 8);
    }
    sizes.extend([page_bytes / 2, page_bytes]);
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 1 << 20;

    fn slabs(pages: u64) -> Slabs {
        let words = Words::private((pages * PAGE) as usize + FIRST_WORD * 8).unwrap();
        Slabs::new(words, PAGE, 1.25)
    }

    #[test]
    fn classes_fit_and_waste_little() {
        let slabs = slabs(1);
        for bytes in (8..PAGE).step_by(1001) {
            let class = slabs.class_of(bytes).unwrap() as usize;
            assert!(slabs.sizes[class] >= bytes);
            assert!(class == 0 || slabs.sizes[class - 1] < bytes);
        }
        assert_eq!(slabs.class_of(PAGE + 1), None);
    }

    #[test]
    fn chunks_never_overlap_and_come_back() {
        let slabs = slabs(3);
        let class = slabs.class_of(1000).unwrap();
        let take = || slabs.allocate(class, |_| Verdict::Busy);
        let mut all: Vec<Item> = std::iter::from_fn(take).collect();
        let chunk = slabs.sizes[class as usize];
        assert_eq!(all.len() as u64, 3 * (PAGE / chunk));
        let mut starts: Vec<u32> = all.iter().map(|item| item.at).collect();
        starts.sort_unstable();
        assert!(starts.windows(2).all(|pair| u64::from(pair[1] - pair[0]) * 8 >= chunk));
        assert!(starts[0] != NIL);
        // Another class gets nothing while they are in use, and a page once they are free.
        let large = slabs.class_of(PAGE).unwrap();
        assert!(slabs.allocate(large, |_| Verdict::Busy).is_none());
        for item in &all {
            let fresh =
                crate::item::Fresh { key: b"k", hash: 1, flags: 0, expires_s: 0, value_len: 900 };
            item.begin(&fresh, class);
            slabs.free(*item);
        }
        all.clear();
        assert!(slabs.allocate(large, |_| Verdict::Busy).is_some());
        let left = std::iter::from_fn(take).count() as u64;
        assert_eq!(left, 2 * (PAGE / chunk));
        assert_eq!(slabs.stats()[class as usize].used, left);
    }
}
