//! The application's end of one flow: what is to be sent, what was received, how it ends, and the
//! calls that follow.
use super::batch::Batch;
use super::send::SendQueue;
use crate::error::Error;
use crate::raw::receive::ReceiveQueue;
use crate::raw::{Ends, Thread, call};
use ix_abi::{FlowOption, Handle, SgEntry};

/// Most calls that [`Flow::emit`] appends.
pub const EMIT_CALLS: usize = 3;

/// How far our direction of the stream is shut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Fin {
    #[default]
    No,
    /// After the unsent bytes.
    Wanted,
    /// It is in a `sendv` behind the last of the unsent bytes, which the answer says more of.
    Offered,
    Sent,
}

/// How the user ended a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// Not yet.
    #[default]
    No,
    /// In order, once everything is acknowledged.
    Close,
    /// By a reset.
    Abort,
}

/// What became of a flow when its calls were appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Emitted {
    /// It lives on.
    Alive,
    /// It lives on, and the answer to its calls decides what is appended next: the cycle must not
    /// sleep on it.
    Unfinished,
    /// Its last call is in the batch: it must be dropped before the next cycle.
    Gone,
}

/// A flow as its application keeps it. An application with many of them says which ones have calls
/// to append, and tells them what `SENT` and the answers of `sendv` say.
#[derive(Default)]
pub struct Flow {
    /// The dataplane's name; 0: it has none yet.
    pub handle: Handle,
    /// It was accepted, or the attempt to connect has succeeded.
    pub established: bool,
    /// How the user ended it.
    pub ending: Ending,
    /// The window took less than it was given; `SENT` says when to try again.
    blocked: bool,
    /// Of the unsent bytes, those that the batch names whose answer is not known yet.
    offered: u64,
    fin: Fin,
    /// The dataplane knows that its user has closed it.
    is_closed: bool,
    /// What is to be sent, and stays until it is acknowledged.
    pub send: SendQueue,
    /// What was received and not given back.
    pub receive: ReceiveQueue,
}

impl Flow {
    /// A flow with nothing sent or received.
    pub fn new(handle: Handle, established: bool) -> Flow {
        Flow { handle, established, ..Flow::default() }
    }

    /// Sends FIN after what was given to send; receiving goes on.
    pub fn shutdown(&mut self) {
        if self.fin == Fin::No {
            self.fin = Fin::Wanted;
        }
    }

    /// Whether it was shut down: no more may be given to send.
    #[inline]
    pub fn is_shut(&self) -> bool {
        self.fin != Fin::No
    }

    /// Whether the call that sends FIN was made.
    #[inline]
    pub fn has_sent_fin(&self) -> bool {
        self.fin == Fin::Sent
    }

    /// Whether nothing is sent until `SENT`: the window is full.
    #[inline]
    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Whether our direction ends after the unsent bytes.
    fn ends(&self) -> bool {
        self.ending == Ending::Close || self.fin == Fin::Wanted
    }

    /// The unsent bytes that no call of the batch names, piece by piece.
    pub fn unsaid(&self) -> impl Iterator<Item = SgEntry> {
        self.send.unsent_from(self.offered)
    }

    /// Whether there is anything to append.
    #[inline]
    pub fn has_calls(&self) -> bool {
        self.receive.has_done()
            || (self.send.unsent() > 0 && !self.blocked)
            || self.fin == Fin::Wanted
            || match self.ending {
                Ending::No => false,
                // After FIN it waits for the last acknowledgement.
                Ending::Close => self.fin != Fin::Sent || self.send.len() == 0,
                Ending::Abort => true,
            }
    }

    /// Appends what this cycle brought: one `sendv` of the first `limit` unsent bytes, of one
    /// message at most, which gives received bytes back as well, or else one `recv_done`, and the
    /// end after the last byte. There is room for [`EMIT_CALLS`] calls and one scatter-gather
    /// array. `sendv` makes, from the number of bytes that a `sendv` offers, the note of what its
    /// answer is for.
    #[inline]
    pub fn emit<P: Copy + Default>(
        &mut self,
        thread: &mut Thread,
        batch: &mut Batch<P>,
        limit: u64,
        sendv: impl FnOnce(u64) -> P,
    ) -> Emitted {
        if self.handle == 0 {
            return Emitted::Alive;
        }
        if self.ending == Ending::Abort {
            batch.push(thread, call::abort(self.handle), P::default());
            return Emitted::Gone;
        }
        if self.ending == Ending::Close {
            self.receive.consume(usize::MAX);
        }
        let done = self.receive.take_done();
        if self.ending == Ending::Close && self.send.len() > 0 && !self.is_closed {
            // Only its peer can end it now, which may keep its window closed for ever and stay.
            self.is_closed = true;
            batch.push(thread, call::set_opt(self.handle, FlowOption::Closed), P::default());
        }
        let unsent = self.send.unsent();
        if unsent > 0 && self.established && !self.blocked && limit > 0 {
            let last = self.ends().then_some(unsent);
            let message = self.send.first_message();
            let which = (self.handle, done, Ends { stream: last, message });
            let at_once = message.map_or(limit, |bytes| limit.min(bytes));
            let offered = if at_once >= unsent {
                batch.push_sendv(thread, which, self.send.unsent_pieces(), sendv)
            } else {
                batch.push_sendv(thread, which, self.send.first_unsent(at_once), sendv)
            };
            self.offered = offered;
            if last == Some(offered) {
                self.fin = Fin::Offered;
            }
            let more = offered < unsent.min(limit);
            return if more { Emitted::Unfinished } else { Emitted::Alive };
        }
        if done > 0 {
            batch.push(thread, call::recv_done(self.handle, done), P::default());
        }
        if unsent > 0 {
            // FIN goes with the last bytes: it must not overtake what the window does not take.
            return Emitted::Alive;
        }
        if self.ending == Ending::Close && self.send.unacked() == 0 {
            batch.push(thread, call::close(self.handle), P::default());
            return Emitted::Gone;
        }
        if !self.established {
            return Emitted::Alive;
        }
        // The memory of unacknowledged bytes must stay: FIN now, `close` when they arrived.
        if self.fin == Fin::Wanted || (self.ending == Ending::Close && self.fin == Fin::No) {
            self.fin = Fin::Sent;
            batch.push(thread, call::shutdown(self.handle), P::default());
        }
        Emitted::Alive
    }

    /// Takes in what a `sendv` of `offered` bytes returned. `Err`: the flow cannot go on. What was
    /// not taken stays; [`Flow::has_calls`] says whether it can be offered again.
    #[inline]
    pub fn sendv_answered(
        &mut self,
        offered: u64,
        answer: Result<u64, Error>,
    ) -> Result<(), Error> {
        self.offered = 0;
        if self.fin == Fin::Offered {
            self.fin = if answer == Ok(offered) { Fin::Sent } else { Fin::Wanted };
        }
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

    /// The peer has acknowledged `bytes` more, or (0) the window has opened.
    #[inline]
    pub fn acked(&mut self, bytes: u64) {
        self.blocked = false;
        let received = self.send.acked(bytes);
        self.receive.unlend(received);
    }
}
