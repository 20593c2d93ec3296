//! evbuffers: adding and removing bytes.
use super::at;
use crate::buffer::{Changed, Cleanup, Lent, evbuffer, evbuffer_cb_entry};
use crate::core::event_base;
use crate::util;
use core::cell::Cell;
use core::ffi::{c_char, c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use libc::iovec;
use std::rc::Rc;

/// The program's bytes at an address.
pub(super) fn bytes<'a>(data: *const c_void, bytes: usize) -> &'a [u8] {
    if data.is_null() || bytes == 0 {
        return &[];
    }
    // SAFETY: this many bytes, as libevent asks (see the module).
    unsafe { core::slice::from_raw_parts(data.cast(), bytes) }
}

/// The program's room at an address.
fn place<'a>(to: *mut c_void, bytes: usize) -> &'a mut [MaybeUninit<u8>] {
    if to.is_null() || bytes == 0 {
        return &mut [];
    }
    // SAFETY: room for this many bytes, as libevent asks (see the module).
    unsafe { core::slice::from_raw_parts_mut(to.cast(), bytes) }
}

/// Copies the first bytes and removes them.
pub(super) fn take(from: &evbuffer, to: *mut c_void, bytes: usize) -> usize {
    from.change(|chunks| {
        let n = chunks.copy_out(0, place(to, bytes));
        (n, chunks.drain(n))
    })
}

/// Copies bytes from a position on.
pub(super) fn copy_from(from: &evbuffer, skip: usize, to: *mut c_void, bytes: usize) -> usize {
    from.chunks.borrow().copy_out(skip, place(to, bytes))
}

/// Moves bytes to the end of another buffer. `None` if both are the same, or one is frozen there.
pub(super) fn move_all(from: &evbuffer, to: &evbuffer, most: usize) -> Option<usize> {
    if core::ptr::eq(from, to) || from.frozen[0].get() || to.frozen[1].get() {
        return None;
    }
    let mut moved = crate::buffer::Chunks::default();
    let n = from.change(|chunks| chunks.move_to(&mut moved, most));
    to.change(|chunks| chunks.move_in(&mut moved));
    Some(n)
}

#[unsafe(no_mangle)]
extern "C" fn evbuffer_new() -> *mut evbuffer {
    Box::into_raw(Box::default())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_free(buffer: *mut evbuffer) {
    // A bufferevent's own buffers are freed with it.
    if at!(buffer).is_some_and(|buffer| buffer.owner.get().is_none()) {
        // SAFETY: of `evbuffer_new`.
        drop(unsafe { Box::from_raw(buffer) });
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_get_length(buffer: *const evbuffer) -> usize {
    at!(buffer).map_or(0, |buffer| buffer.chunks.borrow().len())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_get_contiguous_space(buffer: *const evbuffer) -> usize {
    at!(buffer).map_or(0, |buffer| buffer.chunks.borrow().first_len())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_expand(buffer: *mut evbuffer, room: usize) -> c_int {
    at!(buffer).map_or(-1, |buffer| {
        buffer.chunks.borrow_mut().reserve(room);
        0
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_add(buffer: *mut evbuffer, data: *const c_void, len: usize) -> c_int {
    let Some(buffer) = at!(buffer).filter(|buffer| !buffer.frozen[1].get()) else { return -1 };
    buffer.change(|chunks| (chunks.extend(bytes(data, len)), Vec::new()));
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_prepend(
    buffer: *mut evbuffer,
    data: *const c_void,
    len: usize,
) -> c_int {
    let Some(buffer) = at!(buffer).filter(|buffer| !buffer.frozen[0].get()) else { return -1 };
    buffer.change(|chunks| (chunks.prepend(bytes(data, len)), Vec::new()));
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_add_reference(
    buffer: *mut evbuffer,
    data: *const c_void,
    len: usize,
    cleanup: Option<Cleanup>,
    arg: *mut c_void,
) -> c_int {
    let Some(buffer) = at!(buffer).filter(|buffer| !buffer.frozen[1].get()) else { return -1 };
    let memory = Lent::new(data.cast(), len, cleanup, arg);
    buffer.change(|chunks| ((), chunks.lend(memory).into_iter().collect()));
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_add_iovec(
    buffer: *mut evbuffer,
    pieces: *mut iovec,
    count: c_int,
) -> usize {
    let Some(buffer) = at!(buffer).filter(|buffer| !buffer.frozen[1].get()) else { return 0 };
    buffer.change(|chunks| {
        let before = chunks.len();
        for n in 0..count.max(0) as usize {
            // SAFETY: this many pieces, as libevent asks.
            let piece = unsafe { *pieces.add(n) };
            chunks.extend(bytes(piece.iov_base, piece.iov_len));
        }
        (chunks.len() - before, Vec::new())
    })
}

/// Appends the file's bytes, read now; its descriptor is closed.
#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_add_file(
    buffer: *mut evbuffer,
    fd: c_int,
    offset: i64,
    len: i64,
) -> c_int {
    let Some(buffer) = at!(buffer).filter(|buffer| !buffer.frozen[1].get()) else { return -1 };
    let (mut at, mut left) = (offset, len);
    if left < 0 {
        // SAFETY: all-zero is a valid `stat`; fills a local.
        left = unsafe {
            let mut about: libc::stat = core::mem::zeroed();
            libc::fstat(fd, &mut about);
            (about.st_size - offset).max(0)
        };
    }
    let all = buffer.change(|chunks| {
        while left > 0 {
            let n = left.min(1 << 20) as usize;
            let room = chunks.reserve(n);
            // SAFETY: reserved above.
            let read = unsafe { libc::pread(fd, room.as_mut_ptr().cast(), n, at) };
            if read <= 0 {
                break;
            }
            // SAFETY: written just now.
            unsafe { chunks.commit(read as usize) };
            (at, left) = (at + read as i64, left - read as i64);
        }
        (left == 0, Vec::new())
    });
    if all {
        util::close(fd);
    }
    if all { 0 } else { -1 }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_add_buffer(to: *mut evbuffer, from: *mut evbuffer) -> c_int {
    let (Some(to), Some(from)) = (at!(to), at!(from)) else { return -1 };
    if move_all(from, to, usize::MAX).is_some() { 0 } else { -1 }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_add_buffer_reference(
    to: *mut evbuffer,
    from: *mut evbuffer,
) -> c_int {
    let (Some(to), Some(from)) = (at!(to), at!(from)) else { return -1 };
    if core::ptr::eq(to, from) || to.frozen[1].get() {
        return -1;
    }
    let copies: Vec<u8> = from.chunks.borrow().slices().flatten().copied().collect();
    to.change(|chunks| (chunks.extend(&copies), Vec::new()));
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_prepend_buffer(to: *mut evbuffer, from: *mut evbuffer) -> c_int {
    let (Some(to), Some(from)) = (at!(to), at!(from)) else { return -1 };
    if core::ptr::eq(to, from) || from.frozen[0].get() || to.frozen[0].get() {
        return -1;
    }
    let mut moved = crate::buffer::Chunks::default();
    from.change(|chunks| chunks.move_to(&mut moved, usize::MAX));
    to.change(|chunks| {
        chunks.move_to(&mut moved, usize::MAX);
        core::mem::swap(chunks, &mut moved);
        ((), Vec::new())
    });
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_remove_buffer(
    from: *mut evbuffer,
    to: *mut evbuffer,
    len: usize,
) -> c_int {
    let (Some(to), Some(from)) = (at!(to), at!(from)) else { return -1 };
    move_all(from, to, len).map_or(-1, |n| n as c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_remove(buffer: *mut evbuffer, to: *mut c_void, len: usize) -> c_int {
    match at!(buffer) {
        Some(buffer) if !buffer.frozen[0].get() => take(buffer, to, len) as c_int,
        _ => -1,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_copyout(buffer: *mut evbuffer, to: *mut c_void, len: usize) -> isize {
    let Some(buffer) = at!(buffer) else { return -1 };
    buffer.chunks.borrow().copy_out(0, place(to, len)) as isize
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_drain(buffer: *mut evbuffer, len: usize) -> c_int {
    let Some(buffer) = at!(buffer) else { return -1 };
    if buffer.frozen[0].get() && buffer.chunks.borrow().len() > 0 {
        return -1;
    }
    buffer.change(|chunks| ((), chunks.drain(len)));
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_pullup(buffer: *mut evbuffer, len: isize) -> *mut u8 {
    let Some(buffer) = at!(buffer) else { return null_mut() };
    let mut chunks = buffer.chunks.borrow_mut();
    let n = usize::try_from(len).unwrap_or(chunks.len());
    if n == 0 {
        return null_mut();
    }
    let pulled = chunks.pull_up(n);
    drop(chunks);
    pulled.map_or(null_mut(), |(first, _given_back)| first)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_reserve_space(
    buffer: *mut evbuffer,
    len: isize,
    pieces: *mut iovec,
    count: c_int,
) -> c_int {
    let (Some(buffer), Ok(len)) = (at!(buffer), usize::try_from(len)) else { return -1 };
    if buffer.frozen[1].get() || count < 1 || pieces.is_null() {
        return -1;
    }
    let mut chunks = buffer.chunks.borrow_mut();
    chunks.reserve(len);
    let (base, room) = chunks.reserved();
    // SAFETY: at least one place, as libevent asks.
    unsafe { pieces.write(iovec { iov_base: base.cast(), iov_len: room }) };
    1
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_commit_space(
    buffer: *mut evbuffer,
    pieces: *mut iovec,
    count: c_int,
) -> c_int {
    let Some(buffer) = at!(buffer).filter(|buffer| !buffer.frozen[1].get()) else { return -1 };
    if count == 0 {
        return 0;
    }
    let Some(piece) = at!(pieces) else { return -1 };
    let (base, room) = buffer.chunks.borrow_mut().reserved();
    if count > 1 || piece.iov_base != base.cast() || piece.iov_len > room {
        return -1;
    }
    // SAFETY: within the room, and written, as libevent asks.
    buffer.change(|chunks| (unsafe { chunks.commit(piece.iov_len) }, Vec::new()));
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_read(buffer: *mut evbuffer, fd: c_int, most: c_int) -> c_int {
    const MOST: usize = 4096;
    let Some(buffer) = at!(buffer).filter(|buffer| !buffer.frozen[1].get()) else { return -1 };
    let most = usize::try_from(most).map_or(MOST, |most| most.min(MOST));
    util::read_into(buffer, fd, most).map_or(-1, |n| n as c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_write(buffer: *mut evbuffer, fd: c_int) -> c_int {
    // SAFETY: this function's own arguments.
    unsafe { evbuffer_write_atmost(buffer, fd, -1) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_write_atmost(buffer: *mut evbuffer, fd: c_int, most: isize) -> c_int {
    let Some(buffer) = at!(buffer).filter(|buffer| !buffer.frozen[0].get()) else { return -1 };
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    util::write_from(buffer, fd, most).map_or(-1, |n| n as c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_add_cb(
    buffer: *mut evbuffer,
    call: Option<Changed>,
    arg: *mut c_void,
) -> *const evbuffer_cb_entry {
    let (Some(buffer), Some(call)) = (at!(buffer), call) else { return null_mut() };
    let entry = Rc::new(evbuffer_cb_entry { call, arg, enabled: Cell::new(true) });
    buffer.callbacks.borrow_mut().insert(0, Rc::clone(&entry));
    Rc::as_ptr(&entry)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_remove_cb_entry(
    buffer: *mut evbuffer,
    entry: *const evbuffer_cb_entry,
) -> c_int {
    remove_callback(buffer, |other| Rc::as_ptr(other) == entry)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_remove_cb(
    buffer: *mut evbuffer,
    call: Option<Changed>,
    arg: *mut c_void,
) -> c_int {
    let same = |entry: &Rc<evbuffer_cb_entry>| {
        call.is_some_and(|call| core::ptr::fn_addr_eq(call, entry.call)) && entry.arg == arg
    };
    remove_callback(buffer, same)
}

fn remove_callback(buffer: *mut evbuffer, is: impl Fn(&Rc<evbuffer_cb_entry>) -> bool) -> c_int {
    let Some(buffer) = at!(buffer) else { return -1 };
    let mut callbacks = buffer.callbacks.borrow_mut();
    match callbacks.iter().position(is) {
        Some(found) => {
            callbacks.remove(found).enabled.set(false);
            0
        }
        None => -1,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_cb_set_flags(
    _: *mut evbuffer,
    entry: *const evbuffer_cb_entry,
    flags: u32,
) -> c_int {
    at!(entry).map_or(-1, |entry| {
        entry.enabled.set(entry.enabled.get() || flags & 1 != 0);
        0
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_cb_clear_flags(
    _: *mut evbuffer,
    entry: *const evbuffer_cb_entry,
    flags: u32,
) -> c_int {
    at!(entry).map_or(-1, |entry| {
        entry.enabled.set(entry.enabled.get() && flags & 1 == 0);
        0
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_freeze(buffer: *mut evbuffer, at_front: c_int) -> c_int {
    set_frozen(buffer, at_front, true)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_unfreeze(buffer: *mut evbuffer, at_front: c_int) -> c_int {
    set_frozen(buffer, at_front, false)
}

fn set_frozen(buffer: *mut evbuffer, at_front: c_int, frozen: bool) -> c_int {
    at!(buffer).map_or(-1, |buffer| {
        buffer.frozen[usize::from(at_front == 0)].set(frozen);
        0
    })
}

/// A buffer belongs to one thread at a time.
#[unsafe(no_mangle)]
extern "C" fn evbuffer_enable_locking(_: *mut evbuffer, _: *mut c_void) -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn evbuffer_lock(_: *mut evbuffer) {}

#[unsafe(no_mangle)]
extern "C" fn evbuffer_unlock(_: *mut evbuffer) {}

#[unsafe(no_mangle)]
extern "C" fn evbuffer_set_flags(_: *mut evbuffer, _: u64) -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn evbuffer_clear_flags(_: *mut evbuffer, _: u64) -> c_int {
    0
}

/// Callbacks are called at once.
#[unsafe(no_mangle)]
extern "C" fn evbuffer_defer_callbacks(_: *mut evbuffer, _: *mut event_base) -> c_int {
    -1
}

/// Implements `evbuffer_add_printf`.
#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_add_vprintf(
    buffer: *mut evbuffer,
    format: *const c_char,
    args: *mut crate::variadic::VaList,
) -> c_int {
    let Some(buffer) = at!(buffer).filter(|buffer| !buffer.frozen[1].get()) else { return -1 };
    buffer.change(|chunks| {
        let mut want = 256;
        loop {
            let room = chunks.reserve(want);
            // SAFETY: a copy of the list of arguments, because each try uses one up; and the room
            // that was reserved.
            let n = unsafe {
                let mut copy = (*args).clone();
                crate::variadic::vsnprintf(room.as_mut_ptr().cast(), room.len(), format, &mut copy)
            };
            let Ok(len) = usize::try_from(n) else { return (-1, Vec::new()) };
            if len < room.len() {
                // SAFETY: written just now.
                unsafe { chunks.commit(len) };
                return (n, Vec::new());
            }
            want = len + 1;
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_peek(
    buffer: *mut evbuffer,
    len: isize,
    start: *const super::buffer_search::evbuffer_ptr,
    pieces: *mut iovec,
    count: c_int,
) -> c_int {
    let Some(buffer) = at!(buffer) else { return -1 };
    let chunks = buffer.chunks.borrow();
    let mut skip = match at!(start) {
        Some(start) if start.pos < 0 => return -1,
        Some(start) => start.pos as usize,
        None => 0,
    };
    // As many pieces as the bytes need; without a number of bytes, as many as there is room for.
    let mut left = usize::try_from(len).unwrap_or(usize::MAX);
    let (mut needed, room) = (0, count.max(0) as usize);
    for slice in chunks.slices() {
        let from = skip.min(slice.len());
        skip -= from;
        if from == slice.len() {
            continue;
        }
        if left == 0 || (len < 0 && room > 0 && needed == room) {
            break;
        }
        if needed < room {
            let part = &slice[from..];
            let piece = iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() };
            // SAFETY: below `count`, for which there is room, as libevent asks.
            unsafe { pieces.add(needed).write(piece) };
        }
        needed += 1;
        left = left.saturating_sub(slice.len() - from);
    }
    needed as c_int
}
