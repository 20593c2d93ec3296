//! evbuffers: queues of chunks, some of which are the program's own memory.
use core::ffi::c_void;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// A program's function that is called when its memory is no longer used.
pub type Cleanup = unsafe extern "C" fn(data: *const c_void, bytes: usize, arg: *mut c_void);
/// A program's function that is called after changes.
pub type Changed =
    unsafe extern "C" fn(buffer: *mut evbuffer, change: *const evbuffer_cb_info, arg: *mut c_void);

/// Capacity of a new chunk.
const CHUNK_BYTES: usize = 4096;
/// Shorter chunks that move to another buffer are copied into its last chunk.
const SHORT_BYTES: usize = 256;

/// A change of a buffer.
#[repr(C)]
pub struct evbuffer_cb_info {
    /// Bytes before.
    pub orig_size: usize,
    /// Bytes that were added.
    pub n_added: usize,
    /// Bytes that were removed.
    pub n_deleted: usize,
}

/// Memory of the program, which is returned to it when dropped.
pub struct Lent {
    base: *const u8,
    bytes: usize,
    cleanup: Option<Cleanup>,
    arg: *mut c_void,
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(cleanup) = self.cleanup {
            // SAFETY: the program's function with its argument (`evbuffer_add_reference`), once.
            unsafe { cleanup(self.base.cast(), self.bytes, self.arg) };
        }
    }
}

/// Bytes `[start, end)` of memory that is ours or the program's.
enum Chunk {
    Own { bytes: Vec<u8>, start: usize },
    Lent { memory: Lent, start: usize },
}

impl Chunk {
    fn own(room: usize) -> Chunk {
        Chunk::Own { bytes: Vec::with_capacity(room), start: 0 }
    }

    fn get(&self) -> &[u8] {
        match self {
            Chunk::Own { bytes, start } => &bytes[*start..],
            // SAFETY: by the promise of `evbuffer_add_reference`'s caller, this many bytes can be
            // read until they are returned.
            Chunk::Lent { memory, start } => unsafe {
                core::slice::from_raw_parts(memory.base.add(*start), memory.bytes - *start)
            },
        }
    }

    fn drain(&mut self, n: usize) {
        match self {
            Chunk::Own { start, .. } | Chunk::Lent { start, .. } => *start += n,
        }
    }

    /// Free bytes after the content.
    fn room(&self) -> usize {
        match self {
            Chunk::Own { bytes, .. } => bytes.capacity() - bytes.len(),
            Chunk::Lent { .. } => 0,
        }
    }
}

/// Bytes in order. Pointers into them are valid until the bytes are removed or joined.
#[derive(Default)]
pub struct Chunks {
    chunks: VecDeque<Chunk>,
    len: usize,
}

