//! One connection of an event loop.
use super::batch::{Batch, Pending};
use super::output::OutQueue;
use crate::error::Error;
use crate::raw::call;
use crate::raw::rx::RxQueue;
use ix_abi::Handle;
use std::net::SocketAddr;

/// Most calls that [`Connection::emit`] appends.
pub(super) const EMIT_CALLS: usize = 2;

/// How far our direction of the stream is shut.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fin {
    No,
    /// After the unsent bytes.
    Wanted,
    Sent,
}

/// How the handler ended the connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    No,
    /// In order, once everything is acknowledged.
    Close,
    Abort,
}

/// What became of a connection when its calls were appended.
#[derive(PartialEq, Eq)]
pub(super) enum Emitted {
    /// It lives on.
    Alive,
    /// It lives on, and the answer to its calls decides what is appended next: the cycle must not
    /// sleep on it.
    Unfinished,
    /// Its last call is in the batch.
    Gone,
}

pub(super) struct Connection<S> {
    /// 0: `connect` has not answered yet.
    pub(super) handle: Handle,
    pub(super) established: bool,
    /// In the list of those that have calls to append.
    pub(super) dirty: bool,
    /// The window took less than it was given; `Sent` says when to try again.
    pub(super) blocked: bool,
    /// The handler was told that it can send no more for now.
    pub(super) wants_room: bool,
    pub(super) fin: Fin,
    pub(super) ending: Ending,
    pub(super) out: OutQueue,
    pub(super) rx: RxQueue,
    pub(super) peer: SocketAddr,
    pub(super) state: S,
}

impl<S> Connection<S> {
    pub(super) fn new(handle: Handle, established: bool, peer: SocketAddr, state: S) -> Self {
        Connection {
            handle,
            established,
            dirty: false,
            blocked: false,
            wants_room: false,
            fin: Fin::No,
            ending: Ending::No,
            out: OutQueue::default(),
            rx: RxQueue::default(),
            peer,
            state,
        }
    }

    /// Whether the handler may still send.
    pub(super) fn can_send(&self) -> bool {
        self.ending == Ending::No && self.fin == Fin::No
    }

    /// Whether there is anything to append.
    pub(super) fn has_calls(&self) -> bool {
        self.rx.has_done()
            || (self.out.unsent() > 0 && !self.blocked)
            || self.fin == Fin::Wanted
            || self.ending != Ending::No
    }

    /// Appends what this cycle brought: one `recv_done`, one `sendv`, and the end. There is room
    /// for [`EMIT_CALLS`] calls and one scatter-gather array.
    pub(super) fn emit(&mut self, id: u64, batch: &mut Batch) -> Emitted {
        if self.handle == 0 {
            return Emitted::Alive;
        }
        if self.ending == Ending::Abort {
            batch.push(call::abort(self.handle), Pending::Nothing);
            return Emitted::Gone;
        }
        if self.ending == Ending::Close {
            self.rx.consume(usize::MAX);
        }
        if self.rx.has_done() {
            let done = self.rx.take_done();
            batch.push(call::recv_done(self.handle, done), Pending::Nothing);
        }
        if self.out.unsent() > 0 {
            // FIN waits for the answer: it must not overtake bytes that the window did not take.
            if !self.established || self.blocked {
                return Emitted::Alive;
            }
            let offered = batch.push_sendv(self.handle, id, &self.out);
            let ends = self.ending == Ending::Close || self.fin == Fin::Wanted;
            let more = ends || offered < self.out.unsent();
            return if more { Emitted::Unfinished } else { Emitted::Alive };
        }
        if self.ending == Ending::Close && self.out.unacked() == 0 {
            batch.push(call::close(self.handle), Pending::Nothing);
            return Emitted::Gone;
        }
        if !self.established {
            return Emitted::Alive;
        }
        // The memory of unacknowledged bytes must stay: FIN now, `close` when they arrived.
        if self.fin == Fin::Wanted || (self.ending == Ending::Close && self.fin == Fin::No) {
            self.fin = Fin::Sent;
            batch.push(call::shutdown(self.handle), Pending::Nothing);
        }
        Emitted::Alive
    }

    /// Takes in what a `sendv` of `offered` bytes answered. `Err`: the connection cannot go on.
    pub(super) fn sendv_answered(
        &mut self,
        offered: u64,
        answer: Result<u64, Error>,
    ) -> Result<(), Error> {
        match answer {
            Ok(taken) => {
                self.out.taken(taken);
                self.blocked = taken < offered;
                Ok(())
            }
            // Out of buffers: nothing was taken, and no event will say when to try again.
            Err(Error::NoResource) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
