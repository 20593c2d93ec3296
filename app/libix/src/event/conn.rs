//! One connection as a handler sees it.
use super::Io;
use crate::engine::{Connection, Ending, Lease, Place};
use crate::raw::{Lent, TxBuf, TxShared};
use ix_abi::FlowOption;
use std::net::SocketAddr;
use std::ops::Range;

/// A connection within a callback (or, between cycles, by [`Io::conn`]).
pub struct Conn<'a, S> {
    io: &'a mut Io<S>,
    id: u64,
    /// Where it is: nothing removes it while this borrows the loop.
    place: Place,
}

impl<'a, S> Conn<'a, S> {
    /// The connection is there; nothing removes it while this borrows the loop.
    #[inline]
    pub(super) fn new(io: &'a mut Io<S>, id: u64, place: Place) -> Conn<'a, S> {
        debug_assert!(io.engine.find(id) == Some(place));
        Conn { io, id, place }
    }

    #[inline]
    fn get(&self) -> &Connection<S> {
        self.io.engine.at(self.place).expect("connections are removed between callbacks only")
    }

    #[inline]
    fn get_mut(&mut self) -> &mut Connection<S> {
        let connection = self.io.engine.at_mut(self.place);
        connection.expect("connections are removed between callbacks only")
    }

    #[inline]
    fn touch(&mut self) {
        self.io.engine.touch_at(self.place, self.id);
    }

    /// Id of the connection, for [`Io::conn`] later.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The loop.
    pub fn io(&mut self) -> &mut Io<S> {
        self.io
    }

    /// The peer.
    pub fn peer(&self) -> SocketAddr {
        self.get().peer
    }

    /// What the service keeps for the connection.
    #[inline]
    pub fn state(&self) -> &S {
        &self.get().state
    }

    /// What the service keeps for the connection.
    #[inline]
    pub fn state_mut(&mut self) -> &mut S {
        &mut self.get_mut().state
    }

    /// Received bytes that were not consumed.
    #[inline]
    pub fn received_bytes(&self) -> usize {
        self.get().received_bytes()
    }

    /// Received bytes that were not consumed, in the packet buffers.
    #[inline]
    pub fn received(&self) -> impl Iterator<Item = &[u8]> {
        self.get().received()
    }

    /// The state and [`Conn::received`], borrowed together.
    pub fn state_and_received(&mut self) -> (&mut S, impl Iterator<Item = &[u8]>) {
        self.get_mut().state_and_received()
    }

    /// Consumes the first `bytes` received bytes (or all): the window opens.
    #[inline]
    pub fn consume(&mut self, bytes: usize) {
        self.get_mut().consume(bytes);
        self.touch();
    }

    /// Copies received bytes to `to` and consumes them; returns their number.
    pub fn read(&mut self, to: &mut [u8]) -> usize {
        let mut done = 0;
        for slice in self.get().received() {
            let n = slice.len().min(to.len() - done);
            to[done..done + n].copy_from_slice(&slice[..n]);
            done += n;
        }
        self.consume(done);
        done
    }

    /// Bytes that can be given to send now.
    #[inline]
    pub fn send_room(&self) -> u64 {
        let connection = self.get();
        if !connection.can_send() {
            return 0;
        }
        let queue = &connection.flow.send;
        self.io.send_limit.bytes(queue, self.io.tx()).saturating_sub(queue.len())
    }

    /// Bytes given to send that the window has not taken yet.
    pub fn unsent_bytes(&self) -> u64 {
        self.get().unsent_bytes()
    }

    /// Bytes in flight that the peer has not acknowledged.
    pub fn unacked_bytes(&self) -> u64 {
        self.get().unacked_bytes()
    }

    /// Copies the front of `data` into blocks that all writes share; returns the number of bytes.
    /// Fewer than given is back-pressure, and `on_writable` follows. Takes nothing after
    /// `shutdown`.
    #[inline]
    pub fn send(&mut self, data: &[u8]) -> usize {
        let n = usize::try_from(self.send_room()).unwrap_or(usize::MAX).min(data.len());
        let Some((connection, tx)) = self.io.engine.at_with_tx(self.place) else { return 0 };
        let written = connection.flow.send.write(tx, &data[..n]);
        if written < data.len() && connection.can_send() {
            connection.wants_room = true;
            if written < n {
                self.io.engine.starve(self.id);
            }
        }
        self.touch();
        written
    }

    /// A buffer for [`Conn::send_zc`] with room for `bytes` ([`crate::raw::TxArena::alloc`]).
    /// `None`: transmit memory is short, and `on_writable` follows.
    pub fn alloc(&mut self, bytes: usize) -> Option<TxBuf> {
        let buf = self.io.tx().alloc(bytes);
        if buf.is_none() {
            self.get_mut().wants_room = true;
            self.io.engine.starve(self.id);
        }
        buf
    }

    /// Sends a whole buffer without a copy. It is always taken, so check [`Conn::send_room`]. After
    /// `shutdown` the buffer is returned.
    #[inline]
    pub fn send_zc(&mut self, buf: TxBuf) -> Result<(), TxBuf> {
        if !self.get().can_send() {
            return Err(buf);
        }
        self.get_mut().send_buffer(buf);
        self.touch();
        Ok(())
    }

    /// Sends part of a buffer that others may send as well, without a copy; returns whether it was
    /// taken (not after `shutdown`).
    ///
    /// # Panics
    /// If the range is not within the buffer.
    #[inline]
    pub fn send_shared(&mut self, buf: &TxShared, range: Range<usize>) -> bool {
        if !self.get().can_send() {
            return false;
        }
        self.get_mut().send_shared(buf, range);
        self.touch();
        true
    }

    /// Sends memory of [`crate::raw::Thread::shared_memory`] without a copy; returns whether it was
    /// taken (not after `shutdown`). Its owner must not change it until the lease ends, which is
    /// when all of it was acknowledged.
    pub fn send_lent(&mut self, data: Lent, lease: Lease) -> bool {
        if !self.get().can_send() {
            return false;
        }
        self.get_mut().flow.send.push_lent(data, lease);
        self.touch();
        true
    }

    /// Sends the first `bytes` received bytes (or all) from the packet buffers; returns their
    /// number. They count against the receive window until they are acknowledged. Sends nothing
    /// after `shutdown`.
    #[inline]
    pub fn send_received(&mut self, bytes: usize) -> usize {
        if !self.get().can_send() {
            return 0;
        }
        let lent = self.get_mut().send_received(bytes);
        self.touch();
        lent
    }

    /// Sets an option (Nagle, keepalive) once connected.
    pub fn set_option(&mut self, option: FlowOption) {
        self.io.engine.set_option(self.id, option);
    }

    /// Sends FIN after the bytes given to send; receiving continues.
    pub fn shutdown(&mut self) {
        self.io.engine.shutdown(self.id);
    }

    /// Closes the connection after the bytes given to send. Received bytes are dropped.
    pub fn close(&mut self) {
        self.io.end(self.id, Ending::Close);
    }

    /// Resets the connection.
    pub fn abort(&mut self) {
        self.io.end(self.id, Ending::Abort);
    }
}
