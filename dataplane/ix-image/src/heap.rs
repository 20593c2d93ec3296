//! The image's heap: size classes in an address range of its own.
//!
//! The C library's heap would use the `brk`, which belongs to the program. This heap is simple,
//! because the packet path never allocates: one lock, a list of free blocks for each class, no
//! merging. There are four classes to a power of two, so a block is at most a quarter larger than
//! requested.
use crate::sys;
use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::hint::spin_loop;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, Ordering};

/// Address space. Memory is committed when it is used.
const REGION_BYTES: usize = 16 << 30;
/// What is tried in this order where a limit (`RLIMIT_AS`) leaves no more.
const SMALLER_REGIONS: [usize; 2] = [1 << 30, 64 << 20];
/// Memory is committed in steps of this, so that it can be backed by 2 MB pages.
const COMMIT_BYTES: usize = 2 << 20;
/// Bytes in front of each payload.
const HEADER_BYTES: usize = size_of::<Header>();
/// Smallest block is one unit; all sizes and addresses are multiples of it.
const UNIT: usize = 16;
/// Free blocks of at least this size return their pages to Linux.
const RETURN_BYTES: usize = 8 << 10;
const PAGE_BYTES: usize = 4096;
const CLASSES: usize = 128;
const USED: u32 = 0x5558_4948;
const FREE: u32 = 0x4652_4545;

#[repr(C)]
struct Header {
    class: u32,
    state: u32,
    /// From the start of the block to the payload.
    payload_offset: u64,
}

/// The heap without its lock.
struct Blocks {
    /// First address that was never allocated. From here on memory is zero.
    fresh: usize,
    committed: usize,
    end: usize,
    /// Free blocks of each class, linked through their first word.
    free: [usize; CLASSES],
}

/// A block and whether its bytes are known to be zero.
struct Block {
    addr: usize,
    zero: bool,
}

/// Bytes of the blocks of a class.
const fn class_bytes(class: usize) -> usize {
    if class < 8 {
        return (class + 1) * UNIT;
    }
    let (power, quarter) = ((class - 8) / 4, (class - 8) % 4);
    ((8 * UNIT) << power) / 4 * (5 + quarter)
}

/// The smallest class whose blocks hold `bytes`.
const fn class_of(bytes: usize) -> usize {
    if bytes <= 8 * UNIT {
        return if bytes == 0 { 0 } else { (bytes - 1) / UNIT };
    }
    // 2^power * 128 < bytes <= 2^(power + 1) * 128
    let power = ((bytes - 1) / (8 * UNIT)).ilog2() as usize;
    let quarter_bytes = (2 * UNIT) << power;
    8 + power * 4 + (bytes - 1) / quarter_bytes - 4
}

impl Blocks {
    const fn new() -> Blocks {
        Blocks { fresh: 0, committed: 0, end: 0, free: [0; CLASSES] }
    }

    fn take(&mut self, class: usize) -> Option<Block> {
        let addr = self.free[class];
        if addr == 0 {
            return self.take_fresh(class_bytes(class));
        }
        // SAFETY: a free block of this class; its first word links to the next one.
        self.free[class] = unsafe { *(addr as *const usize) };
        if class_bytes(class) >= RETURN_BYTES {
            advise_around(addr, class_bytes(class), libc::MADV_HUGEPAGE);
        }
        Some(Block { addr, zero: false })
    }

    fn put(&mut self, addr: usize, class: usize) {
        let bytes = class_bytes(class);
        if bytes >= RETURN_BYTES {
            // The page of the link stays.
            let start = (addr + size_of::<usize>()).next_multiple_of(PAGE_BYTES);
            let end = (addr + bytes) & !(PAGE_BYTES - 1);
            let bytes = end.saturating_sub(start) as u64;
            // Or Linux fills the 2 MB page once more within seconds, for what is left of it.
            advise_around(addr, class_bytes(class), libc::MADV_NOHUGEPAGE);
            let args = [start as u64, bytes, libc::MADV_DONTNEED as u64, 0, 0, 0];
            // SAFETY: whole pages inside a free block. An error only means that they stay.
            unsafe { sys::syscall(libc::SYS_madvise, args) };
        }
        // SAFETY: the block is free now, and at least a word long.
        unsafe { *(addr as *mut usize) = self.free[class] };
        self.free[class] = addr;
    }

