//! A TCP connection as the program sees it: what came in, what is to go out, and how it ends.
use crate::mem::{self, Gather, Scatter};
use crate::slab::Id;
use crate::socket::{FlowOptions, Refused};
use ix_abi::{Handle, SgEntry};
use libix::raw::{Received, TxArena, TxBuf};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// How long `TCP_CORK` holds a short segment back, as on Linux.
pub const CORK_US: u64 = 200_000;

/// Received bytes that the program has not read, in the buffers they came in.
#[derive(Default)]
pub struct Inbox {
    pieces: VecDeque<Received>,
    /// Bytes of the first piece that were read.
    front_read: usize,
    /// What lies here came before `pieces`: it was taken out of buffers that had to go.
    saved: VecDeque<u8>,
    bytes: usize,
    /// Read, and to be given back.
    done: u64,
}

impl Inbox {
    /// Unread bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Takes a piece in.
    pub fn push(&mut self, data: Received) {
        self.bytes += data.len() as usize;
        self.pieces.push_back(data);
    }

    /// Takes bytes in that come from no buffer of the dataplane.
    pub fn append(&mut self, bytes: &[u8]) {
        debug_assert!(self.pieces.is_empty());
        self.bytes += bytes.len();
        self.saved.extend(bytes);
    }

    /// Copies the first unread bytes out, and forgets them unless it is only a look (`MSG_PEEK`).
    pub fn read(&mut self, to: &mut Scatter<'_>, peek: bool) -> usize {
        let room = to.left();
        if peek { self.peek(to) } else { self.consume(|bytes| to.put(bytes), room) }
    }

    /// Forgets up to `n` of the first unread bytes (`MSG_TRUNC`).
    pub fn discard(&mut self, n: usize) -> usize {
        self.consume(<[u8]>::len, n)
    }

    fn peek(&self, to: &mut Scatter<'_>) -> usize {
        let (a, b) = self.saved.as_slices();
        let mut n = to.put(a) + to.put(b);
        let mut skip = self.front_read;
        for piece in &self.pieces {
            // SAFETY: not given back, for it is still queued, and the lock is held.
            n += to.put(unsafe { mem::received(*piece, skip) });
            skip = 0;
        }
        n
    }

    fn consume(&mut self, mut take: impl FnMut(&[u8]) -> usize, limit: usize) -> usize {
        let mut left = limit.min(self.bytes);
        let all = left;
        while left > 0 && !self.saved.is_empty() {
            let (a, _) = self.saved.as_slices();
            let n = take(&a[..a.len().min(left)]);
            self.saved.drain(..n);
            left -= n;
        }
        while left > 0 {
            let Some(front) = self.pieces.front() else { break };
            // SAFETY: as in `peek`; given back by `take_done`, in the next cycle at the earliest.
            let bytes = unsafe { mem::received(*front, self.front_read) };
            let n = take(&bytes[..bytes.len().min(left)]);
            left -= n;
            self.done += n as u64;
            self.front_read += n;
            if n == bytes.len() {
                self.pieces.pop_front();
                self.front_read = 0;
            }
        }
        self.bytes -= all - left;
        all - left
    }

    /// Bytes to be given back now; the caller does.
    pub fn take_done(&mut self) -> u64 {
        core::mem::take(&mut self.done)
    }

    /// Whether there are any.
    pub fn has_done(&self) -> bool {
        self.done > 0
    }

    /// The flow is gone, and its buffers are with the next cycle: copies what is unread.
    pub fn save(&mut self) {
        let mut skip = core::mem::take(&mut self.front_read);
        for piece in self.pieces.drain(..) {
            // SAFETY: as in `peek`; buffers go back at the first cycle after `DEAD`.
            self.saved.extend(unsafe { mem::received(piece, skip) });
            skip = 0;
        }
        self.done = 0;
    }
}

/// Bytes to be sent, from the oldest unacknowledged one on, in transmit memory.
#[derive(Default)]
pub struct Outbox {
    blocks: VecDeque<TxBuf>,
    /// Bytes of the first block that were acknowledged.
    front_acked: usize,
    /// A `SENDV` took them, nobody acknowledged them.
    flying: u64,
    /// No `SENDV` took them.
    unsent: u64,
}

impl Outbox {
    /// Unsent and unacknowledged bytes.
    pub fn len(&self) -> u64 {
        self.flying + self.unsent
    }

    /// Bytes that no `SENDV` took.
    pub fn unsent(&self) -> u64 {
        self.unsent
    }