impl Chunks {
    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Pieces of memory, in order.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.chunks.iter().map(Chunk::get).filter(|slice| !slice.is_empty())
    }

    /// Bytes in the first piece.
    pub fn first_len(&self) -> usize {
        self.slices().next().map_or(0, <[u8]>::len)
    }

    /// Removes empty chunks in front.
    fn trim(&mut self) {
        while self.chunks.len() > 1 && self.chunks[0].get().is_empty() {
            self.chunks.pop_front();
        }
    }

    /// Appends a copy of bytes.
    pub fn extend(&mut self, data: &[u8]) {
        self.len += data.len();
        let fits = self.chunks.back().map_or(0, Chunk::room).min(data.len());
        let (now, then) = data.split_at(fits);
        if let Some(Chunk::Own { bytes, .. }) = self.chunks.back_mut() {
            bytes.extend_from_slice(now);
        }
        if !then.is_empty() {
            self.chunks.push_back(Chunk::own(then.len().max(CHUNK_BYTES)));
            if let Some(Chunk::Own { bytes, .. }) = self.chunks.back_mut() {
                bytes.extend_from_slice(then);
            }
        }
    }

    /// Prepends a copy of bytes.
    pub fn prepend(&mut self, data: &[u8]) {
        if !data.is_empty() {
            self.len += data.len();
            self.chunks.push_front(Chunk::Own { bytes: data.to_vec(), start: 0 });
        }
    }

    /// Appends memory of the program, without a copy.
    pub fn lend(&mut self, memory: Lent) -> Option<Lent> {
        if memory.bytes == 0 {
            return Some(memory);
        }
        self.len += memory.bytes;
        self.chunks.push_back(Chunk::Lent { memory, start: 0 });
        None
    }

    /// Reserves this many bytes after the last one, in one piece; [`Chunks::commit`] adds them to
    /// the content.
    pub fn reserve(&mut self, bytes: usize) -> &mut [core::mem::MaybeUninit<u8>] {
        if self.chunks.back().map_or(0, Chunk::room) < bytes.max(1) {
            self.chunks.push_back(Chunk::own(bytes.max(CHUNK_BYTES)));
        }
        match self.chunks.back_mut() {
            Some(Chunk::Own { bytes, .. }) => bytes.spare_capacity_mut(),
            _ => &mut [],
        }
    }

    /// Adds the first `n` bytes of the reserved room to the content.
    ///
    /// # Safety
    /// They were written.
    pub unsafe fn commit(&mut self, n: usize) {
        if let Some(Chunk::Own { bytes, .. }) = self.chunks.back_mut() {
            debug_assert!(n <= bytes.capacity() - bytes.len());
            // SAFETY: within the capacity, and written by the caller's promise.
            unsafe { bytes.set_len(bytes.len() + n) };
            self.len += n;
        }
    }

    /// Start of the reserved room.
    pub fn reserved(&mut self) -> (*mut u8, usize) {
        match self.chunks.back_mut() {
            Some(Chunk::Own { bytes, .. }) => {
                let room = bytes.spare_capacity_mut();
                (room.as_mut_ptr().cast(), room.len())
            }
            _ => (core::ptr::null_mut(), 0),
        }
    }

    /// Copies bytes from `skip` on. Returns how many.
    pub fn copy_out(&self, mut skip: usize, to: &mut [core::mem::MaybeUninit<u8>]) -> usize {
        let mut done = 0;
        for slice in self.slices() {
            let from = skip.min(slice.len());
            skip -= from;
            let n = (slice.len() - from).min(to.len() - done);
            to[done..done + n].write_copy_of_slice(&slice[from..from + n]);
            done += n;
        }
        done
    }

    /// Removes the first `n` bytes, or all. Returns the program's memory that is no longer used:
    /// the caller drops it, and so calls the program's functions, while nothing is borrowed.
    pub fn drain(&mut self, n: usize) -> Vec<Lent> {
        let (mut left, mut given_back) = (n.min(self.len), Vec::new());
        self.len -= left;
        while let Some(front) = self.chunks.front_mut() {
            let here = front.get().len();
            if here > left {
                front.drain(left);
                break;
            }
            left -= here;
            // Keeps reserved room.
            if self.chunks.len() == 1 && self.chunks[0].room() > 0 {
                if let Some(Chunk::Own { bytes, start }) = self.chunks.front_mut() {
                    *start = bytes.len();
                    if bytes.capacity() - bytes.len() < CHUNK_BYTES / 4 {
                        bytes.clear();
                        *start = 0;
                    }
                }
                break;
            }
            if let Some(Chunk::Lent { memory, .. }) = self.chunks.pop_front() {
                given_back.push(memory);
            }
        }
        given_back
    }

    /// Moves the first `n` bytes, or all, to the end of another buffer.
    pub fn move_to(&mut self, to: &mut Chunks, n: usize) -> (usize, Vec<Lent>) {
        let (mut left, mut given_back) = (n.min(self.len), Vec::new());
        let moved = left;
        while left > 0 {
            self.trim();
            let here = self.first_len();
            // The program's memory moves along, however short, because it waits for its return.
            let copies = here < SHORT_BYTES && matches!(self.chunks[0], Chunk::Own { .. });
            if here > left || copies {
                let slice = self.chunks[0].get();
                let n = here.min(left);
                to.extend(&slice[..n]);
                given_back.extend(self.drain(n));
                left -= n;
            } else if let Some(chunk) = self.chunks.pop_front() {
                self.len -= here;
                to.len += here;
                to.chunks.push_back(chunk);
                left -= here;
            }
        }
        (moved, given_back)
    }

    /// Appends all of another buffer.
    pub fn move_in(&mut self, from: &mut Chunks) -> ((), Vec<Lent>) {
        let (_, given_back) = from.move_to(self, usize::MAX);
        ((), given_back)
    }

    /// Joins the first `n` bytes into one piece and returns its address, or `None` if there are
    /// fewer bytes.
    pub fn pull_up(&mut self, n: usize) -> Option<(*mut u8, Vec<Lent>)> {
        if n > self.len {
            return None;
        }
        let mut given_back = Vec::new();
        self.trim();
        if self.first_len() < n {
            let mut joined = Vec::with_capacity(n.max(CHUNK_BYTES));
            self.copy_out(0, &mut joined.spare_capacity_mut()[..n]);
            // SAFETY: the copy above has written the first `n` bytes of the room.
            unsafe { joined.set_len(n) };
            given_back = self.drain(n);
            self.len += n;
            self.chunks.push_front(Chunk::Own { bytes: joined, start: 0 });
        }
        self.trim();
        let first = self.chunks.front_mut().map_or(core::ptr::null_mut(), |chunk| match chunk {
            Chunk::Own { bytes, start } => bytes[*start..].as_mut_ptr(),
            Chunk::Lent { memory, start } => memory.base.wrapping_add(*start).cast_mut(),
        });
        Some((first, given_back))
    }

    /// Finds a pattern from `from` on that ends before `end`.
    pub fn find(&self, pattern: &[u8], from: usize, end: usize) -> Option<usize> {
        let first = *pattern.first()?;
        let mut at = from;
        while let Some(found) = self.find_byte(&[first], at) {
            if found + pattern.len() > end.min(self.len) {
                return None;
            }
            if self.is_at(pattern, found) {
                return Some(found);
            }
            at = found + 1;
        }
        None
    }

    /// Finds one of these bytes, from `from` on.
    pub fn find_byte(&self, any: &[u8], from: usize) -> Option<usize> {
        let mut before = 0;
        for slice in self.slices() {
            let skip = from.saturating_sub(before).min(slice.len());
            if let Some(at) = slice[skip..].iter().position(|byte| any.contains(byte)) {
                return Some(before + skip + at);
            }
            before += slice.len();
        }
        None
    }

    /// Number of bytes from `from` on that are among these.
    pub fn run_of(&self, any: &[u8], from: usize) -> usize {
        (from..self.len).take_while(|at| self.byte(*at).is_some_and(|b| any.contains(&b))).count()
    }

    /// One byte.
    pub fn byte(&self, mut at: usize) -> Option<u8> {
        for slice in self.slices() {
            match slice.get(at) {
                Some(byte) => return Some(*byte),
                None => at -= slice.len(),
            }
        }
        None
    }

    fn is_at(&self, pattern: &[u8], at: usize) -> bool {
        let mut buffer = vec![core::mem::MaybeUninit::uninit(); pattern.len()];
        if self.copy_out(at, &mut buffer) < pattern.len() {
            return false;
        }
        // SAFETY: all of them were written.
        buffer.iter().zip(pattern).all(|(byte, wanted)| unsafe { byte.assume_init() } == *wanted)
    }
}

