//! Packets of the program's own protocol, doorbells, and signals between loops.
//!
//! A packet queue receives whole frames of a kind (an IX_PACKET_KIND_ number) that no other part of
//! the dataplane handles. The callback packets reports them, or ix_packet_wait waits for them.
//! ix_packet_receive takes a frame, which stays in its packet buffer. The program makes the frames
//! that it sends; the vNIC's transmit filters decide whether they leave.
use crate::buffer::{ix_buffer, take};
use crate::event_loop::{answer, ix_loop, with};
use core::ffi::{c_int, c_void};
use ix_abi::{PacketInfo, gate_op};
use libix::Error;
use libix::event::{Bell, Claim, Frame, Occasion, PIECES_MAX, Piece, Priority};
use libix::raw::{TxBuf, Wait};
use std::os::fd::BorrowedFd;

/// A received frame.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ix_packet {
    /// Its Ethernet header and all that follows. Read-only.
    pub data: *const c_void,
    /// Number of bytes.
    pub bytes: usize,
    /// The frame's number, for ix_packet_done and ix_packet_send.
    pub number: u64,
}

/// A piece of a frame to be sent.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ix_packet_piece {
    /// The buffer to send from, or NULL to send from a received frame.
    pub buffer: *mut ix_buffer,
    /// The number of a received frame, if buffer is NULL.
    pub packet: u64,
    /// Offset of the first byte to send.
    pub from: usize,
    /// Number of bytes.
    pub bytes: usize,
}

/// Opens a packet queue on a device, counted from 0, for frames of this kind and number, and
/// returns the queue's number. Runs cycles until it is open, so it must not be called within a
/// callback. If high is not 0, its callbacks come before those of other queues.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_packet_bind(
    loop_: *mut ix_loop,
    device: u32,
    kind: u64,
    number: u64,
    high: c_int,
) -> i64 {
    let priority = if high != 0 { Priority::High } else { Priority::Usual };
    let open = |this: &ix_loop| {
        let claim = Claim::from_abi(kind, number).ok_or(Error::Invalid)?;
        this.events(|events| events.packet_bind(device, claim, priority)).map(|id| id as i64)
    };
    // SAFETY: the caller's promise.
    answer(unsafe { with(loop_, open) })
}

/// Closes a packet queue. Frames that the program has not taken are lost.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_packet_unbind(loop_: *mut ix_loop, queue: u64) -> i64 {
    // SAFETY: the caller's promise.
    answer(unsafe { with(loop_, |this| this.io(|io| io.packet_unbind(queue)).map(|()| 0)) })
}

/// Writes information about the device of a packet queue to to. Runs cycles until it is there, so
/// it must not be called within a callback.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed. `to` is null or points to an object
/// of its type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_packet_device(
    loop_: *mut ix_loop,
    queue: u64,
    to: *mut PacketInfo,
) -> i64 {
    let ask = |this: &ix_loop| {
        // SAFETY: the caller's promise.
        let to = unsafe { to.as_mut() }.ok_or(Error::Invalid)?;
        *to = this.events(|events| events.packet_info(queue))?;
        Ok(0)
    };
    // SAFETY: the caller's promise.
    answer(unsafe { with(loop_, ask) })
}

/// Takes the oldest frame of a queue and writes it to to. Returns 1, or 0 if the queue is empty.
/// The frame belongs to the program until ix_packet_done or until it is sent.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed. `to` is null or points to an object
/// of its type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_packet_receive(
    loop_: *mut ix_loop,
    queue: u64,
    to: *mut ix_packet,
) -> i64 {
    let receive = |this: &ix_loop| {
        // SAFETY: the caller's promise.
        let to = unsafe { to.as_mut() }.ok_or(Error::Invalid)?;
        this.io(|io| {
            let Some(packet) = io.packet_receive(queue) else { return 0 };
            let (data, bytes) = (packet.as_ptr().cast(), packet.len());
            *to = ix_packet { data, bytes, number: io.packet_keep(packet) };
            1
        })
    };
    // SAFETY: the caller's promise.
    answer(unsafe { with(loop_, receive) })
}

/// Returns a frame to the dataplane. A program that holds too many frames receives no more.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed. The program no longer uses the
/// frame's bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_packet_done(loop_: *mut ix_loop, number: u64) -> i64 {
    let done = |this: &ix_loop| {
        let packet = this.io(|io| io.packet_kept(number))?;
        packet.map(|_| 0).ok_or(Error::BadHandle)
    };
    // SAFETY: the caller's promise.
    answer(unsafe { with(loop_, done) })
}

