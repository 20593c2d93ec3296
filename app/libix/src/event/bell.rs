//! Doorbells: notifications about a packet queue for threads that run no event loop.
use super::io::Io;
use crate::error::Error;
use std::os::fd::{AsRawFd, OwnedFd};

/// When a doorbell rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Occasion {
    /// Frames have arrived and can be taken.
    Arrived,
    /// Frames were sent or refused: their memory is free.
    Sent,
}

/// How a doorbell rings: once per cycle, however much happened.
#[derive(Debug)]
pub enum Bell {
    /// Adds one to this eventfd. A full eventfd, which no thread has read for very long, is
    /// skipped.
    EventFd(OwnedFd),
    /// Sends this signal to the process.
    Signal(i32),
}

/// The doorbells of a queue.
#[derive(Default)]
pub(super) struct Bells {
    arrived: Option<Bell>,
    sent: Option<Bell>,
}

impl Bells {
    fn of(&mut self, occasion: Occasion) -> &mut Option<Bell> {
        match occasion {
            Occasion::Arrived => &mut self.arrived,
            Occasion::Sent => &mut self.sent,
        }
    }

    pub(super) fn ring(&mut self, occasion: Occasion) {
        match self.of(occasion) {
            None => {}
            Some(Bell::EventFd(fd)) => crate::raw::ring_eventfd(fd.as_raw_fd()),
            Some(Bell::Signal(number)) => crate::raw::signal_process(*number),
        }
    }
}

impl<S> Io<S> {
    /// Sets the doorbell of a packet queue for this occasion; `None`: removes it. `BadHandle`: no
    /// such queue.
    pub fn set_bell(
        &mut self,
        queue: u64,
        occasion: Occasion,
        bell: Option<Bell>,
    ) -> Result<(), Error> {
        let bells = self.packets.bells(queue).ok_or(Error::BadHandle)?;
        *bells.of(occasion) = bell;
        Ok(())
    }
}
