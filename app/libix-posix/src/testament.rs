//! What `send` has accepted arrives, even if the process is killed before its next batch.
//!
//! The program's calls become calls of a batch only when a thread waits next, a millisecond later
//! at most; and what the window does not take waits here for much longer. So each of them is noted
//! in memory that the dataplane reads when this process has ended ([`ix_abi::Will`]): that a
//! connection was accepted, what was read of it, and what is to be sent.
use crate::elastic_thread::ElasticThread;
use crate::slab::{Id, Slab};
use crate::socket::Socket;
use crate::state::Core;
use crate::stream::{Phase, Stream};
use ix_abi::WillEntry;

impl Core {
    /// `accept` has returned this connection.
    pub fn notes_accepted(&mut self, id: Id) {
        self.notes(id, |stream| Some(given_back(stream, 0)).into_iter());
    }

    /// The program has read this many bytes.
    pub fn notes_read(&mut self, id: Id, bytes: usize) {
        self.notes(id, |stream| Some(given_back(stream, bytes as u64)).into_iter());
    }

    /// The program has written this many bytes, which were the last ones.
    pub fn notes_written(&mut self, id: Id, bytes: usize) {
        self.notes(id, |stream| {
            let before = stream.flow.send.unsent().saturating_sub(bytes as u64);
            to_send(stream, stream.flow.send.unsent_from(before))
        });
    }

    #[inline]
    fn notes<'a, I: Iterator<Item = WillEntry> + 'a>(
        &'a mut self,
        id: Id,
        entries: impl FnOnce(&'a Stream) -> I,
    ) {
        let Core { sockets, elastic_threads, .. } = self;
        let Some(socket) = sockets.get_mut(id) else { return };
        let ElasticThread { will, noted, .. } = &mut elastic_threads[socket.elastic];
        let (Some(will), Some(stream)) = (will, socket.stream()) else { return };
        if stream.flow.handle == 0 || stream.is_away() {
            return;
        }
        if !core::mem::replace(&mut stream.noted, true) {
            noted.push(id);
        }
        entries(stream).for_each(|entry| will.note(entry));
    }

    /// This batch of calls is written, or its answers are known (0): from now on only what
    /// they do not say is noted.
    pub fn renews_will(&mut self, elastic: usize, batch: (u64, usize)) {
        let Core { sockets, elastic_threads, .. } = self;
        let ElasticThread { will: Some(will), noted, .. } = &mut elastic_threads[elastic] else {
            return;
        };
        noted.retain(|id| {
            let Some(stream) = sockets.get_mut(*id).and_then(Socket::stream) else { return false };
            stream.noted = owes(stream);
            stream.noted
        });
        let sockets = &*sockets;
        will.renew(batch, noted.iter().flat_map(|id| unsaid(sockets, *id)));
    }
}

fn given_back(stream: &Stream, len: u64) -> WillEntry {
    WillEntry { handle: stream.flow.handle, at_end: stream.legacy, base: 0, len }
}

fn to_send(
    stream: &Stream,
    pieces: impl Iterator<Item = ix_abi::SgEntry>,
) -> impl Iterator<Item = WillEntry> {
    let (handle, at_end) = (stream.flow.handle, stream.legacy);
    pieces.map(move |piece| WillEntry { handle, at_end, base: piece.base, len: piece.len })
}

/// Whether anything of this connection is to be noted until the next answers are known.
fn owes(stream: &Stream) -> bool {
    let is_here = stream.flow.handle != 0 && !stream.is_away() && stream.phase != Phase::Dead;
    let flow = &stream.flow;
    is_here && (flow.send.unsent() > 0 || flow.receive.has_done() || is_only_accepted(stream))
}

/// Whether the program has accepted it, and the dataplane does not know.
fn is_only_accepted(stream: &Stream) -> bool {
    stream.phase == Phase::ToAccept && stream.queued_at.is_none()
}

/// What no call of the batch says of a connection.
fn unsaid(sockets: &Slab<Socket>, id: Id) -> impl Iterator<Item = WillEntry> {
    let stream = sockets.get(id).and_then(Socket::as_stream);
    stream.into_iter().flat_map(|stream| {
        let done = stream.flow.receive.done();
        let first = done > 0 || is_only_accepted(stream);
        let first = first.then(|| given_back(stream, done));
        first.into_iter().chain(to_send(stream, stream.flow.unsaid()))
    })
}
