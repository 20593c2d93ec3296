//! A TCP connection as the program sees it: what came in, what is to go out, and how it ends.
use crate::mem::{Gather, Scatter};
use crate::slab::Id;
use crate::socket::{FlowOptions, Refused};
use ix_abi::Handle;
use libix::engine::{Ending, Flow};
use libix::raw::TxArena;
use std::collections::VecDeque;
use std::net::SocketAddr;

/// How long `TCP_CORK` holds a short segment back, as on Linux.
pub const CORK_US: u64 = 200_000;

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
    /// The dataplane's flow, as long as there is one: what goes out, what came in, how it ends.
    pub flow: Flow,
    /// The peer.
    pub peer: SocketAddr,
    /// Our end, once it is known.
    pub local: Option<SocketAddr>,
    /// Where it is.
    pub phase: Phase,
    /// Unread bytes that lie in no buffer of the dataplane, before those of the flow: the flow is
    /// gone, or they came from a socket of this process.
    saved: VecDeque<u8>,
    /// Bytes written that the other end, a socket of this process, has not read.
    with_mate: u64,
    /// The peer sends no more.
    pub eof: bool,
    /// The program reads no more.
    pub read_shut: bool,
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
            flow: Flow::new(handle, false),
            peer,
            local,
            phase,
            saved: VecDeque::new(),
            with_mate: 0,
            eof: false,
            read_shut: false,
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

    /// Unread bytes.
    pub fn unread(&self) -> usize {
        self.saved.len() + self.flow.receive.len()
    }

    /// Copies the first unread bytes out, and forgets them unless it is only a look (`MSG_PEEK`).
    pub fn read(&mut self, to: &mut Scatter<'_>, peek: bool) -> usize {
        let (a, b) = self.saved.as_slices();
        let of_saved = to.put(a) + to.put(b);
        let mut of_flow = 0;
        for bytes in self.flow.receive.slices() {
            let copied = to.put(bytes);
            of_flow += copied;
            if copied < bytes.len() {
                break;
            }
        }
        if !peek {
            self.forget(of_saved, of_flow);
        }
        of_saved + of_flow
    }

    /// Forgets up to `n` of the first unread bytes (`MSG_TRUNC`).
    pub fn discard(&mut self, n: usize) -> usize {
        let of_saved = n.min(self.saved.len());
        let of_flow = (n - of_saved).min(self.flow.receive.len());
        self.forget(of_saved, of_flow);
        of_saved + of_flow
    }

    fn forget(&mut self, of_saved: usize, of_flow: usize) {
        if of_saved > 0 {
            self.saved.drain(..of_saved);
        }
        self.flow.receive.consume(of_flow);
    }

    /// Takes bytes in from the other end, a socket of this process.
    pub fn append(&mut self, bytes: &[u8]) {
        self.saved.extend(bytes);
    }

    /// The flow is gone, and its buffers are with the next cycle: what is unread is copied, what
    /// was not acknowledged is dropped.
    pub fn flow_is_gone(&mut self) {
        for bytes in self.flow.receive.slices() {
            self.saved.extend(bytes);
        }
        self.flow.handle = 0;
        self.flow.receive = Default::default();
        self.flow.send = Default::default();
        self.with_mate = 0;
    }

    /// Copies up to `limit` bytes behind what is to be sent; returns for how many transmit memory
    /// was there.
    pub fn write(&mut self, tx: &TxArena, from: &mut Gather<'_>, limit: usize) -> usize {
        let all = limit.min(from.left());
        let mut left = all;
        while left > 0 {
            let front = from.front();
            let piece = &front[..front.len().min(left)];
            let n = self.flow.send.write_first(tx, piece, left);
            from.advance(n);
            left -= n;
            if n < piece.len() {
                break;
            }
        }
        all - left
    }

    /// So many bytes are with the other end until it has read them.
    pub fn lend_to_mate(&mut self, bytes: usize) {
        self.with_mate += bytes as u64;
    }

    /// The other end has read so many.
    pub fn mate_took(&mut self, bytes: usize) {
        self.with_mate = self.with_mate.saturating_sub(bytes as u64);
    }

    /// Bytes written that are not acknowledged, or not read by the other end.
    pub fn held(&self) -> u64 {
        self.flow.send.len() + self.with_mate
    }

    /// How many unsent bytes go out now: with `TCP_CORK` whole segments only, until what is left
    /// has waited for [`CORK_US`] (tcp(7)).
    pub fn sendable(&mut self, corked: bool, mss: u64, now_us: impl FnOnce() -> u64) -> u64 {
        let unsent = self.flow.send.unsent();
        let rest = unsent % mss.max(1);
        if !corked || rest == 0 || self.flow.is_shut() || self.flow.ending != Ending::No {
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
        if self.flow.send.unsent() >= self.unsent_low {
            return 0;
        }
        (send_buffer as u64).saturating_sub(self.held()) as usize
    }

    /// Whether `poll` says that it can be written: a third of the buffer is free, and less than
    /// half of what may be is unsent, as on Linux.
    pub fn is_writable(&self, send_buffer: usize) -> bool {
        if self.flow.send.unsent().saturating_mul(2) >= self.unsent_low {
            return false;
        }
        let used = self.held() as usize;
        send_buffer.saturating_sub(used) >= used / 2 && used < send_buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::iovec;
    use libix::engine::{Lease, Release};
    use proptest::prelude::*;
    use std::sync::atomic::AtomicU8;

    /// Bytes that are sent from where they are.
    static DATA: [AtomicU8; 4096] = [const { AtomicU8::new(0) }; 4096];

    struct Nobody;

    impl Release for Nobody {
        fn release(&self, _: u64) {}
    }

    /// An open connection that was given so many bytes to send.
    fn with_unsent(bytes: usize) -> Stream {
        let mut stream = Stream::new(Phase::Open, 1, "10.0.0.1:1".parse().unwrap(), None);
        stream.flow.send.push_lent((&DATA[..bytes]).into(), Lease::new(&Nobody, 0));
        stream
    }

    fn sent(stream: &mut Stream, bytes: u64) {
        stream.flow.sendv_answered(bytes, Ok(bytes)).unwrap();
    }

    #[test]
    fn what_was_saved_is_read_first() {
        let mut stream = with_unsent(0);
        stream.append(b"abcdef");
        let mut room = [0u8; 4];
        let piece = iovec { iov_base: room.as_mut_ptr().cast(), iov_len: 4 };
        let list = [piece];
        // SAFETY: a local.
        assert_eq!(stream.read(&mut unsafe { Scatter::new(&list) }, true), 4);
        assert_eq!((&room, stream.unread()), (b"abcd", 6));
        assert_eq!(stream.discard(1), 1);
        // SAFETY: as above.
        assert_eq!(stream.read(&mut unsafe { Scatter::new(&list) }, false), 4);
        assert_eq!((&room, stream.unread()), (b"bcde", 1));
        assert_eq!((stream.discard(9), stream.unread()), (1, 0));
        assert!(!stream.flow.receive.has_done());
    }

    #[test]
    fn a_cork_holds_the_last_short_segment_for_its_time() {
        let mut stream = with_unsent(3000);
        assert_eq!(stream.sendable(false, 1448, || 0), 3000);
        assert_eq!(stream.sendable(true, 1448, || 10), 2896);
        sent(&mut stream, 2896);
        assert_eq!(stream.sendable(true, 1448, || CORK_US + 9), 0);
        assert_eq!(stream.sendable(true, 1448, || CORK_US + 10), 104);
        sent(&mut stream, 104);
        stream.flow.send.push_lent((&DATA[..5]).into(), Lease::new(&Nobody, 0));
        assert_eq!(stream.sendable(true, 1448, || CORK_US + 20), 0);
        stream.flow.shutdown();
        assert_eq!((stream.sendable(true, 1448, || 0), stream.held_us), (5, None));
    }

    proptest! {
        #[test]
        fn writable_needs_a_third(used in 0usize..1000, buffer in 1usize..1000) {
            let stream = with_unsent(used);
            let writable = stream.is_writable(buffer);
            prop_assert!(!writable || stream.space(buffer) > 0);
            prop_assert!(used != 0 || writable);
        }
    }
}