    #[cold]
    fn take_fresh(&mut self, bytes: usize) -> Option<Block> {
        if self.end == 0 {
            let sizes = [REGION_BYTES].into_iter().chain(SMALLER_REGIONS);
            let reserve = |bytes| sys::map(bytes, libc::PROT_NONE).ok().map(|at| (at, bytes));
            let (start, region_bytes) = sizes.into_iter().find_map(reserve)?;
            let start = start as usize;
            self.fresh = start.next_multiple_of(COMMIT_BYTES);
            self.committed = self.fresh;
            self.end = start + region_bytes;
        }
        let after = self.fresh.checked_add(bytes)?;
        if after > self.committed {
            let target = after.next_multiple_of(COMMIT_BYTES);
            if target > self.end {
                return None;
            }
            self.commit(target)?;
        }
        let addr = self.fresh;
        self.fresh = after;
        Some(Block { addr, zero: true })
    }

    fn commit(&mut self, target: usize) -> Option<()> {
        let (start, bytes) = (self.committed as u64, (target - self.committed) as u64);
        let prot = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        // SAFETY: pages of our own reservation that nobody uses yet.
        let rc = unsafe { sys::syscall(libc::SYS_mprotect, [start, bytes, prot, 0, 0, 0]) };
        if rc < 0 {
            return None;
        }
        let advice = libc::MADV_HUGEPAGE as u64;
        // SAFETY: as above; it is only advice.
        unsafe { sys::syscall(libc::SYS_madvise, [start, bytes, advice, 0, 0, 0]) };
        self.committed = target;
        Some(())
    }
}

/// Whether Linux is to merge the 2 MB pages that a block is in. Both sides of a change have whole
/// such pages, so there are few mappings.
fn advise_around(addr: usize, bytes: usize, advice: i32) {
    let start = addr & !(COMMIT_BYTES - 1);
    let end = (addr + bytes).next_multiple_of(COMMIT_BYTES);
    let args = [start as u64, (end - start) as u64, advice as u64, 0, 0, 0];
    // SAFETY: committed pages of our own reservation; it is only advice.
    unsafe { sys::syscall(libc::SYS_madvise, args) };
}

/// Commits the whole address space, because sealed memory cannot be committed later. Linux still
/// gives pages only when they are used.
pub fn commit_all() {
    #[cfg(not(test))]
    crate::c_symbols::HEAP.with(|blocks| {
        // After a failure what is committed already remains, and later allocations return null.
        if blocks.end != 0 {
            let _ = blocks.commit(blocks.end & !(COMMIT_BYTES - 1));
        }
    });
}

/// A heap, used by the image's Rust allocator and `malloc`.
pub struct Heap {
    locked: AtomicBool,
    blocks: UnsafeCell<Blocks>,
}

// SAFETY: `blocks` is touched only under the lock.
unsafe impl Sync for Heap {}

impl Heap {
    /// An empty heap.
    pub const fn new() -> Heap {
        Heap { locked: AtomicBool::new(false), blocks: UnsafeCell::new(Blocks::new()) }
    }

    fn with<T>(&self, f: impl FnOnce(&mut Blocks) -> T) -> T {
        while self.locked.swap(true, Ordering::Acquire) {
            let mut spins = 0u32;
            while self.locked.load(Ordering::Relaxed) {
                spin_loop();
                spins += 1;
                if spins.is_multiple_of(1024) {
                    // The holder of the lock may wait for this processor.
                    // SAFETY: no pointers.
                    unsafe { sys::syscall(libc::SYS_sched_yield, [0; 6]) };
                }
            }
        }
        // SAFETY: we hold the lock.
        let result = f(unsafe { &mut *self.blocks.get() });
        self.locked.store(false, Ordering::Release);
        result
    }

