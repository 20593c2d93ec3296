//! A TCP connection as the program sees it: bytes received, bytes to send, and its end.
use crate::error_queue::ErrorEntry;
use crate::holders;
use crate::mem::{Gather, Scatter};
use crate::options::{FlowOptions, SEND_BUFFER_MAX};
use crate::slab::Id;
use ix_abi::Handle;
use libix::engine::{Ending, Flow};
use libix::raw::TxArena;
use std::collections::VecDeque;
use std::net::SocketAddr;

/// How long `TCP_CORK` holds a short segment back, as on Linux.
pub const CORK_US: u64 = 200_000;

/// What the program's options say about short segments.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hold {
    /// `TCP_CORK`.
    pub corked: bool,
    /// `TCP_NODELAY`.
    pub no_delay: bool,
}

/// The phases of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// `CONNECT` is to be called.
    ToConnect,
    /// `CONNECT` was called; its outcome is not known yet.
    Connecting,
    /// The dataplane has a flow; `ACCEPT` is to be called.
    ToAccept,
    /// Open, in one direction at least.
    Open,
    /// Another process of the program owns it.
    Away,
    /// The flow has ended.
    Dead,
}

/// A connection that goes to another process of the program.
#[derive(Clone, Copy, Debug)]
pub struct Gift {
    /// The number of that process.
    pub to: u32,
    /// What it is told.
    pub token: u64,
    /// The listener in whose queue it was.
    pub from: Option<Id>,
    /// The dataplane was asked.
    pub asked: bool,
    /// How many processes were asked before.
    pub tries: u32,
}

/// A connection.
pub struct Stream {
    /// The dataplane's flow, as long as it has one.
    pub flow: Flow,
    /// The peer's address.
    pub peer: SocketAddr,
    /// The local address, once it is known.
    pub local: Option<SocketAddr>,
    /// Where it is in its life.
    pub phase: Phase,
    /// Unread bytes that are in no buffer of the dataplane; they come before those of the flow. The
    /// flow has ended, or the bytes came from a local peer.
    saved: VecDeque<u8>,
    /// The program has set `TCP_NODELAY`: what is there goes, corked or not (tcp(7)).
    pub pushes: bool,
    /// Bytes written that the local peer has not read.
    unread_by_local_peer: u64,
    /// The peer has sent its FIN.
    pub eof: bool,
    /// `shutdown(SHUT_RD)`.
    pub read_shut: bool,
    /// The listener that it waits at to be accepted.
    pub queued_at: Option<Id>,
    /// The port in whose backlog the dataplane keeps a place for it.
    pub place_at: Option<Id>,
    /// Nothing was received yet, so it is not in the accept queue before this time
    /// (`TCP_DEFER_ACCEPT`).
    pub deferred_until_us: Option<u64>,
    /// Errno of an ICMP message; the peer has acknowledged nothing since.
    pub soft_error: i32,
    /// The ICMP message that has ended the attempt to connect, for `MSG_ERRQUEUE`.
    pub connect_error: Option<Box<ErrorEntry>>,
    /// The most unacknowledged bytes that the dataplane would ever take: about twice what its path
    /// holds.
    pub path_bytes: usize,
    /// The program may write while fewer bytes than this are unsent (`TCP_NOTSENT_LOWAT`).
    pub unsent_low: u64,
    /// Since when `TCP_CORK` or `MSG_MORE` holds back the last, short segment, µs.
    pub held_us: Option<u64>,
    /// The program has announced that it writes more (`MSG_MORE`), and no data was acknowledged
    /// since.
    pub writes_more: bool,
    /// Unacknowledged bytes, up to the end of the last segment that was short: while there are any,
    /// Nagle's algorithm holds the next short one back.
    short_unacked: u64,
    /// Nagle's algorithm holds a short segment back.
    awaits_ack: bool,
    /// The other end, if it is a socket of this process.
    pub local_peer: Option<Id>,
    /// How many elastic threads have refused to connect it.
    pub refused_by: usize,
    /// Until then a route that Linux has may be new to the dataplane, µs.
    pub route_until_us: Option<u64>,
    /// Options have changed since the dataplane was last told.
    pub options_changed: bool,
    /// The options that the dataplane was last told.
    pub told: FlowOptions,
    /// It was open once.
    pub was_open: bool,
    /// `close` waits until everything is delivered (`SO_LINGER`).
    pub lingers: bool,
    /// `connect` has returned the outcome.
    pub announced: bool,
    /// `GET_INFO` is to be called.
    pub wants_info: bool,
    /// The last result of `GET_INFO`.
    pub info: Option<Box<ix_abi::FlowInfo>>,
    /// It goes to another process.
    pub gift: Option<Box<Gift>>,
    /// Where it is noted that several processes have it.
    pub shared: Option<u32>,
    /// Bytes of the peer's stream that the program has read.
    consumed: u64,
    /// Of the next bytes that are announced, those that another process has read.
    skip: u64,
    /// Its sender over a Unix socket was killed: until then it lives without a descriptor, µs; 0:
    /// that is not so.
    pub kept_until_us: u64,
    /// What another process is told that gets it when this one has been killed; 0: none does.
    pub legacy: u64,
    /// What the dataplane was told of that.
    pub legacy_told: u64,
    /// Something of it is noted in case that this process ends before its next batch.
    pub noted: bool,
}

