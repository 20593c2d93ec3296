//! One connection: its flow, and what the user attached to it.
use super::flow::{Ending, Flow};
use super::send::SendLimit;
use crate::raw::{TxArena, TxBuf, TxShared};
use crate::turns::Turns;
use ix_abi::{Cookie, Handle};
use std::net::SocketAddr;
use std::ops::Range;

/// A connection with what the user attached to it. Its methods only note what is to be done:
/// [`super::Engine::touch`] has it done before the next cycle.
pub struct Connection<S> {
    /// Its handle is 0 until `connect` was answered.
    pub(crate) flow: Flow,
    /// In the list of those that have calls to append.
    pub(crate) dirty: bool,
    /// The user was told that it can send no more for now.
    pub(crate) wants_room: bool,
    pub(crate) peer: SocketAddr,
    /// What the user attached.
    pub state: S,
}

impl<S> Connection<S> {
    pub(crate) fn new(handle: Handle, established: bool, peer: SocketAddr, state: S) -> Self {
        Connection {
            flow: Flow::new(handle, established),
            dirty: false,
            wants_room: false,
            peer,
            state,
        }
    }

    /// The dataplane's name of the flow; 0: it has none yet.
    pub fn handle(&self) -> Handle {
        self.flow.handle
    }

    /// The peer.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Whether the connection attempt has succeeded.
    pub fn is_established(&self) -> bool {
        self.flow.established
    }

    /// Whether the user has ended it, and how.
    pub fn ending(&self) -> Ending {
        self.flow.ending
    }

    /// Whether more may be given to send.
    #[inline]
    pub fn can_send(&self) -> bool {
        self.flow.ending == Ending::No && !self.flow.is_shut()
    }

    /// Received bytes that were not consumed.
    #[inline]
    pub fn received_bytes(&self) -> usize {
        self.flow.receive.len()
    }

    /// Received bytes that were not consumed, where they came in.
    #[inline]
    pub fn received(&self) -> impl Iterator<Item = &[u8]> {
        self.flow.receive.slices()
    }

    /// What is attached, and what [`Connection::received`] gives, at the same time.
    #[inline]
    pub fn state_and_received(&mut self) -> (&mut S, impl Iterator<Item = &[u8]>) {
        (&mut self.state, self.flow.receive.slices())
    }

    /// The first `bytes` received bytes (or all) are done with: the window opens.
    #[inline]
    pub fn consume(&mut self, bytes: usize) {
        self.flow.receive.consume(bytes);
    }

    /// Bytes given to send that the window has not taken yet.
    #[inline]
    pub fn unsent_bytes(&self) -> u64 {
        self.flow.send.unsent()
    }

    /// Bytes on their way that the peer has not acknowledged.
    #[inline]
    pub fn unacked_bytes(&self) -> u64 {
        self.flow.send.unacked()
    }

    /// All bytes whose memory is held: unsent and unacknowledged.
    #[inline]
    pub fn held_bytes(&self) -> u64 {
        self.flow.send.len()
    }

    /// Whether so much of what it may hold is free that a user who waits should write again.
    #[inline]
    pub(crate) fn has_room(&self, limit: SendLimit, tx: &TxArena) -> bool {
        self.flow.send.len() <= limit.bytes(&self.flow.send, tx) / 2
    }

    /// Copies the front of `data` behind what is to be sent, and returns for how many bytes
    /// transmit memory was there. Not after the end: see [`Connection::can_send`].
    #[inline]
    pub fn write(&mut self, tx: &TxArena, data: &[u8]) -> usize {
        self.flow.send.write(tx, data)
    }

    /// Sends a whole buffer without a copy.
    #[inline]
    pub fn send_buffer(&mut self, buf: TxBuf) {
        self.flow.send.push_own(buf);
    }

    /// Sends part of a buffer that others may send as well, without a copy.
    ///
    /// # Panics
    /// When the range is not within the buffer.
    #[inline]
    pub fn send_shared(&mut self, buf: &TxShared, range: Range<usize>) {
        self.flow.send.push_shared(buf.clone(), range);
    }

    /// Sends the first `bytes` received bytes (or all) back from where they are, and returns how
    /// many.
    #[inline]
    pub fn send_received(&mut self, bytes: usize) -> usize {
        let Flow { receive, send, .. } = &mut self.flow;
        receive.lend(bytes, |piece| send.push_received(piece))
    }

    /// Sends FIN after what was given to send; receiving goes on.
    pub fn shutdown(&mut self) {
        self.flow.shutdown();
    }

    /// Ends the connection in order, after what was given to send. Received bytes are dropped.
    pub fn close(&mut self) {
        self.flow.ending = Ending::Close;
    }

    /// Puts it into the list of those that have calls to append, if it has any and is not there.
    #[inline]
    pub(crate) fn note(&mut self, cookie: Cookie, dirty: &mut Turns<Cookie>) {
        if !self.dirty && self.flow.has_calls() {
            self.dirty = true;
            dirty.push_back(cookie);
        }
    }
}