    /// Copies up to `limit` bytes behind what is there; answers how many transmit memory was there
    /// for.
    pub fn write(&mut self, tx: &TxArena, from: &mut Gather<'_>, limit: usize) -> usize {
        let mut left = limit.min(from.left());
        let all = left;
        while left > 0 {
            let front = from.front();
            let piece = &front[..front.len().min(left)];
            let mut block = left;
            if let Some(last) = self.blocks.back_mut() {
                let n = last.extend(piece);
                if n > 0 {
                    from.advance(n);
                    left -= n;
                    continue;
                }
                // Many small writes get ever larger blocks, so that they fit one `SENDV`.
                block = left.max(4 * last.capacity());
            }
            let Some(buf) = tx.alloc(block) else { break };
            self.blocks.push_back(buf);
        }
        self.unsent += (all - left) as u64;
        all - left
    }

    /// The first `limit` unsent bytes, as a scatter-gather array.
    pub fn pieces(&self, limit: u64) -> impl Iterator<Item = SgEntry> {
        let mut skip = self.front_acked as u64 + self.flying;
        let mut left = limit;
        self.blocks.iter().filter_map(move |block| {
            let from = skip.min(block.len() as u64);
            skip -= from;
            let len = (block.len() as u64 - from).min(left);
            left -= len;
            (len > 0).then(|| SgEntry { base: block.base() + from, len })
        })
    }

    /// So many are with the other end, which is a socket of this process, until it has read them.
    pub fn lend(&mut self, bytes: u64) {
        self.flying += bytes;
    }

    /// A `SENDV` took so many.
    pub fn taken(&mut self, bytes: u64) {
        let bytes = bytes.min(self.unsent);
        self.unsent -= bytes;
        self.flying += bytes;
    }

    /// So many were acknowledged.
    pub fn acked(&mut self, bytes: u64) {
        let mut left = bytes.min(self.flying);
        self.flying -= left;
        while let Some(front) = self.blocks.front() {
            let n = left.min((front.len() - self.front_acked) as u64);
            left -= n;
            self.front_acked += n as usize;
            // The last block stays while it has room: the next write goes there.
            let is_last = self.blocks.len() == 1;
            let full = front.len() == front.capacity();
            if self.front_acked < front.len() || (is_last && !full && self.len() > 0) {
                break;
            }
            self.blocks.pop_front();
            self.front_acked = 0;
        }
    }
}

/// How the program ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Not yet.
    No,
    /// In order: all is sent and acknowledged, then the flow is closed.
    Close,
    /// By a reset.
    Abort,
}

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// `CONNECT` has to be called.
    ToConnect,
    /// Called; its outcome is awaited.
    Connecting,
    /// There is a flow that has to be accepted.
    ToAccept,
    /// It is open, in one direction at least.
    Open,
    /// The flow is gone.
    Dead,
}

/// A connection.
pub struct Stream {
    /// Dataplane's name, 0: none.
    pub handle: Handle,
    /// The peer.
    pub peer: SocketAddr,
    /// Our end, once it is known.
    pub local: Option<SocketAddr>,
    /// Where it is.
    pub phase: Phase,
    /// What came in.
    pub inbox: Inbox,
    /// What goes out.
    pub outbox: Outbox,
    /// The window takes no more until `SENT`.
    pub blocked: bool,
    /// The peer sends no more.
    pub eof: bool,
    /// The program reads no more.
    pub read_shut: bool,
    /// The program writes no more.
    pub write_shut: bool,
    /// FIN was asked for.
    pub fin: bool,
    /// How the program ended it.
    pub ending: Ending,
    /// It waits in the accept queue of this listener.
    pub queued_at: Option<Id>,
    /// Not yet there, for nothing was received: until then (`TCP_DEFER_ACCEPT`).
    pub deferred_until_us: Option<u64>,
    /// Errno of what somebody says of packets that are unanswered since.
    pub soft_error: i32,
    /// What has ended the attempt to connect, as `MSG_ERRQUEUE` tells.
    pub complaint: Option<Refused>,
    /// The program may write while no more than this is unsent (`TCP_NOTSENT_LOWAT`).
    pub unsent_low: u64,
    /// Since when `TCP_CORK` holds the end of what is unsent back, µs.
    pub held_us: Option<u64>,
    /// The other end, if that is a socket of this process.
    pub mate: Option<Id>,
    /// So many elastic threads have refused to connect it.
    pub refused_by: usize,
    /// Options have changed since the dataplane last heard of them.
    pub options_changed: bool,
    /// What it has heard.
    pub told: FlowOptions,
    /// It was open once.
    pub was_open: bool,
    /// `connect` has said how it went.
    pub announced: bool,
    /// `GET_INFO` is asked for.
    pub wants_info: bool,
    /// What it last answered.
    pub info: Option<Box<ix_abi::FlowInfo>>,
}

