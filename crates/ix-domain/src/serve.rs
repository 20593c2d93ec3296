//! The broker's part while the image boots.
use crate::channel::{FromImage, ToImage};
use crate::exit::Exit;
use crate::launch::{Child, Occurrence};
use std::io;
use std::os::fd::BorrowedFd;

/// Why the dataplane did not come up.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The image says why.
    #[error("{0}")]
    Refused(String),
    /// The process ended without a word.
    #[error("the dataplane ended while it started ({0}); this is a fault of ix")]
    Died(Exit),
    /// The image spoke out of turn, or left.
    #[error("the dataplane and the ix command do not understand each other; build ix again")]
    Protocol,
    /// The channel broke.
    #[error("the channel to the dataplane broke: {0}")]
    System(#[from] io::Error),
}

/// Gives the image its configuration (`key=value` lines) and descriptors (an empty memfd for the
/// control page; packet memory if a device shares its frames with a peer; then the queues of each
/// `nic=` line, one for each elastic thread), calls `attached(device, queue)` after each queue — that
/// is the time for what needs privilege — and returns when the dataplane stands and the program
/// starts.
pub fn serve(
    child: &mut Child,
    config: &str,
    fds: &[BorrowedFd<'_>],
    mut attached: impl FnMut(usize, usize) -> Result<(), String>,
) -> Result<(), ServeError> {
    loop {
        let message = match child.next(&[], -1)? {
            Occurrence::Said(message) => message,
            Occurrence::Exited(exit) => return Err(ServeError::Died(exit)),
            Occurrence::Left => return Err(ServeError::Died(child.wait()?)),
            Occurrence::Readable(_) | Occurrence::Nothing => continue,
        };
        let (answer, fds) = match message {
            FromImage::Hello => (ToImage::Config(config.to_owned()), fds),
            FromImage::Attached { device, queue } => match attached(device, queue) {
                Ok(()) => (ToImage::Ok, &[][..]),
                Err(why) => (ToImage::Refused(why), &[][..]),
            },
            FromImage::Ready => return Ok(()),
            FromImage::Failed(why) => {
                child.wait()?;
                return Err(ServeError::Refused(why));
            }
            // Nothing was updated or asked for yet.
            FromImage::Taken { .. }
            | FromImage::Updated { .. }
            | FromImage::UpdateFailed { .. }
            | FromImage::Outcome { .. }
            | FromImage::Surveyed { .. } => return Err(ServeError::Protocol),
        };
        let channel = child.channel().ok_or(ServeError::Protocol)?;
        channel.send(&answer.encode(), fds)?;
    }
}