    /// Allocates `bytes` at a multiple of `align` (a power of two); null if there is no memory.
    pub fn allocate(&self, bytes: usize, align: usize, zeroed: bool) -> *mut u8 {
        let slack = if align <= UNIT { 0 } else { align };
        let needed = match bytes.checked_add(HEADER_BYTES + slack) {
            Some(needed) if needed <= REGION_BYTES => needed,
            _ => return null_mut(),
        };
        let class = class_of(needed);
        let Some(block) = self.with(|blocks| blocks.take(class)) else { return null_mut() };
        let payload = (block.addr + HEADER_BYTES).next_multiple_of(align.max(UNIT));
        let header = Header {
            class: class as u32,
            state: USED,
            payload_offset: (payload - block.addr) as u64,
        };
        // SAFETY: the block is ours, and long enough for header and payload.
        unsafe { ((payload - HEADER_BYTES) as *mut Header).write(header) };
        let payload = payload as *mut u8;
        if zeroed && !block.zero {
            // SAFETY: as above.
            unsafe { payload.write_bytes(0, bytes) };
        }
        payload
    }

    /// Frees memory.
    ///
    /// # Safety
    /// `payload` was allocated from this heap and is not used any more.
    pub unsafe fn release(&self, payload: *mut u8) {
        // SAFETY: the caller's promise: a header stands in front of it.
        let header = unsafe { header_of(payload) };
        let class = header.class as usize;
        header.state = FREE;
        let addr = payload as usize - header.payload_offset as usize;
        self.with(|blocks| blocks.put(addr, class));
    }

    /// Bytes that fit at `payload`.
    ///
    /// # Safety
    /// `payload` was allocated from this heap and was not freed.
    pub unsafe fn usable(&self, payload: *mut u8) -> usize {
        // SAFETY: the caller's promise.
        let header = unsafe { header_of(payload) };
        class_bytes(header.class as usize) - header.payload_offset as usize
    }

    /// Changes the length of an allocation, and moves it if needed; null if there is no memory.
    ///
    /// # Safety
    /// As [`Heap::release`], unless null is returned: then the old memory does not change.
    pub unsafe fn resize(&self, payload: *mut u8, bytes: usize, align: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        let usable = unsafe { self.usable(payload) };
        if bytes <= usable && bytes >= usable / 2 {
            return payload;
        }
        let new = self.allocate(bytes, align, false);
        if !new.is_null() {
            // SAFETY: both are ours and at least that long, and they are different blocks.
            unsafe {
                new.copy_from_nonoverlapping(payload, bytes.min(usable));
                self.release(payload);
            }
        }
        new
    }
}

/// # Safety
/// `payload` was allocated from a heap and was not freed.
unsafe fn header_of<'a>(payload: *mut u8) -> &'a mut Header {
    // SAFETY: the caller's promise.
    let header = unsafe { &mut *payload.sub(HEADER_BYTES).cast::<Header>() };
    if header.state != USED {
        // Freed twice, or overwritten: continuing would only spread the damage.
        std::process::abort();
    }
    header
}

