//! Functions of one connection, by its number. They may be called in a callback and between cycles.
//!
//! They return -IX_ERROR_BAD_HANDLE if the connection has ended, or was closed or aborted.
use crate::event_loop::{answer, ix_loop, with};
use crate::types::{State, ix_endpoint};
use core::ffi::c_void;
use ix_abi::FlowOption;
use libc::iovec;
use libix::Error;
use libix::event::Conn;

/// Calls a function with a connection of a loop.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed.
pub(crate) unsafe fn conn<R>(
    loop_: *const ix_loop,
    conn: u64,
    work: impl FnOnce(&mut Conn<'_, State>) -> Result<R, Error>,
) -> Result<R, Error> {
    let find = |this: &ix_loop| {
        this.io(|io| io.conn(conn).ok_or(Error::BadHandle).and_then(|mut conn| work(&mut conn)))?
    };
    // SAFETY: the caller's promise.
    unsafe { with(loop_, find) }
}

/// Calls a function that cannot fail with a connection.
///
/// # Safety
/// As `conn`.
unsafe fn act(loop_: *const ix_loop, id: u64, work: impl FnOnce(&mut Conn<'_, State>)) -> i64 {
    let work = |conn: &mut Conn<'_, State>| {
        work(conn);
        Ok(0)
    };
    // SAFETY: the caller's promise.
    answer(unsafe { conn(loop_, id, work) })
}

/// Returns the program's state of the connection; NULL if it has none.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_state(loop_: *mut ix_loop, conn_: u64) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { conn(loop_, conn_, |conn| Ok(conn.state().0)) }.unwrap_or(core::ptr::null_mut())
}

/// Sets the program's state of the connection.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_set_state(loop_: *mut ix_loop, conn_: u64, state: *mut c_void) -> i64 {
    let set = |conn: &mut Conn<'_, State>| {
        conn.state_mut().0 = state;
        Ok(0)
    };
    // SAFETY: the caller's promise.
    answer(unsafe { conn(loop_, conn_, set) })
}

/// Writes the address of the peer to peer.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed. `peer` is null or points to an
/// endpoint.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_peer(loop_: *mut ix_loop, conn_: u64, peer: *mut ix_endpoint) -> i64 {
    let tell = |conn: &mut Conn<'_, State>| {
        // SAFETY: the caller's promise.
        *unsafe { peer.as_mut() }.ok_or(Error::Invalid)? = ix_endpoint::new(conn.peer());
        Ok(0)
    };
    // SAFETY: the caller's promise.
    answer(unsafe { conn(loop_, conn_, tell) })
}

/// Returns the number of received bytes that were not consumed.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_received_bytes(loop_: *mut ix_loop, conn_: u64) -> i64 {
    // SAFETY: the caller's promise.
    answer(unsafe { conn(loop_, conn_, |conn| Ok(conn.received_bytes() as i64)) })
}

/// Writes where the received bytes that were not consumed are in the packet buffers, as at most max
/// pieces, and returns the number of pieces. The program may read the bytes, but not write them,
/// until they are consumed or sent, or the connection is closed or has ended.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed. `pieces` is null or has room for
/// `max` pieces.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_received(
    loop_: *mut ix_loop,
    conn_: u64,
    pieces: *mut iovec,
    max: usize,
) -> i64 {
    let name = |conn: &mut Conn<'_, State>| {
        if pieces.is_null() {
            return Err(Error::Invalid);
        }
        let mut count = 0;
        for slice in conn.received().take(max) {
            let piece = iovec { iov_base: slice.as_ptr().cast_mut().cast(), iov_len: slice.len() };
            // SAFETY: below max, for which there is room by the caller's promise.
            unsafe { pieces.add(count).write(piece) };
            count += 1;
        }
        Ok(count as i64)
    };
    // SAFETY: the caller's promise.
    answer(unsafe { conn(loop_, conn_, name) })
}

/// Consumes the first received bytes, or all if there are fewer. This opens the window.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_consume(loop_: *mut ix_loop, conn_: u64, bytes: usize) -> i64 {
    let consume = |conn: &mut Conn<'_, State>| {
        conn.consume(bytes);
        Ok(0)
    };
    // SAFETY: the caller's promise.
    answer(unsafe { conn(loop_, conn_, consume) })
}

