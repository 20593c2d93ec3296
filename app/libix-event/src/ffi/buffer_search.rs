//! evbuffers: searching.
use super::{at, put};
use crate::buffer::{Chunks, evbuffer};
use core::ffi::{c_char, c_int, c_void};
use core::ptr::null_mut;

/// A position in a buffer; -1 if not found.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct evbuffer_ptr {
    pub(super) pos: isize,
    internal: [usize; 2],
}

impl evbuffer_ptr {
    fn at(pos: Option<usize>) -> evbuffer_ptr {
        evbuffer_ptr { pos: pos.map_or(-1, |pos| pos as isize), internal: [0; 2] }
    }
}

/// How lines end (`enum evbuffer_eol_style`).
mod eol {
    use core::ffi::c_int;
    pub const ANY: c_int = 0;
    pub const CRLF: c_int = 1;
    pub const CRLF_STRICT: c_int = 2;
    pub const LF: c_int = 3;
    pub const NUL: c_int = 4;
}

/// Finds the end of the first line from `from` on, and its length.
fn end_of_line(chunks: &Chunks, from: usize, style: c_int) -> Option<(usize, usize)> {
    match style {
        eol::ANY => {
            let at = chunks.find_byte(b"\r\n", from)?;
            Some((at, chunks.run_of(b"\r\n", at)))
        }
        eol::CRLF => {
            let at = chunks.find_byte(b"\n", from)?;
            let carriage = at > from && chunks.byte(at - 1) == Some(b'\r');
            Some(if carriage { (at - 1, 2) } else { (at, 1) })
        }
        eol::CRLF_STRICT => Some((chunks.find(b"\r\n", from, usize::MAX)?, 2)),
        eol::LF => Some((chunks.find_byte(b"\n", from)?, 1)),
        eol::NUL => Some((chunks.find_byte(b"\0", from)?, 1)),
        _ => None,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_readln(
    buffer: *mut evbuffer,
    len: *mut usize,
    style: c_int,
) -> *mut c_char {
    put!(len, 0);
    let Some(buffer) = at!(buffer).filter(|buffer| !buffer.frozen[0].get()) else {
        return null_mut();
    };
    let found = end_of_line(&buffer.chunks.borrow(), 0, style);
    let Some((line, end)) = found else { return null_mut() };
    // SAFETY: the program frees it with `free`.
    let text = unsafe { libc::malloc(line + 1) }.cast::<c_char>();
    if text.is_null() {
        return null_mut();
    }
    super::buffer::take(buffer, text.cast(), line);
    buffer.change(|chunks| ((), chunks.drain(end)));
    // SAFETY: the last byte of what was just allocated.
    unsafe { text.add(line).write(0) };
    put!(len, line);
    text
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_readline(buffer: *mut evbuffer) -> *mut c_char {
    // SAFETY: this function's own arguments.
    unsafe { evbuffer_readln(buffer, null_mut(), eol::ANY) }
}

fn start_of(start: *const evbuffer_ptr) -> Option<usize> {
    match at!(start) {
        Some(start) => usize::try_from(start.pos).ok(),
        None => Some(0),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_search(
    buffer: *mut evbuffer,
    pattern: *const c_char,
    len: usize,
    start: *const evbuffer_ptr,
) -> evbuffer_ptr {
    // SAFETY: this function's own arguments.
    unsafe { evbuffer_search_range(buffer, pattern, len, start, core::ptr::null()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_search_range(
    buffer: *mut evbuffer,
    pattern: *const c_char,
    len: usize,
    start: *const evbuffer_ptr,
    end: *const evbuffer_ptr,
) -> evbuffer_ptr {
    let (Some(buffer), Some(from)) = (at!(buffer), start_of(start)) else {
        return evbuffer_ptr::at(None);
    };
    let end = at!(end).and_then(|end| usize::try_from(end.pos).ok()).unwrap_or(usize::MAX);
    let pattern = super::buffer::bytes(pattern.cast::<c_void>(), len);
    evbuffer_ptr::at(buffer.chunks.borrow().find(pattern, from, end))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_search_eol(
    buffer: *mut evbuffer,
    start: *mut evbuffer_ptr,
    len: *mut usize,
    style: c_int,
) -> evbuffer_ptr {
    let (Some(buffer), Some(from)) = (at!(buffer), start_of(start)) else {
        return evbuffer_ptr::at(None);
    };
    let found = end_of_line(&buffer.chunks.borrow(), from, style);
    put!(len, found.map_or(0, |(_, end)| end));
    evbuffer_ptr::at(found.map(|(at, _)| at))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_ptr_set(
    buffer: *mut evbuffer,
    place: *mut evbuffer_ptr,
    position: usize,
    how: c_int,
) -> c_int {
    const ADD: c_int = 1;
    let (Some(buffer), Some(before)) = (at!(buffer), at!(place)) else { return -1 };
    let from = if how == ADD { usize::try_from(before.pos).ok() } else { Some(0) };
    let to = from.and_then(|from| from.checked_add(position));
    let to = to.filter(|to| *to <= buffer.chunks.borrow().len());
    put!(place, evbuffer_ptr::at(to));
    if to.is_some() { 0 } else { -1 }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_copyout_from(
    buffer: *mut evbuffer,
    start: *const evbuffer_ptr,
    to: *mut c_void,
    len: usize,
) -> isize {
    let (Some(buffer), Some(from)) = (at!(buffer), start_of(start)) else { return -1 };
    super::buffer::copy_from(buffer, from, to, len) as isize
}

/// The old name of `evbuffer_search`.
#[unsafe(no_mangle)]
unsafe extern "C" fn evbuffer_find(
    buffer: *mut evbuffer,
    pattern: *const u8,
    len: usize,
) -> *mut u8 {
    let Some(this) = at!(buffer) else { return null_mut() };
    let pattern = super::buffer::bytes(pattern.cast(), len);
    let found = this.chunks.borrow().find(pattern, 0, usize::MAX);
    let Some(at) = found else { return null_mut() };
    let pulled = this.chunks.borrow_mut().pull_up(at + len);
    pulled.map_or(null_mut(), |(first, _)| first.wrapping_add(at))
}