impl Lent {
    /// Memory of a program.
    pub fn new(base: *const u8, bytes: usize, cleanup: Option<Cleanup>, arg: *mut c_void) -> Lent {
        Lent { base, bytes, cleanup, arg }
    }
}

/// A function that is called after changes.
pub struct evbuffer_cb_entry {
    /// The program's function.
    pub call: Changed,
    /// Its argument.
    pub arg: *mut c_void,
    /// Whether it is enabled.
    pub enabled: Cell<bool>,
}

/// Role of this buffer in a bufferevent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Received bytes.
    Input,
    /// Bytes to send.
    Output,
}

/// The owner of a buffer, which is called after changes.
pub trait Owner {
    /// The buffer with this role has changed. `more` says that bytes were added.
    fn buffer_changed(&self, role: Role, more: bool);
}

/// A buffer: programs hold a pointer to this.
#[derive(Default)]
pub struct evbuffer {
    /// The bytes.
    pub chunks: RefCell<Chunks>,
    /// Functions that are called after changes.
    pub callbacks: RefCell<Vec<std::rc::Rc<evbuffer_cb_entry>>>,
    /// The bufferevent that it belongs to.
    pub owner: Cell<Option<(*const dyn Owner, Role)>>,
    /// Whether adding is refused at the beginning and at the end.
    pub frozen: [Cell<bool>; 2],
}

