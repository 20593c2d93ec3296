//! Received frames that the application owns.
use super::Received;
use super::call::{self, Batched};
use core::cell::RefCell;
use core::fmt;
use core::ops::Deref;
use std::rc::Rc;

/// Frames that nobody uses any more, until they are given back.
#[derive(Default)]
pub(crate) struct Returns(RefCell<Vec<Received>>);

impl Returns {
    /// The call that gives one of them back.
    pub(crate) fn pop(&self) -> Option<Batched> {
        self.0.borrow_mut().pop().map(call::packet_recv_done)
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }
}

/// A received frame where the device has put it, from its Ethernet header on. Its buffer goes back
/// to the dataplane when this is dropped; a program that keeps too many receives no more.
pub struct Packet {
    /// The whole frame.
    frame: Received,
    /// What of it is used.
    view: Received,
    home: Rc<Returns>,
}

impl Packet {
    /// The event loop, the only user, makes one of each `PacketRecv` event, with the list of its
    /// own elastic thread, and pushes no other `packet_recv_done` than those of the list.
    pub(crate) fn new(frame: Received, home: &Rc<Returns>) -> Packet {
        Packet { frame, view: frame, home: Rc::clone(home) }
    }

    /// Leaves the first `n` bytes (or all) out: what is read and sent on begins behind them.
    pub fn skip(&mut self, n: usize) {
        let n = n.min(self.view.len() as usize) as u32;
        self.view = self.view.skip(n);
    }

    /// Leaves all but the first `n` bytes out.
    pub fn truncate(&mut self, n: usize) {
        let n = n.min(self.view.len() as usize) as u32;
        self.view = self.view.take(n);
    }

    /// Address of the first byte that is used, for a scatter-gather entry.
    pub fn base(&self) -> u64 {
        self.view.base()
    }
}

impl Deref for Packet {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the frame is given back only by `drop`, and there is one of each event.
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
