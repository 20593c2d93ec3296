//! What a connection needs from its surroundings, and what it tells them.
use crate::stats::TcpCounter;
use ix_wire::{FlowTuple, Seq, TcpFlags, TcpHeader, TcpOptions};

/// An owning token of received payload; the stack never looks at the bytes.
///
/// Every token that enters through [`crate::Tcb::segment`] leaves exactly once, through
/// [`Output::deliver`] or [`Output::discard`]; [`crate::Tcb::release`] gives back what is queued.
#[allow(clippy::len_without_is_empty)]
pub trait RxBuf {
    /// Bytes of payload.
    fn len(&self) -> usize;
    /// Drops `n` bytes from the front.
    fn trim_front(&mut self, n: usize);
    /// Keeps the first `n` bytes.
    fn truncate(&mut self, n: usize);
}

/// The surroundings of a connection: the wire below, the application above.
pub trait Output<B> {
    /// Transmits one segment. Its payload is `seg.payload_len` bytes at `seg.payload_offset` of the
    /// send stream, counted from the oldest byte not yet reported by [`Output::acked`].
    ///
    /// Answers false when there is no buffer now: the segment then counts as not sent, and is
    /// tried again at the next [`crate::Tcb::output`] or [`crate::Tcb::timer`].
    fn transmit(&mut self, tuple: &FlowTuple, seg: &SegmentOut) -> bool;

    /// The next in-order payload for the application; never empty.
    fn deliver(&mut self, buf: B);

    /// A buffer that is not needed: duplicate, out of window, over the limit.
    fn discard(&mut self, buf: B);

    /// The oldest `bytes` bytes of the send stream were acknowledged (SYN and FIN not counted).
    /// Always comes before a segment is transmitted with the new offsets.
    fn acked(&mut self, bytes: u32);

    /// Something happened that the application may want to know.
    fn event(&mut self, event: TcpEvent);

    /// Something happened that an operator may want to know. Never called for an in-order segment
    /// or acknowledgement on a healthy connection.
    fn count(&mut self, counter: TcpCounter);

    /// Whether a challenge ACK may go out, by the budget that connections share
    /// ([`crate::ack_limit::ChallengeLimit`]). Each connection is limited by itself before.
    fn may_challenge(&mut self, now_us: u64) -> bool {
        let _ = now_us;
        true
    }
}

/// One segment to transmit; the layer below adds ports, checksum and addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentOut {
    /// Sequence number of the first octet (of SYN, when set).
    pub seq: Seq,
    /// Acknowledgement number; 0 without ACK.
    pub ack: Seq,
    /// Control bits.
    pub flags: TcpFlags,
    /// Window field as it goes on the wire (scaled already).
    pub window: u16,
    /// ECN field of the IP header (RFC 3168 section 5).
    pub ecn: u8,
    /// Options.
    pub options: TcpOptions,
    /// First payload byte, from the oldest unacknowledged byte of the send stream.
    pub payload_offset: u32,
    /// Payload bytes, at most what the path and the peer take in one segment.
    pub payload_len: u32,
    /// Some octet of this segment was transmitted before.
    pub retransmission: bool,
}

impl SegmentOut {
    /// The header of this segment on `tuple`.
    pub fn header(&self, tuple: &FlowTuple) -> TcpHeader {
        TcpHeader {
            src_port: tuple.local_port,
            dst_port: tuple.remote_port,
            seq: self.seq,
            ack: self.ack,
            flags: self.flags,
            window: self.window,
            urgent: 0,
            options: self.options,
        }
    }
}

/// What a connection tells the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpEvent {
    /// The handshake is complete (active and passive opens; not for a connection made from a SYN
    /// cookie, which begins established).
    Established,
    /// The peer will send no more. Comes after the last [`Output::deliver`].
    Eof,
    /// The send window opened without an acknowledgement of data: [`crate::Tcb::send_space`] grew
    /// from less than one segment to more.
    WindowOpen,
    /// There is nothing more to learn about this connection. Said at most once, also on entry to
    /// TIME-WAIT (the block itself lives on until [`crate::Tcb::is_dead`]), and not when the caller
    /// ended the connection itself by `abort`, or by `close` before it was established.
    Dead(DeadReason),
}

/// Why a connection is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadReason {
    /// Both sides closed in order.
    Closed,
    /// The peer reset an established connection.
    Reset,
    /// The peer, or its host, refused the connection.
    Refused,
    /// Retransmissions, probes or keepalives went unanswered.
    TimedOut,
    /// They went unanswered, and the network said that the peer cannot be reached.
    Unreachable,
}
