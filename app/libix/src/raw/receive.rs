//! The received bytes of one flow that the application has not given back yet.
use super::Received;
use super::call::{self, Batched};
use crate::fifo::Fifo;

/// In order of arrival: bytes already given back, then bytes that the handler is done with or has
/// lent to the send queue (waiting for `Sent`), then unread bytes.
///
/// The slices are sound because the owner of the queue keeps three promises: it pushes the `Recv`
/// events of one flow in their order; only the bytes of [`ReceiveQueue::take_done`] go into
/// `recv_done`; and it drops the queue before the first cycle after `close`, `abort` or `Dead`. The
/// engine keeps them. Any other user makes them at [`ReceiveQueue::take_in`].
#[derive(Default)]
pub struct ReceiveQueue {
    unread: Fifo<Received>,
    unread_bytes: usize,
    /// Finished bytes that wait for lent ones before them: buffers are given back oldest first.
    waiting: Fifo<Span>,
    done_bytes: u64,
}

/// A datagram in its packet buffer, which has not been given back.
///
/// The engine, the only maker, makes one for each `UdpRecv` event, and for the bytes that
/// `UdpError` quotes, and pushes no `udp_recv_done` except [`Datagram::done`].
pub(crate) struct Datagram(Received);

impl Datagram {
    pub(crate) fn new(data: Received) -> Datagram {
        Datagram(data)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: given back only by `done`, which takes the value; there is one for each event.
        unsafe { self.0.bytes() }
    }

    /// The call that gives the buffer back.
    pub(crate) fn done(self) -> Batched {
        call::udp_recv_done(self.0)
    }
}

#[derive(Clone, Copy)]
struct Span {
    bytes: u64,
    lent: bool,
}

impl ReceiveQueue {
    #[inline]
    pub(crate) fn push(&mut self, data: Received) {
        self.unread_bytes += data.len() as usize;
        self.unread.push_back(data);
    }

    /// Takes in the bytes of a `Recv` event.
    ///
    /// # Safety
    /// They are the next bytes of the flow of this queue. As long as the queue lives, bytes of the
    /// flow are given back only as [`ReceiveQueue::take_done`] says (`Flow::emit` does so). The
    /// queue is dropped before the first cycle after `close`, `abort` or `Dead` of the flow.
    #[inline]
    pub unsafe fn take_in(&mut self, data: Received) {
        self.push(data);
    }

    /// Unread bytes.
    #[allow(clippy::len_without_is_empty)]
    #[inline]
    pub fn len(&self) -> usize {
        self.unread_bytes
    }

