//! Memory that is sent without a copy.
//!
//! Sent memory must not change until the peer has acknowledged it. There are three kinds. A buffer
//! belongs to the connection once it is sent. A shared buffer may be sent by several connections.
//! Lent memory stays the program's, and a release function reports when it may change again.
use crate::connection::conn;
use crate::event_loop::{answer, ix_loop, with};
use crate::types::State;
use core::ffi::c_void;
use core::sync::atomic::AtomicU8;
use libix::Error;
use libix::event::{Conn, Lease, Release};
use libix::raw::{TxArena, TxBuf, TxShared};

/// A buffer in transmit memory.
pub struct ix_buffer(TxBuf);

/// A buffer in transmit memory that several connections may send.
pub struct ix_shared(TxShared);

/// Returns a buffer with room for this many bytes, but at most 128 KB. Returns NULL if there is no
/// transmit memory at the moment.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_buffer_new(loop_: *mut ix_loop, bytes: usize) -> *mut ix_buffer {
    let alloc = |this: &ix_loop| this.io(|io| io.tx().alloc(bytes));
    // SAFETY: the caller's promise.
    match unsafe { with(loop_, alloc) } {
        Ok(Some(buffer)) => Box::into_raw(Box::new(ix_buffer(buffer))),
        Ok(None) | Err(_) => core::ptr::null_mut(),
    }
}

/// Returns the address of the buffer's bytes. The program may write them until the buffer is sent.
///
/// # Safety
/// `buffer` is null or a buffer that was neither sent, shared nor freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_buffer_data(buffer: *mut ix_buffer) -> *mut c_void {
    // SAFETY: the caller's promise.
    let base = unsafe { buffer.as_ref() }.map_or(0, |buffer| buffer.0.base());
    core::ptr::with_exposed_provenance_mut(base as usize)
}

/// Returns how many bytes the buffer has room for.
///
/// # Safety
/// `buffer` is null or a buffer that was neither sent, shared nor freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_buffer_capacity(buffer: *const ix_buffer) -> usize {
    // SAFETY: the caller's promise.
    unsafe { buffer.as_ref() }.map_or(0, |buffer| buffer.0.capacity())
}

/// Frees a buffer that was not sent.
///
/// # Safety
/// `buffer` is null or a buffer that was neither sent, shared nor freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_buffer_free(buffer: *mut ix_buffer) {
    if !buffer.is_null() {
        // SAFETY: from `Box::into_raw` in `ix_buffer_new`.
        drop(unsafe { Box::from_raw(buffer) });
    }
}

/// The buffer with its first `bytes` bytes as content; `None` if its capacity is less.
///
/// # Safety
/// As `ix_buffer_free`, and the program has written the bytes.
pub(crate) unsafe fn take(buffer: *mut ix_buffer, bytes: usize) -> Option<TxBuf> {
    // SAFETY: the caller's promise.
    let capacity = unsafe { ix_buffer_capacity(buffer) };
    if buffer.is_null() || bytes > capacity {
        return None;
    }
    // SAFETY: from `Box::into_raw` in `ix_buffer_new`.
    let mut buffer = unsafe { Box::from_raw(buffer) }.0;
    // SAFETY: within its capacity, and written by the caller's promise.
    unsafe { buffer.set_len(bytes) };
    Some(buffer)
}

/// Sends the first bytes of a buffer without a copy. There is no limit on what is taken, so check
/// ix_send_room first. The buffer then belongs to the library, whatever the result, except
/// -IX_ERROR_INVALID: bytes is more than the buffer's capacity, and the program still owns it.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed. `buffer` is null or a buffer that
/// was neither sent, shared nor freed, and the program has written its first `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_send_buffer(
    loop_: *mut ix_loop,
    conn_: u64,
    buffer: *mut ix_buffer,
    bytes: usize,
) -> i64 {
    // SAFETY: the caller's promise.
    let Some(buffer) = (unsafe { take(buffer, bytes) }) else { return -ix_abi::error::INVALID };
    let send = |conn: &mut Conn<'_, State>| match conn.send_zc(buffer) {
        Ok(()) => Ok(0),
        Err(_) => Err(Error::State),
    };
    // SAFETY: the caller's promise.
    answer(unsafe { conn(loop_, conn_, send) })
}

/// Turns the first bytes of a buffer into a shared buffer, which several connections may send and
/// which must not be changed any more. Returns NULL if bytes is more than the buffer's capacity;
/// the program then still owns the buffer.
///
/// # Safety
/// `buffer` is null or a buffer that was neither sent, shared nor freed, and the program
/// has written its first `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_buffer_share(buffer: *mut ix_buffer, bytes: usize) -> *mut ix_shared {
    // SAFETY: the caller's promise.
    match unsafe { take(buffer, bytes) } {
        Some(buffer) => Box::into_raw(Box::new(ix_shared(buffer.share()))),
        None => core::ptr::null_mut(),
    }
}

