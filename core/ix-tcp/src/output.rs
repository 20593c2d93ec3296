//! What a connection needs from its caller, and what it reports.
use crate::stats::TcpCounter;
use ix_wire::{FlowTuple, Seq, TcpFlags, TcpHeader, TcpOptions};

/// A received payload: an owning token. TCP never looks at the bytes.
///
/// Every token that is given to [`crate::Tcb::segment`] is returned exactly once, by
/// [`Output::deliver`] or [`Output::discard`]; [`crate::Tcb::release`] returns those that are
/// queued.
#[allow(clippy::len_without_is_empty)]
pub trait RxBuf {
    /// Bytes of payload.
    fn len(&self) -> usize;
    /// Drops `n` bytes from the front.
    fn trim_front(&mut self, n: usize);
    /// Keeps the first `n` bytes.
    fn truncate(&mut self, n: usize);
}

/// The caller's side of a connection: the wire below and the application above.
pub trait Output<B> {
    /// Transmits one segment. Its payload is `seg.payload_len` bytes at `seg.payload_offset` of the
    /// send stream, counted from the oldest byte not yet reported by [`Output::acked`].
    ///
    /// Returns false if no buffer is free. The segment then counts as not sent, and is tried again
    /// at the next [`crate::Tcb::output`] or [`crate::Tcb::timer`].
    fn transmit(&mut self, tuple: &FlowTuple, seg: &SegmentOut) -> bool;

    /// Whether there is room for more data of a connection that has some in flight already, beside
    /// what others have to send. If not, the rest waits for [`crate::Tcb::output`], and
    /// [`crate::Tcb::waits_for_room`] is true.
    fn has_room(&self) -> bool {
        true
    }

    /// Delivers the next in-order payload to the application. It is never empty.
    fn deliver(&mut self, buf: B);

    /// The same, by appending it to the buffer that was delivered last. Returns the buffer if the
    /// application does not hold that one any more, or if it has too little room.
    ///
    /// # Errors
    /// The buffer, as it was.
    fn append(&mut self, buf: B) -> Result<(), B>;

    /// Appends `back` to `front`, and frees its buffer, if there is room.
    ///
    /// # Errors
    /// `back`, as it was.
    fn join(&mut self, front: &mut B, back: B) -> Result<(), B>;

    /// Frees a buffer that is not needed: a duplicate, out of window, or over the limit.
    fn discard(&mut self, buf: B);

    /// The oldest `bytes` bytes of the send stream were acknowledged; SYN and FIN do not count.
    /// Always called before a segment with the new offsets is transmitted.
    fn acked(&mut self, bytes: u32);

    /// Reports an event to the application.
    fn event(&mut self, event: TcpEvent);

    /// Counts an event for operators. Never called for an in-order segment or acknowledgement on a
    /// healthy connection.
    fn count(&mut self, counter: TcpCounter);

    /// How many bytes beyond the first size this connection's receive buffer may have: what free
    /// memory has room for that was not promised to others. `promised` is what [`Self::promise`]
    /// was last told of this connection. Asked now and then of connections with much data.
    fn receive_room(&self, promised: u32) -> u32 {
        let _ = promised;
        u32::MAX
    }

    /// The peer of this connection may now send `now` bytes that are not returned yet, those that
    /// are held included, where it could send `before`; 0: no more than any connection may. A
    /// connection that was released has promised nothing.
    fn promise(&mut self, before: u32, now: u32) {
        let _ = (before, now);
    }

    /// Whether a challenge ACK may be sent, by the limit that all connections share
    /// ([`crate::ack_limit::ChallengeLimit`]). The connection's own limit is checked before.
    fn may_challenge(&mut self, now_us: u64) -> bool {
        let _ = now_us;
        true
    }
}

/// One segment to transmit. The caller adds addresses, ports and checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentOut {
    /// Sequence number of the first octet (of SYN, when set).
    pub seq: Seq,
    /// Acknowledgement number; 0 without ACK.
    pub ack: Seq,
    /// Control bits.
    pub flags: TcpFlags,
    /// The window field, already scaled.
    pub window: u16,
    /// ECN field of the IP header (RFC 3168 section 5).
    pub ecn: u8,
    /// Options.
    pub options: TcpOptions,
    /// Offset of the payload from the oldest unacknowledged byte of the send stream.
    pub payload_offset: u32,
    /// Payload bytes, at most what path and peer accept in one segment.
    pub payload_len: u32,
    /// The segment holds an octet that was transmitted before.
    pub retransmission: bool,
}

impl SegmentOut {
    /// The TCP header of this segment on `tuple`.
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

/// An event of a connection for the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpEvent {
    /// The handshake is complete (active and passive opens; not for a connection made from a SYN
    /// cookie, which begins established).
    Established,
    /// The peer will send no more. Comes after the last [`Output::deliver`].
    Eof,
    /// The send window opened without an acknowledgement of data: [`crate::Tcb::send_space`] grew
    /// from less than one segment to at least one.
    WindowOpen,
    /// The connection is over for the application. Reported at most once, and already on entry to
    /// TIME-WAIT (the control block remains until [`crate::Tcb::is_dead`]). Not reported if the
    /// caller ended the connection itself, by `abort`, or by `close` before it was established.
    Dead(DeadReason),
}

/// Why a connection is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadReason {
    /// Both sides closed in order.
    Closed,
    /// The peer reset an established connection.
    Reset,
    /// The peer or its host refused the connection.
    Refused,
    /// Retransmissions, probes or keepalives were not acknowledged.
    TimedOut,
    /// They were not acknowledged, and an ICMP message said that the peer cannot be reached.
    Unreachable,
}
