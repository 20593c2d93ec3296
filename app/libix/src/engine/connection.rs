//! One connection: what is to be sent, what was received, how it ends, and the calls that follow.
use super::Pending;
use super::batch::Batch;
use super::send::SendQueue;
use crate::error::Error;
use crate::raw::receive::ReceiveQueue;
use crate::raw::{Thread, TxArena, TxBuf, TxShared, call};
use ix_abi::{Cookie, Handle};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;

/// Most calls that [`Connection::emit`] appends.
pub(crate) const EMIT_CALLS: usize = 2;

/// How far our direction of the stream is shut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fin {
    No,
    /// After the unsent bytes.
    Wanted,
    Sent,
}

/// How the user ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Not yet.
    No,
    /// In order, once everything is acknowledged.
    Close,
    /// By a reset.
    Abort,
}

/// What became of a connection when its calls were appended.
#[derive(PartialEq, Eq)]
pub(crate) enum Emitted {
    /// It lives on.
    Alive,
    /// It lives on, and the answer to its calls decides what is appended next: the cycle must not
    /// sleep on it.
    Unfinished,
    /// Its last call is in the batch.
    Gone,
}

/// A connection with what the user attached to it. Its methods only note what is to be done:
/// [`super::Engine::touch`] has it done before the next cycle.
pub struct Connection<S> {
    /// 0: `connect` has not been answered yet.
    pub(crate) handle: Handle,
    pub(crate) established: bool,
    /// In the list of those that have calls to append.
    pub(crate) dirty: bool,
    /// The window took less than it was given; `Sent` says when to try again.
    pub(crate) blocked: bool,
    /// The user was told that it can send no more for now.
    pub(crate) wants_room: bool,
    pub(crate) fin: Fin,
    pub(crate) ending: Ending,
    pub(crate) send: SendQueue,
    pub(crate) receive: ReceiveQueue,
    pub(crate) peer: SocketAddr,
    /// What the user attached.
    pub state: S,
}

impl<S> Connection<S> {
    pub(crate) fn new(handle: Handle, established: bool, peer: SocketAddr, state: S) -> Self {
        Connection {
            handle,
            established,
            dirty: false,
            blocked: false,
            wants_room: false,
            fin: Fin::No,
            ending: Ending::No,
            send: SendQueue::default(),
            receive: ReceiveQueue::default(),
            peer,
            state,
        }
    }

    /// The dataplane's name of the flow; 0: it has none yet.
    pub fn handle(&self) -> Handle {
        self.handle
    }

    /// The peer.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Whether the connection attempt has succeeded.
    pub fn is_established(&self) -> bool {
        self.established
    }

    /// Whether the user has ended it, and how.
    pub fn ending(&self) -> Ending {
        self.ending
    }

    /// Whether more may be given to send.
    #[inline]
    pub fn can_send(&self) -> bool {
        self.ending == Ending::No && self.fin == Fin::No
    }

    /// Received bytes that were not consumed.
    #[inline]
    pub fn received_bytes(&self) -> usize {
        self.receive.len()
    }

    /// Received bytes that were not consumed, where they came in.
    #[inline]
    pub fn received(&self) -> impl Iterator<Item = &[u8]> {
        self.receive.slices()
    }

    /// What is attached, and what [`Connection::received`] gives, at the same time.
    #[inline]
    pub fn state_and_received(&mut self) -> (&mut S, impl Iterator<Item = &[u8]>) {
        (&mut self.state, self.receive.slices())
    }

    /// The first `bytes` received bytes (or all) are done with: the window opens.
    #[inline]
    pub fn consume(&mut self, bytes: usize) {
        self.receive.consume(bytes);
    }

    /// Bytes given to send that the window has not taken yet.
    #[inline]
    pub fn unsent_bytes(&self) -> u64 {
        self.send.unsent()
    }

    /// Bytes on their way that the peer has not acknowledged.
    #[inline]
    pub fn unacked_bytes(&self) -> u64 {
        self.send.unacked()
    }

    /// All bytes whose memory is held: unsent and unacknowledged.
    #[inline]
    pub fn held_bytes(&self) -> u64 {
        self.send.len()
    }

    /// Copies the front of `data` behind what is to be sent, and returns for how many bytes
    /// transmit memory was there. Not after the end: see [`Connection::can_send`].
    #[inline]
    pub fn write(&mut self, tx: &TxArena, data: &[u8]) -> usize {
        self.send.write(tx, data)
    }

