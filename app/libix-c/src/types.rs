//! Types of the event loop.
use crate::buffer::ix_buffer;
use crate::event_loop::ix_loop;
use core::ffi::{c_int, c_void};

/// The loops of a service on several elastic threads, between which connections move.
pub struct ix_team(pub(crate) libix::event::Team<State>);

impl ix_team {
    /// The team, for tests that make loops themselves.
    pub fn inner(&self) -> &libix::event::Team<State> {
        &self.0
    }
}

/// An address, 128 bits wide in network byte order (IPv4 mapped: ::ffff:a.b.c.d), and a port.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ix_endpoint {
    /// The address; all zero: every address of the dataplane.
    pub addr: [u8; 16],
    /// The port, host byte order.
    pub port: u16,
    /// Zero.
    pub reserved: [u16; 3],
}

/// What a service hears. A null pointer stands for the default, which is to do nothing, unless said
/// otherwise. All are called on the loop's thread, between two cycles.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ix_callbacks {
    /// sizeof(struct ix_callbacks): a program that was built with an older header hears less.
    pub size: usize,
    /// A peer connected to a listener: not 0 takes it, and what was written to state is its state.
    /// 0, and the default, refuses it.
    pub accepted: Option<
        unsafe extern "C" fn(
            loop_: *mut ix_loop,
            listener: u64,
            peer: *const ix_endpoint,
            state: *mut *mut c_void,
        ) -> c_int,
    >,
    /// An accepted or outgoing connection is there.
    pub connected: Option<unsafe extern "C" fn(loop_: *mut ix_loop, conn: u64, state: *mut c_void)>,
    /// More bytes came; those that were not consumed before are still there as well. The default
    /// consumes them.
    pub readable: Option<unsafe extern "C" fn(loop_: *mut ix_loop, conn: u64, state: *mut c_void)>,
    /// The peer has acknowledged so many bytes more.
    pub sent: Option<
        unsafe extern "C" fn(loop_: *mut ix_loop, conn: u64, state: *mut c_void, bytes: u32),
    >,
    /// A connection that took less than it was given has room again.
    pub writable: Option<unsafe extern "C" fn(loop_: *mut ix_loop, conn: u64, state: *mut c_void)>,
    /// The peer will send no more. The default closes the connection.
    pub eof: Option<unsafe extern "C" fn(loop_: *mut ix_loop, conn: u64, state: *mut c_void)>,
    /// The connection is gone; the last that is heard of it, so here its state is freed. Not called
    /// after ix_close and ix_abort. reason: an IX_DEAD_ number; minus an IX_ERROR_ number where it
    /// never came to be, or a call on it was refused.
    pub dead: Option<
        unsafe extern "C" fn(loop_: *mut ix_loop, conn: u64, state: *mut c_void, reason: i64),
    >,
    /// A datagram came to a UDP socket. Its bytes are there for this call only.
    pub datagram: Option<
        unsafe extern "C" fn(
            loop_: *mut ix_loop,
            socket: u64,
            from: *const ix_endpoint,
            data: *const c_void,
            bytes: usize,
        ),
    >,
    /// The timer that was set with token fired.
    pub timer: Option<unsafe extern "C" fn(loop_: *mut ix_loop, token: u64)>,
    /// Everything that happened in a cycle has been told; the next one follows.
    pub cycle: Option<unsafe extern "C" fn(loop_: *mut ix_loop)>,
    /// Nothing happened for as long as ix_loop_set_idle says.
    pub idle: Option<unsafe extern "C" fn(loop_: *mut ix_loop)>,
    /// The connection is about to move to the loop of another elastic thread, with its state and
    /// all that is on its way. Its number dies.
    pub migrate_out:
        Option<unsafe extern "C" fn(loop_: *mut ix_loop, conn: u64, state: *mut c_void, to: u32)>,
    /// The connection has come from another elastic thread. It has a new number.
    pub migrate_in:
        Option<unsafe extern "C" fn(loop_: *mut ix_loop, conn: u64, state: *mut c_void, from: u32)>,
    /// This elastic thread is about to be taken away: its connections move next.
    pub revoke: Option<unsafe extern "C" fn(loop_: *mut ix_loop)>,
    /// This elastic thread was given back.
    pub restore: Option<unsafe extern "C" fn(loop_: *mut ix_loop)>,
    /// Frames came to a packet queue: ix_packet_receive takes them, now or later.
    pub packets: Option<unsafe extern "C" fn(loop_: *mut ix_loop, queue: u64)>,
    /// The memory of a frame that was sent with cookie is free: 0, or minus the IX_ERROR_ number why
    /// it was not sent.
    pub packet_sent:
        Option<unsafe extern "C" fn(loop_: *mut ix_loop, queue: u64, cookie: u64, outcome: i64)>,
    /// The loop of elastic thread from said this number (ix_signal).
    pub signal: Option<unsafe extern "C" fn(loop_: *mut ix_loop, from: u32, value: u64)>,
    /// Somebody says that a datagram of a UDP socket did not arrive. why: -IX_ERROR_REFUSED, nobody
    /// has the port; -IX_ERROR_TOO_LONG, it is longer than the path's mtu (0: not said);
    /// -IX_ERROR_UNREACHABLE, there is no way. A hint: anybody can send such a message.
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

/// A received frame.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ix_packet {
    /// Its Ethernet header, and all that follows. Read-only.
    pub data: *const c_void,
    /// How many bytes.
    pub bytes: usize,
    /// For ix_packet_done and ix_packet_send.
    pub number: u64,
}

/// A piece of a frame to be sent.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ix_packet_piece {
    /// A buffer, of which the first bytes are sent; NULL: a part of a received frame.
    pub buffer: *mut ix_buffer,
    /// The number of a received frame, where buffer is NULL.
    pub packet: u64,
    /// From which of its bytes on.
    pub from: usize,
    /// How many bytes.
    pub bytes: usize,
}

/// What a C program keeps for a connection.
pub struct State(pub(crate) *mut c_void);

// SAFETY: the pointer is only stored here. It comes to another thread with its connection, told by
// `migrate_in`, and `migrate_out` was the last that the old thread heard of it.
unsafe impl Send for State {}