impl Stream {
    /// One that is about to be in this phase.
    pub fn new(
        phase: Phase,
        handle: Handle,
        peer: SocketAddr,
        local: Option<SocketAddr>,
    ) -> Stream {
        Stream {
            handle,
            peer,
            local,
            phase,
            inbox: Inbox::default(),
            outbox: Outbox::default(),
            blocked: false,
            eof: false,
            read_shut: false,
            write_shut: false,
            fin: false,
            ending: Ending::No,
            queued_at: None,
            deferred_until_us: None,
            soft_error: 0,
            complaint: None,
            unsent_low: u64::MAX,
            held_us: None,
            mate: None,
            refused_by: 0,
            options_changed: false,
            told: FlowOptions::default(),
            was_open: phase == Phase::ToAccept,
            announced: phase == Phase::ToAccept,
            wants_info: false,
            info: None,
        }
    }

    /// How many unsent bytes go out now: with `TCP_CORK` whole segments only, until what is left
    /// has waited for [`CORK_US`] (tcp(7)).
    pub fn sendable(&mut self, corked: bool, mss: u64, now_us: impl FnOnce() -> u64) -> u64 {
        let unsent = self.outbox.unsent();
        let rest = unsent % mss.max(1);
        if !corked || rest == 0 || self.write_shut || self.ending != Ending::No {
            self.held_us = None;
            return unsent;
        }
        let now_us = now_us();
        let since_us = *self.held_us.get_or_insert(now_us);
        if now_us.saturating_sub(since_us) >= CORK_US {
            self.held_us = None;
            return unsent;
        }
        unsent - rest
    }

    /// Whether the connection attempt goes on.
    pub fn is_connecting(&self) -> bool {
        matches!(self.phase, Phase::ToConnect | Phase::Connecting)
    }

    /// Room for the program's bytes, as long as they are bounded by this many.
    pub fn space(&self, send_buffer: usize) -> usize {
        if self.outbox.unsent() >= self.unsent_low {
            return 0;
        }
        (send_buffer as u64).saturating_sub(self.outbox.len()) as usize
    }

    /// Whether `poll` says that it can be written: a third of the buffer is free, and less than
    /// half of what may be is unsent, as on Linux.
    pub fn is_writable(&self, send_buffer: usize) -> bool {
        if self.outbox.unsent().saturating_mul(2) >= self.unsent_low {
            return false;
        }
        let used = self.outbox.len() as usize;
        send_buffer.saturating_sub(used) >= used / 2 && used < send_buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::iovec;
    use proptest::prelude::*;

    // Property tests of the outbox need transmit memory: libix's loopback model has it.
    #[test]
    fn the_inbox_keeps_what_was_saved() {
        let mut inbox = Inbox::default();
        inbox.saved.extend(b"abcdef");
        inbox.bytes = 6;
        let mut room = [0u8; 4];
        let piece = iovec { iov_base: room.as_mut_ptr().cast(), iov_len: 4 };
        let list = [piece];
        // SAFETY: a local.
        assert_eq!(inbox.read(&mut unsafe { Scatter::new(&list) }, true), 4);
        assert_eq!((&room, inbox.len()), (b"abcd", 6));
        assert_eq!(inbox.discard(1), 1);
        // SAFETY: as above.
        assert_eq!(inbox.read(&mut unsafe { Scatter::new(&list) }, false), 4);
        assert_eq!((&room, inbox.len()), (b"bcde", 1));
        assert_eq!((inbox.discard(9), inbox.len(), inbox.take_done()), (1, 0, 0));
    }

    #[test]
    fn a_cork_holds_the_last_short_segment_for_its_time() {
        let mut stream = Stream::new(Phase::Open, 1, "10.0.0.1:1".parse().unwrap(), None);
        stream.outbox.unsent = 3000;
        assert_eq!(stream.sendable(false, 1448, || 0), 3000);
        assert_eq!(stream.sendable(true, 1448, || 10), 2896);
        stream.outbox.taken(2896);
        assert_eq!(stream.sendable(true, 1448, || CORK_US + 9), 0);
        assert_eq!(stream.sendable(true, 1448, || CORK_US + 10), 104);
        stream.outbox.taken(104);
        stream.outbox.unsent = 5;
        assert_eq!(stream.sendable(true, 1448, || CORK_US + 20), 0);
        stream.write_shut = true;
        assert_eq!((stream.sendable(true, 1448, || 0), stream.held_us), (5, None));
    }

    proptest! {
        #[test]
        fn writable_needs_a_third(used in 0u64..1000, buffer in 1usize..1000) {
            let mut stream =
                Stream::new(Phase::Open, 1, "10.0.0.1:1".parse().unwrap(), None);
            stream.outbox.unsent = used;
            let writable = stream.is_writable(buffer);
            prop_assert!(!writable || stream.space(buffer) > 0);
            prop_assert!(used != 0 || writable);
        }
    }
}