    /// Sends a whole buffer without a copy.
    #[inline]
    pub fn send_buffer(&mut self, buf: TxBuf) {
        self.send.push_own(buf);
    }

    /// Sends part of a buffer that others may send as well, without a copy.
    ///
    /// # Panics
    /// When the range is not within the buffer.
    #[inline]
    pub fn send_shared(&mut self, buf: &TxShared, range: Range<usize>) {
        self.send.push_shared(buf.clone(), range);
    }

    /// Sends the first `bytes` received bytes (or all) back from where they are, and returns how
    /// many.
    #[inline]
    pub fn send_received(&mut self, bytes: usize) -> usize {
        let Connection { receive, send, .. } = self;
        receive.lend(bytes, |piece| send.push_received(piece))
    }

    /// Sends FIN after what was given to send; receiving goes on.
    pub fn shutdown(&mut self) {
        if self.fin == Fin::No {
            self.fin = Fin::Wanted;
        }
    }

    /// Ends the connection in order, after what was given to send. Received bytes are dropped.
    pub fn close(&mut self) {
        self.ending = Ending::Close;
    }

    /// Whether there is anything to append.
    #[inline]
    pub(crate) fn has_calls(&self) -> bool {
        self.receive.has_done()
            || (self.send.unsent() > 0 && !self.blocked)
            || self.fin == Fin::Wanted
            || self.ending != Ending::No
    }

    /// Puts it into the list of those that have calls to append, if it has any and is not there.
    #[inline]
    pub(crate) fn note(&mut self, cookie: Cookie, dirty: &mut VecDeque<Cookie>) {
        if !self.dirty && self.has_calls() {
            self.dirty = true;
            dirty.push_back(cookie);
        }
    }

    /// Appends what this cycle brought: one `recv_done`, one `sendv`, and the end. There is room
    /// for [`EMIT_CALLS`] calls and one scatter-gather array.
    pub(crate) fn emit<P: Copy>(
        &mut self,
        cookie: Cookie,
        thread: &mut Thread,
        batch: &mut Batch<Pending<P>>,
    ) -> Emitted {
        if self.handle == 0 {
            return Emitted::Alive;
        }
        if self.ending == Ending::Abort {
            batch.push(thread, call::abort(self.handle), Pending::Nothing);
            return Emitted::Gone;
        }
        if self.ending == Ending::Close {
            self.receive.consume(usize::MAX);
        }
        if self.receive.has_done() {
            let done = self.receive.take_done();
            batch.push(thread, call::recv_done(self.handle, done), Pending::Nothing);
        }
        if self.send.unsent() > 0 {
            // FIN waits for the answer: it must not overtake bytes that the window did not take.
            if !self.established || self.blocked {
                return Emitted::Alive;
            }
            let pieces = self.send.unsent_pieces();
            let pending = |offered| Pending::Sendv(cookie, offered);
            let offered = batch.push_sendv(thread, self.handle, pieces, pending);
            let ends = self.ending == Ending::Close || self.fin == Fin::Wanted;
            let more = ends || offered < self.send.unsent();
            return if more { Emitted::Unfinished } else { Emitted::Alive };
        }
        if self.ending == Ending::Close && self.send.unacked() == 0 {
            batch.push(thread, call::close(self.handle), Pending::Nothing);
            return Emitted::Gone;
        }
        if !self.established {
            return Emitted::Alive;
        }
        // The memory of unacknowledged bytes must stay: FIN now, `close` when they arrived.
        if self.fin == Fin::Wanted || (self.ending == Ending::Close && self.fin == Fin::No) {
            self.fin = Fin::Sent;
            batch.push(thread, call::shutdown(self.handle), Pending::Nothing);
        }
        Emitted::Alive
    }

    /// Takes in what a `sendv` of `offered` bytes returned. `Err`: the connection cannot go on.
    #[inline]
    pub(crate) fn sendv_answered(
        &mut self,
        offered: u64,
        answer: Result<u64, Error>,
    ) -> Result<(), Error> {
        match answer {
            Ok(taken) => {
                self.send.taken(taken);
                self.blocked = taken < offered;
                Ok(())
            }
            // Out of buffers: nothing was taken, and no event will say when to try again.
            Err(Error::NoResource) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The peer has acknowledged `bytes` more.
    #[inline]
    pub(crate) fn acked(&mut self, bytes: u64) {
        self.blocked = false;
        let received = self.send.acked(bytes);
        self.receive.unlend(received);
    }
}
