//! Functions of the loop: new connections, timers and datagrams.
use crate::connection::slice;
use crate::endpoint::read;
use crate::event_loop::{answer, ix_loop, with};
use crate::types::{State, ix_endpoint};
use core::ffi::c_void;
use ix_abi::FlowOption;
use libix::Error;
use std::net::SocketAddr;

/// Returns the time of this cycle, µs of the dataplane's monotonic clock.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_now_us(loop_: *mut ix_loop) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { with(loop_, |this| this.io(|io| io.now_us())) }.unwrap_or(0)
}

/// Returns the number of the loop's connections, including those that are closing.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_connections(loop_: *mut ix_loop) -> usize {
    // SAFETY: the caller's promise.
    unsafe { with(loop_, |this| this.io(|io| io.connections())) }.unwrap_or(0)
}

/// Sets the most bytes that a connection may hold, unsent and unacknowledged together (default: 1
/// MiB, and up to 16 MiB on a path that holds as much).
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_set_send_limit(loop_: *mut ix_loop, bytes: u64) -> i64 {
    // SAFETY: the caller's promise.
    answer(unsafe { with(loop_, |this| this.io(|io| io.set_send_limit(bytes)).map(|()| 0)) })
}

/// Opens a connection and writes its number to conn. The callback connected or dead reports the
/// outcome. Bytes that the program sends before wait until the connection is open.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed. `to` is null or points to an
/// endpoint, `conn` to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_connect(
    loop_: *mut ix_loop,
    to: *const ix_endpoint,
    state: *mut c_void,
    conn: *mut u64,
) -> i64 {
    let begin = |this: &ix_loop| {
        // SAFETY: the caller's promise.
        let to = unsafe { read(to) }.ok_or(Error::Invalid)?;
        // SAFETY: the caller's promise.
        let conn = unsafe { conn.as_mut() }.ok_or(Error::Invalid)?;
        *conn = this.io(|io| io.connect(to, State(state)))?;
        Ok(0)
    };
    // SAFETY: the caller's promise.
    answer(unsafe { with(loop_, begin) })
}

/// Closes a listener. Its connections stay open.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_unlisten(loop_: *mut ix_loop, listener: u64) -> i64 {
    // SAFETY: the caller's promise.
    answer(unsafe { with(loop_, |this| this.io(|io| io.unlisten(listener)).map(|()| 0)) })
}

/// Sets a timer: after delay_us, the callback timer is called once with token. Writes the timer's
/// number to timer, unless it is NULL.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed. `timer` is null or points to a
/// number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_set_timer(
    loop_: *mut ix_loop,
    delay_us: u64,
    token: u64,
    timer: *mut u64,
) -> i64 {
    let set = |this: &ix_loop| {
        let id = this.io(|io| io.set_timer(delay_us, token))?;
        // SAFETY: the caller's promise.
        if let Some(timer) = unsafe { timer.as_mut() } {
            *timer = id;
        }
        Ok(0)
    };
    // SAFETY: the caller's promise.
    answer(unsafe { with(loop_, set) })
}

/// Stops a timer. Returns -IX_ERROR_BAD_HANDLE if it has fired.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_cancel_timer(loop_: *mut ix_loop, timer: u64) -> i64 {
    let cancel = |this: &ix_loop| {
        let waited = this.io(|io| io.cancel_timer(timer))?;
        if waited { Ok(0) } else { Err(Error::BadHandle) }
    };
    // SAFETY: the caller's promise.
    answer(unsafe { with(loop_, cancel) })
}

/// Copies a datagram into transmit memory and sends it after this callback. Returns
/// -IX_ERROR_NO_RESOURCE if there is no memory for it. As always with UDP, a datagram may be lost
/// on its way.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed. `to` is null or points to an
/// endpoint, `data` to `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_udp_send(
    loop_: *mut ix_loop,
    socket: u64,
    to: *const ix_endpoint,
    data: *const c_void,
    bytes: usize,
) -> i64 {
    let send = |this: &ix_loop| {
        // SAFETY: the caller's promise.
        let (to, data) = unsafe { (read(to).ok_or(Error::Invalid)?, slice(data, bytes)) };
        let taken = this.io(|io| io.udp_send(socket, to, data))?;
        if taken { Ok(0) } else { Err(Error::NoResource) }
    };
    // SAFETY: the caller's promise.
    answer(unsafe { with(loop_, send) })
}

/// Within the callback datagram, writes to at the local address that the datagram was sent to, with
/// port 0. This is useful for a socket that is bound to all addresses. To reply from the address,
/// bind another socket to it. Returns -IX_ERROR_STATE outside the callback datagram.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed. `at` is null or points to an
/// endpoint.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_udp_asked(loop_: *mut ix_loop, at: *mut ix_endpoint) -> i64 {
    let asked = |this: &ix_loop| {
        // SAFETY: the caller's promise.
        let at = unsafe { at.as_mut() }.ok_or(Error::Invalid)?;
        let addr = this.io(|io| io.udp_asked())?.ok_or(Error::State)?;
        *at = ix_endpoint::new(SocketAddr::new(addr, 0));
        Ok(0)
    };
    // SAFETY: the caller's promise.
    answer(unsafe { with(loop_, asked) })
}

/// Sets an option of a UDP socket for later datagrams: IX_OPT_DSCP (0 to 63) or IX_OPT_HOP_LIMIT (1
/// to 255).
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_udp_set_option(
    loop_: *mut ix_loop,
    socket: u64,
    option: u64,
    value: u64,
) -> i64 {
    let set = |this: &ix_loop| {
        let option = FlowOption::decode(option, value)?;
        if !matches!(option, FlowOption::Dscp(_) | FlowOption::HopLimit(_)) {
            return Err(Error::Invalid);
        }
        let open = this.io(|io| io.udp_set_opt(socket, option))?;
        if open { Ok(0) } else { Err(Error::BadHandle) }
    };
    // SAFETY: the caller's promise.
    answer(unsafe { with(loop_, set) })
}

/// Returns how many datagrams of the loop the dataplane has refused after ix_udp_send took them:
/// without a buffer or a route, or too long for the link.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_udp_lost(loop_: *mut ix_loop) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { with(loop_, |this| this.io(|io| io.udp_lost())) }.unwrap_or(0)
}

/// Closes a UDP socket.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_udp_unbind(loop_: *mut ix_loop, socket: u64) -> i64 {
    // SAFETY: the caller's promise.
    answer(unsafe { with(loop_, |this| this.io(|io| io.udp_unbind(socket)).map(|()| 0)) })
}
