//! The callbacks of a service.
use super::ix_loop;
use crate::types::ix_endpoint;
use core::ffi::{c_int, c_void};

/// Callbacks of a service. A null pointer means the default, which is to do nothing, unless stated
/// otherwise. All are called on the loop's thread, between two cycles.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ix_callbacks {
    /// sizeof(struct ix_callbacks): a program that was built with an older header has fewer
    /// callbacks.
    pub size: usize,
    /// A peer has connected to a listener. Returns non-zero to accept the connection, whose state
    /// is then the value written to *state, or 0 to refuse it. The default refuses.
    pub accepted: Option<
        unsafe extern "C" fn(
            loop_: *mut ix_loop,
            listener: u64,
            peer: *const ix_endpoint,
            state: *mut *mut c_void,
        ) -> c_int,
    >,
    /// An accepted or outgoing connection is open.
    pub connected: Option<unsafe extern "C" fn(loop_: *mut ix_loop, conn: u64, state: *mut c_void)>,
    /// More bytes arrived; bytes that were not consumed before are still there. The default
    /// consumes them.
    pub readable: Option<unsafe extern "C" fn(loop_: *mut ix_loop, conn: u64, state: *mut c_void)>,
    /// The peer has acknowledged this many more bytes.
    pub sent: Option<
        unsafe extern "C" fn(loop_: *mut ix_loop, conn: u64, state: *mut c_void, bytes: u32),
    >,
    /// A connection that took fewer bytes than it was given has room again.
    pub writable: Option<unsafe extern "C" fn(loop_: *mut ix_loop, conn: u64, state: *mut c_void)>,
    /// The peer has closed its direction. The default closes the connection.
    pub eof: Option<unsafe extern "C" fn(loop_: *mut ix_loop, conn: u64, state: *mut c_void)>,
    /// The connection has ended. This is its last callback, so the program frees its state here. It
    /// is not called after ix_close and ix_abort. reason is an IX_DEAD_ number, or minus an
    /// IX_ERROR_ number if the attempt to connect failed or the dataplane refused a call.
    pub dead: Option<
        unsafe extern "C" fn(loop_: *mut ix_loop, conn: u64, state: *mut c_void, reason: i64),
    >,
    /// A datagram arrived at a UDP socket. Its bytes are valid only during the callback.
    pub datagram: Option<
        unsafe extern "C" fn(
            loop_: *mut ix_loop,
            socket: u64,
            from: *const ix_endpoint,
            data: *const c_void,
            bytes: usize,
        ),
    >,
    /// The timer that was set with this token has fired.
    pub timer: Option<unsafe extern "C" fn(loop_: *mut ix_loop, token: u64)>,
    /// All events of a cycle were handled; the next cycle follows.
    pub cycle: Option<unsafe extern "C" fn(loop_: *mut ix_loop)>,
    /// There were no events for the time set by ix_loop_set_idle.
    pub idle: Option<unsafe extern "C" fn(loop_: *mut ix_loop)>,
    /// The connection is about to move to the loop of another elastic thread, with its state and
    /// all unsent and unacknowledged bytes. Its number becomes invalid.
    pub migrate_out:
        Option<unsafe extern "C" fn(loop_: *mut ix_loop, conn: u64, state: *mut c_void, to: u32)>,
    /// The connection has moved here from another elastic thread. It has a new number.
    pub migrate_in:
        Option<unsafe extern "C" fn(loop_: *mut ix_loop, conn: u64, state: *mut c_void, from: u32)>,
    /// This elastic thread is about to be parked: its connections move next.
    pub revoke: Option<unsafe extern "C" fn(loop_: *mut ix_loop)>,
    /// This elastic thread was resumed.
    pub restore: Option<unsafe extern "C" fn(loop_: *mut ix_loop)>,
    /// Frames arrived at a packet queue. The program takes them with ix_packet_receive, now or
    /// later.
    pub packets: Option<unsafe extern "C" fn(loop_: *mut ix_loop, queue: u64)>,
    /// The memory of the frame that was sent with this cookie is free. outcome is 0, or minus an
    /// IX_ERROR_ number if the frame was not sent.
    pub packet_sent:
        Option<unsafe extern "C" fn(loop_: *mut ix_loop, queue: u64, cookie: u64, outcome: i64)>,
    /// The loop of elastic thread from has sent value with ix_signal.
    pub signal: Option<unsafe extern "C" fn(loop_: *mut ix_loop, from: u32, value: u64)>,
    /// A host reports that a datagram of a UDP socket did not arrive. why is -IX_ERROR_REFUSED if
    /// the port is closed, -IX_ERROR_UNREACHABLE if there is no route, or -IX_ERROR_TOO_LONG if the
    /// datagram is longer than the path's mtu; mtu is 0 if unknown. This is only a hint: any host
    /// can send such a message.
    pub datagram_error: Option<
        unsafe extern "C" fn(
            loop_: *mut ix_loop,
            socket: u64,
            to: *const ix_endpoint,
            why: i64,
            mtu: u16,
        ),
    >,
}
