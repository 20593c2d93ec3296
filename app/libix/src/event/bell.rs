//! Doorbells: what happens to a packet queue, told to threads that run no event loop.
use super::io::Io;
use crate::error::Error;
use std::os::fd::{AsRawFd, OwnedFd};

/// What a doorbell is rung for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Occasion {
    /// Frames came, and are there to be taken.
    Arrived,
    /// Frames were sent, or refused: their memory is free.
    Sent,
}

/// How it is rung: once a cycle, however much happened.
#[derive(Debug)]
pub enum Bell {
    /// One is added to this eventfd. A full one, which nobody has read for very long, is left
    /// alone.
    EventFd(OwnedFd),
    /// This signal is sent to the process.
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
    /// Rings `bell` when this happens to a packet queue; `None`: no more. `BadHandle`: no such
    /// queue.
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