impl Stream {
    /// What the dataplane was told of a connection that another process has given: that process may
    /// have left it to others at its own end, and the word stays until another one is said.
    pub const LEGACY_OF_GIVER: u64 = u64::MAX;

    /// A connection in this phase.
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
            pushes: false,
            unread_by_local_peer: 0,
            eof: false,
            read_shut: false,
            queued_at: None,
            place_at: None,
            deferred_until_us: None,
            soft_error: 0,
            connect_error: None,
            path_bytes: 0,
            unsent_low: u64::MAX,
            held_us: None,
            writes_more: false,
            short_unacked: 0,
            awaits_ack: false,
            local_peer: None,
            refused_by: 0,
            route_until_us: None,
            options_changed: false,
            told: FlowOptions::default(),
            was_open: phase == Phase::ToAccept,
            lingers: false,
            announced: phase == Phase::ToAccept,
            wants_info: false,
            info: None,
            gift: None,
            shared: None,
            consumed: 0,
            skip: 0,
            legacy: 0,
            legacy_told: 0,
            noted: false,
            kept_until_us: 0,
        }
    }

    /// Whether another process owns it, or will as soon as the dataplane has carried out `GIVE`:
    /// what is unread here is that one's then, and nothing that is written here would be sent.
    pub fn is_away(&self) -> bool {
        let is_going = self.shared.is_some() && self.gift.as_ref().is_some_and(|gift| gift.asked);
        self.phase == Phase::Away || (is_going && self.phase != Phase::Dead)
    }

    /// The peer's end, behind all that it has sent.
    pub fn has_ended(&self) -> bool {
        self.eof && !self.is_away()
    }

    /// Whether another process can have it: it is open, which it is for the program from `accept`
    /// on, and its peer is not in this process.
    pub fn may_go(&self) -> bool {
        let is_open = matches!(self.phase, Phase::ToAccept | Phase::Open | Phase::Away);
        is_open && !self.flow.is_shut() && self.local_peer.is_none()
    }

    /// Unread bytes.
    pub fn unread(&self) -> usize {
        if self.is_away() {
            return 0;
        }
        self.saved.len() + self.flow.receive.len()
    }

    /// Copies the first unread bytes to the program. Unless `peek`, they are no longer unread.
    pub fn read(&mut self, to: &mut Scatter<'_>, peek: bool) -> usize {
        if self.is_away() {
            return 0;
        }
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

    /// Drops up to `n` of the first unread bytes (`MSG_TRUNC`).
    pub fn discard(&mut self, n: usize) -> usize {
        let n = n.min(self.unread());
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
        self.consumed += (of_saved + of_flow) as u64;
        if self.shared.is_some() {
            self.says_consumed();
        }
    }

    /// Whoever goes on with the connection when this process is killed knows where.
    pub fn says_consumed(&self) {
        if let Some(at) = self.shared {
            holders::set_consumed(at, self.consumed);
        }
    }

    /// Another process has used the connection: `returned` bytes of the peer's stream are not
    /// announced again, and it has read as many as it has said.
    pub fn goes_on_at(&mut self, returned: u64, said: u64) {
        self.consumed = returned.max(said);
        self.skip = self.consumed - returned;
    }

    /// Whether another process has read the next bytes, as many as these.
    pub fn is_consumed(&self, bytes: u32) -> bool {
        self.skip >= u64::from(bytes)
    }

    /// Whether bytes are still to come that another process has read.
    pub fn skips(&self) -> bool {
        self.skip > 0 && !self.eof
    }

    /// Drops what another process has read. Returns whether there was any: it is to be given back,
    /// for the peer may wait for the window to open.
    #[inline]
    #[must_use]
    pub fn skip_consumed(&mut self) -> bool {
        if self.skip == 0 {
            return false;
        }
        let bytes = self.flow.receive.len().min(self.skip as usize);
        self.flow.receive.consume(bytes);
        self.skip -= bytes as u64;
        bytes > 0
    }

    /// Takes in bytes from the local peer.
    pub fn append(&mut self, bytes: &[u8]) {
        self.saved.extend(bytes);
    }

    /// The flow has ended, and the next cycle takes its buffers: copies unread bytes, drops those
    /// that were not acknowledged.
    pub fn flow_is_gone(&mut self) {
        for bytes in self.flow.receive.slices() {
            self.saved.extend(bytes);
        }
        self.flow.handle = 0;
        self.flow.receive = Default::default();
        self.flow.send = Default::default();
        self.unread_by_local_peer = 0;
    }

    /// The flow is another process's: its buffers are no longer this one's to return.
    pub fn flow_is_forgotten(&mut self) {
        self.flow = Flow::default();
    }

    /// Appends up to `limit` bytes to those to be sent. Returns how many; fewer if transmit memory
    /// runs out.
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

    /// The local peer was given this many bytes to read.
    pub fn gave_to_local_peer(&mut self, bytes: usize) {
        self.unread_by_local_peer += bytes as u64;
    }

    /// The local peer has read this many bytes.
    pub fn local_peer_read(&mut self, bytes: usize) {
        self.unread_by_local_peer = self.unread_by_local_peer.saturating_sub(bytes as u64);
    }

    /// Bytes written that are not acknowledged, or not read by the local peer.
    pub fn held(&self) -> u64 {
        self.flow.send.len() + self.unread_by_local_peer
    }

    /// Whether a lingering `close` may return: the flow has ended, or the peer has acknowledged
    /// every byte and FIN was sent.
    pub fn is_delivered(&self) -> bool {
        self.phase == Phase::Dead || (self.held() == 0 && self.flow.has_sent_fin())
    }

    /// The peer has acknowledged these, and the dataplane takes `window` more. What it takes in all
    /// is what the send buffer grows to, so that it always has the next bytes: Linux' autotuning.
    /// It never shrinks.
    pub fn acked(&mut self, bytes: u32, window: u64) {
        self.flow.acked(bytes.into());
        self.short_unacked = self.short_unacked.saturating_sub(bytes.into());
        self.writes_more &= bytes == 0;
        let takes = self.flow.send.unacked().saturating_add(window);
        self.path_bytes = self.path_bytes.max(takes.min(SEND_BUFFER_MAX as u64) as usize);
    }

    /// How many unsent bytes may be sent now. With `TCP_CORK` or `MSG_MORE` only whole segments,
    /// until the rest has waited for [`CORK_US`] (tcp(7)). Without `TCP_NODELAY` the rest also
    /// waits while an earlier short segment is unacknowledged: Nagle's algorithm with Minshall's
    /// change, as on Linux, so that the end of a long message never waits.
    pub fn sendable(&mut self, hold: Hold, mss: u64, now_us: impl FnOnce() -> u64) -> u64 {
        let unsent = self.flow.send.unsent();
        // The end of a message that another one follows waits for nothing.
        let rest = (unsent - self.flow.send.followed()) % mss.max(1);
        self.awaits_ack = false;
        if core::mem::take(&mut self.pushes) {
            (self.held_us, self.writes_more) = (None, false);
            return unsent;
        }
        let ends = self.flow.is_shut() || self.flow.ending != Ending::No;
        if rest == 0 || ends || !(hold.corked || self.writes_more) {
            self.held_us = None;
            self.awaits_ack = rest > 0 && !ends && !hold.no_delay && self.short_unacked > 0;
            return if self.awaits_ack { unsent - rest } else { unsent };
        }
        let now_us = now_us();
        let since_us = *self.held_us.get_or_insert(now_us);
        if now_us.saturating_sub(since_us) >= CORK_US {
            self.held_us = None;
            self.writes_more = false;
            return unsent;
        }
        unsent - rest
    }

    /// A `sendv` of `offered` bytes has taken `taken`.
    pub fn taken(&mut self, offered: u64, taken: u64, mss: u64) {
        if taken == offered && !taken.is_multiple_of(mss.max(1)) {
            self.short_unacked = self.flow.send.unacked();
        }
    }

    /// Whether a short segment is held back, so that only time, an acknowledgement or the program
    /// lets it go.
    pub fn is_held(&self) -> bool {
        self.held_us.is_some() || self.awaits_ack
    }

    /// Whether the attempt to connect is under way.
    pub fn is_connecting(&self) -> bool {
        matches!(self.phase, Phase::ToConnect | Phase::Connecting)
    }

    /// Whether it goes to another process once all is sent.
    pub fn waits_to_go(&self) -> bool {
        self.gift.as_ref().is_some_and(|gift| !gift.asked)
    }

    /// How many more bytes the program may write, with a send buffer of this size.
    pub fn space(&self, send_buffer: usize) -> usize {
        if self.flow.send.unsent() >= self.unsent_low || self.is_away() {
            return 0;
        }
        (send_buffer as u64).saturating_sub(self.held()) as usize
    }

    /// Whether `poll` reports it writable: a third of the buffer is free, and fewer than half of
    /// the bytes that may be unsent are, as on Linux.
    pub fn is_writable(&self, send_buffer: usize) -> bool {
        if self.flow.send.unsent().saturating_mul(2) >= self.unsent_low || self.is_away() {
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

    /// Bytes that are sent without a copy.
    static DATA: [AtomicU8; 4096] = [const { AtomicU8::new(0) }; 4096];

    struct Nobody;

    impl Release for Nobody {
        fn release(&self, _: u64) {}
    }

    /// An open connection with this many bytes to send.
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
        let corked = Hold { corked: true, no_delay: false };
        assert_eq!(stream.sendable(Hold::default(), 1448, || 0), 3000);
        assert_eq!(stream.sendable(corked, 1448, || 10), 2896);
        sent(&mut stream, 2896);
        assert_eq!(stream.sendable(corked, 1448, || CORK_US + 9), 0);
        assert_eq!(stream.sendable(corked, 1448, || CORK_US + 10), 104);
        sent(&mut stream, 104);
        stream.flow.send.push_lent((&DATA[..5]).into(), Lease::new(&Nobody, 0));
        assert_eq!(stream.sendable(corked, 1448, || CORK_US + 20), 0);
        stream.pushes = true;
        assert_eq!((stream.sendable(corked, 1448, || CORK_US + 20), stream.held_us), (5, None));
        assert_eq!(stream.sendable(corked, 1448, || CORK_US + 20), 0);
        stream.flow.shutdown();
        assert_eq!((stream.sendable(corked, 1448, || 0), stream.held_us), (5, None));
    }

    #[test]
    fn the_end_of_a_message_waits_only_if_none_follows() {
        let (nagle, corked) = (Hold::default(), Hold { corked: true, no_delay: false });
        let mut stream = with_unsent(400);
        stream.flow.send.end_message();
        assert_eq!(stream.sendable(corked, 1000, || 0), 0);
        let lease = Lease::new(&Nobody, 0);
        stream.flow.send.push_lent((&DATA[..1300]).into(), lease);
        assert_eq!(stream.sendable(corked, 1000, || 0), 1400);
        sent(&mut stream, 400);
        stream.taken(400, 400, 1000);
        assert_eq!(stream.sendable(nagle, 1000, || 0), 1000);
    }

    #[test]
    fn a_short_segment_waits_for_the_one_before() {
        let (nagle, no_delay) = (Hold::default(), Hold { corked: false, no_delay: true });
        let mut stream = with_unsent(3000);
        let give = |stream: &mut Stream, bytes: usize| {
            stream.flow.send.push_lent((&DATA[..bytes]).into(), Lease::new(&Nobody, 0));
        };
        // The end of a long message does not wait: no short segment is on its way.
        assert_eq!((stream.sendable(nagle, 1000, || 0), stream.is_held()), (3000, false));
        sent(&mut stream, 3000);
        stream.taken(3000, 3000, 1000);
        give(&mut stream, 1);
        assert_eq!((stream.sendable(nagle, 1000, || 0), stream.is_held()), (1, false));
        sent(&mut stream, 1);
        stream.taken(1, 1, 1000);
        give(&mut stream, 2001);
        assert_eq!((stream.sendable(nagle, 1000, || 0), stream.is_held()), (2000, true));
        assert_eq!((stream.sendable(no_delay, 1000, || 0), stream.is_held()), (2001, false));
        sent(&mut stream, 2000);
        stream.acked(3000, 9);
        assert_eq!((stream.sendable(nagle, 1000, || 0), stream.is_held()), (0, true));
        stream.acked(1, 9);
        assert_eq!((stream.sendable(nagle, 1000, || 0), stream.is_held()), (1, false));
    }

    #[test]
    fn more_is_waited_for_until_an_acknowledgement_or_its_time() {
        let hold = Hold { corked: false, no_delay: true };
        let mut stream = with_unsent(5);
        stream.writes_more = true;
        assert_eq!((stream.sendable(hold, 1000, || 10), stream.is_held()), (0, true));
        assert_eq!(stream.sendable(hold, 1000, || CORK_US + 10), 5);
        assert!(!stream.writes_more && !stream.is_held());
        stream.writes_more = true;
        stream.acked(0, 9);
        assert_eq!(stream.sendable(hold, 1000, || CORK_US + 20), 0);
        stream.acked(1, 9);
        assert_eq!((stream.sendable(hold, 1000, || 0), stream.is_held()), (5, false));
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
