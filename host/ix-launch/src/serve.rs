//! The broker's part while the image boots.
use crate::exit::Exit;
use crate::launch::{Child, Occurrence};
use ix_proto::{Codec, FromImage, Start, ToImage};
use std::io;
use std::os::fd::BorrowedFd;

/// Why the dataplane did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The image's reason.
    #[error("{0}")]
    Refused(String),
    /// The process ended without a message.
    #[error("the dataplane ended while it started ({0}); this is a fault of ix")]
    Died(Exit),
    /// The image sent an unexpected message, or left.
    #[error("the dataplane and the ix command do not understand each other; build ix again")]
    Protocol,
    /// The channel failed.
    #[error("the channel to the dataplane broke: {0}")]
    System(#[from] io::Error),
}

/// Waits for the image's request, and replies as [`equip`] does.
pub fn serve(
    child: &mut Child,
    start: Start,
    fds: &[BorrowedFd<'_>],
    attached: &mut dyn FnMut(usize, usize) -> Result<(), String>,
) -> Result<(), ServeError> {
    match next_message(child)? {
        FromImage::Hello { .. } => equip(child, start, fds, attached),
        FromImage::Failed(why) => refused(child, why),
        _ => Err(ServeError::Protocol),
    }
}

/// After the image's hello: sends it its configuration and the descriptors that [`Start`] names,
/// calls `attached(device, queue)` after each queue (the time for actions that need privilege), and
/// returns when the dataplane has started.
pub fn equip(
    child: &mut Child,
    start: Start,
    fds: &[BorrowedFd<'_>],
    attached: &mut dyn FnMut(usize, usize) -> Result<(), String>,
) -> Result<(), ServeError> {
    let answer = |child: &Child, answer: ToImage, fds: &[BorrowedFd<'_>]| {
        let channel = child.channel().ok_or(ServeError::Protocol)?;
        channel.send(&answer.encode(), fds).map_err(ServeError::from)
    };
    answer(child, ToImage::Start(Box::new(start)), fds)?;
    loop {
        match next_message(child)? {
            FromImage::Attached { device, queue } => {
                let done = attached(device, queue).map_or_else(ToImage::Refused, |()| ToImage::Ok);
                answer(child, done, &[])?;
            }
            FromImage::Ready => return Ok(()),
            FromImage::Failed(why) => return refused(child, why),
            // A message of the dataplane of a process that has ended since.
            FromImage::Taken { .. }
            | FromImage::Updated { .. }
            | FromImage::UpdateFailed { .. }
            | FromImage::Outcome { .. }
            | FromImage::Surveyed { .. }
            | FromImage::Survivor { .. } => {}
            FromImage::Hello { .. } => return Err(ServeError::Protocol),
        }
    }
}

fn next_message(child: &mut Child) -> Result<FromImage, ServeError> {
    loop {
        match child.next(&[], -1)? {
            Occurrence::Said(message, _) => return Ok(message),
            Occurrence::Exited(exit) => return Err(ServeError::Died(exit)),
            Occurrence::Left => return Err(ServeError::Died(child.wait()?)),
            Occurrence::Readable(_) | Occurrence::Nothing => {}
        }
    }
}

/// The image ends its process after this message, unless the program already runs in it.
fn refused(child: &mut Child, why: String) -> Result<(), ServeError> {
    if !child.begins_later() {
        child.wait()?;
    }
    Err(ServeError::Refused(why))
}