// SAFETY: blocks are disjoint, aligned as asked and as long as asked; allocation never unwinds.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.allocate(layout.size(), layout.align(), false)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.allocate(layout.size(), layout.align(), true)
    }

    unsafe fn dealloc(&self, ptr: *mut u8, _layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { self.release(ptr) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { self.resize(ptr, bytes, layout.align()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn classes_are_ascending_and_waste_at_most_a_quarter() {
        for class in 1..CLASSES - 4 {
            assert!(class_bytes(class) > class_bytes(class - 1));
        }
        for bytes in (1..5000).chain([1 << 20, (1 << 20) + 1, REGION_BYTES]) {
            let class = class_of(bytes);
            assert!(class < CLASSES && class_bytes(class) >= bytes, "{bytes}");
            assert!(class == 0 || class_bytes(class - 1) < bytes, "{bytes}");
            assert!(bytes <= 128 || class_bytes(class) <= bytes + bytes / 4 + UNIT, "{bytes}");
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Allocate { bytes: usize, align_log: u32, zeroed: bool },
        Release(usize),
        Resize(usize, usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let bytes = prop_oneof![0usize..300, 0usize..100_000, Just(3usize << 20)];
        prop_oneof![
            (bytes.clone(), 0u32..13, any::<bool>())
                .prop_map(|(bytes, align_log, zeroed)| Step::Allocate { bytes, align_log, zeroed }),
            any::<usize>().prop_map(Step::Release),
            (any::<usize>(), bytes).prop_map(|(which, bytes)| Step::Resize(which, bytes)),
        ]
    }

    struct Held {
        ptr: *mut u8,
        bytes: usize,
        align: usize,
        fill: u8,
    }

    impl Held {
        fn content(&self) -> &[u8] {
            // SAFETY: memory that we hold.
            unsafe { core::slice::from_raw_parts(self.ptr, self.bytes) }
        }

        fn check(&self) {
            assert!(self.content().iter().all(|&byte| byte == self.fill));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        /// Every allocation keeps what was written into it until it is freed, so no two overlap.
        #[test]
        fn pieces_never_overlap(steps in proptest::collection::vec(step(), 1..120)) {
            let heap = Heap::new();
            let mut held: Vec<Held> = Vec::new();
            for (i, step) in steps.into_iter().enumerate() {
                let fill = (i % 255 + 1) as u8;
                match step {
                    Step::Allocate { bytes, align_log, zeroed } => {
                        let align = 1 << align_log;
                        let ptr = heap.allocate(bytes, align, zeroed);
                        prop_assert!(!ptr.is_null() && (ptr as usize).is_multiple_of(align));
                        // SAFETY: just allocated.
                        let usable = unsafe { heap.usable(ptr) };
                        prop_assert!(usable >= bytes);
                        let piece = Held { ptr, bytes, align, fill };
                        prop_assert!(!zeroed || piece.content().iter().all(|&byte| byte == 0));
                        // SAFETY: as long as asked for.
                        unsafe { ptr.write_bytes(fill, bytes) };
                        held.push(piece);
                    }
                    Step::Release(which) if !held.is_empty() => {
                        let piece = held.swap_remove(which % held.len());
                        piece.check();
                        // SAFETY: not used any more.
                        unsafe { heap.release(piece.ptr) };
                    }
                    Step::Resize(which, bytes) if !held.is_empty() => {
                        let at = which % held.len();
                        let piece = &mut held[at];
                        // SAFETY: the old pointer is replaced.
                        let ptr = unsafe { heap.resize(piece.ptr, bytes, piece.align) };
                        prop_assert!(!ptr.is_null() && (ptr as usize).is_multiple_of(piece.align));
                        piece.ptr = ptr;
                        piece.bytes = piece.bytes.min(bytes);
                        piece.check();
                        piece.bytes = bytes;
                        piece.fill = fill;
                        // SAFETY: as long as asked for.
                        unsafe { ptr.write_bytes(fill, bytes) };
                    }
                    _ => {}
                }
            }
            held.iter().for_each(Held::check);
        }
    }

    #[test]
    fn too_much_is_null() {
        let heap = Heap::new();
        assert!(heap.allocate(usize::MAX - 20, 16, false).is_null());
        assert!(heap.allocate(REGION_BYTES, 16, false).is_null());
    }

    #[test]
    fn threads_share_it() {
        let heap = Heap::new();
        std::thread::scope(|scope| {
            for fill in 1..=4u8 {
                let heap = &heap;
                scope.spawn(move || {
                    for bytes in 0..2000 {
                        let ptr = heap.allocate(bytes, 16, false);
                        // SAFETY: our own piece of that length.
                        unsafe {
                            ptr.write_bytes(fill, bytes);
                            let content = core::slice::from_raw_parts(ptr, bytes);
                            assert!(content.iter().all(|&byte| byte == fill));
                            heap.release(ptr);
                        }
                    }
                });
            }
        });
    }
}