    /// Unread bytes, in the pieces in which they arrived.
    #[inline]
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        // SAFETY: unread bytes have not been given back, and the promises above keep them for as
        // long as the queue is borrowed: giving them back takes it mutably.
        self.unread.iter_from(0).map(|data| unsafe { data.bytes() })
    }

    /// The first `n` unread bytes (or all) are done with.
    #[inline]
    pub fn consume(&mut self, n: usize) {
        let bytes = self.remove(n, |_| ());
        self.wait(bytes, false);
    }

    /// Lends the first `n` unread bytes (or all): the pieces must not go back before
    /// [`ReceiveQueue::unlend`].
    #[inline]
    pub(crate) fn lend(&mut self, n: usize, piece: impl FnMut(Received)) -> usize {
        let bytes = self.remove(n, piece);
        self.wait(bytes, true);
        bytes as usize
    }

    /// The oldest `bytes` lent bytes are done with.
    #[inline]
    pub(crate) fn unlend(&mut self, mut bytes: u64) {
        while let Some(front) = self.waiting.front_mut() {
            let n = if front.lent { front.bytes.min(bytes) } else { front.bytes };
            if front.lent {
                bytes -= n;
            }
            front.bytes -= n;
            self.done_bytes += n;
            if front.bytes > 0 {
                break;
            }
            self.waiting.pop_front();
        }
        debug_assert!(bytes == 0, "more came back than was lent");
    }

    /// Bytes that can be given back now; the caller does.
    #[inline]
    pub fn take_done(&mut self) -> u64 {
        core::mem::take(&mut self.done_bytes)
    }

    /// What [`ReceiveQueue::take_done`] would return.
    #[inline]
    pub fn done(&self) -> u64 {
        self.done_bytes
    }

    /// Whether [`ReceiveQueue::take_done`] has anything.
    #[inline]
    pub fn has_done(&self) -> bool {
        self.done_bytes > 0
    }

    #[inline]
    fn remove(&mut self, n: usize, mut piece: impl FnMut(Received)) -> u64 {
        let mut left = n.min(self.unread_bytes);
        let removed = left;
        self.unread_bytes -= removed;
        while let Some(front) = self.unread.front_mut() {
            if left == 0 {
                break;
            }
            let step = (front.len() as usize).min(left) as u32;
            piece(front.take(step));
            *front = front.skip(step);
            left -= step as usize;
            if front.len() == 0 {
                self.unread.pop_front();
            }
        }
        removed as u64
    }

    #[inline]
    fn wait(&mut self, bytes: u64, lent: bool) {
        if self.waiting.is_empty() && !lent {
            self.done_bytes += bytes;
            return;
        }
        match self.waiting.back_mut() {
            Some(last) if last.lent == lent => last.bytes += bytes,
            _ if bytes > 0 => self.waiting.push_back(Span { bytes, lent }),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ix_abi::RxData;
    use proptest::prelude::*;

    fn received(data: &'static [u8]) -> Received {
        let addr = data.as_ptr().expose_provenance() as u64;
        RxData { addr, len: data.len() as u32 }.into()
    }

    static DATA: [u8; 4096] = {
        let mut data = [0; 4096];
        let mut i = 0;
        while i < 4096 {
            data[i] = (i * 31 % 251) as u8;
            i += 1;
        }
        data
    };

    proptest! {
        /// Model: one mark a byte (unread, finished, lent), given back only from the front.
        #[test]
        fn gives_back_oldest_first(steps in prop::collection::vec((0..4u8, 0..90usize), 1..200)) {
            let mut queue = ReceiveQueue::default();
            let mut model: Vec<char> = Vec::new();
            let (mut arrived, mut back) = (0, 0);
            for (what, n) in steps {
                let unread = model.iter().filter(|&&mark| mark == 'u').count();
                let first = model.len() - unread;
                let few = n.min(unread);
                match what {
                    0 if n > 0 && arrived + n <= DATA.len() => {
                        queue.push(received(&DATA[arrived..arrived + n]));
                        model.extend(std::iter::repeat_n('u', n));
                        arrived += n;
                    }
                    1 => {
                        queue.consume(n);
                        model[first..first + few].fill('f');
                    }
                    2 => {
                        let mut lent = 0;
                        prop_assert_eq!(queue.lend(n, |piece| lent += piece.len()), few);
                        prop_assert_eq!(lent as usize, few);
                        model[first..first + few].fill('l');
                    }
                    3 => {
                        let lent = model.iter().filter(|&&mark| mark == 'l').count();
                        queue.unlend(n.min(lent) as u64);
                        let marks = model.iter_mut().filter(|mark| **mark == 'l');
                        marks.take(n).for_each(|mark| *mark = 'f');
                    }
                    _ => {}
                }
                let gone = model.iter().take_while(|&&mark| mark == 'f').count();
                model.drain(..gone);
                back += gone;
                prop_assert_eq!(queue.has_done(), gone > 0);
                prop_assert_eq!(queue.take_done(), gone as u64);
                let unread: Vec<u8> = queue.slices().flatten().copied().collect();
                prop_assert_eq!(unread.len(), queue.len());
                prop_assert_eq!(&unread[..], &DATA[arrived - unread.len()..arrived]);
            }
            prop_assert!(back <= arrived);
        }
    }
}