/// Copies at most this many received bytes to to and consumes them. Returns how many; 0 if none are
/// there now.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed. `to` is null or has room
/// for `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_read(
    loop_: *mut ix_loop,
    conn_: u64,
    to: *mut c_void,
    bytes: usize,
) -> i64 {
    let read = |conn: &mut Conn<'_, State>| {
        if to.is_null() {
            return Err(Error::Invalid);
        }
        let (mut to, mut left) = (to.cast::<u8>(), bytes);
        for slice in conn.received() {
            let n = slice.len().min(left);
            // SAFETY: there is room for at least `n` more bytes. The caller's memory is not in a
            // packet buffer, which it cannot write.
            unsafe {
                to.copy_from_nonoverlapping(slice.as_ptr(), n);
                to = to.add(n);
            }
            left -= n;
        }
        conn.consume(bytes - left);
        Ok((bytes - left) as i64)
    };
    // SAFETY: the caller's promise.
    answer(unsafe { conn(loop_, conn_, read) })
}

/// Copies bytes of data into transmit memory to send them. Returns how many, from the front. If
/// these are fewer than bytes, the callback writable is called when there is room again.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed. `data` is null or points to `bytes`
/// bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_send(
    loop_: *mut ix_loop,
    conn_: u64,
    data: *const c_void,
    bytes: usize,
) -> i64 {
    // SAFETY: the caller's promise.
    answer(unsafe { conn(loop_, conn_, |conn| Ok(conn.send(slice(data, bytes)) as i64)) })
}

/// Sends the first received bytes, or all if there are fewer, from the packet buffers without a
/// copy. Returns how many. They count against the receive window until they are acknowledged.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_send_received(loop_: *mut ix_loop, conn_: u64, bytes: usize) -> i64 {
    // SAFETY: the caller's promise.
    answer(unsafe { conn(loop_, conn_, |conn| Ok(conn.send_received(bytes) as i64)) })
}

/// Returns how many bytes can be given to send now.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_send_room(loop_: *mut ix_loop, conn_: u64) -> i64 {
    let room = |conn: &mut Conn<'_, State>| Ok(conn.send_room().min(i64::MAX as u64) as i64);
    // SAFETY: the caller's promise.
    answer(unsafe { conn(loop_, conn_, room) })
}

/// Returns how many bytes given to send the window has not taken yet.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_unsent_bytes(loop_: *mut ix_loop, conn_: u64) -> i64 {
    // SAFETY: the caller's promise.
    answer(unsafe { conn(loop_, conn_, |conn| Ok(conn.unsent_bytes() as i64)) })
}

/// Returns how many sent bytes the peer has not acknowledged yet.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_unacked_bytes(loop_: *mut ix_loop, conn_: u64) -> i64 {
    // SAFETY: the caller's promise.
    answer(unsafe { conn(loop_, conn_, |conn| Ok(conn.unacked_bytes() as i64)) })
}

/// Sets an option, an IX_OPT_ number, of an open connection. Before the callback connected, the
/// call may have no effect.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_set_option(
    loop_: *mut ix_loop,
    conn_: u64,
    option: u64,
    value: u64,
) -> i64 {
    let set = |conn: &mut Conn<'_, State>| {
        conn.set_option(FlowOption::decode(option, value)?);
        Ok(0)
    };
    // SAFETY: the caller's promise.
    answer(unsafe { conn(loop_, conn_, set) })
}

/// Sends FIN after the bytes given to send; receiving continues.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_shutdown(loop_: *mut ix_loop, conn_: u64) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { act(loop_, conn_, |conn| conn.shutdown()) }
}

/// Closes the connection after the bytes given to send. Received bytes are dropped. No more
/// callbacks are called for it, not even dead.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_close(loop_: *mut ix_loop, conn_: u64) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { act(loop_, conn_, |conn| conn.close()) }
}

/// Resets the connection. No more callbacks are called for it, not even dead.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_abort(loop_: *mut ix_loop, conn_: u64) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { act(loop_, conn_, |conn| conn.abort()) }
}

/// The bytes at an address; none if it is null.
///
/// # Safety
/// They can be read, and do not change while the slice is used.
pub(crate) unsafe fn slice<'a>(data: *const c_void, bytes: usize) -> &'a [u8] {
    if data.is_null() || bytes == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { core::slice::from_raw_parts(data.cast(), bytes) }
}