/// Sends bytes of a shared buffer without a copy, beginning at offset from.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed. `shared` is null or a shared buffer
/// that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_send_shared(
    loop_: *mut ix_loop,
    conn_: u64,
    shared: *const ix_shared,
    from: usize,
    bytes: usize,
) -> i64 {
    let send = |conn: &mut Conn<'_, State>| {
        // SAFETY: the caller's promise.
        let shared = &unsafe { shared.as_ref() }.ok_or(Error::Invalid)?.0;
        let end = from.checked_add(bytes).filter(|end| *end <= shared.len());
        let end = end.ok_or(Error::Invalid)?;
        if conn.send_shared(shared, from..end) { Ok(0) } else { Err(Error::State) }
    };
    // SAFETY: the caller's promise.
    answer(unsafe { conn(loop_, conn_, send) })
}

/// Frees the program's reference to a shared buffer. Bytes that were sent keep their own.
///
/// # Safety
/// `shared` is null or a shared buffer that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_shared_free(shared: *mut ix_shared) {
    if !shared.is_null() {
        // SAFETY: from `Box::into_raw` in `ix_buffer_share`.
        drop(unsafe { Box::from_raw(shared) });
    }
}

/// Returns transmit memory for the life of the program. All its threads may use it, and
/// ix_send_lent sends it. Returns NULL if there is not enough (arena_mb in ix.toml). Runs cycles
/// until the memory is there, so it must not be called within a callback.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_memory(loop_: *mut ix_loop, bytes: u64) -> *mut c_void {
    let alloc = |this: &ix_loop| this.events(|events| events.shared_memory(bytes));
    // SAFETY: the caller's promise.
    match unsafe { with(loop_, alloc) } {
        Ok(memory) => memory.as_ptr().cast_mut().cast(),
        Err(why) => {
            crate::error::remember(&why);
            core::ptr::null_mut()
        }
    }
}

/// The function that a lease calls when it ends.
struct OnRelease {
    release: Option<unsafe extern "C" fn(argument: *mut c_void)>,
    argument: *mut c_void,
}

/// Ends leases: a token is the address of an `OnRelease`.
struct Releases;

impl Release for Releases {
    fn release(&self, token: u64) {
        let address = core::ptr::with_exposed_provenance_mut::<OnRelease>(token as usize);
        // SAFETY: from `Box::into_raw` in `ix_send_lent`; a lease ends once.
        let ended = unsafe { Box::from_raw(address) };
        if let Some(release) = ended.release {
            // SAFETY: a function of this type by the promise of `ix_send_lent`'s caller.
            unsafe { release(ended.argument) };
        }
    }
}

/// Sends memory of ix_memory without a copy. The memory must not change until release is called
/// with argument; release may be NULL. It is called once: when all bytes were acknowledged, when
/// the connection has ended, or when the bytes were not taken and the result is an error. It may be
/// called within any function of the loop and must not call one itself. If connections move, it may
/// run on any of the team's threads.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed. `data` is null or the address of
/// `bytes` bytes of `ix_memory`. `release` has this type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_send_lent(
    loop_: *mut ix_loop,
    conn_: u64,
    data: *const c_void,
    bytes: usize,
    release: Option<unsafe extern "C" fn(argument: *mut c_void)>,
    argument: *mut c_void,
) -> i64 {
    let token = Box::into_raw(Box::new(OnRelease { release, argument }));
    let lease = Lease::new(&Releases, token.expose_provenance() as u64);
    let send = |conn: &mut Conn<'_, State>| {
        if data.is_null() {
            return Err(Error::Invalid);
        }
        // SAFETY: bytes of `ix_memory`, which is never freed; they may be read as atomics whatever
        // the program does with them. (The dataplane refuses other memory.)
        let data = unsafe { core::slice::from_raw_parts(data.cast::<AtomicU8>(), bytes) };
        if conn.send_lent(data.into(), lease) { Ok(0) } else { Err(Error::State) }
    };
    // SAFETY: the caller's promise.
    answer(unsafe { conn(loop_, conn_, send) })
}

/// Returns the largest capacity of a buffer of ix_buffer_new.
#[unsafe(no_mangle)]
pub extern "C" fn ix_buffer_largest() -> usize {
    TxArena::LARGEST_BYTES as usize
}