/// Sends a frame of one to four pieces, in order, by the device of a queue. The callback
/// packet_sent is called with cookie when the memory is free, or if the frame was not sent. The
/// buffers and received frames of the pieces then belong to the library, whatever the result.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed. `pieces` is null or points
/// to `count` pieces. Their buffers were neither sent, shared nor freed, and the program has
/// written the bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_packet_send(
    loop_: *mut ix_loop,
    queue: u64,
    pieces: *const ix_packet_piece,
    count: usize,
    cookie: u64,
) -> i64 {
    let send = |this: &ix_loop| {
        if pieces.is_null() || count == 0 || count > PIECES_MAX {
            return Err(Error::Invalid);
        }
        // SAFETY: the caller's promise.
        let pieces = unsafe { core::slice::from_raw_parts(pieces, count) };
        this.io(|io| {
            let mut whole = true;
            let mut made = [const { None }; PIECES_MAX];
            for (piece, made) in pieces.iter().zip(&mut made) {
                *made = if piece.buffer.is_null() {
                    io.packet_kept(piece.packet).and_then(|mut packet| {
                        let end = piece.from.checked_add(piece.bytes)?;
                        (end <= packet.len()).then(|| {
                            packet.truncate(end);
                            packet.skip(piece.from);
                            Piece::Received(packet)
                        })
                    })
                } else {
                    // SAFETY: the caller's promise.
                    unsafe { buffer_of(piece.buffer, piece.bytes) }.map(Piece::Buffer)
                };
                whole &= made.is_some();
            }
            if !whole {
                return Err(Error::Invalid);
            }
            let frame = Frame::new(made.into_iter().flatten());
            if io.packet_send(queue, frame, cookie) { Ok(0) } else { Err(Error::NoResource) }
        })?
    };
    // SAFETY: the caller's promise.
    answer(unsafe { with(loop_, send) })
}

/// A buffer's first bytes. If its capacity is less, the buffer is freed.
///
/// # Safety
/// As `take`.
unsafe fn buffer_of(buffer: *mut ix_buffer, bytes: usize) -> Option<TxBuf> {
    // SAFETY: the caller's promise.
    let taken = unsafe { take(buffer, bytes) };
    if taken.is_none() {
        // SAFETY: it was not taken, so it is still a buffer.
        unsafe { crate::buffer::ix_buffer_free(buffer) };
    }
    taken
}

/// Runs cycles until one of these packet queues has a frame, for at most wait_us, and returns the
/// queue's number, or 0 if none has a frame. Queues that are high come first. A wait_us of 0 runs
/// one cycle; IX_GATE_WAIT_FOREVER has no limit. Must not be called within a callback.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed. `queues` is null or points
/// to `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_packet_wait(
    loop_: *mut ix_loop,
    queues: *const u64,
    count: usize,
    wait_us: u64,
) -> i64 {
    let wait = match wait_us {
        0 => Wait::Poll,
        gate_op::WAIT_FOREVER => Wait::Forever,
        us => Wait::Us(us),
    };
    let run = |this: &ix_loop| {
        if queues.is_null() {
            return Err(Error::Invalid);
        }
        // SAFETY: the caller's promise.
        let queues = unsafe { core::slice::from_raw_parts(queues, count) };
        let found = this.events(|events| events.wait_queues(queues, wait))?;
        Ok(found.map_or(0, |queue| queue as i64))
    };
    // SAFETY: the caller's promise.
    answer(unsafe { with(loop_, run) })
}

fn set_bell(this: &ix_loop, queue: u64, sent: c_int, bell: Option<Bell>) -> Result<i64, Error> {
    let occasion = if sent != 0 { Occasion::Sent } else { Occasion::Arrived };
    this.io(|io| io.set_bell(queue, occasion, bell))?.map(|()| 0)
}

/// Adds 1 to an eventfd, once per cycle, when frames have arrived at a packet queue, or if sent is
/// not 0, when frames were sent. The library copies the descriptor. An fd of -1 removes the
/// doorbell.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed. `fd` is an open descriptor or
/// negative.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_packet_bell_fd(
    loop_: *mut ix_loop,
    queue: u64,
    sent: c_int,
    fd: c_int,
) -> i64 {
    let set = |this: &ix_loop| {
        if fd < 0 {
            return set_bell(this, queue, sent, None);
        }
        // SAFETY: open by the caller's promise.
        let copy = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned();
        let bell = Bell::EventFd(copy.map_err(|_| Error::NoResource)?);
        set_bell(this, queue, sent, Some(bell))
    };
    // SAFETY: the caller's promise.
    answer(unsafe { with(loop_, set) })
}

/// As ix_packet_bell_fd, but sends a signal to the process. A signal of 0 removes the doorbell.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_packet_bell_signal(
    loop_: *mut ix_loop,
    queue: u64,
    sent: c_int,
    signal: c_int,
) -> i64 {
    let bell = (signal != 0).then_some(Bell::Signal(signal));
    // SAFETY: the caller's promise.
    answer(unsafe { with(loop_, |this| set_bell(this, queue, sent, bell)) })
}

/// Calls the callback signal with value on the loop of an elastic thread, another one or this one.
/// This takes a system call of Linux only if that thread sleeps.
///
/// # Safety
/// `loop_` is null or a loop of this thread that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_signal(loop_: *mut ix_loop, thread: u32, value: u64) -> i64 {
    // SAFETY: the caller's promise.
    answer(unsafe { with(loop_, |this| this.io(|io| io.signal(thread, value)).map(|()| 0)) })
}