impl evbuffer {
    /// Changes the bytes, and calls the functions for changes.
    pub fn change<R>(&self, change: impl FnOnce(&mut Chunks) -> (R, Vec<Lent>)) -> R {
        let (before, result, given_back, after) = {
            let mut chunks = self.chunks.borrow_mut();
            let before = chunks.len();
            let (result, given_back) = change(&mut chunks);
            (before, result, given_back, chunks.len())
        };
        drop(given_back);
        if before != after {
            self.tell(before, after);
        }
        result
    }

    fn tell(&self, before: usize, after: usize) {
        if !self.callbacks.borrow().is_empty() {
            let change = evbuffer_cb_info {
                orig_size: before,
                n_added: after.saturating_sub(before),
                n_deleted: before.saturating_sub(after),
            };
            let callbacks = self.callbacks.borrow().clone();
            for entry in callbacks.iter().filter(|entry| entry.enabled.get()) {
                // SAFETY: the program's function, with its argument (`evbuffer_add_cb`).
                unsafe { (entry.call)(core::ptr::from_ref(self).cast_mut(), &change, entry.arg) };
            }
        }
        if let Some((owner, role)) = self.owner.get() {
            // SAFETY: a bufferevent clears `owner` of its buffers before it is freed.
            unsafe { &*owner }.buffer_changed(role, after > before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    static MEMORY: [u8; 1000] = {
        let (mut memory, mut at) = ([0; 1000], 0);
        while at < 1000 {
            memory[at] = (at * 7) as u8;
            at += 1;
        }
        memory
    };

    unsafe extern "C" fn returned(_: *const c_void, _: usize, arg: *mut c_void) {
        // SAFETY: the counter of the test below, which outlives its buffers.
        let count = unsafe { &*arg.cast::<Cell<usize>>() };
        count.set(count.get() + 1);
    }

    fn all(of: &Chunks) -> Vec<u8> {
        of.slices().flatten().copied().collect()
    }

    proptest! {
        /// The model is a plain vector.
        #[test]
        fn behaves_like_bytes(steps in prop::collection::vec((0..8u8, 0..1000usize), 1..200)) {
            let back = Cell::new(0usize);
            let mut lent = 0;
            {
                let (mut here, mut there) = (Chunks::default(), Chunks::default());
                let (mut model, mut model_there) = (Vec::new(), Vec::new());
                for (what, n) in steps {
                    match what {
                        0 | 1 => {
                            here.extend(&MEMORY[..n]);
                            model.extend(&MEMORY[..n]);
                        }
                        2 => {
                            let arg = (&raw const back).cast_mut().cast();
                            here.lend(Lent::new(MEMORY.as_ptr(), n, Some(returned), arg));
                            model.extend(&MEMORY[..n]);
                            lent += 1;
                        }
                        3 => {
                            here.drain(n);
                            model.drain(..n.min(model.len()));
                        }
                        4 => {
                            let (moved, _) = here.move_to(&mut there, n);
                            prop_assert_eq!(moved, n.min(model.len()));
                            model_there.extend(model.drain(..moved));
                        }
                        5 => match here.pull_up(n) {
                            None => prop_assert!(n > model.len()),
                            Some((at, _)) if n > 0 => {
                                // SAFETY: `pull_up` has joined this many bytes.
                                let first = unsafe { core::slice::from_raw_parts(at, n) };
                                prop_assert_eq!(first, &model[..n]);
                            }
                            Some(_) => {}
                        },
                        6 => {
                            here.prepend(&MEMORY[..n / 10]);
                            model.splice(..0, MEMORY[..n / 10].iter().copied());
                        }
                        _ => {
                            let room = &mut here.reserve(n)[..n];
                            room.write_copy_of_slice(&MEMORY[..n]);
                            // SAFETY: just written.
                            unsafe { here.commit(n) };
                            model.extend(&MEMORY[..n]);
                        }
                    }
                    prop_assert_eq!(here.len(), model.len());
                    prop_assert_eq!(all(&here), &model[..]);
                    prop_assert_eq!(all(&there), &model_there[..]);
                    let two = &MEMORY[n.min(998)..][..2];
                    let found = model.windows(2).position(|here| here == two);
                    prop_assert_eq!(here.find(two, 0, usize::MAX), found);
                }
            }
            prop_assert_eq!(back.get(), lent, "all that was lent went back, once");
        }
    }
}
