//! Received frames that the application owns.
use super::Received;
use super::call::{self, Batched};
use core::cell::RefCell;
use core::fmt;
use core::ops::Deref;
use std::rc::Rc;

/// Frames that are no longer used, until they are given back.
#[derive(Default)]
pub(crate) struct Returns(RefCell<Vec<Received>>);

impl Returns {
    /// The call that gives one of them back.
    pub(crate) fn pop(&self) -> Option<Batched> {
        self.0.borrow_mut().pop().map(call::packet_recv_done)
    }

    /// Whether the list is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }
}

/// A received frame in the packet buffer, from its Ethernet header on. Dropping this gives the
/// buffer back to the dataplane; a program that keeps too many frames receives no more.
pub struct Packet {
    /// The whole frame.
    frame: Received,
    /// The part that is used.
    view: Received,
    home: Rc<Returns>,
}

impl Packet {
    /// The event loop, the only caller, makes one for each `PacketRecv` event, with the list of its
    /// own elastic thread, and pushes no `packet_recv_done` except those of the list.
    pub(crate) fn new(frame: Received, home: &Rc<Returns>) -> Packet {
        Packet { frame, view: frame, home: Rc::clone(home) }
    }

    /// Skips the first `n` bytes (or all): reading and sending begin after them.
    pub fn skip(&mut self, n: usize) {
        let n = n.min(self.view.len() as usize) as u32;
        self.view = self.view.skip(n);
    }

    /// Drops all but the first `n` bytes.
    pub fn truncate(&mut self, n: usize) {
        let n = n.min(self.view.len() as usize) as u32;
        self.view = self.view.take(n);
    }

    /// Address of the first used byte, for a scatter-gather entry.
    pub fn base(&self) -> u64 {
        self.view.base()
    }
}

impl Deref for Packet {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the frame is given back only by `drop`, and there is one for each event.
        unsafe { self.view.bytes() }
    }
}

impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Packet({} of {} bytes)", self.view.len(), self.frame.len())
    }
}

impl Drop for Packet {
    #[inline]
    fn drop(&mut self) {
        self.home.0.borrow_mut().push(self.frame);
    }
}
